"""Pairs: a finding claims only what its steps measured, and a collapse is never a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest
from tests.factories.injected_faults import HOSTS, slowed
from tests.factories.judging import gpu_inventory, gpu_plan, judged
from tests.factories.real_logs import REPOSITORY
from tests.factories.verdicts import FLOOR, hosts, hosts_record, measured, plan, step
from tests.promises.pool import PooledRun, runs

from accept.commands.judged import GivenBounds, Judged, judge_path, judge_paths
from accept.core.causes import Judgement
from accept.core.groups import Group
from accept.core.judge.summary import node_lists
from accept.core.records import Placement
from accept.core.verdict import Finding, State, SuspectKind, Verdict

#: Sigma below the other pairs from which a pair is slower than noise explains.
_SIGMAS = 3.0
#: Speeds at which pairs have collapsed, as shares of normal: distance explains 15 % at most.
_COLLAPSED = (0.1, 0.3, 0.5, 0.7, 0.8)


# -- findings claim what was measured -------------------------------------------------------------


def all_judged(run: PooledRun) -> list[Judged]:
    return judge_paths((str(run.folder),), GivenBounds(run.machine))


def speeds(one: Judged, step: str, check: str) -> dict[str, tuple[tuple[str, ...], float]]:
    """Return the hosts and the value at the largest size of each log of a step, from its metrics.

    This is a second implementation: of the two placements it takes the slower one.
    """
    found: dict[str, tuple[tuple[str, ...], float]] = {}
    for record in one.records:
        own = [
            m
            for m in record.metrics
            if m.check == check and m.name == "busbw" and m.rank is None and m.size
        ]
        if record.step == step and own and len(record.hosts) == 2:
            top = max(m.size or 0 for m in own)
            best = {
                p: [m.value for m in own if m.placement is p and m.size == top] for p in Placement
            }
            found[record.log] = (record.hosts, min(max(v) for v in best.values() if v))
    return found


def claims(verdict: Verdict) -> Iterator[Finding]:
    """Yield the findings that some pairs are slower than others."""
    for check in verdict.checks:
        for finding in check.findings:
            if finding.judgement is Judgement.POPULATION and finding.executions and finding.metric:
                yield finding


@pytest.mark.parametrize("run", runs())
def test_a_finding_names_only_steps_in_which_its_pairs_are_slower(run: PooledRun) -> None:
    assert_measured(all_judged(run))


def assert_measured(found: Sequence[Judged]) -> None:
    """Recompute what the findings on pairs claim from the records of the steps that they name."""
    for one in found:
        noise = one.plan.machine.noise
        for finding in claims(one.verdict):
            named = [s.id for s in one.plan.steps if f"(step {s.id})" in finding.message]
            known = {name: speeds(one, name, finding.check) for name in named}
            assert finding.executions is not None
            assert finding.executions.bad > finding.executions.total / 2
            for log in finding.evidence:
                (of,) = (own for own in known.values() if log in own)
                pair, value = of[log]
                assert set(finding.hosts) <= set(pair)
                fastest = sorted(value for _, value in of.values())[-3:]
                assert value < (1 - _SIGMAS * noise) * median(fastest), (log, value, fastest)
            for name, own in known.items():
                assert set(own) & set(finding.evidence) or len(finding.evidence) == 8, name
                values = [v for pair, v in own.values() if set(finding.hosts) & set(pair)]
                others = [v for pair, v in own.values() if not set(finding.hosts) & set(pair)]
                if finding.hosts:
                    slow = sum(v < (1 - _SIGMAS * noise) * max(others) for v in values)
                    assert 2 * slow > len(values), (name, values, others)


@pytest.mark.parametrize("run", runs())
def test_each_claim_is_made_once(run: PooledRun) -> None:
    """One finding lists all steps that show the same pairs to be slower."""
    for one in all_judged(run):
        found = [(f.check, f.hosts, f.state) for f in claims(one.verdict) if f.hosts]
        assert len(found) == len(set(found))


def test_no_node_is_accused_on_healthy_logs_in_a_step_where_it_is_normal() -> None:
    (run,) = (run for run in runs() if run.name == "public-logs")
    for one in all_judged(run):
        assert not one.verdict.suspects
        assert not node_lists(one.verdict).bad


# -- a collapse across two groups is never a pass -------------------------------------------------


def _injected(folder: Path, group: Sequence[str], checks: Sequence[str], share: float) -> Verdict:
    """Judge real logs in which pairs across the edge of a group collapse in some collectives."""
    for path in REPOSITORY.rglob("nccl_N2_*.log"):
        parts = path.read_text().split("# Collective test starting: ")
        across = sum(host in path.name for host in group) == 1
        made = [
            slowed(part, lambda _: share)
            if across and part.split("_perf")[0].replace("_", "-") in checks
            else part
            for part in parts
        ]
        (folder / path.name).write_text("# Collective test starting: ".join(made))
    expect = tuple(f"{check}@8G>=1" for check in ("alltoall", "sendrecv"))
    return judge_path(str(folder), GivenBounds("gpu", expect)).verdict


@pytest.mark.sampled
@pytest.mark.parametrize("share", _COLLAPSED)
@pytest.mark.parametrize("checks", [("alltoall",), ("sendrecv",), ("alltoall", "sendrecv")])
@pytest.mark.parametrize(
    "group", [HOSTS[:2], (*HOSTS[:2], HOSTS[7]), HOSTS[:5], HOSTS[8:]], ids="-".join
)
def test_real_logs_with_a_collapse_across_two_groups_never_pass(
    tmp_path: Path, group: Sequence[str], checks: Sequence[str], share: float
) -> None:
    verdict = _injected(tmp_path, group, checks, share)
    assert verdict.state is not State.PASS
    states = {check.check: check.state for check in verdict.checks}
    assert all(states[check] is not State.PASS for check in checks)


_STEPS = tuple(
    step(check, "pairs", rounds=5, number=number, repeats=0)
    for number, check in enumerate(("all-reduce", "all-gather", "reduce-scatter", "alltoall"), 10)
)


def _of_blocks(near_far: Callable[[str], float], *firsts: int) -> Judged:
    """Judge 16 hosts in blocks, two by default; pairs across them reach a share of normal.

    `near_far`: collective -> the share. `firsts`: the numbers of the first hosts of the blocks.
    """
    count = 16
    names = hosts(count)
    block = {f"h{i}": sum(i >= first for first in firsts or (8,)) for i in range(count)}
    inventory, listed = gpu_inventory(count)
    records = []
    for of in _STEPS:

        def speed(group: Group, check: str = of.checks[0]) -> float:
            across = len({block[host] for host in group.hosts}) > 1
            wave = sum(int(host[1:]) for host in group.hosts) % 5
            return 400 * (near_far(check) if across else 1.0) * (1 + 0.002 * wave)

        records += measured(of, names, speed, ranks=8)
    references = tuple(replace(FLOOR, check=of.checks[0], lower=1.0) for of in _STEPS)
    of_gpus = gpu_plan(inventory, *_STEPS, references=references)
    records = [hosts_record(names), *listed, *records]
    return Judged(verdict=judged(of_gpus, *records), plan=of_gpus, records=tuple(records))


@pytest.mark.parametrize("share", _COLLAPSED)
@pytest.mark.parametrize("near", [1.0, 0.9])
@pytest.mark.parametrize("check", ["all-reduce", "alltoall"])
def test_a_collapse_of_one_collective_across_two_blocks_is_a_fault_of_the_network(
    check: str, near: float, share: float
) -> None:
    verdict = _of_blocks(lambda name: share if name == check else near).verdict
    assert verdict.state in (State.FAIL, State.DEGRADED)
    (suspect,) = verdict.suspects
    assert suspect.kind in (SuspectKind.BORDER, SuspectKind.SWITCH)
    assert [one.check for one in verdict.checks if one.state is not State.PASS] == [check]


@pytest.mark.parametrize("near", [1.0, 0.95, 0.9, 0.87])
def test_distance_between_two_blocks_passes(near: float) -> None:
    verdict = _of_blocks(lambda _: near).verdict
    assert (verdict.state, verdict.suspects) == (State.PASS, ())


def test_a_host_alone_under_its_switch_is_named_only_for_the_collective_in_which_it_is_far() -> (
    None
):
    one = _of_blocks(lambda check: 0.9 if check == "all-reduce" else 1.0, 8, 15)
    assert_measured([one])
    named = [(finding.check, finding.hosts) for finding in claims(one.verdict) if finding.hosts]
    assert named == [("all-reduce", ("h15",))]
    assert not one.verdict.suspects
    states = {check.check: check.state for check in one.verdict.checks}
    assert [check for check, state in states.items() if state is not State.PASS] == ["all-reduce"]


# -- fewer than four hosts ------------------------------------------------------------------------

_PAIRS = step("all-reduce", "pairs", rounds=3)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
def test_unequal_pairs_of_three_hosts_are_reported_with_their_figures(share: float) -> None:
    """Nothing shows which speed is normal, so no node is good, and none is bad."""
    names = hosts(3)
    pairs = [*combinations(names, 2)]
    speed = dict(zip(map(frozenset, pairs), (10 * share, 10.0, 10 * share), strict=True))
    verdict = judged(
        plan(_PAIRS),
        hosts_record(names),
        *measured(_PAIRS, names, lambda group: speed[frozenset(group.hosts)]),
    )
    assert (verdict.state, verdict.suspects) == (State.INCONCLUSIVE, ())
    lists = node_lists(verdict)
    assert (lists.good, lists.bad) == ((), ())
    (finding,) = (f for c in verdict.checks for f in c.findings if f.state is not State.PASS)
    assert all(" - ".join(pair) in finding.message for pair in pairs)
    assert f"{10 * share:g} GB/s" in finding.message


def test_equal_pairs_of_three_hosts_pass() -> None:
    names = hosts(3)
    verdict = judged(
        plan(_PAIRS),
        hosts_record(names),
        *measured(_PAIRS, names, lambda _: 10.0),
    )
    assert verdict.state is State.PASS
