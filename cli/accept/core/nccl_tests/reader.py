"""Read the output of nccl-tests line by line: tables, comments, failures, NCCL's own lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from accept.core.nccl_tests.lines import (
    LINE_LIMIT,
    Layout,
    Row,
    clean,
    is_cut_row,
    known_name,
    layout_of,
    parse_device,
    parse_row,
    plain_nccl,
    split_nccl,
    text_of,
    without_tags,
)
from accept.core.nccl_tests.nccl_info import Info
from accept.core.nccl_tests.table import Log, TableBuilder, Tables, check_of
from accept.core.records import Problem
from accept.core.signs import Catalog, Layer, Specificity, catalog

#: RCCL's tests print colons.
_PARAMETERS = re.compile(
    rb"(nThreads?:? \d+ nGpus:? \d+) minBytes:? (\d{1,18}) maxBytes:? (\d{1,18}) "
    rb"step:? (\d{1,18})\((factor|bytes)\)([^\n]{0,500})"
)
_STARTING = re.compile(rb"Collective test starting: (?:\S*/)?(\w{1,32}?)_perf")
_VERSION = re.compile(rb"nccl-tests version ([\w.-]{1,32})")
#: Number and word fit each other, unless one of them is damaged.
_BOUNDS = re.compile(rb"Out of bounds values *: *(0(?= +OK)|[1-9]\d{,17}(?= +FAILED))")
#: The last line of a table whose first is `_STARTING`: both came with nccl-tests 2.17.
_CONCLUDED = re.compile(rb"Collective test concluded: (?:\S*/)?(\w{1,32}?)_perf")
_AVERAGE = re.compile(rb"Avg bus bandwidth *: *(\S{1,32})")
_LEFT_OUT = re.compile(rb"Size (\d{1,18}) left out")
_REDUCING = re.compile(rb"Reducing maxBytes to (-?\d{1,18}) ")

#: A comment that needs no cleaning.
_PLAIN_COMMENT = re.compile(rb"#[^\x1b\r|<]*\Z")
#: The first bytes of a size that `int` accepts.
_ROW_BEGINS = b"+0123456789"
#: The lines of a table from top to bottom.
VERSION, STARTING, PARAMETERS, DEVICES, ROWS, BOUNDS, AVERAGE = range(1, 8)


class TableLines:
    """Sorts the lines of tables into tables: a line of an earlier kind begins the next table."""

    def __init__(self, tables: Tables) -> None:
        #: Host names of the devices.
        self.hosts: set[str] = set()
        self.tables = tables
        #: The columns of the current table, if it names them.
        self.layout: Layout | None = None
        #: Variables of NCCL that the log has shown so far.
        self.environment: dict[str, str] = {}
        self._table: TableBuilder | None = None
        #: The current comment, unmodified.
        self._text = b""
        #: Kind of the last line of the table.
        self._stage = 0

    @property
    def check(self) -> str | None:
        """Return the check of the current table."""
        return check_of(self._table.collective) if self._table else None

    def damage(self, what: str) -> None:
        """Add the description of a damaged row of the current table."""
        if self._table:
            self._table.damage(what)

    def _begin(self, stage: int) -> TableBuilder:
        """Begin a table with a line of this kind."""
        if self._table and self._table.average is None:
            self._table.overtaken = True
        self._table, self._stage = self.tables.begin(), stage
        self.layout = None
        return self._table

    def _at(self, stage: int, *, again: bool = False) -> TableBuilder:
        """Return the table of a line of this kind, and begin a new one if necessary.

        With `again`, a table may have several lines of this kind.
        """
        if self._table is None or self._stage > stage or (self._stage == stage and not again):
            return self._begin(stage)
        self._stage = stage
        return self._table

    def _note_environment(self, table: TableBuilder) -> None:
        """Record the variables with which a table was measured."""
        table.environment = tuple(sorted(self.environment.items()))

    def complete(self, line: bytes, first: bytes) -> bool:
        """Add a line that is complete, a row for instance; `first` is its first letter."""
        return first in _ROW_BEGINS and self.row(line)

    def cut(self, _: bytes, /, *, at_end: bool) -> None:  # noqa: ARG002 - logs of others use it
        """Add a line that is not complete; `at_end`: because the log ends."""
        self.damage("a row was cut")

    def row(self, line: bytes) -> bool:
        """Add a line that is a complete row; return False for any other line."""
        return self._add_row(parse_row(line, self.layout if self._stage == ROWS else None))

    def _add_row(self, row: Row | None) -> bool:
        if row is None:
            return False
        table = self._table
        if table is None or self._stage > ROWS:
            table = self._begin(ROWS)
        elif self._stage < ROWS:
            # The line of column names is missing.
            table.begin_rows(has_names=False)
        self._stage = ROWS
        self.tables.add_row(table, row)
        return True

    def comment(self, line: bytes) -> None:
        """Parse a line that begins with #."""
        body = line.lstrip(b"# \t")
        take = COMMENTS.get(body[:4])
        if take:
            self._text = line
            take(self, body)

    def _version(self, body: bytes) -> None:
        if found := _VERSION.match(body):
            self._at(VERSION).version = found[1].decode()

    def _starting(self, body: bytes) -> None:
        if found := _STARTING.match(body):
            table = self._at(STARTING)
            table.collective, table.concluded = found[1].decode(), False
        elif self._table and (found := _CONCLUDED.match(body)):
            table = self._table
            if table.concluded is False:
                # Another name is that of another table, whose beginning is lost.
                table.concluded = found[1].decode() == table.collective
            elif table.collective is None:
                # The first line is lost, or was damaged.
                table.collective = found[1].decode()

    def _parameters(self, body: bytes) -> None:
        table = self._at(PARAMETERS)
        if found := _PARAMETERS.match(body):
            least, most, step = int(found[2]), int(found[3]), int(found[4])
            table.sizes = least, most, step, found[5] == b"factor"
            table.parameters = " ".join(text_of(found[1] + b" " + found[6]).split())

    def _devices(self, _: bytes) -> None:
        self._at(DEVICES)

    def _device(self, body: bytes) -> None:
        device = parse_device(body)
        table = self._table
        is_late = self._stage == ROWS and table and table.devices and not table.rows
        if table is None or not is_late or (device and device.rank == 0):
            table = self._at(DEVICES, again=True)
        # Otherwise the line of another rank comes after the line of column names.
        self.tables.add_device(table, device)
        if device:
            self.hosts.add(device.host)

    def _reducing(self, body: bytes) -> None:
        if (found := _REDUCING.match(body)) and self._table:
            self._table.reduced = int(found[1])

    def _size_left_out(self, body: bytes) -> None:
        """Add a size that our own program left out; nccl-tests prints such sizes as 0."""
        if (found := _LEFT_OUT.match(body)) and self._table and len(self._table.left_out) < 64:
            self._table.left_out.add(int(found[1]))

    def _names(self, _: bytes) -> None:
        table = self._at(ROWS)
        self._note_environment(table)
        self.layout = layout = layout_of(self._text)
        if layout is None:
            table.begin_rows(has_names=False)
        else:
            table.begin_rows(cpu_time=layout.cpu_time, unit=layout.unit)

    def _bounds(self, body: bytes) -> None:
        if (found := _BOUNDS.match(body)) and self._table and self._stage < BOUNDS:
            self._stage = BOUNDS
            self._note_environment(self._table)
            self._table.bounds = int(found[1])

    def _average(self, body: bytes) -> None:
        if (found := _AVERAGE.match(body)) and self._table and self._stage < AVERAGE:
            self._stage = AVERAGE
            with suppress(ValueError):
                self._table.take_average(float(found[1]))


COMMENTS: dict[bytes, Callable[[TableLines, bytes], None]] = {
    b"nccl": TableLines._version,
    b"Coll": TableLines._starting,
    b"nThr": TableLines._parameters,
    b"Usin": TableLines._devices,
    b"Rank": TableLines._device,
    b"Redu": TableLines._reducing,
    b"Size": TableLines._size_left_out,
    b"size": TableLines._names,
    b"byte": TableLines._names,
    b"Out ": TableLines._bounds,
    b"Avg ": TableLines._average,
}


MAX_FAILURES = 64
_MAX_PENDING = 4096


class Reader:
    """Reads one log piece by piece."""

    def __init__(self, lines: TableLines) -> None:
        self._lines = lines
        #: The beginning of a line whose end is in the next piece.
        self._rest = b""
        self._overlong = False
        #: A line that was cut by a message of NCCL and waits for its rest.
        self._pending = b""
        self._info = Info()
        self._lines.environment = self._info.environment
        self._failures: dict[tuple[str, str], Problem] = {}
        #: The failure that only an exit code shows.
        self._exit: Problem | None = None

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the log."""
        end = piece.rfind(b"\n")
        if end >= 0:
            lines = (self._rest + piece[:end]).split(b"\n")
            for line in lines[1:] if self._overlong else lines:
                if len(line) <= LINE_LIMIT:
                    self._line(line)
            self._overlong, self._rest = False, piece[end + 1 :]
        elif not self._overlong:
            self._rest += piece
        if len(self._rest) > LINE_LIMIT:
            self._overlong, self._rest = True, b""

    def _line(self, line: bytes) -> None:
        """Read one line."""
        lines, cut = self._lines, self._pending
        # Plain messages and plain comments are most lines of a log, so they are tried first.
        if not cut and b" NCCL " in line:
            if plain := plain_nccl(line):
                self._info.add(*plain)
                return
        elif not cut and _PLAIN_COMMENT.match(line):
            lines.comment(line)
            return
        text = clean(line)
        if text.startswith(b"ACCEPT {") or (b" NCCL " in text and self._message(text)):
            return
        text = self._without_tags(text)
        first = text.lstrip()[:1]
        if not first:
            return
        if first == b"#":
            self._flush()
            lines.comment(text)
        elif cut and lines.row(cut + text):
            self._pending = b""
        elif lines.complete(text, first):
            self._flush()
        elif self._failure(line):
            return
        elif cut.lstrip().startswith(b"#"):
            self._pending = b""
            lines.comment(cut + text)
        elif cut and len(cut) < _MAX_PENDING and is_cut_row(cut + text, lines.layout, 1):
            self._pending = cut + text
        elif first in _ROW_BEGINS and is_cut_row(text, lines.layout, 3):
            self._flush()
            self._pending = text[:_MAX_PENDING]
        else:
            self._other(text)

    def _without_tags(self, text: bytes) -> bytes:
        """Return a cleaned line without the tags of launchers inside it."""
        return without_tags(text) if b"]<std" in text else text

    def _other(self, text: bytes) -> None:
        """Take a line that belongs to no table."""

    def _message(self, text: bytes) -> bool:
        """Read a line with a message of NCCL; return False if it has none."""
        split = split_nccl(text, self._lines.hosts, inside=bool(self._pending))
        if split is None:
            return False
        before, host, gpu, message = split
        self._info.add(host, gpu, message)
        if before.strip():
            self._cut(without_tags(before))
        return True

    def _cut(self, before: bytes) -> None:
        """Keep the text before a message of NCCL if it may be the beginning of a row or comment."""
        layout = self._lines.layout
        joined = (self._pending + before)[:_MAX_PENDING]
        if self._lines.row(joined):
            self._pending = b""
        elif joined.lstrip().startswith(b"#") or is_cut_row(joined, layout, 1):
            self._pending = joined
        elif is_cut_row(before, layout, 1):
            self._flush()
            self._pending = before

    def _flush(self, *, at_end: bool = False) -> None:
        """Give up waiting for the rest of a cut line; some builds print only one side of a row."""
        if not self._pending:
            return
        pending, self._pending = self._pending, b""
        if pending.lstrip().startswith(b"#"):
            self._lines.comment(pending)
        else:
            self._lines.cut(pending, at_end=at_end)

    def _failure(self, line: bytes) -> bool:
        """Add a failure that nccl-tests reports, the first of each cause and host.

        Messages of launchers that a rank ended count only if they are the first failure, because
        launchers then end the other ranks, and not if it was ended from outside.
        """
        if _failures().in_line(line) is None or (match := catalog().in_line(line)) is None:
            return False
        is_end = match.sign.specificity is Specificity.END
        if is_end and (self._failures or self._exit or match.sign.is_mistake):
            return True
        if match.host:
            match = match._replace(host=known_name(match.host, self._lines.hosts))
        problem = match.problem(self._lines.check)
        key = problem.cause, problem.host or ""
        if is_end and match.host is None:
            self._exit = problem
        elif key not in self._failures and len(self._failures) < MAX_FAILURES:
            self._failures[key] = problem
        return True

    def close(self) -> Log:
        """Return the contents of the log."""
        self._line(self._rest)
        self._flush(at_end=True)
        quiet = bool(self._failures or self._exit)
        tables, problems = self._lines.tables.finish(quiet=quiet)
        # Programs also end with an error if the results were wrong, which the table shows.
        if self._exit and not any(table.out_of_bounds for table in tables):
            self._failures.setdefault((self._exit.cause, ""), self._exit)
        return Log(
            tables=tables,
            problems=(*self._failures.values(), *problems),
            networks=self._info.networks(),
            versions=self._info.versions(),
            nics=self._info.nics(),
            detours=self._info.detours(),
            nccl_lines=self._info.lines,
            warnings=tuple(self._info.warnings),
        )


@cache
def _failures() -> Catalog:
    """Return the signs of a failure in the output of nccl-tests and of what started it."""
    rank_ended = catalog().of((Layer.MPI, Layer.SLURM), (Specificity.END,))
    return Catalog((*catalog().of((Layer.NCCL_TESTS,)).signs, *rank_ended.signs))
