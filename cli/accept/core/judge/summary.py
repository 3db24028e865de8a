"""Reduce findings to the state of a check and of the run, and write its headline and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from accept.core.causes import Cause, Judgement
from accept.core.judge.evidence import Evidence
from accept.core.model import WORST_FIRST, CheckVerdict, Finding, State, SuspectKind, Verdict
from accept.core.serde import read

P = TypeVar("P")

#: Highest numbers of suspects or checks in the headline, and of lines of advice.
_MAX_NAMED, _MAX_ADVICE = 3, 20


# States


def worst_state(states: Iterable[State]) -> State:
    """Return the worst of `states`; pass if there are none."""
    present = set(states)
    return next((state for state in WORST_FIRST if state in present), State.PASS)


def state_of(cause: Cause) -> State:
    """Return the state of a check with a problem of this cause."""
    if cause.row.not_tested:
        return State.NOT_TESTED
    return State.INCONCLUSIVE if cause.row.not_judged else State.FAIL


def verdict_of(
    evidence: Evidence, findings: Sequence[Finding], *, measured: str = "", required: str = ""
) -> CheckVerdict:
    """Return the verdict that follows from a check's findings.

    Without records and findings the check does not apply: its groups need two hosts.
    """
    not_applicable = not evidence.records and not findings
    if not_applicable:
        findings = (
            Finding(
                check=evidence.check,
                judgement=Judgement.COMPLETENESS,
                state=State.NOT_TESTED,
                message="needs two hosts, and this run has one",
            ),
        )
    return CheckVerdict(
        check=evidence.check,
        state=worst_state(finding.state for finding in findings),
        optional=not_applicable or evidence.optional,
        measured=measured,
        required=required,
        findings=tuple(findings),
    )


def params_of(evidence: Evidence, kind: type[P]) -> P:
    """Return the parameters of a check's first step; the defaults if they are invalid."""
    for step in evidence.steps:
        try:
            return read(kind, step.params)
        except ValueError:
            break
    return kind()


# Headline and advice


def headline(verdict: Verdict) -> str:
    """Return the first line for people, such as "fail: h3 host-died (strong)"."""
    if verdict.interruption and verdict.state not in (State.FAIL, State.DEGRADED):
        text = f"{verdict.state.value}: the run was interrupted: {verdict.interruption}"
    elif verdict.state is State.PASS:
        text = "pass" if verdict.gpu_tested else "pass (no GPU tested)"
    elif verdict.suspects and verdict.state in (State.FAIL, State.DEGRADED):
        named = [f"{s.name} {s.cause} ({s.strength})" for s in verdict.suspects[:_MAX_NAMED]]
        more = len(verdict.suspects) - _MAX_NAMED
        text = f"{verdict.state.value}: {', '.join(named)}"
        text += f" and {more} more" if more > 0 else ""
    else:
        text = f"{verdict.state.value}: {', '.join(_reasons(verdict)) or 'no reason is recorded'}"
    if verdict.part:
        text += f" ({verdict.part})"
    if not verdict.injected:
        return text
    unseen = "; the injected fault was not detected" if verdict.state is State.PASS else ""
    return f"drill: {text}{unseen}"


def _reasons(verdict: Verdict) -> list[str]:
    checks = [check for check in verdict.checks if check.state is verdict.state]
    required = [check for check in checks if not check.optional] or checks
    return [f"{check.check} {_why(check)}".strip() for check in required[:_MAX_NAMED]]


def _why(check: CheckVerdict) -> str:
    for finding in check.findings:
        if finding.state is check.state:
            return finding.cause or f"({finding.message})"
    return ""


def advice(verdict: Verdict) -> tuple[str, ...]:
    """Return what to do next, one line for each suspect, then for each cause without a suspect."""
    lines = [*_advice(verdict)]
    if len(lines) > _MAX_ADVICE:
        lines = [*lines[:_MAX_ADVICE], f"… and {len(lines) - _MAX_ADVICE} more: see the report"]
    return tuple(lines)


def _advice(verdict: Verdict) -> Iterator[str]:
    if verdict.injected:
        yield f"this was a drill ({', '.join(verdict.injected)}): it says nothing about the hosts"
    if verdict.interruption:
        yield f"the run was interrupted ({verdict.interruption}): run it again"
    advised = set()
    for suspect in verdict.suspects:
        advised.add(suspect.cause)
        kind = "" if suspect.kind is SuspectKind.RAIL else f"{suspect.kind} "
        yield f"{kind}{suspect.name}: {_explained(suspect.cause)}"
    if verdict.state is State.DEGRADED:
        return
    order = {state: index for index, state in enumerate(WORST_FIRST)}
    for check in sorted(verdict.checks, key=lambda check: order[check.state]):
        for finding in check.findings:
            if finding.state is State.PASS or (check.optional and finding.state is not State.FAIL):
                continue
            cause = finding.cause
            if cause is None or cause in advised or (verdict.suspects and cause.row.consequence):
                continue
            advised.add(cause)
            yield f"{check.check}: {_explained(cause)}"


def _explained(cause: Cause) -> str:
    return f"{cause.row.meaning}; {cause.row.action}"
