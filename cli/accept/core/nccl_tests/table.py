"""Build tables from the lines of an nccl-tests log: devices, rows, what makes one complete."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from accept.core.model import Problem
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
#: Collectives whose in-place result nccl-tests cannot check: `N/A` there is by design.
UNCHECKED_IN_PLACE = frozenset({"alltoall", "alltoallv", "sendrecv", "hypercube"})


#: A line of "Using devices". Old builds print no group, and of the bus id its middle only.
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

    The printed algbw is size / time with fewer digits, so it is not kept.
    """

    time: float
    busbw: float
    wrong: int | None


class Row(NamedTuple):
    """One row: size in bytes. A side with a number that is not finite is None."""

    size: int
    type: str
    redop: str
    root: int
    out_of_place: Side | None
    in_place: Side | None

    def sides(self) -> tuple[tuple[str, Side | None], tuple[str, Side | None]]:
        """Both placements, by the name that metrics give them."""
        return ("out", self.out_of_place), ("in", self.in_place)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One collective's table. What the log does not say is None."""

    #: The program's name without `_perf`: "all_reduce". None in logs of old builds.
    collective: str | None
    version: str | None
    #: Number of ranks; None where the list of devices has gaps.
    ranks: int | None
    #: The lines about devices, for `devices`.
    listing: str
    #: Ranks of each host, as it calls itself.
    hosts: dict[str, int]
    #: Sizes asked for, in bytes.
    min_bytes: int | None
    max_bytes: int | None
    #: Each size is the one before times this; None where sizes are added to, or nothing says.
    factor: int | None
    #: The largest size that memory allowed, where nccl-tests said that it reduced it.
    reduced_max: int | None
    rows: tuple[Row, ...]
    #: The footer's count of wrong rows over all ranks, and mean of all busbw in GB/s.
    out_of_bounds: int | None
    average: float | None
    #: Every size from the least to the largest (reduced) one is there, and the footer.
    complete: bool
    #: One of several processes that each took itself for the only one: measured nothing.
    alone: bool = False
    #: Several groups ran at once (NCCL_TESTS_SPLIT): its numbers are their mean, and no group's.
    split: bool = False
    #: What is wrong with this table, of all the `problems` of the log.
    problems: tuple[Problem, ...] = ()

    @property
    def check(self) -> str | None:
        """The name of the check this collective belongs to: "all-reduce"."""
        return check_of(self.collective)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every rank's host and device. Read when asked for: few who read a log want them."""
        return tuple(
            Device(int(rank), int(group or 0), host, int(device), bus, name)
            for rank, group, host, device, bus, name in _DEVICE.findall(self.listing)
        )

    @property
    def top_size(self) -> int | None:
        """The largest size that was measured, in bytes."""
        return max((row.size for row in self.rows), default=None)


@dataclass(frozen=True, kw_only=True)
class Log:
    """What a log says."""

    tables: tuple[Table, ...]
    problems: tuple[Problem, ...]
    #: Networks that NCCL said it uses ("IB", "Socket", "gIB") and the hosts that said so.
    networks: dict[str, tuple[str, ...]]
    #: Slower ways than others there may be, and the hosts that took them: `nccl_info.Info.detours`.
    detours: dict[str, tuple[str, ...]]
    #: Number of NCCL's own lines, and the first few of its warnings.
    nccl_lines: int
    warnings: tuple[str, ...]


def check_of(collective: str | None) -> str | None:
    """Return the name of the check that a collective belongs to: "all-reduce"."""
    return collective.replace("_", "-") if collective else None


def listed_devices(listing: str) -> list[tuple[str, ...]]:
    """Read lines about devices; nothing is returned where any of them is not whole.

    nccl-tests itself cuts the list of a process with many GPUs, and puts dots there.
    """
    found = [] if "..." in listing or " NCCL " in listing else _DEVICE.findall(listing)
    return found if len(found) == listing.count("\n") else []


def bus_factor(collective: str | None, ranks: int | None) -> float | None:
    """Return busbw / algbw of a collective over `ranks` ranks, or None where it is not known.

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
    """Return the sizes a run goes through, or None where they have no end or are too many."""
    if step <= (1 if factor else 0) or (factor and least <= 0):
        return None
    if not factor:
        return list(range(least, most + 1, step)) if (most - least) // step < 100_000 else None
    sizes = []
    while least <= most:
        sizes.append(least)
        least *= step
    return sizes


#: `Side(*cells)` and `Row(*cells)`, without the function that namedtuple puts in between.
_side = partial(tuple.__new__, Side)
_row = partial(tuple.__new__, Row)


class Rows(NamedTuple):
    """What some lines hold: the rows that can be believed, and words about what cannot."""

    rows: Sequence[Row]
    #: Every placement of every row was checked and right.
    right: bool
    damaged: Sequence[str] = ()
    not_finite: Sequence[str] = ()


def read_rows(lines: Sequence[bytes], layout: Layout | None, factor: float | None) -> Rows | None:
    """Read lines that are rows, or return None where any of them is none.

    `factor` is busbw / (size / time), or None where that is not known; see `bus_factor`.
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
    # Python would read 1_000 as a number.
    if None in types or None in redops or _underlined(lines, (size, root, *sides)):
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


def _underlined(lines: Sequence[bytes], columns: Sequence[Sequence[bytes]]) -> bool:
    """Say whether there is an underscore in any of the columns; types may have one."""
    return b"_" in b"".join(lines) and any(b"_" in b"".join(column) for column in columns)


@lru_cache(maxsize=256)
def _wrong(token: bytes) -> int | None:
    """Read a count of wrong elements: `%g` of an integer, or N/A. Raises ValueError."""
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
    """Read a largest deviation; the footer alone says whether it is too large."""
    return None if token == b"N/A" or not isfinite(float(token)) else 0


def _doubtful(
    sizes: Sequence[int], times: Sequence[float], buses: Sequence[float], factor: float
) -> list[bool]:
    """Return something where any row may contradict itself: `_contradicts`, in haste."""
    share = factor * 1e-3
    return [
        True
        for size, time, busbw in zip(sizes, times, buses, strict=True)
        if abs(share * size - busbw * time) > 0.005 * (time + busbw) + 6e-4 * share * size
    ]


def _contradicts(size: int, time: float, busbw: float, factor: float) -> bool:
    """Say whether a row's numbers disagree by more than their printed digits allow.

    busbw = factor * size / time. Times have two decimals, or at least four digits (two in the
    form 1.0e+07); bandwidths two decimals, or at least five digits.
    """
    moved = factor * size * 1e-3
    slack = 0.0055 * (time + busbw) + (7e-4 if time < 9.5e6 else 0.06) * moved
    return abs(moved - busbw * time) > slack


def _sift(rows: Sequence[Row], *, right: bool, factor: float | None) -> Rows:
    """Take out numbers that are not finite and rows that contradict themselves."""
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
                where = f"{row.size} B ({'in' if place == 'in' else 'out-of'}-place)"
                text = f"the time at {where} is {side.time} us and busbw is {side.busbw} GB/s"
                not_finite.append(text)
        else:
            kept.append(row._replace(out_of_place=sides[0], in_place=sides[1]))
    return Rows(kept, right, damaged, not_finite)


class TableBuilder:
    """A table while it is read."""

    def __init__(self, collective: str | None = None) -> None:
        #: How far down the table the reader is; a line from further up begins the next table.
        self.stage = 0
        self.collective = collective
        self.version: str | None = None
        #: Least and largest size, step, and whether the step multiplies.
        self.sizes: tuple[int, int, int, bool] | None = None
        self.reduced: int | None = None
        #: Sizes too small for the number of ranks.
        self.left_out: set[int] = set()
        #: Of each line about a device: its text, rank, split group and host.
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
        #: The next table began before this one's footer.
        self.overtaken = False
        self._factor: float | None = None
        self._right = True

    def ranks(self) -> int | None:
        """Return the number of ranks, or None where the list of devices is not whole."""
        count, ranks = len(self.numbers), self.numbers
        if self.ranks_cut or (ranks != [*range(count)] and {*ranks} != {*range(count)}):
            return None
        return count or None

    def begin_rows(self, layout: Layout | None) -> None:
        """Take the line of column names."""
        self.layout = layout
        ranks = self.ranks()
        if ranks and len({*self.groups}) > 1:
            ranks = self.groups.count(self.groups[0])
        self._factor = bus_factor(self.collective, ranks)

    def take_average(self, token: bytes) -> None:
        """Take the footer's mean bus bandwidth."""
        try:
            value = float(token)
        except ValueError:
            return
        if isfinite(value):
            self.average = value
        else:
            self.not_finite.append(f"the footer's average is {value}")

    def take_devices(self, listing: str, found: Sequence[tuple[str, ...]]) -> None:
        """Take lines about devices, and their ranks, groups and hosts."""
        ranks, groups, hosts, *_ = zip(*found, strict=True)
        self.listing.append(listing)
        self.numbers += map(int, ranks)
        self.groups += groups
        self.hosts += hosts

    def damage(self, what: str) -> None:
        """Note a row that cannot be believed."""
        if len(self.damaged) < 1000:
            self.damaged.append(what)

    def add(self, lines: Sequence[bytes]) -> bool:
        """Take the lines if each of them is a whole row; else take none and return False."""
        found = read_rows(lines, self.layout, self._factor)
        if found is None:
            return False
        self.rows += found.rows
        self._right = self._right and found.right
        self.damaged += found.damaged
        self.not_finite += found.not_finite
        return True

    def _missing(self, ranks: int | None) -> Iterator[str]:
        """Yield a sentence for each thing that the table lacks to be complete."""
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
        """Yield a sentence about expected rows that are absent (`-N` repeats all of them)."""
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
            yield "its parameters are of sizes without an end"
        elif not sizes or len(have) % len(sizes):
            yield f"it has {len(have)} of {len(sizes)} expected rows"
        elif not all(
            # Sizes are rounded down to a multiple of the number of ranks.
            have[i] <= sizes[i % len(sizes)] < 2 * have[i] + 65536
            for i in range(len(have))
        ):
            yield "its sizes are not the requested ones"

    def _correctness(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the data, as pairs of cause and message."""
        wrong, unchecked = [], []
        by_design = self.collective in UNCHECKED_IN_PLACE
        for row in () if self._right else self.rows:
            for where, side in row.sides():
                if side is None or side.wrong == 0:
                    continue
                if side.wrong is not None:
                    wrong.append(f"{_count(side.wrong, 'element')} wrong at {_at(row.size, where)}")
                elif not (by_design and where == "in"):
                    unchecked.append(_at(row.size, where))
        if len({*self.groups}) > 1:
            said = "several groups ran at once and the table has only their mean; "
            said += "the results of each group are in the file of -I 1 -J FILE"
            yield "no-measurement", said
        if self.bounds and not wrong:
            wrong.append(f"the footer reports {self.bounds} values out of bounds")
        if wrong:
            yield "wrong-data", _some(wrong)
        if unchecked:
            where = _some(unchecked)
            yield "no-measurement", f"the results were not checked (#wrong is N/A) at {where}"
        if self.not_finite:
            yield "not-finite", _some(self.not_finite)

    def lonely(self) -> bool:
        """Say whether no rank but 0 was seen, once or many times."""
        return not any(self.numbers)

    def finish(self, *, alone: bool = False) -> Table:
        """Return the table and its problems; a table of a process that ran `alone` has none."""
        ranks = self.ranks()
        missing = "; ".join(self._missing(ranks))
        name, check = self.collective or "nccl-tests", check_of(self.collective)
        found = [] if alone else [(c, f"{name}: {m}") for c, m in self._correctness()]
        if missing and not alone:
            found.append(("incomplete-log", f"a table of {name} is incomplete: {missing}"))
        problems = tuple(Problem(cause=c, message=m, check=check) for c, m in found)
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
    """Return how many processes each took rank 0 of a world of one; 0 where all is well.

    Started by mpirun, a build without MPI prints one table per process, through each other.
    One GPU's tables, one after another, are none of that.
    """
    lonely = [table for table in tables if table.lonely()]
    hosts = [host for table in lonely for host in table.hosts]
    twice = any(len(table.hosts) > 1 for table in lonely)
    overtaken = any(
        a.overtaken and a.hosts and b.hosts and a.collective == b.collective
        for a, b in pairwise(lonely)
    )
    return len(hosts) if twice or overtaken or len({*hosts}) > 1 else 0


def _count(number: int, noun: str) -> str:
    """Return a number of things and the verb: "1 row is", "2 rows are"."""
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


def _at(size: int, where: str) -> str:
    """Return the place of a number in a table: "1024 B (in-place)"."""
    return f"{size} B ({'in' if where == 'in' else 'out-of'}-place)"


def _some(messages: list[str]) -> str:
    """Join the first few messages."""
    more = f", and {len(messages) - 4} more" if len(messages) > 4 else ""
    return ", ".join(messages[:4]) + more
