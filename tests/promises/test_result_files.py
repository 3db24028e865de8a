"""The files for `cat` show every table and every rank of a run, with the figures of its verdict."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factories import keys
from tests.promises.pool import Kind, PooledRun, runs

from accept.commands.judged import Judged, judge_path
from accept.core import evidence
from accept.core.facts import NCCL_TESTS, RANK
from accept.core.records import Placement, Record
from accept.core.report.result_files import write_result_files

EVERY = pytest.mark.parametrize("run", runs(Kind.EVIDENCE))
_TITLE = re.compile(
    r"# (\w+)_perf, \d+ ranks? on \d+ nodes?(?:, [\w.+ -]+)?, -b \w+ -e \w+ -[fi] \w+ -w \d+ -n \d+"
)
#: Log, collective, metric, size, placement and value of one figure.
Figure = tuple[str, str, str, int, Placement, float]


@pytest.fixture
def written(run: PooledRun, tmp_path: Path) -> Judged:
    """Return the judgement of a copy of a run that has both files."""
    folder = tmp_path / "runs" / "one" / "evidence"
    shutil.copytree(run.folder, folder, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    judged = judge_path(str(folder))
    write_result_files(folder, judged.plan, judged.verdict.attempt, judged.records)
    if (folder / evidence.CHECKSUMS).is_file():
        evidence.write_checksums(folder)
    return judged


def text_of(judged: Judged, name: str) -> str:
    """Return the text of a file of the evidence; "" if it is missing."""
    assert judged.folder is not None
    path = judged.folder / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def printed(text: str) -> Iterator[Figure]:
    """Yield the figures of the tables by the names of their columns."""
    log = collective = ""
    columns: list[str] = []
    for line in text.splitlines():
        if line.startswith(f"# {evidence.LOGS}/"):
            log = line[2:].split(",")[0]
        elif found := _TITLE.fullmatch(line):
            collective = found[1]
        elif re.match("# +size ", line):
            columns = line[1:].split()
        elif line and not line.startswith("#"):
            cells = dict(enumerate(line.split()))
            sides = [i for i, name in enumerate(columns) if name == "time"]
            for placement, start in zip((Placement.OUT, Placement.IN), sides, strict=True):
                for name, at in (("time", start), ("busbw", columns.index("busbw", start))):
                    value = float(cells[at])
                    yield log, collective, name, int(cells[0]), placement, value


def measured(record: Record) -> Iterator[Figure]:
    for metric in record.metrics:
        if metric.name in ("time", "busbw") and metric.size is not None:
            assert metric.placement is not None
            collective = "all_reduce" if metric.check == "latency" else metric.check
            collective = (collective or "").replace("-", "_")
            yield record.log, collective, metric.name, metric.size, metric.placement, metric.value


@EVERY
def test_each_log_has_its_titled_tables_with_the_figures_of_the_verdict(
    run: PooledRun, written: Judged
) -> None:
    text = text_of(written, evidence.TABLES)
    tables = [(r, table) for r in written.records for _, table in NCCL_TESTS.of(r) if table.rows]
    titles = Counter(
        section.split(",")[0].removeprefix("# ")
        for section in re.split(r"\n(?=# logs/)", text)
        for line in section.splitlines()
        if _TITLE.fullmatch(line)
    )
    assert titles == Counter(record.log for record, _ in tables)
    # A program that was ended prints no average.
    ended = sum(record.exit == 0 for record, _ in tables)
    assert ended <= text.count("# Avg bus bandwidth") <= len(tables)
    # `latency` judges times only.
    figures = {one for record in written.records for one in measured(record)}
    checked = {(log, collective, name) for log, collective, name, *_ in figures}
    shown = [one for one in printed(text) if one[:3] in checked]
    assert sorted(shown) == sorted(figures)
    assert "read the log" not in text


@EVERY
def test_every_rank_and_every_node_without_an_answer_is_listed(
    run: PooledRun, written: Judged
) -> None:
    text = text_of(written, evidence.CONNECTIVITY)
    asked = [record for record in written.records if any(RANK.of(record))]
    sections = dict(re.findall(r"\n# (logs/\S+), .*\n((?:.+\n)+)", text))
    for record in asked:
        ranks = Counter(fact.host for fact, _ in RANK.of(record))
        planned = record.ranks // len(record.hosts)
        rows = [line.split() for line in sections[record.log].splitlines()[2:]]
        assert [(row[0], " ".join(row[2:5])) for row in rows] == [
            (host, f"{ranks[host]} of {planned}") for host in record.hosts
        ]
    if text:
        assert all(f"\n{host}  " in text for host in written.verdict.missing)


@EVERY
def test_evidence_with_both_files_has_the_same_verdict(run: PooledRun, written: Judged) -> None:
    assert written.folder is not None
    assert judge_path(str(written.folder)).verdict == written.verdict


@EVERY
def test_no_file_that_others_may_read_holds_a_private_key(run: PooledRun) -> None:
    for path in run.folder.rglob("*"):
        if path.is_file():
            assert not keys.PRIVATE.search(path.read_bytes()), path
