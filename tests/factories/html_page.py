"""Read the tables and texts of a page as a reader sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

#: Elements without an end tag.
_VOID = ("meta", "link", "br", "hr", "input", "img", "path", "circle", "rect", "line")


@dataclass
class Section:
    """A part of the page: its class, its text, and the rows of its tables."""

    classes: str = ""
    texts: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the text with single blanks."""
        return " ".join(" ".join(self.texts).split())


class Page(HTMLParser):
    """The sections of a page by their id, else by their class; pictures are left out."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sections: dict[str, Section] = {}
        self.headings: list[str] = []
        self._open: list[str] = []
        self._section = Section()
        self._cell: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self._open.append(tag)
        values = {name: value or "" for name, value in attrs}
        if tag in ("section", "header"):
            self._section = Section(classes=values.get("class", ""))
            name = values.get("id") or self._section.classes.split()[0]
            self.sections[name] = self._section
        elif tag == "tr":
            self._section.rows.append([])
        elif tag in ("td", "th"):
            self._cell = []
        elif tag == "h1":
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self._section.rows[-1].append(" ".join("".join(self._cell).split()))
            self._cell = None
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"svg", "script", "style"}.isdisjoint(self._open):
            return
        self._section.texts.append(data)
        if self._cell is not None:
            self._cell.append(data)
        if self._open[-1:] == ["h1"]:
            self.headings[-1] += data
