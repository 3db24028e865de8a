"""Words that several forms of the report share."""

from __future__ import annotations

from accept.core.model import CheckVerdict, Finding, State
from accept.core.plaintext import plain


def excused(check: CheckVerdict) -> bool:
    """Whether the run can be accepted though this check says nothing."""
    return check.optional and check.state in (State.NOT_TESTED, State.INCONCLUSIVE)


def notable(check: CheckVerdict) -> list[Finding]:
    """What is not as it should be."""
    return [finding for finding in check.findings if finding.state is not State.PASS]


def finding_text(finding: Finding) -> str:
    """A finding in one line: check, judgement, cause, what, and where that can be looked up."""
    cause = f" [{plain(finding.cause, 40)}]" if finding.cause else ""
    text = f"{plain(finding.check, 40)}, {plain(finding.judgement, 20)}{cause}: "
    text += plain(finding.message)
    if finding.source:
        text += f"; source: {plain(finding.source, 200)}"
    if finding.evidence:
        text += f"; see {plain(', '.join(finding.evidence[:3]), 200)}"
    return text
