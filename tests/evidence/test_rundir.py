"""Run folders: their location, their names, and the meaning of `last`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.evidence import rundir

pytestmark = pytest.mark.usefixtures("runs")


def test_runs_are_in_the_users_state_folder_or_in_accept_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ACCEPT_RUNS")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert rundir.runs() == Path("/home/ada/.local/state/accept/runs")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert rundir.runs() == Path("/state/accept/runs")


def test_only_its_user_can_read_a_new_run(runs: Path) -> None:
    folder = rundir.create("one")
    assert folder == runs / "one"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_name_is_used_once() -> None:
    rundir.create("one")
    with pytest.raises(BadInput) as error:
        rundir.create("one")
    assert error.value.code is Code.ATTEMPT_EXISTS


def test_a_name_in_a_series_is_used_once() -> None:
    (rundir.create("one-1", within=rundir.create("one")) / rundir.RUN).touch()
    with pytest.raises(BadInput) as error:
        rundir.create("one-1")
    assert error.value.code is Code.ATTEMPT_EXISTS


def test_a_run_of_a_series_is_own_before_the_series_has_a_result() -> None:
    folder = rundir.create("one-1", within=rundir.create("one"))
    assert rundir.is_own(folder)
    (folder.parent / rundir.EVIDENCE).mkdir()
    assert not rundir.is_own(folder)


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "a b", "a" * 64, "last", "a\n"])
def test_a_name_must_be_valid_on_a_cluster(name: str) -> None:
    with pytest.raises(BadInput) as error:
        rundir.create(name)
    assert error.value.code is Code.ATTEMPT_NAME


def test_an_unwritable_runs_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(BadInput) as error:
        rundir.create("one")
    assert error.value.code is Code.RUNS_FOLDER


def test_last_is_the_newest() -> None:
    for age, name in enumerate(("c", "a", "b")):
        (rundir.create(name) / rundir.EVIDENCE).mkdir()
        os.utime(rundir.runs() / name, ns=(age, age))
    assert rundir.find("last").name == "b"
    assert [folder.name for folder in rundir.listed()] == ["c", "a", "b"]


def test_last_without_runs_shows_how_to_start_one() -> None:
    with pytest.raises(BadInput) as error:
        rundir.find("last")
    assert error.value.code is Code.RUN_NONE
    assert "accept run" in error.value.hint


def test_a_run_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    folder = rundir.create("one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert rundir.find("one") == folder
    assert rundir.find(str(folder)) == folder
    assert rundir.find(str(elsewhere)) == elsewhere


def test_an_unknown_run_is_refused_with_the_newest() -> None:
    rundir.create("one")
    with pytest.raises(BadInput) as error:
        rundir.find("two")
    assert error.value.code is Code.RUN_UNKNOWN
    assert "one" in error.value.hint
