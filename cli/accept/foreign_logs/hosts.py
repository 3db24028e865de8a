"""Find host names in file names, because people name logs after the hosts that took part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from accept.core.by_key import by_key

_NUMBER = re.compile(r"(\d+)")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_BETWEEN = re.compile(r"([-_.])")
#: Names that nobody chose: UUIDs, ids of containers, and the ends of the names of pods, which
#: Kubernetes makes of these characters (apimachinery, pkg/util/rand).
_CHANCE = re.compile(
    r"(?<![a-z0-9])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*\d)[0-9a-f]{8,}"
    r"|[bcdfghjklmnpqrstvwxz2456789]{5,10})(?![a-z0-9])"
)
#: Files of errors, which are empty if all went well.
_OF_ERRORS = re.compile(r"(?<![a-z0-9])(?:std)?err(?:or|ors)?(?![a-z0-9])", re.IGNORECASE)
#: Pattern of one character of a random suffix, as in names of pods and instances. Such a suffix is
#: not a word.
_RANDOM = r"(?=[a-z]*[0-9]|[b-df-hj-np-tv-z]+(?![a-z0-9]))[a-z0-9]"


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts node9 before node10."""
    parts = _NUMBER.split(name)
    return tuple((int(p), "") if i % 2 else (0, p) for i, p in enumerate(parts))


class HostNames:
    """Find hosts in file names: those that occur in logs, and similar names.

    A similar name counts as a host only if the file is named like a log of a known host. So
    `node-list.txt` and `h100-notes.txt` contain no host.
    """

    def __init__(self, hosts: Iterable[str], logs: Iterable[str] = ()) -> None:
        """Take the `hosts` that occur in logs, and the names of files with results."""
        self._full = {_short(host).lower(): host for host in hosts}
        longest = sorted(self._full, key=lambda name: (-len(name), name))
        like = dict.fromkeys(_patterns(longest))
        self._full |= {host.lower(): host for host in self._full.values()}
        known = sorted(self._full, key=lambda name: (-len(name), name))
        self._known = _words(map(re.escape, known))
        self._like = _words((*map(re.escape, known), *like))
        files = [Path(file) for file in logs]
        self._shapes = {_shape(self._known, file) for file in files}
        no_pattern = len(self._shapes) == len(files) > 1
        self._kinds = {(file.parent, file.suffix) for file in files if no_pattern}
        self._folders = {file.name for file in files if self._known.search(file.parent.name)}

    def of(self, file: str) -> tuple[str, ...]:
        """Return the hosts in the name of a file, else of its folder, in their order."""
        path = Path(file)
        is_like_log = _shape(self._like, path) in self._shapes
        pattern = self._like if is_like_log else self._known
        if names := pattern.findall(path.name):
            return self._hosts(names)
        pattern = self._like if path.name in self._folders else self._known
        return self._hosts(pattern.findall(path.parent.name))

    def called(self, host: str) -> str:
        """Return a host's name as other logs write it, with or without the domain."""
        return next(iter(self._hosts(self._like.findall(host))), host)

    def _hosts(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._full.get(name.lower(), name) for name in names))

    def kind(self, file: str) -> str:
        """Return the path of a file with `*` for its hosts, which is equal for logs of one kind."""
        path = Path(file)
        return f"{path.parent}/{self._like.sub('*', path.name)}"

    def pattern(self, file: str) -> str:
        """Return the name of a file with `*` for its hosts and `#` for all other numbers."""
        return _shape(self._like, Path(file))

    def fits(self, file: str, *, empty: bool) -> bool:
        """Return True if a file is named like those with results.

        Hosts, numbers and what chance chose may differ. If each of those has a name of its own, an
        `empty` file with their suffix is one of them.
        """
        path = Path(file)
        if empty and (path.parent, path.suffix) in self._kinds:
            return not _OF_ERRORS.search(path.name)
        return any(_shape(word, path) in self._shapes for word in (self._known, self._like))


def _words(words: Iterable[str]) -> re.Pattern[str]:
    any_ = "|".join(words) or "(?!)"
    return re.compile(rf"(?<![a-z0-9])(?:{any_})(?![a-z0-9])", re.IGNORECASE)


def _shape(word: re.Pattern[str], file: Path) -> str:
    """Return the name of a file with `*` for its hosts, and `#` for other numbers and chance."""
    return _NUMBER.sub("#", _CHANCE.sub("#", word.sub("*", file.name)))


def _short(host: str) -> str:
    """Return a host's name without its domain, or an address unmodified."""
    return host if _ADDRESS.fullmatch(host) else host.partition(".")[0] or host


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """Return patterns of similar names: with other numbers, or other random suffixes."""
    for name in names:
        if _ADDRESS.fullmatch(name):
            yield _ADDRESS.pattern
        elif name[:1].isalpha():
            yield "".join(
                r"\d+" if i % 2 else re.escape(p) for i, p in enumerate(_NUMBER.split(name))
            )
    by_lengths = by_key((tuple(map(len, parts)), parts) for parts in map(_BETWEEN.split, names))
    for lengths, splits in by_lengths.items():
        columns = [set(column) for column in zip(*splits, strict=True)]
        first = columns[0]
        # Without a common start, the pattern would match any word.
        if len(splits) > 1 and len(first) == 1 and len(columns) > 1 and "".join(first).isalpha():
            yield "".join(
                re.escape(*column) if len(column) == 1 else f"{_RANDOM}{{{length}}}"
                for column, length in zip(columns, lengths, strict=True)
            )
