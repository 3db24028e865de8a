"""Build tables from the lines of an nccl-tests log, and check that they are complete."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.model import Placement, Problem
from accept.core.nccl_tests.lines import BY_WIDTH, Layout, word

#: The programs of nccl-tests, `NAME_perf`.
COLLECTIVES = frozenset(
    {
        "all_gather",
        "all_reduce",
        "alltoall",
        "alltoallv",
        "broadcast",
        "gather",
        "hypercube",
        "reduce",
        "reduce_scatter",
        "scatter",
        "sendrecv",
    }
)
#: Collectives whose in-place results nccl-tests cannot check, so `N/A` is correct for them.
UNCHECKED_IN_PLACE = frozenset({"alltoall", "alltoallv", "sendrecv", "hypercube"})


#: A line of "Using devices". Old builds print no group, and only the middle of the bus id.
_DEVICE = re.compile(
    r"^#  Rank +(\d{1,7}) (?:Group +(\d{1,7}) )?Pid +\d+ on +(\S{1,255}) device +(\d{1,4}) "
    r"\[([0-9a-fx:.]{1,20})\] ?([^\n]{0,128})$",
    re.MULTILINE | re.ASCII,
)


class Device(NamedTuple):
    """A line of "Using devices": a rank, its split group, host, local device, bus id and name."""

    rank: int
    group: int
    host: str
    device: int
    bus: str
    name: str


class Side(NamedTuple):
    """One placement of a row: time in us, bus bandwidth in GB/s, wrong elements (None: unchecked).

    The printed algbw is left out because it is size / time with fewer digits.
    """

    time: float
    busbw: float
    wrong: int | None


class Row(NamedTuple):
    """One row, with its size in bytes. A side is None if one of its numbers is not finite."""

    size: int
    type: str
    redop: str
    root: int
    out_of_place: Side | None
    in_place: Side | None

    def sides(self) -> tuple[tuple[Placement, Side | None], tuple[Placement, Side | None]]:
        """Return both placements."""
        return (Placement.OUT, self.out_of_place), (Placement.IN, self.in_place)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table of one collective. Values that the log does not contain are None."""

    #: Name of the program without `_perf`: "all_reduce". None in logs of old builds.
    collective: str | None
    version: str | None
    #: Number of ranks; None if the list of devices has gaps.
    ranks: int | None
    #: The lines about devices, unparsed; see `devices`.
    listing: str
    #: Number of ranks of each host, by its own name.
    hosts: dict[str, int]
    #: Requested sizes in bytes.
    min_bytes: int | None
    max_bytes: int | None
    #: Ratio of each size to the previous one; None if sizes grow by addition.
    factor: int | None
    #: Largest size that fits in memory, if nccl-tests reduced the requested one.
    reduced_max: int | None
    rows: tuple[Row, ...]
    #: Footer: number of wrong rows over all ranks, and mean of all busbw in GB/s.
    out_of_bounds: int | None
    average: float | None
    #: True if the footer and all sizes up to the largest (reduced) one are present.
    complete: bool
    #: True if it belongs to one of several processes that ran separately by mistake.
    alone: bool = False
    #: True if several groups ran at once (NCCL_TESTS_SPLIT); the numbers are only their mean.
    split: bool = False
    #: Those of the log's `problems` that concern this table.
    problems: tuple[Problem, ...] = ()

    @property
    def check(self) -> str | None:
        """Return the name of the collective's check: "all-reduce"."""
        return check_of(self.collective)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return host and device of each rank, parsed on demand because few callers need them."""
        return tuple(
            Device(int(rank), int(group or 0), host, int(device), bus, name)
            for rank, group, host, device, bus, name in _DEVICE.findall(self.listing)
        )

    @property
    def top_size(self) -> int | None:
        """Return the largest measured size in bytes."""
        return max((row.size for row in self.rows), default=None)


@dataclass(frozen=True, kw_only=True)
class Log:
    """The contents of a log."""

    tables: tuple[Table, ...]
    problems: tuple[Problem, ...]
    #: Networks in use ("IB", "Socket", "gIB"), each with the hosts whose NCCL reports it.
    networks: dict[str, tuple[str, ...]]
    #: Paths that may be slower than necessary, each with its hosts: `nccl_info.Info.detours`.
    detours: dict[str, tuple[str, ...]]
    #: Number of NCCL's own lines, and its first warnings.
    nccl_lines: int
    warnings: tuple[str, ...]


def check_of(collective: str | None) -> str | None:
    """Return the name of a collective's check: "all-reduce"."""
    return collective.replace("_", "-") if collective else None


def listed_devices(listing: str) -> list[tuple[str, ...]]:
    """Parse lines about devices. Return an empty list if any of them is damaged.

    nccl-tests itself abbreviates the list of a process with many GPUs with dots.
    """
    devices = [] if "..." in listing or " NCCL " in listing else _DEVICE.findall(listing)
    return devices if len(devices) == listing.count("\n") else []


def bus_factor(collective: str | None, ranks: int | None) -> float | None:
    """Return busbw / algbw of a collective over `ranks` ranks, or None if it is not known.

    Formulas: nccl-tests, doc/PERFORMANCE.md.
    """
    if not ranks or collective is None:
        return None
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0 if collective in ("broadcast", "reduce", "sendrecv") else None


def expected_sizes(least: int, most: int, step: int, *, factor: bool) -> list[int] | None:
    """Return the sizes of a run, or None if they are endless or too many."""
    if step <= (1 if factor else 0) or (factor and least <= 0):
        return None
    if not factor:
        return list(range(least, most + 1, step)) if (most - least) // step < 100_000 else None
    sizes = []
    while least <= most:
        sizes.append(least)
        least *= step
    return sizes


#: `Side(cells)` and `Row(cells)`, faster than the constructors of named tuples.
_side = partial(tuple.__new__, Side)
_row = partial(tuple.__new__, Row)


class Rows(NamedTuple):
    """The valid rows of some lines, and descriptions of the others."""

    rows: Sequence[Row]
    #: True if every placement of every row was checked and is correct.
    right: bool
    damaged: Sequence[str] = ()
    not_finite: Sequence[str] = ()


def read_rows(lines: Sequence[bytes], layout: Layout | None, factor: float | None) -> Rows | None:
    """Parse lines as rows, or return None if any line is not a row.

    `factor` is busbw / (size / time), or None if it is not known; see `bus_factor`.
    """
    tokens = [line.split() for line in lines]
    layout = layout or BY_WIDTH.get(len(tokens[0]))
    if layout is None or {*map(len, tokens)} != {layout.width}:
        return None
    columns: list[Sequence[bytes]] = [*zip(*tokens, strict=True)]
    if layout.lacks:
        columns += [b"none"] * len(lines), [b"-1"] * len(lines)
    size, kind, redop, root, *sides = layout.pick(columns)
    types, redops = [*map(word, kind)], [*map(word, redop)]
    # Python reads 1_000 as a number.
    if None in types or None in redops or _has_underscore(lines, (size, root, *sides)):
        return None
    wrong = _deviation if layout.deviation else _wrong
    try:
        sizes, roots = [*map(int, size)], [*map(int, root)]
        out_time, in_time = [*map(float, sides[0])], [*map(float, sides[3])]
        out_bus, in_bus = [*map(float, sides[1])], [*map(float, sides[4])]
        out_wrong, in_wrong = [*map(wrong, sides[2])], [*map(wrong, sides[5])]
    except ValueError:
        return None
    if min(sizes) < 0 or max(sizes) >= 1 << 63:
        return None
    out = map(_side, zip(out_time, out_bus, out_wrong, strict=True))
    inp = map(_side, zip(in_time, in_bus, in_wrong, strict=True))
    rows = [*map(_row, zip(sizes, types, redops, roots, out, inp, strict=True))]
    right = {*out_wrong, *in_wrong} == {0}
    if layout.cpu_time:
        factor = None
    finite = isfinite(sum(out_time) + sum(out_bus) + sum(in_time) + sum(in_bus))
    if not finite or (
        factor is not None
        and (
            _doubtful(sizes, out_time, out_bus, factor) or _doubtful(sizes, in_time, in_bus, factor)
        )
    ):
        return _sift(rows, right=right, factor=factor)
    return Rows(rows, right)


def _has_underscore(lines: Sequence[bytes], columns: Sequence[Sequence[bytes]]) -> bool:
    """Return True if one of the columns has an underscore; other columns (types) may have one."""
    return b"_" in b"".join(lines) and any(b"_" in b"".join(column) for column in columns)


@lru_cache(maxsize=256)
def _wrong(token: bytes) -> int | None:
    """Parse a count of wrong elements: `%g` of an integer, or N/A. Raise ValueError otherwise."""
    if token == b"N/A":
        return None
    value = float(token)
    if not isfinite(value):
        return None
    if value < 0:
        raise ValueError(token)
    return int(value) if value == int(value) else None


@lru_cache(maxsize=256)
def _deviation(token: bytes) -> int | None:
    """Parse a largest deviation. Only the footer shows whether it is too large."""
    return None if token == b"N/A" or not isfinite(float(token)) else 0


def _doubtful(
    sizes: Sequence[int], times: Sequence[float], buses: Sequence[float], factor: float
) -> list[bool]:
    """Return a non-empty list if a row may contradict itself: a quick version of `_contradicts`."""
    share = factor * 1e-3
    return [
        True
        for size, time, busbw in zip(sizes, times, buses, strict=True)
        if abs(share * size - busbw * time) > 0.005 * (time + busbw) + 6e-4 * share * size
    ]


def _contradicts(size: int, time: float, busbw: float, factor: float) -> bool:
    """Return True if a row's numbers disagree by more than their printed digits allow.

    busbw = factor * size / time. Times have two decimals, or at least four digits (two in the
    form 1.0e+07); bandwidths two decimals, or at least five digits.
    """
    moved = factor * size * 1e-3
    slack = 0.0055 * (time + busbw) + (7e-4 if time < 9.5e6 else 0.06) * moved
    return abs(moved - busbw * time) > slack


def _sift(rows: Sequence[Row], *, right: bool, factor: float | None) -> Rows:
    """Remove numbers that are not finite and rows that contradict themselves."""
    kept: list[Row] = []
    damaged: list[str] = []
    not_finite: list[str] = []
    for row in rows:
        sides: list[Side | None] = []
        for place, side in row.sides():
            assert side is not None
            if isfinite(side.time) and isfinite(side.busbw):
                sides.append(side)
                if factor is not None and _contradicts(row.size, *side[:2], factor):
                    damaged.append(f"the row of {row.size} B contradicts itself")
                    break
            else:
                sides.append(None)
                where = _at(row.size, place)
                text = f"the time at {where} is {side.time} us and busbw is {side.busbw} GB/s"
                not_finite.append(text)
        else:
            kept.append(row._replace(out_of_place=sides[0], in_place=sides[1]))
    return Rows(kept, right, damaged, not_finite)


class TableBuilder:
    """Collects the lines of one table."""

    def __init__(self, collective: str | None = None) -> None:
        #: Kind of the last line; a line of an earlier kind begins the next table.
        self.stage = 0
        self.collective = collective
        self.version: str | None = None
        #: Smallest and largest size, step, and True if the step is a factor.
        self.sizes: tuple[int, int, int, bool] | None = None
        self.reduced: int | None = None
        #: Sizes too small for the number of ranks.
        self.left_out: set[int] = set()
        #: Text, rank, split group and host of each line about a device.
        self.listing: list[str] = []
        self.numbers: list[int] = []
        self.groups: list[str] = []
        self.hosts: list[str] = []
        self.ranks_cut = False
        self.layout: Layout | None = None
        self.rows: list[Row] = []
        self.damaged: list[str] = []
        self.not_finite: list[str] = []
        self.bounds: int | None = None
        self.average: float | None = None
        #: True if the next table began before the footer of this one.
        self.overtaken = False
        self._factor: float | None = None
        self._right = True

    def ranks(self) -> int | None:
        """Return the number of ranks, or None if the list of devices is incomplete."""
        count, ranks = len(self.numbers), self.numbers
        if self.ranks_cut or (ranks != [*range(count)] and {*ranks} != {*range(count)}):
            return None
        return count or None

    def begin_rows(self, layout: Layout | None) -> None:
        """Add the line of column names."""
        self.layout = layout
        ranks = self.ranks()
        if ranks and len({*self.groups}) > 1:
            ranks = self.groups.count(self.groups[0])
        self._factor = bus_factor(self.collective, ranks)

    def take_average(self, token: bytes) -> None:
        """Add the mean bus bandwidth of the footer."""
        try:
            value = float(token)
        except ValueError:
            return
        if isfinite(value):
            self.average = value
        else:
            self.not_finite.append(f"the footer's average is {value}")

    def take_devices(self, listing: str, devices: Sequence[tuple[str, ...]]) -> None:
        """Add lines about devices, and their ranks, groups and hosts."""
        ranks, groups, hosts, *_ = zip(*devices, strict=True)
        self.listing.append(listing)
        self.numbers += map(int, ranks)
        self.groups += groups
        self.hosts += hosts

    def damage(self, what: str) -> None:
        """Add the description of a damaged row."""
        if len(self.damaged) < 1000:
            self.damaged.append(what)

    def add(self, lines: Sequence[bytes]) -> bool:
        """Add the lines if all are complete rows; else add none and return False."""
        parsed = read_rows(lines, self.layout, self._factor)
        if parsed is None:
            return False
        self.rows += parsed.rows
        self._right = self._right and parsed.right
        self.damaged += parsed.damaged
        self.not_finite += parsed.not_finite
        return True

    def _missing(self, ranks: int | None) -> Iterator[str]:
        """Yield a sentence for each missing part of the table."""
        if self.collective is None:
            yield "the log does not show which collective it is about"
        elif self.collective not in COLLECTIVES:
            yield f"{self.collective} is not a known collective"
        if self.sizes is None:
            yield "the line of parameters (nThread) is missing"
        if not self.numbers:
            yield "the list of devices is missing"
        elif ranks is None:
            yield "the list of devices has gaps"
        if self.layout is None:
            yield "the line of column names is missing or unknown"
        if self.damaged:
            yield f"{_count(len(self.damaged), 'row')} damaged ({_some(self.damaged)})"
        if self.sizes is not None:
            least, most, step, factor = self.sizes
            yield from self._missing_rows(least, most, step, factor=factor)
        if self.bounds is None or self.average is None:
            yield "the footer is missing or incomplete"
        elif self.rows and not self.damaged and not self.not_finite:
            sides = [side for row in self.rows for side in (row.out_of_place, row.in_place) if side]
            mean = sum([side.busbw for side in sides]) / len(sides)
            if abs(mean - self.average) > 0.0055 + 2e-4 * abs(mean):
                yield f"the mean busbw of the rows is {mean:g}, and the footer has {self.average:g}"

    def _missing_rows(self, least: int, most: int, step: int, *, factor: bool) -> Iterator[str]:
        """Yield a sentence if expected rows are missing (`-N` repeats all of them)."""
        top = most if self.reduced is None else min(most, self.reduced)
        sizes = expected_sizes(min(least, top), top, step, factor=factor)
        if sizes and self.left_out:
            sizes = [size for size in sizes if size not in self.left_out]
        have = [row.size for row in self.rows]
        if have and have == sizes:
            return
        if not have:
            yield "it has no rows"
        elif sizes is None:
            yield "its range of sizes is endless"
        elif not sizes or len(have) % len(sizes):
            yield f"it has {len(have)} of {len(sizes)} expected rows"
        elif not all(
            # Sizes are rounded down to a multiple of the number of ranks.
            have[i] <= sizes[i % len(sizes)] < 2 * have[i] + 65536
            for i in range(len(have))
        ):
            yield "its sizes are not the requested ones"

    def _correctness(self) -> Iterator[tuple[Cause, str]]:
        """Yield (cause, message) for wrong, unchecked and non-finite results."""
        wrong, unchecked = [], []
        by_design = self.collective in UNCHECKED_IN_PLACE
        for row in () if self._right else self.rows:
            for where, side in row.sides():
                if side is None or side.wrong == 0:
                    continue
                if side.wrong is not None:
                    wrong.append(f"{_count(side.wrong, 'element')} wrong at {_at(row.size, where)}")
                elif not (by_design and where is Placement.IN):
                    unchecked.append(_at(row.size, where))
        if len({*self.groups}) > 1:
            message = "several groups ran at once and the table has only their mean; "
            message += "the results of each group are in the file of -I 1 -J FILE"
            yield Cause.NO_MEASUREMENT, message
        if self.bounds and not wrong:
            wrong.append(f"the footer reports {self.bounds} values out of bounds")
        if wrong:
            yield Cause.WRONG_DATA, _some(wrong)
        if unchecked:
            sizes = _some(unchecked)
            yield Cause.NO_MEASUREMENT, f"the results were not checked (#wrong is N/A) at {sizes}"
        if self.not_finite:
            yield Cause.NOT_FINITE, _some(self.not_finite)

    def lonely(self) -> bool:
        """Return True if rank 0 is the only rank in the list of devices."""
        return not any(self.numbers)

    def finish(self, *, alone: bool = False) -> Table:
        """Return the table with its problems; the table of a process that ran `alone` has none."""
        ranks = self.ranks()
        missing = "; ".join(self._missing(ranks))
        name, check = self.collective or "nccl-tests", check_of(self.collective)
        causes = [] if alone else [(c, f"{name}: {m}") for c, m in self._correctness()]
        if missing and not alone:
            causes.append((Cause.INCOMPLETE_LOG, f"a table of {name} is incomplete: {missing}"))
        problems = tuple(Problem(cause=c, message=m, check=check) for c, m in causes)
        return Table(
            collective=self.collective,
            version=self.version,
            ranks=ranks,
            listing="".join(self.listing),
            hosts=dict(Counter(self.hosts)),
            min_bytes=self.sizes[0] if self.sizes else None,
            max_bytes=self.sizes[1] if self.sizes else None,
            factor=self.sizes[2] if self.sizes and self.sizes[3] else None,
            reduced_max=self.reduced,
            rows=tuple(self.rows),
            out_of_bounds=self.bounds,
            average=self.average,
            complete=not missing,
            alone=alone,
            split=len({*self.groups}) > 1,
            problems=problems,
        )


def count_alone(tables: Sequence[TableBuilder]) -> int:
    """Return the number of processes that ran separately by mistake, each as rank 0.

    If mpirun starts a build without MPI, the tables of the processes are interleaved. Consecutive
    tables of one GPU do not count.
    """
    lonely = [table for table in tables if table.lonely()]
    hosts = [host for table in lonely for host in table.hosts]
    repeated = any(len(table.hosts) > 1 for table in lonely)
    overtaken = any(
        a.overtaken and a.hosts and b.hosts and a.collective == b.collective
        for a, b in pairwise(lonely)
    )
    return len(hosts) if repeated or overtaken or len({*hosts}) > 1 else 0


def _count(number: int, noun: str) -> str:
    """Return a number with noun and verb: "1 row is", "2 rows are"."""
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


def _at(size: int, where: Placement) -> str:
    """Return the position of a number in a table: "1024 B (in-place)"."""
    return f"{size} B ({'in' if where is Placement.IN else 'out-of'}-place)"


def _some(messages: list[str]) -> str:
    """Join the first few messages."""
    more = f", and {len(messages) - 4} more" if len(messages) > 4 else ""
    return ", ".join(messages[:4]) + more
