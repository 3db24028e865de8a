"""The state, the exit code and the headline of a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.factories.judging import (
    ALL,
    EACH,
    EIGHT,
    INVENTORY,
    PAIRS,
    causes,
    gpu_plan,
    healthy_records,
    judged,
)
from tests.factories.verdicts import (
    FLOOR,
    GPU,
    hosts_record,
    measured,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.core.causes import Cause, Judgement
from accept.core.judge.summary import node_lists
from accept.core.judge.suspects import merged
from accept.core.model import (
    CheckVerdict,
    Executions,
    Fact,
    Finding,
    Injection,
    Problem,
    Record,
    Skipped,
    State,
    Step,
    Strength,
    Suspect,
    SuspectKind,
    Verdict,
)
from accept.core.report.text import table as table_text
from accept.core.sentences import action, advice

# -- accepted -------------------------------------------------------------------------------------


def test_a_healthy_run_without_gpus_passes_and_shows_that_no_gpu_was_tested() -> None:
    verdict = judged(plan(ALL, PAIRS), *healthy_records(ALL, PAIRS))
    assert (verdict.state, verdict.exit, verdict.accepted) == (State.PASS, 0, True)
    assert verdict.headline == "pass (no GPU tested)"
    assert verdict.suspects == ()


def test_a_drill_is_never_accepted() -> None:
    drill = plan(ALL, injected=(Injection(fault="slow", host="h1", rank=0),))
    verdict = judged(drill, *healthy_records(ALL))
    assert verdict.headline.startswith("drill: pass")
    assert not verdict.accepted
    assert verdict.exit != 0


def test_one_host_alone_has_no_pairs_and_passes() -> None:
    verdict = judged(plan(ALL, PAIRS), hosts_record(["h0"]), *measured(ALL, ["h0"], slow()))
    assert verdict.state is State.PASS


def test_a_check_of_pairs_alone_does_not_fail_a_single_host() -> None:
    pairs = step("sendrecv", "pairs", number=40)
    verdict = judged(plan(ALL, pairs), hosts_record(["h0"]), *measured(ALL, ["h0"], slow()))
    check = verdict.checks[2]
    assert (check.state, check.optional) == (State.NOT_TESTED, True)
    assert verdict.state is State.PASS


def test_if_every_check_was_excused_nothing_was_tested() -> None:
    assert judged(plan(PAIRS), hosts_record(["h0"])).state is State.NOT_TESTED


# -- left out, interrupted, incomplete ------------------------------------------------------------


def test_checks_that_the_budget_left_out_are_not_tested() -> None:
    left = Skipped(check="train", reason="no room", cause=Cause.OVER_BUDGET)
    verdict = judged(plan(ALL, skipped=(left,)), *healthy_records(ALL))
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)
    assert "over-budget" in causes(verdict)


def test_checks_that_the_user_left_out_are_named_and_never_pass() -> None:
    left = Skipped(check="train", reason="--skip", cause=Cause.DESELECTED, optional=True)
    verdict = judged(plan(ALL, skipped=(left,)), *healthy_records(ALL))
    assert (verdict.state, verdict.exit, verdict.not_run) == (State.PASS, 0, (left,))
    assert {c.check: c.state for c in verdict.checks}["train"] is State.NOT_TESTED
    assert "not run: train" in verdict.headline


WRONG = record(ALL, EIGHT, *table("all-reduce", 10, wrong=1))
FAST = plan(ALL, EACH, PAIRS, fail_fast=True)


def test_steps_after_a_final_failure_were_left_out_by_fail_fast() -> None:
    verdict = judged(FAST, hosts_record(EIGHT), WRONG)
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)
    assert [(s.reason, s.step) for s in verdict.not_run] == [
        ("--fail-fast", EACH.id),
        ("--fail-fast", PAIRS.id),
    ]
    assert node_lists(verdict).good == ()


@pytest.mark.parametrize(
    "records",
    [
        # They end after a step that did not fail.
        healthy_records(ALL),
        # One host is slower than its peers, which later steps may explain.
        [hosts_record(EIGHT), *measured(ALL, EIGHT, slow()), *measured(EACH, EIGHT, slow("h3"))],
        [],
    ],
)
def test_fail_fast_explains_no_other_missing_records(records: list[Record]) -> None:
    verdict = judged(FAST, *records)
    assert verdict.not_run == ()
    assert "evidence-missing" in causes(verdict)


def test_an_optional_group_kind_left_out_leaves_one_row_for_its_check() -> None:
    left = Skipped(check="all-reduce", reason="pairs: one node", optional=True)
    verdict = judged(plan(ALL, skipped=(left,)), *healthy_records(ALL))
    assert verdict.state is State.PASS
    assert [check.check for check in verdict.checks] == ["hosts", "all-reduce"]
    assert any("one node" in f.message for f in verdict.checks[1].findings)


def test_a_failure_of_an_optional_check_counts() -> None:
    of = replace(ALL, optional=True)
    verdict = judged(
        plan(of), hosts_record(EIGHT), record(of, EIGHT, *table("all-reduce", 1, wrong=3))
    )
    assert verdict.exit == 3


def test_an_interrupted_run_exits_with_5() -> None:
    verdict = judged(plan(ALL, PAIRS), *healthy_records(ALL), interruption="the run was cancelled")
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 5)
    assert "the run was cancelled" in verdict.headline


def test_an_established_failure_beats_an_interruption() -> None:
    bad = record(ALL, EIGHT, *table("all-reduce", 10, wrong=1))
    verdict = judged(plan(ALL, PAIRS), hosts_record(EIGHT), bad, interruption="cancelled")
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)


def test_a_run_without_a_record_of_its_hosts_is_incomplete() -> None:
    verdict = judged(plan(ALL), *healthy_records(ALL)[1:])
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)
    assert causes(verdict) == {"evidence-missing"}


def test_no_evidence_at_all_is_incomplete() -> None:
    verdict = judged(plan(ALL))
    assert (verdict.state, verdict.exit) == (State.NOT_TESTED, 6)


# -- GPUs that no check used ----------------------------------------------------------------------


def test_a_gpu_machine_on_which_no_check_used_a_gpu_does_not_pass() -> None:
    verdict = judged(
        gpu_plan(ALL, references=(FLOOR,)),
        hosts_record(EIGHT),
        *measured(ALL, EIGHT, slow(usual=360)),
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
        # Only the optional inventory could have detected a GPU, and its tool is missing.
        (
            [OPTIONAL, SCRIPT],
            [
                record(OPTIONAL, EIGHT, problems=(Problem(cause=Cause.TOOL_MISSING, message="x"),)),
                record(SCRIPT, EIGHT),
            ],
            (),
        ),
        (
            [SCRIPT],
            [record(SCRIPT, EIGHT)],
            (Skipped(check="inventory", reason="x", cause=Cause.OVER_BUDGET, optional=True),),
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
    without = gpu_requested(hosts_record(EIGHT), *records, steps=steps, **more)
    assert (without.state, without.exit, without.accepted) == (State.INCONCLUSIVE, 7, False)
    rank = Fact(name="rank", check="connectivity", host="h0", rank=0, value={"gpu": "GPU-1"})
    records = [*records[:-1], replace(records[-1], facts=(*records[-1].facts, rank))]
    with_gpu = gpu_requested(hosts_record(EIGHT), *records, steps=steps, **more)
    assert (with_gpu.state, with_gpu.exit, with_gpu.accepted) == (State.PASS, 0, True)


def test_a_machine_without_gpus_passes_without_any() -> None:
    verdict = judged(plan(SCRIPT), hosts_record(EIGHT), record(SCRIPT, EIGHT))
    assert (verdict.exit, verdict.gpu_tested) == (0, False)


# -- wrong data first -----------------------------------------------------------------------------


def wrong_in(of: Step, *bad: tuple[str, ...]) -> list[Record]:
    """Return records of eight hosts; groups of the hosts `bad` have wrong data."""
    return [
        replace(made, metrics=table("all-reduce", 10, wrong=7)) if made.hosts in bad else made
        for made in measured(of, EIGHT, slow())
    ]


def test_wrong_data_without_a_common_host_is_software() -> None:
    ladder = step("all-reduce", "ladder")
    pairs = (EIGHT[:2], EIGHT[2:4], EIGHT[4:6])
    verdict = judged(plan(ladder), hosts_record(EIGHT), *wrong_in(ladder, *pairs, EIGHT))
    (finding,) = (f for c in verdict.checks for f in c.findings if f.executions)
    assert finding.executions == Executions(bad=4, total=7)
    assert verdict.suspects == ()
    assert "wrong data in 4 of 7 logs of all-reduce, follows no host: software" in verdict.headline


def test_wrong_data_of_every_host_alone_is_software() -> None:
    each = step("all-reduce", "each")
    verdict = judged(plan(each), hosts_record(EIGHT), *wrong_in(each, *((host,) for host in EIGHT)))
    assert verdict.headline.startswith(
        "fail: wrong data in 8 of 8 logs of all-reduce, follows no host: software"
    )


def test_one_log_with_wrong_data_does_not_clear_the_hosts() -> None:
    verdict = judged(plan(ALL), hosts_record(EIGHT), *wrong_in(ALL, EIGHT))
    assert verdict.headline.startswith("fail: wrong data in 1 of 1 log")
    assert "software" not in verdict.headline


def test_wrong_data_without_a_suspect_comes_before_a_slow_host() -> None:
    speed = slow("h5")
    verdict = judged(
        plan(ALL, PAIRS),
        hosts_record(EIGHT),
        *wrong_in(ALL, EIGHT),
        *measured(PAIRS, EIGHT, speed),
    )
    assert verdict.headline.index("wrong data") < verdict.headline.index("h5")


def test_wrong_data_comes_before_stronger_evidence_of_slowness() -> None:
    def suspect(host: str, cause: Cause, strength: Strength) -> Suspect:
        return Suspect(
            kind=SuspectKind.NODE, hosts=(host,), cause=cause, strength=strength, why="counts"
        )

    found = merged(
        [
            suspect("h1", Cause.SLOW_OUTLIER, Strength.STRONG),
            suspect("h2", Cause.SLOW_OUTLIER, Strength.STRONG),
            suspect("h2", Cause.WRONG_DATA, Strength.WEAK),
        ],
        EIGHT,
    )
    assert [(s.hosts[0], s.cause) for s in found] == [
        ("h2", Cause.WRONG_DATA),
        ("h1", Cause.SLOW_OUTLIER),
    ]


def test_a_leaf_explains_its_rail() -> None:
    def suspect(kind: SuspectKind, device: str) -> Suspect:
        return Suspect(
            kind=kind,
            hosts=EIGHT[:2] if kind is SuspectKind.LEAF else (),
            device=device,
            cause=Cause.SLOW_NETWORK,
            strength=Strength.STRONG,
            why="counts",
        )

    leaf = suspect(SuspectKind.LEAF, "3")
    other = suspect(SuspectKind.RAIL, "4")
    assert set(merged([suspect(SuspectKind.RAIL, "3"), other, leaf], EIGHT)) == {leaf, other}


# -- scaling --------------------------------------------------------------------------------------

LADDER = step("all-gather", "ladder", number=40)


def ladder_run(**speeds: float | None) -> Verdict:
    """Return the verdict on a ladder of eight hosts; `n4` is the speed of groups of four."""
    records = measured(LADDER, EIGHT, lambda group: speeds.get(f"n{len(group.hosts)}", 10.0))
    return judged(plan(LADDER), hosts_record(EIGHT), *records)


def efficiencies(verdict: Verdict) -> list[tuple[int, float]]:
    return [(point.nodes, point.efficiency) for one in verdict.scaling for point in one.points]


def test_a_ladder_shows_the_efficiency_at_each_number_of_hosts() -> None:
    verdict = ladder_run(n4=9.0, n8=5.0)
    assert efficiencies(verdict) == [(2, 1.0), (4, 0.9), (8, 0.5)]
    assert "4 nodes 90%, 8 nodes 50%" in " ".join(table_text(verdict).split())


def test_failed_groups_have_no_efficiency() -> None:
    assert efficiencies(ladder_run(n4=None)) == [(2, 1.0), (8, 1.0)]
    # Without the smallest groups, the next ones are the base.
    assert efficiencies(ladder_run(n2=None, n8=5.0)) == [(4, 1.0), (8, 0.5)]
    assert efficiencies(ladder_run(n2=None, n4=None)) == []


def test_without_a_ladder_nothing_scales() -> None:
    assert judged(plan(ALL, PAIRS), *healthy_records(ALL, PAIRS)).scaling == ()


# -- advice ---------------------------------------------------------------------------------------


def low(check: str, message: str, *names: str) -> CheckVerdict:
    finding = Finding(
        check=check,
        judgement=Judgement.ABSOLUTE,
        state=State.FAIL,
        cause=Cause.BELOW_REFERENCE,
        message=message,
        hosts=names,
    )
    return CheckVerdict(check=check, state=State.FAIL, findings=(finding,))


def test_a_value_below_its_bound_has_the_advice_of_its_check_with_the_figure() -> None:
    healthy = judged(plan(ALL, PAIRS), *healthy_records(ALL, PAIRS))
    row = Cause.BELOW_REFERENCE.row
    checks = tuple(low(c, f"{c} of 5 < 9") for c in ("gemm", "nic-loop", "all-reduce", "alltoall"))
    verdict = replace(healthy, state=State.FAIL, checks=checks)
    own = [row.action_of_check[check] for check in ("gemm", "nic-loop")]
    # Collectives have one advice in common.
    expected = zip(checks, [*own, row.action], strict=False)
    assert advice(verdict) == tuple(
        f"{check.check}: {check.check} of 5 < 9; {text}" for check, text in expected
    )


def test_a_suspect_has_the_advice_of_the_check_that_accuses_it() -> None:
    gpu = Suspect(
        kind=SuspectKind.GPU,
        hosts=("h1",),
        device="0",
        cause=Cause.BELOW_REFERENCE,
        strength=Strength.STRONG,
        why="5 < 9",
    )
    own = Cause.BELOW_REFERENCE.row.action_of_check
    checks = (low("gemm", "5 < 9", "h0"), low("memory", "5 < 9", "h1"))
    assert action(gpu, checks) == own["memory"]
    assert action(gpu, ()) == Cause.BELOW_REFERENCE.row.action
