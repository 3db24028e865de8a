"""Read the output of nccl-tests line by line: tables, comments, failures, NCCL's own lines."""

from __future__ import annotations

import re
from collections.abc import Callable

from accept.core.causes import Cause
from accept.core.model import Problem
from accept.core.nccl_tests.lines import (
    BY_WIDTH,
    LINE_LIMIT,
    Layout,
    clean,
    is_cut_row,
    known_name,
    layout_of,
    split_nccl,
    text_of,
)
from accept.core.nccl_tests.nccl_info import RUN, Info
from accept.core.nccl_tests.table import (
    Log,
    Table,
    TableBuilder,
    check_of,
    count_alone,
    listed_devices,
)

#: Upper limits of what is kept of one log.
MAX_TABLES, MAX_ROWS, MAX_DEVICES = 4096, 100_000, 262_144

_PARAMETERS = re.compile(
    rb"nThread \d+ nGpus \d+ minBytes (\d{1,18}) maxBytes (\d{1,18}) "
    rb"step: (\d{1,18})\((factor|bytes)\)"
)
_STARTING = re.compile(rb"Collective test starting: (?:\S*/)?(\w{1,32}?)_perf")
_VERSION = re.compile(rb"nccl-tests version ([\w.-]{1,32})")
_BOUNDS = re.compile(rb"Out of bounds values *: *(\d{1,18}) +(?:OK|FAILED)")
_AVERAGE = re.compile(rb"Avg bus bandwidth *: *(\S{1,32})")
_LEFT_OUT = re.compile(rb"Size (\d{1,18}) left out")
_REDUCING = re.compile(rb"Reducing maxBytes to (-?\d{1,18}) ")

FRAME_BEGINS = b"# Collective test starting: "
#: A table that nothing disturbs, or its beginning down to the last row. It must mean what its
#: lines mean one by one; the limits keep out lines that are too long to be read.
FRAME = re.compile(
    rb"# Collective test starting: (\w{1,32}?)_perf *\n"
    rb"# (nThread [^\n]{1,400})\n#\n# Using devices\n"
    rb"((?:#  Rank [^\n]{1,400}\n)+)"
    rb"(?:#\n# (Reducing [^\n]{1,400})\n)?"
    rb"#\n# +out-of-place +in-place *\n# +(size [^\n]{1,400})\n# +\(B\)[^\n]{1,400}\n"
    rb"((?: [^\n]{1,1000}\n)+)"
    rb"(?:# (Out of bounds [^\n]{1,400})\n# (Avg bus [^\n]{1,400})\n"
    rb"(?:#\n# Collective test concluded: [^\n]{1,400}\n#\n)?)?"
)

#: The lines of a table from top to bottom.
VERSION, STARTING, PARAMETERS, DEVICES, ROWS, BOUNDS, AVERAGE = range(1, 8)


class Tables:
    """Collects the tables of one log."""

    def __init__(self, collective: str | None) -> None:
        #: Host names of the devices.
        self.hosts: set[str] = set()
        self._collective = collective
        self._table: TableBuilder | None = None
        self._built: list[TableBuilder] = []
        self._rows_left, self._devices_left = MAX_ROWS, MAX_DEVICES
        self._left_out: dict[str, None] = {}

    @property
    def layout(self) -> Layout | None:
        """Return the layout of the current table."""
        return self._table.layout if self._table else None

    @property
    def check(self) -> str | None:
        """Return the check of the current table."""
        return check_of(self._table.collective) if self._table else None

    def damage(self, what: str) -> None:
        """Add the description of a damaged row of the current table."""
        if self._table:
            self._table.damage(what)

    def row(self, line: bytes) -> bool:
        """Add a line that is a complete row; return False for any other line."""
        table = self._table
        if (table is None or table.stage != ROWS) and len(line.split(None, 24)) not in BY_WIDTH:
            return False
        if self._rows_left <= 0 or table is None or table.stage not in (DEVICES, ROWS):
            fresh = TableBuilder(self._collective)
            fresh.layout = table.layout if table and table.stage == ROWS else None
            if not fresh.add((line,)):
                return False
            if self._rows_left <= 0:
                self._left_out["rows"] = None
                self.damage("the log has more rows than are kept")
                return True
            self._begin(fresh, ROWS)
        else:
            if table.stage == DEVICES:
                # The line of column names is missing.
                table.begin_rows(None)
            if not table.add((line,)):
                return False
            table.stage = ROWS
        self._rows_left -= 1
        return True

    def _begin(self, table: TableBuilder, stage: int) -> TableBuilder:
        """Make a table the current one."""
        if self._table and self._table.average is None:
            self._table.overtaken = True
        table.stage = stage
        self._table = table
        if len(self._built) < MAX_TABLES:
            self._built.append(table)
        else:
            self._left_out["tables"] = None
        return table

    def _at(self, stage: int, *, again: bool = False) -> TableBuilder:
        """Return the table of a line of this stage, and begin a new one if necessary."""
        table = self._table
        if table is None or table.stage > stage or (table.stage == stage and not again):
            return self._begin(TableBuilder(self._collective), stage)
        table.stage = stage
        return table

    def frame(self, found: re.Match[bytes]) -> bool:
        """Add the table that `FRAME` matched, or return False if it needs reading line by line."""
        collective, parameters, devices, reducing, names, rows, bounds, average = found.groups()
        listing = text_of(devices)
        listed = listed_devices(listing)
        lines = rows[:-1].split(b"\n")
        if b"NCCL " in found[0] or not 0 < len(listed) <= self._devices_left:
            return False
        fresh = TableBuilder(collective.decode())
        fresh.take_devices(listing, listed)
        fresh.begin_rows(layout_of(names))
        if len(lines) > self._rows_left or not fresh.add(lines):
            return False
        self._devices_left -= len(listed)
        self._rows_left -= len(lines)
        last = self._table
        if last and last.stage < STARTING:
            fresh.version = last.version
            fresh.stage = STARTING
            self._table = fresh
            if self._built[-1] is last:
                self._built[-1] = fresh
        else:
            self._begin(fresh, STARTING)
        self.hosts.update(fresh.hosts)
        self._parameters(parameters)
        fresh.stage = ROWS
        if reducing:
            self._reducing(reducing)
        if bounds:
            self._bounds(bounds)
            self._average(average)
        return True

    def comment(self, line: bytes) -> None:
        """Parse a line that begins with #."""
        body = line.lstrip(b"# \t")
        take = _COMMENTS.get(body[:4])
        if take:
            take(self, body)

    def _version(self, body: bytes) -> None:
        if found := _VERSION.match(body):
            self._at(VERSION).version = found[1].decode()

    def _starting(self, body: bytes) -> None:
        if found := _STARTING.match(body):
            self._at(STARTING).collective = found[1].decode()

    def _parameters(self, body: bytes) -> None:
        table = self._at(PARAMETERS)
        if found := _PARAMETERS.match(body):
            least, most, step = int(found[1]), int(found[2]), int(found[3])
            table.sizes = least, most, step, found[4] == b"factor"

    def _devices(self, _: bytes) -> None:
        self._at(DEVICES)

    def _device(self, body: bytes) -> None:
        table = self._at(DEVICES, again=True)
        listing = "#  " + text_of(body) + "\n"
        found = listed_devices(listing)
        if len(found) == 1 and self._devices_left:
            self._devices_left -= 1
            table.take_devices(listing, found)
            self.hosts.update(table.hosts[-1:])
            return
        table.ranks_cut = True
        if found:
            self._left_out["devices"] = None

    def _reducing(self, body: bytes) -> None:
        if (found := _REDUCING.match(body)) and self._table:
            self._table.reduced = int(found[1])

    def _size_left_out(self, body: bytes) -> None:
        """Add a size that our own program left out; nccl-tests prints such sizes as 0."""
        if (found := _LEFT_OUT.match(body)) and self._table and len(self._table.left_out) < 64:
            self._table.left_out.add(int(found[1]))

    def _names(self, body: bytes) -> None:
        self._at(ROWS).begin_rows(layout_of(body))

    def _bounds(self, body: bytes) -> None:
        table = self._table
        if (found := _BOUNDS.match(body)) and table and table.stage < BOUNDS:
            table.stage = BOUNDS
            table.bounds = int(found[1])

    def _average(self, body: bytes) -> None:
        table = self._table
        if (found := _AVERAGE.match(body)) and table and table.stage < AVERAGE:
            table.stage = AVERAGE
            table.take_average(found[1])

    def finish(self, *, quiet: bool) -> tuple[tuple[Table, ...], tuple[Problem, ...]]:
        """Return all tables and their problems; with `quiet`, a log without tables is none."""
        tables: list[Table] = []
        problems: list[Problem] = []
        alone = count_alone(self._built)
        for builder in self._built:
            table = builder.finish(alone=bool(alone) and builder.lonely())
            tables.append(table)
            problems += table.problems
        if alone:
            problems.append(
                Problem(
                    cause=Cause.RANK_COUNT,
                    message=f"{alone} processes each ran alone (Rank 0 x {alone}); "
                    "nccl-tests was built without MPI, or started without it",
                    check=next((table.check for table in tables if table.check), None),
                )
            )
        if not tables and not quiet:
            problems.append(
                Problem(cause=Cause.UNPARSABLE, message="the log has no nccl-tests results table")
            )
        if self._left_out:
            what = " and ".join(self._left_out)
            problems.append(
                Problem(
                    cause=Cause.UNPARSABLE,
                    message=f"the log has more {what} than are kept; the rest was ignored",
                )
            )
        return tuple(tables), tuple(problems)


_COMMENTS: dict[bytes, Callable[[Tables, bytes], None]] = {
    b"nccl": Tables._version,
    b"Coll": Tables._starting,
    b"nThr": Tables._parameters,
    b"Usin": Tables._devices,
    b"Rank": Tables._device,
    b"Redu": Tables._reducing,
    b"Size": Tables._size_left_out,
    b"size": Tables._names,
    b"Out ": Tables._bounds,
    b"Avg ": Tables._average,
}


MAX_FAILURES = 64
_MAX_PENDING = 4096

_FAILURE = re.compile(
    rb"(?:([\w.-]{1,255}): Test (?:CUDA|NCCL) failure"
    rb"|\.\. ([\w.-]{1,255}) pid \d+: Test failure"
    rb"|([\w.-]{1,255}): Test timeout \(\d+s\)"
    rb"|noticed that process rank \d+ with PID \d+ on node ([\w.-]{1,255}) exited on"
    rb"|srun: error: ([\w.-]{1,255}): tasks? [\d,-]+: (?!Exited|Terminated)"
    rb"|Exit(?: code: +|ed with exit code )(?!0\b|7\b)(\d{1,3})\b"
    rb"|Invalid number of GPUs: \d+ requested).{0,300}"
)
_SIGN = re.compile(rb"Test |Invalid number|noticed that|srun: error|Exit code:")
_NEWLINE = 10
#: What `int` takes as the beginning of a size.
_ROW_BEGINS = b"+0123456789"
_CAUSES = (
    Cause.GPU_MISSING,
    Cause.CRASHED,
    Cause.CRASHED,
    Cause.TIMED_OUT,
    Cause.CRASHED,
    Cause.CRASHED,
    Cause.CRASHED,
)
#: Groups of `_FAILURE` from this one on are messages of launchers: Open MPI 4 and 5, Slurm.
_LAUNCHER, _EXIT = 4, 6
#: Exit codes of nccl-tests, src/common.h; 7 (wrong data, or a mean below NCCL_TESTS_MIN_BW) is no
#: news beside the table.
_EXITS = {
    b"1": "an internal error",
    b"2": "an error of CUDA",
    b"3": "an error of NCCL",
    b"4": "a timeout",
    b"5": "not implemented",
    b"6": "invalid usage",
    b"255": "bad arguments",
}


class Reader:
    """Reads one log piece by piece.

    `quick` takes a short cut for the commonest clean lines. It must change no result; a property
    test compares the two.
    """

    def __init__(self, *, quick: bool = True, collective: str | None = None) -> None:
        self._quick = quick
        self._tables = Tables(collective)
        self._rest = b""
        self._overlong = False
        #: A line that was cut and waits for its rest.
        self._pending = b""
        self._info = Info()
        self._failures: dict[tuple[str, str], Problem] = {}

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the log."""
        end = piece.rfind(b"\n")
        if end >= 0:
            whole = self._rest + piece[:end]
            if self._overlong:
                whole = whole.partition(b"\n")[2]
            self._overlong, self._rest = False, piece[end + 1 :]
            self._lines(whole)
        elif not self._overlong:
            self._rest += piece
        if len(self._rest) > LINE_LIMIT:
            self._overlong, self._rest = True, b""

    def _lines(self, whole: bytes) -> None:
        """Read whole lines."""
        if not self._quick or b"\x1b" in whole or b"\r" in whole:
            for line in _short(whole):
                self._line(line)
            return
        done, at = 0, whole.find(FRAME_BEGINS)
        while at >= 0:
            found = FRAME.match(whole, at) if at == 0 or whole[at - 1] == _NEWLINE else None
            end = found.end() if found else at + len(FRAME_BEGINS)
            if found:
                self._few(whole[done:at])
                if self._pending or not self._tables.frame(found):
                    self._few(found[0])
                done = end
            at = whole.find(FRAME_BEGINS, end)
        self._few(whole[done:])

    def _few(self, whole: bytes) -> None:
        """Read what stands around the clean beginnings of tables."""
        done = 0
        if b"NCCL INFO " in whole:
            for found in RUN.finditer(whole):
                self._each(whole[done : found.start()])
                if self._pending:
                    self._each(found[0])
                else:
                    self._info.inform(found[0])
                done = found.end()
        self._each(whole[done:])

    def _each(self, whole: bytes) -> None:
        """Read line by line."""
        tables = self._tables
        for line in _short(whole):
            if not line:
                continue
            first = line[:1]
            if self._pending or first not in b" #" or b" NCCL " in line:
                self._line(line)
            elif first == b"#":
                tables.comment(line)
            elif not tables.row(line):
                self._line(line)

    def _line(self, line: bytes) -> None:
        """Read one line, whatever stands around it and in it."""
        text = clean(line)
        if text.startswith(b"ACCEPT {"):
            return
        split = (
            split_nccl(text, self._tables.hosts, inside=bool(self._pending))
            if b" NCCL " in text
            else None
        )
        if split is None:
            if text.strip():
                self._text(text, line)
            return
        before, host, message = split
        self._info.say(host, message)
        if before.strip():
            self._cut(before)

    def _text(self, text: bytes, line: bytes) -> None:
        """Read a line that is not NCCL's, free of what launchers add."""
        tables, cut = self._tables, self._pending
        first = text.lstrip()[:1]
        if first == b"#":
            self._flush()
            tables.comment(text)
        elif cut and tables.row(cut + text):
            self._pending = b""
        elif first in _ROW_BEGINS and tables.row(text):
            self._flush()
        elif (sign := _SIGN.search(line)) and self._failure(line, sign.start()):
            return
        elif cut.lstrip().startswith(b"#"):
            self._pending = b""
            tables.comment(cut + text)
        elif cut and len(cut) < _MAX_PENDING and is_cut_row(cut + text, tables.layout, 1):
            self._pending = cut + text
        elif first in _ROW_BEGINS and is_cut_row(text, tables.layout, 3):
            self._flush()
            self._pending = text[:_MAX_PENDING]

    def _cut(self, before: bytes) -> None:
        """Keep the text before a message of NCCL if it may be the beginning of a row or comment."""
        layout = self._tables.layout
        joined = (self._pending + before)[:_MAX_PENDING]
        if self._tables.row(joined):
            self._pending = b""
        elif joined.lstrip().startswith(b"#") or is_cut_row(joined, layout, 1):
            self._pending = joined
        elif is_cut_row(before, layout, 1):
            self._flush()
            self._pending = before

    def _flush(self) -> None:
        """Give up waiting for the rest of a cut line."""
        pending, self._pending = self._pending, b""
        if pending.lstrip().startswith(b"#"):
            self._tables.comment(pending)
        elif pending:
            self._tables.damage("a row was cut")

    def _failure(self, line: bytes, at: int) -> bool:
        """Add a failure that nccl-tests reports, the first of each cause and host.

        Messages of launchers count only if they are the first failure, because launchers then end
        the other ranks.
        """
        found = _FAILURE.search(line[max(0, at - 300) : at + 400])
        if found is None:
            return False
        kind = found.lastindex or 0
        if kind >= _LAUNCHER and self._failures:
            return True
        cause, host, message = _CAUSES[kind], "", text_of(found[0])
        if kind == _EXIT:
            cause = Cause.TIMED_OUT if found[kind] == b"4" else cause
            message = f"a rank ended with {text_of(found[kind])}"
            message += f" (nccl-tests: {_EXITS[found[kind]]})" if found[kind] in _EXITS else ""
        elif kind:
            host = known_name(text_of(found[kind]), self._tables.hosts)
            told = message[found.end(kind) - found.start() :].lstrip(": ")
            signal = kind == _LAUNCHER
            message = (
                f"{host}: a rank was ended by a signal" if signal else f"{host} reported: {told}"
            )
        if (cause, host) not in self._failures and len(self._failures) < MAX_FAILURES:
            self._failures[cause, host] = Problem(
                cause=cause,
                message=message.rstrip("\r"),
                host=host or None,
                check=self._tables.check,
            )
        return True

    def close(self) -> Log:
        """Return the contents of the log."""
        if self._rest and not self._overlong:
            self._lines(self._rest)
        self._flush()
        tables, problems = self._tables.finish(quiet=bool(self._failures))
        return Log(
            tables=tables,
            problems=(*self._failures.values(), *problems),
            networks=self._info.networks(),
            detours=self._info.detours(),
            nccl_lines=self._info.lines,
            warnings=tuple(self._info.warnings),
        )


def _short(whole: bytes) -> list[bytes]:
    """Split into lines, without those that are too long."""
    lines = whole.split(b"\n")
    if len(whole) > LINE_LIMIT and max(map(len, lines)) > LINE_LIMIT:
        return [line for line in lines if len(line) <= LINE_LIMIT]
    return lines
