"""Text of unknown origin (host names, messages, log lines) made safe to show, or to count with."""

from __future__ import annotations

import re
import unicodedata

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$])")


def plain(text: object, most: int = 400) -> str:
    """One line of at most `most` characters: no control, direction or invisible characters.

    Terminal sequences are removed whole, so that nothing of them is left to read as text.
    """
    kept = _ANSI.sub("", str(text)[: most * 8])
    line = "".join(" " if c in "\n\r\t\x0b\x0c" else c for c in kept)
    line = "".join(c for c in line if unicodedata.category(c)[0] != "C")
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def decimal(text: str) -> int | None:
    """The number that a text is: 1 to 18 digits from 0 to 9. None for any other text.

    `int` takes signs, blanks and the digits of any script besides, `str.isdigit` what `int` does
    not, and with more than 4,300 digits it raises.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def visible(text: str) -> str:
    """The lines of a text as they are, without what a terminal would act on."""
    kept = _ANSI.sub("", text).replace("\t", " ")
    return "".join(c for c in kept if c == "\n" or unicodedata.category(c)[0] != "C")


def markdown(text: object, most: int = 400) -> str:
    """The same with everything escaped that Markdown or HTML in it would act on."""
    return _MARKDOWN.sub(r"\\\1", plain(text, most)).replace("\\<", "&lt;").replace("\\&", "&amp;")
