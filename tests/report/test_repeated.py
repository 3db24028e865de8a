"""The result of repetitions: the worst verdict counts, and each figure and node has its spread."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.judging import EACH, EIGHT, judged
from tests.factories.verdicts import hosts_record, plan, record, table

from accept.core.judge.summary import tolerated
from accept.core.serde import dump, read
from accept.core.verdict import State
from accept.report.data import Run
from accept.report.html import render_repeated
from accept.report.repeated import Repeated, cv, render_markdown, screen, summarize

PLAN = plan(EACH)


def run(attempt: str, factor: float = 1.0, *, wrong: str = "") -> Run:
    """Return a run in which h3 reaches this share of its usual speed, and a host is wrong."""
    records = [hosts_record(EIGHT)]
    for number, host in enumerate(EIGHT):
        speed = 10 * (factor if host == "h3" else 1.0)
        metrics = table("all-reduce", speed, wrong=int(host == wrong))
        records.append(record(EACH, [host], *metrics, number=number))
    verdict = replace(judged(PLAN, *records), attempt=attempt)
    return Run(plan=PLAN, verdict=verdict, records=tuple(records))


def test_the_spread_is_that_of_each_node_over_the_repetitions() -> None:
    result = summarize([run("r-1"), run("r-2", 0.98), run("r-3", 1.02)], name="r", times=3)
    (figure,) = result.figures
    assert figure.spread == 0.0
    worst = figure.hosts[0]
    assert (worst.host, len(worst.values)) == ("h3", 3)
    assert worst.spread is not None
    assert isclose(worst.spread, 0.02, rel_tol=1e-6)
    assert {node.spread for node in figure.hosts[1:]} == {0.0}


def test_the_worst_repetition_decides() -> None:
    runs = [run("r-1"), run("r-2", wrong="h5"), run("r-3")]
    result = summarize(runs, name="r", times=3)
    worst = runs[1].verdict
    assert worst.exit == 3
    assert (result.state, result.exit, result.accepted) == (worst.state, 3, False)
    assert "h5" in result.bad
    assert set(result.good) == ({*EIGHT} - {"h5"} if worst.state is State.DEGRADED else set())


def test_bad_nodes_of_all_repetitions_count() -> None:
    runs = [
        replace(one, verdict=tolerated(one.verdict, 1))
        for one in (run("r-1", wrong="h5"), run("r-2", wrong="h6"))
    ]
    assert {one.verdict.exit for one in runs} == {0}
    result = summarize(runs, name="r", times=2)
    assert (result.bad, len(result.good)) == (("h5", "h6"), 6)
    assert (result.exit, result.accepted) == (3, False)
    assert "6 OF 8 NODES GOOD" in result.answer


def test_missing_repetitions_are_never_accepted() -> None:
    result = summarize([run("r-1")], name="r", times=2, interruption="no host answered", code=4)
    assert (result.state, result.exit, result.accepted) == (State.NOT_TESTED, 4, False)
    assert result.good == ()


def test_all_forms_show_runs_figures_and_nodes() -> None:
    result = summarize([run("r-1"), run("r-2", 0.9)], name="r", times=2)
    assert read(Repeated, json.loads(json.dumps(dump(result)))) == result
    shown = screen(result, "/runs/r/report.html")
    assert shown.splitlines()[-1].startswith("VERDICT pass good=8 bad=none")
    assert len(shown.splitlines()) <= 30
    for text in (shown, render_markdown(result), render_repeated(result)):
        for expected in ("r-1", "r-2", "all-reduce", "h3", "7.4%"):
            assert expected in text


def test_hostile_names_are_inert() -> None:
    hostile = "<script>alert(1)</script>|\x1b[2J"
    result = replace(summarize([run("r-1"), run("r-2")], name="r", times=2), bad=(hostile,))
    assert "<script>alert" not in render_repeated(result) + render_markdown(result)
    assert "\x1b" not in screen(result, "")


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e12)), max_size=6))
def test_a_spread_is_never_negative(values: list[float | None]) -> None:
    spread = cv(values)
    assert spread is None or spread >= 0
    assert spread is None or len([v for v in values if v is not None]) >= 2


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_a_single_value_has_no_spread(value: float) -> None:
    assert cv([value, None]) is None
