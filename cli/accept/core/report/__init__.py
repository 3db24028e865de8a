"""Write a verdict and its reports: plain text, Markdown and JUnit; nodes write and print them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accept.core import evidence
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.serde import to_json
from accept.core.verdict import Verdict


def judgement(plan: Plan, verdict: Verdict, records: Sequence[Record] = ()) -> dict[str, str]:
    """Return the verdict, and the reports for people and for CI systems, by their file names."""
    return {
        evidence.VERDICT: to_json(verdict) + "\n",
        evidence.REPORT: render_markdown(verdict, plan, records),
        evidence.JUNIT: junit(verdict, records),
    }


def write_judgement(
    folder: Path, plan: Plan, verdict: Verdict, records: Sequence[Record] = ()
) -> None:
    """Write the verdict and its reports into evidence."""
    for name, text in judgement(plan, verdict, records).items():
        evidence.write(folder / name, text)
