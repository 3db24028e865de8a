"""Define the checks that run a collective of nccl-tests: five for bandwidth, and `latency`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, TypeVar

from accept.core import facts, nccl_tests, record_protocol
from accept.core.catalog.metrics import BUSBW, TIME, TIME_LONGEST, TIME_P99, WRONG
from accept.core.catalog.tools import MPIRUN, NCCL_TESTS, TORCH
from accept.core.checks.check import Check, CheckParams, call_seconds, nccl_seconds
from accept.core.judge import collective
from accept.core.judge.effects.executions import Flow
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import params_of
from accept.core.plan import GroupKind, ParamValue, Step
from accept.core.records import Parsed
from accept.core.serde import Bounds, Doc, Pattern, dump, param, read
from accept.core.table import BANDWIDTH, LATENCY, Table, message_sizes
from accept.core.text import format_size, parse_size, value_range

T = TypeVar("T")

NEEDS = ((MPIRUN,), (NCCL_TESTS, TORCH))
FACTS = (
    facts.NCCL_TESTS,
    facts.NCCL_NETWORKS,
    facts.NCCL_VERSIONS,
    facts.NCCL_DETOURS,
    facts.PROGRAM,
)
#: As `Check.faults`. Ranks that hang, die or are slow are only visible next to ranks that wait for
#: them.
FAULTS = {"wrong": 1, "nan": 1, "hang": 2, "die": 2, "slow": 2, "full-disk": 1}
_MARK = b"ACCEPT {"
#: `sizes` never leads to smaller messages, which have no data for some of many ranks.
_LEAST_BYTES = 1024
#: Records above this number are ignored: the program is out of control.
_MAX_RECORDS = 100_000


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams):
    """Parameters of a collective check, with sizes in the syntax of nccl-tests."""

    min: str = param("1K", "smallest message, such as 1K")
    max: str = param(
        "16M",
        "largest message, min times a power of factor, such as 8G; its bandwidth is judged",
    )
    factor: int = param(2, "ratio of each size to the previous one, at least 2", least=2)
    sizes: int = param(
        0, "number of sizes, counted from the largest; sets min. 0: all from min on", least=0
    )
    iters: int = param(20, "timed repetitions of each size", least=1)
    warmup: int = param(5, "untimed repetitions before these", least=0)
    dtype: Literal["float", "double", "half", "bfloat16", "int32"] = param(
        "float", "type of the elements"
    )
    jitter: bool = param(
        True,
        "also time each repetition, which shows pauses. nccl-tests before 2.19 cannot",
    )

    def __post_init__(self) -> None:
        """Set `min` if `sizes` is given. Raise ValueError, which names the parameter."""
        super().__post_init__()
        if self.sizes:
            object.__setattr__(self, "min", _smallest(self.max, self.factor, self.sizes))
        if parse_size(self.max) < parse_size(self.min):
            raise ValueError(f"max {self.max} is smaller than min {self.min}")

    def check_planned(self) -> None:
        """Raise ValueError if the largest message would not be measured: it is judged."""
        top = parse_size(self.max)
        sizes = message_sizes(self.min, self.max, self.factor)
        if sizes[-1] != top:
            divisor = self.factor ** (len(sizes) - 1)
            other = "" if top % divisor else f"min {format_size(top // divisor)}, or "
            raise ValueError(
                f"sizes from min {self.min} by factor {self.factor} never are max {self.max}: "
                f"give {other}max {format_size(sizes[-1])}"
            )

    def estimate(self, hosts: int, ranks: int) -> float:
        """Return the seconds that one collective takes over all its sizes.

        Messages above 64 MiB are only sent by GPUs, at an assumed 20 GB/s; smaller ones at 0.5
        GB/s. A call takes 50 us, and 5 us more per rank. Both placements are measured.
        """
        calls = 2 * (self.iters + self.warmup)
        sizes = message_sizes(self.min, self.max, self.factor)
        transfer = sum(size / (20e9 if size > 64 << 20 else 0.5e9) for size in sizes)
        return 1.0 + calls * (call_seconds(hosts * ranks) * len(sizes) + transfer)

    def healthy_seconds(self, hosts: int, ranks: int, algbw: float | None) -> float:
        """Return the seconds of one collective at the required bandwidth.

        nccl-tests makes one more call of each size and placement to check the results.
        """
        if algbw is None:
            return self.estimate(hosts, ranks)
        calls = 2 * (self.iters + self.warmup + 1)
        sizes = message_sizes(self.min, self.max, self.factor)
        return nccl_seconds(hosts * ranks) + calls * (
            call_seconds(hosts * ranks) * len(sizes) + sum(sizes) / (algbw * 1e9)
        )

    def measures(self, size: int) -> bool:
        """Return True if messages of this size, in bytes, are measured."""
        return size in message_sizes(self.min, self.max, self.factor)

    @classmethod
    def merged(cls, lower: Mapping[str, T], upper: Mapping[str, T]) -> dict[str, T]:
        """Return parameters by key; a `min` of `upper` also replaces `sizes`, which sets it."""
        kept = {k: v for k, v in lower.items() if not (k == "sizes" and "min" in upper)}
        return {**kept, **upper}


#: A size in the syntax of nccl-tests.
_Size = Annotated[str, Pattern(r"[1-9][0-9]{0,14}[KMGT]?", "a size such as 512K or 8G")]


@dataclass(frozen=True, kw_only=True)
class CollectiveChanges:
    """Parameters of the collectives on all nodes that a user changed after the run was rendered.

    The schema of Helm's values has them with their limits, so the chart refuses others.
    """

    min: Annotated[_Size | None, Doc("Smallest message.")] = None
    max: Annotated[
        _Size | None,
        Doc("Largest message, min times a power of factor; its bandwidth is judged."),
    ] = None
    factor: Annotated[
        Annotated[int, Bounds(min=2, max=1024)] | None, Doc("Ratio of each size to the previous.")
    ] = None
    iters: Annotated[
        Annotated[int, Bounds(min=1, max=100_000)] | None, Doc("Timed repetitions of each size.")
    ] = None
    warmup: Annotated[
        Annotated[int, Bounds(min=0, max=100_000)] | None, Doc("Untimed repetitions before these.")
    ] = None


#: Their names, which are those of parameters.
CHANGEABLE = tuple(item.name for item in fields(CollectiveChanges))


def changed(step: Step, changes: CollectiveChanges, *, hosts: int, ranks: int) -> Step:
    """Return a step with the changes, if it measures collectives on all nodes or on blocks of them.

    Its time limit and estimate grow as its work does. Raises ValueError for impossible sizes.
    """
    given = {name: value for name, value in vars(changes).items() if value is not None}
    if step.checks[0] not in _CHANGED or step.groups not in _ON_ALL or not given:
        return step
    before = read(Params, step.params)
    after = read(Params, Params.merged(step.params, given))
    after.check_planned()
    growth = after.estimate(hosts, ranks) / before.estimate(hosts, ranks)
    return replace(
        step,
        params=read(dict[str, ParamValue], dump(after)),
        timeout=round(step.timeout * max(1.0, growth), 1),
        estimate=step.estimate * growth,
    )


def _smallest(largest: str, factor: int, count: int) -> str:
    """Return the smallest of `count` sizes; fewer if messages would be too small for all ranks."""
    size = parse_size(largest)
    for _ in range(count - 1):
        if size % factor or size // factor < _LEAST_BYTES:
            break
        size //= factor
    return format_size(size)


def parse(lines: Iterable[bytes]) -> Parsed:
    """Parse a log of collectives: each table for its check, and the records.

    If a record reports that the programs never ran, problems of the tables are left out.
    """
    record_lines: list[bytes] = []
    tables = nccl_tests.read(_copied(lines, record_lines))
    if not record_lines:
        return tables
    records = record_protocol.parse(record_lines)
    never_ran = any(problem.cause.row.not_tested for problem in records.problems)
    return Parsed(
        metrics=tables.metrics + records.metrics,
        facts=tables.facts + records.facts,
        problems=records.problems if never_ran else records.problems + tables.problems,
    )


def _copied(blocks: Iterable[bytes], record_lines: list[bytes]) -> Iterator[bytes]:
    """Pass blocks of lines on, and copy lines with a record to `record_lines`."""
    for block in blocks:
        if _MARK in block and len(record_lines) < _MAX_RECORDS:
            record_lines += [line for line in block.split(b"\n") if _MARK in line]
        yield block


def speed_lines(check: str, table: Table) -> Iterator[str]:
    """Yield the bus bandwidths at the largest size; nothing for a rank without a peer."""
    results = table.where(lambda row: row.execution.has_peer).at_top_size()
    if results.values:
        top = max(row.size or 0 for row in results)
        named = format_size(max(row.nominal_size or 0 for row in results))
        yield f"{check}: {value_range(results.values)} GB/s at {named}"
        longest = table.where(lambda row: (row.metric, row.size) == (TIME_LONGEST.name, top))
        if times := [time / 1000 for time in longest.values]:
            yield f"{check}: longest repetition at {named}: {value_range(times)} ms"


def make(
    name: str,
    title: str,
    worth: int,
    *,
    bus_factor: float = 1.0,
    flow: Flow = Flow.RAILS,
) -> Check:
    """Return the check of one collective."""
    return Check(
        name=name,
        summary=f"{title}: bandwidth, and every element of every rank is checked",
        template="collectives.sh.j2",
        bus_factor=bus_factor,
        starts_ranks=True,
        params=Params,
        groups=tuple(GroupKind),
        needs=NEEDS,
        metrics=(BUSBW, TIME, TIME_P99, TIME_LONGEST, WRONG),
        facts=FACTS,
        launch="collectives",
        program="collective",
        changeable=CHANGEABLE,
        loads_gpus=True,
        worth=worth,
        parse=parse,
        log_lines=speed_lines,
        judge=collective.judge,
        measure=BANDWIDTH,
        flow=flow,
        faults=FAULTS,
    )


# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
ALL_REDUCE = make("all-reduce", "all-reduce", worth=80, bus_factor=2.0)
ALL_GATHER = make("all-gather", "all-gather", worth=45)
REDUCE_SCATTER = make("reduce-scatter", "reduce-scatter", worth=44)
ALLTOALL = make("alltoall", "all-to-all", worth=43, flow=Flow.EVERY)
SENDRECV = make("sendrecv", "send to the next rank", worth=42, flow=Flow.RING)


#: The checks and groups of the steps that `CollectiveChanges` apply to.
_CHANGED = tuple(
    check.name for check in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALLTOALL, SENDRECV)
)
_ON_ALL = (GroupKind.ALL, GroupKind.BLOCKS)


@dataclass(frozen=True, kw_only=True)
class LatencyParams(Params):
    """Parameters of `latency`, with sizes in the syntax of nccl-tests."""

    min: str = param("8", "smallest message")
    max: str = param("1M", "largest message")
    iters: int = param(100, "timed repetitions of each size", least=1)
    warmup: int = param(20, "untimed repetitions before these", least=0)
    jitter: bool = param(False, "also time each repetition, which takes longer than the smallest")
    noise: float = param(
        0.1, "noise floor when groups are compared, as a share of the median", least=0, below=1
    )


def parse_latency(lines: Iterable[bytes]) -> Parsed:
    """Parse a log of all-reduces for `latency`: the times, and the counts of wrong elements."""
    parsed = parse(lines)
    names = {spec.name for spec in LATENCY_CHECK.metrics}
    metrics = (metric for metric in parsed.metrics if metric.name in names)
    return Parsed(
        metrics=tuple(replace(metric, check="latency") for metric in metrics),
        facts=tuple(replace(f, check="latency") if f.check else f for f in parsed.facts),
        problems=tuple(replace(p, check="latency") if p.check else p for p in parsed.problems),
    )


def judge_latency(evidence: Evidence) -> Judged:
    """Pass if all results are correct, times are within bounds, and no group is an outlier.

    Without a speed target only the results count.
    """
    return collective.judge(evidence, LATENCY, params_of(evidence, LatencyParams).noise)


def latency_lines(check: str, table: Table) -> Iterator[str]:
    """Yield the median times of a call."""
    if times := table.at_top_size(LATENCY).values:
        yield f"{check}: {value_range(times)} us"


LATENCY_CHECK = Check(
    name="latency",
    summary="all-reduce from 8 B to 1 MB: time per call, and every element is checked",
    template="collectives.sh.j2",
    runs="all_reduce",
    program="collective",
    changeable=CHANGEABLE,
    params=LatencyParams,
    groups=(GroupKind.ALL, GroupKind.EACH, GroupKind.PAIRS),
    needs=NEEDS,
    metrics=(TIME, WRONG),
    facts=FACTS,
    worth=40,
    parse=parse_latency,
    log_lines=latency_lines,
    loads_gpus=True,
    judge=judge_latency,
    faults={fault: ranks for fault, ranks in FAULTS.items() if fault != "slow"},
)

CHECKS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALLTOALL, SENDRECV, LATENCY_CHECK)
