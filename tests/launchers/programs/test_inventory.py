"""The inventory of a host whose tools give known answers."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.factories import nvml, smi, verdicts
from tests.factories.paths import PROGRAMS
from tests.factories.programs import printed, records_of
from tests.factories.shell import write_program

import commands
import gpu_inventory
import health_gpus
from accept.core import record_protocol
from accept.core.facts import INVENTORY, inventories_of
from accept.core.judge.consistency import gpu_problems
from accept.core.plan import PlannedMachine
from accept.core.records import Fact, Problem

CLUSTER = "9f4d6c0e1b2a4c3d8e5f0a1b2c3d4e5f"
DASHED = str(uuid.UUID(CLUSTER))
ZERO = "0" * 32


def inventory(*environments: Mapping[str, str]) -> dict[str, Any]:
    """Return the fact of the program in an environment."""
    env = {name: value for more in environments for name, value in more.items()}
    (record,) = records_of(printed("inventory.py", **env))
    value: dict[str, Any] = record["value"]
    return value


@pytest.fixture
def h100(tmp_path: Path) -> nvml.Scenario:
    return nvml.Scenario(tmp_path / "scenario", "h100", 8)


@pytest.fixture
def no_nvml(tmp_path: Path) -> Mapping[str, str]:
    scenario = nvml.Scenario(tmp_path / "none", "h100", 8)
    # The library is not found.
    scenario.change("nvmlInit * : 12")
    return scenario.env


def test_nvml_lists_the_gpus_with_their_processes(h100: nvml.Scenario) -> None:
    h100.change(
        "nvmlDeviceGetComputeRunningProcesses 5 : 0 77 1000",
        "nvmlSystemGetProcessName * : 0 python",
    )
    found = inventory(h100.env, {"PATH": "/usr/bin:/bin"})
    assert [gpu["index"] for gpu in found["gpus"]] == list(range(8))
    gpu = found["gpus"][5]
    assert gpu["processes"] == ["77 python"]
    assert (gpu["uuid"], gpu["name"]) == (nvml.uuid(5), "NVIDIA H100 80GB HBM3")
    assert (gpu["memoryMiB"], gpu["memoryUsedMiB"], gpu["eccUncorrected"]) == (81559, 0, 0)
    assert (gpu["driver"], found["versions"]["cuda"]) == ("580.159.04", "13.0")
    assert (gpu["pci"], gpu["serial"]) == (f"0000{nvml.address(5).upper()}.0", "1650000000005")
    assert found["driverWords"] == ""


def test_nvidia_smi_lists_the_same_gpus(
    tmp_path: Path, h100: nvml.Scenario, no_nvml: Mapping[str, str]
) -> None:
    """Without its own fields for errors, both give the same list.

    The InfoROM and the part number come from NVML alone.
    """
    shown = inventory(no_nvml, smi.write(tmp_path / "bin", "healthy"))
    by_nvml = inventory(h100.env)["gpus"]
    own = ("inforom", "part")
    assert shown["gpus"] == [{k: v for k, v in gpu.items() if k not in own} for gpu in by_nvml]


@pytest.mark.parametrize("handle", [{"handle": True}, {"handle": False}])
@pytest.mark.parametrize("code", [15, 16, 999])
def test_a_gpu_with_an_error_is_listed_with_it(
    h100: nvml.Scenario, code: int, handle: dict[str, bool]
) -> None:
    h100.change(*nvml.failed(3, code, **handle))
    found = inventory(h100.env)["gpus"]
    assert [gpu.get("errorCode") for gpu in found] == [None] * 3 + [code] + [None] * 4


@pytest.mark.parametrize(
    ("planned", "causes"),
    [({}, ["gpu-permission"]), ({"gpus_given": 8}, ["gpu-permission"]), ({"gpus_given": 7}, [])],
)
def test_a_gpu_that_the_run_may_not_open_is_named_unless_the_run_has_enough(
    h100: nvml.Scenario, planned: dict[str, Any], causes: list[str]
) -> None:
    h100.change("nvmlDeviceGetHandleByIndex 3 : 4")
    found = inventory(h100.env) | {"pciNvidia": 8}
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 2, 4, 5, 6, 7]
    seen = problems(found, **planned)
    assert [(one.cause, one.host) for one in seen] == [(cause, None) for cause in causes]
    assert all("GPU 3" in one.message for one in seen)


def test_a_gpu_that_is_missing_beside_one_that_the_run_may_not_open_is_a_fault_of_the_host(
    h100: nvml.Scenario,
) -> None:
    h100.change("nvmlDeviceGetHandleByIndex 3 : 4", "nvmlDeviceGetCount * : 0 7")
    seen = problems(inventory(h100.env) | {"pciNvidia": 7})
    assert [(one.cause, one.host) for one in seen] == [
        ("gpu-permission", None),
        ("gpu-missing", "h0"),
    ]


@pytest.mark.parametrize(
    ("code", "cause", "host"), [(18, "driver-mismatch", "h0"), (4, "gpu-permission", None)]
)
@pytest.mark.parametrize("on_bus", [0, 8])
def test_a_driver_that_does_not_start_has_one_cause(
    tmp_path: Path, h100: nvml.Scenario, code: int, cause: str, host: str | None, on_bus: int
) -> None:
    """Also without nvidia-smi, whose words would show the same."""
    h100.change(f"nvmlInit * : {code}")
    nothing = {"PATH": str(tmp_path / "empty")}
    seen = problems(inventory(h100.env, nothing) | {"pciNvidia": on_bus})
    assert [(one.cause, one.host) for one in seen] == [(cause, host)]


def test_on_a_machine_without_gpus_no_fault_of_the_driver_counts(h100: nvml.Scenario) -> None:
    for code in (4, 18):
        h100.change(f"nvmlInit * : {code}")
        machine = PlannedMachine(name="cpu", gpus=0, ranks=None)
        assert problems(inventory(h100.env), machine=machine) == []


@pytest.mark.parametrize(
    ("fabrics", "domain"),
    [
        ([f"3 0 0 7 {CLUSTER}"], f"{DASHED}/7"),
        # Inside one host alone, of two kinds, not yet registered, without such a fabric.
        ([f"3 0 0 0 {ZERO}"], None),
        ([f"3 0 0 7 {CLUSTER}", f"3 0 0 8 {CLUSTER}"], None),
        ([f"0 0 0 0 {ZERO}"], None),
    ],
)
def test_the_nvlink_domain_is_that_of_all_gpus(
    h100: nvml.Scenario, fabrics: list[str], domain: str | None
) -> None:
    for gpu, fabric in zip(("*", "1"), fabrics, strict=False):
        h100.change(f"nvmlDeviceGetGpuFabricInfoV {gpu} : 0 {fabric}")
    assert inventory(h100.env)["domain"] == domain


def test_an_unknown_domain_is_left_out(h100: nvml.Scenario) -> None:
    h100.change("nvmlDeviceGetGpuFabricInfoV * : 3", "nvmlDeviceGetGpuFabricInfo * : 3")
    assert "domain" not in inventory(h100.env)


@pytest.mark.parametrize("program", ["NVML", "nvidia-smi"])
def test_gpus_of_a_driver_that_does_not_answer_in_time_are_not_known(
    tmp_path: Path, h100: nvml.Scenario, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    h100.change("nvmlInit * : hang" if program == "NVML" else "nvmlInit * : 18")
    write_program(tmp_path / "nvidia-smi", "exec sleep 600")
    for name, value in {**h100.env, "PATH": f"{tmp_path}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpu_inventory, "SECONDS", 3)
    found = gpu_inventory.gpus()
    assert found.gpus is None
    assert found.words.startswith(f"{program} does not answer")


def test_a_program_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Stuck] = []

    class Stuck(subprocess.Popen[bytes]):
        def kill(self) -> None:
            """Do nothing, like the kernel for a process in a driver."""
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Stuck)
    assert commands.run(0.1, "sleep", "600").is_late
    (process,) = started
    assert process.poll() is None
    process.terminate()
    process.wait()


def problems(*found: dict[str, Any], **planned: Any) -> list[Problem]:
    """Return the problems of hosts with these inventories, on a machine with eight GPUs."""
    names = [f"h{n}" for n in range(len(found))]
    step = verdicts.step("inventory", "each")
    facts = [Fact(name="inventory", value=value) for value in found]
    records = [
        verdicts.record(step, [name], facts=(fact,))
        for name, fact in zip(names, facts, strict=True)
    ]
    machine = planned.pop("machine", PlannedMachine(name="h100", gpus=8, ranks=None))
    plan = verdicts.plan(step, machine=machine, nodes=len(names), **planned)
    return list(gpu_problems(inventories_of(records, names), plan, busy_mib=1024))


@pytest.mark.parametrize(
    ("listed", "used", "causes"),
    [
        ("0,1,2,3", 4, []),
        ("7,6,5,4,3,2,1,0", None, []),
        ("0,1,2,3", None, ["gpu-list"]),
        ("0,1,2,3", 5, ["gpu-list"]),
        ("0,1,2,9", 4, ["gpu-list"]),
        ("", 1, ["gpu-list"]),
        (f"MIG-{uuid.UUID(int=7)}", 1, ["gpu-list"]),
    ],
)
def test_a_list_that_gives_too_few_gpus_is_one_problem_and_names_no_host(
    h100: nvml.Scenario, listed: str, used: int | None, causes: list[str]
) -> None:
    # A GPU of another job.
    h100.change(*nvml.failed(5) if used else ())
    found = inventory(h100.env, {"CUDA_VISIBLE_DEVICES": listed}) | {"pciNvidia": 8}
    seen = problems(found, gpus_used=used)
    assert [(one.cause, one.host) for one in seen] == [(cause, None) for cause in causes]


def given(shown: int, on_bus: int = 0) -> dict[str, Any]:
    """Return the inventory of a host on which a job has the last four of eight GPUs."""
    count = shown - 4
    listed = {"list": "4,5,6,7", "count": count, "shown": shown, "entry": str(shown)}
    gpus = [{"index": 4 + n, "uuid": f"GPU-{shown}{on_bus}{n}"} for n in range(count)]
    fault = None if count == 4 else "missing"
    return {"gpus": gpus, "pciNvidia": on_bus, "given": {**listed, "fault": fault}}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([given(8, 1), given(8, 2), given(8, 3)], []),
        # Only this host lacks a GPU that the same list names on the others.
        ([given(8, 1), given(7), given(8, 3)], [("gpu-missing", "h1")]),
        # One of eight GPUs is not on the bus.
        ([given(7, 7)], [("gpu-missing", "h0")]),
        # The list may be wrong.
        ([given(7)], [("gpu-list", None)]),
        ([given(7, 8)], [("gpu-list", None)]),
        ([given(7), given(7, 8)], [("gpu-list", None)]),
    ],
)
def test_a_host_that_lacks_a_listed_gpu_is_named_only_if_others_or_the_machine_have_it(
    hosts: list[dict[str, Any]], expected: list[tuple[str, str | None]]
) -> None:
    seen = problems(*hosts, gpus_used=4)
    assert [(one.cause, one.host) for one in seen if one.cause != "gpu-duplicate"] == expected


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "cause", "gpu", "words"),
    [
        ("healthy", None, None, ""),
        ("MIG", None, None, ""),
        ("lost", "gpu-lost", "3", "GPU is lost"),
        ("unknown", "gpu-lost", "3", "Unknown Error"),
        ("unknown, exit 0", "gpu-lost", "3", "Unknown Error"),
        ("reset", "gpu-reset-required", "3", "GPU requires reset"),
        ("unknown cells", "gpu-lost", "3", "Unknown Error"),
        ("unknown, no GPU", "gpu-missing", None, "Unknown Error"),
        ("mismatch", "driver-mismatch", None, "Driver/library version mismatch"),
        ("no driver", "gpu-missing", None, "couldn't communicate with the NVIDIA driver"),
        ("no permission", "gpu-permission", None, "Insufficient Permissions"),
        ("no permission for one", "gpu-permission", None, "GPU 3"),
        ("no devices", "gpu-missing", None, "No devices were found"),
    ],
)
def test_the_words_of_nvidia_smi_reach_the_verdict(
    tmp_path: Path,
    no_nvml: Mapping[str, str],
    name: str,
    cause: str | None,
    gpu: str | None,
    words: str,
) -> None:
    found = inventory(no_nvml, smi.write(tmp_path / "bin", name))
    seen = problems(found | {"pciNvidia": 0})
    assert [(one.cause, one.gpu) for one in seen] == ([(cause, gpu)] if cause else [])
    assert all(words in one.message for one in seen)
    faulty = {3} if cause in ("gpu-lost", "gpu-reset-required") or "one" in name else set()
    assert {row["index"] for row in found["gpus"] if "error" not in row} == (
        set(range(8)) - faulty if faulty or not cause else set()
    )


def test_a_host_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert inventory({"PATH": str(tmp_path)})["gpus"] == []


def test_the_columns_are_those_of_nvidia_smi() -> None:
    columns = {*gpu_inventory._COLUMNS, *health_gpus._SMI_COUNTERS, *health_gpus._SMI_LEVELS}
    assert columns <= smi.columns()


def test_the_permission_to_lock_memory_comes_from_the_kernel() -> None:
    held = next(
        int(line.split()[1], 16)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    )
    first = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    assert inventory()["ipcLock"] is (first and bool(held & 1 << 14))


def test_a_host_without_python_counts_only_display_controllers_as_gpus(tmp_path: Path) -> None:
    classes = {"gpu": "0x030200", "nvswitch": "0x068000", "audio": "0x040300"}
    for name, number in classes.items():
        device = tmp_path / "sys" / "bus" / "pci" / "devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text(f"{number}\n")
    programs = tmp_path / "bin"
    for name in ("python", "python3", *(f"python3.{minor}" for minor in range(10, 15))):
        write_program(programs / name, "exit 1")
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "ACCEPT_DIR": str(tmp_path),
        "ACCEPT_SYS": str(tmp_path / "sys"),
    }
    command = ["/bin/sh", str(PROGRAMS / "inventory.sh")]
    for more in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        env = environment | more
        out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        parsed = record_protocol.parse([out.encode()], "inventory")
        assert [one.cause for one in parsed.problems] == ["tool-missing"] * len(more)
        assert [i.pci_nvidia for _, i in INVENTORY.among(parsed.facts)] == [1]
