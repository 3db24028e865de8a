"""From records to a verdict: state, cause, host and exit code."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.verdicts import (
    COLLECTIVE,
    CPU,
    FLOOR,
    GPU,
    TOP,
    executed,
    found,
    gpus,
    hosts,
    inventory_of,
    measured,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.core.causes import CAUSES
from accept.core.checks import REGISTRY
from accept.core.groups import Group
from accept.core.judge import judge
from accept.core.judge.hosts import is_device
from accept.core.judge.remeasure import waves_again
from accept.core.model import (
    CheckVerdict,
    Fact,
    Metric,
    Plan,
    PlannedMachine,
    Problem,
    Record,
    Reference,
    Skipped,
    State,
    Step,
    Verdict,
)
from accept.core.serde import dump, from_json

EIGHT = hosts(8)
ALL = step("all-reduce", "all", number=20)
EACH = step("all-reduce", "each", number=25)
PAIRS = step("all-reduce", "pairs", rounds=3, number=30)


def judged(planned: Plan, *records: Record, broken_off: str = "") -> Verdict:
    return judge(planned, records, checks=REGISTRY, attempt="a-1", broken_off=broken_off)


def blamed(verdict: Verdict) -> set[tuple[str, str, str]]:
    return {(suspect.kind, suspect.name, suspect.cause) for suspect in verdict.suspects}


def causes(verdict: Verdict) -> set[str]:
    return {f.cause for c in verdict.checks for f in c.findings if f.cause and f.state != "pass"}


def healthy(*steps: Step) -> list[Record]:
    return [
        found(EIGHT),
        *(made for of in steps for made in measured(of, EIGHT, slow())),
    ]


# -- accepted ------------------------------------------------------------------------------------


def test_a_healthy_run_without_gpus_passes_and_says_that_no_gpu_was_tested() -> None:
    verdict = judged(plan(ALL, PAIRS), *healthy(ALL, PAIRS))
    assert (verdict.state, verdict.exit, verdict.accepted) == (State.PASS, 0, True)
    assert verdict.headline == "pass (no GPU tested)"
    assert verdict.suspects == ()
    assert "no speed promised" in verdict.checks[1].against


def test_a_drill_is_never_accepted() -> None:
    drill = plan(ALL, planted=("slow@h1:0",))
    verdict = judged(drill, *healthy(ALL))
    assert verdict.headline.startswith("drill: pass")
    assert not verdict.accepted
    assert verdict.exit != 0


def test_one_host_alone_has_no_pairs_and_passes() -> None:
    verdict = judged(plan(ALL, PAIRS), found(["h0"]), *measured(ALL, ["h0"], slow()))
    assert verdict.state is State.PASS


def test_a_check_of_pairs_alone_is_not_held_against_a_single_host() -> None:
    pairs = step("sendrecv", "pairs", number=40)
    verdict = judged(plan(ALL, pairs), found(["h0"]), *measured(ALL, ["h0"], slow()))
    check = verdict.checks[2]
    assert (check.state, check.optional) == (State.NOT_TESTED, True)
    assert verdict.state is State.PASS


def test_where_every_check_was_excused_nothing_was_tested() -> None:
    assert judged(plan(PAIRS), found(["h0"])).state is State.NOT_TESTED


# -- completeness --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cause",
    [
        "unreachable-dns",
        "unreachable-refused",
        "unreachable-timeout",
        "key-refused",
        "host-key-mismatch",
    ],
)
def test_a_host_that_never_answered_is_named_with_its_reason(cause: str) -> None:
    gone = Problem(cause=cause, message="h7: no", check="hosts", host="h7")
    verdict = judged(plan(ALL), found(EIGHT[:7], gone), *measured(ALL, EIGHT[:7], slow()))
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)
    assert verdict.missing == ("h7",)
    assert blamed(verdict) == {("node", "h7", cause)}
    assert verdict.headline == f"fail: h7 {cause} (strong)"


def test_most_hosts_missing_are_all_named() -> None:
    gone = [Problem(cause="unreachable-dns", message="", host=host) for host in EIGHT[1:]]
    verdict = judged(plan(ALL), found(EIGHT[:1], *gone), *measured(ALL, EIGHT[:1], slow()))
    assert {name for _, name, _ in blamed(verdict)} == set(EIGHT[1:])


def test_fewer_hosts_than_nodes_planned_fail_though_nobody_says_which() -> None:
    verdict = judged(plan(ALL, nodes=9), *healthy(ALL))
    assert verdict.state is State.FAIL


def test_a_host_that_died_is_named_and_not_those_that_waited_for_it() -> None:
    died = (
        Problem(cause="host-died", message="h3 does not answer", check="hosts", host="h3"),
        Problem(cause="rank-hung", message="rank 2 waits", host="h1", rank=2),
        Problem(cause="crashed", message="connection lost", host="h0"),
    )
    rest = tuple(host for host in EIGHT if host != "h3")
    later = step("all-gather", number=40)
    verdict = judged(
        plan(ALL, later),
        found(EIGHT),
        record(ALL, EIGHT, status=None, problems=died),
        *measured(later, rest, slow()),
    )
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)
    assert blamed(verdict) == {("node", "h3", "host-died")}
    assert verdict.headline == "fail: h3 host-died (strong)"


def test_a_host_lost_between_pair_rounds_leaves_no_evidence_missing() -> None:
    died = Problem(cause="host-died", message="h3", host="h3")
    records = measured(PAIRS, EIGHT, slow())
    kept = [r for r in records if r.wave == 0 or "h3" not in r.hosts]
    kept = [
        replace(r, exit=None, metrics=(), problems=(died,)) if "h3" in r.hosts else r for r in kept
    ]
    verdict = judged(plan(PAIRS), found(EIGHT), *kept)
    assert blamed(verdict) == {("node", "h3", "host-died")}
    assert "evidence-missing" not in causes(verdict)


def test_a_hung_rank_is_named() -> None:
    hung = Problem(cause="rank-hung", message="rank 10 stopped", host="h5", rank=10)
    late = Problem(cause="timed-out", message="did not end within 60 s")
    verdict = judged(
        plan(ALL), found(EIGHT), record(ALL, EIGHT, status=None, problems=(late, hung))
    )
    assert blamed(verdict) == {("node", "h5", "rank-hung")}
    assert verdict.exit == 3


def test_a_step_without_records_is_not_tested_and_the_run_incomplete() -> None:
    verdict = judged(plan(ALL, PAIRS), *healthy(ALL))
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)
    assert "evidence-missing" in causes(verdict)


@pytest.mark.parametrize("groups", ["pairs", "ladder", "each", "halves"])
def test_one_record_lost_is_noticed(groups: Any) -> None:
    of = step("all-reduce", groups, rounds=3 if groups == "pairs" else 1)
    records = healthy(of)
    verdict = judged(plan(of), *records[:-1])
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)


def test_a_log_that_breaks_off_fails() -> None:
    cut = Problem(cause="incomplete-log", message="no footer", check="all-reduce")
    made = record(ALL, EIGHT, *table("all-reduce", 10), problems=(cut,))
    verdict = judged(plan(ALL), found(EIGHT), made)
    assert verdict.state is State.FAIL
    assert causes(verdict) == {"incomplete-log"}


def test_nothing_measured_is_a_failure_and_never_a_pass() -> None:
    verdict = judged(plan(ALL), found(EIGHT), record(ALL, EIGHT))
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"no-measurement"})


def test_the_largest_size_must_have_been_measured() -> None:
    made = record(ALL, EIGHT, *table("all-reduce", 10, top=TOP // 2))
    verdict = judged(plan(ALL), found(EIGHT), made)
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"top-size-missing"})


def test_a_table_of_fewer_ranks_than_were_started_fails() -> None:
    listed = Fact(name="nccl-tests", check="all-reduce", value={"ranks": 2})
    made = record(ALL, EIGHT, *table("all-reduce", 10), facts=(listed,))
    verdict = judged(plan(ALL), found(EIGHT), made)
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"rank-count"})


@pytest.mark.parametrize(
    ("own", "listed", "said"),
    [
        # As the run calls them, with and without a domain.
        (None, {"h0": 2, "h1": 2}, set()),
        ({}, {"h0.rack": 2, "H1": 2}, set()),
        # By names of their own, known or not.
        ({"h0": "pod-0.svc", "h1": "pod-1.svc", "h2": "pod-2"}, {"pod-0": 2, "pod-1": 2}, set()),
        (None, {"pod-0": 2, "pod-1": 2}, set()),
        ({"h0": "localhost", "h1": "localhost"}, {"localhost": 4}, set()),
        (None, {"localhost": 4}, set()),
        # All on the first, too many on one, another host, more hosts than there are.
        ({}, {"h0": 4}, {"rank-count"}),
        (None, {"h0": 4}, {"rank-count"}),
        (None, {"h0": 3, "h1": 1}, {"rank-count"}),
        (None, {"pod-0": 3, "pod-1": 1}, {"rank-count"}),
        (None, {"h0": 2, "h2": 2}, {"rank-count"}),
        ({}, {"h0": 2, "x9": 2}, {"rank-count"}),
        (None, {"pod-0": 2, "pod-1": 1, "pod-2": 1}, {"rank-count"}),
    ],
)
def test_the_ranks_of_a_table_must_be_on_the_hosts_of_the_execution(
    own: dict[str, str] | None, listed: dict[str, int], said: set[str]
) -> None:
    fact = Fact(name="nccl-tests", check="all-reduce", value={"ranks": 4, "hosts": listed})
    of = step("all-reduce", "halves", number=20)
    names = () if own is None else (Fact(name="hostnames", check="hosts", value=own),)
    half, rest = measured(of, hosts(4), slow())
    assert half.hosts == ("h0", "h1")
    asked = replace(found(hosts(4)), facts=names)
    verdict = judged(plan(of), asked, replace(half, facts=(fact,)), rest)
    assert causes(verdict) == said


def test_a_host_that_lacks_a_gpu_puts_no_blame_on_the_others() -> None:
    """All start as many ranks as it has GPUs."""
    fewer = [replace(one, ranks=1) for one in measured(EACH, EIGHT, slow())]
    verdict = judged(plan(EACH, machine=replace(GPU, gpus=2, ranks=2)), found(EIGHT), *fewer)
    (said,) = (f for c in verdict.checks for f in c.findings if f.cause == "rank-count")
    assert said.hosts == ()
    assert "8 of 8 executions have a wrong" in said.message


@pytest.mark.parametrize("ranks", [0, 1, 15, 17])
def test_other_ranks_than_were_planned_are_no_pass(ranks: int) -> None:
    other = replace(healthy(ALL)[1], ranks=ranks)
    assert causes(judged(plan(ALL), found(EIGHT), other)) == {"rank-count"}


def test_a_size_rounded_down_to_whole_elements_counts_as_asked() -> None:
    metrics = [replace(m, size=TOP - 64) if m.size == TOP else m for m in table("all-reduce", 10)]
    bound = replace(FLOOR, size=TOP, lower=9.0)
    verdict = judged(plan(ALL, references=(bound,)), found(EIGHT), record(ALL, EIGHT, *metrics))
    assert verdict.state is State.PASS
    assert any(f.judgement == "absolute" for f in verdict.checks[1].findings)


def test_a_crash_in_a_shared_launch_is_not_held_against_what_was_measured_before() -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    made = record(both, EIGHT, *table("all-reduce", 10), status=1)
    verdict = judged(plan(both), found(EIGHT), made)
    states = {check.check: check.state for check in verdict.checks}
    assert states["all-reduce"] is State.PASS
    assert states["all-gather"] is State.FAIL


def test_a_rank_that_hung_in_a_later_collective_is_not_held_against_an_earlier_one() -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    hung = Problem(cause="rank-hung", message="rank 3 stopped", host="h1", rank=3)
    made = record(both, EIGHT, *table("all-reduce", 10), status=None, problems=(hung,))
    verdict = judged(plan(both), found(EIGHT), made)
    states = {check.check: check.state for check in verdict.checks}
    assert states["all-reduce"] is State.PASS
    assert states["all-gather"] is State.FAIL
    assert blamed(verdict) == {("node", "h1", "rank-hung")}


@pytest.mark.parametrize("ending", [1, 139, "killed", "timed-out", "rank-hung"])
def test_a_shared_launch_that_failed_after_all_was_measured_fails_its_last_check(
    ending: int | str,
) -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    tables = (*table("all-reduce", 10), *table("all-gather", 10))
    said = (
        () if ending in (1, 139, "killed") else (Problem(cause=str(ending), message="", host="h1"),)
    )
    status = ending if isinstance(ending, int) else None
    made = record(both, EIGHT, *tables, status=status, problems=said)
    verdict = judged(plan(both), found(EIGHT), made)
    states = {check.check: check.state for check in verdict.checks}
    assert (states["all-reduce"], states["all-gather"]) == (State.PASS, State.FAIL)
    assert (verdict.accepted, verdict.exit) == (False, 3)


def test_wrong_data_are_why_a_shared_launch_failed_and_not_its_last_check() -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    tables = (*table("all-reduce", 10, wrong=3), *table("all-gather", 10))
    verdict = judged(plan(both), found(EIGHT), record(both, EIGHT, *tables, status=1))
    assert causes(verdict) == {"wrong-data"}


@pytest.mark.parametrize("wave", [0, 3])
def test_what_is_said_of_a_host_beside_the_checks_is_never_a_pass(wave: int) -> None:
    full = Problem(cause="disk-full", message="h2: no space", host="h2")
    first, *rest = healthy(ALL)
    said = [first, replace(first, wave=3)]
    said[bool(wave)] = replace(said[bool(wave)], problems=(full,))
    verdict = judged(plan(ALL), *said, *rest)
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"disk-full"})
    assert blamed(verdict) == {("node", "h2", "disk-full")}


def test_a_problem_of_a_check_that_nobody_planned_is_never_a_pass() -> None:
    other = Problem(cause="wrong-data", message="bits", check="elsewhere", host="h2")
    made = record(ALL, EIGHT, *table("all-reduce", 10), problems=(other,))
    assert judged(plan(ALL), found(EIGHT), made).exit == 3


def test_what_a_check_excuses_in_its_own_launch_is_no_failure_of_another() -> None:
    """A rank that found wrong data ends its launch: the rest of the cluster passes."""
    ended = Problem(cause="crashed", message="a signal ended a rank")
    made = [
        replace(one, exit=1, problems=(ended,), metrics=table("all-reduce", 10, wrong=3))
        if "h3" in one.hosts
        else one
        for one in measured(PAIRS, EIGHT, slow())
    ]
    verdict = judged(plan(PAIRS), found(EIGHT), *made)
    assert (verdict.state, causes(verdict)) == (State.DEGRADED, {"wrong-data"})
    assert blamed(verdict) == {("node", "h3", "wrong-data")}


def test_many_problems_of_one_cause_beside_the_checks_are_one_finding() -> None:
    full = tuple(Problem(cause="disk-full", message=f"{h}: no space", host=h) for h in EIGHT)
    first, *rest = healthy(ALL)
    verdict = judged(plan(ALL), replace(first, problems=full), *rest)
    (said,) = (f for f in verdict.checks[0].findings if f.cause == "disk-full")
    assert (said.message, said.hosts) == ("h0: no space (and 7 more)", EIGHT)


def test_a_missing_tool_is_not_tested_and_excused_only_where_optional() -> None:
    lacks = Problem(cause="tool-missing", message="no torch on h2", check="train", host="h2")
    for optional, state, exit_code in ((False, State.NOT_TESTED, 6), (True, State.PASS, 0)):
        train = step("train", optional=optional, number=50)
        made = record(train, EIGHT, status=1, problems=(lacks,))
        verdict = judged(plan(ALL, train), *healthy(ALL), made)
        assert (verdict.state, verdict.exit) == (state, exit_code)
        assert verdict.suspects == ()


def test_what_the_budget_left_out_is_not_tested() -> None:
    left = Skipped(check="train", reason="the budget of 60 s left no room")
    verdict = judged(plan(ALL, skipped=(left,)), *healthy(ALL))
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)
    assert "over-budget" in causes(verdict)


def test_an_optional_group_kind_left_out_leaves_one_row_for_its_check() -> None:
    left = Skipped(check="all-reduce", reason="pairs: one node", optional=True)
    verdict = judged(plan(ALL, skipped=(left,)), *healthy(ALL))
    assert verdict.state is State.PASS
    assert [check.check for check in verdict.checks] == ["hosts", "all-reduce"]
    assert any("one node" in f.message for f in verdict.checks[1].findings)


def test_an_optional_check_that_fails_is_no_excuse() -> None:
    of = replace(ALL, optional=True)
    verdict = judged(plan(of), found(EIGHT), record(of, EIGHT, *table("all-reduce", 1, wrong=3)))
    assert verdict.exit == 3


def test_a_run_that_broke_off_exits_with_5() -> None:
    verdict = judged(plan(ALL, PAIRS), *healthy(ALL), broken_off="the run was cancelled")
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 5)
    assert "the run was cancelled" in verdict.headline


def test_an_established_failure_beats_a_run_that_broke_off() -> None:
    bad = record(ALL, EIGHT, *table("all-reduce", 10, wrong=1))
    verdict = judged(plan(ALL, PAIRS), found(EIGHT), bad, broken_off="cancelled")
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)


def test_a_run_that_nothing_says_the_hosts_of_is_incomplete() -> None:
    verdict = judged(plan(ALL), *healthy(ALL)[1:])
    assert (verdict.headline, verdict.exit) == ("not-tested: hosts evidence-missing", 6)


def test_no_evidence_at_all_is_incomplete() -> None:
    verdict = judged(plan(ALL))
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)


# -- correctness ---------------------------------------------------------------------------------


def test_wrong_data_in_the_pairs_of_one_host_name_it() -> None:
    records = [
        replace(r, exit=7, metrics=table("all-reduce", 10, wrong=5)) if "h2" in r.hosts else r
        for r in measured(PAIRS, EIGHT, slow())
    ]
    verdict = judged(plan(PAIRS), found(EIGHT), *records)
    assert blamed(verdict) == {("node", "h2", "wrong-data")}
    assert verdict.state is State.DEGRADED
    assert verdict.exit == 3


def test_wrong_data_whose_source_the_program_names() -> None:
    said = Problem(cause="wrong-data", message="rank 4", check="all-reduce", host="h2", rank=4)
    made = record(ALL, EIGHT, *table("all-reduce", 10, wrong=5), status=7, problems=(said,))
    verdict = judged(plan(ALL), found(EIGHT), made)
    assert blamed(verdict) == {("node", "h2", "wrong-data")}
    assert verdict.state is State.FAIL


def test_wrong_data_of_everybody_accuse_nobody() -> None:
    made = record(ALL, EIGHT, *table("all-reduce", 10, wrong=5), status=7)
    verdict = judged(plan(ALL), found(EIGHT), made)
    assert verdict.suspects == ()
    assert verdict.headline == "fail: all-reduce wrong-data"


def test_data_that_were_not_checked_do_not_pass() -> None:
    metrics = [m for m in table("all-reduce", 10) if m.name != "wrong"]
    verdict = judged(plan(ALL), found(EIGHT), record(ALL, EIGHT, *metrics))
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"no-measurement"})


@pytest.mark.parametrize("check", ["alltoall", "sendrecv"])
def test_in_place_there_is_nothing_to_check_for_some(check: str) -> None:
    of = step(check)
    verdict = judged(plan(of), found(EIGHT), record(of, EIGHT, *table(check, 10)))
    assert verdict.state is State.PASS


# -- absolute ------------------------------------------------------------------------------------


def big(*steps: Step, **more: Any) -> Plan:
    return plan(*steps, machine=GPU, **more)


def seen(count: int = 8) -> tuple[Step, list[Record]]:
    """An inventory of healthy GPU hosts."""
    of = step("inventory", "each", number=10)
    return of, [
        record(of, [h], facts=(inventory_of(h, gpus=gpus(h), pciNvidia=8),), number=i)
        for i, h in enumerate(hosts(count))
    ]


def test_a_fast_gpu_run_passes_against_its_floor() -> None:
    of, listed = seen()
    verdict = judged(
        big(of, ALL, references=(FLOOR,)),
        found(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert verdict.headline == "pass"
    assert verdict.gpu_tested
    held = next(f for f in verdict.checks[2].findings if f.judgement == "absolute")
    assert (held.value, held.bound, held.bound_kind, held.source) == (
        360,
        300,
        "floor",
        FLOOR.source,
    )
    assert held.peak_share == pytest.approx(0.9)


def test_a_uniformly_slow_cluster_fails_and_accuses_nobody() -> None:
    of, listed = seen()
    verdict = judged(
        big(of, ALL, PAIRS, references=(FLOOR,)),
        found(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=200)),
        *measured(PAIRS, EIGHT, slow(usual=200)),
    )
    assert (verdict.state, verdict.suspects) == (State.FAIL, ())
    assert verdict.headline == "fail: all-reduce below-reference"


def test_without_any_bound_a_gpu_collective_is_inconclusive_and_says_what_to_add() -> None:
    of, listed = seen()
    verdict = judged(big(of, ALL), found(EIGHT), *listed, *measured(ALL, EIGHT, slow(usual=360)))
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)
    assert causes(verdict) == {"no-reference"}
    assert "--expect 'all-reduce@4M>=GB/s'" in verdict.checks[2].findings[-1].message


def test_a_bound_inside_a_node_says_nothing_about_what_is_between_nodes() -> None:
    of, listed = seen()
    each = step("all-reduce", "each", number=15)
    inside = replace(FLOOR, max_nodes=1)
    records = [r for one in (each, ALL) for r in measured(one, EIGHT, slow(usual=360))]
    verdict = judged(big(of, each, ALL, references=(inside,)), found(EIGHT), *listed, *records)
    assert (verdict.state, causes(verdict)) == (State.INCONCLUSIVE, {"no-reference"})


@pytest.mark.parametrize(
    ("tables", "state"),
    [
        (table("all-reduce", 0), State.PASS),
        (table("all-reduce", 0, wrong=1), State.FAIL),
        ((), State.FAIL),
    ],
)
def test_one_gpu_alone_has_nobody_to_send_to_and_is_judged_by_the_rest(
    tables: tuple[Metric, ...], state: State
) -> None:
    one = replace(GPU, gpus=1, ranks=1)
    of, listed = step("inventory", "each", number=10), gpus("h0", 1)
    told = record(of, ["h0"], facts=(inventory_of("h0", gpus=listed, pciNvidia=1),), ranks=1)
    planned = plan(of, ALL, machine=one, references=(FLOOR,))
    verdict = judged(planned, found(["h0"]), told, record(ALL, ["h0"], *tables, ranks=1))
    assert verdict.state is state
    fabric = verdict.checks[-1]
    if state is State.PASS:
        assert (fabric.state, fabric.optional) == (State.NOT_TESTED, True)
        assert "has no peer" in fabric.findings[-1].message


def test_several_hosts_of_one_gpu_each_have_somebody_to_send_to() -> None:
    one = replace(GPU, gpus=1, ranks=1)
    alone = [
        record(EACH, [h], *table("all-reduce", 0), ranks=1, number=n) for n, h in enumerate(EIGHT)
    ]
    verdict = judged(plan(EACH, machine=one), found(EIGHT), *alone)
    assert verdict.checks[-1].state is State.INCONCLUSIVE
    assert not verdict.accepted


def test_what_is_expected_of_one_gpu_alone_was_never_measured() -> None:
    own = replace(FLOOR, kind="expectation", source="--expect")
    made = record(ALL, ["h0"], *table("all-reduce", 0), ranks=1)
    one = replace(GPU, gpus=1, ranks=1)
    verdict = judged(plan(ALL, machine=one, references=(own,)), found(["h0"]), made)
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)


def test_a_reference_of_two_nodes_says_nothing_about_eight() -> None:
    of, listed = seen()
    two = replace(FLOOR, min_nodes=2, max_nodes=2)
    verdict = judged(
        big(of, ALL, references=(two,)),
        found(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert verdict.state is State.INCONCLUSIVE


def test_a_reference_of_another_device_says_nothing() -> None:
    of, listed = seen()
    other = replace(FLOOR, device="H200")
    verdict = judged(
        big(of, ALL, references=(other,)),
        found(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert verdict.state is State.INCONCLUSIVE


@pytest.mark.parametrize(("lower", "state"), [(350.0, State.PASS), (370.0, State.FAIL)])
def test_the_users_expectation_replaces_references(lower: float, state: State) -> None:
    of, listed = seen()
    own = replace(FLOOR, kind="expectation", source="--expect", lower=lower)
    strict = replace(FLOOR, lower=399.0)
    verdict = judged(
        big(of, ALL, references=(strict, own)),
        found(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert verdict.state is state
    kinds = {f.bound_kind for f in verdict.checks[2].findings if f.judgement == "absolute"}
    assert kinds == {"expectation"}


def bounded(busbw: float, *references: Reference) -> CheckVerdict:
    """The verdict on an all-reduce over eight hosts that reached `busbw` GB/s."""
    of, listed = seen()
    verdict = judged(
        big(of, ALL, references=references),
        found(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=busbw)),
    )
    return next(check for check in verdict.checks if check.check == "all-reduce")


def sides(check: CheckVerdict) -> set[tuple[float | None, float | None]]:
    return {(f.lower, f.upper) for f in check.findings if f.judgement == "absolute"}


BOTH = replace(FLOOR, lower=300.0, upper=400.0)
LOWER = replace(FLOOR, kind="expectation", source="--expect", lower=300.0)
UPPER = replace(LOWER, lower=None, upper=400.0)


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        ((BOTH,), {(300.0, 400.0)}),
        ((LOWER, UPPER), {(300.0, None), (None, 400.0)}),
        # An expectation replaces only the side of a reference that it is about.
        ((UPPER, FLOOR), {(None, 400.0), (300.0, None)}),
        ((UPPER, replace(BOTH, upper=9.0)), {(None, 400.0), (300.0, None)}),
        ((LOWER, replace(BOTH, lower=9999.0)), {(300.0, None), (None, 400.0)}),
    ],
)
def test_both_sides_of_a_bound_are_compared_and_shown(
    references: tuple[Reference, ...], expected: set[tuple[float | None, float | None]]
) -> None:
    states = {busbw: bounded(busbw, *references).state for busbw in (299.0, 350.0, 401.0)}
    assert states == {299.0: State.FAIL, 350.0: State.PASS, 401.0: State.FAIL}
    check = bounded(350.0, *references)
    assert sides(check) == expected
    assert ">= 300" in check.against
    assert "<= 400" in check.against


@pytest.mark.parametrize(("busbw", "limit"), [(299.0, 300.0), (350.0, 300.0), (401.0, 400.0)])
def test_a_finding_names_the_side_that_failed(busbw: float, limit: float) -> None:
    held = next(f for f in bounded(busbw, BOTH).findings if f.judgement == "absolute")
    assert held.bound == limit


def test_an_upper_expectation_leaves_the_lower_reference_to_name_a_slow_host() -> None:
    of, listed = seen(3)
    pairs = step("all-reduce", "pairs", rounds=3, number=30)
    verdict = judged(
        big(of, pairs, references=(UPPER, replace(FLOOR, size=TOP))),
        found(hosts(3)),
        *listed,
        *measured(pairs, hosts(3), slow("h1", usual=360)),
    )
    assert blamed(verdict) == {("node", "h1", "slow-outlier")}


@pytest.mark.parametrize("size", [None, TOP])
def test_of_three_hosts_a_bound_at_the_largest_size_names_the_slow_one(size: int | None) -> None:
    # Two of three pairs are slow: without a bound nothing tells which is the usual.
    own = replace(
        FLOOR, kind="expectation", source="--expect", lower=9.0, size=size, max_nodes=None
    )
    names = hosts(3)
    of = plan(PAIRS, references=(own,))
    verdict = judged(of, found(names), *measured(PAIRS, names, slow("h1")))
    assert [(s.name, s.cause) for s in verdict.suspects] == [("h1", "slow-outlier")]


def test_a_bound_at_a_size_that_a_step_does_not_reach_accuses_nobody_in_it() -> None:
    of, listed = seen()
    few = hosts(3)
    small = replace(PAIRS, id="30-small", params={**COLLECTIVE, "max": "1M"})
    records = [
        *measured(ALL, few, slow(usual=360)),
        *(
            replace(r, metrics=tuple(m for m in r.metrics if m.size in (None, 1 << 20)))
            for r in measured(small, few, slow("h1", usual=1300, factor=0.8))
        ),
    ]
    bounds = (replace(FLOOR, size=TOP),)
    verdict = judged(big(of, ALL, small, references=bounds), found(few), *listed[:3], *records)
    assert (verdict.state, verdict.suspects) == (State.PASS, ())


def test_an_expectation_that_was_never_measured_is_inconclusive() -> None:
    own = replace(FLOOR, kind="expectation", source="--expect", size=8 << 30)
    verdict = judged(plan(ALL, references=(own,)), *healthy(ALL))
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)


def test_each_expectation_must_have_been_measured_whatever_others_were() -> None:
    met = replace(FLOOR, kind="expectation", source="--expect", size=TOP, lower=9.0)
    never = replace(met, size=8 << 30)
    verdict = judged(plan(ALL, references=(never, met)), *healthy(ALL))
    assert (verdict.state, causes(verdict)) == (State.INCONCLUSIVE, {"no-measurement"})


def test_an_expectation_of_a_check_that_did_not_run_is_inconclusive() -> None:
    own = replace(FLOOR, check="gemm", metric="bf16", kind="expectation", source="--expect")
    verdict = judged(plan(ALL, references=(own,)), *healthy(ALL))
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)
    assert verdict.headline == "inconclusive: gemm no-measurement"


@pytest.mark.parametrize(("optional", "state"), [(True, State.PASS), (False, State.NOT_TESTED)])
def test_an_expectation_of_a_check_that_was_left_out_adds_nothing_to_that(
    optional: bool,  # noqa: FBT001
    state: State,
) -> None:
    own = replace(FLOOR, check="gemm", metric="bf16", kind="expectation", source="--expect")
    left = Skipped(check="gemm", reason="the budget of 60 s left no room", optional=optional)
    verdict = judged(plan(ALL, references=(own,), skipped=(left,)), *healthy(ALL))
    assert (verdict.state, "no-measurement" in causes(verdict)) == (state, False)


def test_an_average_over_sizes_is_never_judged() -> None:
    """Small sizes are far below the bound; only the largest is held against it."""
    verdict = judged(plan(ALL, references=(replace(FLOOR, lower=9.5),)), *healthy(ALL))
    assert verdict.state is State.PASS


# -- transport -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("networks", "state", "cause"),
    [
        ({"gIB": ["h0", "h1"]}, State.PASS, set()),
        ({"gIB": ["h0"], "Socket": ["h1"]}, State.FAIL, {"transport-fallback"}),
        (None, State.INCONCLUSIVE, {"no-measurement"}),
    ],
)
def test_the_promised_network_must_have_been_used(
    networks: dict[str, list[str]] | None, state: State, cause: set[str]
) -> None:
    of, listed = seen()
    facts = () if networks is None else (Fact(name="nccl-networks", value=networks),)
    made = [replace(r, facts=facts) for r in measured(ALL, EIGHT, slow(usual=360))]
    promised = replace(big(of, ALL, references=(FLOOR,)), machine=replace(GPU, transport="gIB"))
    verdict = judged(promised, found(EIGHT), *listed, *made)
    assert (verdict.state, causes(verdict)) == (state, cause)
    names = {("node", "h1", "transport-fallback")} if state is State.FAIL else set()
    assert blamed(verdict) == names


@pytest.mark.parametrize("network", ["uninitialized_shim_v7", "Socket"])
def test_a_network_may_have_other_names_in_the_log(network: str) -> None:
    machine = replace(GPU, transport="FasTrak", transport_aliases=("uninitialized_shim",))
    verdict = judged_ways(machine, ALL, EIGHT, {}, network=network)
    assert causes(verdict) == ({"transport-fallback"} if network == "Socket" else set())


@pytest.mark.parametrize(
    ("detours", "words"),
    [
        ({"NET/gIB": ["h1"]}, "h1 used gIB without GDRDMA: data go through host memory"),
        (
            {"SHM": ["h1"]},
            "h1 moved data between its GPUs through shared memory; NVLink is promised",
        ),
        ({"P2P off": ["h1"]}, "h1 says that P2P is disabled between its GPUs; NVLink is promised"),
        # Between hosts the network is the way.
        ({"NET": ["h0", "h1"]}, ""),
    ],
)
def test_a_slower_way_than_promised_is_a_failure_whatever_the_bandwidth(
    detours: dict[str, list[str]], words: str
) -> None:
    machine = replace(GPU, transport="gIB", gpu_direct=True, peer_to_peer=True)
    verdict = judged_ways(machine, ALL, EIGHT, detours)
    said = [f.message for c in verdict.checks for f in c.findings if f.state is State.FAIL]
    assert said == ([words] if words else [])
    assert causes(verdict) == ({"transport-fallback"} if words else set())
    assert blamed(verdict) == ({("node", "h1", "transport-fallback")} if words else set())


def test_a_way_that_nobody_promised_to_avoid_is_none() -> None:
    ways = {"NET/gIB": ["h1"], "SHM": ["h1"], "P2P off": ["h1"]}
    machine = replace(GPU, transport="gIB")
    assert judged_ways(machine, ALL, EIGHT, ways).state is State.PASS


def test_inside_one_host_no_network_is_needed_where_nvlink_is_promised() -> None:
    each = step(groups="each")
    machine = replace(GPU, peer_to_peer=True)
    verdict = judged_ways(machine, each, ("h0",), {"NET": ["h0"]})
    said = [f.message for c in verdict.checks for f in c.findings if f.state is State.FAIL]
    assert said == ["h0 moved data between its GPUs over the network; NVLink is promised"]


def judged_ways(
    machine: PlannedMachine,
    of_step: Step,
    names: Sequence[str],
    detours: dict[str, list[str]],
    network: str = "gIB",
) -> Verdict:
    """A fast run on the promised network, in which hosts took ways that may be slower."""
    of, listed = seen(len(names))
    facts = (
        Fact(name="nccl-networks", value={network: list(names)}),
        Fact(name="nccl-detours", value=detours),
    )
    made = [replace(r, facts=facts) for r in measured(of_step, names, slow(usual=360))]
    plan_of = replace(big(of, of_step, references=(FLOOR,)), machine=machine)
    return judged(plan_of, found(names), *listed, *made)


# -- population and degraded ---------------------------------------------------------------------


@pytest.mark.parametrize("bad", EIGHT)
def test_a_slow_host_among_eight_is_named_and_the_rest_passes(bad: str) -> None:
    verdict = judged(
        plan(ALL, PAIRS),
        found(EIGHT),
        *measured(ALL, EIGHT, slow(bad)),
        *measured(PAIRS, EIGHT, slow(bad)),
    )
    assert blamed(verdict) == {("node", bad, "slow-outlier")}
    assert verdict.suspects[0].evidence
    assert (verdict.state, verdict.exit, verdict.accepted) == (State.DEGRADED, 3, False)
    assert verdict.headline == f"degraded: {bad} slow-outlier (strong)"


def test_minus_six_percent_of_one_gpu_node_is_caught_by_the_pairs_though_above_the_floor() -> None:
    of, listed = seen()
    speed = slow("h6", usual=360, factor=0.94)
    verdict = judged(
        big(of, ALL, PAIRS, references=(FLOOR,)),
        found(EIGHT),
        *listed,
        *measured(ALL, EIGHT, speed),
        *measured(PAIRS, EIGHT, speed),
    )
    assert blamed(verdict) == {("node", "h6", "slow-outlier")}
    assert verdict.state is State.DEGRADED


def test_two_hosts_cannot_be_told_apart() -> None:
    of, listed = seen(2)
    verdict = judged(
        big(of, PAIRS, references=(FLOOR,)),
        found(["h0", "h1"]),
        *listed,
        *measured(PAIRS, ["h0", "h1"], slow(usual=100)),
    )
    assert [(s.kind, s.name) for s in verdict.suspects] == [("link", "h0 - h1")]
    assert verdict.state is State.FAIL


def test_two_cpu_hosts_pass_and_the_report_says_that_nothing_could_be_compared() -> None:
    verdict = judged(plan(PAIRS), found(["h0", "h1"]), *measured(PAIRS, ["h0", "h1"], slow()))
    assert verdict.state is State.PASS
    assert any("too few" in f.message for f in verdict.checks[1].findings)


def test_one_slow_pair_proves_nothing_where_no_speed_is_promised() -> None:
    records = measured(PAIRS, EIGHT, slow())
    records[4] = replace(records[4], metrics=table("all-reduce", 3))
    assert judged(plan(PAIRS), found(EIGHT), *records).state is State.PASS
    of, listed = seen()
    verdict = judged(
        big(of, PAIRS, references=(replace(FLOOR, lower=1.0),)), found(EIGHT), *listed, *records
    )
    assert [s.kind for s in verdict.suspects] == ["link"]


def test_a_slow_host_alone_among_each_is_named() -> None:
    of = step("all-reduce", "each")
    verdict = judged(plan(of), found(EIGHT), *measured(of, EIGHT, slow("h4")))
    assert blamed(verdict) == {("node", "h4", "slow-outlier")}


def rails(bad_rail: int, bad_host: str | None) -> tuple[Step, list[Record]]:
    of = step("all-reduce", "rails")
    records = [
        record(
            of,
            Group(hosts=EIGHT, local_ranks=(rail,)),
            *table("all-reduce", 50 if rail == bad_rail else 100),
            number=rail,
        )
        for rail in range(8)
    ]
    follow = [
        record(
            of,
            Group(hosts=r.hosts, local_ranks=(bad_rail,)),
            *r.metrics,
            wave=1 + r.wave,
            number=r.group,
        )
        for r in measured(
            replace(of, groups="pairs", rounds=3),
            EIGHT,
            slow(*([bad_host] if bad_host else []), usual=100),
        )
    ]
    return of, [*records, *follow]


def test_a_slow_rail_whose_pairs_name_a_host_accuses_its_gpu() -> None:
    of, records = rails(5, "h2")
    inventory, listed = seen()
    verdict = judged(big(inventory, of, references=(FLOOR,)), found(EIGHT), *listed, *records)
    assert ("gpu", "h2:5", "slow-outlier") in blamed(verdict)
    assert not any(kind == "rail" for kind, _, _ in blamed(verdict))


def test_slow_rails_are_known_while_the_run_goes_on() -> None:
    of, records = rails(5, None)
    whole = [r for r in records if r.wave == 0]

    def followed(records: list[Record]) -> set[tuple[int, ...]]:
        waves = waves_again(big(of), of, records, EIGHT, {}, checks=REGISTRY)
        return {group.local_ranks for wave in waves for group in wave}

    assert followed(whole) == {(5,)}
    dead = [replace(whole[2], metrics=(), exit=1)]
    assert followed([*whole[:2], *dead, *whole[3:]]) == {(2,), (5,)}
    assert followed(whole[:5]) == set()


def test_a_slow_rail_whose_pairs_name_nobody_is_accused_itself() -> None:
    of, records = rails(5, None)
    inventory, listed = seen()
    verdict = judged(big(inventory, of, references=(FLOOR,)), found(EIGHT), *listed, *records)
    assert blamed(verdict) == {("rail", "rail 5", "slow-outlier")}


@pytest.mark.parametrize(("slow", "cause"), [(1, None), (2, "intermittent")])
@pytest.mark.parametrize("groups", ["rails", "ladder", "each"])
def test_what_is_slow_in_some_of_five_executions(groups: str, slow: int, cause: str | None) -> None:
    def group(number: int) -> Group:
        if groups == "rails":
            return Group(hosts=EIGHT, local_ranks=(number,))
        return Group(hosts=hosts(16)[2 * number : 2 * number + (2 if groups == "ladder" else 1)])

    of = step("all-reduce", groups)
    records = [
        record(of, group(number), *table("all-reduce", 50 if bad else 100), number=number, wave=run)
        for run in range(5)
        for number in range(8)
        for bad in [number == 3 and run < slow]
    ]
    inventory, listed = seen()
    names = EIGHT if groups == "rails" else hosts(16)
    verdict = judged(big(inventory, of, references=(FLOOR,)), found(names), *listed, *records)
    assert {s.cause for s in verdict.suspects} == ({cause} if cause else set())
    if cause == "intermittent":
        assert f"slow in {slow} of 5 executions" in verdict.suspects[0].why


# -- inventory -----------------------------------------------------------------------------------


def inventoried(machine_plan: Plan, facts: list[Fact], metrics: tuple[Metric, ...] = ()) -> Verdict:
    of = machine_plan.steps[0]
    names = [fact.host or "" for fact in facts]
    records = [
        record(of, [name], facts=(fact,), number=i)
        for i, (name, fact) in enumerate(zip(names, facts, strict=True))
    ]
    return judged(machine_plan, found(names, metrics=metrics), *records)


INVENTORY = step("inventory", "each")


@pytest.mark.parametrize(
    ("wanted", "name", "same"),
    [
        ("NVIDIA H200", "NVIDIA H200", True),
        ("NVIDIA H200", "NVIDIA H200 NVL", False),
        ("NVIDIA H200", "NVIDIA H200 NV", False),
        ("NVIDIA H200 NVL", "NVIDIA H200 NVL", True),
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100", "NVIDIA H100 PCIe", False),
        ("nvidia a100", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100", "NVIDIA A100-PCIE-40GB", False),
        ("NVIDIA B200", "NVIDIA GB200", False),
    ],
)
def test_a_card_is_another_product_than_a_module_of_the_same_chip(
    *, wanted: str, name: str, same: bool
) -> None:
    assert is_device(wanted, name) is same


def test_an_nvidia_device_that_the_driver_does_not_show_is_no_cpu_machine() -> None:
    facts = [inventory_of("h0"), inventory_of("h1", pciNvidia=1)]
    verdict = inventoried(plan(INVENTORY), facts)
    assert blamed(verdict) == {("node", "h1", "gpu-unusable")}
    assert verdict.exit == 3


@pytest.mark.parametrize(
    ("changes", "suspect"),
    [
        ({"gpus": gpus("h1", 7)}, ("node", "h1", "gpu-missing")),
        ({"gpus": gpus("h1", eccUncorrected=2)}, ("gpu", "h1:0", "gpu-ecc")),
        ({"gpus": gpus("h1", uuid="GPU-h0-3")}, ("gpu", "h1:0", "gpu-duplicate")),
        ({"gpus": gpus("h1", name="NVIDIA H200")}, ("node", "h1", "inventory-mismatch")),
        ({"gpus": gpus("h1", processes=["77 python"])}, ("gpu", "h1:0", "gpu-busy")),
        ({"gpus": gpus("h1"), "memoryBytes": 32 << 30}, ("node", "h1", "inventory-mismatch")),
    ],
)
def test_what_is_wrong_with_a_gpu_host_is_named(
    changes: dict[str, Any], suspect: tuple[str, str, str]
) -> None:
    facts = [inventory_of(h, gpus=gpus(h), pciNvidia=0) for h in ("h0", "h2", "h3")]
    facts.insert(1, inventory_of("h1", **changes))
    assert blamed(inventoried(big(INVENTORY), facts)) == {suspect}


def test_a_missing_gpu_is_the_cause_and_slowness_follows_from_it() -> None:
    facts = [inventory_of(h, gpus=gpus(h), pciNvidia=8) for h in EIGHT]
    facts[1] = inventory_of("h1", gpus=gpus("h1", 7), pciNvidia=7)
    listed = [record(INVENTORY, [h], facts=(f,)) for h, f in zip(EIGHT, facts, strict=True)]
    one_node = replace(FLOOR, max_nodes=1)
    verdict = judged(
        big(INVENTORY, EACH, references=(one_node,)),
        found(EIGHT),
        *listed,
        *measured(EACH, EIGHT, slow("h1", usual=360)),
    )
    assert blamed(verdict) == {("node", "h1", "gpu-missing")}
    assert {"gpu-missing", "below-reference"} <= causes(verdict)
    assert verdict.headline.startswith("fail: h1 gpu-missing")


def test_a_driver_that_did_not_answer_in_time_is_not_a_host_without_gpus() -> None:
    facts = [inventory_of(h, gpus=gpus(h), pciNvidia=8) for h in ("h0", "h2", "h3")]
    facts.insert(1, inventory_of("h1", gpus=None, pciNvidia=8))
    verdict = inventoried(big(INVENTORY), facts)
    assert blamed(verdict) == {("node", "h1", "gpu-unusable")}
    assert "gpu-missing" not in causes(verdict)


@pytest.mark.parametrize(
    ("domains", "suspect"),
    [
        # One was not told, as where inventory.sh reads or nvidia-smi does not answer in time.
        (({"domain": "c/7"}, {}, {"domain": "c/7"}, {"domain": "c/7"}), set()),
        (({}, {}, {}, {"domain": "c/7"}), set()),
        (
            ({"domain": "c/7"}, {"domain": None}, {"domain": "c/7"}, {}),
            {("node", "h1", "inventory-mismatch")},
        ),
    ],
)
def test_only_hosts_that_told_their_nvlink_domain_are_compared_by_it(
    domains: tuple[dict[str, Any], ...], suspect: set[tuple[str, str, str]]
) -> None:
    facts = [
        inventory_of(f"h{i}", gpus=gpus(f"h{i}"), pciNvidia=8, **domain)
        for i, domain in enumerate(domains)
    ]
    assert blamed(inventoried(big(INVENTORY), facts)) == suspect


def test_busy_gpus_are_measured_where_told_so() -> None:
    facts = [inventory_of("h0", gpus=gpus("h0", processes=["77 python"]))]
    verdict = inventoried(big(INVENTORY, busy_ok=True), facts)
    assert "gpu-busy" not in causes(verdict)


def test_differences_between_hosts_that_promise_nothing_are_notes() -> None:
    facts = [inventory_of(h) for h in ("h0", "h1")] + [inventory_of("h2", kernel="5.4")]
    verdict = inventoried(plan(INVENTORY), facts)
    assert verdict.state is State.PASS
    assert any("kernel is 5.4" in f.message for f in verdict.checks[1].findings)


@pytest.mark.parametrize(
    ("direct", "changes", "found"),
    [
        (True, {"memlock": 64}, {"memlock-limited"}),
        # The kernel heeds no limit of who may lock what he likes.
        (True, {"memlock": 64, "ipcLock": True}, set()),
        # What is promised goes through sockets, or past them without RDMA.
        (False, {"memlock": 64}, set()),
    ],
)
def test_locked_memory_is_asked_for_where_rdma_is_promised(
    direct: bool,  # noqa: FBT001
    changes: dict[str, Any],
    found: set[str],
) -> None:
    facts = [inventory_of(h, gpus=gpus(h), **changes) for h in ("h0", "h1")]
    machine = replace(GPU, transport="any", gpu_direct=direct)
    verdict = inventoried(replace(big(INVENTORY), machine=machine), facts)
    assert causes(verdict) == found


def test_a_clock_that_is_off_is_named() -> None:
    facts = [inventory_of(h) for h in ("h0", "h1", "h2")]
    offsets = tuple(
        Metric(check="inventory", name="clock-offset", value=value, unit="s", host=host)
        for host, value in (("h0", 0.0), ("h1", 0.01), ("h2", 45.0))
    )
    assert blamed(inventoried(plan(INVENTORY), facts, offsets)) == {("node", "h2", "clock-skew")}


def test_a_host_that_says_nothing_of_itself_fails() -> None:
    records = [record(INVENTORY, ["h0"], facts=(inventory_of("h0"),)), record(INVENTORY, ["h1"])]
    verdict = judged(plan(INVENTORY), found(["h0", "h1"]), *records)
    assert causes(verdict) == {"no-measurement"}


def test_a_gpu_machine_on_which_nothing_met_a_gpu_is_not_passed() -> None:
    verdict = judged(
        big(ALL, references=(FLOOR,)), found(EIGHT), *measured(ALL, EIGHT, slow(usual=360))
    )
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)


def gpu_requested(*records: Record, steps: Sequence[Step], **more: Any) -> Verdict:
    return judged(plan(*steps, machine=replace(GPU, speed_promised=False), **more), *records)


SCRIPT = step("script", "all", params={})
OPTIONAL = replace(INVENTORY, optional=True)


@pytest.mark.parametrize(
    ("steps", "records", "skipped"),
    [
        ([SCRIPT], [record(SCRIPT, EIGHT)], ()),
        # Nothing but the optional inventory would have seen a GPU, and its tool is missing.
        (
            [OPTIONAL, SCRIPT],
            [
                record(OPTIONAL, EIGHT, problems=(Problem(cause="tool-missing", message="x"),)),
                record(SCRIPT, EIGHT),
            ],
            (),
        ),
        (
            [SCRIPT],
            [record(SCRIPT, EIGHT)],
            (Skipped(check="inventory", reason="the budget has no room for it", optional=True),),
        ),
        ([ALL], measured(ALL, EIGHT, slow()), ()),
        # Logs of others that show no GPU, judged as those of a machine with GPUs.
        ([ALL], measured(ALL, EIGHT, slow()), "logs"),
    ],
)
def test_a_run_that_requests_gpus_and_detects_none_is_never_accepted(
    steps: list[Step], records: list[Record], skipped: Any
) -> None:
    more = {"origin": "8 logs"} if skipped == "logs" else {"skipped": skipped}
    without = gpu_requested(found(EIGHT), *records, steps=steps, **more)
    assert (without.state, without.exit, without.accepted) == (State.INCONCLUSIVE, 7, False)
    rank = Fact(name="rank", check="connectivity", host="h0", rank=0, value={"gpu": "GPU-1"})
    records = [*records[:-1], replace(records[-1], facts=(*records[-1].facts, rank))]
    with_gpu = gpu_requested(found(EIGHT), *records, steps=steps, **more)
    assert (with_gpu.state, with_gpu.exit, with_gpu.accepted) == (State.PASS, 0, True)


def test_a_machine_without_gpus_passes_without_any() -> None:
    verdict = judged(plan(SCRIPT), found(EIGHT), record(SCRIPT, EIGHT))
    assert (verdict.exit, verdict.gpu_tested) == (0, False)


# -- connectivity, train, script -----------------------------------------------------------------


def answers(of: Step, ranks: list[tuple[int, str]], planned: int) -> Record:
    facts = tuple(
        Fact(name="rank", check="connectivity", host=host, rank=rank, value={"gpu": None})
        for rank, host in ranks
    )
    return record(of, ["h0", "h1"], facts=facts, ranks=planned)


def test_exactly_the_planned_ranks_must_answer() -> None:
    of = step("connectivity")
    right = [(0, "h0"), (1, "h0"), (2, "h1"), (3, "h1")]
    for ranks, state in (
        (right, State.PASS),
        (right[:3], State.FAIL),
        ([(rank, "h0") for rank in range(4)], State.FAIL),
        ([(0, "h0")] * 4, State.FAIL),
        ([], State.FAIL),
    ):
        verdict = judged(plan(of), found(["h0", "h1"]), answers(of, ranks, 4))
        assert verdict.state is state, ranks
        assert causes(verdict) == (set() if state is State.PASS else {"rank-count"})


TRAIN = step("train", params={"ratio": 0.5})


def trained(
    first: float,
    last: float,
    *problems: Problem,
    status: int = 0,
    of: Step = TRAIN,
    said: dict[str, Any] | None = None,
    own: Sequence[Metric] = (),
    machine: PlannedMachine = CPU,
    more: Mapping[str, float] | None = None,
) -> Verdict:
    """The verdict on a run with these losses; `more` are other metrics of it."""
    values = {"loss-first": first, "loss-last": last, "throughput": 900.0, **(more or {})}
    metrics = [Metric(check="train", name=k, value=v, unit="") for k, v in values.items()]
    facts = {"compared": {"times": 4, "differed": 0}} if said is None else said
    made = record(
        of,
        EIGHT,
        *metrics,
        *own,
        problems=problems,
        status=status,
        facts=tuple(Fact(name=k, value=v, check="train") for k, v in facts.items()),
    )
    return judged(plan(of, machine=machine), found(EIGHT), made)


@pytest.mark.parametrize(
    ("last", "state"), [(0.4, State.PASS), (1.0, State.PASS), (1.5, State.FAIL)]
)
def test_the_loss_must_fall_to_its_share(last: float, state: State) -> None:
    assert trained(2.0, last).state is state


def test_a_rank_whose_parameters_differ_is_named() -> None:
    differ = Problem(cause="parameters-differ", message="", check="train", host="h6", rank=12)
    verdict = trained(2.0, 0.4, differ, status=7)
    assert blamed(verdict) == {("node", "h6", "parameters-differ")}
    assert verdict.state is State.FAIL


def test_a_training_that_says_nothing_fails() -> None:
    verdict = judged(plan(TRAIN), found(EIGHT), record(TRAIN, EIGHT))
    assert causes(verdict) == {"no-measurement"}


def test_a_training_whose_ranks_were_never_compared_fails() -> None:
    for said in ({}, {"compared": 7}, {"compared": {"times": 0}}):
        assert causes(trained(2.0, 0.4, said=said)) == {"no-measurement"}


@pytest.mark.parametrize(
    ("deviation", "expected"), [(2e-4, set()), (2e-3, {"loss-differs"}), (None, {"no-measurement"})]
)
def test_the_curve_must_be_the_reference_where_there_is_one(
    deviation: float | None, expected: set[str]
) -> None:
    said = {"compared": {"times": 4}, "training": {"reference": True}}
    measured = {"curve-deviation": deviation, "curve-tolerance": 1e-3}
    more = {name: value for name, value in measured.items() if value is not None}
    assert causes(trained(2.0, 0.4, said=said, more=more)) == expected


def test_the_loss_must_have_fallen_by_the_step_that_is_stated() -> None:
    early = step("train", params={"by": 30})
    assert trained(2.0, 0.1, of=early, more={"loss-by": 0.9}).state is State.PASS
    assert causes(trained(2.0, 0.1, of=early, more={"loss-by": 1.1})) == {"loss-not-falling"}
    assert causes(trained(2.0, 0.1, of=early)) == {"no-measurement"}


def test_a_checkpoint_that_was_asked_for_must_have_been_measured() -> None:
    saved = step("train", params={"checkpoint": "/scratch"})
    assert causes(trained(2.0, 0.1, of=saved)) == {"no-measurement"}
    measured = {"checkpoint-write": 1.0, "checkpoint-read": 2.0}
    assert trained(2.0, 0.1, of=saved, more=measured).state is State.PASS


def owns(*slow: int, seconds: float, usual: float = 0.1, gpu: bool = True) -> list[Metric]:
    """Own times of 16 ranks, two a host."""
    return [
        Metric(
            check="train",
            name="rank-own",
            value=seconds if rank in slow else usual * (1 + rank % 3 / 1000),
            unit="s",
            host=EIGHT[rank // 2],
            rank=rank,
            gpu=str(rank % 2) if gpu else None,
        )
        for rank in range(16)
    ]


def test_the_rank_that_the_others_wait_for_is_named_with_its_gpu() -> None:
    four_a_host = [replace(m, host=EIGHT[(m.rank or 0) // 4]) for m in owns(5, seconds=0.12)]
    verdict = trained(2.0, 0.4, own=four_a_host, machine=GPU)
    assert blamed(verdict) == {("gpu", "h1:1", "slow-outlier")}
    assert trained(2.0, 0.4, own=owns(5, seconds=0.1), machine=GPU).suspects == ()


def test_a_host_with_half_of_its_ranks_slow_is_named_itself() -> None:
    for gpu in (True, False):
        verdict = trained(2.0, 0.4, own=owns(5, seconds=0.3, gpu=gpu), machine=GPU)
        assert blamed(verdict) == {("node", "h2", "slow-outlier")}


@pytest.mark.parametrize(
    ("usual", "seconds", "named"), [(0.1, 0.15, 0), (0.001, 0.005, 0), (0.1, 0.3, 1)]
)
def test_where_ranks_share_cpus_only_gross_slowness_counts(
    usual: float, seconds: float, named: int
) -> None:
    verdict = trained(2.0, 0.4, own=owns(5, seconds=seconds, usual=usual, gpu=False))
    assert len(verdict.suspects) == named


def test_a_small_model_whose_steps_are_the_cpus_accuses_no_gpu() -> None:
    """Half as long again, and still only milliseconds: what starts kernels differs so much."""
    verdict = trained(2.0, 0.4, own=owns(5, seconds=0.006, usual=0.004), machine=GPU)
    assert verdict.suspects == ()


def digested(odd: str, device: str = "CPU") -> Verdict:
    """A training on each host by itself, one rank each; `odd` got another gradient on `device`."""
    alone = replace(TRAIN, groups="each")

    def one(host: str) -> Record:
        values = {"loss-first": 2.0, "loss-last": 0.4, "throughput": 900.0}
        metrics = [Metric(check="train", name=k, value=v, unit="") for k, v in values.items()]
        told = {"type": "gradient of mlp", "size": 8, "random": "aa", "device": "CPU"}
        if host == odd:
            told |= {"random": "bb", "device": device}
        facts = (
            Fact(name="compared", value={"times": 2, "differed": 0}, check="train"),
            Fact(name="digest", value=told, check="train", host=host, rank=0),
        )
        return record(alone, [host], *metrics, facts=facts)

    return judged(plan(alone, machine=CPU), found(EIGHT), *[one(host) for host in EIGHT])


def test_what_hosts_compute_by_themselves_is_compared_among_equal_devices() -> None:
    verdict = digested("h3")
    assert blamed(verdict) == {("node", "h3", "gradients-differ")}
    assert "another result than 7 of 8 equal devices" in verdict.suspects[0].why
    assert digested("h3", device="another CPU").state is State.PASS


@given(st.sets(st.integers(0, 15)), st.floats(1.2, 50))
def test_slow_ranks_are_named_while_they_are_the_minority(slow: set[int], factor: float) -> None:
    own = owns(*slow, seconds=0.1 * factor, gpu=False)
    verdict = trained(2.0, 0.4, own=own, machine=GPU)
    hosts = {EIGHT[rank // 2] for rank in slow}
    accused = {suspect.name for suspect in verdict.suspects}
    assert accused <= hosts
    if len(slow) <= 3:
        assert accused == hosts


@pytest.mark.parametrize(("exit_code", "state"), [(0, State.PASS), (4, State.FAIL)])
def test_a_script_counts_by_its_exit_status(exit_code: int, state: State) -> None:
    of = step("script", params={"name": "mine"})
    verdict = judged(plan(of), found(EIGHT), record(of, EIGHT, status=exit_code))
    assert verdict.state is state
    assert causes(verdict) == (set() if exit_code == 0 else {"script-failed"})


# -- properties ----------------------------------------------------------------------------------


def renamed(text: Any, names: dict[str, str]) -> Any:
    """Plain data with every host name in it replaced."""
    if isinstance(text, str):
        return names.get(text, text)
    if isinstance(text, list):
        return [renamed(item, names) for item in text]
    if isinstance(text, dict):
        return {key: renamed(value, names) for key, value in text.items()}
    return text


@given(
    st.sets(st.sampled_from(EIGHT), max_size=2),
    st.sampled_from(["pairs", "each", "ladder", "all"]),
    st.floats(0.1, 0.9),
    st.randoms(),
)
def test_permuting_hosts_permutes_the_answer(
    bad: set[str], groups: Any, factor: float, chance: random.Random
) -> None:
    of = step("all-reduce", groups, rounds=4 if groups == "pairs" else 1)
    records = [found(EIGHT), *measured(of, EIGHT, slow(*bad, factor=factor))]
    shuffled = list(EIGHT)
    chance.shuffle(shuffled)
    names = dict(zip(EIGHT, shuffled, strict=True))
    others = [from_json(Record, json.dumps(renamed(dump(r), names))) for r in records]
    one, two = judged(plan(of), *records), judged(plan(of), *others)
    assert one.state is two.state
    mapped = {
        (s.kind, " - ".join(names.get(n, n) for n in s.name.split(" - ")), s.cause)
        for s in one.suspects
        if s.kind != "switch"
    }
    assert mapped == {s for s in blamed(two) if s[0] != "switch"}


@given(st.sets(st.sampled_from(EIGHT), min_size=1, max_size=2), st.randoms())
def test_the_order_of_records_does_not_matter(bad: set[str], chance: random.Random) -> None:
    records = [found(EIGHT), *measured(PAIRS, EIGHT, slow(*bad))]
    mixed = records[:]
    chance.shuffle(mixed)
    one, two = judged(plan(PAIRS), *records), judged(plan(PAIRS), *mixed)
    assert (one.state, blamed(one)) == (two.state, blamed(two))


TEXT = st.text(max_size=8)
NUMBERS = st.floats() | st.integers(-(2**70), 2**70).map(float)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CHECKS = ["all-reduce", "alltoall", "inventory", "connectivity", "train", "script", "hosts", "none"]
CHECKS += ["gemm", "memory"]
HOST = st.sampled_from([*EIGHT, "", "x y"])
WILD = st.builds(
    Record,
    step=st.sampled_from([ALL.id, PAIRS.id, "00-hosts", *(f"10-{c}-all" for c in CHECKS), "?"]),
    checks=st.lists(st.sampled_from(CHECKS), max_size=2).map(tuple),
    wave=st.integers(-1, 3),
    group=st.integers(-1, 3),
    hosts=st.lists(HOST, max_size=4).map(tuple),
    local_ranks=st.lists(st.integers(-1, 9), max_size=2).map(tuple),
    ranks=st.integers(-1, 20),
    exit=st.none() | st.integers(-2, 255),
    log=TEXT,
    metrics=st.lists(
        st.builds(
            Metric,
            check=st.sampled_from(CHECKS),
            name=st.sampled_from(
                ["busbw", "wrong", "loss-first", "loss-last", "throughput", "ping", "bf16", "copy"]
            ),
            value=NUMBERS,
            unit=TEXT,
            size=st.none() | st.integers(-5, 2**70),
            host=st.none() | HOST,
            rank=st.none() | st.integers(0, 9),
            gpu=st.none() | TEXT,
            placement=st.sampled_from([None, "out", "in", "?"]),
        ),
        max_size=6,
    ).map(tuple),
    facts=st.lists(
        st.builds(
            Fact,
            name=st.sampled_from(["inventory", "rank", "digest", "load", "left-out", "?"]),
            check=st.none() | st.sampled_from(CHECKS),
            value=JSON
            | st.fixed_dictionaries({"type": JSON, "exact": JSON, "held": JSON, "C": JSON})
            | st.fixed_dictionaries(
                {"gpus": JSON | st.lists(JSON), "pciNvidia": JSON, "nics": JSON, "versions": JSON}
            ),
            host=st.none() | HOST,
            rank=st.none() | st.integers(-1, 9),
        ),
        max_size=4,
    ).map(tuple),
    problems=st.lists(
        st.builds(
            Problem,
            cause=st.sampled_from([*CAUSES, "", "unheard-of"]),
            message=TEXT,
            check=st.none() | st.sampled_from(CHECKS),
            host=st.none() | HOST,
            gpu=st.none() | TEXT,
        ),
        max_size=3,
    ).map(tuple),
)
EVERY = [step(check) for check in CHECKS]
BOUND = Reference(check="train", metric="throughput", unit="1/s", kind="spec", source="", upper=5.0)


@given(
    st.lists(WILD, max_size=8),
    st.sampled_from([CPU, GPU]),
    st.sampled_from(["", "cancelled"]),
    st.sampled_from([COLLECTIVE, {}, {"min": "x", "max": 3, "factor": 0}, {"ratio": "a"}]),
)
def test_no_record_makes_judging_raise_and_every_verdict_can_be_written(
    records: list[Record], machine: Any, broken_off: str, params: dict[str, Any]
) -> None:
    steps = [replace(of, params=params) for of in (ALL, PAIRS, *EVERY)]
    wild = plan(*steps, machine=machine, references=(FLOOR, BOUND))
    verdict = judged(wild, *records, broken_off=broken_off)
    assert verdict.accepted == (verdict.exit == 0) == (verdict.state is State.PASS)
    assert from_json(Verdict, json.dumps(dump(verdict), allow_nan=False)) == verdict


# -- near and far --------------------------------------------------------------------------------


def test_hosts_that_are_slower_across_racks_only_are_healthy() -> None:
    """Pairs in a rack are 8 % faster: the others are no worse than they should be."""
    names = hosts(32)
    of = step("all-reduce", "pairs", rounds=4)
    rack = {name: index // 8 for index, name in enumerate(names)}

    def speed(group: Group) -> float:
        a, b = group.hosts
        return 432.0 if rack[a] == rack[b] else 400.0

    records = measured(of, names, speed, ranks=8)
    inventory, listed = seen(32)
    verdict = judged(big(inventory, of, references=(FLOOR,)), found(names), *listed, *records)
    assert blamed(verdict) == set()
    again = executed(of, waves_again(big(of), of, records, names, {}, checks=REGISTRY), speed)
    verdict = judged(
        big(inventory, of, references=(FLOOR,)), found(names), *listed, *records, *again
    )
    assert blamed(verdict) == set()
    assert verdict.state is State.PASS
    bad = measured(of, names, lambda g: speed(g) * (0.9 if "h3" in g.hosts else 1), ranks=8)
    verdict = judged(big(inventory, of, references=(FLOOR,)), found(names), *listed, *bad)
    assert {name for kind, name, _ in blamed(verdict) if kind == "node"} == {"h3"}


def pairs_of_ten(seed: int, near: set[str], bad: str = "", *, places: bool = False) -> Verdict:
    """Ten hosts under two switches, `near` under the second; pairs under one are 10 % faster."""
    names = hosts(10)
    of = step("all-reduce", "pairs", rounds=4)

    def speed(group: Group) -> float:
        together = len(near.intersection(group.hosts)) != 1
        return (440.0 if together else 400.0) * (0.9 if bad in group.hosts else 1)

    records = measured(of, names, speed, seed=seed, ranks=8)
    records += executed(of, waves_again(big(of), of, records, names, {}, checks=REGISTRY), speed)
    inventory, listed = seen(10)
    start = found(names)
    if places:
        facts = [Fact(name="place", host=h, value=f"row/{h in near}/{h}") for h in names]
        start = replace(start, facts=tuple(facts))
    return judged(big(inventory, of, references=(FLOOR,)), start, *listed, *records)


@pytest.mark.parametrize("seed", range(1, 21))
def test_two_hosts_far_from_all_others_meet_before_they_are_accused(seed: int) -> None:
    verdict = pairs_of_ten(seed, {"h3", "h7"})
    assert blamed(verdict) == set()
    assert verdict.state is State.PASS


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_slow_host_near_others_is_never_taken_for_a_far_one(seed: int) -> None:
    verdict = pairs_of_ten(seed, {"h3", "h7"}, "h5")
    assert verdict.state is not State.PASS
    assert all("h5" in name for _, name, _ in blamed(verdict))


def test_places_tell_a_host_that_is_alone_under_its_switch_from_a_slow_one() -> None:
    unknown = pairs_of_ten(1, {"h3"})
    assert unknown.state is not State.PASS
    assert pairs_of_ten(1, {"h3"}, places=True).state is State.PASS
