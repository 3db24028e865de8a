"""Define the checks that run a collective of nccl-tests: six by bandwidth, and `latency`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from accept.core.causes import NOT_TESTED
from accept.core.checks.check import Check, param
from accept.core.judge import collective
from accept.core.judge.collective_metrics import LATENCY, message_sizes, read
from accept.core.judge.evidence import Evidence, Judged, Score
from accept.core.judge.summary import params_of
from accept.core.model import Parsed, Record, Step
from accept.core.text import parse_size

#: A rank that waits or dies is told from those that it lets wait.
FAULTS = {"wrong": 1, "nan": 1, "hang": 2, "die": 2, "slow": 2, "full-disk": 1}
_MARK = b"ACCEPT {"
_PIECE = 1 << 20
#: A log with more records than this has run wild; the rest is left out.
_MOST_RECORDS = 100_000


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of a collective check; sizes as nccl-tests writes them."""

    min: str = param("1K", "smallest message, such as 1K")
    max: str = param("16M", "largest message, such as 8G; the one that is judged for speed")
    factor: int = param(2, "each size is the one before times this, at least 2")
    iters: int = param(20, "timed repetitions of each size")
    warmup: int = param(5, "repetitions before the timed ones")
    dtype: Literal["float", "double", "half", "bfloat16", "int32"] = param(
        "float", "type of the elements"
    )

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for what cannot be run."""
        if parse_size(self.max) < parse_size(self.min):
            raise ValueError(f"max {self.max} is smaller than min {self.min}")
        if self.factor < 2:
            raise ValueError(f"factor must be at least 2, not {self.factor}")
        if self.iters < 1 or self.warmup < 0:
            raise ValueError("iters must be at least 1 and warmup at least 0")


def estimate(params: Params, hosts: int, ranks_per_host: int) -> float:
    """Seconds that one collective takes over all its sizes.

    Messages above 64 MiB are only sent where GPUs are and taken to run at 20 GB/s, smaller ones at
    0.5 GB/s; a call takes 50 us and 5 us more for each rank. Both placements are measured.
    """
    calls = 2 * (params.iters + params.warmup)
    sizes = message_sizes(params.min, params.max, params.factor)
    latency = 50e-6 + 5e-6 * hosts * ranks_per_host
    moved = sum(size / (20e9 if size > 64 << 20 else 0.5e9) for size in sizes)
    return 1.0 + calls * (latency * len(sizes) + moved)


def parse(lines: Iterable[bytes]) -> Parsed:
    """What a log of collectives says: each table by the check it belongs to, and the records.

    Where a record says that the programs never ran, the missing tables are no news.
    """
    # Readers of logs are of no use to those who only plan.
    from accept.core import nccl_tests, record_protocol

    said: list[bytes] = []
    tables = nccl_tests.read(_pieces(lines, said))
    if not said:
        return tables
    records = record_protocol.parse(said)
    idle = any(problem.cause in NOT_TESTED for problem in records.problems)
    return Parsed(
        metrics=tables.metrics + records.metrics,
        facts=tables.facts + records.facts,
        problems=records.problems if idle else records.problems + tables.problems,
    )


def _pieces(lines: Iterable[bytes], said: list[bytes]) -> Iterator[bytes]:
    """Join lines to pieces of about 1 MiB, and copy to `said` those that hold a record."""
    for piece in _joined(lines):
        if _MARK in piece and len(said) < _MOST_RECORDS:
            said += [line for line in piece.split(b"\n") if _MARK in line]
        yield piece


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def score_of(check: str) -> Score:
    """The `Check.score` of a collective: bus bandwidth in GB/s at the planned largest size."""

    def score(record: Record, step: Step) -> tuple[float | None, str]:
        return collective.score(read(record.metrics, check), step)

    return score


def make(name: str, what: str, worth: int) -> Check:
    """The check of one collective."""
    return Check(
        name=name,
        summary=f"{what}: bandwidth, and every element of every rank is right",
        template="collectives.sh.j2",
        params=Params,
        groups=("all", "each", "pairs", "rails", "ladder", "halves"),
        needs=("mpirun", "nccl-tests-or-torch"),
        launch="collectives",
        worth=worth,
        estimate=estimate,
        parse=parse,
        judge=collective.judge,
        score=score_of(name),
        faults=FAULTS,
    )


ALL_REDUCE = make("all-reduce", "all-reduce", worth=80)


ALL_GATHER = make("all-gather", "all-gather", worth=45)


REDUCE_SCATTER = make("reduce-scatter", "reduce-scatter", worth=44)


ALLTOALL = make("alltoall", "all-to-all", worth=43)


SENDRECV = make("sendrecv", "send to the next rank", worth=42)


_NAMES = ("time", "wrong")


@dataclass(frozen=True, kw_only=True)
class LatencyParams(Params):
    """Parameters of `latency`; sizes as nccl-tests writes them."""

    min: str = param("8", "smallest message")
    max: str = param("1M", "largest message")
    factor: int = param(2, "each size is the one before times this, at least 2")
    iters: int = param(100, "timed repetitions of each size")
    warmup: int = param(20, "repetitions before the timed ones")
    noise: float = param(0.1, "noise floor when groups are compared, as a share of the median")


def parse_latency(lines: Iterable[bytes]) -> Parsed:
    """What a log of all-reduces says, as this check's own: times, and whether data were right."""
    said = parse(lines)
    return Parsed(
        metrics=tuple(replace(m, check="latency") for m in said.metrics if m.name in _NAMES),
        facts=tuple(replace(f, check="latency") if f.check else f for f in said.facts),
        problems=tuple(replace(p, check="latency") if p.check else p for p in said.problems),
    )


def judge_latency(evidence: Evidence) -> Judged:
    """Times within bounds, and no group an outlier; where no speed is promised, data right."""
    return collective.judge(evidence, LATENCY, params_of(evidence, LatencyParams).noise)


LATENCY_CHECK = Check(
    name="latency",
    summary="all-reduce from 8 B to 1 MB: how long one takes, and every element is right",
    template="collectives.sh.j2",
    runs="all_reduce",
    params=LatencyParams,
    groups=("all", "each", "pairs"),
    needs=("mpirun", "nccl-tests-or-torch"),
    worth=40,
    estimate=estimate,
    parse=parse_latency,
    judge=judge_latency,
    faults={fault: ranks for fault, ranks in FAULTS.items() if fault != "slow"},
)

CHECKS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALLTOALL, SENDRECV, LATENCY_CHECK)
