"""Hold every measured value of a run in one table: the only form of numbers behind the readers.

A row is one measured value, or the failure of an execution to measure one. Everything that
compares numbers is a query on these rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import NamedTuple, TypeVar

from accept.core.by_key import by_key
from accept.core.catalog.metrics import BETTER_BY_UNIT, BUSBW, TIME, WRONG, Better
from accept.core.causes import Cause
from accept.core.facts import GPUS
from accept.core.groups import round_count
from accept.core.nccl_tests.table import UNCHECKED_IN_PLACE
from accept.core.plan import Step
from accept.core.records import Placement, Problem, Record
from accept.core.text import TextEnum, device_label, number, parse_size, shortened, value_range

#: Speeds and times from this on are damage, as are numbers that are not finite.
ABSURD = 1e9
#: The units of times, as their number in a second.
_PER_SECOND = {"us": 1e6, "s": 1.0}

K = TypeVar("K")


class Outcome(TextEnum):
    """The outcome of the attempt to measure a value."""

    OK = "ok"
    #: Nothing valid was measured, and the hosts or what is between them are the reason.
    FAILED = "failed"
    #: The data or the number itself is wrong.
    WRONG = "wrong"
    #: Something was not measured, and that shows nothing about the hosts.
    MISSING = "missing"


class Measure(NamedTuple):
    """The metric by which executions of a collective are compared."""

    metric: str
    unit: str
    #: True for a time: then calls per second are compared, because higher must be better.
    inverse: bool = False

    def text(self, value: float) -> str:
        """Return a value for people: "380 GB/s", "14.2 us"."""
        return f"{number(self.shown(value))} {self.unit}"

    def shown(self, value: float) -> float:
        """Return a value in the unit of people, which may be a time."""
        return _PER_SECOND.get(self.unit, 1.0) / value if self.inverse and value else value

    def range(self, values: Sequence[float]) -> str:
        """Return the smallest and the largest of values: "327.5 to 331.5 GB/s"."""
        return f"{value_range([*map(self.shown, values)])} {self.unit}"

    def compared(self, values: Sequence[float], normal: float) -> str:
        """Return values beside the normal one: "327.5 to 331.5 of 366.4 GB/s"."""
        word = "instead of" if self.inverse else "of"
        return f"{value_range([*map(self.shown, values)])} {word} {self.text(normal)}"


BANDWIDTH = Measure(BUSBW.name, BUSBW.unit)
LATENCY = Measure(TIME.name, TIME.unit, inverse=True)


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a step on a group of hosts, which all of its rows share."""

    step: Step
    record: Record
    #: True if no other group of the step ran at the same time.
    alone: bool
    #: True if its wave followed the planned ones because something looked bad.
    repeated: bool

    @property
    def gpus(self) -> tuple[frozenset[int] | None, ...]:
        """Return the GPUs of each host that took part, in the order of the hosts; None: all."""
        known = {fact.host: gpus for fact, gpus in GPUS.of(self.record)}
        ranks = frozenset(self.record.local_ranks) or None
        return tuple(known.get(host, ranks) for host in self.record.hosts)

    @property
    def has_peer(self) -> bool:
        """Return False for a collective of one rank, whose values say nothing about any link."""
        return self.record.ranks != 1

    def problems(self, check: str) -> list[Problem]:
        """Return the problems that concern a check."""
        return [p for p in self.record.problems if p.check in (None, check)]


class Row(NamedTuple):
    """One measured value, or the failure of an execution to measure one."""

    check: str
    execution: Execution
    #: Empty if an execution measured nothing at all.
    metric: str = ""
    unit: str = ""
    #: None: nothing was measured.
    value: float | None = None
    #: Message size in bytes, as measured; None: the metric has none.
    size: int | None = None
    outcome: Outcome = Outcome.OK
    #: The reason for any outcome but `ok`.
    cause: Cause | None = None
    #: The host, rank, GPU or NIC that was measured; None: the whole group.
    host: str | None = None
    rank: int | None = None
    gpu: str | None = None
    placement: Placement | None = None
    algorithm: str | None = None
    nic: str | None = None
    #: What is wrong with the result of an execution: a row for wrong elements (metric `wrong`), for
    #: damaged numbers, for unchecked results (metric `wrong`, too), and for what is missing.
    flaws: tuple[Row, ...] = ()

    @property
    def step(self) -> Step:
        """Return the step of the execution."""
        return self.execution.step

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return all hosts of the execution."""
        return self.execution.record.hosts

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the local ranks of each host that took part; empty: all."""
        return self.execution.record.local_ranks

    @property
    def log(self) -> str:
        """Return the path of the raw log."""
        return self.execution.record.log

    @property
    def wave(self) -> int:
        """Return the number of the wave."""
        return self.execution.record.wave

    @property
    def nodes(self) -> int:
        """Return the number of hosts of the execution."""
        return len(self.execution.record.hosts)

    @property
    def better(self) -> Better:
        """Return the direction in which the value improves, by its unit."""
        return BETTER_BY_UNIT.get(self.unit, Better.HIGHER)

    @property
    def score(self) -> float | None:
        """Return the value by which executions are compared, so that higher is better.

        Of a time it is the number of calls per second.
        """
        if self.value is None or self.better is Better.HIGHER:
            return self.value
        return _PER_SECOND.get(self.unit, 1.0) / self.value if self.value else None

    @property
    def nominal_size(self) -> int | None:
        """Return the requested size of the message in bytes."""
        return None if self.size is None else nominal(self.size, self.step)

    @property
    def is_plausible(self) -> bool:
        """Return True if the value is a number that can be true: finite, and below `ABSURD`."""
        return self.value is not None and abs(self.value) < ABSURD

    @property
    def device(self) -> str:
        """Return the rank, GPU or NIC that was measured, for people; else the hosts."""
        hosts = self.host or shortened(self.hosts, 4)
        if self.nic:
            return f"NIC {self.nic} of {hosts}"
        return hosts if self.rank is None else device_label(hosts, self.rank, self.gpu)


@dataclass(frozen=True)
class Table:
    """Rows of one or several checks, in the order of the records."""

    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, keep: Callable[[Row], bool]) -> Table:
        """Return the rows for which `keep` is true."""
        return Table(tuple(filter(keep, self.rows)))

    def by(self, key: Callable[[Row], K]) -> dict[K, Table]:
        """Return the rows of each key, in the order in which the keys occur."""
        groups = by_key((key(row), row) for row in self.rows)
        return {name: Table(tuple(rows)) for name, rows in groups.items()}

    @property
    def records(self) -> tuple[Record, ...]:
        """Return the records of the executions."""
        by_id = {id(row.execution.record): row.execution.record for row in self.rows}
        return tuple(by_id.values())

    @property
    def values(self) -> list[float]:
        """Return all values, also invalid ones."""
        return [row.value for row in self.rows if row.value is not None]

    @property
    def median(self) -> float:
        """Return the median of all values, at least one."""
        return median(self.values)

    @property
    def worst(self) -> Row:
        """Return the row with the lowest score; of equal ones the first. One must have a value."""
        known = (row for row in self.rows if row.score is not None)
        return min(known, key=lambda row: row.score or 0.0)

    def at_top_size(self, measure: Measure = BANDWIDTH) -> Table:
        """Return the result of each execution of each check."""
        known = {(id(row.execution), row.check): row for row in self.rows}
        return Table(tuple(result_of(row.execution, row.check, measure) for row in known.values()))


# Building


def table_of(steps: Iterable[Step], records: Iterable[Record]) -> Table:
    """Return everything that the executions of some steps measured, or failed to measure."""
    known = executions(steps, records)
    return Table(
        tuple(row for e in known for check in e.record.checks for row in rows_of(e, check))
    )


def figures(steps: Iterable[Step], records: Iterable[Record]) -> Table:
    """Return what can be compared with other runs; of a collective, its result.

    Values of single ranks, NICs or sizes, and those that are not finite, are left out.
    """
    rows: list[Row] = []
    for execution in executions(steps, records):
        bandwidths = {m.check for m in execution.record.metrics if m.name == BUSBW.name}
        for check in execution.record.checks:
            if check in bandwidths:
                rows.append(result_of(execution, check))
            else:
                rows += (
                    r for r in rows_of(execution, check) if (r.rank, r.nic, r.size) == (None,) * 3
                )
    return Table(tuple(row for row in rows if row.value is not None and math.isfinite(row.value)))


def executions(steps: Iterable[Step], records: Iterable[Record]) -> Iterator[Execution]:
    """Yield the executions of known steps, in the order of the records."""
    records = list(records)
    by_id = {step.id: step for step in steps}
    paired: dict[str, set[str]] = {}
    waves: dict[tuple[str, int], set[tuple[str, ...]]] = {}
    for record in records:
        waves.setdefault((record.step, record.wave), set()).add(record.hosts)
        if len(set(record.hosts)) == 2:
            paired.setdefault(record.step, set()).update(record.hosts)
    for record in records:
        if step := by_id.get(record.step):
            planned = round_count(len(paired.get(step.id, ())), step.rounds)
            yield Execution(
                step=step,
                record=record,
                alone=len(waves[record.step, record.wave]) == 1,
                repeated=step.groups.of_pairs and record.wave >= planned,
            )


def rows_of(
    execution: Execution, check: str, names: Collection[str] | None = None
) -> Iterator[Row]:
    """Yield what one execution measured for a check; one row without a value if that is nothing.

    `names`: the only metrics to return. What a rank or device of a host alone measured is of that
    host, also if its log is damaged, or names another one.
    """
    is_empty = names is None
    hosts = execution.record.hosts
    for m in execution.record.metrics:
        if m.check == check and (names is None or m.name in names):
            is_empty = False
            of_part = m.host is not None or m.rank is not None
            yield Row(
                check,
                execution,
                m.name,
                m.unit,
                m.value,
                m.size,
                Outcome.OK,
                None,
                hosts[0] if of_part and len(hosts) == 1 else m.host,
                m.rank,
                m.gpu,
                m.placement,
                m.algorithm,
                m.nic,
            )
    if is_empty:
        outcome, cause = _failure(execution, check)
        yield Row(check, execution, outcome=outcome, cause=cause)


def _failure(execution: Execution, check: str) -> tuple[Outcome, Cause]:
    """Return why an execution has no valid value.

    If the log just ends, nothing is known about its hosts.
    """
    problems = execution.problems(check)
    causes = [p.cause for p in (*root_problems(problems), *problems)]
    if cause := next((c for c in causes if c is not Cause.INCOMPLETE_LOG), None):
        return Outcome.FAILED, cause
    if causes:
        return Outcome.MISSING, causes[0]
    ended = execution.record.exit == 0
    return Outcome.FAILED, Cause.NO_MEASUREMENT if ended else Cause.CRASHED


def root_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems of one execution that name a host and do not follow from others.

    If an execution reports a root cause, its other problems accuse nobody.
    """
    naming = [
        p
        for p in problems
        if p.host
        and not (p.cause.row.names_no_node or p.cause.row.not_tested or p.cause.row.not_judged)
    ]
    root = tuple(p for p in naming if p.cause.row.root_cause)
    consequences = tuple(p for p in naming if p.cause.row.consequence)
    others = tuple(p for p in naming if p not in root and p not in consequences)
    return root or others or consequences


# Results of executions


def result_of(execution: Execution, check: str, measure: Measure = BANDWIDTH) -> Row:
    """Return the result of an execution of a collective: value, outcome, cause and flaws.

    The value is that of the largest measured size, even if larger ones are missing. A time is the
    median over all sizes, because single times may be outliers even on healthy machines.
    Out-of-place results are preferred.
    """
    metrics = [metric for metric in execution.record.metrics if metric.check == check]
    measured = [metric for metric in metrics if metric.name == measure.metric]
    # The last value of a size and placement counts.
    good = {(m.size or 0, m.placement): m.value for m in measured if abs(m.value) < ABSURD}
    size = max((size for size, _ in good), default=0)
    value = _median_time(good) if measure.inverse else good.get((size, Placement.OUT))
    if value is None and not measure.inverse:
        value = min((v for (own, _), v in good.items() if own == size), default=None)
    result = Row(check, execution, measure.metric, measure.unit, value, size)
    counts = [metric for metric in metrics if metric.name == WRONG.name]
    if check in UNCHECKED_IN_PLACE:
        counts = [metric for metric in counts if metric.placement is not Placement.IN]
    checked = {metric.placement for metric in counts}
    if check in UNCHECKED_IN_PLACE:
        checked.add(Placement.IN)
    flaws = []
    # The metric `wrong` counts elements of a full table, so it has a placement but no size.
    if elements := sum(abs(metric.value) for metric in counts):
        wrong = result._replace(metric=WRONG.name, unit=WRONG.unit, value=elements)
        flaws.append(wrong._replace(outcome=Outcome.WRONG, cause=Cause.WRONG_DATA))
    if any(not abs(metric.value) < ABSURD for metric in measured):
        flaws.append(result._replace(value=None, outcome=Outcome.WRONG, cause=Cause.NOT_FINITE))
    missing = result._replace(value=None, outcome=Outcome.MISSING, cause=Cause.NO_MEASUREMENT)
    if any(placement not in checked for _, placement in good):
        flaws.append(missing._replace(metric=WRONG.name, unit=WRONG.unit))
    if value is None:
        flaws.append(missing)
    elif (sizes := planned_sizes(execution.step)) and 2 * size <= sizes[-1]:
        flaws.append(missing._replace(cause=Cause.TOP_SIZE_MISSING))
    outcome, cause = _outcome(execution, check, flaws)
    return result._replace(outcome=outcome, cause=cause, flaws=tuple(flaws))


def _median_time(times: Mapping[tuple[int, Placement | None], float]) -> float | None:
    out = [time for (_, place), time in times.items() if place is Placement.OUT and time > 0]
    out = out or [time for time in times.values() if time > 0]
    return median(out) if out else None


def _outcome(
    execution: Execution, check: str, flaws: Iterable[Row]
) -> tuple[Outcome, Cause | None]:
    problems = [problem.cause for problem in execution.problems(check)]
    if untested := next((cause for cause in problems if cause.row.not_tested), None):
        return Outcome.MISSING, untested
    if Cause.WRONG_DATA in (*problems, *(flaw.cause for flaw in flaws)):
        return Outcome.WRONG, Cause.WRONG_DATA
    # Unchecked results (`-c 0`) have a finding, and do not count against a group.
    if any(flaw.outcome is Outcome.MISSING and flaw.metric != WRONG.name for flaw in flaws):
        return _failure(execution, check)
    return Outcome.OK, None


# Message sizes


@lru_cache(maxsize=64)
def message_sizes(low: str, high: str, factor: int) -> tuple[int, ...]:
    """Return the sizes in bytes that nccl-tests measures, smallest first."""
    sizes, highest = [parse_size(low)], parse_size(high)
    while sizes[-1] * factor <= highest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def planned_sizes(step: Step) -> tuple[int, ...]:
    """Return the sizes that a step measures; empty if its parameters do not define them."""
    try:
        low, high = str(step.params["min"]), str(step.params["max"])
        factor = int(step.params["factor"])
        return message_sizes(low, high, factor) if factor > 1 else ()
    except (KeyError, ValueError, TypeError):
        return ()


def nominal(size: int, step: Step) -> int:
    """Return the planned size of a measured one.

    Programs round a size down to whole elements on every rank, by less than half.
    """
    for planned in planned_sizes(step):
        if planned >= size:
            return planned if 2 * size > planned else size
    return size
