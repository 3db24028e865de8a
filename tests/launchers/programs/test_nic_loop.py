"""nic_loop.py: which GPU is near a port, and how a port is measured that fails or hangs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.factories import nvml, perftest
from tests.factories.programs import printed, records_of
from tests.factories.shell import write_program

import nic_loop

pytestmark = pytest.mark.real


def gpus(count: int) -> list[nic_loop.Gpu]:
    return [nic_loop.Gpu(n, nvml.uuid(n), f"0000{nvml.address(n)}.0") for n in range(count)]


def listed(count: int) -> str:
    return "=" + ",".join(f"mlx5_{n}:1" for n in range(count))


def test_the_gpu_behind_the_same_bridge_is_nearest(tmp_path: Path) -> None:
    nvml.host(tmp_path, range(8))
    perftest.host(tmp_path, 8)
    # GPUs in another order than their bridges.
    found = nic_loop.ports(listed(8), gpus(8)[::-1], tmp_path / "sys")
    assert [port.gpus[0].number for port in found] == list(range(8))
    assert all(port.near and port.rate == 400 for port in found)


def test_ports_that_are_near_no_gpu_get_different_ones(tmp_path: Path) -> None:
    perftest.host(tmp_path, 4)
    found = nic_loop.ports(listed(4), gpus(4), tmp_path / "sys")
    assert [port.gpus[0].number for port in found] == [0, 1, 2, 3]
    assert not any(port.near for port in found)


@pytest.mark.parametrize("used", [1, 2])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_loops_of_one_round_share_no_gpu(tmp_path: Path, count: int, used: int) -> None:
    perftest.host(tmp_path, 8)
    found = nic_loop.ports(listed(8), gpus(count), tmp_path / "sys")
    rounds = [
        [{gpu.number for gpu in port.gpus[:used]} for port in now]
        for now in nic_loop.rounds(found, used)
    ]
    assert sum(map(len, rounds)) == 8
    for now in rounds:
        assert len(set().union(*now)) == used * len(now)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_gpu_is_in_one_loop_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setenv("PATH", perftest.write(tmp_path / "bin", {})["PATH"])
    nvml.host(tmp_path / "root", range(8))
    perftest.host(tmp_path / "root", 8)
    busy: dict[int, threading.Lock] = {n: threading.Lock() for n in range(8)}
    shared = []

    def write(_tool: str, port: nic_loop.Port, options: tuple[str, ...] = ()) -> nic_loop.Tried:
        gpu = busy[port.gpus[0].number]
        if options and not gpu.acquire(blocking=False):
            shared.append(port.name)
        elif options:
            time.sleep(0.05)
            gpu.release()
        return nic_loop.Tried(port, nic_loop.GPU if options else nic_loop.HOST, 0, [])

    monkeypatch.setattr(nic_loop, "write", write)
    nic_loop.measure(nic_loop.ports(listed(8), gpus(count), tmp_path / "root/sys"))
    assert shared == []


def run(tmp_path: Path, tools: dict[str, str], nics: int = 2) -> list[Any]:
    """Return the facts of the program on a host with GPUs, one more than it has NICs."""
    scenario = nvml.Scenario(tmp_path / "scenario", "h100", nics + 1)
    nvml.host(tmp_path / "root", range(nics + 1))
    perftest.host(tmp_path / "root", nics)
    env = {**tools, **scenario.env, "ACCEPT_SYS": str(tmp_path / "root/sys")}
    return records_of(printed("nic_loop.py", f"--nics={listed(nics)}", **env))


def tried(facts: list[Any]) -> list[tuple[str, str, int | None]]:
    values = [fact["value"] for fact in facts if fact["fact"] == "nic-loop"]
    return [(value["nic"], value["loop"], value["exit"]) for value in values]


def test_a_failed_loop_with_gpu_memory_is_tried_with_dma_buf_and_then_with_the_host(
    tmp_path: Path,
) -> None:
    loops: dict[str, perftest.Loops] = {
        "mlx5_0": {"gpu": 390.0, "host": 390.0},
        "mlx5_1": {"gpu": "no-mr", "host": 390.0},
    }
    facts = run(tmp_path, perftest.write(tmp_path / "bin", loops))
    assert tried(facts) == [
        ("mlx5_0", "ib-write-gpu", 0),
        ("mlx5_1", "ib-write-gpu", 1),
        ("mlx5_1", "ib-write-gpu", 1),
        ("mlx5_1", "ib-write-host", 0),
    ]


def test_a_loop_that_hangs_is_ended_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nic_loop, "MOST_SECONDS", 1.0)
    tools = perftest.write(tmp_path / "bin", {"mlx5_0": {"gpu": "hang", "host": 390.0}})
    monkeypatch.setenv("PATH", tools["PATH"])
    perftest.host(tmp_path / "root", 1)
    assert nic_loop.measure(nic_loop.ports(listed(1), gpus(1), tmp_path / "root/sys")) == {}
    facts = records_of(capsys.readouterr().out)
    assert tried(facts) == [("mlx5_0", "ib-write-gpu", None)]


def test_without_perftest_nccl_gathers_through_each_port(tmp_path: Path) -> None:
    names = "$CUDA_VISIBLE_DEVICES $NCCL_IB_HCA $NCCL_P2P_DISABLE $NCCL_SHM_DISABLE"
    script = f'echo "NCCL INFO NET/IB : Using {names}" > "$NCCL_DEBUG_FILE"'
    program = write_program(tmp_path / "bin/all_gather_perf", script)
    path = perftest.hidden(tmp_path / "hidden", f"{program.parent}:/usr/bin:/bin")
    facts = run(tmp_path, {"PATH": path, "LD_LIBRARY_PATH": ""})
    assert tried(facts) == [("mlx5_0", "nccl", 0), ("mlx5_1", "nccl", 0)]
    assert facts[-1]["value"] == {"ib-write": "no ib_write_bw (perftest) on PATH"}


def test_without_a_tool_nothing_is_tried_and_the_reason_is_reported(tmp_path: Path) -> None:
    facts = run(tmp_path, {"PATH": perftest.hidden(tmp_path / "hidden", "/usr/bin:/bin")})
    assert tried(facts) == []
    assert set(facts[-1]["value"]) == {"ib-write", "nccl"}


def test_the_error_with_which_a_nic_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    perftest.host(tmp_path / "root", 1)
    (port,) = nic_loop.ports(listed(1), gpus(1), tmp_path / "root/sys")

    def error() -> str:
        return nic_loop.error_of(port, tmp_path / "root/sys", tmp_path / "dev")

    assert error() == "ENOENT"
    verbs = tmp_path / "root/sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs3"
    verbs.mkdir(parents=True)
    assert error() == "ENOENT"
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs3").write_text("")
    assert error() == ""
    (tmp_path / "dev/infiniband/uverbs3").unlink()
    (tmp_path / "dev/infiniband/uverbs3").mkdir()
    assert error() == "EISDIR"


def test_a_host_whose_ports_are_all_down_reports_their_states(tmp_path: Path) -> None:
    assert nic_loop.inactive(tmp_path / "root/sys") == ""
    perftest.host(tmp_path / "root", 2)
    for state in (tmp_path / "root/sys/class/infiniband").glob("*/ports/1/state"):
        state.write_text("1: DOWN\n")
    out = printed("nic_loop.py", "--nics=", ACCEPT_SYS=str(tmp_path / "root/sys"))
    fact = records_of(out)[-1]
    text = "none of 2 RDMA ports is active: mlx5_0:1 1: DOWN, mlx5_1:1 1: DOWN"
    assert fact["value"] == {"ports-down": text}
