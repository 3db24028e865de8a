"""Builds one table of nccl-tests output out of its lines, and says whether it can be believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite

from accept.core.model import Problem
from accept.core.nccl_tests.lines import Layout
from accept.core.nccl_tests.nccl_rows import read_rows
from accept.core.nccl_tests.nccl_table import (
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
