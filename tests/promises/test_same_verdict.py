"""Renaming, order, neighbors: what does not concern the hardware does not change a verdict."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.promises.pool import Kind, PooledRun, runs

from accept.commands import judge
from accept.core import serde
from accept.core.judge.summary import node_lists
from accept.core.model import Finding, Plan, Record, Verdict

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
    machine = run.options[run.options.index("--machine") + 1] if run.options else None
    judged = judge.judge_paths((str(folder),), expect=(), machine=machine)
    return [one.verdict for one in judged]


def shown(verdict: Verdict, old: Callable[[str], str] = str) -> object:
    """Return everything that a verdict decides, with the old names of hosts and in no order."""

    def named(*hosts: str) -> frozenset[str]:
        return frozenset(map(old, hosts))

    def finding(one: Finding) -> tuple[object, ...]:
        # Executions that failed in the same way are shown in the order of the run.
        count = (one.executions.bad, one.executions.total) if one.executions else None
        return (one.judgement, one.state, one.cause, named(*one.hosts), one.metric, one.size, count)

    lists = node_lists(verdict)
    return (
        verdict.state,
        verdict.exit,
        named(*lists.good),
        named(*lists.bad),
        named(*lists.untested),
        frozenset(
            (s.kind, frozenset((named(*s.hosts), named(*s.others))), s.device, s.cause, s.strength)
            for s in verdict.suspects
        ),
        frozenset(
            (check.check, check.state, frozenset(map(finding, check.findings)))
            for check in verdict.checks
        ),
        verdict.detectable,
    )


class Renamed:
    """Other names: of other lengths, and in the opposite order."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        """Name the hosts anew."""
        count = len(hosts)
        ordered = sorted(hosts)
        new = [f"q{count - i:04d}{'-rack' * (i % 3)}" for i in range(count)]
        self._new = dict(zip(ordered, new, strict=True))
        self._old = dict(zip(new, ordered, strict=True))
        # Without hosts, nothing matches.
        names = "|".join(map(re.escape, sorted(hosts, key=len, reverse=True))) or "(?!)"
        self._pattern = re.compile(rf"(?<![A-Za-z0-9.-])({names})(?![A-Za-z0-9-])")

    def __call__(self, text: str) -> str:
        """Return a text with the new names."""
        return self._pattern.sub(lambda match: self._new[match[1]], text)

    def old(self, name: str) -> str:
        """Return the name that a host had before."""
        return self._old.get(name, name)

    def data(self, data: object) -> object:
        """Return data in which all texts have the new names, also those of keys."""
        if isinstance(data, str):
            return self(data)
        if isinstance(data, dict):
            return {self.data(key): self.data(value) for key, value in data.items()}
        return [self.data(one) for one in data] if isinstance(data, list) else data


def rejudged(one: judge.Judged, plan: Plan, records: tuple[Record, ...]) -> Verdict:
    """Judge a run again, with another plan or other records."""
    verdict = one.verdict
    _, again = judge._judged(plan, records, (), verdict.attempt, verdict.interruption)
    return again


@pytest.fixture
def evidence(run: PooledRun) -> judge.Judged:
    """Return the judged evidence of a run of the pool."""
    return judge.judge_path(str(run.folder), expect=())


@pytest.mark.parametrize("run", runs(Kind.EVIDENCE))
class TestEvidence:
    def test_with_other_names_of_hosts_the_verdict_is_the_same(
        self, run: PooledRun, evidence: judge.Judged
    ) -> None:
        verdict = evidence.verdict
        new = Renamed((*verdict.hosts, *verdict.missing))
        plan = serde.read(Plan, new.data(serde.dump(evidence.plan)))
        records = tuple(
            serde.read(Record, new.data(serde.dump(record))) for record in evidence.records
        )
        again = rejudged(evidence, plan, records)
        assert shown(again, new.old) == shown(rejudged(evidence, evidence.plan, evidence.records))

    def test_in_another_order_of_records_the_verdict_is_the_same(
        self, run: PooledRun, evidence: judge.Judged
    ) -> None:
        records = list(evidence.records)
        random.Random(run.name).shuffle(records)
        again = rejudged(evidence, evidence.plan, tuple(records))
        assert shown(again) == shown(rejudged(evidence, evidence.plan, evidence.records))

    def test_files_beside_it_do_not_change_the_verdict(
        self, run: PooledRun, evidence: judge.Judged, tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs" / "one"
        shutil.copytree(run.folder, folder / "evidence", symlinks=True)
        for name, content in _NEIGHBORS.items():
            (folder / name).write_bytes(content)
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
class TestLogs:
    def test_with_other_names_of_hosts_the_verdict_is_the_same(
        self, run: PooledRun, logs: Path
    ) -> None:
        (before,) = verdicts(run, logs)
        new = Renamed(before.hosts)
        for path in [path for path in logs.rglob("*") if path.is_file()]:
            text = new(path.read_text("latin-1"))
            path.unlink()
            path.with_name(new(path.name)).write_text(text, "latin-1")
        (after,) = verdicts(run, logs)
        assert shown(after, new.old) == shown(before)

    def test_in_another_order_of_files_the_verdict_is_the_same(
        self, run: PooledRun, logs: Path, tmp_path: Path
    ) -> None:
        (before,) = verdicts(run, logs)
        paths = sorted(path for path in logs.rglob("*") if path.is_file())
        random.Random(run.name).shuffle(paths)
        other = tmp_path / "other"
        for number, path in enumerate(paths):
            (other / f"{number:04d}").mkdir(parents=True)
            shutil.copy(path, other / f"{number:04d}")
        (after,) = verdicts(run, other)
        assert shown(after) == shown(before)

    def test_files_beside_them_do_not_change_the_verdict(self, run: PooledRun, logs: Path) -> None:
        (before,) = verdicts(run, logs)
        for name, content in _NEIGHBORS.items():
            if not (logs / name).exists():
                (logs / name).write_bytes(content)
        (after,) = verdicts(run, logs)
        assert shown(after) == shown(before)
