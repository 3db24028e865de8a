"""The pool: every run can be judged, and only finished, unmodified runs are left behind."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept
from tests.promises import pool
from tests.promises.pool import Kind, PooledRun, runs


@pytest.mark.parametrize("run", runs())
def test_a_run_can_be_judged(run: PooledRun) -> None:
    done = accept("judge", run.folder, *run.options, "--json")
    assert done.error == ""
    assert json.loads(done.out)["exit"] == done.code


def test_it_has_runs_of_each_kind() -> None:
    assert {run.kind for run in runs()} == {*Kind}
    names = [run.name for run in runs()]
    assert len(names) == len(set(names))


class TestLeftBehind:
    @pytest.fixture(autouse=True)
    def empty_pool(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool, "LEFT_BEHIND", tmp_path / "pool")

    @staticmethod
    def kept(tmp_path: Path) -> list[str]:
        pool.leave_behind(tmp_path / "test", "real")
        return sorted(run.name for run in pool._left_behind())

    @staticmethod
    def finished(tmp_path: Path, name: str = "one", *, status: int = 0) -> Path:
        evidence = sample_evidence.write(tmp_path / "test" / name / "evidence", status=status)
        (evidence.parent / "job.json").write_text('{"backend": "ssh"}')
        return evidence

    def test_one_of_equal_runs_is_kept(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            self.finished(tmp_path, name)
        (kept,) = self.kept(tmp_path)
        assert kept.startswith("ssh-pass-1-")
        self.finished(tmp_path, "three", status=1)
        assert len(self.kept(tmp_path)) == 2

    def test_changed_evidence_is_left_out(self, tmp_path: Path) -> None:
        evidence = self.finished(tmp_path)
        with (evidence / "records.jsonl").open("a") as file:
            file.write("\n")
        assert self.kept(tmp_path) == []

    def test_an_unfinished_run_is_left_out(self, tmp_path: Path) -> None:
        (self.finished(tmp_path) / "SHA256SUMS").unlink()
        assert self.kept(tmp_path) == []

    def test_what_is_too_large_is_left_out(self, tmp_path: Path) -> None:
        evidence = self.finished(tmp_path)
        (evidence / "large").write_bytes(bytes(5 << 20))
        digest = hashlib.sha256(bytes(5 << 20)).hexdigest()
        with (evidence / "SHA256SUMS").open("a") as file:
            file.write(f"{digest}  large\n")
        assert self.kept(tmp_path) == []
