"""Settings that a node receives, detects and chooses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.factories.shell import run_program

from accept.config import resources
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve


def node(folder: Path, *more: str, nccl: tuple[str, ...] = ()) -> Path:
    """Render a run of a machine with additional lines into a folder; return it."""
    text = ("name: mine", "description: Mine.", "gpus: {count: 1}", *more)
    (folder / "mine.yaml").write_text("\n".join(text))
    rendered = folder / "node"
    rendered.mkdir()
    machine = str(folder / "mine.yaml")
    options = Options(machine=machine, nodes=2, backend="ssh", hosts=("a", "b"), nccl=nccl)
    render(resolve(options)).write(rendered)
    return rendered


def ports(folder: Path, **found: tuple[str, str]) -> Path:
    """Create a /sys with RDMA devices, each given by state and rate."""
    for device, (state, rate) in found.items():
        port = folder / "class" / "infiniband" / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate}\n")
    return folder


def on_pci(sys: Path, device: str, root_port: str, layer: str = "InfiniBand") -> None:
    """Put an RDMA device below a root port, with its link layer; "gpu…" is a GPU instead."""
    place = sys / f"devices/pci0000:{root_port}/0000:{root_port}:01.0/0000:{device}"
    place.mkdir(parents=True)
    if device.startswith("gpu"):
        (place / "vendor").write_text("0x10de\n")
        (place / "class").write_text("0x030200\n")
        (sys / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (sys / f"bus/pci/devices/0000:{device}").symlink_to(place)
        return
    (sys / "class/infiniband" / device / "device").symlink_to(place)
    (sys / "class/infiniband" / device / "ports/1/link_layer").write_text(f"{layer}\n")


def environment(rendered: Path, *words: str, shell: str = "sh", **given: str) -> dict[str, str]:
    """Return the environment of a rank on this node."""
    command = [shell, str(rendered / "rank.sh"), *words, "sh", "-c", "env"]
    env = {"PATH": os.environ["PATH"], **given}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


class TestOrder:
    def test_the_user_overrides_the_profile_and_the_profile_the_script(
        self, tmp_path: Path
    ) -> None:
        script = tmp_path / "plugin.sh"
        script.write_text("export NCCL_A=plugin NCCL_B=plugin NCCL_C=plugin\n")
        profile = "{env: {NCCL_B: profile, NCCL_C: profile}, source: 'https://a'}"
        lines = ("nccl:", f"  script: {script}", f"  profiles: {{default: {profile}}}")
        found = environment(node(tmp_path, *lines, nccl=("NCCL_C=mine",)), shell="bash")
        assert [found[f"NCCL_{x}"] for x in "ABC"] == ["plugin", "profile", "mine"]


class TestDevices:
    LINES = ("nccl: {findDevices: true}",)
    UP = ("4: ACTIVE", "400 Gb/sec (4X NDR)")

    def test_the_fastest_devices_that_are_up_are_used(self, tmp_path: Path) -> None:
        found = ports(
            tmp_path / "sys",
            mlx5_0=self.UP,
            mlx5_1=self.UP,
            mlx5_2=("1: DOWN", "400 Gb/sec (4X NDR)"),
            mlx5_3=("4: ACTIVE", "100 Gb/sec (4X EDR)"),
        )
        env = environment(node(tmp_path, *self.LINES), ACCEPT_SYS=str(found))
        assert env["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
        assert "NCCL_IB_HCA" in env["ACCEPT_CHOSEN"].split()

    def test_nics_of_storage_are_left_out_even_if_nics_of_gpus_are_down(
        self, tmp_path: Path
    ) -> None:
        sys = ports(tmp_path / "sys", **{f"mlx5_{n}": self.UP for n in range(4)})
        for n, root_port in enumerate(("15", "16", "17", "90")):
            on_pci(sys, f"mlx5_{n}", root_port)
        for root_port in ("15", "16", "17"):
            on_pci(sys, f"gpu{root_port}", root_port)
        nics = "nics: {count: 4, gbps: 400, source: 'https://a'}"
        env = environment(node(tmp_path, *self.LINES, nics), ACCEPT_SYS=str(sys))
        assert env["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_2:1"

    def test_on_hosts_whose_nics_are_not_below_the_gpus_all_are_used(self, tmp_path: Path) -> None:
        sys = ports(tmp_path / "sys", mlx5_0=self.UP, mlx5_1=self.UP)
        on_pci(sys, "mlx5_0", "15")
        on_pci(sys, "mlx5_1", "16")
        on_pci(sys, "gpu0", "90")
        env = environment(node(tmp_path, *self.LINES), ACCEPT_SYS=str(sys))
        assert env["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"

    def test_infiniband_and_ethernet_are_not_mixed(self, tmp_path: Path) -> None:
        sys = ports(tmp_path / "sys", **{f"mlx5_{n}": self.UP for n in range(3)})
        for n, layer in enumerate(("Ethernet", "InfiniBand", "InfiniBand")):
            on_pci(sys, f"mlx5_{n}", f"1{n}", layer)
        env = environment(node(tmp_path, *self.LINES), ACCEPT_SYS=str(sys))
        assert env["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_2:1"

    def test_the_users_devices_have_priority(self, tmp_path: Path) -> None:
        found = ports(tmp_path / "sys", mlx5_0=self.UP)
        rendered = node(tmp_path, *self.LINES, nccl=("NCCL_IB_HCA=mlx5_7",))
        env = environment(rendered, ACCEPT_SYS=str(found))
        assert env["NCCL_IB_HCA"] == "mlx5_7"
        assert "NCCL_IB_HCA" not in env["ACCEPT_CHOSEN"]

    @pytest.mark.parametrize("devices", [{}, {"mlx5_0": ("1: DOWN", "400 Gb/sec")}])
    def test_without_devices_nothing_is_set(
        self, tmp_path: Path, devices: Mapping[str, tuple[str, str]]
    ) -> None:
        found = ports(tmp_path / "sys", **devices)
        assert "NCCL_IB_HCA" not in environment(node(tmp_path, *self.LINES), ACCEPT_SYS=str(found))

    def test_machines_without_detection_set_nothing(self, tmp_path: Path) -> None:
        found = ports(tmp_path / "sys", mlx5_0=self.UP)
        assert "NCCL_IB_HCA" not in environment(node(tmp_path), ACCEPT_SYS=str(found))

    def test_a_node_reports_the_chosen_devices(self, tmp_path: Path) -> None:
        found = ports(tmp_path / "sys", mlx5_0=self.UP)
        rendered = node(tmp_path, *self.LINES)
        (rendered / "host").write_text("h7\n")
        done = run_program(
            ["sh", rendered / "rank.sh", "sh", rendered / "programs" / "rank_identity.sh"],
            env={"PATH": os.environ["PATH"], "ACCEPT_SYS": str(found)},
            check=True,
        )
        facts = [json.loads(line.removeprefix("ACCEPT ")) for line in done.stdout.splitlines()]
        (fact,) = [one for one in facts if one["fact"] == "network"]
        assert (fact["host"], fact["value"]) == (
            "h7",
            {
                "interface": "lo",
                "interfaceBy": "one host alone",
                "rdma": "=mlx5_0:1",
                "rdmaBy": "the fastest that are up",
            },
        )


def test_leftovers_of_an_image_do_not_reach_the_ranks(tmp_path: Path) -> None:
    left = {
        "NCCL_TESTS_SPLIT": "%8",
        "NCCL_TESTS_DEVICE": "3",
        "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
    }
    env = environment(node(tmp_path), **left)
    assert "NCCL_TESTS_SPLIT" not in env
    assert "NCCL_TESTS_DEVICE" not in env
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["NCCL_SOCKET_IFNAME"] == "=lo"  # An exact name, not a prefix.


def test_ranks_may_open_as_many_files_as_the_host_allows(tmp_path: Path) -> None:
    rank = f"ulimit -Sn 64; sh {node(tmp_path)}/rank.sh sh -c 'ulimit -Sn; ulimit -Hn'"
    shown = subprocess.run(["sh", "-c", rank], capture_output=True, text=True, check=True).stdout
    soft, hard = shown.split()
    assert soft == "1048576" or soft == hard


@pytest.mark.parametrize(
    ("own", "channels"), [({}, "8"), ({"NCCL_NCHANNELS_PER_NET_PEER": "2"}, "2")]
)
def test_a_step_may_ask_for_more_channels_than_nccl_chooses(
    tmp_path: Path, own: dict[str, str], channels: str
) -> None:
    env = environment(node(tmp_path), ACCEPT_NET_CHANNELS="8", **own)
    assert env["NCCL_NCHANNELS_PER_NET_PEER"] == channels


@pytest.mark.parametrize(
    ("machine", "channels"),
    [("a100-8", 2), ("b200-8", 4), ("b300-8x", 8), ("a4x-maxgpu-4g-metal", 8), ("gpu", 4)],
)
def test_sendrecv_has_the_channels_that_the_nics_of_a_gpu_need(machine: str, channels: int) -> None:
    plan = resolve(Options(machine=machine, nodes=2, backend="ssh", hosts=("a", "b")))
    scripts = [text for text in render(plan).scripts.values() if " sendrecv" in text]
    assert scripts
    assert all(f"|| ACCEPT_NET_CHANNELS={channels}\n" in text for text in scripts)


def test_each_nic_of_each_gpu_is_reported_once(tmp_path: Path) -> None:
    """NCCL writes a line for every channel of every rank; a log keeps one of each kind."""
    names = "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]"
    channels = f"{names}\\n" + "".join(
        f"n1:1:2 [{gpu}] NCCL INFO Channel {n:02d}/0 : {n}[0] -> 0[0] [send] via {way}\\n"
        for n in range(40)
        for gpu in range(2)
        for way in (f"NET/IB/{gpu}/GDRDMA", "NET/IB/1", "SHM/direct/direct", "P2P/CUMEM")
    )
    program = f'f=$(echo "$NCCL_DEBUG_FILE" | sed s/%h/n1/); printf "{channels}" > "$f"'
    done = run_program(
        ["sh", node(tmp_path) / "rank.sh", "sh", "-c", program],
        env={
            "PATH": os.environ["PATH"],
            "NCCL_DEBUG": "INFO",
            "ACCEPT_PROGRESS": str(tmp_path / "progress"),
        },
        check=True,
    )
    first, *lines = done.stdout.splitlines()
    assert first == names
    assert [line.partition(" via ")[2] for line in lines] == [
        "NET/IB/0/GDRDMA",
        "NET/IB/1",
        "SHM/direct/direct",
        "NET/IB/1/GDRDMA",
        "NET/IB/1",
    ]


class TestRecorded:
    """The inventory records the effective settings from all sources."""

    def settings(self, home: Path, **given: str) -> dict[str, Any]:
        program = resources.launchers() / "programs" / "inventory.py"
        env = {"PATH": os.environ["PATH"], "HOME": str(home), **given}
        done = run_program([sys.executable, program], env=env, check=True)
        value = json.loads(done.stdout.removeprefix("ACCEPT "))["value"]
        assert isinstance(value, dict)
        return value

    def test_a_configuration_file_of_nccl_applies_without_the_variable(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / ".nccl.conf").write_text("# mine\nNCCL_ALGO=Ring\nNCCL_PROTO=Simple\nX=1\n")
        env = self.settings(tmp_path, NCCL_ALGO="Tree")["env"]
        assert (env["NCCL_ALGO"], env["NCCL_PROTO"], "X" in env) == ("Tree", "Simple", False)

    def test_settings_chosen_by_the_node_are_marked(self, tmp_path: Path) -> None:
        given = {"ACCEPT_CHOSEN": "NCCL_IB_HCA", "NCCL_IB_HCA": "=mlx5_0:1"}
        assert self.settings(tmp_path, **given)["chosen"] == ["NCCL_IB_HCA"]

    def test_no_interface_is_chosen_without_a_launch(self, tmp_path: Path) -> None:
        assert "NCCL_SOCKET_IFNAME" not in environment(node(tmp_path), "--alone")
