"""Reduce findings to the state of a check and of the run, and write its headline and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from accept.core.causes import Cause, Judgement
from accept.core.errors import Exit
from accept.core.judge.evidence import Evidence
from accept.core.model import (
    WORST_FIRST,
    CheckVerdict,
    Finding,
    Skipped,
    State,
    Suspect,
    SuspectKind,
    Verdict,
)
from accept.core.serde import read
from accept.core.text import count, plain, shortened

P = TypeVar("P")

#: Maximum number of suspects or checks in the headline, and of lines of advice.
_MAX_NAMED, _MAX_ADVICE = 3, 20
#: Maximum number of hosts in the sentence on which hosts may be used.
_MAX_LISTED = 8
#: Maximum number of checks in the list of those that a user left out.
_MAX_NOT_RUN = 12
#: Maximum length of a figure in a line of advice.
_MAX_FIGURE = 160
#: Causes of a value below its bound, for which a faster NCCL profile is advised.
_TOO_SLOW = (Cause.BELOW_EXPECTED, Cause.BELOW_REFERENCE)
#: Advice about wrong data that follows no host.
_SOFTWARE = (
    "no host explains the wrong data: compare the versions of NCCL, network plugin, driver and "
    "firmware, and run the step again with another NCCL"
)


@dataclass(frozen=True, kw_only=True)
class NodeLists:
    """The nodes of a run by what the verdict shows about them."""

    good: tuple[str, ...]
    bad: tuple[str, ...]
    #: Nodes that did not take part or were left out, and those that are not shown to be good.
    untested: tuple[str, ...]


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
    else:
        reasons = _suspect_reasons(verdict) or _reasons(verdict)
        text = f"{verdict.state.value}: {', '.join(reasons) or 'no reason is recorded'}"
    if verdict.not_run:
        text += f" (not run: {shortened([skip.subject for skip in verdict.not_run], _MAX_NAMED)})"
    if verdict.part:
        text += f" ({verdict.part})"
    if verdict.edited:
        text += " (edited values)"
    if not verdict.injected:
        return text
    unseen = "; the injected fault was not detected" if verdict.state is State.PASS else ""
    return f"drill: {text}{unseen}"


def _suspect_reasons(verdict: Verdict) -> list[str]:
    """Return wrong data and suspects, wrong data first; empty if nothing is blamed."""
    if not verdict.suspects or verdict.state not in (State.FAIL, State.DEGRADED):
        return []
    wrong = wrong_data(verdict)
    suspects = [s for s in verdict.suspects if not (wrong and _is_wrong_everywhere(s))]
    named = [f"{s.name} {s.cause} ({s.strength})" for s in suspects]
    return _few([*([wrong] if wrong else []), *named])


def _reasons(verdict: Verdict) -> list[str]:
    checks = [check for check in verdict.checks if check.state is verdict.state]
    required = [check for check in checks if not check.optional] or checks
    wrong = wrong_data(verdict)
    reasons = [
        f"{check.check} {why}".strip()
        for check in required
        if (why := _why(check)) != Cause.WRONG_DATA or not wrong
    ]
    return _few([*([wrong] if wrong else []), *reasons])


def _few(reasons: Sequence[str]) -> list[str]:
    more = len(reasons) - _MAX_NAMED
    if more <= 0:
        return [*reasons]
    return [*reasons[: _MAX_NAMED - 1], f"{reasons[_MAX_NAMED - 1]} and {more} more"]


def _why(check: CheckVerdict) -> str:
    found = [finding for finding in check.findings if finding.state is check.state]
    found.sort(key=lambda finding: finding.cause is not Cause.WRONG_DATA)
    return next((finding.cause or f"({finding.message})" for finding in found), "")


def wrong_data(verdict: Verdict) -> str:
    """Return how much data is wrong if no host or link explains it; empty otherwise."""
    found = [
        finding
        for check in verdict.checks
        for finding in check.findings
        if finding.cause is Cause.WRONG_DATA and finding.state is State.FAIL
    ]
    explained = any(
        s.cause is Cause.WRONG_DATA and not _is_wrong_everywhere(s) for s in verdict.suspects
    )
    if not found or explained:
        return ""
    worst = max(found, key=lambda f: f.executions.bad if f.executions else 0)
    executions = worst.executions
    if executions is None:
        return f"wrong data in {', '.join(dict.fromkeys(finding.check for finding in found))}"
    text = f"wrong data in {executions.bad} of {count(executions.total, 'log')} of {worst.check}"
    if others := len({finding.check for finding in found}) - 1:
        text += f" and in {count(others, 'more check')}"
    common = executions.common_hosts
    if executions.bad > 1 and not common:
        return f"{text}, follows no host: software"
    return f"{text}, all with {', '.join(common)}" if 0 < len(common) <= _MAX_NAMED else text


def _is_wrong_everywhere(suspect: Suspect) -> bool:
    """Return True if wrong data follows no part of the network, so software is the likely cause."""
    return suspect.kind is SuspectKind.FABRIC and suspect.cause is Cause.WRONG_DATA


def node_lists(verdict: Verdict) -> NodeLists:
    """Return which nodes are good, bad and not tested, in the run's order.

    Nodes are good if the run is a pass, or if it passes without the bad ones and the network is not
    blamed. A requested node that did not take part is bad if it is blamed for that, else it was not
    tested. A drill shows nothing about nodes.
    """
    left_out = tuple(node.name for node in verdict.left_out)
    if verdict.injected:
        return NodeLists(good=(), bad=(), untested=(*verdict.hosts, *verdict.missing, *left_out))
    accused = {host for s in verdict.suspects if not s.of_network for host in s.hosts}
    bad = tuple(host for host in (*verdict.hosts, *verdict.missing) if host in accused)
    without_bad = (
        verdict.state is State.DEGRADED
        and not any(s.of_network for s in verdict.suspects)
        and not wrong_data(verdict)
    )
    is_good = (verdict.state is State.PASS or without_bad) and not verdict.interruption
    rest = tuple(host for host in verdict.hosts if host not in accused)
    return NodeLists(
        good=rest if is_good else (),
        bad=bad,
        untested=(
            *(() if is_good else rest),
            *(host for host in verdict.missing if host not in accused),
            *left_out,
        ),
    )


def not_good(verdict: Verdict) -> tuple[str, ...]:
    """Return the requested nodes that are not shown to be good: bad, or never started."""
    good = {*node_lists(verdict).good}
    return tuple(host for host in (*verdict.hosts, *verdict.missing) if host not in good)


def tolerated(verdict: Verdict, most: int) -> Verdict:
    """Return the verdict if the user accepts a run that does without at most `most` nodes.

    These are the bad ones, and those that never started. Only a run that passes without them can be
    accepted, and never a drill.
    """
    good = node_lists(verdict).good
    if not (verdict.state is State.DEGRADED and good and len(not_good(verdict)) <= most):
        return verdict
    return replace(verdict, accepted=True, exit=int(Exit.PASS), max_bad=most)


def usable(verdict: Verdict) -> str:
    """Return which hosts may be used, as one sentence; empty if the verdict is a pass."""
    if verdict.state is State.PASS or verdict.injected:
        return ""
    hosts = count(len(verdict.hosts) + len(verdict.missing), "host")
    if verdict.state not in (State.FAIL, State.DEGRADED):
        return f"do not hand out the {hosts} yet: too little is known"
    wrong = any(s.of_network and s.cause is Cause.WRONG_DATA for s in verdict.suspects)
    if wrong or wrong_data(verdict):
        return f"do not hand out any of the {hosts}: results are wrong, and no host explains it"
    bad = {host for s in verdict.suspects if not s.of_network for host in s.hosts}
    names = [host for host in (*verdict.hosts, *verdict.missing) if host in bad]
    listed = shortened(names, _MAX_LISTED)
    verb = "is" if len(names) == 1 else "are"
    if any(s.of_network for s in verdict.suspects):
        if not bad:
            return (
                f"do not hand out the {hosts}, and drain none: the network is bad, no single host"
            )
        return (
            f"do not hand out the {hosts}: {listed} {verb} bad, and the network between the others"
        )
    if verdict.state is State.DEGRADED:
        good = len(set(verdict.hosts) - bad)
        absent = [host for host in verdict.missing if host not in bad]
        rest = [f"do not hand out {listed}"] * bool(names)
        rest += [f"{shortened(absent, _MAX_LISTED)} never started"] * bool(absent)
        return f"{good} of {hosts} pass everything; {'; '.join(rest)}"
    if bad:
        return f"do not hand out the {hosts}: the rest is not shown to pass without {listed}"
    return f"do not hand out the {hosts}"


def advice(verdict: Verdict, faster_profile: str = "") -> tuple[str, ...]:
    """Return what to do next, one line for each suspect, then for each cause without a suspect.

    `faster_profile`: NCCL profile that the run did not use; see `PlannedMachine`.
    """
    lines = [*_advice(verdict, faster_profile)]
    if len(lines) > _MAX_ADVICE:
        lines = [*lines[:_MAX_ADVICE], f"… and {len(lines) - _MAX_ADVICE} more: see the report"]
    return tuple(lines)


def _advice(verdict: Verdict, faster_profile: str) -> Iterator[str]:
    if verdict.injected:
        faults = ", ".join(verdict.injected)
        yield f"this was a drill ({faults}): the verdict does not apply to the hosts"
    if verdict.interruption:
        yield f"the run was interrupted ({verdict.interruption}): run it again"
    yield from (suspect_advice(suspect, verdict.checks) for suspect in verdict.suspects)
    yield from _advice_on_findings(verdict, faster_profile)


def suspect_advice(suspect: Suspect, checks: Iterable[CheckVerdict]) -> str:
    """Return the line of advice about a suspect of a verdict with these checks."""
    kind = "" if suspect.kind in (SuspectKind.RAIL, SuspectKind.FABRIC) else f"{suspect.kind} "
    meaning = "" if _is_wrong_everywhere(suspect) else f"{suspect.cause.row.meaning}; "
    return f"{kind}{suspect.name}: {meaning}{action(suspect, checks)}"


def action(suspect: Suspect, checks: Iterable[CheckVerdict]) -> str:
    """Return what to do about a suspect of a verdict with these checks."""
    if _is_wrong_everywhere(suspect):
        return _SOFTWARE
    if suspect.of_network and suspect.cause.row.relative:
        return Cause.SLOW_NETWORK.row.action
    accusing = (
        check.check
        for check in checks
        for finding in check.findings
        if finding.cause is suspect.cause and not {*suspect.hosts}.isdisjoint(finding.hosts)
    )
    return _action(suspect.cause, next(accusing, ""))


def _action(cause: Cause, check: str) -> str:
    return cause.row.action_of_check.get(check, cause.row.action)


def _advice_on_findings(verdict: Verdict, faster_profile: str) -> Iterator[str]:
    """Yield what to do about each cause that accuses no suspect, wrong data first."""
    accused = {suspect.cause for suspect in verdict.suspects}
    advised: set[tuple[Cause, str]] = set()
    order = {state: index for index, state in enumerate(WORST_FIRST)}
    found = [
        (check, finding)
        for check in sorted(verdict.checks, key=lambda check: order[check.state])
        for finding in check.findings
        if finding.state is not State.PASS
        and not (check.optional and finding.state is not State.FAIL)
    ]
    found.sort(key=lambda one: one[1].cause is not Cause.WRONG_DATA)
    for check, finding in found:
        cause = finding.cause
        if cause is None or cause in accused or (verdict.suspects and cause.row.consequence):
            continue
        if (key := (cause, _action(cause, check.check))) in advised:
            continue
        if verdict.state is State.DEGRADED and not cause.row.names_no_node:
            continue  # the suspects explain it
        advised.add(key)
        executions = finding.executions
        everywhere = executions is not None and executions.bad > 1 and not executions.common_hosts
        software = cause is Cause.WRONG_DATA and everywhere
        text = f"{check.check}: {_SOFTWARE if software else _explained(finding, cause)}"
        between_nodes = (finding.nodes or 0) > 1
        if faster_profile and between_nodes and cause in _TOO_SLOW:
            text += f"; repeat with `--nccl-profile {faster_profile}`, which this run did not use"
        yield text


def _explained(finding: Finding, cause: Cause) -> str:
    """Return the figure that is too low, or the meaning of a cause, and what to do."""
    meaning = finding.message if cause is Cause.BELOW_REFERENCE else cause.row.meaning
    return f"{plain(meaning, _MAX_FIGURE)}; {_action(cause, finding.check)}"


def not_run(skipped: Iterable[Skipped]) -> str:
    """Return what the user left out, with the option: "gemm, memory (--skip)"; empty: nothing."""
    by_option: dict[str, list[str]] = {}
    for skip in (skip for skip in skipped if skip.cause is Cause.DESELECTED):
        by_option.setdefault(skip.reason, []).append(skip.subject)
    return plain(
        "; ".join(
            f"{shortened(names, _MAX_NOT_RUN)} ({option})" for option, names in by_option.items()
        )
    )
