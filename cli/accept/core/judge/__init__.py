"""Turn records into a verdict with pure functions: the same input gives the same verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice

from accept.core import sentences
from accept.core.causes import Cause, Judgement
from accept.core.errors import Exit
from accept.core.facts import inventories_of
from accept.core.judge import bounds, coverage, hosts, tools, versions
from accept.core.judge.completeness import step_findings
from accept.core.judge.conclusion import conclude
from accept.core.judge.effects.executions import Flow
from accept.core.judge.evidence import CheckRules, Checks, Evidence, Found, Judged
from accept.core.judge.explained import Effects
from accept.core.judge.findings import finding
from accept.core.judge.ranges import ranges, scaling
from accept.core.judge.results import compare, scored
from accept.core.judge.summary import with_finding, worst_state
from accept.core.judge.suspects import HOSTS_STEP, from_records, merged
from accept.core.plan import SCHEMA, Plan, Skipped, Step
from accept.core.records import Problem, Record
from accept.core.table import Execution, Outcome, result_of
from accept.core.text import count
from accept.core.verdict import (
    EXITS,
    CheckVerdict,
    Finding,
    KeptSteps,
    MeasuredRange,
    State,
    Strength,
    Suspect,
    SuspectKind,
    Verdict,
    worst_exit,
)

#: Name of the rules that find bad parts (docs/blame.md).
RULES = "effects"
#: Times from this on (in the year 5138) are damage.
_LATEST = 1e11


def judge(
    plan: Plan,
    records: Sequence[Record],
    *,
    checks: Checks,
    attempt: str,
    interruption: str = "",
    end: float = 0.0,
) -> Verdict:
    """Return the verdict on a run, from its plan and records alone. Never raises.

    A check that is not in `checks` was not tested. `interruption` is the reason why the run
    ended early; empty if it did not. `end` is the time at which an interrupted run ended, because
    its records end with the last execution that finished; 0: unknown.
    """
    plan = _without_needless(_until_failure(plan, records, checks), records, checks)
    found, evidences = gathered(plan, records, checks=checks, interruption=interruption)
    effects = compare(scored(evidences.values(), checks))
    evidences = {name: replace(e, effects=effects) for name, e in evidences.items()}
    judged = {name: _judge_check(evidence, checks) for name, evidence in evidences.items()}
    inventories = inventories_of(records, found.present)
    for note in versions.findings(plan, evidences.values(), inventories):
        own = judged[note.check]
        judged[note.check] = own._replace(verdict=with_finding(own.verdict, note))
    accused = [s for one in judged.values() for s in one.suspects]
    suspects = _suspects(plan, records, found, accused, effects)
    verdicts = [one.verdict for one in judged.values()]
    verdicts.insert(0, hosts.verdict(plan, found, records, _unreported(records, verdicts)))
    verdicts = hosts.with_skipped([*verdicts, *bounds.verdicts_without_step(plan)], plan.skipped)
    gpu_tested = hosts.gpu_tested(plan, records)
    # An optional check that did not run must not hide that no check detected a GPU.
    passed = State.PASS in (worst_state(v.state for v in verdicts), _overall(verdicts, ""))
    # Files of others about something else, such as a network test, claim nothing about GPUs.
    of_gpus = not plan.origin or any(coverage.loads_gpus(step, checks) for step in plan.steps)
    if plan.machine.gpus != 0 and not gpu_tested and passed and of_gpus:
        verdicts.append(hosts.no_gpu_seen())
    covered = coverage.coverage(plan, records, found, checks)
    if nics := coverage.nics_verdict(plan, covered, found, checks):
        verdicts.append(nics)
    state = _overall(verdicts, interruption)
    if state is State.PASS and suspects:
        state = State.FAIL
    if (
        state is State.FAIL
        and not interruption
        and _passes_without(suspects, plan, found, verdicts, evidences, checks)
    ):
        state = State.DEGRADED
        verdicts = [
            replace(verdict, state=State.DEGRADED) if verdict.state is State.FAIL else verdict
            for verdict in verdicts
        ]
    exit_code = worst_exit((EXITS[state], *([Exit.INTERRUPTED] if interruption else [])))
    if plan.injected and exit_code is Exit.PASS:
        exit_code = Exit.INCONCLUSIVE
    ends = [*(record.end for record in records), *([end] if interruption and records else [])]
    verdict = Verdict(
        schema=SCHEMA,
        rules=RULES,
        state=state,
        accepted=state is State.PASS and not plan.injected,
        headline="",
        machine=plan.machine.name,
        suite=plan.suite,
        run=plan.hash,
        attempt=attempt,
        gpu_tested=gpu_tested,
        part=_part(plan),
        caveat=plan.machine.caveat,
        origin=plan.origin,
        hosts=found.present,
        missing=found.missing,
        left_out=plan.left_out,
        checks=tuple(verdicts),
        suspects=suspects,
        exit=int(exit_code),
        coverage=covered,
        injected=tuple(fault.text for fault in plan.injected),
        edited=plan.edited,
        kept=_kept(plan, records),
        not_run=tuple(skip for skip in plan.skipped if skip.cause is Cause.DESELECTED),
        interruption=interruption,
        start=min((r.start for r in records if 0 < r.start < _LATEST), default=0.0),
        end=max((one for one in ends if 0 < one < _LATEST), default=0.0),
        gpus=sum(len(i.gpus) for i in inventories.values()),
        ranges=tuple(one for evidence in evidences.values() for one in ranges(evidence)),
        scaling=tuple(one for evidence in evidences.values() for one in scaling(evidence)),
        detectable=effects.detectable(),
        version=plan.version,
    )
    return replace(
        verdict,
        headline=sentences.headline(verdict),
        advice=sentences.advice(verdict, plan.machine.faster_profile),
    )


def conclude_step(
    plan: Plan, step: Step, records: Sequence[Record], *, checks: Checks
) -> tuple[tuple[Finding, ...], tuple[MeasuredRange, ...]]:
    """Return the failed findings of one step, as if the run ended here, and a figure per check."""
    _, evidences = gathered(plan, records, checks=checks, steps=(step,))
    judged = [_judge_check(evidence, checks) for evidence in evidences.values()]
    failed = tuple(f for one in judged for f in one.verdict.findings if f.state is State.FAIL)
    return failed, tuple(one for e in evidences.values() for one in islice(ranges(e), 1))


def to_set_aside(
    plan: Plan, step: Step, records: Sequence[Record], *, checks: Checks
) -> dict[str, Suspect]:
    """Return the hosts with a hard fault that one step shows, with the fault. Never raises.

    Collectives with them would say nothing about the others. If more than half of the hosts have
    such a fault, they share a reason, and none is returned.
    """
    found, judged = _judge_steps(plan, (step,), records, checks)
    accused = [suspect for one in judged for suspect in one.suspects]
    own = [record for record in records if record.step == step.id]
    accused += from_records(own, len(found.present))
    faulty = {
        suspect.hosts[0]: suspect
        for suspect in accused
        if suspect.cause.row.sets_aside and not suspect.of_network
    }
    return faulty if 2 * len(faulty) <= len(found.present) else {}


def is_open(plan: Plan, step: Step, records: Sequence[Record], *, checks: Checks) -> bool:
    """Return True if collectives of earlier steps failed or are inconclusive, or if there are none.

    Never raises.
    """
    earlier = plan.steps[: plan.steps.index(step)]
    scored_steps = [
        one
        for one in earlier
        if any((rules := checks.get(name)) and rules.measure for name in one.checks)
    ]
    if not scored_steps:
        return True
    known = {one.id for one in earlier}
    own = [record for record in records if record.step in (*known, HOSTS_STEP)]
    _, judged = _judge_steps(plan, scored_steps, own, checks)
    return any(f.state is not State.PASS for one in judged for f in one.verdict.findings)


def has_final_failure(plan: Plan, step: Step, records: Sequence[Record], *, checks: Checks) -> bool:
    """Return True if the records up to a step are enough to reject the run.

    A comparison with peers alone is not final, because later steps may explain it. Never raises.
    """
    steps = plan.steps[: plan.steps.index(step) + 1]
    verdict = judge(replace(plan, steps=steps, fail_fast=False), records, checks=checks, attempt="")
    return any(
        finding.state is State.FAIL and finding.judgement is not Judgement.POPULATION
        for check in verdict.checks
        for finding in check.findings
    )


def _judge_steps(
    plan: Plan, steps: Sequence[Step], records: Sequence[Record], checks: Checks
) -> tuple[Found, list[Judged]]:
    """Return the hosts, and the conclusions of the checks of some steps."""
    found, evidences = gathered(plan, records, checks=checks, steps=steps)
    return found, [_judge_check(evidence, checks) for evidence in evidences.values()]


def _until_failure(plan: Plan, records: Sequence[Record], checks: Checks) -> Plan:
    """Return the plan of a `--fail-fast` run without the steps after a final failure.

    They stay required, so that nothing passes without them.
    """
    ran = {record.step for record in records}
    last = max((n for n, step in enumerate(plan.steps) if step.id in ran), default=len(plan.steps))
    kept, later = plan.steps[: last + 1], plan.steps[last + 1 :]
    if not (plan.fail_fast and later):
        return plan
    if not has_final_failure(plan, kept[-1], records, checks=checks):
        return plan
    known = {check for step in kept for check in step.checks}
    skipped = dict.fromkeys(
        Skipped(
            check=check,
            reason="--fail-fast",
            cause=Cause.DESELECTED,
            optional=step.optional,
            step=step.id if check in known else "",
        )
        for step in later
        for check in step.checks
    )
    return replace(plan, steps=kept, skipped=(*plan.skipped, *skipped))


def _without_needless(plan: Plan, records: Sequence[Record], checks: Checks) -> Plan:
    """Return the plan without the steps that did not run because there was no open question."""
    ran = {record.step for record in records}
    steps = tuple(
        step
        for step in plan.steps
        if not step.if_open or step.id in ran or is_open(plan, step, records, checks=checks)
    )
    skipped = tuple(
        Skipped(
            check=check,
            reason=f"step {step.id} did not run: earlier steps left no question",
            optional=True,
        )
        for step in plan.steps
        if step not in steps
        for check in step.checks
    )
    return replace(plan, steps=steps, skipped=(*plan.skipped, *skipped))


# Evidence of each check


def gathered(
    plan: Plan,
    records: Sequence[Record],
    *,
    checks: Checks,
    interruption: str = "",
    steps: Sequence[Step] | None = None,
) -> tuple[Found, dict[str, Evidence]]:
    """Return the hosts, and the evidence of each check of `steps` (None: all), in their order."""
    found = hosts.find(records)
    by_step: dict[str, list[Record]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    steps_of: dict[str, list[Step]] = {}
    records_of: dict[str, list[Record]] = {}
    for step in plan.steps if steps is None else steps:
        for name, part in _split_by_check(step, by_step.get(step.id, []), checks).items():
            steps_of.setdefault(name, []).append(step)
            records_of.setdefault(name, []).extend(part)
    devices = hosts.devices(records)
    host_answers = by_step.get(HOSTS_STEP, [])
    return found, {
        name: Evidence(
            check=name,
            plan=plan,
            steps=tuple(check_steps),
            records=tuple(records_of[name]),
            found=found,
            host_answers=tuple(_of_check(record, name) for record in host_answers),
            step_records=by_step,
            devices=devices,
            interruption=interruption,
            flow=rules.flow if (rules := checks.get(name)) else Flow.RAILS,
        )
        for name, check_steps in steps_of.items()
    }


def _of_check(record: Record, name: str) -> Record:
    """Return a record with the metrics and facts of one check only."""
    facts = tuple(fact for fact in record.facts if fact.check == name)
    return replace(_with_metrics(record, name), facts=facts)


def _with_metrics(record: Record, name: str) -> Record:
    """Return a record with the metrics of one check only."""
    return replace(record, metrics=tuple(m for m in record.metrics if m.check == name))


def _split_by_check(
    step: Step, records: Sequence[Record], checks: Checks
) -> dict[str, Sequence[Record]]:
    """Return the records of a step for each of its checks, with the metrics of that check only.

    Otherwise each check would go through the metrics of all checks.
    """
    if len(step.checks) == 1:
        return {step.checks[0]: records}
    parts: dict[str, list[Record]] = {name: [] for name in step.checks}
    for record in records:
        own = {name: _with_metrics(record, name) for name in parts}
        failed = record.exit != 0 or record.problems
        if failed and all(_is_done(checks.get(name), name, r, step) for name, r in own.items()):
            # All checks had finished, so the failure belongs to the last one.
            last = step.checks[-1]
            own[last] = replace(own[last], checks=(last,))
        for name, part in own.items():
            parts[name].append(part)
    return dict(parts)


def _is_done(rules: CheckRules | None, name: str, record: Record, step: Step) -> bool:
    """Return True if a check of a shared launch measured everything and has no problem."""
    if any(problem.check == name for problem in record.problems):
        return False
    if rules is None or rules.measure is None:
        return bool(record.metrics)
    execution = Execution(step, record, alone=True, repeated=False)
    return result_of(execution, name, rules.measure).outcome is Outcome.OK


# Verdicts of checks


def _judge_check(evidence: Evidence, checks: Checks) -> Judged:
    rules = checks.get(evidence.check)
    if rules is not None:
        return rules.judge(evidence)
    if any(step.tool for step in evidence.steps):
        return tools.judge(evidence)
    # The problems of a check of other people's logs count, although nobody requested it.
    text, cause = f"this version of accept has no check {evidence.check!r}", Cause.TOOL_MISSING
    unknown = finding(evidence.check, Judgement.COMPLETENESS, State.NOT_TESTED, text, cause)
    return conclude(evidence, findings=() if evidence.plan.origin else [unknown])


def _unreported(records: Sequence[Record], verdicts: Sequence[CheckVerdict]) -> tuple[Problem, ...]:
    """Return the problems that no check's findings cover.

    A problem in a record of its own check is left to that check.
    """
    reported = {
        f.cause for verdict in verdicts for f in verdict.findings if f.state is not State.PASS
    }
    return tuple(
        problem
        for record in records
        for problem in record.problems
        if problem.cause not in reported
        and (record.step == HOSTS_STEP or problem.check not in (None, *record.checks))
    )


# The verdict on the run


def _suspects(
    plan: Plan,
    records: Sequence[Record],
    found: Found,
    accused: Sequence[Suspect],
    effects: Effects,
) -> tuple[Suspect, ...]:
    """Merge the suspects that records name with those that checks accuse."""
    if plan.origin:
        records = [_without_consequences(record) for record in records]
    named = from_records(records, len(found.present))
    if plan.origin:
        named = (one for one in named if not _is_explained(one, accused))
    return merged([*named, *accused], (*found.present, *found.missing), effects.nics)


def _is_explained(suspect: Suspect, accused: Sequence[Suspect]) -> bool:
    """Return True if another host is blamed for every log that names a host without proof."""
    others = {
        log
        for one in accused
        if one.strength is Strength.STRONG and set(one.hosts).isdisjoint(suspect.hosts)
        for log in one.evidence
    }
    unproven = suspect.strength is not Strength.STRONG
    return unproven and bool(suspect.evidence) and others.issuperset(suspect.evidence)


def _without_consequences(record: Record) -> Record:
    """Remove the consequences of a failure from a log of two hosts: either may be the cause."""
    if len(record.hosts) != 2:
        return record
    kept = tuple(p for p in record.problems if not p.cause.row.consequence)
    return replace(record, problems=kept)


def _kept(plan: Plan, records: Sequence[Record]) -> tuple[KeptSteps, ...]:
    """Return the steps that earlier attempts executed."""
    copied = dict.fromkeys((record.attempt, record.step) for record in records if record.attempt)
    attempts = dict.fromkeys(attempt for attempt, _ in copied)
    kept = {name: tuple(s.id for s in plan.steps if (name, s.id) in copied) for name in attempts}
    return tuple(KeptSteps(attempt=name, steps=steps) for name, steps in kept.items() if steps)


def _part(plan: Plan) -> str:
    """Return which part of each node was tested; empty if it was the full node."""
    used, present = plan.gpus_used, plan.machine.gpus
    if used is None or used == present:
        return ""
    gpus = f"{used} of the {present} GPUs" if present else count(used, "GPU")
    return f"{gpus} of each node"


def _overall(verdicts: Sequence[CheckVerdict], interruption: str) -> State:
    """Return the worst state. An optional check may be left out or lack a bound, but not fail.

    Reachable hosts alone do not make a pass: if all checks were excused, nothing was tested.
    """
    excused = (State.NOT_TESTED, State.INCONCLUSIVE)
    states = [v.state for v in verdicts if not (v.optional and v.state in excused)]
    if interruption or len(states) < 2:
        states.append(State.NOT_TESTED)
    return worst_state(states)


def _passes_without(
    suspects: Sequence[Suspect],
    plan: Plan,
    found: Found,
    verdicts: Sequence[CheckVerdict],
    evidences: dict[str, Evidence],
    checks: Checks,
) -> bool:
    """Return True if every check ran, and each failed check passes without the suspects.

    Requested hosts that are missing or were lost are left out like suspects, unless the plan
    requires all of them. Without the fabric, or without a second host for the network, nothing is
    shown about the rest.
    """
    absent = {*found.missing, *found.lost}
    accused = {host for s in suspects if not s.of_network for host in s.hosts}
    set_aside = absent | accused
    rest = [host for host in found.present if host not in set_aside]
    requested = len(found.present) + len(found.missing)
    if (
        not (suspects or absent)
        or not rest
        or (absent and plan.require_all_nodes)
        or any(suspect.kind is SuspectKind.FABRIC for suspect in suspects)
        or (len(rest) < 2 <= requested and coverage.measures_network(plan, requested, checks))
    ):
        return False
    for verdict in verdicts:
        if verdict.state in (State.PASS, State.DEGRADED) or (
            verdict.state is not State.FAIL and verdict.optional
        ):
            continue
        if verdict.check == hosts.CHECK:
            if not hosts.is_only_absence(verdict, absent):
                return False
            continue
        evidence = evidences.get(verdict.check)
        if evidence is None or verdict.state is not State.FAIL:
            return False
        if not _check_passes_without(suspects, evidence, verdict, set_aside, checks):
            return False
    return True


def _check_passes_without(
    suspects: Sequence[Suspect],
    evidence: Evidence,
    verdict: CheckVerdict,
    set_aside: Collection[str],
    checks: Checks,
) -> bool:
    """Return True if a failed check passes when its suspects and absent hosts are left out."""
    not_run = step_findings(evidence)
    if any(not (f.hosts and set(f.hosts) <= {*set_aside}) for f in not_run):
        return False
    open_findings = [f for f in verdict.findings if f.state is not State.PASS and f not in not_run]
    if not open_findings:
        return True
    if any(finding.cause is Cause.NO_REFERENCE for finding in open_findings):
        # Equally slow nodes are not shown to be good because one is slower.
        return False
    kept = tuple(
        record
        for record in evidence.records
        if not any(_took_part(s, record) for s in suspects)
        and evidence.found.lost.keys().isdisjoint(record.hosts)
    )
    kept_steps = {record.step for record in kept}
    # An execution that failed has measured nothing of its other hosts.
    ids = set(map(id, kept))
    for step in evidence.steps:
        own = [record for record in evidence.records if record.step == step.id]
        ended = [r for r in own if id(r) in ids or (r.exit == 0 and not r.problems)]
        # Each step of a run covers all hosts; files may be of some of them.
        every = (h for r in own for h in r.hosts) if evidence.plan.origin else evidence.hosts
        if not {*every}.difference(set_aside) <= {h for r in ended for h in r.hosts}:
            return False
    remaining = replace(
        evidence,
        records=kept,
        steps=tuple(step for step in evidence.steps if step.id in kept_steps),
        effects=None,
        partial=True,
        set_aside=frozenset(set_aside),
    )
    return bool(kept) and _judge_check(remaining, checks).verdict.state is State.PASS


def _took_part(suspect: Suspect, record: Record) -> bool:
    """Return True if a suspect took part in an execution."""
    if suspect.kind is SuspectKind.RAIL:
        return not record.local_ranks or suspect.device in {*map(str, record.local_ranks)}
    members = set(suspect.hosts).intersection(record.hosts)
    if suspect.kind is SuspectKind.BORDER:
        return bool(members and set(suspect.others).intersection(record.hosts))
    if suspect.kind in (SuspectKind.LEAF, SuspectKind.SWITCH) and len(record.hosts) > 1:
        return bool(members) and not members.issuperset(record.hosts)
    return {*suspect.hosts[:1], *suspect.hosts[-1:]} <= set(record.hosts)


__all__ = [
    "HOSTS_STEP",
    "failures",
    "gathered",
    "has_final_failure",
    "is_open",
    "judge",
    "to_set_aside",
]
