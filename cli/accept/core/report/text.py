"""Write a verdict as text for the terminal and as JUnit XML.

Everything that came from hosts and logs is untrusted: it is bounded and escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from xml.etree import ElementTree

from accept.core.causes import Cause, Judgement
from accept.core.judge.summary import action, suspect_advice, usable, worst_state
from accept.core.model import BadPair, CheckVerdict, Finding, State, Suspect, SuspectKind, Verdict
from accept.core.text import count, plain, shortened


def excused(check: CheckVerdict) -> bool:
    """Return True if the run can be accepted although this check has no result."""
    return check.optional and check.state in (State.NOT_TESTED, State.INCONCLUSIVE)


def notable(check: CheckVerdict) -> list[Finding]:
    """Return the findings of a check that are not a pass."""
    return [finding for finding in check.findings if finding.state is not State.PASS]


def finding_text(finding: Finding, checks: Sequence[str] = (), logs: int = 3) -> str:
    """Return a finding as one line: check, cause or judgement, message, source and evidence.

    `checks` lists all checks with the same finding; by default it is the finding's own. `logs` is
    the highest number of logs.
    """
    kind = f" [{plain(finding.cause or finding.judgement, 40)}]"
    check_names = ", ".join(dict.fromkeys(checks)) or finding.check
    text = f"{plain(check_names, 100)}{kind}: {plain(finding.message)}"
    if finding.bound and finding.bound.source:
        text += f"; source: {plain(finding.bound.source, 200)}"
    if finding.evidence:
        text += f"; see {plain(', '.join(finding.evidence[:logs]), 200)}"
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
#: Suspects with all their details on a terminal; the others have one line each.
_FULL_SUSPECTS = 3
#: Bad pairs of a fault of the network on a terminal.
_SCREEN_PAIRS = 5
#: Lines of one row of the table of checks, if suspects are shown above it.
_ROW_LINES = 2
#: Largest number of findings per check in the JUnit file.
_JUNIT_FINDINGS = 500


def table(verdict: Verdict, width: int = 100, *, color: bool = False) -> str:
    """Return the verdict for a terminal of `width` columns, with enough detail for a ticket.

    The first lines show which hosts may be used, what is bad, by which counts, and what to do.
    """
    width = max(60, min(width, 240))
    lines = [_painted(plain(verdict.headline), verdict.state, color=color)]
    run = _wrapped(_run(verdict), width, "")
    # What logs of others are is part of the answer; a run's identity is a detail.
    lines += run if verdict.origin else []
    lines += _wrapped(plain(usable(verdict)), width, "")
    for index, suspect in enumerate(verdict.suspects[:_SCREEN_LINES]):
        lines += _suspect_lines(suspect, width, full=index < _FULL_SUSPECTS)
    lines += _more(len(verdict.suspects))
    sections = {
        "Findings": _findings(verdict),
        "Next": [f"- {plain(advice)}" for advice in _advice(verdict)],
    }
    for title, entries in sections.items():
        if entries:
            lines += ["", title]
            for entry in entries[:_SCREEN_LINES]:
                lines += _wrapped(entry, width, "  ")
            lines += _more(len(entries))
    lines += ["", *_rows(verdict, width, color=color)]
    lines += [] if verdict.origin else ["", *run]
    return "\n".join(lines)


def _more(entries: int) -> list[str]:
    more = entries - _SCREEN_LINES
    return [f"  … and {more} more: see report.md"] if more > 0 else []


def _advice(verdict: Verdict) -> list[str]:
    """Return the advice that is not shown beside a suspect."""
    beside = {suspect_advice(suspect) for suspect in verdict.suspects[:_FULL_SUSPECTS]}
    return [line for line in verdict.advice if line not in beside]


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
            if not _is_of_suspects(finding, verdict.suspects):
                grouped.setdefault((finding.cause or "", finding.message), []).append(finding)
    groups = sorted(grouped.values(), key=lambda group: group[0].cause is not Cause.WRONG_DATA)
    return [
        finding_text(group[0], checks=[finding.check for finding in group], logs=1)
        for group in groups
    ]


def _is_of_suspects(finding: Finding, suspects: Sequence[Suspect]) -> bool:
    """Return True if a finding only repeats a suspect.

    It lists the outliers among peers, or wrong data that all comes with an accused host.
    """
    common = finding.executions.common_hosts if finding.executions else ()
    if finding.cause is Cause.WRONG_DATA and common:
        wrong = (s for s in suspects if s.cause is Cause.WRONG_DATA and not s.of_network)
        return any(host in common for suspect in wrong for host in suspect.hosts)
    hosts = {host for suspect in suspects for host in suspect.hosts}
    return (
        finding.judgement is Judgement.POPULATION
        and finding.state is not State.INCONCLUSIVE
        and finding.cause in {suspect.cause for suspect in suspects}
        and hosts.issuperset(finding.hosts)
    )


def _is_consequence(finding: Finding) -> bool:
    """Return True if the finding may follow from another one.

    Only findings about completeness may: results that were not checked need their own line.
    """
    is_completeness = finding.judgement is Judgement.COMPLETENESS
    return is_completeness and finding.cause is not None and finding.cause.row.consequence


def _run(verdict: Verdict) -> str:
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


def _rows(verdict: Verdict, width: int, *, color: bool) -> Iterator[str]:
    """Yield the table of checks. Unless the verdict is a pass, those that passed share one line."""
    checks = verdict.checks
    passed = [check.check for check in checks if check.state is State.PASS]
    short = bool(verdict.suspects)
    if verdict.state is not State.PASS:
        checks = tuple(check for check in checks if check.state is not State.PASS)
    names = [plain(check.check, 20) for check in checks]
    name_width = max([5, *map(len, names)])
    states = [check.state.value + " (opt.)" * excused(check) for check in checks]
    state_width = max([5, *map(len, states)])
    rest = width - name_width - state_width - 6
    measured_width, required_width = rest * 11 // 20, rest - rest * 11 // 20
    header = f"{'CHECK':<{name_width}}  {'STATE':<{state_width}}"
    if checks:
        yield f"{header}  {'MEASURED':<{measured_width}}  REQUIRED"
    for name, check, state in zip(names, checks, states, strict=True):
        measured_lines = _cell(check.measured, measured_width, short=short)
        required_lines = _cell(check.required, required_width, short=short)
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
    if passed and verdict.state is not State.PASS:
        yield from _wrapped(f"passed: {plain(', '.join(passed), 1000)}", width, "")


def _cell(text: str, width: int, *, short: bool) -> list[str]:
    lines = textwrap.wrap(plain(text, 300) or "-", width) or ["-"]
    if short and len(lines) > _ROW_LINES:
        lines = [*lines[: _ROW_LINES - 1], lines[_ROW_LINES - 1][: width - 2] + " …"]
    return lines


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_on_hyphens=False,
    )


def _suspect_lines(suspect: Suspect, width: int, *, full: bool) -> list[str]:
    """Return what is bad, what is normal around it, who is not the reason, and what to do."""
    kind = "" if suspect.kind in (SuspectKind.RAIL, SuspectKind.FABRIC) else f"{suspect.kind} "
    name = f"{kind}{plain(suspect.name, 120)}: {plain(suspect.cause, 40)} ({suspect.strength})"
    parts = []
    if suspect.around and full:
        parts = [("WHAT", plain(suspect.why)), ("WHERE", plain(suspect.around))]
    else:
        name += f": {plain(suspect.why)}"
    if not full:
        return _wrapped(name, width, "  ")
    if suspect.of_network and suspect.pairs:
        pairs = [_pair(pair) for pair in suspect.pairs]
        shown = plain(shortened(pairs, _SCREEN_PAIRS), 1000)
        more = ": see report.md" if len(pairs) > _SCREEN_PAIRS else ""
        parts.append(("PAIRS", f"{shown}{more}"))
    parts += [("NOT", plain(suspect.innocent)), ("DO", action(suspect))]
    more = f"accept show cause {suspect.cause}   (how to confirm it)"
    if suspect.evidence:
        more += f"; {plain(suspect.evidence[0], 200)}"
    parts.append(("", more))
    lines = _wrapped(name, width, "  ")
    for label, text in parts:
        if text:
            lines += textwrap.wrap(
                text,
                width,
                initial_indent=f"    {label:<5} ",
                subsequent_indent=" " * 10,
                break_on_hyphens=False,
            )
    return lines


def _pair(pair: BadPair) -> str:
    share = f" ({pair.share:.0%})" if pair.share is not None else ""
    return f"{' - '.join(pair.hosts)}{share}"


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
