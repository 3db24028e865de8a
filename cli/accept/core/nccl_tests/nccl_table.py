"""One table of nccl-tests output, as plain data, and the formulas behind its numbers.

Rows and devices are named tuples, where the rest of the project has frozen dataclasses: a log has
thousands, and a frozen dataclass costs five times as much to make.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from accept.core.model import Problem

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
