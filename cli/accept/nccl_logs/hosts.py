"""Hosts in the names of files: people name logs after who took part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_NUMBER = re.compile(r"(\d+)")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_BETWEEN = re.compile(r"([-_.])")
#: A suffix that somebody drew, as of pods and instances: no word of a language.
_DRAWN = r"(?=[a-z]*[0-9]|[b-df-hj-np-tv-z]+(?![a-z0-9]))[a-z0-9]"


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts node9 before node10."""
    parts = _NUMBER.split(name)
    return tuple((int(p), "") if i % 2 else (0, p) for i, p in enumerate(parts))


class HostNames:
    """Hosts that logs tell of, and those that are called like them, in the names of files.

    One that no log tells of is a host only in a name that would be a log's with a known host there:
    `node-list.txt` and `h100-notes.txt` are about nobody.
    """

    def __init__(self, hosts: Iterable[str], logs: Iterable[str] = ()) -> None:
        """`hosts`: those that logs tell of; `logs`: files that have results."""
        self._full = {_short(host).lower(): host for host in hosts}
        longest = sorted(self._full, key=lambda name: (-len(name), name))
        like = dict.fromkeys(_patterns(longest))
        self._full |= {host.lower(): host for host in self._full.values()}
        known = sorted(self._full, key=lambda name: (-len(name), name))
        self._known = _words(map(re.escape, known))
        self._like = _words((*map(re.escape, known), *like))
        files = [Path(file) for file in logs]
        self._shapes = {_shape(self._known, file) for file in files}
        self._folders = {file.name for file in files if self._known.search(file.parent.name)}

    def of(self, file: str) -> tuple[str, ...]:
        """The hosts in the name of a file, else of its folder, in their order."""
        path = Path(file)
        shaped = _shape(self._like, path) in self._shapes
        word = self._like if shaped else self._known
        if found := word.findall(path.name):
            return self._hosts(found)
        word = self._like if path.name in self._folders else self._known
        return self._hosts(word.findall(path.parent.name))

    def called(self, host: str) -> str:
        """A host, which a log names in full or in short, as the others name it."""
        return next(iter(self._hosts(self._like.findall(host))), host)

    def _hosts(self, found: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._full.get(name.lower(), name) for name in found))

    def kind(self, file: str) -> str:
        """The name of a file with its hosts left out: equal for logs of one kind."""
        path = Path(file)
        return f"{path.parent}/{self._like.sub('*', path.name)}"

    def names_one(self, file: str) -> bool:
        """Whether a host that logs tell of is in the name of a file."""
        return bool(self._known.search(Path(file).name))

    def fits(self, file: str) -> bool:
        """Whether a file is called like those with results: with other hosts, other numbers."""
        path = Path(file)
        return any(_shape(word, path) in self._shapes for word in (self._known, self._like))


def _words(words: Iterable[str]) -> re.Pattern[str]:
    any_ = "|".join(words) or "(?!)"
    return re.compile(rf"(?<![a-z0-9])(?:{any_})(?![a-z0-9])", re.IGNORECASE)


def _shape(word: re.Pattern[str], file: Path) -> str:
    """The name of a file without its folder, with its hosts and all numbers left out."""
    return _NUMBER.sub("#", word.sub("*", file.name))


def _short(host: str) -> str:
    """A host's name without its domain; an address as it is."""
    return host if _ADDRESS.fullmatch(host) else host.partition(".")[0] or host


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """What matches names like these: other numbers, or another drawn suffix where theirs differ."""
    for name in names:
        if _ADDRESS.fullmatch(name):
            yield _ADDRESS.pattern
        elif name[:1].isalpha():
            yield "".join(
                r"\d+" if i % 2 else re.escape(p) for i, p in enumerate(_NUMBER.split(name))
            )
    by_lengths: dict[tuple[int, ...], list[list[str]]] = {}
    for name in names:
        parts = _BETWEEN.split(name)
        by_lengths.setdefault(tuple(map(len, parts)), []).append(parts)
    for lengths, several in by_lengths.items():
        columns = [set(column) for column in zip(*several, strict=True)]
        first = columns[0]
        # Names that have nothing in common are like any word.
        if len(several) > 1 and len(first) == 1 and len(columns) > 1 and "".join(first).isalpha():
            yield "".join(
                re.escape(*column) if len(column) == 1 else f"{_DRAWN}{{{length}}}"
                for column, length in zip(columns, lengths, strict=True)
            )
