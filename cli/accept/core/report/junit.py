"""Write a verdict as JUnit XML: a test case for each check, and for each node in a check.

Everything that came from hosts and logs is untrusted: it is bounded and escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from accept.core.judge.summary import NodeLists, node_lists
from accept.core.records import Record
from accept.core.report.text import excused, finding_text, notable, utc
from accept.core.text import plain
from accept.core.verdict import CheckVerdict, Finding, State, Verdict

#: Maximum number of findings of a check.
_MOST_FINDINGS = 500
#: With more cases, nodes are left out, and only checks have cases.
_MOST_CASES = 20_000


def junit(verdict: Verdict, records: Sequence[Record] = ()) -> str:
    """Return the verdict as JUnit XML: a case for itself, each check, and each node in a check.

    Only an accepted run has neither a failure nor an error. Of the nodes, only bad ones fail. A
    node that is neither bad nor good is skipped in a failed check.
    """
    suite = ElementTree.Element("testsuite", name=f"accept {plain(verdict.machine, 80)}")
    _overall(suite, verdict)
    for check in verdict.checks:
        _check(suite, check)
    for node in verdict.left_out:
        name = plain(node.name, 80)
        case = ElementTree.SubElement(suite, "testcase", classname="accept.nodes", name=name)
        ElementTree.SubElement(case, "skipped", message=plain(node.reason))
    times = _times(records)
    if len(times) <= _MOST_CASES:
        for check in verdict.checks:
            _nodes(suite, check, verdict, times)
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(sum(1 for case in suite if case.find(tag) is not None)))
    suite.set("tests", str(len(suite)))
    if verdict.end > verdict.start > 0:
        suite.set("time", f"{verdict.end - verdict.start:.3f}")
        suite.set("timestamp", _timestamp(verdict.start))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{body}\n"


def _overall(suite: ElementTree.Element, verdict: Verdict) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="accept", name="verdict")
    if not verdict.accepted:
        failure = ElementTree.SubElement(case, "failure", message=plain(verdict.headline))
        failure.text = "\n".join(plain(line) for line in verdict.advice)


def _check(suite: ElementTree.Element, check: CheckVerdict) -> None:
    name = plain(check.check, 80)
    case = ElementTree.SubElement(suite, "testcase", classname="accept", name=name)
    bad = notable(check)
    text = "\n".join(finding_text(finding) for finding in bad[:_MOST_FINDINGS])
    message = plain(bad[0].message) if bad else check.state.value
    if check.state in (State.FAIL, State.DEGRADED):
        cause = plain(bad[0].cause or check.state.value, 40) if bad else ""
        ElementTree.SubElement(case, "failure", message=message, type=cause).text = text
    elif excused(check):
        ElementTree.SubElement(case, "skipped", message=message)
    elif check.state is not State.PASS:
        ElementTree.SubElement(case, "error", message=message, type=check.state.value).text = text
    if check.measured:
        output = ElementTree.SubElement(case, "system-out")
        output.text = f"{plain(check.measured)} (required: {plain(check.required)})"


#: (check, host) -> seconds that its executions took, and the start of the first one.
_Times = Mapping[tuple[str, str], tuple[float, float]]


def _times(records: Sequence[Record]) -> _Times:
    times: dict[tuple[str, str], tuple[float, float]] = {}
    for record in records:
        for check in record.checks:
            for host in record.hosts:
                seconds, start = times.get((check, host), (0.0, record.start))
                taken = max(record.end - record.start, 0.0)
                times[check, host] = seconds + taken, min(start, record.start)
    return times


def _nodes(
    suite: ElementTree.Element, check: CheckVerdict, verdict: Verdict, times: _Times
) -> None:
    """Add a case for each node that took part in a check."""
    findings: dict[str, Finding] = {}
    for finding in notable(check):
        for host in finding.hosts:
            findings.setdefault(host, finding)
    lists = node_lists(verdict)
    for host in verdict.hosts:
        if (check.check, host) not in times:
            continue
        seconds, start = times[check.check, host]
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"accept.{plain(check.check, 80)}",
            name=plain(host, 80),
            time=f"{seconds:.3f}",
        )
        if start > 0:
            case.set("timestamp", _timestamp(start))
        for tag, message in _outcome(check, findings.get(host), host, lists):
            ElementTree.SubElement(case, tag, message=message)


def _outcome(
    check: CheckVerdict, finding: Finding | None, host: str, lists: NodeLists
) -> Iterator[tuple[str, str]]:
    """Yield the element of a node's case and its message; nothing for a pass.

    A finding also lists hosts that only shared an execution with a bad node.
    """
    is_bad = finding is not None and finding.state in (State.FAIL, State.DEGRADED)
    if finding is not None and is_bad and host in lists.bad:
        yield "failure", plain(finding.message)
    elif check.state is not State.PASS and host not in lists.good:
        yield "skipped", f"{check.check} is {check.state}, and does not show that this node is bad"


def _timestamp(seconds: float) -> str:
    """Return a time in UTC as ISO 8601; that of 1970 if no run can have it."""
    return utc(seconds, "%Y-%m-%dT%H:%M:%S+00:00", unknown="1970-01-01T00:00:00+00:00")
