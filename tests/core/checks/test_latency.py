"""Latency of small messages: read from the log, compared with bounds and among groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from benchmarks.nccl_text import table_text
from tests.factories import verdicts
from tests.factories.judging import Cases, by_outcome, gpu_inventory, judged, outcome

from accept.core.checks import REGISTRY, parse_log
from accept.core.plan import BoundKind, PlannedMachine, Reference
from accept.core.records import Fact, Metric, Placement, Record
from accept.core.table import LATENCY, table_of
from accept.core.verdict import CheckVerdict, Verdict

SIZES = (8, 16, 32)
PARAMS = {"min": "8", "max": "32", "factor": 2, "iters": 100, "warmup": 20, "noise": 0.1}
STEP = verdicts.step("latency", "each", params=PARAMS, number=20)
UPPER = Reference(
    check="latency",
    metric="time",
    unit="us",
    kind=BoundKind.MEASURED,
    source="somebody",
    value=13.0,
    upper=40.0,
    size=8,
)
#: Times in us of 8 H100 in one node: https://github.com/NVIDIA/dgxc-benchmarking, nccl/README.md.
TIMES = {8: (13.67, 13.03), 16: (13.00, 13.07), 32: (68.14, 13.52)}


def log() -> bytes:
    """Return a log of nccl-tests with small messages."""
    rest = "   0.00    0.00      0"

    def row(_: str, __: int, size: int, **more: object) -> str:
        out, into = TIMES[size]
        cells = f"{out:8.2f}{rest} {into:8.2f}{rest}"
        return f"{size:12d}{size // 4:14d}     float     sum      -1 {cells}"

    return table_text(ranks=8, least=8, most=32, hosts=("h0",), row=row).encode()


def times(microseconds: float, *, wrong: float = 0) -> tuple[Metric, ...]:
    """Return a table in which one size is an outlier, as on healthy machines."""
    found = [
        Metric(
            check="latency",
            name="time",
            value=microseconds * (5 if size == 16 else 1),
            unit="us",
            size=size,
            placement=placement,
        )
        for size in SIZES
        for placement in Placement
    ]
    right = [
        Metric(check="latency", name="wrong", value=wrong, unit="elements", placement=placement)
        for placement in Placement
    ]
    return (*found, *right)


def latency(
    took: Sequence[float],
    *facts: Fact,
    machine: PlannedMachine = verdicts.GPU,
    bound: Reference | None = UPPER,
    wrong: float = 0,
) -> Verdict:
    """Judge hosts that took this many us; the first one has wrong elements."""
    names = verdicts.hosts(len(took))
    inventory, listed = gpu_inventory(len(took))
    made = [
        verdicts.record(STEP, (name,), *times(us, wrong=0 if n else wrong), number=n, facts=facts)
        for n, (name, us) in enumerate(zip(names, took, strict=True))
    ]
    planned = verdicts.plan(
        inventory, STEP, machine=machine, references=() if bound is None else (bound,)
    )
    return judged(planned, verdicts.hosts_record(names), *listed, *made)


def of_check(verdict: Verdict) -> CheckVerdict:
    return next(one for one in verdict.checks if one.check == "latency")


def one_of_six(share: float) -> Verdict:
    return latency([13, 13.2, 12.9, 13 * share, 13.1, 13])


PROGRAM = Fact(name="program", value="collective.py")
EXPECTED = replace(UPPER, kind=BoundKind.EXPECTATION)
CASES: Cases = {
    "pass": {
        "within the bound": lambda: latency([13, 13, 13.5, 13]),
        "a fast host": lambda: one_of_six(0.95),
        "a host that is a little slower": lambda: one_of_six(1.2),
        "no speed target": lambda: latency([13, 13, 13, 39], machine=verdicts.CPU),
    },
    "fail: below-reference": {
        "equally slow hosts": lambda: latency([50] * 4),
        "an expectation of another program": lambda: latency([50] * 4, PROGRAM, bound=EXPECTED),
    },
    "inconclusive: no-reference": {
        "no bound": lambda: latency([13] * 4, bound=None),
        "the bound of nccl-tests for another program": lambda: latency([50] * 4, PROGRAM),
    },
    "fail: wrong-data": {"wrong data": lambda: latency([13], wrong=2)},
    "degraded: slow-outlier, node h3 slow-outlier": {"a slow host": lambda: one_of_six(2.3)},
}


@by_outcome(CASES)
def test_times_are_compared_with_a_bound_and_with_peers(
    expected: str, case: Callable[[], Verdict]
) -> None:
    assert outcome(case()) == expected


def test_the_verdict_shows_the_slowest_time_and_its_bound() -> None:
    shown = of_check(latency([13, 13, 13.5, 13]))
    assert shown.measured == "13.5 us up to 32 (slowest of 4 each)"
    assert "time <= 40 us, measured: somebody" in shown.required
    (bad,) = (f for f in of_check(latency([50] * 4)).findings if f.judgement == "absolute")
    assert (bad.metric, bad.size, bad.value, bad.bound and bad.bound.upper) == ("time", 8, 50, 40)
    (unbounded,) = (f for f in of_check(latency([13] * 4, bound=None)).findings if f.cause)
    assert "--expect 'latency@8<=13'" in unbounded.message


def test_a_log_of_all_reduces_is_read_as_times_and_one_outlying_size_does_not_count() -> None:
    parsed = parse_log(("latency",), log().splitlines(keepends=True), ("h0",))
    assert parsed.problems == ()
    named = {(m.check, m.name) for m in parsed.metrics}
    assert named == {("latency", "time"), ("latency", "wrong")}
    made = Record(
        step=STEP.id, checks=("latency",), wave=0, group=0, hosts=("h0",), metrics=parsed.metrics
    )
    (row,) = table_of((STEP,), [made]).at_top_size(LATENCY)
    assert row.value == pytest.approx(13.67)
    assert REGISTRY["latency"].runs == "all_reduce"
