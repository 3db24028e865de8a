"""The verdict as text: enough to open a ticket, and without control characters or markup."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.factories.judging import ALL, EIGHT, PAIRS, gpu_inventory, gpu_plan, judged
from tests.factories.verdicts import FLOOR, hosts_record, measured, plan, record, slow, step, table

from accept.core.causes import Cause, Judgement
from accept.core.checks import log_lines
from accept.core.judge.summary import tolerated, worst_state
from accept.core.plan import BoundKind, Plan, Skipped
from accept.core.records import Metric, Record
from accept.core.report import text as report_text
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.text import decimal, markdown, plain, visible
from accept.core.verdict import CheckVerdict, Finding, State, Verdict

INVENTORY, LISTED = gpu_inventory()
PLAN = gpu_plan(
    INVENTORY,
    ALL,
    PAIRS,
    references=(replace(FLOOR, lower=350.0),),
    skipped=(Skipped(check="train", reason="torch is not on h0", optional=True),),
)


def run_of(planned: Plan, *records: Record) -> Verdict:
    return judged(planned, hosts_record(EIGHT), *records)


def degraded() -> Verdict:
    """Return the verdict on a run in which h5 halves the speed of its groups."""
    speed = slow("h5", usual=380)
    of_steps = (made for one in (ALL, PAIRS) for made in measured(one, EIGHT, speed))
    return run_of(PLAN, *LISTED, *of_steps)


def passing() -> Verdict:
    return run_of(plan(ALL), *measured(ALL, EIGHT, slow()))


def inconclusive() -> Verdict:
    unmet = replace(FLOOR, kind=BoundKind.EXPECTATION, size=1)
    return run_of(plan(ALL, references=(unmet,)), *measured(ALL, EIGHT, slow()))


def found_by(*findings: Finding) -> str:
    check = CheckVerdict(
        check="all-reduce", state=worst_state(f.state for f in findings), findings=findings
    )
    return report_text.table(replace(passing(), state=check.state, checks=(check,)))


def finding(state: State, cause: Cause, judgement: Judgement = Judgement.COMPLETENESS) -> Finding:
    message = f"because of {cause}"
    return Finding(
        check="all-reduce", judgement=judgement, state=state, cause=cause, message=message
    )


# -- terminal ------------------------------------------------------------------------------------


def test_a_figure_has_its_worst_value_median_bound_and_margin() -> None:
    of = plan(ALL, PAIRS, references=(replace(FLOOR, lower=8.0),))
    slower = measured(PAIRS, EIGHT, slow("h5", factor=0.97))
    verdict = run_of(of, *measured(ALL, EIGHT, slow()), *slower)
    every, pairs = verdict.ranges
    assert (every.nodes, every.values, every.worst) == (8, 1, 10.0)
    assert (pairs.nodes, pairs.values, pairs.worst, pairs.median) == (2, 12, 9.7, 10.0)
    assert "h5" in pairs.worst_at
    assert pairs.margin == pytest.approx(9.7 / 8 - 1)
    assert report_text.shown_ranges(verdict) == [pairs]


def test_the_screen_of_a_failed_run_has_reason_figures_and_action() -> None:
    flat = " ".join(report_text.table(degraded()).split())
    for part in (
        "node h5: slow-outlier [strong]",
        "190 GB/s",
        ">= 350 GB/s (floor)",
        "replace the node",
        "not tested: train (optional)",
    ):
        assert part in flat


def test_a_user_can_accept_a_run_without_its_bad_nodes() -> None:
    bounded = gpu_plan(PAIRS, references=(replace(FLOOR, lower=1.0),))
    verdict = run_of(bounded, *measured(PAIRS, EIGHT, slow("h5")))
    assert (verdict.state, verdict.exit) == (State.DEGRADED, 3)
    assert tolerated(verdict, 0) == verdict
    accepted = tolerated(verdict, 1)
    assert (accepted.accepted, accepted.exit, accepted.state) == (True, 0, State.DEGRADED)
    assert "(--max-bad 1)" in report_text.table(accepted).splitlines()[0]
    drill, failed = replace(verdict, injected=("wrong@h5",)), replace(verdict, state=State.FAIL)
    assert (tolerated(drill, 8), tolerated(failed, 8)) == (drill, failed)


def test_consequences_are_hidden_by_their_cause_unless_it_is_milder() -> None:
    for state, cause in (
        (State.FAIL, Cause.BELOW_REFERENCE),
        (State.INCONCLUSIVE, Cause.NO_REFERENCE),
    ):
        own = finding(state, cause, Judgement.ABSOLUTE)
        shown = found_by(own, finding(State.FAIL, Cause.CRASHED))
        assert f"because of {cause}" in shown
        assert ("because of crashed" in shown) is not (state is State.FAIL)


def test_unchecked_results_are_always_shown() -> None:
    metrics = [m for m in table("all-reduce", 10) if m.name != "wrong"]
    verdict = run_of(plan(ALL, references=(FLOOR,)), record(ALL, EIGHT, *metrics))
    shown = report_text.table(verdict)
    assert "below-reference" in shown
    assert "the results were not checked" in shown


def test_color_is_optional() -> None:
    assert "\x1b[" not in report_text.table(degraded())
    assert "\x1b[1;33m" in report_text.table(degraded(), color=True)


# -- Markdown ------------------------------------------------------------------------------------


def test_the_page_is_self_contained() -> None:
    page = render_markdown(degraded(), PLAN)
    for title in ("## Checks", "## Suspects", "## Findings", "## What to do next", "## Plan"):
        assert title in page
    assert "node h5" in page
    assert "(48% of the peak 400 GB/s: the machine's data sheet)" in page
    assert "h0, h1, h2, h3, h4, h5, h6, h7" in page


def test_the_page_refers_to_each_cause() -> None:
    page = render_markdown(degraded(), PLAN)
    lines = [line for line in page.splitlines() if "accept show cause" in line]
    for cause, line in zip((Cause.BELOW_REFERENCE, Cause.SLOW_OUTLIER), lines, strict=True):
        assert f"docs/causes.md#{cause}" in line
        assert f"owner: {cause.row.owner}" in line


def test_every_row_of_a_table_has_as_many_cells_as_its_header() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", render_markdown(degraded(), PLAN), re.MULTILINE)
    assert len(tables) > 3
    for rows in tables:
        assert len({row.replace("\\|", "").count("|") for row in rows.splitlines()}) == 1, rows


# -- JUnit ---------------------------------------------------------------------------------------


def cases(verdict: Verdict) -> dict[str, set[str]]:
    root = ElementTree.fromstring(junit(verdict))
    return {
        case.get("name", ""): {child.tag for child in case} - {"system-out"}
        for case in root.iter("testcase")
    }


def test_each_state_has_its_own_junit_outcome() -> None:
    assert cases(degraded()) == {
        "verdict": {"failure"},
        "hosts": set(),
        "inventory": set(),
        "all-reduce": {"failure"},
        "train": {"skipped"},
    }
    assert cases(inconclusive())["all-reduce"] == {"error"}
    suite = ElementTree.fromstring(junit(degraded())).find("testsuite")
    assert suite is not None
    counts = [suite.get(key) for key in ("tests", "failures", "errors", "skipped")]
    assert counts == ["5", "2", "0", "1"]


def test_a_node_has_a_case_in_each_of_its_checks() -> None:
    records = [replace(made, start=1e9, end=1e9 + 7) for made in measured(PAIRS, EIGHT, slow("h5"))]
    verdict = run_of(gpu_plan(PAIRS), *records)
    suite = ElementTree.fromstring(junit(verdict, records)).find("testsuite")
    assert suite is not None
    own = {c.get("name"): c for c in suite if c.get("classname") == "accept.all-reduce"}
    assert [name for name, case in own.items() if case.find("failure") is not None] == ["h5"]
    assert len(own) == 8
    assert own["h0"].get("time") == "21.000"
    assert own["h0"].get("timestamp") == suite.get("timestamp") == "2001-09-09T01:46:40+00:00"


def test_a_node_that_a_failed_check_does_not_name_is_skipped() -> None:
    records = measured(ALL, EIGHT, slow("h5", usual=380))
    verdict = run_of(PLAN, *records)
    suite = ElementTree.fromstring(junit(verdict, records))
    own = [c for c in suite.iter("testcase") if c.get("classname") == "accept.all-reduce"]
    assert {child.tag for case in own for child in case} <= {"skipped", "failure"}
    assert all(len(case) for case in own)


# -- untrusted text: tests/promises/test_hostile_text.py, and `screen` of tests/fuzz -------------


def test_long_text_is_cut() -> None:
    assert len(plain("x" * 10_000, 100)) == 100
    assert plain("x" * 10_000, 100).endswith("…")


@given(st.text())
def test_escaped_text_has_no_bare_markup(text: str) -> None:
    escaped = markdown(text)
    assert "<" not in escaped.replace("@<!-- -->", "")
    assert not re.search(r"(?<!\\)(?:\\\\)*[|\]`*]", escaped)


# -- the log of a run ----------------------------------------------------------------------------


def test_a_step_is_summarized_in_one_line_per_check() -> None:
    assert log_lines(PAIRS, measured(PAIRS, EIGHT, slow("h5"))) == [
        "all-reduce: 5 to 10 GB/s at 4M"
    ]
    uneven = [replace(one, size=one.size - 64) for one in table("all-reduce", 5) if one.size]
    assert log_lines(ALL, [record(ALL, EIGHT, *uneven)]) == ["all-reduce: 5 GB/s at 4M"]
    train = step("train")
    speed = Metric(check="train", name="throughput", value=12345.6, unit="samples/s")
    assert log_lines(train, [record(train, EIGHT, speed)]) == ["train: throughput 12346 samples/s"]
    assert log_lines(ALL, [record(ALL, EIGHT, *table("all-gather", 1)[:0])]) == []


def test_log_lines_accept_any_metric() -> None:
    odd = Metric(check="connectivity", name="ping", value=float("inf"), unit="\n")
    connectivity = step("connectivity")
    assert log_lines(connectivity, [record(connectivity, EIGHT, odd)]) == [
        "connectivity: ping inf us"
    ]


def test_shown_lines_cannot_control_a_terminal() -> None:
    text = "a\x1b]0;title\x07  b\x1b[2J\x1b[31mpass\x1b[0m\tc\u202e\r\n  d…"
    assert visible(text) == "a  bpass c\n  d…"


@given(st.text() | st.integers().map(str))
@example("")
@example("²")
@example("٣")
@example(" 1")
@example("+1")
@example("1_0")
@example("1\n")
@example("9" * 5000)
def test_a_number_is_decimal_digits_and_not_many(text: str) -> None:
    few = re.fullmatch("[0-9]{1,18}", text)
    assert decimal(text) == (int(text) if few else None)
