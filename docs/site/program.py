"""Ask the program itself: the results of its commands, and Markdown for them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from accept.app.command_line import call

#: What `json.loads` returns for the results of commands.
Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None


def result_of(*words: str) -> dict[str, Json]:
    """Return what a command prints with --json."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        call([*words, "--json"])
    result: dict[str, Json] = json.loads(output.getvalue())
    return result


def texts(value: Json) -> dict[str, str]:
    """Return the keys of a JSON object that have a text as value."""
    assert isinstance(value, Mapping)
    return {key: item for key, item in value.items() if isinstance(item, str)}


def items(value: Json) -> Sequence[Json]:
    """Return a JSON array."""
    assert isinstance(value, Sequence)
    assert not isinstance(value, str)
    return value


def mapping(value: Json) -> Mapping[str, Json]:
    """Return a JSON object."""
    assert isinstance(value, Mapping)
    return value


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; its cells are Markdown of one paragraph."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a code span."""
    return f"`{text}`"


def prose(text: str) -> str:
    """Return plain text as Markdown, in which only backticks keep their meaning."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts
    )
