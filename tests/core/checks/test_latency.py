"""Latency of small messages: read from the log, compared with bounds and among groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from benchmarks.nccl_text import table_text
from tests.factories import verdicts

from accept.core.causes import Cause
from accept.core.checks import REGISTRY, parse_log
from accept.core.judge import judge
from accept.core.model import (
    BoundKind,
    Fact,
    Metric,
    Placement,
    Plan,
    Record,
    Reference,
    State,
    Step,
    Verdict,
)
from accept.core.table import LATENCY, table_of

SIZES = (8, 16, 32)
PARAMS = {"min": "8", "max": "32", "factor": 2, "iters": 100, "warmup": 20, "noise": 0.1}
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


def step(groups: str = "each") -> Step:
    return verdicts.step("latency", groups, params=PARAMS, rounds=3 if groups == "pairs" else 1)


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


def each(of: Step, took: Sequence[float], *facts: Fact) -> list[Record]:
    return [
        verdicts.record(of, (f"h{n}",), *times(value), number=n, facts=facts)
        for n, value in enumerate(took)
    ]


def verdict(of: Step, took: Sequence[float], *facts: Fact, **more: object) -> Verdict:
    names = verdicts.hosts(len(took))
    plan: Plan = verdicts.plan(of, machine=verdicts.GPU, nodes=len(took), **more)
    return judge(
        plan,
        [verdicts.hosts_record(names), *each(of, took, *facts)],
        checks=REGISTRY,
        attempt="one",
    )


def state(found: Verdict) -> State:
    return next(one.state for one in found.checks if one.check == "latency")


def test_a_log_of_all_reduces_is_read_as_times_and_one_outlying_size_does_not_count() -> None:
    parsed = parse_log(("latency",), log().splitlines(keepends=True), ("h0",))
    assert parsed.problems == ()
    named = {(m.check, m.name) for m in parsed.metrics}
    assert named == {("latency", "time"), ("latency", "wrong")}
    of = step()
    made = Record(
        step=of.id, checks=("latency",), wave=0, group=0, hosts=("h0",), metrics=parsed.metrics
    )
    (row,) = table_of((of,), [made]).at_top_size(LATENCY)
    assert row.value == pytest.approx(13.67)
    assert REGISTRY["latency"].runs == "all_reduce"


def test_times_within_a_bound_pass() -> None:
    found = verdict(step(), [13, 13, 13.5, 13], references=(UPPER,))
    assert state(found) is State.PASS
    shown = next(one for one in found.checks if one.check == "latency")
    assert shown.measured == "13.5 us up to 32 (slowest of 4 each)"
    assert "time <= 40 us, measured: somebody" in shown.required


def test_equally_slow_hosts_fail_by_the_bound() -> None:
    found = verdict(step(), [50] * 4, references=(UPPER,))
    (bad,) = [f for one in found.checks for f in one.findings if f.judgement == "absolute"]
    assert (bad.state, bad.cause) == (State.FAIL, "below-reference")
    assert (bad.metric, bad.size, bad.value, bad.bound and bad.bound.upper) == ("time", 8, 50, 40)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [(UPPER, State.INCONCLUSIVE), (replace(UPPER, kind=BoundKind.EXPECTATION), State.FAIL)],
    ids=["of nccl-tests", "expected"],
)
def test_bounds_of_nccl_tests_do_not_apply_to_other_programs(
    bound: Reference, expected: State
) -> None:
    program = Fact(name="program", value="collective.py")
    found = verdict(step(), [50] * 4, program, references=(bound,))
    assert state(found) is expected
    causes = {f.cause for one in found.checks for f in one.findings if f.state is expected}
    own = bound.kind == "expectation"
    assert causes == {Cause.BELOW_REFERENCE if own else Cause.NO_REFERENCE}


@pytest.mark.parametrize("wobble", [0.95, 1.2, 2.3])
def test_one_slow_host_is_named_among_its_peers(wobble: float) -> None:
    found = verdict(step(), [13, 13.2, 12.9, 13 * wobble, 13.1, 13], references=(UPPER,))
    named = [("node", "h3", "slow-outlier")] if wobble > 2 else []
    assert [(s.kind, s.name, s.cause) for s in found.suspects] == named


def test_without_a_bound_or_a_speed_target() -> None:
    found = verdict(step(), [13] * 4)
    assert state(found) is State.INCONCLUSIVE
    (finding,) = [f for one in found.checks for f in one.findings if f.cause]
    assert finding.cause is Cause.NO_REFERENCE
    assert "--expect 'latency@8<=13'" in finding.message
    for of, made, expected in (
        (verdicts.CPU, each(step(), [13, 13, 13, 39]), State.PASS),
        (verdicts.GPU, [verdicts.record(step(), ("h0",), *times(13, wrong=2))], State.FAIL),
    ):
        names = verdicts.hosts(len(made))
        plan = verdicts.plan(step(), machine=of, nodes=len(made), references=(UPPER,))
        found = judge(plan, [verdicts.hosts_record(names), *made], checks=REGISTRY, attempt="one")
        assert state(found) is expected
