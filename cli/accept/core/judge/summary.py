"""The verdict's words: its first line, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from accept.core.causes import CAUSES, CONSEQUENCES, action, meaning
from accept.core.model import WORST_FIRST, CheckVerdict, State, Verdict

_NAMED = 3
_ADVICE = 20


def headline(verdict: Verdict) -> str:
    """The first line for people, such as "fail: h3 host-died (strong)"."""
    if verdict.broken_off and verdict.state not in (State.FAIL, State.DEGRADED):
        text = f"{verdict.state.value}: the run broke off: {verdict.broken_off}"
    elif verdict.state is State.PASS:
        text = "pass" if verdict.gpu_tested else "pass (no GPU tested)"
    elif verdict.suspects and verdict.state in (State.FAIL, State.DEGRADED):
        named = [f"{s.name} {s.cause} ({s.strength})" for s in verdict.suspects[:_NAMED]]
        more = len(verdict.suspects) - _NAMED
        text = f"{verdict.state.value}: {', '.join(named)}"
        text += f" and {more} more" if more > 0 else ""
    else:
        text = f"{verdict.state.value}: {', '.join(_reasons(verdict)) or 'no reason is recorded'}"
    if verdict.part:
        text += f" ({verdict.part})"
    if not verdict.planted:
        return text
    unseen = "; what was planted was not found" if verdict.state is State.PASS else ""
    return f"drill: {text}{unseen}"


def _reasons(verdict: Verdict) -> list[str]:
    checks = [one for one in verdict.checks if one.state is verdict.state]
    required = [one for one in checks if not one.optional] or checks
    return [f"{one.check} {_why(one)}".strip() for one in required[:_NAMED]]


def _why(check: CheckVerdict) -> str:
    for finding in check.findings:
        if finding.state is check.state:
            return finding.cause or f"({finding.message})"
    return ""


def advice(verdict: Verdict) -> tuple[str, ...]:
    """What to do next, one line each: for each suspect, then for each cause without one."""
    lines = [*_advice(verdict)]
    if len(lines) > _ADVICE:
        lines = [*lines[:_ADVICE], f"… and {len(lines) - _ADVICE} more: see the report"]
    return tuple(lines)


def _advice(verdict: Verdict) -> Iterator[str]:
    if verdict.planted:
        yield f"this was a drill ({', '.join(verdict.planted)}): it says nothing about the hosts"
    if verdict.broken_off:
        yield f"the run broke off ({verdict.broken_off}): run it again"
    told = set()
    for suspect in verdict.suspects:
        told.add(suspect.cause)
        kind = "" if suspect.kind == "rail" else f"{suspect.kind} "
        yield f"{kind}{suspect.name}: {meaning(suspect.cause)}; {action(suspect.cause)}"
    if verdict.state is State.DEGRADED:
        return
    order = {state: place for place, state in enumerate(WORST_FIRST)}
    for check in sorted(verdict.checks, key=lambda check: order[check.state]):
        for finding in check.findings:
            if finding.state is State.PASS or (check.optional and finding.state is not State.FAIL):
                continue
            cause = finding.cause or ""
            if verdict.suspects and cause in CONSEQUENCES:
                continue
            if cause in CAUSES and cause not in told:
                told.add(cause)
                yield f"{check.check}: {meaning(cause)}; {action(cause)}"
