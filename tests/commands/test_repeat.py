"""`accept run --repeat`: the runs that it starts, the files that it writes, and its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import Done, accept, refused

from accept.commands import run
from accept.commands.judged import Judged, judge_path
from accept.core.error_codes import Code
from accept.core.errors import Exit, NotStarted
from accept.evidence import rundir

REPEAT = ("run", "-m", "cpu", "--hosts", "h1,h2", "--attempt", "r", "--repeat", "3")


@pytest.fixture
def repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Return a function that repeats a run; `fails` has the errors of repetitions."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))

    def call(*words: str, fails: dict[int, BaseException] | None = None) -> Done:
        def run_to_verdict(*_: Any, name: str, within: Any, **__: Any) -> Judged:
            if error := (fails or {}).get(int(name.rpartition("-")[2])):
                raise error
            folder = rundir.create(name, within=within)
            (folder / rundir.RUN).write_text("{}")
            return judge_path(str(sample_evidence.write(folder / rundir.EVIDENCE)))

        monkeypatch.setattr(run, "run_to_verdict", run_to_verdict)
        return accept(*REPEAT, *words)

    return call


def test_each_repetition_has_a_folder_of_its_own(repeated: Callable[..., Done]) -> None:
    done = repeated("--json")
    result = json.loads(done.out)
    folder = rundir.runs() / "r"
    assert done.code == result["exit"]
    assert len(result["repetitions"]) == result["times"] == 3
    assert json.loads((folder / rundir.REPEAT).read_text()) == result
    names = {path.name for path in folder.iterdir()}
    assert names == {"r-1", "r-2", "r-3", "repeat.json", "report.html", "report.md"}
    assert result["answer"] in accept("list", "runs").out


def test_a_repetition_that_cannot_start_ends_them(repeated: Callable[..., Done]) -> None:
    done = repeated(fails={2: NotStarted("no host", code=Code.LOCAL_NO_GPU)})
    assert (done.code, done.out, done.error) == (Exit.NOT_STARTED, "", Code.LOCAL_NO_GPU)
    result = json.loads((rundir.runs() / "r" / rundir.REPEAT).read_text())
    assert (result["exit"], result["accepted"], len(result["repetitions"])) == (4, False, 1)


def test_without_any_repetition_no_folder_stays(repeated: Callable[..., Done]) -> None:
    repeated(fails={1: NotStarted("no host", code=Code.LOCAL_NO_GPU)})
    assert rundir.listed() == ()


def test_ctrl_c_ends_all(repeated: Callable[..., Done]) -> None:
    assert repeated(fails={2: KeyboardInterrupt()}).code == Exit.CTRL_C
    assert (rundir.runs() / "r" / "r-1").is_dir()


def test_its_runs_are_found_by_name(repeated: Callable[..., Done]) -> None:
    repeated()
    assert "r-1, r-2, r-3" in refused("judge", "r", error=Code.RUN_IS_DRILL)
    assert rundir.is_own(rundir.find("r-2"))


def test_a_dry_run_starts_nothing(repeated: Callable[..., Done]) -> None:
    assert "3 repetitions" in repeated("--dry-run").out
    assert rundir.listed() == ()
