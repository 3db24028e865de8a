"""From records to a verdict: pure functions, the same answer wherever and whenever they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from accept.core.causes import CONSEQUENCES
from accept.core.errors import Exit
from accept.core.judge import bounds, groups, hosts, summary
from accept.core.judge.completeness import problem_findings
from accept.core.judge.crosscheck import shares_by_log, without_explained
from accept.core.judge.evidence import CheckRules, Checks, Evidence, Judged
from accept.core.judge.groups import scored
from accept.core.judge.summary import verdict_of, worst
from accept.core.judge.suspects import HOSTS_STEP, ends, from_records, host_of, merged
from accept.core.judge.topology import find_blocks
from accept.core.model import (
    EXITS,
    SCHEMA,
    CheckVerdict,
    Finding,
    Metric,
    Plan,
    Problem,
    Record,
    State,
    Step,
    Suspect,
    Verdict,
    worst_exit,
)


def judge(
    plan: Plan,
    records: Sequence[Record],
    *,
    checks: Checks,
    attempt: str,
    broken_off: str = "",
) -> Verdict:
    """Judge a run by its plan and records alone. Never raises, whatever the records hold.

    A check that is not among `checks` was not tested. `broken_off`: why the run ended early; empty:
    it did not.
    """
    found = hosts.find(records)
    evidences = _evidences(plan, records, found, broken_off, checks, steps=plan.steps)
    if near := found.domains or find_blocks(scored(evidences.values(), checks), found.places):
        evidences = {name: replace(one, near=near) for name, one in evidences.items()}
    reached = shares_by_log(scored(evidences.values(), checks)) if plan.origin else {}
    if reached:
        evidences = {name: replace(one, shares=reached) for name, one in evidences.items()}
    judged = {name: _judged(evidence, checks) for name, evidence in evidences.items()}
    for one, score in scored(evidences.values(), checks):
        if told := tuple(groups.intermittent_findings(one, score)):
            judged[one.check] = _with(judged[one.check], told)
    accused = [
        *from_records(map(_unblamed, records) if plan.origin else records, len(found.present))
    ]
    accused += [suspect for one in judged.values() for suspect in one.suspects]
    suspects = merged(accused, (*found.present, *found.missing))
    if plan.origin:
        suspects = without_explained(suspects, reached)
    verdicts = [one.verdict for one in judged.values()]
    verdicts.insert(0, hosts.verdict(plan, found, records, _untold(records, verdicts)))
    verdicts = hosts.with_skipped([*verdicts, *bounds.verdicts_without_step(plan)], plan.skipped)
    gpu = hosts.gpu_tested(plan, records)
    # An excused check that did not run must not hide that no GPU was seen.
    passed = State.PASS in (worst(v.state for v in verdicts), _overall(verdicts, ""))
    if plan.machine.gpus != 0 and not gpu and passed:
        verdicts.append(hosts.no_gpu_seen())
    state = _overall(verdicts, broken_off)
    if state is State.PASS and suspects:
        state = State.FAIL
    if (
        state is State.FAIL
        and not broken_off
        and _rest_passes(verdicts, evidences, suspects, checks)
    ):
        state = State.DEGRADED
        verdicts = [
            replace(one, state=State.DEGRADED) if one.state is State.FAIL else one
            for one in verdicts
        ]
    exit_code = worst_exit((EXITS[state], *([Exit.BROKEN_OFF] if broken_off else [])))
    if plan.planted and exit_code is Exit.PASS:
        exit_code = Exit.INCONCLUSIVE
    verdict = Verdict(
        schema=SCHEMA,
        state=state,
        accepted=state is State.PASS and not plan.planted,
        headline="",
        machine=plan.machine.name,
        suite=plan.suite,
        run=plan.hash,
        attempt=attempt,
        gpu_tested=gpu,
        part=_part(plan),
        origin=plan.origin,
        hosts=found.present,
        missing=found.missing,
        checks=tuple(verdicts),
        suspects=suspects,
        exit=int(exit_code),
        planted=plan.planted,
        broken_off=broken_off,
    )
    return replace(verdict, headline=summary.headline(verdict), advice=summary.advice(verdict))


def failures(
    plan: Plan, step: Step, records: Sequence[Record], *, checks: Checks
) -> tuple[Finding, ...]:
    """Return the failed findings of one step, as the verdict would have them if the run ended here.

    Like `judge` it never raises.
    """
    evidences = _evidences(plan, records, hosts.find(records), "", checks, steps=(step,))
    found = (
        f for evidence in evidences.values() for f in _judged(evidence, checks).verdict.findings
    )
    return tuple(finding for finding in found if finding.state is State.FAIL)


def _untold(records: Sequence[Record], verdicts: Sequence[CheckVerdict]) -> tuple[Problem, ...]:
    """Problems that no check answers for, and none tells of: said beside the checks, or of others.

    What a check excuses in a record of its own is its to excuse.
    """
    told = {f.cause for one in verdicts for f in one.findings if f.state is not State.PASS}
    return tuple(
        problem
        for record in records
        for problem in record.problems
        if problem.cause not in told
        and (record.step == HOSTS_STEP or problem.check not in (None, *record.checks))
    )


def _unblamed(record: Record) -> Record:
    """A record without what a log of two hosts says after it failed: either may be the cause."""
    if len(record.hosts) != 2:
        return record
    kept = tuple(p for p in record.problems if p.cause not in CONSEQUENCES)
    return replace(record, problems=kept)


def _part(plan: Plan) -> str:
    """Which part of each node was tested, where it was not all of it."""
    used, there = plan.gpus_used, plan.machine.gpus
    if used is None or used == there:
        return ""
    return f"{used}{f' of the {there}' if there else ''} GPUs of each node"


def _evidences(
    plan: Plan,
    records: Sequence[Record],
    found: hosts.Found,
    broken_off: str,
    checks: Checks,
    *,
    steps: Sequence[Step],
) -> dict[str, Evidence]:
    """Return what each check of `steps` is judged by, in the order of the plan."""
    by_step: dict[str, list[Record]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    steps_of: dict[str, list[Step]] = {}
    shares: dict[str, list[Record]] = {}
    for step in steps:
        for name, share in _shares(step, by_step.get(step.id, []), checks).items():
            steps_of.setdefault(name, []).append(step)
            shares.setdefault(name, []).extend(share)
    devices = hosts.devices(records)
    asked = by_step.get(HOSTS_STEP, [])
    return {
        name: Evidence(
            check=name,
            plan=plan,
            steps=tuple(mine),
            records=tuple(shares[name]),
            hosts=found.present,
            missing=found.missing,
            lost=found.lost,
            places=found.places,
            domains=found.domains,
            hostnames=found.hostnames,
            asked=tuple(_of_check(record, name) for record in asked),
            devices=devices,
            broken_off=broken_off,
        )
        for name, mine in steps_of.items()
    }


def _of_check(record: Record, name: str) -> Record:
    """A record of asking the hosts with what it brought for one check."""
    metrics = tuple(m for m in record.metrics if m.check == name)
    return replace(record, metrics=metrics, facts=tuple(f for f in record.facts if f.check == name))


def _shares(step: Step, records: Sequence[Record], checks: Checks) -> dict[str, Sequence[Record]]:
    """The records of a step for each of its checks, with the metrics of that check alone.

    Each check would go through the metrics of all of them otherwise.
    """
    if len(step.checks) == 1:
        return {step.checks[0]: records}
    shares: dict[str, list[Record]] = {name: [] for name in step.checks}
    for record in records:
        found = _by_check(record.metrics)
        mine = {name: replace(record, metrics=tuple(found.get(name, ()))) for name in shares}
        failed = record.exit != 0 or record.problems
        if failed and all(_done(checks.get(name), name, one, step) for name, one in mine.items()):
            # None of the others can have failed, so what did is the last one's.
            last = step.checks[-1]
            mine[last] = replace(mine[last], checks=(last,))
        for name, one in mine.items():
            shares[name].append(one)
    return dict(shares)


def _done(rules: CheckRules | None, name: str, record: Record, step: Step) -> bool:
    """Return True if a check of a shared launch measured everything and has no problem."""
    score = rules.score if rules is not None else None
    value, bad = score(record, step) if score else (1.0 if record.metrics else None, "")
    return value is not None and not bad and all(p.check != name for p in record.problems)


def _by_check(metrics: Sequence[Metric]) -> dict[str, list[Metric]]:
    found: dict[str, list[Metric]] = {}
    for name, some in groupby(metrics, key=attrgetter("check")):
        found.setdefault(name, []).extend(some)
    return found


def _judged(evidence: Evidence, checks: Checks) -> Judged:
    rules = checks.get(evidence.check)
    if rules is None:
        if evidence.plan.origin:
            # Nobody requested it, but its problems count.
            return Judged(verdict_of(evidence, problem_findings(evidence)))
        message = f"this version of accept has no check {evidence.check!r}"
        finding = Finding(
            check=evidence.check,
            judgement="completeness",
            state=State.NOT_TESTED,
            message=message,
            cause="tool-missing",
        )
        return Judged(
            CheckVerdict(
                check=evidence.check,
                state=State.NOT_TESTED,
                optional=evidence.optional,
                findings=(finding,),
            )
        )
    return rules.judge(evidence)


def _with(judged: Judged, findings: tuple[Finding, ...]) -> Judged:
    verdict = judged.verdict
    state = worst((verdict.state, *(finding.state for finding in findings)))
    verdict = replace(verdict, state=state, findings=(*verdict.findings, *findings))
    return judged._replace(verdict=verdict)


def _overall(verdicts: Sequence[CheckVerdict], broken_off: str) -> State:
    """The worst state. An optional check may be left out or lack a bound; it may not fail.

    That the hosts answered is no test: where every check was excused, nothing was tested.
    """
    excused = (State.NOT_TESTED, State.INCONCLUSIVE)
    states = [one.state for one in verdicts if not (one.optional and one.state in excused)]
    if broken_off or len(states) < 2:
        states.append(State.NOT_TESTED)
    return worst(states)


def _rest_passes(
    verdicts: Sequence[CheckVerdict],
    evidences: dict[str, Evidence],
    suspects: Sequence[Suspect],
    checks: Checks,
) -> bool:
    """Whether everything ran, and each failed check passes without what touches a suspect.

    A check of which nothing is left then has not shown that the rest passes.
    """
    for verdict in verdicts:
        if verdict.state in (State.PASS, State.DEGRADED):
            continue
        if verdict.state is not State.FAIL:
            if verdict.optional:
                continue
            return False
        evidence = evidences.get(verdict.check)
        failed = [f for f in verdict.findings if f.state is State.FAIL]
        if evidence is None or any(f.judgement == "completeness" for f in failed):
            return False
        kept = tuple(r for r in evidence.records if not any(_touches(r, s) for s in suspects))
        ran = {record.step for record in kept}
        rest = replace(
            evidence,
            records=kept,
            steps=tuple(step for step in evidence.steps if step.id in ran),
            asked=tuple(_without(record, suspects) for record in evidence.asked),
            partial=True,
        )
        if not kept or _judged(rest, checks).verdict.state is not State.PASS:
            return False
    return bool(suspects)


def _without(record: Record, suspects: Sequence[Suspect]) -> Record:
    """A record of asking the hosts without what it says of suspects."""
    named = {host_of(suspect) for suspect in suspects if suspect.kind in ("node", "gpu", "nic")}
    return replace(
        record,
        metrics=tuple(m for m in record.metrics if m.host not in named),
        facts=tuple(f for f in record.facts if f.host not in named),
    )


def _touches(record: Record, suspect: Suspect) -> bool:
    """Whether a suspect took part in an execution."""
    if suspect.kind == "rail":
        rail = suspect.name.rpartition(" ")[2]
        return not record.local_ranks or rail in map(str, record.local_ranks)
    if suspect.kind in ("link", "switch"):
        return set(ends(suspect)) <= set(record.hosts)
    return host_of(suspect) in record.hosts


__all__ = ["HOSTS_STEP", "failures", "judge"]
