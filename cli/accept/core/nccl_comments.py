"""Keeps the tables of a log: which line begins the next one, and what the lines with # say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from accept.core.model import Problem
from accept.core.nccl_build import TableBuilder
from accept.core.nccl_lines import BY_WIDTH, Layout, layout_of, text_of
from accept.core.nccl_table import Device, Table, check_of

#: Upper limits of what is kept of one log.
MAX_TABLES, MAX_ROWS, MAX_DEVICES = 256, 100_000, 262_144

_DEVICES = re.compile(
    r"^[# \t]*Rank +(\d{1,7}) (?:Group +(\d{1,7}) )?Pid +\d+ on +(\S{1,255}) device +(\d{1,4}) "
    r"\[([0-9a-fx:.]{1,20})\] ?([^\n]{0,128})$",
    re.MULTILINE | re.ASCII,
)
_PARAMETERS = re.compile(
    rb"nThread \d+ nGpus \d+ minBytes (\d{1,18}) maxBytes (\d{1,18}) step: (\d{1,18})\((\w+)\)"
)
_STARTING = re.compile(rb"Collective test starting: (?:\S*/)?(\w{1,32}?)_perf")
_VERSION = re.compile(rb"nccl-tests version ([\w.-]{1,32})")
_BOUNDS = re.compile(rb"Out of bounds values +: (\d{1,18}) +(?:OK|FAILED)")
_AVERAGE = re.compile(rb"Avg bus bandwidth +: (\S{1,32})")
_LEFT_OUT = re.compile(rb"Size (\d{1,18}) left out")
_REDUCING = re.compile(rb"Reducing maxBytes to (-?\d{1,18}) ")

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

    def rows(self, lines: Sequence[bytes]) -> bool:
        """Take lines that are rows; take none and return False where any of them is none."""
        table = self._table
        if len(lines) > 1 and len(lines) > self._rows_left:
            return False
        if table is None or table.stage != ROWS:
            if len(lines) > 1 or len(lines[0].split(None, 24)) not in BY_WIDTH:
                return False
            fresh = TableBuilder(self._collective)
            if not fresh.add(lines):
                return False
            self._begin(fresh, ROWS)
            self._rows_left -= 1
            return True
        if self._rows_left <= 0:
            self._left_out["rows"] = None
            table.damaged = ["more rows than can be kept"]
            return True
        taken = table.add(lines)
        self._rows_left -= taken
        return taken > 0

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
        self.devices((body,))

    def devices(self, lines: Sequence[bytes]) -> bool:
        """Take lines about devices; several are taken only if all of them are whole."""
        text = text_of(b"\n".join(lines))
        # nccl-tests itself cuts the list of a process with many GPUs, and says so with dots.
        found = [] if "..." in text or " NCCL " in text else _DEVICES.findall(text)
        whole = len(found) == len(lines)
        if len(lines) > 1 and (not whole or len(lines) > self._devices_left):
            return False
        table = self._at(DEVICES, again=True)
        if not whole or self._devices_left < len(lines):
            table.ranks_cut = True
            return True
        self._devices_left -= len(lines)
        ranks, groups, hosts, local, buses, names = zip(*found, strict=True)
        numbers = map(int, ranks), [int(group or 0) for group in groups]
        self.hosts.update(hosts)
        table.devices += map(Device, *numbers, hosts, map(int, local), buses, names)
        return True

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
        alone = self._alone()
        for builder in self._built:
            table, found = builder.finish(alone=bool(alone) and builder.lonely())
            tables.append(table)
            problems += found
        if alone:
            problems.append(
                Problem(
                    cause="rank-count",
                    message=f"{alone} processes each took themselves for the only one (Rank 0 x "
                    f"{alone}): nccl-tests was built without MPI, or started without it",
                    check=next((table.check for table in tables if table.check), None),
                )
            )
        if not tables and not quiet:
            problems.append(
                Problem(cause="unparsable", message="no table of nccl-tests in the log")
            )
        if self._left_out:
            what = ", ".join(self._left_out)
            problems.append(
                Problem(
                    cause="unparsable",
                    message=f"more {what} than can be kept; the rest is left out",
                )
            )
        return tuple(tables), tuple(problems)

    def _alone(self) -> int:
        """Return how many processes each took rank 0 of a world of one; 0 where all is well.

        Started by mpirun, a build without MPI prints one table per process, through each other.
        One GPU's tables, one after another, are none of that.
        """
        lonely = [table for table in self._built if table.lonely()]
        firsts = [d for table in lonely for d in table.devices if d.rank == 0]
        twice = any(len(table.devices) > 1 for table in lonely)
        overtaken = any(
            a.overtaken and a.devices and b.devices and a.collective == b.collective
            for a, b in pairwise(lonely)
        )
        hosts = len({device.host for device in firsts})
        return len(firsts) if twice or overtaken or hosts > 1 else 0


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
