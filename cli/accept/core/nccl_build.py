"""Builds one table of nccl-tests output out of its lines, and says whether it can be believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite

from accept.core.model import Problem
from accept.core.nccl_lines import Layout
from accept.core.nccl_rows import read_rows
from accept.core.nccl_table import (
    COLLECTIVES,
    UNCHECKED_IN_PLACE,
    Row,
    Table,
    bus_factor,
    check_of,
    expected_sizes,
)


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
        """Say what the table lacks to be complete."""
        if self.collective is None:
            yield "which collective it is"
        elif self.collective not in COLLECTIVES:
            yield f"a known collective: there is no {self.collective}"
        if self.sizes is None:
            yield "no line of parameters"
        if ranks is None:
            yield "the list of devices has gaps"
        if self.layout is None:
            yield "the line of column names is missing or unknown"
        if self.damaged:
            yield f"{len(self.damaged)} damaged rows: {_some(self.damaged)}"
        if self.sizes is not None:
            least, most, step, factor = self.sizes
            yield from self._missing_rows(least, most, step, factor=factor)
        if self.bounds is None or self.average is None:
            yield "no footer"
        elif self.rows and not self.damaged and not self.not_finite:
            sides = [side for row in self.rows for side in (row.out_of_place, row.in_place) if side]
            mean = sum([side.busbw for side in sides]) / len(sides)
            if abs(mean - self.average) > 0.0055 + 2e-4 * abs(mean):
                yield f"the rows' mean busbw is {mean:g}, the footer says {self.average:g}"

    def _missing_rows(self, least: int, most: int, step: int, *, factor: bool) -> Iterator[str]:
        """Say which of the expected rows are absent (`-N` repeats all of them)."""
        top = most if self.reduced is None else min(most, self.reduced)
        sizes = expected_sizes(min(least, top), top, step, factor=factor)
        if sizes and self.left_out:
            sizes = [size for size in sizes if size not in self.left_out]
        have = [row.size for row in self.rows]
        if have and have == sizes:
            return
        if not have:
            yield "no rows"
        elif sizes is None:
            yield "sizes that come to an end"
        elif not sizes or len(have) % len(sizes):
            yield f"{len(have)} rows where {len(sizes)} sizes were to be measured"
        elif not all(
            # Sizes are rounded down to a multiple of the number of ranks.
            have[i] <= sizes[i % len(sizes)] < 2 * have[i] + 65536
            for i in range(len(have))
        ):
            yield "sizes other than the ones asked for"

    def _correctness(self) -> Iterator[tuple[str, str]]:
        """Say what is wrong with the data, as pairs of cause and message."""
        wrong, unchecked = [], []
        by_design = self.collective in UNCHECKED_IN_PLACE
        for row in () if self._right else self.rows:
            for where, side in row.sides():
                if side is None or side.wrong == 0:
                    continue
                if side.wrong is not None:
                    wrong.append(f"{side.wrong} wrong elements at {row.size} B {where} place")
                elif not (by_design and where == "in"):
                    unchecked.append(f"{row.size} B {where} place")
        if len({*self.groups}) > 1:
            said = "several groups ran at once: their mean is no group's; -I 1 -J FILE has each's"
            yield "no-measurement", said
        if self.bounds and not wrong:
            wrong.append(f"the footer counts {self.bounds} out of bounds")
        if wrong:
            yield "wrong-data", _some(wrong)
        if unchecked:
            yield "no-measurement", "the data were not checked (#wrong is N/A): " + _some(unchecked)
        if self.not_finite:
            yield "not-finite", _some(self.not_finite)

    def lonely(self) -> bool:
        """Say whether no rank but 0 was seen, once or many times."""
        return not any(self.numbers)

    def finish(self, *, alone: bool = False) -> Table:
        """Return the table and what is wrong with it, of which nothing is said if it is alone."""
        ranks = self.ranks()
        missing = "; ".join(self._missing(ranks))
        name, check = self.collective or "nccl-tests", check_of(self.collective)
        found = [] if alone else list(self._correctness())
        if missing and not alone:
            found.append(("incomplete-log", missing))
        problems = tuple(Problem(cause=c, message=f"{name}: {m}", check=check) for c, m in found)
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


def _some(messages: list[str]) -> str:
    """Join the first few messages."""
    more = f", and {len(messages) - 4} more" if len(messages) > 4 else ""
    return ", ".join(messages[:4]) + more
