"""Run the tests that inject faults and write docs/reliability.md: `python -m tests.reliability`.

Options and files are those of pytest, such as `-k reboot`. Rows of tests that did not run are kept.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from tests import fault_marks
from tests.cluster.faults import CELL, NO_SUCH_PART, PROPERTY, BackEnd, Fault, Observation
from tests.factories.paths import ROOT

CLUSTER = ROOT / "tests" / "cluster"
PAGE = ROOT / "docs" / "reliability.md"
HEADINGS = ("fault", "on", "state", "causes", "named", "exit", "time", "evidence", "left", "test")

Cell = tuple[Fault, BackEnd]


@dataclass(frozen=True, kw_only=True)
class RanTest:
    """A test that ran: its result in a few words, and its observations."""

    result: str
    seen: Observation | None


def read_results(report: Path) -> dict[Cell, RanTest]:
    """Return the tests of a JUnit report that inject a fault, without those that were skipped."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        properties = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        result = _result(case)
        if CELL not in properties or not result:
            continue
        fault, back_end = properties[CELL].split()
        seen = Observation(**json.loads(properties[PROPERTY])) if PROPERTY in properties else None
        found[Fault[fault], BackEnd[back_end]] = RanTest(result=result, seen=seen)
    return found


def _result(case: ElementTree.Element) -> str:
    """Return the result of a test; "" if it was skipped."""
    skipped = case.find("skipped")
    if skipped is not None:
        expected = skipped.get("type") == "pytest.xfail"
        return f"**defect**: {skipped.get('message', '')}" if expected else ""
    failed = case.find("failure") is not None or case.find("error") is not None
    return "**failed**" if failed else "passed"


def row(fault: Fault, tested: RanTest, when: str) -> str:
    """Return the row of a test that ran."""
    seen = tested.seen
    test = f"{tested.result}, {when}"
    if seen is None:
        return _line(fault.value, *("" for _ in HEADINGS[2:]), test)
    return _line(
        fault.value,
        seen.on,
        seen.state,
        seen.causes or "none",
        seen.named or "nobody",
        str(seen.exit),
        f"{seen.seconds:.0f} s",
        "complete" if seen.evidence else "not checked",
        seen.left or "not checked",
        test,
    )


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _short_line(fault: Fault, text: str) -> str:
    """Return the row of a fault without a result."""
    return _line(fault.value, *("" for _ in HEADINGS[2:]), text)


def read_page(text: str) -> dict[Cell, str]:
    """Return the rows of the page that have a result."""
    found = {}
    for back_end, table in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.S):
        for line in table.splitlines():
            name, *_, test = line.strip("| ").split(" | ") if line.startswith("| ") else ("", "")
            for fault in Fault:
                if fault.value == name and re.search(r", \d{4}-\d\d-\d\d, \w+\+?$", test):
                    found[fault, BackEnd(back_end)] = line
    return found


def page(before: str, rows: Mapping[Cell, str], marked: Collection[Cell]) -> str:
    """Return the text of the page: what is `before` its tables, and these.

    A row comes from `rows` if it has a result. `marked`: the cells that have a test.
    """
    parts = [before.partition(f"\n## {BackEnd.LOCAL}\n")[0].rstrip() + "\n"]
    for back_end in BackEnd:
        lines = [_line(*HEADINGS), "|" + "---|" * len(HEADINGS)]
        for fault in Fault:
            cell = fault, back_end
            lines.append(rows[cell] if cell in rows else _row_without_result(cell, marked))
        parts.append(f"## {back_end}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _row_without_result(cell: Cell, marked: Collection[Cell]) -> str:
    why = f"no such part: {NO_SUCH_PART[cell]}" if cell in NO_SUCH_PART else "not tested"
    return _short_line(cell[0], "not run yet" if cell in marked else why)


@cache
def marked_tests() -> tuple[Cell, ...]:
    """Return the fault and the back end of each marked test, without running anything."""
    words = ["--collect-only", "-q", "-m", "fault", "--reliability", "-p", fault_marks.__name__]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(CLUSTER)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = map(str.split, done.stdout.splitlines())
    marks = [line[1:] for line in lines if line[:1] == [fault_marks.WORD]]
    return tuple((Fault[fault], BackEnd[back_end]) for fault, back_end in marks)


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE.relative_to(ROOT)}"
    )
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def main(options: list[str]) -> int:
    """Run the tests; write the page; return the exit code of pytest."""
    when = f"{datetime.now(UTC):%Y-%m-%d}, {_commit()}"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-m", "fault", "--reliability", "-o", "junit_family=xunit1"]
        words += [f"--junit-xml={report}", *options]
        named = any(Path(option.partition("::")[0]).exists() for option in options)
        code = pytest.main(words if named else [str(CLUSTER), *words])
        tested = read_results(report) if report.exists() else {}
    text = PAGE.read_text()
    rows = read_page(text)
    rows |= {cell: row(cell[0], result, when) for cell, result in tested.items()}
    marked = marked_tests()
    kept = {cell: line for cell, line in rows.items() if cell in marked}
    PAGE.write_text(page(text, kept, marked))
    print(f"{len(tested)} rows written to {PAGE.relative_to(ROOT)}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
