"""Write a verdict as text for the terminal and as JUnit XML.

Everything that came from hosts and logs is untrusted: it is bounded and escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from xml.etree import ElementTree

from accept.core.causes import Judgement
from accept.core.judge.summary import worst_state
from accept.core.model import CheckVerdict, Finding, State, Suspect, Verdict
from accept.core.text import count, plain


def excused(check: CheckVerdict) -> bool:
    """Return True if the run can be accepted although this check has no result."""
    return check.optional and check.state in (State.NOT_TESTED, State.INCONCLUSIVE)


def notable(check: CheckVerdict) -> list[Finding]:
    """Return the findings of a check that are not a pass."""
    return [finding for finding in check.findings if finding.state is not State.PASS]


def finding_text(finding: Finding, checks: Sequence[str] = ()) -> str:
    """Return a finding as one line: check, cause or judgement, message, source and evidence.

    `checks` lists all checks with the same finding; by default it is the finding's own.
    """
    kind = f" [{plain(finding.cause or finding.judgement, 40)}]"
    check_names = ", ".join(dict.fromkeys(checks)) or finding.check
    text = f"{plain(check_names, 100)}{kind}: {plain(finding.message)}"
    if finding.bound and finding.bound.source:
        text += f"; source: {plain(finding.bound.source, 200)}"
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
#: Longest list of findings, suspects or advice on a terminal.
_SCREEN_LINES = 20
#: Largest number of findings per check in the JUnit file.
_JUNIT_FINDINGS = 500


def table(verdict: Verdict, width: int = 100, *, color: bool = False) -> str:
    """Return the verdict for a terminal of `width` columns, with enough detail for a ticket."""
    width = max(60, min(width, 240))
    lines = [_painted(plain(verdict.headline), verdict.state, color=color)]
    lines += _wrapped(_subtitle(verdict), width, "")
    lines.append("")
    lines += _rows(verdict.checks, width, color=color)
    sections = {
        "Findings": _findings(verdict),
        "Suspects": [_suspect_text(suspect) for suspect in verdict.suspects],
        "Next": [f"- {plain(advice)}" for advice in verdict.advice],
    }
    for title, entries in sections.items():
        if entries:
            lines += ["", title]
            for entry in entries[:_SCREEN_LINES]:
                lines += _wrapped(entry, width, "  ")
            if len(entries) > _SCREEN_LINES:
                lines.append(f"  … and {len(entries) - _SCREEN_LINES} more: see report.md")
    return "\n".join(lines)


def _painted(text: str, state: State, *, color: bool) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if color else text


def _findings(verdict: Verdict) -> list[str]:
    """Return the notable findings as lines, without consequences of other findings.

    Findings of several checks with the same cause and message share one line.
    """
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for check in verdict.checks:
        bad = notable(check)
        roots = [finding for finding in bad if not _is_consequence(finding)]
        # A finding that is milder than the check's state does not explain that state.
        gravest = worst_state(finding.state for finding in bad)
        for finding in roots if any(f.state is gravest for f in roots) else bad:
            grouped.setdefault((finding.cause or "", finding.message), []).append(finding)
    return [
        finding_text(group[0], checks=[finding.check for finding in group])
        for group in grouped.values()
    ]


def _is_consequence(finding: Finding) -> bool:
    """Return True if the finding may follow from another one.

    Only findings about completeness may: results that were not checked need their own line.
    """
    is_completeness = finding.judgement is Judgement.COMPLETENESS
    return is_completeness and finding.cause is not None and finding.cause.row.consequence


def _subtitle(verdict: Verdict) -> str:
    hosts = count(len(verdict.hosts), "host")
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
    names = [plain(check.check, 20) for check in checks]
    name_width = max([5, *map(len, names)])
    states = [check.state.value + " (opt.)" * excused(check) for check in checks]
    state_width = max([5, *map(len, states)])
    rest = width - name_width - state_width - 6
    measured_width, required_width = rest * 11 // 20, rest - rest * 11 // 20
    header = f"{'CHECK':<{name_width}}  {'STATE':<{state_width}}"
    yield f"{header}  {'MEASURED':<{measured_width}}  REQUIRED"
    for name, check, state in zip(names, checks, states, strict=True):
        measured_lines = textwrap.wrap(plain(check.measured, 300) or "-", measured_width) or ["-"]
        required_lines = textwrap.wrap(plain(check.required, 300) or "-", required_width) or ["-"]
        lines = zip_longest(measured_lines, required_lines, fillvalue="")
        for index, (measured_line, required_line) in enumerate(lines):
            is_first = index == 0
            state_cell = f"{state if is_first else '':<{state_width}}"
            cells = (
                f"{name if is_first else '':<{name_width}}",
                _painted(state_cell, check.state, color=color and is_first),
                f"{measured_line:<{measured_width}}",
                required_line,
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
    """Return the verdict as JUnit XML: a test case per check, and one for the verdict itself.

    Only an accepted run has neither a failure nor an error.
    """
    suite = ElementTree.Element("testsuite", name=f"accept {plain(verdict.machine, 80)}")
    overall = ElementTree.SubElement(suite, "testcase", classname="accept", name="verdict")
    failures = errors = skipped = 0
    if not verdict.accepted:
        failures += 1
        failure = ElementTree.SubElement(overall, "failure", message=plain(verdict.headline))
        failure.text = "\n".join(plain(line) for line in verdict.advice)
    for check in verdict.checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname="accept", name=plain(check.check, 80)
        )
        bad = notable(check)
        text = "\n".join(finding_text(finding) for finding in bad[:_JUNIT_FINDINGS])
        message = plain(bad[0].message) if bad else check.state.value
        if check.state in (State.FAIL, State.DEGRADED):
            failures += 1
            cause = plain(bad[0].cause or check.state.value, 40) if bad else ""
            failure = ElementTree.SubElement(case, "failure", message=message, type=cause)
            failure.text = text
        elif excused(check):
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=message)
        elif check.state is not State.PASS:
            errors += 1
            error = ElementTree.SubElement(case, "error", message=message, type=check.state.value)
            error.text = text
        if check.measured:
            output = ElementTree.SubElement(case, "system-out")
            output.text = f"{plain(check.measured)} (required: {plain(check.required)})"
    suite.set("tests", str(len(verdict.checks) + 1))
    suite.set("failures", str(failures))
    suite.set("errors", str(errors))
    suite.set("skipped", str(skipped))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{body}\n"
