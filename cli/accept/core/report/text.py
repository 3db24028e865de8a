"""Write a verdict as text for the terminal and as JUnit XML.

Everything that came from hosts and logs is untrusted: it is bounded and escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from accept.core.causes import CONSEQUENCES
from accept.core.judge.collective_metrics import LATENCY, number, read
from accept.core.judge.summary import worst_state
from accept.core.model import CheckVerdict, Finding, Record, State, Suspect, Verdict
from accept.core.text import format_size, plain


def excused(check: CheckVerdict) -> bool:
    """Whether the run can be accepted though this check says nothing."""
    return check.optional and check.state in (State.NOT_TESTED, State.INCONCLUSIVE)


def notable(check: CheckVerdict) -> list[Finding]:
    """What is not as it should be."""
    return [finding for finding in check.findings if finding.state is not State.PASS]


def finding_text(finding: Finding, checks: Sequence[str] = ()) -> str:
    """A finding in one line: check, cause (else the judgement), what, and where to look it up.

    `checks`: all that found the same.
    """
    kind = f" [{plain(finding.cause or finding.judgement, 40)}]"
    who = ", ".join(dict.fromkeys(checks)) or finding.check
    text = f"{plain(who, 100)}{kind}: {plain(finding.message)}"
    if finding.source:
        text += f"; source: {plain(finding.source, 200)}"
    if finding.evidence:
        text += f"; see {plain(', '.join(finding.evidence[:3]), 200)}"
    return text


_COLOURS = {
    State.PASS: "32",
    State.DEGRADED: "33",
    State.FAIL: "31",
    State.INCONCLUSIVE: "35",
    State.NOT_TESTED: "33",
}
#: Most findings, suspects and lines of advice that a terminal is given.
_SCREEN = 20
#: Most findings of a check that the JUnit file is given.
_LINES = 500
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")
_METRICS = ("throughput", "loss-last", "ping")


def table(verdict: Verdict, width: int = 100, *, color: bool = False) -> str:
    """The verdict for a terminal of `width` columns: enough, when it failed, to open a ticket."""
    width = max(60, min(width, 240))
    lines = [_painted(plain(verdict.headline), verdict.state, color=color)]
    lines += _wrapped(_subtitle(verdict), width, "")
    lines.append("")
    lines += _rows(verdict.checks, width, color=color)
    found = _findings(verdict)
    if found:
        lines += ["", "Findings"]
        for text in found[:_SCREEN]:
            lines += _wrapped(text, width, "  ")
        lines += _more(len(found))
    if verdict.suspects:
        lines += ["", "Suspects"]
        for suspect in verdict.suspects[:_SCREEN]:
            lines += _wrapped(_suspect_text(suspect), width, "  ")
        lines += _more(len(verdict.suspects))
    if verdict.advice:
        lines += ["", "Next"]
        for advice in verdict.advice[:_SCREEN]:
            lines += _wrapped(f"- {plain(advice)}", width, "  ")
        lines += _more(len(verdict.advice))
    return "\n".join(lines)


def _painted(text: str, state: State, *, color: bool) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if color else text


def _findings(verdict: Verdict) -> list[str]:
    """What is not as it should be: once where several checks say it, without mere consequences."""
    said: dict[tuple[str, str], list[Finding]] = {}
    for check in verdict.checks:
        bad = notable(check)
        roots = [finding for finding in bad if not _follows(finding)]
        # What is less grave than the check's state does not explain it.
        gravest = worst_state(finding.state for finding in bad)
        for finding in roots if any(f.state is gravest for f in roots) else bad:
            said.setdefault((finding.cause or "", finding.message), []).append(finding)
    return [
        finding_text(several[0], checks=[finding.check for finding in several])
        for several in said.values()
    ]


def _follows(finding: Finding) -> bool:
    """Whether it may follow from another one; that nobody checked the data never does."""
    return finding.cause in CONSEQUENCES and finding.judgement == "completeness"


def _more(count: int) -> list[str]:
    return [f"  … and {count - _SCREEN} more: see report.md"] if count > _SCREEN else []


def _subtitle(verdict: Verdict) -> str:
    hosts = f"{len(verdict.hosts)} host" + "s" * (len(verdict.hosts) != 1)
    if verdict.origin:
        return f"{plain(verdict.origin)}; machine {plain(verdict.machine, 80)}, exit {verdict.exit}"
    parts = [
        f"machine {plain(verdict.machine, 80)}",
        f"suite {plain(verdict.suite, 80)}",
        hosts,
        f"run {plain(verdict.run, 80)[:12]}",
        f"attempt {plain(verdict.attempt, 80)}",
        f"exit {verdict.exit}",
    ]
    if verdict.missing:
        parts.insert(3, f"missing: {plain(', '.join(verdict.missing[:8]), 200)}")
    return ", ".join(parts)


def _rows(checks: Sequence[CheckVerdict], width: int, *, color: bool) -> Iterator[str]:
    first = max([5, *(len(plain(check.check, 20)) for check in checks)])
    states = [check.state.value + " (opt.)" * excused(check) for check in checks]
    second = max([5, *map(len, states)])
    rest = width - first - second - 6
    left, right = rest * 11 // 20, rest - rest * 11 // 20
    yield f"{'CHECK':<{first}}  {'STATE':<{second}}  {'MEASURED':<{left}}  HELD AGAINST"
    for check, state in zip(checks, states, strict=True):
        measured = textwrap.wrap(plain(check.measured, 300) or "-", left) or ["-"]
        against = textwrap.wrap(plain(check.against, 300) or "-", right) or ["-"]
        for place in range(max(len(measured), len(against))):
            name = plain(check.check, 20) if place == 0 else ""
            cell = f"{state if place == 0 else '':<{second}}"
            cells = (
                f"{name:<{first}}",
                _painted(cell, check.state, color=color and place == 0),
                f"{measured[place] if place < len(measured) else '':<{left}}",
                against[place] if place < len(against) else "",
            )
            yield "  ".join(cells).rstrip()


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_on_hyphens=False,
    )


def _suspect_text(suspect: Suspect) -> str:
    text = f"{suspect.kind} {plain(suspect.name, 120)}: {plain(suspect.cause, 40)} "
    text += f"({suspect.strength}): {plain(suspect.why)}"
    if suspect.evidence:
        text += f"; see {plain(', '.join(suspect.evidence[:3]), 200)}"
    return text


def junit(verdict: Verdict) -> str:
    """The verdict as JUnit XML: a test case a check, and one for the verdict as a whole.

    Only an accepted run has neither a failure nor an error.
    """
    suite = ElementTree.Element("testsuite", name=f"accept {plain(verdict.machine, 80)}")
    whole = ElementTree.SubElement(suite, "testcase", classname="accept", name="verdict")
    failed = broken = skipped = 0
    if not verdict.accepted:
        failed += 1
        failure = ElementTree.SubElement(whole, "failure", message=plain(verdict.headline))
        failure.text = "\n".join(plain(line) for line in verdict.advice)
    for check in verdict.checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname="accept", name=plain(check.check, 80)
        )
        bad = notable(check)
        text = "\n".join(finding_text(finding) for finding in bad[:_LINES])
        message = plain(bad[0].message) if bad else check.state.value
        if check.state in (State.FAIL, State.DEGRADED):
            failed += 1
            cause = plain(bad[0].cause or check.state.value, 40) if bad else ""
            failure = ElementTree.SubElement(case, "failure", message=message, type=cause)
            failure.text = text
        elif excused(check):
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=message)
        elif check.state is not State.PASS:
            broken += 1
            error = ElementTree.SubElement(case, "error", message=message, type=check.state.value)
            error.text = text
        if check.measured:
            output = ElementTree.SubElement(case, "system-out")
            output.text = f"{plain(check.measured)} (against: {plain(check.against)})"
    suite.set("tests", str(len(verdict.checks) + 1))
    suite.set("failures", str(failed))
    suite.set("errors", str(broken))
    suite.set("skipped", str(skipped))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{body}\n"


def measured(records: Sequence[Record]) -> list[str]:
    """What the executions of a step measured, a line a check: for the log of a run."""
    lines = []
    for check in _COLLECTIVES:
        found = [read(record.metrics, check) for record in records if check in record.checks]
        speeds = [one.value for one in found if one.value is not None]
        if speeds:
            top = max(one.top for one in found)
            lines.append(f"{check}: {_span(speeds)} GB/s at {format_size(top)}")
    times = [read(r.metrics, "latency", LATENCY).value for r in records if "latency" in r.checks]
    if calls := [1e6 / value for value in times if value]:
        lines.append(f"latency: {_span(calls)} us")
    for name in _METRICS:
        metrics = [m for r in records for m in r.metrics if m.name == name and m.rank is None]
        if metrics:
            first = metrics[0]
            values = [metric.value for metric in metrics]
            lines.append(plain(f"{first.check}: {name} {_span(values)} {first.unit}", 120))
    return lines


def _span(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"
