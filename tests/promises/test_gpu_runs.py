"""A whole run on a host with GPUs: `accept run` above the stand-ins for NVIDIA's programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.factories import nvml, smi
from tests.factories.command_line import SOURCE

pytestmark = pytest.mark.real

LOST = nvml.failed(3)
PENDING = ("nvmlDeviceGetRemappedRows 2 : 0 0 1 1 0",)


def run(folder: Path, *, start: tuple[str, ...] = (), later: tuple[str, ...] = ()) -> Any:
    """Return the verdict of a run; the lines `later` come when its last step starts."""
    scenario = nvml.Scenario(folder / "scenario", "h100", 8)
    scenario.change(*start)
    nvml.host(folder / "root", range(8))
    env = {
        **os.environ,
        **scenario.env,
        **smi.write(folder / "bin", "healthy"),
        "ACCEPT_SYS": str(folder / "root/sys"),
        "PYTHONPATH": str(SOURCE),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    command = [sys.executable, "-m", "accept", "run", "--machine", "gpu"]
    with subprocess.Popen(
        [*command, "--only", "inventory,health"],
        env=env,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "step 3/3 starts" in line:
                scenario.change(*later)
    (file,) = (folder / "state").glob("**/evidence/verdict.json")
    return json.loads(file.read_text())


def accused(verdict: Any) -> set[tuple[str, str]]:
    return {(one["name"].partition(":")[2], one["cause"]) for one in verdict["suspects"]}


def health(verdict: Any) -> str:
    return str(next(one["state"] for one in verdict["checks"] if one["check"] == "health"))


def test_healthy_gpus_accuse_nobody(tmp_path: Path) -> None:
    verdict = run(tmp_path)
    assert (accused(verdict), health(verdict)) == (set(), "pass")


def test_a_gpu_that_is_lost_before_the_run_is_named(tmp_path: Path) -> None:
    assert accused(run(tmp_path, start=LOST)) == {("3", "gpu-lost")}


def test_a_gpu_that_is_lost_during_the_run_is_named(tmp_path: Path) -> None:
    verdict = run(tmp_path, later=LOST)
    assert accused(verdict) == {("3", "gpu-lost")}
    assert health(verdict) == "fail"


def test_a_gpu_that_needs_a_reset_is_named(tmp_path: Path) -> None:
    assert accused(run(tmp_path, start=PENDING)) == {("2", "gpu-reset-required")}
