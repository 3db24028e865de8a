"""Every output of a run reports the same state, nodes, counts, figures and required values.

The outputs are compared with the JSON of `accept judge`, and with each other.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.factories.command_line import accept
from tests.factories.html_page import Page
from tests.promises.pool import Kind, PooledRun, runs
from tests.words import SCREENS

from accept.commands.judge import with_measurements
from accept.commands.judged import GivenBounds, Judged, judge_path
from accept.commands.report import html_page, reported, screen, write_reports
from accept.core import evidence
from accept.core.judge.summary import node_lists
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.report.text import number3
from accept.core.serde import dump
from accept.core.text import folded, number
from accept.report.console import Terminal
from accept.report.repro import Settings
from accept.report.ticket import TicketWriter

EVERY = pytest.mark.parametrize("run", runs())
OF_EVIDENCE = pytest.mark.parametrize("run", runs(Kind.EVIDENCE))
#: The page shows a dash for a value that is missing.
_NOTHING = "\N{EN DASH}"
#: "≥ 60 GB/s" on a screen, ">= 60 GB/s" elsewhere.
_REQUIRED = re.compile(r"(?:≥|>=) ([-+.e\d]+)")


@dataclass(frozen=True)
class Outputs:
    """The outputs about one judgement of a run."""

    judged: Judged

    @cached_property
    def json(self) -> Any:
        """Return the output of `accept judge --json`."""
        return json.loads(json.dumps(dump(with_measurements(self.judged))))

    @cached_property
    def screen(self) -> str:
        return screen(self.judged, Terminal())

    @cached_property
    def fields(self) -> dict[str, str]:
        """Return the fields of the `VERDICT` line."""
        words = self.screen.splitlines()[-1].split()
        assert words[0] == "VERDICT"
        return {"state": words[1], **dict(word.split("=", 1) for word in words[2:])}

    @cached_property
    def html(self) -> str:
        return html_page(self.judged, Terminal())

    @cached_property
    def page(self) -> Page:
        return Page(self.html)

    @cached_property
    def markdown(self) -> str:
        return render_markdown(self.judged.verdict, self.judged.plan, self.judged.records)

    def table(self, title: str) -> list[list[str]]:
        """Return the rows of a section of report.md, without the header."""
        section = self.markdown.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| ")]
        return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[1:]]

    @cached_property
    def cases(self) -> dict[tuple[str, str], str]:
        """Return the result of each case of junit.xml by class and name."""
        root = ElementTree.fromstring(junit(self.judged.verdict, self.judged.records))
        results = {}
        for case in root.iter("testcase"):
            kinds = [part.tag for part in case if part.tag != "system-out"]
            key = case.get("classname", ""), case.get("name", "")
            results[key] = kinds[0] if kinds else "pass"
        return results

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        return vars(node_lists(self.judged.verdict))

    def findings(self) -> Iterator[Any]:
        for check in self.json["checks"]:
            yield from check["findings"]


@cache
def outputs(run: PooledRun) -> Outputs:
    return Outputs(judge_path(str(run.folder), GivenBounds(run.machine)))


@EVERY
def test_all_name_one_state_and_one_answer(run: PooledRun) -> None:
    one = outputs(run)
    state, accepted, code = (one.json[key] for key in ("state", "accepted", "exit"))
    assert one.fields["state"] == state
    assert one.fields["run"] == (one.json["attempt"].replace(" ", "_") or "none")
    assert one.page.sections["band"].classes.split() == ["band", state]
    assert one.markdown.startswith("# ")
    assert f"accepted: **{'yes' if accepted else 'no'}** (exit {code})" in one.markdown
    assert one.cases["accept", "verdict"] == ("pass" if accepted else "failure")
    assert accepted is (code == 0)
    headline = one.json["headline"].removeprefix("drill: ")
    assert headline.startswith(state)
    # The words of people: nothing is called accepted that is not.
    answers = [one.screen.splitlines()[0], one.page.headings[-1]]
    for answer in answers:
        assert bool(re.search(r"^\W*ACCEPTED", answer)) is accepted, answer
    assert answers[0].startswith(answers[1])
    certificate = one.page.sections["print"]
    assert ("Certificate of acceptance" in certificate.text) is accepted
    assert not [row for row in certificate.rows if row[0].startswith("Accepted")] or accepted


@EVERY
def test_all_use_the_words_of_people(run: PooledRun) -> None:
    one = outputs(run)
    for text in (one.screen, one.markdown, _words(one.html)):
        for word, wrong in SCREENS.items():
            found = [text[max(0, m.start() - 60) : m.end() + 30] for m in wrong.finditer(text)]
            assert found == [], f"write {word}"


def test_a_dry_run_uses_the_words_of_people() -> None:
    options = ("--hosts", "node[01-64]", "--machine", "h100-8", "--suite", "standard")
    shown = accept("run", *options, "--dry-run").out
    assert "64 nodes over ssh" in shown
    assert [word for word, wrong in SCREENS.items() if wrong.search(shown)] == []


@EVERY
def test_all_list_the_same_nodes(run: PooledRun) -> None:
    one = outputs(run)
    lists, hosts = one.lists, [*one.json["hosts"], *one.json["missing"]]
    assert sorted(host for own in lists.values() for host in own) == sorted(hosts)
    assert one.fields["good"] == str(len(lists["good"]))
    assert one.fields["untested"] == str(len(lists["untested"]))
    named = one.fields["bad"].split(",")
    assert named == ["none"] if not lists["bad"] else len(named) == min(len(lists["bad"]), 17)
    states = {host: state for state, own in lists.items() for host in own}
    assert {row[0]: row[1] for row in one.table("Nodes")} == states
    about = one.page.sections["about"]
    if of_page := {row[0]: row[1] for row in about.rows if row[0] in states}:
        assert of_page == states
    else:
        assert f"Good ({len(lists['good'])}): {folded(lists['good']) or 'none'}" in about.text
        assert f"Bad ({len(lists['bad'])}): {folded(lists['bad']) or 'none'}" in about.text
    certificate = {row[0]: row[1] for row in one.page.sections["print"].rows if len(row) == 2}
    listed = f": {folded(lists['good'])}" if lists["good"] else ""
    assert certificate["Good"].split(" ", 1)[0] == str(len(lists["good"]))
    assert certificate["Good"].endswith(listed)
    assert ("bad: " + folded(lists["bad"]) in certificate["Exceptions"]) is bool(lists["bad"])
    # Only cases of bad nodes fail.
    failed = {name for (of, name), result in one.cases.items() if result == "failure" and "." in of}
    assert failed <= {*lists["bad"]}


@EVERY
def test_all_count_the_same(run: PooledRun) -> None:
    one = outputs(run)
    nodes = len(one.json["hosts"]) + len(one.json["missing"])
    first = " ".join(one.screen.split("\n\n")[0].split())
    assert re.search(rf"\b{nodes} nodes?\b", first, re.IGNORECASE)
    if one.lists["good"]:
        assert f"{len(one.lists['good'])} of {nodes} node" in first.lower()
    assert f"nodes that took part ({len(one.json['hosts'])})" in one.markdown
    assert re.search(rf"\b{len(one.json['hosts'])} nodes?\b", one.page.sections["band"].text)
    checks = {(check["check"], check["state"]) for check in one.json["checks"]}
    assert {(row[0], row[1].split(" ")[0]) for row in one.table("Checks")} == checks
    of_page = {(row[0], row[1].split(" ")[0]) for row in one.page.sections["checks"].rows[1:]}
    assert checks <= of_page
    for check, state in checks:
        bad = one.cases["accept", check] in ("failure", "error")
        assert not bad or state != "pass"
        assert bad or state not in ("fail", "degraded")


@EVERY
def test_all_have_one_required_value_for_a_figure(run: PooledRun) -> None:
    one = outputs(run)
    bounds = [
        (finding, finding["bound"])
        for finding in one.findings()
        if finding["judgement"] == "absolute" and finding.get("bound")
    ]
    required: dict[str, set[str]] = {}
    for finding, bound in bounds:
        # A failed figure is below the lower bound; any other is compared with what is expected.
        sides = ("lower", "expected") if finding["state"] == "fail" else ("expected", "lower")
        value = bound.get(sides[0]) or bound.get(sides[1])
        if value is not None:
            required.setdefault(finding["check"], set()).add(f"{value:.3g}")
    # The certificate has exactly the bounds that judged a figure.
    header, *rows = one.page.sections["about"].rows[_criteria_row(one) :] or [[]]
    columns = ["Check", "Figure", "Nodes", "Fail below", "Expected", "At most", "Measured"]
    of_page = set()
    for cells in rows[: len(bounds)] if bounds else ():
        row = dict(zip(header, cells, strict=True))
        of_page.add((row["Check"], row["Nodes"], *map(_number, (row[c] for c in columns[3:6]))))
    of_json = {
        (
            finding["check"],
            str(finding.get("nodes") or _NOTHING),
            *(_short(bound.get(side)) for side in ("lower", "expected", "upper")),
        )
        for finding, bound in bounds
    }
    assert of_page == of_json
    assert one.page.sections["print"].rows[-len(of_json) :] or not of_json
    # The screen, report.md and the page repeat no other required value.
    for check, shown in _required_on_screen(one):
        assert shown in required[check]
    for name, of_checks in (("md", one.table("Checks")), ("html", _check_rows(one))):
        for check, *_, text in of_checks:
            bounded = [part for part in text.split("; ") if re.search(r"(\w+): ", part)]
            found = {f"{float(v):.3g}" for part in bounded for v in _REQUIRED.findall(part)}
            assert found <= required.get(check, set()), name


def _criteria_row(one: Outputs) -> int:
    rows = one.page.sections["about"].rows
    return next((i for i, row in enumerate(rows) if "Fail below" in row), len(rows))


def _check_rows(one: Outputs) -> list[list[str]]:
    return [row for row in one.page.sections["checks"].rows[1:] if len(row) == 4]


def _number(cell: str) -> str:
    return cell if cell == _NOTHING else f"{float(cell.split(' ', maxsplit=1)[0]):.3g}"


def _short(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3g}"


def _required_on_screen(one: Outputs) -> Iterator[tuple[str, str]]:
    for line in one.screen.splitlines():
        if found := re.match(r"  ([\w-]+).* ≥ ([-+.e\d]+) ", line):
            yield found[1], f"{float(found[2]):.3g}"


@EVERY
def test_all_have_the_same_figures(run: PooledRun) -> None:
    one = outputs(run)
    figures = {
        (of["check"], f"{float(f'{of[key]:.3g}'):g}")
        for of in one.json["ranges"]
        for key in ("worst", "median")
    }
    for line in one.screen.splitlines():
        # check, worst / median unit, place, required
        if found := re.match(r"  ([\w-]+).*?  +([-+.e\d]+)(?: / ([-+.e\d]+))? \S+  .*≥", line):
            for value in filter(None, found.groups()[1:]):
                assert (found[1], f"{float(value):g}") in figures
    measured = {check["check"]: check.get("measured", "") for check in one.json["checks"]}
    of_page = {row[0]: row[2] for row in _check_rows(one)}
    for check, text in measured.items():
        assert _plain(of_page[check]) == _plain(text or _NOTHING)
        (row,) = [row for row in one.table("Checks") if row[0] == check]
        assert _plain(row[2]) == _plain(text)


@EVERY
def test_every_figure_of_the_page_and_of_an_explanation_is_one_of_the_verdict(
    run: PooledRun,
) -> None:
    one = outputs(run)
    _check_figures(_words(one.html), one)
    for node in (*one.lists["bad"][:2], *one.lists["good"][:1]):
        done = accept("explain", str(run.folder), node)
        assert done.code == 0, done.err
        _check_figures(done.out, one)


def test_every_figure_of_a_difference_is_one_of_the_two_verdicts() -> None:
    before, after = (
        next(run for run in runs() if run.name == f"simulated-{world}")
        for world in ("w0", "node-50")
    )
    done = accept("diff", str(before.folder), str(after.folder))
    assert _check_figures(done.out, outputs(before), outputs(after)) == 3


def _check_figures(text: str, *those: Outputs) -> int:
    """Check that the figures in a text are those of these verdicts; return how many there are."""
    # The verdict has the worst and the median of the GPUs, and the records have each.
    of_records = (m.value for one in those for r in one.judged.records for m in r.metrics)
    known = {*_numbers([one.json for one in those]), *map(number, of_records)}
    measured: dict[str, list[float]] = {}
    for metric in (metric for one in those for metric in one.json["metrics"]):
        measured.setdefault(metric["unit"], []).append(metric["value"])
    normal = {
        found[1] for found in re.finditer(r"(?:of|normal|instead of) ([-+.\de]+) [A-Zu]", text)
    }
    limits = dict(re.findall(r"normal ([-+.\de]+) \S+ slow (?:below|above) ([-+.\de]+)", text))
    figures = _FIGURE.findall(text)
    for low, high, usual, unit in figures:
        for value in filter(None, (low, high, usual)):
            # What is normal is between the values; a limit is on the side of the slow ones.
            if value in normal - known:
                assert min(measured[unit]) <= float(value) <= max(measured[unit]), value
            elif value not in limits.values():
                assert value in known, (value, unit)
    for usual, limit in limits.items():
        assert 0.5 < float(usual) / float(limit) < 2
    return len(figures)


#: "327.5 to 331.5 of 366.3 GB/s", "260 GB/s", "14 to 15 instead of 12 us".
_FIGURE = re.compile(
    r"([-+.\de]+)(?: (?:to|->) ([-+.\de]+))?"
    r"(?: (?:of|instead of) ([-+.\de]+))? (GB/s|[GT]FLOP/s|us)\b"
)


def _words(html: str) -> str:
    """Return all texts of a page: with those of pictures, and those for screen readers."""
    inert = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)
    labels = re.findall(r'aria-label="([^"]*)"', inert)
    return unescape(" \n".join([re.sub(r"<[^>]*>", " ", inert), *labels]))


def _numbers(value: Any) -> Iterator[str]:
    """Yield all numbers of a JSON value as reports show them, and those in its texts."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, str):
        yield from re.findall(r"[-+.\de]*\d", value)
    elif isinstance(value, float | int):
        yield from (number(value), number3(value))


def _plain(text: str) -> str:
    """Return the words of a text, without what Markdown escapes."""
    return " ".join(re.sub(r"[\\<>&;]|lt|gt|amp", "", text).split())[:300]


@EVERY
def test_the_matrix_counts_failed_and_slow_pairs_as_the_records_do(run: PooledRun) -> None:
    one = outputs(run)
    section = one.page.sections.get("pairs")
    if section is None:
        return
    found = re.search(r"(\d+) of \d+ pairs measured: (\w+) slow.*?, (\w+) failed\.", section.text)
    assert found, section.text
    measured, slow, failed = (0 if text == "none" else int(text) for text in found.groups())
    steps = {step.id for step in one.judged.plan.steps if step.groups == "pairs"}
    pairs: dict[frozenset[str], bool] = {}
    for record in one.judged.records:
        if record.step in steps and len(set(record.hosts)) == 2 and not record.local_ranks:
            bad = record.exit != 0 or bool(record.problems) or not record.metrics
            bad = bad or any(m.name == "wrong" and m.value for m in record.metrics)
            pair = frozenset(record.hosts)
            pairs[pair] = bad or pairs.get(pair, False)
    assert measured == len(pairs)
    assert failed == sum(pairs.values())
    blamed = {
        frozenset(pair["hosts"])
        for suspect in one.json["suspects"]
        for pair in suspect.get("pairs", ())
        if pair.get("share") is not None
    }
    assert slow >= len(blamed - {pair for pair, bad in pairs.items() if bad})


@OF_EVIDENCE
def test_a_ticket_names_the_causes_and_the_run_of_the_verdict(run: PooledRun) -> None:
    one = outputs(run)
    judged, bad = one.judged, one.lists["bad"]
    if judged.folder is None or not bad:
        return
    for node in bad[:2]:
        suspects = [s for s in judged.verdict.suspects if node in s.hosts and not s.of_network]
        made = TicketWriter(
            reported(judged),
            judged.folder,
            suspects,
            node=node,
            nodes={},
            settings=Settings(),
            redact=False,
        ).write()
        _check_figures(made.text, one)
        lines = made.text.splitlines()
        assert lines[0].startswith(f"# {node}: ")
        for suspect, fault in zip(suspects, made.faults, strict=True):
            assert any(
                line.startswith("- kind: ") and line.endswith(f"evidence: {suspect.strength}")
                for line in lines
            )
            assert (fault.node, fault.cause, fault.code) == (
                node,
                suspect.cause,
                suspect.cause.code,
            )
            # The figures of the fault are those that the verdict shows for its pairs.
            assert fault.bad == len(suspect.pairs) or not suspect.pairs
            if fault.measured is not None:
                assert number(fault.measured) in made.text
                assert number(fault.normal or 0) in suspect.why
        nodes = len(one.json["hosts"]) + len(one.json["missing"])
        assert re.search(rf"^- run: \S+, {nodes} nodes?, machine ", made.text, re.MULTILINE)


@OF_EVIDENCE
def test_the_files_about_evidence_are_those_of_the_verdict(
    run: PooledRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = outputs(run)
    folder = tmp_path / "run" / "evidence"
    shutil.copytree(run.folder, folder)
    write_reports(replace(one.judged, folder=folder), Terminal())
    about = tmp_path / "run-report"
    written = json.loads((about / evidence.VERDICT).read_text())
    for key, value in written.items():
        assert one.json[key] == value
    assert (about / evidence.REPORT).read_text() == one.markdown
    for name, hosts in one.lists.items():
        assert (about / "nodes" / f"{name}.txt").read_text().split() == [*hosts]
    page = (about / "report.html").read_text()
    assert Page(page).sections["band"].text == one.page.sections["band"].text


@EVERY
def test_what_is_expected_and_was_not_measured_never_passes(run: PooledRun) -> None:
    judged = outputs(run).judged
    measured = {metric.check for record in judged.records for metric in record.metrics}
    for check, bound in {"gemm": "gemm>=1", "alltoall": "alltoall@8G>=1"}.items():
        if check not in measured:
            again = judge_path(str(run.folder), GivenBounds(run.machine, (bound,))).verdict
            assert (again.accepted, again.exit == 0) == (False, False), bound
