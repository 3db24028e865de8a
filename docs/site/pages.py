"""Complete a page when Sphinx reads it: insert generated parts, and make links work on the site.

The pages in docs/ work on GitHub as they are. On the site, `<!-- insert: NAME -->` becomes what
the program knows, and links to files outside of docs/ lead to the
page of the site that shows them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.site import commands, schemas, tables

ROOT: Final = Path(__file__).resolve().parents[2]

#: Pages of the site that show another file of the repository.
SHOWN: Final[Mapping[str, str]] = {
    "docs/benchmarks.md": "benchmarks/README.md",
    "docs/changelog.md": "CHANGELOG.md",
    "docs/contributing.md": "CONTRIBUTING.md",
    "docs/image.md": "docker/README.md",
    "docs/security.md": "SECURITY.md",
}
#: Where links to files outside of docs/ lead.
_PAGES: Final[Mapping[str, str]] = {
    **{file: page for page, file in SHOWN.items()},
    "README.md": "docs/index.md",
}
#: Generated parts of pages, by the name in their marker.
PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "causes": tables.causes,
    "checks": tables.checks,
    "commands": commands.reference,
    "error-codes": tables.error_codes,
    "json-schemas": schemas.results,
    "machines": tables.machines,
    "schema machine": lambda: schemas.keys("machine"),
    "schema site": lambda: schemas.keys("site"),
    "schema suite": lambda: schemas.keys("suite"),
    "schema tool": lambda: schemas.keys("tool"),
    "schema values": lambda: schemas.keys("values"),
    "signs": tables.signs,
    "suites": tables.suites,
}

_MARKER = re.compile(r"^<!-- insert: (.+) -->$", re.MULTILINE)
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
#: The first line of a block that shows a file. GitHub ignores the name; Sphinx needs a directive.
_FILE = re.compile(r"^( *)```(\w+) (\S+)$", re.MULTILINE)
#: Texts of links that name a file. Sphinx replaces them by the title of the page.
_FILE_NAME = re.compile(r"([\w/-]+\.md|README)")


def complete(page: str, text: str) -> str:
    """Return the text of a page, named by its path in the repository, as the site shows it."""
    if page in SHOWN:
        return _with_links(page, SHOWN[page], _read(SHOWN[page]))
    inserted = _MARKER.sub(lambda found: PARTS[found[1]](), _with_links(page, page, text))
    return _FILE.sub(r"\1```{code-block} \2\n\1:caption: \3\n", inserted)


def _read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def _with_links(page: str, file: str, text: str) -> str:
    """Return text from `file` with links that work on `page`."""

    def replace(found: re.Match[str]) -> str:
        text = "" if _FILE_NAME.fullmatch(found[1]) else found[1]
        return f"[{text}]({_target(page, file, found[2])})"

    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


def _target(page: str, file: str, target: str) -> str:
    if re.match(r"[a-z]+:|#", target):
        return target
    name, _, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
    path = _PAGES.get(path, path)
    relative = posixpath.relpath(path, posixpath.dirname(page))
    return f"{relative}#{anchor}" if anchor else relative
