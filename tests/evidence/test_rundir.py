"""Run folders: their location, their names, and the meaning of `last`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.evidence import rundir

pytestmark = pytest.mark.usefixtures("runs")


def test_they_are_in_the_users_state_folder_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEPT_RUNS")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert rundir.runs() == Path("/home/ada/.local/state/accept/runs")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert rundir.runs() == Path("/state/accept/runs")


def test_a_new_one_is_for_its_user_alone(runs: Path) -> None:
    folder = rundir.create("one")
    assert folder == runs / "one"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_name_is_given_once() -> None:
    rundir.create("one")
    with pytest.raises(BadInput) as error:
        rundir.create("one")
    assert error.value.code is Code.ATTEMPT_EXISTS


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "a b", "a" * 64, "last", "a\n"])
def test_a_name_is_one_that_a_cluster_would_take(name: str) -> None:
    with pytest.raises(BadInput) as error:
        rundir.create(name)
    assert error.value.code is Code.ATTEMPT_NAME


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(BadInput) as error:
        rundir.create("one")
    assert error.value.code is Code.RUNS_FOLDER


def test_last_is_the_newest() -> None:
    for age, name in enumerate(("c", "a", "b")):
        os.utime(rundir.create(name), ns=(age, age))
    assert rundir.find("last").name == "b"
    assert [folder.name for folder in rundir.listed()] == ["c", "a", "b"]


def test_last_without_runs_says_how_to_start_one() -> None:
    with pytest.raises(BadInput) as error:
        rundir.find("last")
    assert error.value.code is Code.RUN_NONE
    assert "accept run" in error.value.hint


def test_one_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    folder = rundir.create("one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert rundir.find("one") == folder
    assert rundir.find(str(folder)) == folder
    assert rundir.find(str(elsewhere)) == elsewhere


def test_one_that_is_not_there_is_named_with_the_newest() -> None:
    rundir.create("one")
    with pytest.raises(BadInput) as error:
        rundir.find("two")
    assert error.value.code is Code.RUN_UNKNOWN
    assert "one" in error.value.hint
