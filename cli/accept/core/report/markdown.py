"""Write a verdict as a self-contained Markdown page, to attach to the provider's ticket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accept.core.causes import Cause
from accept.core.judge.collective_metrics import number
from accept.core.model import GroupKind, Plan, State, SuspectKind, Verdict
from accept.core.report.text import excused
from accept.core.text import markdown as escaped

#: Longest table.
_MAX_ROWS = 1000
#: Suspects that have many hosts.
_GROUPS = (SuspectKind.BORDER, SuspectKind.LEAF, SuspectKind.SWITCH)


def render_markdown(verdict: Verdict, plan: Plan) -> str:
    """Return the verdict as a self-contained Markdown page."""
    return "\n".join(_page(verdict, plan)) + "\n"


def _page(verdict: Verdict, plan: Plan) -> Iterator[str]:
    yield f"# {escaped(verdict.headline)}"
    yield ""
    yield f"- accepted: **{'yes' if verdict.accepted else 'no'}** (exit {verdict.exit})"
    if verdict.origin:
        yield f"- judged: {escaped(verdict.origin)}"
    yield f"- machine: {escaped(verdict.machine)}, suite: {escaped(verdict.suite)}"
    yield f"- run {escaped(verdict.run)}, attempt {escaped(verdict.attempt)}"
    yield f"- hosts that took part ({len(verdict.hosts)}): {_hosts(verdict.hosts)}"
    if verdict.missing:
        yield f"- hosts that did not ({len(verdict.missing)}): {_hosts(verdict.missing)}"
    if not plan.machine.speed_promised:
        yield "- no speed target: judged by correctness and by comparison with peers"
    if verdict.injected:
        yield f"- DRILL: injected faults: {escaped(', '.join(verdict.injected))}"
    if verdict.interruption:
        yield f"- interrupted: {escaped(verdict.interruption)}"
    yield from _section("Checks", "check | state | measured | required", _check_rows(verdict))
    yield from _section(
        "Suspects", "suspect | cause | strength | reason | evidence", _suspects(verdict)
    )
    yield from _section("Bad pairs", "suspect | pair | share of normal | log", _bad_pairs(verdict))
    for suspect in verdict.suspects:
        if suspect.kind in _GROUPS:
            yield from ("", f"Hosts of {escaped(suspect.name, 120)}: {_hosts(suspect.hosts)}")
            if suspect.others:
                yield f"on one side, on the other: {_hosts(suspect.others)}"
    yield from _section(
        "Findings",
        "check | judgement | state | cause | finding | source | evidence",
        _findings(verdict),
    )
    if verdict.advice:
        yield from ("", "## What to do next", "")
        for line in verdict.advice:
            yield f"- {escaped(line)}"
    if causes := [cause for cause in Cause if cause in _causes(verdict)]:
        yield from ("", "How to confirm each by hand, and what to tell the provider:", "")
        for cause in causes:
            yield f"- docs/causes.md#{cause}, or `accept show cause {cause}`"
    yield from _section("Plan", "step | checks | groups | time limit in s", _steps(plan))


def _section(title: str, header: str, rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    cells = list(rows)
    if not cells:
        return
    yield from ("", f"## {title}", "", f"| {header} |", "|---" * (header.count("|") + 1) + "|")
    for row in cells[:_MAX_ROWS]:
        yield f"| {' | '.join(row)} |"
    if len(cells) > _MAX_ROWS:
        yield from ("", f"… and {len(cells) - _MAX_ROWS} more: see verdict.json")


def _hosts(hosts: Sequence[str]) -> str:
    more = f" … and {len(hosts) - 64} more" if len(hosts) > 64 else ""
    return ", ".join(escaped(host, 80) for host in hosts[:64]) + more


def _check_rows(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for check in verdict.checks:
        state = check.state.value + (" (optional)" if excused(check) else "")
        yield escaped(check.check), state, escaped(check.measured), escaped(check.required)


def _suspects(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for suspect in verdict.suspects:
        yield (
            f"{suspect.kind} {escaped(suspect.name, 120)}",
            _cause(suspect.cause),
            suspect.strength,
            escaped("; ".join(filter(None, (suspect.why, suspect.around, suspect.innocent))), 1000),
            escaped(", ".join(suspect.evidence[:8])),
        )


def _bad_pairs(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for suspect in verdict.suspects:
        for pair in suspect.pairs:
            yield (
                escaped(suspect.name, 120),
                escaped(" - ".join(pair.hosts), 200),
                f"{pair.share:.0%}" if pair.share is not None else "",
                escaped(pair.log, 200),
            )


def _findings(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for check in verdict.checks:
        for finding in sorted(check.findings, key=lambda f: f.state is State.PASS):
            share, peak = finding.peak_share, ""
            if share is not None:
                top = f" {number(finding.peak)} {escaped(finding.unit)}" if finding.peak else ""
                peak = f" ({share:.0%} of the peak{top}: {escaped(finding.peak_source)})"
            yield (
                escaped(finding.check),
                escaped(finding.judgement),
                finding.state.value,
                _cause(finding.cause or ""),
                escaped(finding.message) + peak,
                escaped(finding.bound.source if finding.bound else ""),
                escaped(", ".join(finding.evidence[:3])),
            )


def _causes(verdict: Verdict) -> set[Cause | None]:
    """Return the causes of all suspects and of all findings that are not a pass."""
    findings = (f for check in verdict.checks for f in check.findings)
    bad = {f.cause for f in findings if f.state is not State.PASS}
    return bad | {suspect.cause for suspect in verdict.suspects}


def _cause(cause: str) -> str:
    return escaped(cause, 40)


def _steps(plan: Plan) -> Iterator[tuple[str, ...]]:
    for step in plan.steps:
        rounds = f" x {step.rounds}" if step.groups is GroupKind.PAIRS else ""
        yield (
            escaped(step.id),
            escaped(", ".join(step.checks)),
            f"{step.groups}{rounds}",
            number(step.timeout),
        )
