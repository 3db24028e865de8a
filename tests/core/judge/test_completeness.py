"""Every host, rank and measurement of the plan must be in the evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.factories.judging import ALL, EIGHT, PAIRS, blamed, causes, healthy_records, judged
from tests.factories.verdicts import (
    FLOOR,
    TOP,
    hosts,
    hosts_record,
    measured,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.core.causes import Cause
from accept.core.judge.summary import NodeLists, node_lists
from accept.core.model import Fact, Problem, Record, State, Step

# -- hosts and ranks that are lost ----------------------------------------------------------------


@pytest.mark.parametrize(
    "cause",
    [
        Cause.UNREACHABLE_DNS,
        Cause.UNREACHABLE_REFUSED,
        Cause.UNREACHABLE_TIMEOUT,
        Cause.KEY_REFUSED,
        Cause.HOST_KEY_MISMATCH,
    ],
)
def test_a_host_that_never_answered_is_named_with_its_reason(cause: Cause) -> None:
    gone = Problem(cause=cause, message="h7: no", check="hosts", host="h7")
    verdict = judged(plan(ALL), hosts_record(EIGHT[:7], gone), *measured(ALL, EIGHT[:7], slow()))
    assert (verdict.state, verdict.exit) == (State.DEGRADED, 3)
    assert verdict.missing == ("h7",)
    assert blamed(verdict) == {("node", "h7", cause)}
    assert node_lists(verdict) == NodeLists(good=EIGHT[:7], bad=("h7",), untested=())


def test_one_host_that_is_left_of_two_is_not_good() -> None:
    gone = Problem(cause=Cause.UNREACHABLE_REFUSED, message="", check="hosts", host="h1")
    verdict = judged(plan(ALL), hosts_record(("h0",), gone), *measured(ALL, ("h0",), slow()))
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)
    assert node_lists(verdict) == NodeLists(good=(), bad=("h1",), untested=("h0",))


def test_hosts_that_were_measured_again_without_a_lost_one_are_good() -> None:
    died = Problem(cause=Cause.HOST_DIED, message="h3", check="hosts", host="h3")
    rest = tuple(host for host in EIGHT if host != "h3")
    again = [replace(r, wave=1) for r in measured(ALL, rest, slow())]
    verdict = judged(
        plan(ALL), hosts_record(EIGHT), record(ALL, EIGHT, status=None, problems=(died,)), *again
    )
    assert verdict.state is State.DEGRADED
    assert node_lists(verdict) == NodeLists(good=rest, bad=("h3",), untested=())


def test_pairs_of_two_hosts_that_failed_without_a_reason_are_not_excused_by_a_lost_host() -> None:
    died = Problem(cause=Cause.HOST_DIED, message="h3", check="hosts", host="h3")
    rest = tuple(host for host in EIGHT if host != "h3")
    crashed = record(ALL, rest, status=1, wave=1)
    verdict = judged(
        plan(ALL), hosts_record(EIGHT), record(ALL, EIGHT, status=None, problems=(died,)), crashed
    )
    assert verdict.state is State.FAIL
    assert not node_lists(verdict).good


def test_most_hosts_missing_are_all_named() -> None:
    gone = [Problem(cause=Cause.UNREACHABLE_DNS, message="", host=host) for host in EIGHT[1:]]
    verdict = judged(plan(ALL), hosts_record(EIGHT[:1], *gone), *measured(ALL, EIGHT[:1], slow()))
    assert {name for _, name, _ in blamed(verdict)} == set(EIGHT[1:])


def test_fewer_hosts_than_planned_nodes_fail_even_if_the_missing_ones_are_unknown() -> None:
    verdict = judged(plan(ALL, nodes=9), *healthy_records(ALL))
    assert verdict.state is State.FAIL


def test_a_host_that_died_is_named_and_not_those_that_waited_for_it() -> None:
    died = (
        Problem(cause=Cause.HOST_DIED, message="h3 does not answer", check="hosts", host="h3"),
        Problem(cause=Cause.RANK_HUNG, message="rank 2 waits", host="h1", rank=2),
        Problem(cause=Cause.CRASHED, message="connection lost", host="h0"),
    )
    rest = tuple(host for host in EIGHT if host != "h3")
    later = step("all-gather", number=40)
    verdict = judged(
        plan(ALL, later),
        hosts_record(EIGHT),
        record(ALL, EIGHT, status=None, problems=died),
        *measured(later, rest, slow()),
    )
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)
    assert blamed(verdict) == {("node", "h3", "host-died")}


def test_a_host_lost_between_pair_rounds_leaves_no_evidence_missing() -> None:
    died = Problem(cause=Cause.HOST_DIED, message="h3", host="h3")
    records = measured(PAIRS, EIGHT, slow())
    kept = [r for r in records if r.wave == 0 or "h3" not in r.hosts]
    kept = [
        replace(r, exit=None, metrics=(), problems=(died,)) if "h3" in r.hosts else r for r in kept
    ]
    verdict = judged(plan(PAIRS), hosts_record(EIGHT), *kept)
    assert blamed(verdict) == {("node", "h3", "host-died")}
    assert "evidence-missing" not in causes(verdict)


def test_a_hung_rank_is_named() -> None:
    hung = Problem(cause=Cause.RANK_HUNG, message="rank 10 stopped", host="h5", rank=10)
    late = Problem(cause=Cause.TIMED_OUT, message="did not end within 60 s")
    verdict = judged(
        plan(ALL), hosts_record(EIGHT), record(ALL, EIGHT, status=None, problems=(late, hung))
    )
    assert blamed(verdict) == {("node", "h5", "rank-hung")}
    assert verdict.exit == 3


@pytest.mark.parametrize(
    ("warnings", "quoted"),
    [
        (["h1: closed by h2", "h2: Got completion from peer, error 12"], "h2: Got completion"),
        (["h1: strange", "h3: Call to connect failed", "h1: timeout"], "h3: Call to connect"),
        (["h1: strange", "h1: stranger"], "h1: stranger"),
        # src/mnnvl.cc of NCCL 2.30
        (
            ["h1: Cuda failure 1", "h2: MNNVL (cliqueSize 4) is available but not working"],
            "h2: MNNVL (cliqueSize 4)",
        ),
        ([], None),
    ],
)
def test_a_failure_quotes_the_decisive_warning_of_nccl(
    warnings: list[str], quoted: str | None
) -> None:
    fact = Fact(name="nccl-warnings", value=warnings)
    late = Problem(cause=Cause.TIMED_OUT, message="did not end within 60 s")
    failed = record(ALL, EIGHT, status=None, facts=(fact,), problems=(late,))
    verdict = judged(plan(ALL), hosts_record(EIGHT), failed)
    (message,) = {f.message for c in verdict.checks for f in c.findings if f.cause == "timed-out"}
    assert ("NCCL on" in message) is bool(quoted)
    assert (quoted or "did not end") in message


def test_a_warning_of_nccl_in_a_launch_that_worked_makes_no_finding() -> None:
    healthy = [
        replace(r, facts=(*r.facts, Fact(name="nccl-warnings", value=["h1: Cuda failure"])))
        for r in healthy_records(ALL)
    ]
    assert judged(plan(ALL), *healthy).state is State.PASS


def test_a_step_without_records_is_not_tested_and_the_run_incomplete() -> None:
    verdict = judged(plan(ALL, PAIRS), *healthy_records(ALL))
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)
    assert "evidence-missing" in causes(verdict)


@pytest.mark.parametrize("groups", ["pairs", "ladder", "each", "halves"])
def test_a_lost_record_is_noticed(groups: Any) -> None:
    of = step("all-reduce", groups, rounds=3 if groups == "pairs" else 1)
    records = healthy_records(of)
    verdict = judged(plan(of), *records[:-1])
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)


def answers(of: Step, ranks: list[tuple[int, str]], planned: int) -> Record:
    facts = tuple(
        Fact(name="rank", check="connectivity", host=host, rank=rank, value={"gpu": None})
        for rank, host in ranks
    )
    return record(of, ["h0", "h1"], facts=facts, ranks=planned)


def test_exactly_the_planned_ranks_must_report() -> None:
    of = step("connectivity")
    right = [(0, "h0"), (1, "h0"), (2, "h1"), (3, "h1")]
    for ranks, state in (
        (right, State.PASS),
        (right[:3], State.FAIL),
        ([(rank, "h0") for rank in range(4)], State.FAIL),
        ([(0, "h0")] * 4, State.FAIL),
        ([], State.FAIL),
    ):
        verdict = judged(plan(of), hosts_record(["h0", "h1"]), answers(of, ranks, 4))
        assert verdict.state is state, ranks
        assert causes(verdict) == (set() if state is State.PASS else {"rank-count"})


# -- tables ---------------------------------------------------------------------------------------


def test_a_log_without_its_end_fails() -> None:
    cut = Problem(cause=Cause.INCOMPLETE_LOG, message="no footer", check="all-reduce")
    made = record(ALL, EIGHT, *table("all-reduce", 10), problems=(cut,))
    verdict = judged(plan(ALL), hosts_record(EIGHT), made)
    assert verdict.state is State.FAIL
    assert causes(verdict) == {"incomplete-log"}


def test_nothing_measured_is_a_failure_and_never_a_pass() -> None:
    verdict = judged(plan(ALL), hosts_record(EIGHT), record(ALL, EIGHT))
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"no-measurement"})


def test_the_largest_size_must_have_been_measured() -> None:
    made = record(ALL, EIGHT, *table("all-reduce", 10, top=TOP // 2))
    verdict = judged(plan(ALL), hosts_record(EIGHT), made)
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"top-size-missing"})


def test_a_table_of_fewer_ranks_than_were_started_fails() -> None:
    listed = Fact(name="nccl-tests", check="all-reduce", value={"ranks": 2})
    made = record(ALL, EIGHT, *table("all-reduce", 10), facts=(listed,))
    verdict = judged(plan(ALL), hosts_record(EIGHT), made)
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"rank-count"})


@pytest.mark.parametrize(
    ("own", "listed", "expected"),
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
    own: dict[str, str] | None, listed: dict[str, int], expected: set[str]
) -> None:
    fact = Fact(name="nccl-tests", check="all-reduce", value={"ranks": 4, "hosts": listed})
    of = step("all-reduce", "halves", number=20)
    names = () if own is None else (Fact(name="hostnames", check="hosts", value=own),)
    half, rest = measured(of, hosts(4), slow())
    assert half.hosts == ("h0", "h1")
    answers = replace(hosts_record(hosts(4)), facts=names)
    verdict = judged(plan(of), answers, replace(half, facts=(fact,)), rest)
    assert causes(verdict) == expected


@pytest.mark.parametrize("ranks", [0, 1, 15, 17])
def test_another_number_of_ranks_than_planned_does_not_pass(ranks: int) -> None:
    other = replace(healthy_records(ALL)[1], ranks=ranks)
    assert causes(judged(plan(ALL), hosts_record(EIGHT), other)) == {"rank-count"}


def test_a_size_rounded_down_to_whole_elements_counts_as_requested() -> None:
    metrics = [replace(m, size=TOP - 64) if m.size == TOP else m for m in table("all-reduce", 10)]
    bound = replace(FLOOR, size=TOP, lower=9.0)
    verdict = judged(
        plan(ALL, references=(bound,)), hosts_record(EIGHT), record(ALL, EIGHT, *metrics)
    )
    assert verdict.state is State.PASS
    assert any(f.judgement == "absolute" for f in verdict.checks[1].findings)


# -- failures of a launch and of its checks -------------------------------------------------------


def test_a_crash_in_a_shared_launch_does_not_fail_a_check_measured_before_it() -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    made = record(both, EIGHT, *table("all-reduce", 10), status=1)
    verdict = judged(plan(both), hosts_record(EIGHT), made)
    states = {check.check: check.state for check in verdict.checks}
    assert states["all-reduce"] is State.PASS
    assert states["all-gather"] is State.FAIL


def test_a_rank_that_hung_in_a_later_collective_does_not_fail_an_earlier_one() -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    hung = Problem(cause=Cause.RANK_HUNG, message="rank 3 stopped", host="h1", rank=3)
    made = record(both, EIGHT, *table("all-reduce", 10), status=None, problems=(hung,))
    verdict = judged(plan(both), hosts_record(EIGHT), made)
    states = {check.check: check.state for check in verdict.checks}
    assert states["all-reduce"] is State.PASS
    assert states["all-gather"] is State.FAIL
    assert blamed(verdict) == {("node", "h1", "rank-hung")}


@pytest.mark.parametrize("ending", [1, 139, "killed", Cause.TIMED_OUT, Cause.RANK_HUNG])
def test_a_shared_launch_that_failed_after_all_measurements_fails_its_last_check(
    ending: int | str,
) -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    tables = (*table("all-reduce", 10), *table("all-gather", 10))
    problems = (Problem(cause=ending, message="", host="h1"),) if isinstance(ending, Cause) else ()
    status = ending if isinstance(ending, int) else None
    made = record(both, EIGHT, *tables, status=status, problems=problems)
    verdict = judged(plan(both), hosts_record(EIGHT), made)
    states = {check.check: check.state for check in verdict.checks}
    assert (states["all-reduce"], states["all-gather"]) == (State.PASS, State.FAIL)
    assert (verdict.accepted, verdict.exit) == (False, 3)


def test_a_shared_launch_that_failed_because_of_wrong_data_does_not_fail_its_last_check() -> None:
    both = step("collectives", number=20, checks=("all-reduce", "all-gather"))
    tables = (*table("all-reduce", 10, wrong=3), *table("all-gather", 10))
    verdict = judged(plan(both), hosts_record(EIGHT), record(both, EIGHT, *tables, status=1))
    assert causes(verdict) == {"wrong-data"}


@pytest.mark.parametrize("wave", [0, 3])
def test_a_problem_of_a_host_outside_of_all_checks_never_passes(wave: int) -> None:
    full = Problem(cause=Cause.DISK_FULL, message="h2: no space", host="h2")
    first, *rest = healthy_records(ALL)
    answers = [first, replace(first, wave=3)]
    answers[bool(wave)] = replace(answers[bool(wave)], problems=(full,))
    verdict = judged(plan(ALL), *answers, *rest)
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"disk-full"})
    assert blamed(verdict) == {("node", "h2", "disk-full")}


def test_a_problem_of_a_check_that_was_not_planned_never_passes() -> None:
    other = Problem(cause=Cause.WRONG_DATA, message="bits", check="elsewhere", host="h2")
    made = record(ALL, EIGHT, *table("all-reduce", 10), problems=(other,))
    assert judged(plan(ALL), hosts_record(EIGHT), made).exit == 3


def test_a_launch_that_a_check_excuses_does_not_fail_the_other_launches() -> None:
    """A rank that found wrong data ends its launch: the rest of the cluster passes."""
    ended = Problem(cause=Cause.CRASHED, message="a signal ended a rank")
    made = [
        replace(one, exit=1, problems=(ended,), metrics=table("all-reduce", 10, wrong=3))
        if "h3" in one.hosts
        else one
        for one in measured(PAIRS, EIGHT, slow())
    ]
    verdict = judged(plan(PAIRS), hosts_record(EIGHT), *made)
    assert (verdict.state, causes(verdict)) == (State.DEGRADED, {"wrong-data"})
    assert blamed(verdict) == {("node", "h3", "wrong-data")}


def test_many_problems_of_one_cause_outside_of_checks_are_one_finding() -> None:
    full = tuple(Problem(cause=Cause.DISK_FULL, message=f"{h}: no space", host=h) for h in EIGHT)
    first, *rest = healthy_records(ALL)
    verdict = judged(plan(ALL), replace(first, problems=full), *rest)
    (finding,) = (f for f in verdict.checks[0].findings if f.cause == "disk-full")
    assert (finding.message, finding.hosts) == ("h0: no space (and 7 more)", EIGHT)


def test_a_check_without_its_tool_is_not_tested_and_excused_only_if_optional() -> None:
    lacks = Problem(cause=Cause.TOOL_MISSING, message="no torch on h2", check="train", host="h2")
    for optional, state, exit_code in ((False, State.NOT_TESTED, 6), (True, State.PASS, 0)):
        train = step("train", optional=optional, number=50)
        made = record(train, EIGHT, status=1, problems=(lacks,))
        verdict = judged(plan(ALL, train), *healthy_records(ALL), made)
        assert (verdict.state, verdict.exit) == (state, exit_code)
        assert verdict.suspects == ()


@pytest.mark.parametrize(("exit_code", "state"), [(0, State.PASS), (4, State.FAIL)])
def test_a_script_is_judged_by_its_exit_status(exit_code: int, state: State) -> None:
    of = step("script", params={"name": "mine"})
    verdict = judged(plan(of), hosts_record(EIGHT), record(of, EIGHT, status=exit_code))
    assert verdict.state is state
    assert causes(verdict) == (set() if exit_code == 0 else {"script-failed"})
