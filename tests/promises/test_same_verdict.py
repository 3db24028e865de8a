"""Renaming, order, neighbors: what does not concern the hardware does not change a verdict."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories.relabeled import longer, shown
from tests.factories.verdicts import step as step_of
from tests.promises.pool import Kind, PooledRun, runs

from accept.commands.judged import GivenBounds, Judged, _judged, judge_path, judge_paths
from accept.core.evidence import CHECKSUMS, RECORDS, RunEnd, log_path, write_checksums
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.verdict import Verdict

#: Files that are often beside evidence and logs.
_NEIGHBORS = {
    "README.md": b"Acceptance of the new nodes.\n",
    "notes.txt": b"fan of one node replaced\n",
    ".DS_Store": b"\0\0\0\1Bud1",
    "core.1234": b"\x7fELF" + bytes(64),
    "picture.png": b"\x89PNG\r\n\x1a\n",
    "inventory.csv": b"node,serial\nx,1\n",
}


def verdicts(run: PooledRun, folder: Path) -> list[Verdict]:
    """Return the verdicts on the contents of a folder, with the options of a run of the pool."""
    judged = judge_paths((str(folder),), GivenBounds(run.machine))
    return [one.verdict for one in judged]


def rejudged(one: Judged, plan: Plan, records: tuple[Record, ...]) -> Verdict:
    """Judge a run again, with another plan or other records."""
    verdict = one.verdict
    end = RunEnd(schema=1, interruption=verdict.interruption, end=verdict.end)
    _, again = _judged(plan, records, (), verdict.attempt, end)
    return again


@pytest.fixture
def evidence(run: PooledRun) -> Judged:
    """Return the judged evidence of a run of the pool."""
    return judge_path(str(run.folder))


@pytest.mark.parametrize("run", runs(Kind.EVIDENCE))
class TestEvidence:
    def test_with_other_names_of_hosts_the_verdict_is_the_same(
        self, run: PooledRun, evidence: Judged
    ) -> None:
        verdict = evidence.verdict
        new = longer((*verdict.hosts, *verdict.missing))
        again = rejudged(evidence, new.plan(evidence.plan), new.records(evidence.records))
        assert shown(again, new.old) == shown(rejudged(evidence, evidence.plan, evidence.records))

    def test_in_another_order_of_records_the_verdict_is_the_same(
        self, run: PooledRun, evidence: Judged
    ) -> None:
        records = list(evidence.records)
        random.Random(run.name).shuffle(records)
        again = rejudged(evidence, evidence.plan, tuple(records))
        assert shown(again) == shown(rejudged(evidence, evidence.plan, evidence.records))

    def test_files_beside_it_do_not_change_the_verdict(
        self, run: PooledRun, evidence: Judged, tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs" / "one"
        shutil.copytree(run.folder, folder / "evidence", symlinks=True)
        for name, content in _NEIGHBORS.items():
            (folder / name).write_bytes(content)
        (again,) = verdicts(run, folder)
        assert shown(again) == shown(evidence.verdict)

    def test_with_other_names_of_logs_the_verdict_is_the_same(
        self, run: PooledRun, evidence: Judged, tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs" / "one" / "evidence"
        shutil.copytree(run.folder, folder, symlinks=True)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        text = (folder / RECORDS).read_text()
        logs = [record.log for record in evidence.records if record.log]
        random.Random(run.name).shuffle(logs)
        for number, log in enumerate(logs):
            if (folder / log).is_file():
                new = f"{Path(log).parent}/{number}.log"
                (folder / log).rename(folder / new)
                text = text.replace(json.dumps(log), json.dumps(new))
        (folder / RECORDS).write_text(text)
        if (folder / CHECKSUMS).is_file():
            write_checksums(folder)
        (again,) = verdicts(run, folder)
        assert shown(again) == shown(evidence.verdict)


@pytest.fixture
def logs(run: PooledRun, tmp_path: Path) -> Path:
    """Return a copy of the logs of a run of the pool."""
    folder = tmp_path / "logs"
    shutil.copytree(run.folder, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.mark.parametrize("run", runs(Kind.LOGS))
def test_logs_with_other_names_of_hosts_have_the_same_verdict(run: PooledRun, logs: Path) -> None:
    (before,) = verdicts(run, logs)
    new = longer(before.hosts)
    for path in files_of(logs):
        text = new(path.read_text("latin-1"))
        path.unlink()
        path.with_name(new(path.name)).write_text(text, "latin-1")
    (after,) = verdicts(run, logs)
    assert shown(after, new.old) == shown(before)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def named_as_in_a_run(logs: Path, other: Path, chance: random.Random) -> Path:
    paths = files_of(logs)
    chance.shuffle(paths)
    for number, path in enumerate(paths):
        step = step_of("all-reduce", params={"min": "8", "max": "8G"})
        name = log_path(step, number // 99, number % 99, hosts=("a",) * 64, start=1e9)
        if path.suffix == ".log":
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, other / name)
    return other


def in_another_order(logs: Path, other: Path, chance: random.Random) -> Path:
    paths = files_of(logs)
    chance.shuffle(paths)
    for number, path in enumerate(paths):
        (other / f"{number:04d}").mkdir(parents=True)
        shutil.copy(path, other / f"{number:04d}")
    return other


def with_a_copy_of_the_tables(logs: Path, _: Path, chance: random.Random) -> Path:
    """Add the tables without the lines that name their devices."""
    device = re.compile(r"# +Rank +\d+ .*|.* NCCL .*|.*_perf.*")
    lines = (line for path in files_of(logs) for line in path.read_text("latin-1").splitlines())
    shown = "\n".join(line for line in lines if not device.search(line))
    (logs / "console.log").write_text(shown, "latin-1")
    return logs


def with_neighbors(logs: Path, _: Path, chance: random.Random) -> Path:
    for name, content in _NEIGHBORS.items():
        if not (logs / name).exists():
            (logs / name).write_bytes(content)
    return logs


@pytest.mark.parametrize(
    "change", [named_as_in_a_run, in_another_order, with_a_copy_of_the_tables, with_neighbors]
)
@pytest.mark.parametrize("run", runs(Kind.LOGS))
def test_logs_in_another_form_have_the_same_verdict(
    run: PooledRun,
    change: Callable[[Path, Path, random.Random], Path],
    logs: Path,
    tmp_path: Path,
) -> None:
    (before,) = verdicts(run, logs)
    (after,) = verdicts(run, change(logs, tmp_path / "other", random.Random(run.name)))
    assert shown(after) == shown(before)
