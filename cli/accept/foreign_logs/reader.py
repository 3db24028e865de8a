"""Read the output of nccl-tests from anywhere: with prefixes, without # signs, cut, or in parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import BinaryIO

from accept.core import nccl_tests
from accept.core.nccl_tests.lines import TOKEN, Layout, Row, fits, row_of, text_of
from accept.core.nccl_tests.reader import COMMENTS, ROWS, Reader, TableLines
from accept.core.nccl_tests.table import Log, TableBuilder, Tables
from accept.foreign_logs.excerpt import ExcerptTable, Hints, named_in

#: A comment without its # sign, as Markdown leaves it.
_BARE = re.compile(
    rb"nccl-tests version \S+ (?:\(\S+\) )?nccl-|Collective test (?:starting|concluded): "
    rb"|nThreads?:? \d+ nGpus:? \d+ minBytes|Using devices\s*$|Rank +\d+ .* device +\d+ \["
    rb"|Reducing maxBytes to |(?:size +count|bytes +N) +type .* busbw"
    rb"|Out of bounds values *: *\d|Avg bus bandwidth *: *\S"
)
#: A comment after a prefix that `clean` does not know.
_AFTER_PREFIX = re.compile(rb"#[ \t]*(?=" + _BARE.pattern + rb")")
#: A command line that starts a test, and a variable of NCCL in a command line.
_COMMAND = re.compile(rb"(\w{3,32})_perf\b")
_VARIABLE = re.compile(rb"\b(NCCL_[A-Z0-9_]{1,60})=(\"[^\"]*\"|'[^']*'|[^\s,'\"]*)")
#: The source of the program that reports a failure. All programs share common.cu.
_FAILED_IN = re.compile(rb"(?:Test )?(?:NCCL|C[Uu][Dd][Aa]|Test) failure (\w{3,32})\.cu:\d")
#: The rank with which Hydra (MPICH, Intel MPI) begins each part of a line that it gets.
_HYDRA = re.compile(rb"\[\d{1,7}\] ")


def parse(
    source: bytes | Iterable[bytes] | BinaryIO,
    *,
    collective: str | None = None,
    names: Sequence[str] = (),
) -> Log:
    """Parse a log; lines above a complete table may be missing.

    A collective without a name is `collective` if that is given. Otherwise it is inferred from the
    `names` of the file and its folder, from command lines, and from the figures.
    """
    hints = Hints(collective=collective, names=tuple(map(named_in, names)))
    return nccl_tests.parse(source, reader=_ForeignReader(_ForeignLines(hints)))


class _ForeignLines(TableLines):
    """Sorts lines that may lack their # sign, follow a prefix, or have only one side of a row."""

    def __init__(self, hints: Hints) -> None:
        super().__init__(Tables(self._make))
        self._hints = hints
        #: True if an unknown prefix precedes the lines of the current table.
        self._is_prefixed = False
        #: Collectives in the last command lines; True if a table began after them.
        self._commands: tuple[str, ...] = ()
        self._is_started = False

    def _make(self) -> TableBuilder:
        self._is_started, self._is_prefixed = True, False
        return ExcerptTable(self._hints, self._commands)

    def command(self, names: Iterable[bytes]) -> None:
        """Take the names of programs in a command line or in the report of a failure."""
        collectives = [name for found in names for name in named_in(text_of(found))]
        if collectives:
            before = () if self._is_started else self._commands
            self._commands = tuple(dict.fromkeys((*before, *collectives)))[:64]
            self._is_started = False

    def failed_in(self, source: bytes) -> None:
        """Take the program whose source file reports a failure of the current table."""
        names = named_in(text_of(source))
        if names and isinstance(self._table, ExcerptTable):
            self._table.commands = tuple(dict.fromkeys((*self._table.commands, *names)))

    def complete(self, line: bytes, first: bytes) -> bool:
        """Add a line that is complete, such as a row, or a comment without its # sign."""
        return super().complete(line, first) or self._bare_comment(line)

    def cut(self, line: bytes, /, *, at_end: bool) -> None:
        """Add a line that is not complete; some builds print only one side of a row."""
        layout = self.layout if self._stage == ROWS else None
        if at_end or not self._add_row(_parse_half_row(line, layout)):
            super().cut(line, at_end=at_end)

    def row_after_prefix(self, line: bytes) -> bool:
        """Add a line that ends with a complete row of a table with an unknown prefix."""
        width = self.layout.width if self._is_prefixed and self.layout else 0
        tokens = line.split()
        return 0 < width < len(tokens) and self.row(b" ".join(tokens[-width:]))

    def _bare_comment(self, line: bytes) -> bool:
        if line.lstrip()[:4] in COMMENTS and _BARE.match(line.lstrip()):
            self.comment(line)
            return True
        found = _AFTER_PREFIX.search(line) if b"#" in line else None
        if found:
            self.comment(line[found.start() :])
            self._is_prefixed = True
        return found is not None


class _ForeignReader(Reader):
    """Reads one log of another launcher piece by piece."""

    def __init__(self, lines: _ForeignLines) -> None:
        super().__init__(lines)
        self._foreign = lines

    def _without_tags(self, text: bytes) -> bytes:
        text = super()._without_tags(text)
        return _HYDRA.sub(b"", text) if b"] " in text else text

    def _failure(self, line: bytes) -> bool:
        if b"failure " in line and (found := _FAILED_IN.search(line)):
            self._foreign.failed_in(found[1])
        return super()._failure(line)

    def _other(self, text: bytes) -> None:
        if self._foreign.row_after_prefix(text):
            self._flush()
            return
        if b"_perf" in text:
            self._foreign.command(_COMMAND.findall(text))
        if b"NCCL_" in text:
            for name, value in _VARIABLE.findall(text):
                self._info.set(name, value)


def _parse_half_row(line: bytes, layout: Layout | None) -> Row | None:
    """Parse a line that has only one side of a row, as some builds print, or return None.

    The column in which its time ends shows which side that is.
    """
    if layout is None or len(layout.sides) != 2:
        return None
    tokens = line.split()
    half = next((half for half in _halves(layout) if fits(tokens, half)), None)
    row = row_of(line, tokens, half) if half else None
    if row is None or half is None or len(layout.ends) != 2:
        return row
    end = [found.end() for found in TOKEN.finditer(line)][half.sides[0][0]]
    is_in_place = abs(end - layout.ends[1]) < abs(end - layout.ends[0])
    return row._replace(out_of_place=None, in_place=row.out_of_place) if is_in_place else row


@lru_cache(maxsize=64)
def _halves(layout: Layout) -> tuple[Layout, ...]:
    """Return the layouts of the rows that have one side and the same other columns."""
    halves = []
    for full in (layout, *layout.blank):
        end = full.sides[1][0]
        halves.append(
            replace(full, width=end, sides=full.sides[:1], kinds=full.kinds[:end], blank=())
        )
    return tuple(halves)
