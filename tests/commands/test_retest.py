"""Retests: which suspects they close, and when both runs together are accepted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.judging import judged
from tests.factories.kubernetes import stored_job
from tests.factories.reported_runs import reported
from tests.factories.verdicts import (
    Speed,
    hosts,
    hosts_record,
    inventory_of,
    measured,
    plan,
    record,
    slow,
    step,
)

from accept.commands import retest
from accept.commands.judged import Judged
from accept.commands.retest import (
    Outcome,
    Part,
    RetestResult,
    _of_pairs,
    _pairs,
    compared,
    suspects_of,
)
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.groups import Group
from accept.core.plan import GroupKind
from accept.core.records import Problem, Record
from accept.plan.bundle import Bundle, render
from accept.plan.resolve import Options, Resolved, resolve
from accept.report.console import Terminal

INVENTORY = step("inventory", "each")
PAIRS = step(groups="pairs", rounds=3, number=20)
NAMES = hosts(12)
#: The suspect and four others, as `accept retest` chooses them.
FEW = ("h0", "h1", "h2", "h3", "h5")


def run_on(
    names: tuple[str, ...], speed: Speed, *more: Record, serial: str = "S1", attempt: str = "old"
) -> Judged:
    """Return the judged run of inventory and pairs."""
    listed = [
        record(INVENTORY, (name,), number=i, facts=(inventory_of(name, serial=serial + name),))
        for i, name in enumerate(names)
    ]
    records = (hosts_record(names), *listed, *measured(PAIRS, names, speed), *more)
    planned = plan(INVENTORY, PAIRS, nodes=len(names))
    verdict = replace(judged(planned, *records), attempt=attempt)
    return Judged(verdict=verdict, plan=planned, records=records)


OLD = run_on(NAMES, slow("h3"))


def retested(speed: Speed, *more: Record, before: Judged = OLD, serial: str = "S1") -> RetestResult:
    after = run_on(FEW, speed, *more, serial=serial, attempt="new")
    return compared(before, after, suspects_of(before, (), "old", Part.SUITE))


def test_a_suspect_that_is_as_good_as_normal_is_closed_and_both_runs_are_accepted() -> None:
    result = retested(slow(), serial="S2")
    (row,) = result.suspects
    assert (row.outcome, row.replaced, row.before, row.after) == (
        *(Outcome.CLOSED, True, ("S1h3",), ("S2h3",)),
    )
    assert (result.accepted, result.exit, result.run, result.retest) == (True, 0, "old", "new")
    assert not retested(slow()).suspects[0].replaced


def test_a_suspect_stays_open_unless_it_is_measured_as_normal() -> None:
    died = Problem(cause=Cause.HOST_DIED, message="gone", host="h3")
    last = replace(measured(PAIRS, FEW, slow())[-1], wave=9, exit=1, metrics=(), problems=(died,))
    elsewhere = run_on(hosts(3), slow(), attempt="new")
    for result, outcome, code in (
        (retested(slow("h3")), Outcome.STILL_BAD, 3),
        (retested(slow(), last), Outcome.OTHER_CAUSE, 3),
        (compared(OLD, elsewhere, suspects_of(OLD, (), "old", Part.SUITE)), Outcome.NOT_SHOWN, 7),
    ):
        assert [row.outcome for row in result.suspects] == [outcome]
        assert (result.accepted, result.exit) == (False, code), outcome


def test_suspects_that_were_not_measured_again_stay_bad() -> None:
    before = run_on(hosts(40), slow("h3", "h5"))
    after = run_on(FEW, slow(), attempt="new")
    result = compared(before, after, suspects_of(before, ("h3",), "old", Part.SUITE))
    assert [(row.hosts, row.outcome) for row in result.suspects] == [(("h3",), Outcome.CLOSED)]
    assert (result.accepted, result.exit) == (False, 3)
    assert result.reason


def test_a_repaired_suspect_is_not_still_bad_because_of_another_one() -> None:
    before = run_on(hosts(40), slow("h3", "h5"))
    names = (*FEW, "h6", "h7", "h8", "h9", "h10", "h11", "h12")
    after = run_on(names, slow("h5"), attempt="new")
    result = compared(before, after, suspects_of(before, (), "old", Part.SUITE))
    assert {row.hosts: row.outcome for row in result.suspects} == {
        ("h3",): Outcome.CLOSED,
        ("h5",): Outcome.STILL_BAD,
    }
    assert result.exit == 3


def test_a_partner_that_is_bad_in_the_retest_keeps_it_from_being_accepted() -> None:
    result = retested(slow("h1"))
    assert (result.accepted, result.exit) == (False, 3)


@settings(max_examples=40, deadline=None)
@given(factors=st.lists(st.floats(0.2, 1.1), min_size=5, max_size=5))
def test_a_retest_is_never_accepted_with_a_pair_of_a_suspect_below_normal(
    factors: list[float],
) -> None:
    # All hosts may be slow together, which the retest alone cannot see.
    of_host = dict(zip(FEW, factors, strict=True))
    after = run_on(FEW, lambda group: 10.0 * min(of_host[h] for h in group.hosts))
    result = compared(OLD, after, suspects_of(OLD, (), "old", Part.SUITE))
    if of_host["h3"] < 0.8:
        assert not result.accepted
        assert result.suspects[0].outcome is not Outcome.CLOSED


@pytest.mark.parametrize(
    ("nodes", "part", "code"),
    [
        (("h1",), Part.SUITE, Code.NODE_NOT_BAD),
        (("h77",), Part.SUITE, Code.NODE_UNKNOWN),
        ((), Part.PAIRS, Code.RUN_NO_SUSPECT),
    ],
)
def test_only_suspects_of_the_run_are_measured_again(
    nodes: tuple[str, ...], part: Part, code: Code
) -> None:
    with pytest.raises(BadInput) as refused:
        suspects_of(OLD, nodes, "old", part)
    assert refused.value.code is code


def test_a_good_run_and_a_drill_have_nothing_to_measure_again() -> None:
    drill = replace(OLD, verdict=replace(OLD.verdict, injected=("slow@h3",)))
    for before in (run_on(NAMES, slow()), drill):
        with pytest.raises(BadInput) as refused:
            suspects_of(before, (), "old", Part.SUITE)
        assert refused.value.code is Code.RUN_NO_SUSPECT


def test_the_pairs_of_a_bad_network_are_closed_only_if_all_are_normal() -> None:
    found = reported("fabric")
    before = Judged(verdict=found.verdict, plan=found.plan, records=found.records)
    suspects = suspects_of(before, (), "old", Part.PAIRS)
    chosen = tuple(_pairs(before, suspects))
    bad = {frozenset(pair.hosts) for suspect in suspects for pair in suspect.pairs}
    assert len(chosen) == 2 * len(bad)
    planned = _of_pairs(replace(before.plan, pairs=chosen), before.verdict.hosts, Part.PAIRS, 8)
    of_pairs = next(one for one in planned.steps if one.groups.of_pairs)
    names = tuple(dict.fromkeys(host for pair in chosen for host in pair))
    planned = replace(planned, nodes=len(names))
    chance = random.Random(3)

    def retest(share: float, among: int) -> RetestResult:
        still = set(list(bad)[:among])
        records = [r for r in before.records if r.step.startswith("10-") or r.step == "00-hosts"]
        records = [replace(r, hosts=names) if r.step == "00-hosts" else r for r in records]
        records = [r for r in records if set(r.hosts) <= set(names)]

        def speed(group: Group) -> float:
            factor = share if frozenset(group.hosts) in still else 1
            return 480.0 * chance.gauss(1, 0.003) * factor

        again = measured(of_pairs, names, speed, pairs=chosen)
        records += [replace(r, ranks=16) for r in again]
        verdict = judged(planned, *records)
        after = Judged(verdict=verdict, plan=planned, records=tuple(records))
        return compared(before, after, suspects)

    assert {row.outcome for row in retest(1.0, 0).suspects} == {Outcome.CLOSED}
    for share, among in ((0.55, len(bad)), (0.55, 1), (0.0001, 2)):
        result = retest(share, among)
        assert Outcome.CLOSED not in {row.outcome for row in result.suspects}
        assert (result.accepted, result.exit) == (False, 3)


@pytest.mark.parametrize(
    ("bad", "named"),
    [((1,), "h3:1"), ((0, 1), "h3"), ((), "")],
    ids=["one NIC", "both NICs", "repaired"],
)
def test_a_retest_of_each_rail_names_the_nic_of_a_slow_node(
    bad: tuple[int, ...], named: str
) -> None:
    suspects = suspects_of(OLD, ("h3",), "old", Part.RAILS)
    chosen = tuple(_pairs(OLD, suspects))
    planned = _of_pairs(replace(OLD.plan, pairs=chosen), NAMES, Part.RAILS, 2)
    both, rails = (one for one in planned.steps if one.groups.of_pairs)
    assert (both.groups, rails.groups) == (GroupKind.PAIRS, GroupKind.RAIL_PAIRS)
    assert (rails.params, rails.timeout) == (both.params, 2 * both.timeout)
    names = tuple(host for host in NAMES if any(host in pair for pair in chosen))

    def speed(group: Group) -> float:
        ranks = set(group.local_ranks) or {0, 1}
        return 10.0 * (0.5 if "h3" in group.hosts and ranks & set(bad) else 1.0)

    listed = [r for r in OLD.records if r.hosts and set(r.hosts) <= set(names)]
    records = (
        hosts_record(names),
        *(r for r in listed if r.step == INVENTORY.id),
        *(r for of in (both, rails) for r in measured(of, names, speed, pairs=chosen)),
    )
    verdict = judged(replace(planned, nodes=len(names)), *records)
    after = Judged(verdict=verdict, plan=planned, records=records)
    assert [suspect.name for suspect in verdict.suspects] == ([named] if named else [])
    (row,) = compared(OLD, after, suspects).suspects
    assert row.outcome is (Outcome.STILL_BAD if named else Outcome.CLOSED)


def test_a_node_with_one_rank_has_no_rails() -> None:
    with pytest.raises(BadInput, match="one rank"):
        _of_pairs(replace(OLD.plan, pairs=(("h3", "h4"),)), NAMES, Part.RAILS, 1)


@pytest.mark.parametrize(("slow_hosts", "needs_all"), [(("h3",), True), (("h3", "h5"), False)])
def test_a_retest_of_several_suspects_goes_on_without_one_and_can_be_only_shown(
    slow_hosts: tuple[str, ...],
    *,
    needs_all: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = run_on(hosts(40), slow(*slow_hosts))
    old = resolve(Options(machine="cpu", hosts=NAMES))
    rendered: list[Resolved] = []

    def keep(run: Resolved) -> Bundle:
        rendered.append(run)
        return render(run)

    monkeypatch.setattr("accept.evidence.rundir.find_own", lambda name: tmp_path)
    monkeypatch.setattr(retest, "judge_path", lambda *_, **__: before)
    monkeypatch.setattr(retest, "read_run", lambda folder: old)
    monkeypatch.setattr(retest, "render", keep)
    assert retest.do_retest("old", (), Terminal(), Part.SUITE, dry_run=True) == 0
    assert "machine cpu, suite quick" in capsys.readouterr().out
    assert [run.plan.require_all_nodes for run in rendered] == [needs_all]


def test_a_retest_on_a_cluster_shows_how_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, after = resolve(Options(machine="cpu", hosts=NAMES)), run_on(FEW, slow("h3"))
    monkeypatch.setattr("accept.evidence.rundir.find_own", lambda name: tmp_path)
    monkeypatch.setattr(retest, "judge_path", lambda *_, **__: OLD)
    monkeypatch.setattr(retest, "read_run", lambda folder: old)
    monkeypatch.setattr(retest, "start", lambda *_, **__: (stored_job(), tmp_path))
    monkeypatch.setattr(retest, "finish", lambda *_: after)
    retest.do_retest("old", (), Terminal(), Part.SUITE)
    assert f"accept clean {after.verdict.attempt}" in capsys.readouterr().err
