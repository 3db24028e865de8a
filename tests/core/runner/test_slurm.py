"""The step that prepares the nodes of a job of Slurm; srun is a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.clock import PATIENCE
from tests.factories.shell import write_program

from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.records import Problem
from accept.core.runner.host_setup import Ready
from accept.core.runner.slurm_step import PAYLOAD, Failure, SlurmRun, Step, node_list

RUN = SlurmRun(
    attempt="a1", folder="/tmp/accept-a1", shared="/nowhere", start_seconds=60, life_seconds=60,
    keep_seconds=60, enough_minutes=7, hold_seconds=0, gpus=False, busy_ok=False,
)  # fmt: skip


@given(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=80))
def test_a_job_reports_a_failure_with_its_code(message: str) -> None:
    for code in (Code.SLURM_JOB_FAILED, Code.SLURM_LAUNCHER, Code.SLURM_RANKS):
        parsed = Failure.parse(Failure(message, code).line)
        assert (parsed.code, parsed.message) == (code, message)
    assert Failure.parse(f"E-HOSTLIST-SYNTAX {message}").code is Code.SLURM_JOB_FAILED


def test_slurm_reads_ranges_only_at_the_end_of_a_name() -> None:
    assert node_list(("n1", "n2", "a1-ib", "a2-ib", "login")) == "n[1-2],a1-ib,a2-ib,login"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose srun is before all others on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / PAYLOAD).write_bytes(b"")
    return tmp_path


def step(folder: Path, script: str) -> Step:
    """Run the step on n1 and n2 to its end, with this srun."""
    write_program(folder / "srun", script)
    started = Step(
        RUN, ("n1", "n2"), job="7", folder=folder, restarted=(folder / "restarted").write_text
    )
    started.wait(PATIENCE, lambda: False)
    started.end()
    return started


def test_only_marked_lines_of_nodes_of_the_job_count(folder: Path) -> None:
    text = (
        "Welcome\\naccept-node n1 place top/leaf1\\nport 22\\naccept-node n9 ready\\n"
        "accept-node n1 port 4000\\naccept-node n1 ready\\naccept-node n2 port 4001\\n"
    )
    outcome = step(folder, f"printf '{text}'").outcome()
    assert outcome["n1"] == Ready(
        name="n1", port=4000, addresses=(), python=(), busy=(), place="top/leaf1"
    )
    assert isinstance(outcome["n2"], Problem)
    assert set(outcome) == {"n1", "n2"}


def test_a_node_that_srun_cannot_reach_is_named_for_the_next_try(folder: Path) -> None:
    error = "srun: error: Task launch for StepId=5.0 failed on node n2: Connection timed out"
    ended = step(folder, f"echo '{error}' >&2; exit 1")
    (problem,) = ended.unreachable().values()
    assert isinstance(problem, Problem)
    assert (problem.host, problem.cause) == ("n2", Cause.UNREACHABLE_TIMEOUT)


def test_a_step_that_fails_for_another_reason_blames_no_single_node(folder: Path) -> None:
    ended = step(folder, "echo 'srun: error: Invalid job id specified' >&2; exit 1")
    assert ended.unreachable() == {}
    assert all(isinstance(result, Problem) for result in ended.outcome().values())


def test_a_node_with_a_full_disk_is_named_when_its_task_ends(folder: Path) -> None:
    full = "tar: core.tar: Cannot write: No space left on device"
    fails = f"echo '{full}' >&2; echo tar: Exiting with failure status >&2; exit 2"
    write_program(folder / "tar", fails)
    warning = "echo 'srun: cluster configuration lacks support for cpu binding' >&2"
    task = 'for task; do :; done; SLURMD_NODENAME=n2 SLURM_NODEID=1 sh -c "$task"'
    outcome = step(folder, f"{warning}; {task}").outcome()
    problem, late = outcome["n2"], outcome["n1"]
    assert isinstance(problem, Problem)
    assert isinstance(late, Problem)
    assert (problem.cause, problem.message) == (Cause.DISK_FULL, f"n2: {full}")
    assert "cpu binding" not in late.message


def test_a_node_whose_restart_ends_the_step_is_named_by_its_number(
    folder: Path,
) -> None:
    numbers = r"printf 'accept-node n1 number 1\naccept-node n2 number 0\n'"
    error = "srun: error: Aborting, io error and missing step on node 1"
    step(folder, f"{numbers}; echo '{error}' >&2; exit 1").outcome()
    assert (folder / "restarted").read_text() == "n1"


def test_a_place_may_not_hold_a_command(folder: Path) -> None:
    text = "accept-node n1 place $(id)\\naccept-node n1 port 4000\\naccept-node n1 ready\\n"
    result = step(folder, f"printf '%b' '{text}'").outcome()["n1"]
    assert isinstance(result, Ready)
    assert result.place == ""
