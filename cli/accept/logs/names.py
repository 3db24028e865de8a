"""Hosts in the names of files: people name logs after who took part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_NUMBER = re.compile(r"(\d+)")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_BETWEEN = re.compile(r"([-_.])")


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts node9 before node10."""
    parts = _NUMBER.split(name)
    return tuple((int(p), "") if i % 2 else (0, p) for i, p in enumerate(parts))


class HostNames:
    """Hosts that logs tell of, and those that are called like them, in the names of files."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._full = {_short(host).lower(): host for host in hosts}
        longest = sorted(self._full, key=lambda name: (-len(name), name))
        like = dict.fromkeys(_patterns(longest))
        self._full |= {host.lower(): host for host in self._full.values()}
        known = sorted(self._full, key=lambda name: (-len(name), name))
        words = "|".join((*map(re.escape, known), *like))
        self._word = re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", re.IGNORECASE)

    def of(self, file: str) -> tuple[str, ...]:
        """The hosts in the name of a file, else of its folder, in their order.

        One that no log tells of is among them where it is called like those of which logs tell.
        """
        path = Path(file)
        found = self._word.findall(path.name) or self._word.findall(path.parent.name)
        return tuple(dict.fromkeys(self._full.get(name.lower(), name) for name in found))

    def kind(self, file: str) -> str:
        """The name of a file with its hosts left out: equal for logs of one kind."""
        path = Path(file)
        return f"{path.parent}/{self._word.sub('*', path.name)}"

    def shape(self, file: str) -> str:
        """The name of a file without its folder, with its hosts and all numbers left out."""
        return _NUMBER.sub("#", self._word.sub("*", Path(file).name))


def _short(host: str) -> str:
    """A host's name without its domain; an address as it is."""
    return host if _ADDRESS.fullmatch(host) else host.partition(".")[0] or host


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """What matches names like these: other numbers, or another word where theirs differ."""
    for name in names:
        if _ADDRESS.fullmatch(name):
            yield _ADDRESS.pattern
        elif name[:1].isalpha():
            yield "".join(
                r"\d+" if i % 2 else re.escape(p) for i, p in enumerate(_NUMBER.split(name))
            )
    by_count: dict[int, list[list[str]]] = {}
    for name in names:
        parts = _BETWEEN.split(name)
        by_count.setdefault(len(parts), []).append(parts)
    for several in by_count.values():
        columns = [set(column) for column in zip(*several, strict=True)]
        first = columns[0]
        # Names that have nothing in common are like any word.
        if len(several) > 1 and len(first) == 1 and len(columns) > 1 and "".join(first).isalpha():
            yield "".join(re.escape(*c) if len(c) == 1 else r"[a-z0-9]+" for c in columns)
