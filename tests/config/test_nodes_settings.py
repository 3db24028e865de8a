"""Settings that a node receives, detects and chooses, and their comparison between hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.factories import verdicts

from accept.config import resources
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.model import CheckVerdict, Fact, State
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

NAMES = verdicts.hosts(4)
INVENTORY = verdicts.step("inventory", "each")
CONNECTIVITY = verdicts.step("connectivity", number=20, params={"pings": 0})


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
        done = subprocess.run(
            ["sh", rendered / "rank.sh", "sh", rendered / "programs" / "rank_identity.sh"],
            env={"PATH": os.environ["PATH"], "ACCEPT_SYS": str(found)},
            capture_output=True,
            text=True,
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


def test_each_nccl_network_is_reported_once(tmp_path: Path) -> None:
    """NCCL writes a line for every channel of every rank; a log keeps one of each kind."""
    channels = "".join(
        f"n1:1:2 [0] NCCL INFO Channel {n:02d}/0 : {n}[0] -> 0[0] [send] via {way}\\n"
        for n in range(40)
        for way in (f"NET/IB/{n}/GDRDMA", f"NET/IB/{n}", "SHM/direct/direct", "P2P/CUMEM")
    )
    program = f'f=$(echo "$NCCL_DEBUG_FILE" | sed s/%h/n1/); printf "{channels}" > "$f"'
    done = subprocess.run(
        ["sh", str(node(tmp_path) / "rank.sh"), "sh", "-c", program],
        env={
            "PATH": os.environ["PATH"],
            "NCCL_DEBUG": "INFO",
            "ACCEPT_PROGRESS": str(tmp_path / "progress"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    ways = [line.partition(" via ")[2] for line in done.stdout.splitlines()]
    assert ways == ["NET/IB/0/GDRDMA", "NET/IB/0", "SHM/direct/direct"]


class TestRecorded:
    """The inventory records the effective settings, whatever their source."""

    def settings(self, home: Path, **given: str) -> dict[str, Any]:
        program = resources.launchers() / "programs" / "inventory.py"
        env = {"PATH": os.environ["PATH"], "HOME": str(home), **given}
        done = subprocess.run(
            [sys.executable, program], env=env, capture_output=True, text=True, check=True
        )
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


def inventory(machine: Any = verdicts.GPU, **of_h2: Any) -> CheckVerdict:
    """Return the verdict on four hosts that are equal except for the values of h2."""
    records = [
        verdicts.record(INVENTORY, (name,), facts=(settings_fact(name, of_h2),), number=number)
        for number, name in enumerate(NAMES)
    ]
    plan = verdicts.plan(INVENTORY, machine=machine, nodes=4)
    found = judge(plan, [verdicts.hosts_record(NAMES), *records], checks=REGISTRY, attempt="one")
    return next(one for one in found.checks if one.check == "inventory")


def settings_fact(name: str, of_h2: Mapping[str, Any]) -> Fact:
    gpus = verdicts.gpus(name)
    usual = {"gpus": gpus, "pciNvidia": 8, "env": {"NCCL_ALGO": "Ring", "UCX_TLS": name}}
    return verdicts.inventory_of(name, **{**usual, **(of_h2 if name == "h2" else {})})


class TestCompared:
    def test_equal_settings_have_no_finding(self) -> None:
        assert inventory().state is State.PASS

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            ({"NCCL_ALGO": "Tree"}, "NCCL_ALGO is Tree, on 3 of 4 hosts it is Ring"),
            ({}, "NCCL_ALGO is nothing, on 3 of 4 hosts it is Ring"),
            (
                {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
                "NCCL_PROTO is LL, on 3 of 4 hosts it is nothing",
            ),
        ],
    )
    def test_a_host_with_another_setting_is_named(self, env: dict[str, str], words: str) -> None:
        found = inventory(env=env)
        (bad,) = [one for one in found.findings if one.state is State.FAIL]
        assert (bad.message, bad.hosts, bad.cause) == (words, ("h2",), "inventory-mismatch")

    def test_settings_chosen_by_the_nodes_may_differ(self) -> None:
        env = {"NCCL_ALGO": "Ring", "NCCL_IB_HCA": "=mlx5_9:1"}
        assert inventory(env=env, chosen=["NCCL_IB_HCA"]).state is State.PASS


class TestFewerDevices:
    MACHINE = replace(verdicts.GPU, rdma_devices=2, rdma_gbps=400.0)

    def nics(self, *speeds: int, state: str = "active") -> list[dict[str, Any]]:
        return [
            {"name": f"mlx5_{n}", "speed": speed * 1000, "state": state, "rdma": True}
            for n, speed in enumerate(speeds)
        ]

    @pytest.mark.parametrize("nics", [(400,), (400, 200), ()])
    def test_fail_the_check(self, nics: tuple[int, ...]) -> None:
        found = inventory(self.MACHINE, nics=self.nics(*nics))
        messages = [one.message for one in found.findings if "are up" in one.message]
        assert len(messages) == 1
        assert found.state is State.FAIL

    def test_that_are_down_do_not_count(self) -> None:
        found = inventory(self.MACHINE, nics=self.nics(400, 400, state="down"))
        assert "0 RDMA devices of 400 Gbit/s are up, the machine has 2" in "\n".join(
            one.message for one in found.findings
        )

    def test_all_devices_have_no_problem(self) -> None:
        nics = self.nics(400, 400, 100)
        records = [
            verdicts.record(
                INVENTORY,
                (name,),
                facts=(verdicts.inventory_of(name, gpus=verdicts.gpus(name), nics=nics),),
                number=number,
            )
            for number, name in enumerate(NAMES)
        ]
        plan = verdicts.plan(INVENTORY, machine=self.MACHINE, nodes=4)
        found = judge(
            plan, [verdicts.hosts_record(NAMES), *records], checks=REGISTRY, attempt="one"
        )
        assert next(c.state for c in found.checks if c.check == "inventory") is State.PASS


def test_the_verdict_shows_the_interfaces_of_the_hosts() -> None:
    answers = [
        Fact(name="rank", check="connectivity", host=name, rank=rank, value={})
        for rank, name in enumerate(NAMES)
    ]
    value = {
        "interface": "eth0",
        "interfaceBy": "the route to the other hosts",
        "rdma": "=mlx5_0:1",
        "rdmaBy": "the fastest that are up",
    }
    chosen = [Fact(name="network", check="connectivity", host=n, value=value) for n in NAMES]
    record = verdicts.record(CONNECTIVITY, NAMES, facts=(*answers, *chosen), ranks=4)
    plan = verdicts.plan(CONNECTIVITY, nodes=4, machine=replace(verdicts.CPU, ranks=1))
    found = judge(plan, [verdicts.hosts_record(NAMES), record], checks=REGISTRY, attempt="one")
    (check,) = [one for one in found.checks if one.check == "connectivity"]
    assert check.state is State.PASS
    assert (
        "interface eth0 (by the route to the other hosts), RDMA mlx5_0:1 (by the fastest that are "
        "up) on h0, h1, h2, h3"
    ) in [one.message for one in check.findings]
