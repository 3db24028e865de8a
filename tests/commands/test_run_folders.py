"""Run folders that a command may act on, and its output about active and ended runs."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept, refused
from tests.factories.jobs import job_of, over_ssh, submitted
from tests.factories.paths import LAUNCHERS
from tests.factories.shell import write_program

from accept import backends
from accept.backends import local
from accept.backends.job import Job
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit, Interrupted
from accept.evidence import rundir

#: Commands that act on a run folder: they start programs, reach hosts and remove folders.
ACTING = ("watch", "collect", "cancel", "clean")


@pytest.fixture(autouse=True)
def no_grace(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_GRACE", 0.0)


def trap(node: Path, marker: Path) -> Path:
    """Make a folder whose kill.sh leaves a mark, and which looks like a run that has ended."""
    (node / "evidence").mkdir(parents=True)
    (node / "status").write_text("0\n")
    (node / "kill.sh").write_text(f"touch '{marker}'\n")
    return node


class TestForeignFolder:
    """It could name commands to run and folders to remove, so commands only read it."""

    @pytest.fixture
    def marker(self, tmp_path: Path) -> Path:
        return tmp_path / "executed"

    @pytest.fixture
    def foreign(self, tmp_path: Path, marker: Path) -> Path:
        folder = submitted(tmp_path / "case" / "one")
        trap(folder / "node", marker)
        return folder

    @pytest.mark.parametrize("command", ACTING)
    def test_is_refused_by_path_by_name_and_through_a_link_in_the_runs_folder(
        self,
        command: str,
        foreign: Path,
        marker: Path,
        runs: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(foreign.parent)
        for name in (str(foreign), "one", "./one"):
            refused(command, name, error="E-RUN-NOT-OWN")
        runs.mkdir()
        (runs / "one").symlink_to(foreign)
        for name in ("one", "last"):
            refused(command, name, error="E-RUN-NOT-OWN")
        assert (foreign / "node").is_dir()
        assert not marker.exists()

    def test_is_not_deleted_by_age_through_a_link(
        self, foreign: Path, marker: Path, runs: Path
    ) -> None:
        old = job_of(foreign, submitted="2020-01-01T00:00:00+00:00")
        submitted(foreign, old)
        runs.mkdir()
        (runs / "one").symlink_to(foreign)
        assert accept("clean", "--older-than", "24h").code == 0
        assert (foreign / "node").is_dir()
        assert not marker.exists()

    @pytest.mark.parametrize("command", ACTING)
    def test_inside_the_evidence_of_a_run_is_refused(
        self, command: str, runs: Path, marker: Path
    ) -> None:
        """Evidence from a bucket may hold any file."""
        inner = submitted(runs / "one" / "evidence")
        (inner / rundir.RUN).write_text("{}")
        trap(inner / "node", marker)
        refused(command, "evidence", error=Code.RUN_UNKNOWN)
        refused(command, inner, error=Code.RUN_NOT_OWN)
        assert not marker.exists()

    @pytest.mark.usefixtures("working")
    def test_is_judged_and_reported_if_it_has_evidence(self, foreign: Path) -> None:
        error = refused("judge", foreign, code=Exit.INCOMPLETE, error="E-EVIDENCE-NONE")
        assert f"accept collect {foreign.name}" not in error
        sample_evidence.write(foreign / "evidence")
        assert accept("judge", foreign).code == 0
        assert accept("report", foreign).code == 0


class TestOwnFolder:
    def test_is_found_by_name_and_by_path(self, runs: Path) -> None:
        folder = submitted(rundir.create("one"))
        for name in ("one", "last", str(folder), f"{runs}/../runs/one"):
            assert rundir.find_own(name) == folder

    @pytest.mark.parametrize("command", ["cancel", "clean"])
    def test_with_evidence_of_others_has_nothing_to_act_on(self, command: str, runs: Path) -> None:
        sample_evidence.write(runs / "one" / "evidence")
        error = refused(command, "last", error=Code.RUN_NOT_STARTED)
        assert f"accept judge {runs / 'one'}" in error
        assert "accept submit" not in error

    def test_that_others_can_write_to_is_refused(self, runs: Path, tmp_path: Path) -> None:
        """Several users may share a folder of runs."""
        old = job_of(runs / "one", submitted="2020-01-01T00:00:00+00:00")
        folder, marker = submitted(runs / "one", old), tmp_path / "executed"
        trap(folder / "node", marker)
        folder.chmod(0o775)
        for command in ACTING:
            refused(command, "one", error="E-RUN-NOT-OWN")
        assert accept("clean", "--older-than", "24h", "--no-collect").code == 0
        assert (folder / "node").is_dir()
        assert not marker.exists()

    def test_of_a_start_that_was_killed_early_is_not_the_last_run(self, runs: Path) -> None:
        sample_evidence.write(submitted(runs / "one") / "evidence")
        rundir.create("two")
        assert rundir.find("last") == runs / "one"
        abouts = {
            run["name"]: run["about"]
            for run in json.loads(accept("list", "runs", "--json").out)["runs"]
        }
        assert abouts["two"] == "killed while it was rendered"

    def test_of_a_start_that_was_killed_early_can_be_removed(self, runs: Path) -> None:
        (rundir.create("two") / "rendered").mkdir()
        (runs / "two" / rundir.RUN).write_text("{}")
        assert "accept clean two" in refused("cancel", "two", error=Code.RUN_NOT_STARTED)
        assert str(runs / "two") in accept("clean", "two", "--dry-run").out
        assert (runs / "two").exists()
        assert accept("clean", "two").code == 0
        assert not (runs / "two").exists()

    def test_may_be_of_a_drill(self) -> None:
        drill = rundir.create("d")
        (drill / rundir.DRILL).write_text("{}")
        folder = rundir.create("d-wrong", within=drill)
        (folder / rundir.RUN).write_text("{}")
        assert rundir.find_own("d-wrong") == folder

    def test_stays_the_same_after_a_change_of_the_working_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ACCEPT_RUNS", "a/../relative")
        monkeypatch.chdir(tmp_path)
        assert rundir.runs() == tmp_path.resolve() / "relative"

    @pytest.mark.parametrize("command", ACTING)
    def test_whose_job_or_link_leads_to_another_folder_is_refused(
        self, command: str, runs: Path, tmp_path: Path
    ) -> None:
        victim, marker = trap(tmp_path / "victim", tmp_path / "executed"), tmp_path / "executed"
        submitted(runs / "one", job_of(runs / "one", folder=str(victim)))
        refused(command, "one", error="E-RUN-FOREIGN-FOLDER")
        submitted(runs / "two")
        (runs / "two" / "node").symlink_to(victim)
        refused("clean", "two", "--no-collect", error="E-RUN-FOREIGN-FOLDER")
        assert (victim / "status").exists()
        assert not marker.exists()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that does not belong to a run."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]


def begun(folder: Path, pid: int, started: str) -> Path:
    """Make a run whose coordinator has the process id `pid` and the start time."""
    node = submitted(folder) / "node"
    node.mkdir()
    (node / "kill.sh").write_text("exit 0\n")
    (node / "coordinator.start").write_text(f"{started}\n")
    (node / "coordinator.pid").write_text(f"{pid}\n")
    return node


def test_a_reused_process_id_is_neither_waited_for_nor_killed(
    runs: Path, stranger: subprocess.Popen[bytes]
) -> None:
    node = begun(runs / "one", stranger.pid, "1")
    sample_evidence.write(node / "evidence", whole=False)
    begun(runs / "two", stranger.pid, "1")
    assert "running" not in accept("list", "runs").out
    assert accept("watch", "two").code == Exit.INTERRUPTED
    accept("cancel", "two")
    assert stranger.poll() is None
    assert accept("collect", "one").code == 0


class TestRunningRun:
    @pytest.fixture
    def node(self, runs: Path, stranger: subprocess.Popen[bytes]) -> Path:
        node = begun(runs / "one", stranger.pid, start_time(stranger.pid))
        (node / "evidence").mkdir(exist_ok=True)
        evidence.write_step(node / "evidence", 3, 6)
        return node

    @pytest.mark.parametrize("command", ["judge", "report"])
    @pytest.mark.parametrize("name", ["last", "one"])
    def test_is_not_judged_and_its_step_is_shown(self, node: Path, command: str, name: str) -> None:
        error = refused(command, name, code=Exit.INCOMPLETE, error="E-RUN-STILL-RUNNING")
        assert "step 3 of 6" in error
        assert f"accept watch {name}" in error

    def test_is_listed_as_running_until_it_has_ended(self, node: Path) -> None:
        assert "running" in accept("list", "runs").out
        (node / "status").write_text("0\n")
        refused("judge", "one", code=Exit.INCOMPLETE, error="E-EVIDENCE-NOT-COLLECTED")
        assert "running" not in accept("list", "runs").out

    def test_on_other_hosts_is_listed_as_submitted(self, runs: Path) -> None:
        submitted(runs / "one", over_ssh(runs / "one"))
        (run,) = json.loads(accept("list", "runs", "--json").out)["runs"]
        assert (run["name"], run["about"]) == ("one", "submitted")


def test_a_cancellation_that_cannot_be_confirmed_still_collects_the_evidence(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(runs / "one", over_ssh(runs / "one"))

    def cancel(*_: object, **__: object) -> None:
        raise Interrupted("h1 does not answer", code=Code.SSH_NO_ANSWER)

    def collect(job: Job, *, folder: Path, say: object) -> Path:
        return sample_evidence.write(folder / "evidence")

    monkeypatch.setattr("accept.backends.ssh.backend.cancel", cancel)
    monkeypatch.setattr("accept.backends.ssh.backend.collect", collect)
    refused("cancel", "one", code=Exit.INTERRUPTED, error="E-SSH-NO-ANSWER")
    assert (runs / "one" / "evidence").is_dir()


def test_a_run_that_cannot_be_found_is_not_cancelled(runs: Path) -> None:
    folder = submitted(runs / "one")
    done = accept("cancel", "one", "--json")
    assert (done.code, json.loads(done.out)["outcome"]) == (Exit.INCOMPLETE, "not-found")
    with pytest.raises(Interrupted):
        local.watch(job_of(folder), folder=folder, say=print, log=print)


def test_the_start_time_of_the_coordinator_is_written_before_its_id(tmp_path: Path) -> None:
    """The start script stores both, so that commands can compare them."""
    script = LAUNCHERS / "coordinate.sh"
    (tmp_path / "coordinate.sh").write_bytes(script.read_bytes())
    (tmp_path / "run").write_text("one\n")
    # As in a local run, all files are unpacked.
    package = tmp_path / "core" / "accept"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    python = write_program(
        tmp_path / "python with space",
        'until [ -s coordinator.pid ]; do sleep 0.01; done\necho "$$"; cat "/proc/$$/stat"',
    )
    subprocess.run(["sh", tmp_path / "coordinate.sh", python], check=True, cwd=tmp_path)
    pid, stat = (tmp_path / "console.log").read_text().split("\n", 1)
    assert (tmp_path / "coordinator.pid").read_text().strip() == pid
    started = (tmp_path / "coordinator.start").read_text().strip()
    assert started == stat.rpartition(") ")[2].split()[19]
    written = [(tmp_path / f"coordinator.{kind}").stat().st_mtime_ns for kind in ("start", "pid")]
    assert written == sorted(written)


def test_a_run_that_can_neither_be_recorded_nor_ended_is_reported(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full when job.json is written, no later command would find the run."""

    def start(*_: object, folder: Path, **__: object) -> Job:
        return job_of(folder)

    def write(path: Path, text: str) -> None:
        if path.name == rundir.JOB:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        evidence.write(path, text)

    def delete(*_: object, **__: object) -> tuple[str, ...]:
        raise Interrupted("h7 did not answer", code=Code.SSH_NO_ANSWER)

    monkeypatch.setattr(local, "submit", start)
    monkeypatch.setattr(local, "delete", delete)
    monkeypatch.setattr("accept.commands.collect.write", write)
    done = accept("submit", "-m", "cpu", "-n", 1, "--attempt", "one")
    assert (done.code, done.error) == (Exit.INTERRUPTED, Code.RUN_NOT_RECORDED)
    assert "h7 did not answer" in done.err
    assert not (runs / "one").exists()


def test_a_job_with_an_endless_folder_name_is_refused(runs: Path) -> None:
    folder = submitted(runs / "one", job_of(runs / "one", folder="/" + "x" * 3000))
    with pytest.raises(BadInput) as error:
        backends.load_job(folder)
    assert error.value.code == Code.RUN_FOREIGN_FOLDER
    assert accept("list", "runs").code == 0
