"""Build the tables of an nccl-tests log, and check that they are complete and correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from operator import itemgetter

from accept.core.causes import Cause
from accept.core.nccl_tests.lines import Device, Row, Side
from accept.core.records import Placement, Problem
from accept.core.text import TextEnum

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
#: Collectives with busbw / algbw = (n - 1) / n, which print the elements of one of n parts.
IN_PARTS = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")

#: More wrong elements than bytes x ranks x checks are damage; the most ranks if they are unknown.
_MOST_RANKS, _MOST_CHECKS = 100_000, 1000
#: Sizes are rounded down to a multiple of the number of ranks, by at most half and these bytes.
_ROUNDED = 65536
#: Maximum number of tables, rows and devices that are kept of one log.
MAX_TABLES, MAX_ROWS, MAX_DEVICES = 4096, 100_000, 262_144


class NamedBy(TextEnum):
    """The source of the name of a table's collective."""

    LOG = "the log"
    OPTION = "--collective"
    FILE = "the file name"
    COMMAND = "a command line in the log"
    TABLE = "the figures in the table"


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table of one collective. Values that the log does not contain are None."""

    #: Name of the program without `_perf`: "all_reduce". None if it is not known.
    collective: str | None
    #: Source of that name.
    named_by: NamedBy = NamedBy.LOG
    version: str | None
    #: Number of ranks; None if the list of devices has gaps.
    ranks: int | None
    devices: tuple[Device, ...]
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
    #: The parameters of the program apart from sizes; "" if they are not known.
    parameters: str = ""
    #: The variables of NCCL that the log shows, by name.
    environment: tuple[tuple[str, str], ...] = ()
    #: Those of the log's `problems` that concern this table.
    problems: tuple[Problem, ...] = ()

    @property
    def check(self) -> str | None:
        """Return the name of the collective's check: "all-reduce"."""
        return check_of(self.collective)

    @property
    def hosts(self) -> dict[str, int]:
        """Return the number of ranks of each host, by its own name."""
        return dict(Counter(device.host for device in self.devices))

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
    #: Host -> number of its GPU -> the NICs that NCCL uses for it.
    nics: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    #: NCCL, the CUDA that it was built with, and network plugins, each with its versions.
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)


def check_of(collective: str | None) -> str | None:
    """Return the name of a collective's check: "all-reduce"."""
    return collective.replace("_", "-") if collective else None


def bus_factor(collective: str | None, ranks: int | None) -> float | None:
    """Return busbw / algbw of a collective over `ranks` ranks, or None if it is not known.

    Formulas: nccl-tests, doc/PERFORMANCE.md.
    """
    if not ranks or collective is None:
        return None
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in IN_PARTS:
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


def _contradicts(size: int, side: Side, factor: float, unit: float) -> bool:
    """Return True if a row's numbers disagree by more than their printed digits allow.

    busbw = factor * size / time. Times have two decimals, or at least four digits (two in the
    form 1.0e+07), or three decimals in milliseconds; bandwidths two decimals, or at least five
    digits. `unit`: microseconds per unit of the printed times.
    """
    moved = factor * size * 1e-3
    decimals = 0.55 if unit > 1 else 0.0055
    slack = 0.0055 * side.time + decimals * side.busbw
    slack += (7e-4 if side.time < 9.5e6 else 0.06) * moved
    return abs(moved - side.busbw * side.time) > slack


class TableBuilder:
    """Collects the contents of one table."""

    def __init__(self, default: str | None = None) -> None:
        """Begin a table; `default` is its collective if it names none."""
        self.default = default
        self.collective: str | None = None
        self.named_by = NamedBy.LOG
        self.parameters = ""
        self.environment: tuple[tuple[str, str], ...] = ()
        self.version: str | None = None
        #: Smallest and largest size, step, and True if the step is a factor.
        self.sizes: tuple[int, int, int, bool] | None = None
        self.reduced: int | None = None
        #: Sizes too small for the number of ranks.
        self.left_out: set[int] = set()
        self.devices: list[Device] = []
        #: True if a line about a device was damaged or not kept.
        self.devices_cut = False
        #: True if the names of the columns are known.
        self.has_names = False
        self.rows: list[Row] = []
        self.damaged: list[str] = []
        self.not_finite: list[str] = []
        self.bounds: int | None = None
        self.average: float | None = None
        #: False if the table has a line with its start, and none with its end yet.
        self.concluded: bool | None = None
        #: True if the next table began before the footer of this one.
        self.overtaken = False
        #: True if the source of the table ends before its last byte.
        self.cut_off = False
        self._cpu_time = False
        #: Microseconds per unit of the printed times.
        self._unit = 1.0

    def ranks(self) -> int | None:
        """Return the number of ranks, or None if the list of devices is incomplete.

        Without the lines above and below it, it may have lost its beginning or its end.
        """
        ranks = {device.rank for device in self.devices}
        is_cut = self.devices_cut or self.sizes is None or (self.rows and not self.has_names)
        if is_cut or ranks != {*range(len(self.devices))}:
            return None
        return len(self.devices) or None

    def _is_split(self) -> bool:
        """Return True if several groups of ranks ran at once."""
        return len({device.group for device in self.devices}) > 1

    def begin_rows(
        self, *, has_names: bool = True, cpu_time: bool = False, unit: float = 1.0
    ) -> None:
        """Prepare for the rows.

        With `cpu_time`, the times are those of the CPU and do not match the bandwidth. `unit`:
        microseconds per unit of the printed times.
        """
        self.has_names, self._cpu_time, self._unit = has_names, cpu_time, unit

    def add_row(self, row: Row) -> None:
        """Add a row without its infinite or NaN numbers."""
        for place, side in row.sides():
            if side and not (isfinite(side.time) and isfinite(side.busbw)):
                self.not_finite.append(
                    f"the time at {_at(row.size, place)} is {side.time} us "
                    f"and busbw is {side.busbw} GB/s"
                )
                is_out = place is Placement.OUT
                row = row._replace(out_of_place=None) if is_out else row._replace(in_place=None)
        self.rows.append(row)

    def _ranks_of_group(self, ranks: int | None, *, is_split: bool) -> int | None:
        """Return the number of ranks to which the bandwidth of a row applies; `ranks` took part."""
        if ranks and is_split:
            first = self.devices[0].group
            return sum(device.group == first for device in self.devices)
        return ranks

    def _factor(self, ranks: int | None) -> float | None:
        """Return busbw / algbw of the rows over `ranks` ranks, or None if it is not known."""
        return None if self._cpu_time else bus_factor(self.collective, ranks)

    def _shows_other_ranks(self, ranks: int | None) -> bool:
        """Return True if no row fits this number of ranks: the list of devices lost some."""
        factor = self._factor(ranks)
        if factor is None:
            return False
        fits = [
            not _contradicts(row.size, side, factor, self._unit)
            for row in self.rows
            for side in (row.out_of_place, row.in_place)
            if side
        ]
        # Rows without a finite number show nothing.
        return bool(fits) and not any(fits)

    def _remove_contradictions(self, ranks: int | None) -> None:
        """Remove rows that no such run prints, and add them to the damage."""
        factor = self._factor(ranks)
        kept = []
        for row in self.rows:
            most_wrong = row.size * (ranks or _MOST_RANKS) * _MOST_CHECKS
            sides = [side for side in (row.out_of_place, row.in_place) if side]
            if not self._is_requested(row.size):
                self.damage(f"no row of {row.size} B was requested")
            elif any(
                (side.wrong or 0) > most_wrong
                or (factor is not None and _contradicts(row.size, side, factor, self._unit))
                for side in sides
            ):
                self.damage(f"the row of {row.size} B contradicts itself")
            else:
                kept.append(row)
        self.rows = kept

    def _is_requested(self, size: int) -> bool:
        """Return True if the range of sizes has a size, which may be a rounded one."""
        if self.sizes is None:
            return True
        least, most, _, _ = self.sizes
        return min(least, most, self.reduced or most) < 2 * size + _ROUNDED and size <= most

    def take_average(self, value: float) -> None:
        """Add the mean bus bandwidth of the footer."""
        if isfinite(value):
            self.average = value
        else:
            self.not_finite.append(f"the footer's average is {value}")

    def damage(self, what: str) -> None:
        """Add the description of a damaged row."""
        if len(self.damaged) < 1000:
            self.damaged.append(what)

    def _identify(self, _: int | None, /) -> None:
        """Find the collective of a table that does not name it, with its listed number of ranks."""
        if self.collective is None and self.default is not None:
            self.collective, self.named_by = self.default, NamedBy.OPTION

    def _participants(self, listed: int | None) -> int | None:
        """Return the number of ranks that took part, if it is known; `listed` devices have one."""
        return listed

    def _missing(self, listed: int | None) -> list[str]:
        """Return a sentence for each missing part of the table."""
        return [*self._missing_above(listed), *self._missing_below()]

    def _missing_above(self, ranks: int | None) -> Iterator[str]:
        """Yield a sentence for each missing line above the rows."""
        if self.collective is None:
            yield "the log does not show which collective it is about"
        if self.sizes is None:
            yield "the line of parameters (nThread) is missing"
        if not self.devices:
            yield "the list of devices is missing"
        elif ranks is None and self.sizes is not None and self.has_names:
            yield "the list of devices has gaps"
        if not self.has_names:
            yield "the line of column names is missing or unknown"

    def _missing_below(self) -> Iterator[str]:
        """Yield a sentence for each missing part of the rows and the footer."""
        if self.collective not in COLLECTIVES and self.collective is not None:
            yield f"{self.collective} is not a known collective"
        if self.damaged:
            yield f"{_count(len(self.damaged), 'row')} damaged ({_some(self.damaged)})"
        if self.sizes is not None:
            least, most, step, factor = self.sizes
            yield from self._missing_rows(least, most, step, factor=factor)
        if self.cut_off:
            yield "the document is cut off or damaged"
        yield from self._missing_footer()

    def _missing_footer(self) -> Iterator[str]:
        """Yield a sentence if the footer is missing, or contradicts the rows."""
        if self.bounds is None or self.average is None or self.concluded is False:
            yield "the footer is missing or incomplete"
        elif self.rows and not self.damaged and not self.not_finite:
            sides = [side for row in self.rows for side in (row.out_of_place, row.in_place) if side]
            mean = sum([side.busbw for side in sides]) / len(sides)
            if not self._is_mean(mean, self.average):
                yield f"the mean busbw of the rows is {mean:g}, and the footer has {self.average:g}"

    def _is_mean(self, mean: float, printed: float) -> bool:
        """Return True if the footer prints the `mean` of the rows."""
        return abs(mean - printed) <= 0.0055 + 2e-4 * abs(mean)

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
            have[i] <= sizes[i % len(sizes)] < 2 * have[i] + _ROUNDED
            for i in range(len(have))
        ):
            yield "its sizes are not the requested ones"

    def _correctness(self, *, is_split: bool) -> Iterator[tuple[Cause, str]]:
        """Yield (cause, message) for wrong, unchecked and non-finite results."""
        wrong, unchecked, results, checkable = [], [], 0, 0
        by_design = self.collective in UNCHECKED_IN_PLACE
        for row in self.rows:
            for where, side in row.sides():
                if side is None:
                    continue
                results += 1
                is_checkable = not (by_design and where is Placement.IN)
                checkable += is_checkable
                if side.wrong:
                    wrong.append((side.wrong, _at(row.size, where)))
                elif side.wrong is None and is_checkable:
                    unchecked.append(_at(row.size, where))
        if is_split:
            message = "several groups ran at once and the table has only their mean; "
            message += "the results of each group are in the file of -I 1 -J FILE"
            yield Cause.NO_MEASUREMENT, message
        if wrong:
            text = f"{len(wrong)} of {_count(results, 'result')} wrong, first at {wrong[0][1]}"
            most, worst = max(wrong, key=itemgetter(0))
            place = "" if worst == wrong[0][1] else f", at {worst}"
            elements = f"{_count(most, 'element')} wrong in the worst of them{place}"
            yield Cause.WRONG_DATA, f"{text}; {elements}"
        elif self.bounds:
            yield Cause.WRONG_DATA, f"the footer reports {self.bounds} values out of bounds"
        if unchecked:
            sizes = "any size" if len(unchecked) == checkable else _some(unchecked)
            text = f"the results were not checked at {sizes}: #wrong is N/A"
            yield Cause.RESULTS_UNCHECKED, text
        if self.not_finite:
            yield Cause.NOT_FINITE, _some(self.not_finite)

    def lonely(self) -> bool:
        """Return True if each process in the list of devices has rank 0, as if it ran alone."""
        ranks = [device.rank for device in self.devices]
        return not any(ranks) or ranks.count(0) > 1

    def has_repeated_rows(self) -> bool:
        """Return True if a row has the cells of the one above, as if two tables were mixed."""
        return any(a[:4] == b[:4] for a, b in pairwise(self.rows))

    def finish(self, *, alone: bool = False) -> Table:
        """Return the table with its problems; the table of a process that ran `alone` has none."""
        listed = self.ranks()
        is_split = self._is_split()
        of_group = self._ranks_of_group(listed, is_split=is_split)
        self._identify(of_group)
        if self._shows_other_ranks(of_group):
            # Ranks are missing in the list, or the number of a group is damaged.
            listed, is_split = None, False
        ranks = self._participants(listed)
        self._remove_contradictions(self._ranks_of_group(ranks, is_split=is_split))
        missing = "; ".join(self._missing(listed))
        name, check = self.collective or "nccl-tests", check_of(self.collective)
        causes = (
            [] if alone else [(c, f"{name}: {m}") for c, m in self._correctness(is_split=is_split)]
        )
        if missing and not alone:
            causes.append((Cause.INCOMPLETE_LOG, f"a table of {name} is incomplete: {missing}"))
        problems = tuple(Problem(cause=c, message=m, check=check) for c, m in causes)
        return Table(
            collective=self.collective,
            named_by=self.named_by,
            version=self.version,
            ranks=ranks,
            devices=tuple(self.devices),
            min_bytes=self.sizes[0] if self.sizes else None,
            max_bytes=self.sizes[1] if self.sizes else None,
            factor=self.sizes[2] if self.sizes and self.sizes[3] else None,
            reduced_max=self.reduced,
            rows=tuple(self.rows),
            out_of_bounds=self.bounds,
            average=self.average,
            complete=not missing,
            alone=alone,
            split=is_split,
            parameters=self.parameters,
            environment=self.environment,
            problems=problems,
        )


def _alone(tables: Sequence[TableBuilder]) -> tuple[int, set[int]]:
    """Return the number of processes that ran separately by mistake, and the ids of their tables.

    If mpirun starts a build without MPI, each process has rank 0, and their tables are mixed.
    Consecutive tables of one process do not count.
    """
    mixed = any(table.overtaken and table.devices and not table.rows for table in tables)
    mixed = mixed and any(table.has_repeated_rows() for table in tables)
    lonely = [table for table in tables if mixed or table.lonely()]
    hosts = [device.host for table in lonely for device in table.devices if not device.rank]
    repeated = any(table.lonely() and len(table.devices) > 1 for table in lonely)
    overtaken = any(
        a.overtaken and a.devices and b.devices and a.collective == b.collective
        for a, b in pairwise(lonely)
    )
    if len(hosts) > 1 and (mixed or repeated or overtaken or len({*hosts}) > 1):
        return len(hosts), {*map(id, lonely)}
    return 0, set()


class Tables:
    """Collects the tables of one log, within the limits."""

    def __init__(self, make: Callable[[], TableBuilder]) -> None:
        """Collect tables that `make` begins."""
        self._make = make
        self._tables: list[TableBuilder] = []
        self._rows_left, self._devices_left = MAX_ROWS, MAX_DEVICES
        self._left_out: dict[str, None] = {}

    def begin(self) -> TableBuilder:
        """Add a table, which is filled later."""
        table = self._make()
        if len(self._tables) < MAX_TABLES:
            self._tables.append(table)
        else:
            self._left_out["tables"] = None
        return table

    def add_device(self, table: TableBuilder, device: Device | None) -> None:
        """Add a device to a table; None stands for a damaged one."""
        if device and self._devices_left:
            self._devices_left -= 1
            table.devices.append(device)
            return
        table.devices_cut = True
        if device:
            self._left_out["devices"] = None

    def add_row(self, table: TableBuilder, row: Row) -> None:
        """Add a row to a table."""
        if self._rows_left:
            self._rows_left -= 1
            table.add_row(row)
        else:
            self._left_out["rows"] = None
            table.damage("the log has more rows than are kept")

    def finish(self, *, quiet: bool) -> tuple[tuple[Table, ...], tuple[Problem, ...]]:
        """Return all tables and problems; `quiet` accepts a log without tables."""
        alone, lonely = _alone(self._tables)
        tables = tuple(table.finish(alone=id(table) in lonely) for table in self._tables)
        problems = [problem for table in tables for problem in table.problems]
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
                Problem(cause=Cause.NO_TABLE, message="the log has no nccl-tests results table")
            )
        if self._left_out:
            what = " and ".join(self._left_out)
            problems.append(
                Problem(
                    cause=Cause.UNPARSABLE,
                    message=f"the log has more {what} than are kept; the rest was ignored",
                )
            )
        return tables, tuple(problems)


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
