"""Words that several forms of the report share."""

from __future__ import annotations

from collections.abc import Sequence

from accept.core.model import CheckVerdict, Finding, State
from accept.core.text import plain


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
