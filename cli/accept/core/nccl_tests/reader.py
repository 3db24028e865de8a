"""Keeps the tables of a log: which line begins the next one, and what the lines with # say."""

from __future__ import annotations

import re
from collections.abc import Callable

from accept.core.model import Problem
from accept.core.nccl_tests.lines import BY_WIDTH, Layout, layout_of, text_of
from accept.core.nccl_tests.nccl_table import Table, check_of, listed_devices
from accept.core.nccl_tests.table import TableBuilder, count_alone

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
    """The tables of a log while it is read."""

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
        """The current table's layout."""
        return self._table.layout if self._table else None

    @property
    def check(self) -> str | None:
        """The check that the current table belongs to."""
        return check_of(self._table.collective) if self._table else None

    def damage(self, what: str) -> None:
        """Note a row of the current table that cannot be believed."""
        if self._table:
            self._table.damage(what)

    def row(self, line: bytes) -> bool:
        """Take a line that is a whole row; False where it is none."""
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
                # The names of the columns are lost.
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
        """Return the table that a line of this stage belongs to, a new one where need be."""
        table = self._table
        if table is None or table.stage > stage or (table.stage == stage and not again):
            return self._begin(TableBuilder(self._collective), stage)
        table.stage = stage
        return table

    def frame(self, found: re.Match[bytes]) -> bool:
        """Take the table that `FRAME` found; nothing, and False, where it is not that plain."""
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
        """Read a line that begins with #."""
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
        """Our own program says so; nccl-tests lists a size below one element a rank as 0."""
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
        """Return all tables and what is wrong with them; `quiet`: a log may have no table."""
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
                    cause="rank-count",
                    message=f"{alone} processes each ran alone (Rank 0 x {alone}); "
                    "nccl-tests was built without MPI, or started without it",
                    check=next((table.check for table in tables if table.check), None),
                )
            )
        if not tables and not quiet:
            problems.append(
                Problem(cause="unparsable", message="the log has no nccl-tests results table")
            )
        if self._left_out:
            what = " and ".join(self._left_out)
            problems.append(
                Problem(
                    cause="unparsable",
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
