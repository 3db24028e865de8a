"""Find known lines of programs in a text: signs of a cause, ranked by how much of it they show.

`values/signs.yaml` has the signs. Nodes have no parser of YAML, so `signs.json` beside this module
has the same rows: `python -m accept.config.signs` writes it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from accept.core.by_key import by_key
from accept.core.causes import Cause
from accept.core.records import Problem
from accept.core.serde import read
from accept.core.text import TextEnum, plain

FILE = Path(__file__).with_name("signs.json")
#: Number of bytes of a line that are examined, of those before the first sign in it, and of
#: characters that are quoted.
_LINE_LIMIT, _BEFORE, _MAX_QUOTE = 2048, 512, 240
#: Upper limits of the matches of one sign, and of the bytes that wait for the end of their line.
_MAX_MATCHES, _MAX_REST = 64, 1 << 16


class Layer(TextEnum):
    """The software whose lines a sign is in."""

    NCCL = "nccl"
    NCCL_TESTS = "nccl-tests"
    CUDA = "cuda"
    MPI = "mpi"
    SSH = "ssh"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    CONTAINER = "container"
    KERNEL = "kernel"
    OFI = "ofi"
    UCX = "ucx"
    VERBS = "verbs"
    PYTHON = "python"
    #: The shell, the loader of libraries, the file system.
    SYSTEM = "system"


class SignOwner(TextEnum):
    """The part that has to be changed."""

    #: The user's command, its settings, and the limits that it runs with.
    COMMAND = "command"
    IMAGE = "image"
    HOST = "host"
    NETWORK = "network"
    DRIVER = "driver"


class Specificity(TextEnum):
    """Levels of how much of the cause a line shows, from the least to the most."""

    #: A launcher reports that a rank ended.
    END = "end"
    #: A program stopped because of an error that is reported elsewhere.
    EFFECT = "effect"
    #: The kind of the error alone: a warning of the library itself shows which operation failed.
    KIND = "kind"
    #: The operation that failed, which can have several reasons.
    ERROR = "error"
    #: What has to be changed.
    CAUSE = "cause"


_ORDER = tuple(Specificity)
#: The specificities of lines that show the cause of a program's end.
_SHOWS_CAUSE = (Specificity.KIND, Specificity.ERROR, Specificity.CAUSE)


@dataclass(frozen=True, kw_only=True)
class Code:
    """The meaning of a number in a line of a sign. None: as in the row of the sign."""

    means: str
    action: str | None = None
    cause: Cause | None = None
    owner: SignOwner | None = None
    specificity: Specificity | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Hold what a known line means, which is the same in the file of the rows and on nodes."""

    layer: Layer
    cause: Cause
    #: The meaning and the next action, as in a row of causes.
    means: str
    action: str
    owner: SignOwner
    specificity: Specificity
    source: str
    #: True if a launch cannot succeed after this line.
    final: bool = False
    #: True if the user or the scheduler may have ended the job.
    outside: bool = False

    @property
    def shows_cause(self) -> bool:
        """Return True if the line shows why a program ended."""
        return self.specificity in _SHOWS_CAUSE

    @property
    def is_mistake(self) -> bool:
        """Return True if the user has to change the command or the image: no host is at fault."""
        return self.owner in (SignOwner.COMMAND, SignOwner.IMAGE)


@dataclass(frozen=True, kw_only=True)
class Sign(Meaning):
    """A known line, and its meaning."""

    name: str
    #: A regular expression. Its groups `host`, `gpu`, `nic` and `peer` name parts, and its group
    #: `code` is a number that may have an entry in `codes`.
    pattern: str
    #: A matching line has at least one of these texts.
    literals: tuple[str, ...]
    codes: dict[str, Code] = field(default_factory=dict)

    @cached_property
    def regex(self) -> re.Pattern[bytes]:
        """Return the compiled pattern."""
        return re.compile(self.pattern.encode())

    @property
    def weight(self) -> tuple[int, int]:
        """Return the key that is higher for the more specific of two signs."""
        return _ORDER.index(self.specificity), min(map(len, self.literals))

    def of_code(self, code: str) -> Sign:
        """Return the sign of a number, such as Xid79; without an entry for it, this sign."""
        row = self.codes.get(code)
        if row is None:
            return self
        return replace(
            self,
            name=f"{self.name}{code}",
            means=row.means,
            action=row.action or self.action,
            cause=row.cause or self.cause,
            owner=row.owner or self.owner,
            specificity=row.specificity or self.specificity,
            source=row.source or self.source,
            codes={},
        )


class Match(NamedTuple):
    """A line that shows a sign, and the parts that the line names."""

    sign: Sign
    #: The line for people, without the prefixes of launchers.
    line: str
    host: str | None = None
    gpu: str | None = None
    nic: str | None = None
    peer: str | None = None

    def problem(self, check: str | None = None) -> Problem:
        """Return the problem that the line shows."""
        return Problem(
            cause=self.sign.cause,
            message=f"{self.sign.means}; {self.host or 'a program'} reported: "
            f"{self.line.removeprefix(f'{self.host}: ')}",
            check=check,
            host=None if self.sign.is_mistake else self.host,
            sign=self.sign.name,
        )


#: The start of a line of NCCL: host, process, thread, GPU.
_NCCL_HEAD = re.compile(
    rb"(?<![\w.-])(?P<host>[\w.-]{1,255}):\d{1,10}:\d{1,10} \[(?P<gpu>\d{1,4})\] "
)
#: A record of our programs, which may quote any text.
_RECORD = b"ACCEPT "
_DIGITS = b"0123456789"
#: torch prints NCCL's last warning below this.
_LAST_ERROR = re.compile(rb"Last error: ?\r?\n(?:\[\w{1,20}\]: ?){0,3}(?=.)")
_LAST_WARNING = b"Last error: NCCL WARN "
#: torchrun prints the host of the rank that failed first two lines below this.
_ROOT = b"Root Cause (first observed failure):"
_ROOT_CAUSE = re.compile(re.escape(_ROOT) + rb"(?:[^\n]{0,120}\n){3}[^\n]{0,80}?(?=host {6}: )")


class Catalog:
    """Signs to search for."""

    def __init__(self, signs: Iterable[Sign]) -> None:
        self.signs = tuple(signs)
        self._by_literal = by_key(
            (literal.encode(), sign) for sign in self.signs for literal in sign.literals
        )
        self._without_digits = {one: one.translate(None, _DIGITS) for one in self._by_literal}

    def find(self, name: str) -> Sign | None:
        """Return the sign of a name, also of a number, such as Xid79."""
        for sign in self.signs:
            if name == sign.name:
                return sign
            if name.startswith(sign.name) and name[len(sign.name) :] in sign.codes:
                return sign.of_code(name[len(sign.name) :])
        return None

    def of(
        self,
        layers: Collection[Layer],
        specificities: Collection[Specificity] = _ORDER,
    ) -> Catalog:
        """Return only the signs of some layers and specificities."""
        return Catalog(
            sign
            for sign in self.signs
            if sign.layer in layers and sign.specificity in specificities
        )

    def in_line(self, line: bytes) -> Match | None:
        """Return the most specific sign in a line; the first one of its peers.

        It names the parts that any sign in the line names. Only a part of a long line is examined.
        """
        places = {literal: at for literal in self._by_literal if (at := line.find(literal)) >= 0}
        if not places or line.startswith(_RECORD):
            return None
        if len(line) > _LINE_LIMIT:
            begin = max(0, min(places.values()) - _BEFORE)
            line = line[begin : begin + _LINE_LIMIT]
        found = [
            (sign, match)
            for literal in places
            for sign in self._by_literal[literal]
            if (match := sign.regex.search(line))
        ]
        return _match(sorted(found, key=lambda one: one[0].weight), line) if found else None

    def search(self, text: bytes) -> Iterator[Match]:
        """Yield the signs of the lines of a text, at most one for each line, in order.

        Most lines of a log differ only in their numbers, so texts without them are few.
        """
        if b"Last error:" in text:
            text = _LAST_ERROR.sub(_LAST_WARNING, text)
        if _ROOT in text:
            text = _ROOT_CAUSE.sub(_ROOT + b" ", text)
        lines: set[int] = set()
        kinds = b"\n".join(set(text.translate(None, _DIGITS).split(b"\n")))
        for literal, without_digits in self._without_digits.items():
            at = text.find(literal) if without_digits in kinds else -1
            while at >= 0:
                lines.add(text.rfind(b"\n", 0, at) + 1)
                end = text.find(b"\n", at)
                at = text.find(literal, end) if end >= 0 else -1
        for start in sorted(lines):
            end = text.find(b"\n", start)
            match = self.in_line(text[start : end if end >= 0 else len(text)])
            if match:
                yield match


def _match(found: Sequence[tuple[Sign, re.Match[bytes]]], line: bytes) -> Match:
    """Return the match of the last sign; the others are less specific."""
    named: dict[str, bytes] = {}
    start = min(match.start() for _, match in found)
    if head := _NCCL_HEAD.search(line, 0, found[-1][1].end()):
        named, start = head.groupdict(), min(start, head.start())
    for _, match in found:
        named |= {name: value for name, value in match.groupdict().items() if value}
    parts = {name: _text(value) for name, value in named.items()}
    quoted = line[start if head or start > _MAX_QUOTE // 2 else 0 :]
    return Match(
        sign=found[-1][0].of_code(parts.get("code", "")),
        line=plain(_text(quoted.replace(_LAST_WARNING, b"Last error: ")), _MAX_QUOTE),
        host=parts.get("host"),
        gpu=parts.get("gpu"),
        nic=parts.get("nic"),
        peer=parts.get("peer"),
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


@cache
def catalog() -> Catalog:
    """Return all signs."""
    rows = json.loads(FILE.read_bytes())
    return Catalog(read(Sign, {"name": name, **row}) for name, row in rows.items())


class Finder:
    """Collects the signs in a text that comes in blocks, in bounded memory."""

    def __init__(self, signs: Catalog) -> None:
        self._signs = signs
        self._parts: list[bytes] = []
        self._size = 0
        self._found: dict[tuple[str | None, ...], Match] = {}
        self._counts: Counter[str] = Counter()

    def watch(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass blocks on, and search them. A line may span blocks; only very long lines are cut."""
        for block in blocks:
            self._parts.append(block)
            self._size += len(block)
            if self._size > _MAX_REST:
                self._search()
            yield block

    def ranked(self) -> Sequence[Match]:
        """Return the signs, the most specific first, then in order of appearance.

        Of lines that show the same sign of the same parts, the first one counts.
        """
        self._parts.append(b"\n")
        self._search(is_all=True)
        return sorted(self._found.values(), key=lambda match: match.sign.weight, reverse=True)

    def _search(self, *, is_all: bool = False) -> None:
        """Search the complete lines, or all of a line that is too long, and keep the rest."""
        text = b"".join(self._parts)
        end = text.rfind(b"\n") + 1 or len(text)
        if not is_all and text[:end].rstrip().endswith(b"Last error:"):
            end = text.rfind(b"\n", 0, end - 1) + 1
        self._parts, self._size = [text[end:]], len(text) - end
        for match in self._signs.search(text[:end]):
            key = (match.sign.name, match.host, match.gpu, match.nic, match.peer)
            if key not in self._found and self._counts[match.sign.name] < _MAX_MATCHES:
                self._counts[match.sign.name] += 1
                self._found[key] = match


def decisive(source: bytes | Iterable[bytes]) -> Sequence[Match]:
    """Return the signs in a text, which is read once, as `Finder.ranked` does."""
    finder = Finder(catalog())
    for _ in finder.watch([source] if isinstance(source, bytes) else source):
        pass
    return finder.ranked()
