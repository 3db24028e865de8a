"""Read `values/signs.yaml`, the known lines of programs, and write its rows for the nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

from accept.config import resources
from accept.config.yaml_file import read_values
from accept.core.serde import dump
from accept.core.signs import Code, Meaning

#: Abbreviations in patterns. Names of hosts begin after a character that no name has, so that each
#: is tried once. A row that is cut after its column `root`, which is -1, may be before one.
_PARTS: Mapping[str, str] = {
    "{host}": r"(?<![\w.-])(?:-1)?(?P<host>\w[\w.-]{0,254})",
    "{peer}": r"(?<![\w.-])(?P<peer>[\w.:-]{1,255})",
    "{nic}": r"(?P<nic>[\w.:/-]{1,64})",
    "{place}": r"[\w./-]{1,255}:\d{1,6}",
    "{xid}": r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]{7,20})"
    r"(?: GPU-I:\d{1,3})?(?: GPU-CI:\d{1,3})?\): ",
    "{crash}": r"Kernel panic - not syncing: [^\n\]]{0,80}"
    r"|(?:Oops|Internal error|general protection fault|invalid opcode)[:,] [^\n\[]{0,80}"
    r"\[#\d{1,4}\]"
    r"|Watchdog detected hard LOCKUP on cpu \d{1,4}",
}


@dataclass(frozen=True, kw_only=True)
class CodeRow(Code):
    """A number in the file."""

    example: str | None = None


@dataclass(frozen=True, kw_only=True)
class SignRow(Meaning):
    """A sign in the file: see `accept.core.signs.Sign`."""

    #: The programs that print it.
    programs: tuple[str, ...]
    pattern: str
    #: A line as a program printed it.
    example: str
    #: For a pattern of alternatives without a text in common: one text of each.
    words: tuple[str, ...] = ()
    codes: dict[str, CodeRow] = field(default_factory=dict)

    @property
    def expanded(self) -> str:
        """Return the pattern without abbreviations."""
        return _expanded(self.pattern)


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """A message of the kernel in the file: see `launchers/programs/health_host.py`."""

    kind: str
    pattern: str
    source: str
    example: str
    code: int | None = None

    @property
    def expanded(self) -> str:
        """Return the pattern without abbreviations."""
        return _expanded(self.pattern)


def _expanded(pattern: str) -> str:
    for short, long in _PARTS.items():
        pattern = pattern.replace(short, long)
    return pattern


@dataclass(frozen=True, kw_only=True)
class _File:
    events: dict[str, EventRow]
    signs: dict[str, SignRow]


@cache
def _file() -> _File:
    return read_values(_File, "signs")


def sign_rows() -> Mapping[str, SignRow]:
    """Return the rows of the file by the names of the signs."""
    return _file().signs


def event_rows() -> Mapping[str, EventRow]:
    """Return the messages of the kernel in the file, by their names."""
    return _file().events


def events_for_nodes() -> bytes:
    """Return the messages of the kernel as JSON, one per line: kind, pattern, code."""
    rows = ([row.kind, row.expanded, row.code] for row in event_rows().values())
    return ("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n").encode()


def for_nodes() -> bytes:
    """Return the rows as JSON, one per line, as `accept.core.signs` reads them."""
    lines = []
    for name, row in sign_rows().items():
        codes = {
            code: {key: value for key, value in _fields(one) if key != "example"}
            for code, one in row.codes.items()
        }
        data = {key: value for key, value in _fields(row) if key in _FOR_NODES}
        data |= {"pattern": row.expanded, "literals": row.words or (literal(row.expanded),)}
        data |= {"codes": codes} if codes else {}
        lines.append(f"{json.dumps(name)}: {json.dumps(data, ensure_ascii=False)}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


#: The fields that nodes get, besides the pattern and the codes.
_FOR_NODES = frozenset(one.name for one in fields(Meaning))


def _fields(row: SignRow | CodeRow) -> Iterator[tuple[str, object]]:
    """Yield the fields that differ from their defaults."""
    for key, value in dump(row).items():
        if value not in (False, {}):
            yield key, value


#: An escaped character, a set, or any other character of a regular expression, with its quantifier.
_ITEM = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)([?*+]|\{\d+(?:,\d*)?\})?\??", re.DOTALL)


def literal(pattern: str) -> str:
    """Return the longest text that every match of a pattern contains; empty if there is none."""
    runs, run, depth = [""], "", 0
    for item, quantifier in _ITEM.findall(pattern):
        if item == "|" and depth == 0:
            return ""
        plain = item if item[0] not in "\\[.^$()|" else ""
        if len(item) == 2 and not item[1].isalnum():
            plain = item[1]
        if plain and depth == 0 and not quantifier:
            run += plain
            continue
        runs.append(run)
        run = ""
        depth += (item == "(") - (item == ")")
    return max(*runs, run, key=len)


def write() -> None:
    """Write the files that are made from the rows."""
    (Path(__file__).parents[1] / "core" / "signs.json").write_bytes(for_nodes())
    events = resources.launchers() / "programs" / "kernel_events.json"
    events.write_bytes(events_for_nodes())


if __name__ == "__main__":
    write()
