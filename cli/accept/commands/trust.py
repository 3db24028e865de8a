"""Ask once before a site file that was found is used: it names programs, images and hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from accept.config import site_file
from accept.config.yaml_file import Document, Keys
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import escaped, show_path
from accept.core.text import command_line, count, inert, visible
from accept.report.console import Terminal

#: Keys that start nothing and reach no host or file.
_HARMLESS = {
    *("name", "backend", "interface", "gpusPerNode", "requireAllNodes"),
    *("startTimeout", "deadline", "keep", "expect"),
}
#: Keys of a tool in `tools.checks` that its command does not contain.
_HARMLESS_OF_TOOL = {
    *("name", "summary", "source", "install", "port", "per", "groups", "needs", "seconds"),
    *("secondsOf", "timeout", "results", "parts", "failure", "others"),
}
#: Maximum number of lines, and of characters of a value, that are shown before the question.
_LINES, _CHARACTERS = 40, 200


def require_trust(found: Path, document: Document, terminal: Terminal) -> None:
    """Return if the user trusts a site file that was found; on a terminal, ask.

    `document` must be used afterwards: the file itself could change meanwhile. Raises BadInput.
    """
    state = site_file.trust_of(found, document.sha256)
    if state is site_file.Trust.TRUSTED:
        return
    why = (
        "changed after you trusted it"
        if state is site_file.Trust.CHANGED
        else "was found here, and you have not trusted it yet"
    )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        named = command_line("accept", *sys.argv[1:], "--site", found)
        raise BadInput(
            f"{found} {why}: it decides which programs run",
            code=Code.SITE_TRUST,
            hint=f"read it, then name it: {named}; or use none: --site {site_file.NONE}",
        )
    if not _is_trusted_now(found, why, document):
        raise BadInput(
            f"{found} is not trusted, so nothing was started",
            code=Code.SITE_TRUST,
            hint=f"correct it, or use none: --site {site_file.NONE}",
        )
    keep_trust(found, document.sha256, terminal)


def keep_trust(path: Path, sha256: str, terminal: Terminal) -> None:
    """Remember that the user trusts a content at a place; if that fails, report it."""
    try:
        site_file.trust(path, sha256)
    except OSError as error:
        reason = f"{escaped(str(error.filename or ''), 300)}: {error.strerror}"
        terminal.notice(f"the next command asks whether you trust {path}: {reason}")


def _is_trusted_now(found: Path, why: str, document: Document) -> bool:
    """Show what a site file sets, and ask the user whether to trust it."""
    lines = [f"  {text}" for text in _settings(document.data)]
    more = [f"  and {count(len(lines) - _LINES, 'more line')}: read the file"]
    shown = (
        f"{found.absolute()} {why}. It names:",
        *(lines[:_LINES] or ["  no program, image or host"]),
        *(more if len(lines) > _LINES else []),
        "Programs that it names run here and on the hosts.",
        "Do you trust it until it changes? [y/N] ",
    )
    while True:
        sys.stderr.write(inert(visible("\n".join(shown))))
        sys.stderr.flush()
        answer = sys.stdin.readline().strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        shown = ("type y to trust it, or n: ",)


def _settings(data: object, path: Keys = ()) -> Iterator[str]:
    """Yield `KEY: VALUE` for each value that can start something or reach something."""
    if path and path[0] in _HARMLESS:
        return
    if path[:2] == ("tools", "checks") and {*path[3:4]} & _HARMLESS_OF_TOOL:
        return
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _settings(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _settings(value, (*path, index))
    elif data is not None:
        yield f"{show_path(path)}: {escaped(str(data), _CHARACTERS)}"
