"""Promises of the table of measurements, for records of any content."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.verdicts import step

from accept.core.causes import Cause
from accept.core.records import Metric, Placement, Problem, Record
from accept.core.table import BANDWIDTH, LATENCY, Outcome, figures, planned_sizes, table_of

#: All sizes of this step are measured; its largest is 4 MiB.
STEP = step("all-reduce", "pairs", rounds=2)
TOP = planned_sizes(STEP)[-1]
METRICS = st.builds(
    Metric,
    check=st.sampled_from(["all-reduce", "gemm"]),
    name=st.sampled_from(["busbw", "time", "wrong"]),
    value=st.floats() | st.sampled_from([0.0, 1.0, 300.0, 1e9]),
    unit=st.sampled_from(["GB/s", "us", "count", "?"]),
    size=st.none() | st.sampled_from([0, 1, *planned_sizes(STEP), 2 * TOP]),
    rank=st.none() | st.integers(0, 3),
    placement=st.none() | st.sampled_from(Placement),
)
#: Every planned size, checked.
COMPLETE = (
    *(
        Metric(check="all-reduce", name="busbw", value=300.0, unit="GB/s", size=size)
        for size in planned_sizes(STEP)
    ),
    Metric(check="all-reduce", name="wrong", value=0.0, unit="count"),
)
FULL = Record(
    step=STEP.id,
    checks=("all-reduce",),
    wave=0,
    group=0,
    hosts=("h0", "h1"),
    exit=0,
    metrics=COMPLETE,
)
RECORDS = st.builds(
    Record,
    step=st.sampled_from([STEP.id, "99-unknown"]),
    checks=st.just(("all-reduce", "gemm")),
    wave=st.integers(0, 3),
    group=st.just(0),
    hosts=st.sampled_from([(), ("h0",), ("h0", "h1"), ("h2", "h3"), ("h0", "h0")]),
    exit=st.sampled_from([0, 1, None]),
    metrics=st.builds(
        operator.add, st.sampled_from([(), COMPLETE]), st.lists(METRICS, max_size=6).map(tuple)
    ),
    problems=st.lists(
        st.builds(Problem, cause=st.sampled_from(Cause), message=st.just(""), host=st.just("h0")),
        max_size=2,
    ).map(tuple),
)


@given(st.lists(RECORDS, max_size=4), st.sampled_from([BANDWIDTH, LATENCY]))
def test_every_execution_of_a_check_has_one_result_with_a_reason_or_a_valid_value(
    records: list[Record], measure: object
) -> None:
    chosen = LATENCY if measure is LATENCY else BANDWIDTH
    results = table_of((STEP,), records).at_top_size(chosen)
    known = [record for record in records if record.step == STEP.id]
    assert len(results) == 2 * len(known)
    for row in results:
        assert (row.cause is None) is (row.outcome is Outcome.OK)
        if row.outcome is Outcome.OK:
            assert row.value is not None
            assert math.isfinite(row.value)
            assert not any(problem.cause is Cause.WRONG_DATA for problem in row.flaws)


@given(st.lists(RECORDS, max_size=4), st.integers())
def test_the_order_of_records_changes_no_result(records: list[Record], seed: int) -> None:
    def rows(own: list[Record]) -> list[str]:
        found = (*table_of((STEP,), own).at_top_size(), *figures((STEP,), own))
        return sorted(str((r.hosts, r.value, r.outcome, r.cause, r.execution.alone)) for r in found)

    shuffled = Random(seed).sample(records, len(records))
    assert rows(shuffled) == rows(records)


@given(METRICS)
def test_another_metric_never_turns_a_failed_execution_into_a_valid_one(metric: Metric) -> None:
    wrong = Metric(check="all-reduce", name="wrong", value=2.0, unit="count")
    bad = replace(FULL, metrics=(*FULL.metrics, wrong, metric))
    for row in table_of((STEP,), [bad]).at_top_size():
        assert row.outcome is Outcome.WRONG


def test_without_its_largest_message_an_execution_failed() -> None:
    (row,) = table_of((STEP,), [replace(FULL, metrics=FULL.metrics[:1])]).at_top_size()
    assert row.outcome is Outcome.FAILED
    assert {flaw.cause for flaw in row.flaws} == {Cause.NO_MEASUREMENT, Cause.TOP_SIZE_MISSING}


def test_waves_after_the_planned_rounds_are_repetitions() -> None:
    pairs = [
        replace(FULL, wave=wave, hosts=hosts)
        for wave in range(3)
        for hosts in (("h0", "h1"), ("h2", "h3"))[: 1 if wave == 2 else 2]
    ]
    rows = table_of((STEP,), pairs).at_top_size()
    assert [row.execution.repeated for row in rows] == [False] * 4 + [True]
    assert [row.execution.alone for row in rows] == [False] * 4 + [True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e9])
def test_a_damaged_number_is_a_flaw_and_never_the_result(value: float) -> None:
    top = Metric(check="all-reduce", name="busbw", value=value, unit="GB/s", size=2 * TOP)
    (row,) = table_of((STEP,), [replace(FULL, metrics=(*COMPLETE, top))]).at_top_size()
    assert (row.value, row.size) == (300.0, TOP)
    assert [flaw.cause for flaw in row.flaws] == [Cause.NOT_FINITE]
