"""A launch that fails is started once more; a second failure counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.factories.verdicts import plan, step

from accept.core import evidence
from accept.core.causes import Cause
from accept.core.groups import Group
from accept.core.records import Record
from accept.core.runner import execute
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run

STEP = step("connectivity", "each", params={})
FAILS = "echo 'NO PATH TO TARGET'; exit 250"
BEGINS = 'echo "ACCEPT {\\"fact\\":\\"began\\",\\"value\\":1.0}"'


def executed(folder: Path, *scripts: str) -> tuple[Record, list[Record]]:
    """Run a step on this machine whose starts run these scripts in turn."""
    (folder / "steps").mkdir()
    cases = "".join(f"{n}) {script} ;;\n" for n, script in enumerate(scripts))
    (folder / STEP.script).write_text(
        f"cd {folder} && echo >> starts; case $(($(wc -l < starts) - 1)) in\n{cases}esac\n"
    )
    for name in ("kill.sh", "check_writable.sh"):
        (folder / name).write_text("")
    host = Host(name="h1", mpi_name="h1", address="127.0.0.1", port=22, slots=1, local=True)
    state = Run(folder=folder, attempt="one", plan=plan(STEP), hosts=(host,))
    state.evidence.mkdir()
    wave = (Group(hosts=("h1",)),)
    (record,) = asyncio.run(execute.execute_wave(state, STEP, 0, wave, lambda _: None))
    assert state.records == [record] == list(evidence.read_records(state.evidence))
    return record, state.records


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("NO PATH TO TARGET", 250),
        ("A daemon failed to report back", 1),
        # As mpirun ended when a node was stopped.
        ("has lost communication with a remote daemon", 0),
    ],
)
def test_a_good_second_launch_counts_and_the_first_is_noted(
    tmp_path: Path, line: str, status: int
) -> None:
    record, _ = executed(tmp_path, f"echo '{line}'; exit {status}", BEGINS)
    assert (record.exit, record.problems, starts(tmp_path)) == (0, (), 2)
    assert record.failed_launch is not None
    first = tmp_path / "evidence" / record.failed_launch.log
    assert first.read_text() == f"{line}\n"
    assert first.name != Path(record.log).name


def test_a_second_failure_counts_and_nothing_starts_a_third_time(tmp_path: Path) -> None:
    record, _ = executed(tmp_path, FAILS, FAILS, BEGINS)
    assert (record.exit, starts(tmp_path)) == (250, 2)
    assert [problem.cause for problem in record.problems] == [Cause.LAUNCH_FAILED]
    assert record.failed_launch is not None


@pytest.mark.parametrize("script", [f"{BEGINS}; exit 1", "exit 0"])
def test_a_program_that_began_or_ended_well_is_started_once(tmp_path: Path, script: str) -> None:
    record, _ = executed(tmp_path, script, BEGINS)
    assert (record.failed_launch, starts(tmp_path)) == (None, 1)
