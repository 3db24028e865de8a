"""A lost host costs the run that host only: the others keep their verdict, on every screen.

Every run of the pool is judged again as if one good host had never answered, had been lost before
the first step, or had needed a second launch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree

import pytest
from tests.factories.judging import ALL, EACH, PAIRS
from tests.factories.judging import judged as judged_invented
from tests.factories.verdicts import hosts, hosts_record, measured, plan, slow
from tests.promises.pool import Kind, PooledRun, runs

from accept.commands.explain import explain
from accept.commands.judged import Judged, judge_path
from accept.commands.retest import compared
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.facts import LEFT_OUT_HOST
from accept.core.judge import HOSTS_STEP, judge
from accept.core.judge.summary import node_lists, not_good, tolerated
from accept.core.plan import LeftOutNode, Plan
from accept.core.records import Fact, FailedLaunch, Problem, Record
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.report.text import table
from accept.core.verdict import CheckVerdict, State, Verdict

#: With fewer hosts, the rest cannot be compared, or has no network.
_LEAST_HOSTS = 3
#: Causes of an absence -> True if the host is bad then; otherwise it is not tested.
_ABSENCES = {
    Cause.UNREACHABLE_REFUSED: True,
    Cause.HOST_DIED: True,
    Cause.CUT_OFF: True,
    Cause.GPU_MISSING: True,
    Cause.NOT_REGISTERED: False,
    Cause.HOST_KEY_UNKNOWN: False,
}
#: Three hosts cannot show which of them is slow, so a run with a bad one needs four others.
_LEAST_WITH_BAD = 4
#: Runs of the pool, and numbers of healthy hosts of an invented run.
_RUNS: tuple[PooledRun | int, ...] = (*runs(Kind.EVIDENCE), 3, 8, 9)


@cache
def _judged(run: PooledRun | int) -> Judged:
    if isinstance(run, PooledRun):
        return judge_path(str(run.folder))
    names = hosts(run)
    records = [hosts_record(names)]
    records += [one for step in (ALL, EACH, PAIRS) for one in measured(step, names, slow())]
    planned = plan(ALL, EACH, PAIRS, nodes=run)
    return Judged(verdict=judged_invented(planned, *records), plan=planned, records=tuple(records))


def _with_good_hosts(run: PooledRun | int) -> tuple[Judged, str]:
    """Return the run's judgement, and a good host; skip runs that have too few."""
    judged = _judged(run)
    if judged.plan.require_all_nodes:
        pytest.skip("the run requires all nodes")
    good = node_lists(judged.verdict).good
    if node_lists(judged.verdict).bad and len(judged.verdict.hosts) <= _LEAST_WITH_BAD:
        pytest.skip("the other three hosts do not show which one is slow")
    if len(judged.verdict.hosts) < _LEAST_HOSTS or len(good) < _LEAST_HOSTS or judged.plan.origin:
        pytest.skip("fewer than three good hosts")
    return judged, good[-1]


def _again(judged: Judged, plan: Plan, records: Sequence[Record]) -> Verdict:
    before = judged.verdict
    verdict = judge(
        plan,
        records,
        checks=REGISTRY,
        attempt=before.attempt,
        interruption=before.interruption,
        end=before.end,
    )
    # Who vouches for the evidence is not the judge's.
    return replace(verdict, version=before.version, verified=before.verified)


# A host that is absent


def _without(value: object, host: str, ranks: int) -> object:
    """Return the value of a fact without what it reports about a host and its `ranks`."""
    if isinstance(value, Mapping):
        fewer = {"ranks": total - ranks} if isinstance(total := value.get("ranks"), int) else {}
        rest = {key: _without(one, host, ranks) for key, one in value.items() if key != host}
        return {**rest, **fewer}
    if isinstance(value, list):
        return [
            _without(one, host, ranks)
            for one in value
            if not (isinstance(one, Mapping) and one.get("host") == host) and one != host
        ]
    return value


def _smaller(record: Record, host: str) -> Record:
    """Return the execution of a group as if the host had not been in it."""
    ranks = record.ranks // max(1, len(record.hosts))
    return replace(
        record,
        hosts=tuple(one for one in record.hosts if one != host),
        ranks=max(0, record.ranks - ranks),
        metrics=tuple(m for m in record.metrics if m.host != host),
        facts=tuple(
            replace(f, value=_without(f.value, host, ranks)) for f in record.facts if f.host != host
        ),
        problems=tuple(p for p in record.problems if p.host != host),
    )


def _idle(records: Sequence[Record], hosts: Sequence[str], step: str, wave: int) -> str | None:
    """Return the host that sits out a round of pairs; None if all are paired."""
    paired = {h for r in records if (r.step, r.wave) == (step, wave) for h in r.hosts}
    return next((host for host in hosts if host not in paired), None)


def _renamed(record: Record, old: str, new: str) -> Record:
    """Return the execution with another host in the place of one."""
    text = json.dumps([old])[1:-1]
    facts = json.loads(json.dumps([f.value for f in record.facts]).replace(text, json.dumps(new)))
    return replace(
        record,
        hosts=tuple(new if one == old else one for one in record.hosts),
        metrics=tuple(replace(m, host=new) if m.host == old else m for m in record.metrics),
        facts=tuple(
            replace(f, value=value, host=new if f.host == old else f.host)
            for f, value in zip(record.facts, facts, strict=True)
        ),
    )


def _steps_without(judged: Judged, host: str) -> Iterator[Record]:
    """Yield the executions that a run without the host would have left."""
    records, hosts = judged.records, judged.verdict.hosts
    of_pairs = {step.id for step in judged.plan.steps if step.groups.of_pairs}
    for record in records:
        if record.step == HOSTS_STEP:
            continue
        if host not in record.hosts:
            yield record
        elif len(record.hosts) > 2 and record.step not in of_pairs:
            yield _smaller(record, host)
        elif len(record.hosts) == 2 and (idle := _idle(records, hosts, record.step, record.wave)):
            yield _renamed(record, host, idle)


def _answers_without(judged: Judged, problem: Problem, first: int) -> Iterator[Record]:
    """Yield what the hosts reported: the host of the problem is absent from reading `first` on."""
    host = problem.host or ""
    answers = [record for record in judged.records if record.step == HOSTS_STEP]
    if first > 0 and all(record.wave < first for record in answers):
        answers.append(replace(answers[0], wave=first, facts=(), metrics=(), problems=()))
    for record in answers:
        if record.wave < first:
            yield record
        else:
            rest = _smaller(record, host)
            if record.wave == first:
                rest = replace(rest, problems=(*rest.problems, problem))
                if problem.cause.row.sets_aside:
                    name, value = LEFT_OUT_HOST.name, problem.cause.value
                    fact = Fact(name=name, value=value, check="hosts", host=host)
                    rest = replace(rest, facts=(*rest.facts, fact))
            yield rest


def _with_absent_host(judged: Judged, cause: Cause, host: str) -> Verdict:
    problem = Problem(cause=cause, message=f"{host}: absent", check="hosts", host=host)
    first = 1 if cause.row.loses_host or cause.row.sets_aside else 0
    answers = _answers_without(judged, problem, first)
    return _again(judged, judged.plan, (*answers, *_steps_without(judged, host)))


@pytest.mark.parametrize("cause", _ABSENCES)
@pytest.mark.parametrize("run", _RUNS)
def test_an_absent_host_is_bad_or_not_tested_and_the_others_stay_good(
    run: PooledRun | int, cause: Cause
) -> None:
    judged, host = _with_good_hosts(run)
    before = node_lists(judged.verdict)
    verdict = _with_absent_host(judged, cause, host)
    after = node_lists(verdict)
    is_bad = _ABSENCES[cause]
    assert (verdict.state, verdict.exit) == (State.DEGRADED, 3), verdict.headline
    assert {*after.bad} == {*before.bad} | ({host} if is_bad else set())
    assert {*after.good} == {*before.good} - {host}
    assert {*after.untested} == {*before.untested} | (set() if is_bad else {host})
    _screens_agree(judged, verdict)
    limit = len(before.bad) + 1
    assert tolerated(verdict, limit - 1).exit == 3
    assert (tolerated(verdict, limit).exit, tolerated(verdict, limit).accepted) == (0, True)
    if is_bad and judged.verdict.state is State.PASS:
        # The run on all hosts is like a retest after the repair.
        first = replace(judged, verdict=verdict)
        result = compared(first, judged, verdict.suspects)
        assert [one.outcome for one in result.suspects] == ["closed"]
        assert (result.exit, result.accepted) == (0, True), result.reason


@pytest.mark.parametrize("cause", [Cause.NOT_REGISTERED, Cause.UNREACHABLE_REFUSED])
@pytest.mark.parametrize("run", _RUNS)
def test_a_run_that_requires_all_nodes_fails_without_one(
    run: PooledRun | int, cause: Cause
) -> None:
    judged, host = _with_good_hosts(run)
    judged = replace(judged, plan=replace(judged.plan, require_all_nodes=True))
    verdict = _with_absent_host(judged, cause, host)
    assert (verdict.state, verdict.exit) == (State.FAIL, 3)
    assert not node_lists(verdict).good
    assert tolerated(verdict, len(verdict.hosts)).exit == 3


def _screens_agree(judged: Judged, verdict: Verdict) -> None:
    """Compare screen, last line, pages and explanation with the lists of nodes."""
    lists = node_lists(verdict)
    screen = table(verdict)
    total = len(verdict.hosts) + len(verdict.missing)
    assert screen.startswith(f"▲ {len(lists.good)} OF {total} NODES GOOD ")
    assert not_good(verdict)[0] in screen.partition(" keep back ")[2].split(" · ")[0]
    fields = dict(word.split("=", 1) for word in screen.splitlines()[-1].split()[2:])
    assert int(fields["good"]) == len(lists.good)
    assert fields["bad"] == (",".join(lists.bad) or "none")
    assert int(fields["untested"]) == len(lists.untested)
    absent = sum(host in lists.untested for host in verdict.missing)
    assert ("did not take part" in screen) == bool(absent)
    page = render_markdown(verdict, judged.plan)
    states = dict(re.findall(r"^\| (\S+) \| (good|bad|untested) \|", page, re.MULTILINE))
    cases = ElementTree.fromstring(junit(verdict, judged.records).encode())
    failed = {one.get("name") for one in cases.iter("testcase") if one.findall("failure")}
    assert failed.isdisjoint(lists.good)
    shown = replace(judged, verdict=verdict)
    for state, own in vars(lists).items():
        for host in own:
            assert states[host.replace("_", r"\_")] == state
            assert explain(shown.run, host).state == state


# A launch that failed once


def _comparable(verdict: Verdict) -> Verdict:
    """Return the verdict without notes: findings that are a pass."""

    def without_notes(check: CheckVerdict) -> CheckVerdict:
        notes = tuple(f for f in check.findings if f.cause is not Cause.LAUNCH_FAILED)
        return replace(check, findings=notes)

    return replace(verdict, checks=tuple(map(without_notes, verdict.checks)))


def _measured(records: Iterable[Record]) -> Record | None:
    return next((r for r in records if r.step != HOSTS_STEP and r.exit == 0 and r.log), None)


@pytest.mark.parametrize("run", _RUNS)
def test_a_launch_that_failed_once_changes_only_a_note(run: PooledRun | int) -> None:
    judged = _judged(run)
    first = _measured(judged.records)
    if first is None:
        pytest.skip("no execution ended well")
    launch = FailedLaunch(message="the launch ended with status 250", log=first.log)
    records = [
        replace(record, failed_launch=launch) if record is first else record
        for record in judged.records
    ]
    verdict = _again(judged, judged.plan, records)
    assert _comparable(verdict) == _comparable(judged.verdict)
    notes = [f for c in verdict.checks for f in c.findings if f.cause is Cause.LAUNCH_FAILED]
    assert any(f.state is State.PASS and launch.log in f.evidence for f in notes)


# Nodes that the run left out


@pytest.mark.parametrize("run", _RUNS)
def test_a_node_that_was_left_out_is_not_tested_on_every_screen(run: PooledRun | int) -> None:
    judged = _judged(run)
    node = LeftOutNode(name="n-drained", reason="drained: broken fan")
    planned = replace(judged.plan, left_out=(node,))
    verdict = _again(judged, planned, judged.records)
    assert replace(verdict, left_out=()) == judged.verdict
    before, after = node_lists(judged.verdict), node_lists(verdict)
    assert (after.good, after.bad) == (before.good, before.bad)
    assert after.untested == (*before.untested, node.name)
    assert f"untested={len(after.untested)} " in table(verdict)
    shown = replace(judged, verdict=verdict, plan=planned)
    assert explain(shown.run, node.name).state == "untested"
    for page in (render_markdown(verdict, planned), junit(verdict, judged.records)):
        assert node.name in page
        assert "broken fan" in page
