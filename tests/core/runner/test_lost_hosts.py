"""Hosts that no longer answer the coordinator: gone, or only cut off from it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.factories.verdicts import plan

from accept.core.runner import coordinator, launch
from accept.core.runner.ssh import Answer, Host
from accept.core.runner.state import Run, lose_silent_hosts

ALIVE, SILENT = Answer(exit=0, out=b"alive\n"), Answer(exit=255, err=b"timed out")


def host(number: int) -> Host:
    return Host(
        name=f"h{number}", mpi_name="", address=f"10.0.0.{number}", port=22, slots=1,
        local=number == 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("silent", "reached", "causes"),
    [
        ((), (), {}),
        ((3, 4), (), {"h3": "host-died", "h4": "host-died"}),
        ((3, 4), (3,), {"h3": "cut-off", "h4": "host-died"}),
        # Nobody is left who could be asked.
        ((2, 3, 4), (3,), {"h2": "host-died", "h3": "host-died", "h4": "host-died"}),
    ],
)
def test_a_host_that_another_one_reaches_is_cut_off_and_not_dead(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    silent: tuple[int, ...],
    reached: tuple[int, ...],
    causes: dict[str, str],
) -> None:
    async def ask(_: Run, asked: Host, command: str) -> Answer:
        if asked in map(host, silent):
            return SILENT
        through_h2 = [number for number in silent if f"HostName=10.0.0.{number}" in command]
        return ALIVE if set(through_h2) <= set(reached) else SILENT

    monkeypatch.setattr(Run, "ask", ask)
    hosts = tuple(map(host, range(1, 5)))
    state = Run(folder=tmp_path, attempt="one", plan=plan(), hosts=hosts)
    problems = asyncio.run(lose_silent_hosts(state, hosts))
    assert {problem.host: problem.cause for problem in problems} == causes
    assert {name: problem.cause for name, problem in state.lost.items()} == causes


def test_a_host_whose_restart_ends_the_run_is_recorded_even_if_its_loss_was_noticed_before(
    tmp_path: Path,
) -> None:
    state = Run(folder=tmp_path, attempt="one", plan=plan(), hosts=(host(1), host(2)))
    state.evidence.mkdir()
    (tmp_path / launch.INTERRUPTION).write_text("Slurm ended the run\nh2\nh9")
    assert asyncio.run(coordinator._cancel_reason(state, "7")) == "Slurm ended the run"
    (problem,) = (problem for record in state.records for problem in record.problems)
    assert (problem.host, problem.cause) == ("h2", "host-died")
    assert set(state.lost) == {"h2"}
