"""Damage condemns the file: a spoiled log accuses no host that the intact log does not."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.fuzz import mutate
from tests.promises.pool import Kind, PooledRun, runs

from accept.commands.judged import GivenBounds, judge_paths
from accept.core.errors import AcceptError

#: Spoiled copies of each run, and the seed; `python -m tests.fuzz` has many more kinds of input.
_COPIES, _SEED = 6, 77001


def _accused(folder: Path, run: PooledRun) -> set[str]:
    machine = run.options[1] if run.options else None
    judged = judge_paths((str(folder),), GivenBounds(machine))
    return {host for one in judged for host in one.verdict.accused}


@pytest.mark.sampled
@pytest.mark.parametrize("run", runs(Kind.LOGS), ids=lambda run: run.name)
def test_a_spoiled_log_accuses_nobody_else(run: PooledRun, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    shutil.copytree(run.folder, folder)
    intact = _accused(folder, run)
    logs = sorted(path for path in folder.rglob("*.log") if path.is_file())
    chance = Random(f"{_SEED} {run.name}")
    for number in range(_COPIES if logs else 0):
        log = chance.choice(logs)
        raw = log.read_bytes()
        log.write_bytes(mutate.spoiled(chance, raw, [raw]))
        with suppress(AcceptError):
            assert _accused(folder, run) <= intact, f"copy {number}, {log.name}"
        log.write_bytes(raw)
