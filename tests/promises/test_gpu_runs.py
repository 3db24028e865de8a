"""A whole run on a host with GPUs: `accept run` above the stand-ins for NVIDIA's programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.factories import nvml, perftest, smi
from tests.factories.command_line import SOURCE

pytestmark = pytest.mark.real

LOST = nvml.failed(3)
PENDING = ("nvmlDeviceGetRemappedRows 2 : 0 0 1 1 0",)


def run(
    folder: Path,
    *,
    start: tuple[str, ...] = (),
    later: tuple[str, ...] = (),
    only: str = "inventory,health",
    suite: str = "quick",
    env: dict[str, str] | None = None,
    before: tuple[str, ...] = (),
    chip: str = "h100",
    gpus: int = 8,
    recording: str = "healthy",
) -> Any:
    """Return the verdict of a run; the lines `later` come when its last step starts.

    `before`: a command that starts the run. `recording`: what nvidia-smi prints.
    """
    scenario = nvml.Scenario(folder / "scenario", chip, gpus)
    scenario.change(*start)
    if not (folder / "root").exists():
        nvml.host(folder / "root", range(gpus))
    variables = {
        **os.environ,
        **(env or {}),
        **scenario.env,
        **smi.write(folder / "bin", recording, gpus),
        "ACCEPT_SYS": str(folder / "root/sys"),
        "PYTHONPATH": str(SOURCE),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    command = [sys.executable, "-m", "accept", "run", "--machine", "gpu"]
    with subprocess.Popen(
        [*before, *command, "--suite", suite, "--only", only],
        env=variables,
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


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("start", "later", "named", "state"),
    [
        ((), (), set(), "pass"),
        (LOST, (), {("3", "gpu-lost")}, None),
        ((), LOST, {("3", "gpu-lost")}, "fail"),
        (PENDING, (), {("2", "gpu-reset-required")}, None),
    ],
)
def test_a_gpu_with_a_fault_is_named(
    tmp_path: Path,
    start: tuple[str, ...],
    later: tuple[str, ...],
    named: set[tuple[str, str]],
    state: str | None,
) -> None:
    verdict = run(tmp_path, start=start, later=later)
    assert accused(verdict) == named
    assert state in (None, health(verdict))


@pytest.mark.rare
@pytest.mark.parametrize("handle", [True, False])
@pytest.mark.parametrize("given", [(2, 3, 4), (3,)])
def test_a_lost_gpu_that_the_job_lists_by_uuid_is_named(
    tmp_path: Path, *, given: tuple[int, ...], handle: bool
) -> None:
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(nvml.uuid, given))}
    verdict = run(tmp_path, start=nvml.failed(3, handle=handle), env=env)
    assert accused(verdict) == {("3", "gpu-lost")}


def test_a_job_whose_lost_gpu_is_one_of_several_is_not_accepted(tmp_path: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(nvml.uuid, (2, 3, 4)))}
    verdict = run(tmp_path, start=(*LOST, *nvml.failed(6)), env=env)
    assert {cause for _, cause in accused(verdict)} == {"gpu-missing"}


@pytest.mark.rare
@pytest.mark.parametrize(
    ("listed", "gpus"),
    [
        ("0,1,2,4", 4),
        ("0,9,1", 1),
        ("-1", 0),
        ("", 0),
        ("0,0", 0),
        ("MIG-12345678-0000-0000-0000-000000000000", 0),
    ],
)
def test_a_list_with_a_fault_accuses_nobody_and_passes_nothing(
    tmp_path: Path, listed: str, gpus: int
) -> None:
    """GPU 3 is lost, and belongs to another job."""
    is_good = listed == "0,1,2,4"
    verdict = run(tmp_path, start=LOST, env={"CUDA_VISIBLE_DEVICES": listed})
    assert (accused(verdict), verdict["gpus"]) == (set(), gpus)
    assert (verdict["state"], verdict["accepted"]) == ("pass" if is_good else "not-tested", is_good)
    assert [finding["hosts"] for finding in by_list(verdict)] == ([] if is_good else [[]])
    assert is_good or any("unset CUDA_VISIBLE_DEVICES" in line for line in verdict["advice"])


def test_without_an_inventory_ranks_show_that_a_list_has_no_gpu(tmp_path: Path) -> None:
    verdict = run(tmp_path, env={"CUDA_VISIBLE_DEVICES": "-1"}, only="health")
    assert (accused(verdict), verdict["state"]) == (set(), "not-tested")
    assert [finding["hosts"] for finding in by_list(verdict)] == [[]]


def by_list(verdict: Any) -> list[Any]:
    found = [finding for check in verdict["checks"] for finding in check["findings"]]
    return [finding for finding in found if finding.get("cause") == "gpu-list"]


# -- Below the driver ----------------------------------------------------------------------------

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a folder")
#: GPUs of a host with each kind.
FAMILIES = {"h100": 8, "b200": 8, "gb200": 4, "a100": 8, "l4": 4}


def run_with_driver(folder: Path, chip: str, **options: Any) -> Any:
    """Return the verdict of a run on a host that has the files of NVIDIA's driver."""
    nvml.host(folder / "root", range(FAMILIES[chip]))
    binds = " && ".join(f'mount --bind "$0/{at}" /{at}' for at in ("proc/driver", "sys/bus/pci"))
    before = ("unshare", "--mount", "sh", "-c", f'{binds} && exec "$@"', str(folder / "root"))
    return run(folder, chip=chip, gpus=FAMILIES[chip], before=before, **options)


@pytest.mark.sampled
@root
@pytest.mark.parametrize("chip", FAMILIES)
def test_an_xid_during_the_run_names_its_gpu_alone(tmp_path: Path, chip: str) -> None:
    verdict = run_with_driver(tmp_path, chip, later=(nvml.xid(3, 79),))
    assert accused(verdict) == {("3", "gpu-xid")}
    assert health(verdict) == "fail"


def failing(code: int) -> tuple[str, ...]:
    """Return the lines of a library that cannot start."""
    return (f"nvmlInit * : {code}", f"nvmlInitWithFlags * : {code}")


#: The library is not found, so nvidia-smi is read.
SMI = failing(12)


@pytest.mark.sampled
@root
@pytest.mark.parametrize(
    ("chip", "start", "recording", "named"),
    [
        ("b200", failing(18), "mismatch", {("", "driver-mismatch")}),
        ("b200", failing(4), "no permission", set()),
        ("h100", ("nvmlDeviceGetHandleByIndex 3 : 4",), "healthy", set()),
        ("a100", failing(9), "no driver", {("", "gpu-missing")}),
        ("l4", failing(999), "unknown, no GPU", {("", "gpu-missing")}),
        ("gb200", ("nvmlDeviceGetCount * : 0 3",), "healthy", {("", "gpu-unusable")}),
        ("h100", SMI, "lost", {("3", "gpu-lost"), ("", "gpu-missing")}),
        ("b200", SMI, "reset", {("3", "gpu-reset-required")}),
        ("a100", SMI, "unknown", {("3", "gpu-lost"), ("", "gpu-missing")}),
        ("l4", SMI, "unknown cells", {("3", "gpu-lost")}),
    ],
)
def test_gpus_that_the_driver_does_not_give_are_named(
    tmp_path: Path, chip: str, start: tuple[str, ...], recording: str, named: set[tuple[str, str]]
) -> None:
    verdict = run_with_driver(tmp_path, chip, start=start, recording=recording)
    assert accused(verdict) == named
    assert (verdict["state"], verdict["accepted"]) == ("fail" if named else "not-tested", False)


# -- NICs ----------------------------------------------------------------------------------------

LOOPS: dict[str, perftest.Loops] = {
    f"mlx5_{nic}": {"gpu": 390.0 - nic / 10, "host": 380.0} for nic in range(8)
}


def run_loops(folder: Path, loops: dict[str, perftest.Loops]) -> Any:
    """Return the verdict on the loops through the NICs of this host."""
    nvml.host(folder / "root", range(8))
    perftest.host(folder / "root", 8)
    env = perftest.write(folder / "bin", loops) if loops else {}
    # Steps read the files of the kernel, wherever this process would look for them. This machine
    # may have perftest.
    script = 'mount --bind "$0" /sys && exec "$@"'
    if not loops and (program := shutil.which("ib_write_bw")):
        script = f"mount --bind /dev/null {program} && {script}"
    mount = ("sh", "-c", script, str(folder / "root/sys"))
    before = ("unshare", "--mount", *mount)
    return run(folder, only="nic-loop", env=env, suite="standard", before=before)


def loop_check(verdict: Any) -> Any:
    return next(one for one in verdict["checks"] if one["check"] == "nic-loop")


@root
def test_a_loop_through_each_healthy_nic_accuses_nobody(tmp_path: Path) -> None:
    verdict = run_loops(tmp_path, LOOPS)
    assert (accused(verdict), loop_check(verdict)["state"]) == (set(), "pass")
    assert loop_check(verdict)["measured"] == "ib-write-gpu 48.66 to 48.75 GB/s (8 NICs)"


@pytest.mark.rare
@root
def test_a_nic_that_is_slow_by_itself_and_one_without_gpu_memory_are_named(tmp_path: Path) -> None:
    slow: perftest.Loops = {"gpu": 99.0, "host": 99.0}
    broken: perftest.Loops = {"gpu": "no-mr", "host": 390.0}
    verdict = run_loops(tmp_path, {**LOOPS, "mlx5_5": slow, "mlx5_2": broken})
    assert accused(verdict) == {("mlx5_5", "slow-outlier"), ("mlx5_2", "nic-loop-failed")}
    assert any("Couldn't allocate MR" in one["why"] for one in verdict["suspects"])


@root
def test_nics_without_a_tool_are_not_tested_with_the_reason(tmp_path: Path) -> None:
    verdict = run_loops(tmp_path, {})
    assert (accused(verdict), loop_check(verdict)["state"]) == (set(), "not-tested")
    assert "no ib_write_bw" in loop_check(verdict)["findings"][0]["message"]
