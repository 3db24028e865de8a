"""Latency: how long an all-reduce of few bytes takes, which bandwidth at large sizes hides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from accept.core.checks import Check, collectives, param
from accept.core.judge import collective
from accept.core.judge.collective_metrics import LATENCY
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.states import params_of
from accept.core.model import Parsed

_NAMES = ("time", "wrong")


@dataclass(frozen=True, kw_only=True)
class LatencyParams(collectives.Params):
    """Parameters of `latency`; sizes as nccl-tests writes them."""

    min: str = param("8", "smallest message")
    max: str = param("1M", "largest message")
    factor: int = param(2, "each size is the one before times this, at least 2")
    iters: int = param(100, "timed repetitions of each size")
    warmup: int = param(20, "repetitions before the timed ones")
    noise: float = param(0.1, "noise floor when groups are compared, as a share of the median")


def parse_latency(lines: Iterable[bytes]) -> Parsed:
    """What a log of all-reduces says, as this check's own: times, and whether data were right."""
    said = collectives.parse(lines)
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
    estimate=collectives.estimate,
    parse=parse_latency,
    judge=judge_latency,
    faults={fault: ranks for fault, ranks in collectives.FAULTS.items() if fault != "slow"},
)
CHECK = LATENCY_CHECK
