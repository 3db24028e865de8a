"""A machine defined in YAML only: the example of the docs, up to a verdict."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories import verdicts
from tests.factories.paths import DOCS
from tests.factories.shell import write_program

from accept import config
from accept.config import resources
from accept.core.checks import REGISTRY
from accept.core.errors import BadInput
from accept.core.judge import judge
from accept.core.plan import Plan
from accept.core.records import Fact, Record
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.text import parse_size
from accept.core.verdict import State, Verdict
from accept.plan.resolve import Options, resolve

PAGE = (DOCS / "machines.md").read_text()
TOP = parse_size("8G")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")
#: Healthy figures of 64 nodes with 8 GPUs and 8 NICs of 400 Gbit/s, in GB/s, as measured on B200
#: by others: the sources in values/floors.yaml. With one channel, sendrecv reached 14.5.
HEALTHY = {
    "all-reduce": 389.0,
    "all-gather": 371.0,
    "reduce-scatter": 371.0,
    "alltoall": 45.0,
    "sendrecv": 42.0,
}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Write the machine file that the page shows; return it."""
    found = re.search(r"^```yaml mine.yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    (tmp_path / "mine.yaml").write_text(found[1])
    return tmp_path / "mine.yaml"


def planned(machine: Path | str, nodes: int, *checks: str, expect: tuple[str, ...] = ()) -> Plan:
    """Plan the quick suite on a machine, limited to the inventory and the named checks."""
    options = Options(
        machine=str(machine), nodes=nodes, backend="ssh", hosts=verdicts.hosts(nodes), expect=expect
    )
    plan = resolve(options).plan
    kept = ("inventory", *checks)
    steps = [s for s in plan.steps if s.groups == "all" or s.checks == ("inventory",)]
    left = [replace(s, checks=tuple(c for c in s.checks if c in kept)) for s in steps]
    return replace(plan, steps=tuple(step for step in left if step.checks), skipped=())


def measured(
    plan: Plan, share: float, *, network: str = "gIB", figures: Mapping[str, float] = HEALTHY
) -> list[Record]:
    """Return records of a run with results at a share of the healthy ones."""
    names = verdicts.hosts(plan.nodes or 1)
    inventory, step = plan.steps
    facts = [
        verdicts.record(inventory, (host,), facts=(node(plan, host),), number=number, ranks=8)
        for number, host in enumerate(names)
    ]
    network_used = Fact(name="nccl-networks", value={network: list(names)})
    channels = Fact(name="nccl-detours", value={"NET": list(names) if len(names) > 1 else []})
    speeds = {check: figures[check] * share for check in step.checks}
    tables = [m for one in speeds.items() for m in verdicts.table(*one, sizes=(TOP // 2, TOP))]
    ranks = 8 * len(names)
    return [
        verdicts.hosts_record(names),
        *facts,
        verdicts.record(step, names, *tables, facts=(network_used, channels), ranks=ranks),
    ]


def node(plan: Plan, host: str) -> Fact:
    """Return the inventory of a host with the machine's GPUs and RDMA devices."""
    machine = plan.machine
    gpus = [{**gpu, "name": machine.device} for gpu in verdicts.gpus(host)]
    up = {"speed": int(machine.rdma_gbps * 1000), "state": "active", "rdma": True}
    nics = [{"name": f"mlx5_{n}", **up} for n in range(machine.rdma_devices)]
    return verdicts.inventory_of(host, gpus=gpus, nics=nics)


def verdict(plan: Plan, share: float, network: str = "gIB") -> Verdict:
    records = measured(plan, share, network=network)
    return judge(plan, records, checks=REGISTRY, attempt="one")


def states(found: Verdict) -> dict[str, State]:
    return {one.check: one.state for one in found.checks if one.check in COLLECTIVES}


@pytest.mark.parametrize(
    ("machine", "published", "network"),
    [
        ("p5.48xlarge", 478.95, "AWS Libfabric"),
        ("nd96asr-v4", 187.05, "IB"),
        ("bm.gpu.h100.8", 440, "IB"),
    ],
)
class TestTwoNodesOfOtherClouds:
    """Pairs of nodes whose all-reduce the maker published."""

    def test_fail_at_half_of_it(self, machine: str, published: float, network: str) -> None:
        share = published / HEALTHY["all-reduce"] / 2
        found = verdict(planned(machine, 2, "all-reduce"), share, network=network)
        assert found.state is State.FAIL

    def test_fail_without_the_fast_network(
        self, machine: str, published: float, network: str
    ) -> None:
        share = published / HEALTHY["all-reduce"]
        found = verdict(planned(machine, 2, "all-reduce"), share, network="Socket")
        assert found.state is State.FAIL


class TestSixtyFourNodes:
    """64 nodes of a machine for which only figures of two nodes are published."""

    plan = planned("a4-highgpu-8g", 64, *COLLECTIVES)

    def test_a_healthy_cluster_is_accepted(self) -> None:
        found = verdict(self.plan, 1.0)
        assert (found.headline, found.accepted, found.exit) == ("pass", True, 0)

    def test_a_uniformly_slow_cluster_is_rejected(self) -> None:
        found = verdict(self.plan, 0.5)
        assert (found.state, found.accepted, found.exit) == (State.FAIL, False, 3)
        assert found.suspects == ()

    def test_a_cluster_of_badly_set_nodes_is_not_accepted(self) -> None:
        # A quarter below the figures of tuned nodes.
        found = verdict(self.plan, 0.74)
        assert (found.state, found.suspects) == (State.INCONCLUSIVE, ())
        causes = {f.cause for c in found.checks for f in c.findings if f.state is not State.PASS}
        assert causes == {"below-expected"}

    def test_the_verdict_shows_the_source_of_a_bound(self) -> None:
        (held,) = [
            finding
            for check in verdict(self.plan, 0.5).checks
            for finding in check.findings
            if finding.check == "all-gather" and finding.judgement == "absolute"
        ]
        assert held.value == pytest.approx(185.5)
        assert (held.unit, len(held.hosts)) == ("GB/s", 64)
        assert held.peak_share == pytest.approx(185.5 / 400)
        assert held.bound is not None
        assert (held.bound.lower, held.bound.kind) == (240, "floor")
        assert "gpu-network-bandwidth" in held.bound.source

    def test_each_figure_is_shown_with_its_share_of_the_peak(self) -> None:
        found = verdict(self.plan, 1.0)
        (shown,) = [one for one in found.checks if one.check == "all-gather"]
        assert shown.measured == "371 GB/s at 8G (64 nodes, 93% of the peak)"
        source = "https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth"
        assert f"peak 400 GB/s: {source}" in shown.required
        for text in (render_markdown(found, self.plan), junit(found)):
            assert "93% of the peak" in text
            assert source in text.replace("\\", "")

    def test_an_expectation_of_the_user_has_priority(self) -> None:
        plan = planned("a4-highgpu-8g", 64, "all-reduce", expect=("all-reduce@8G>=395",))
        assert verdict(plan, 1.0).state is State.FAIL
        plan = planned("a4-highgpu-8g", 64, "all-reduce", expect=("all-reduce@8G>=100",))
        assert states(verdict(plan, 0.5)) == {"all-reduce": State.PASS}

    def test_without_a_bound_it_is_inconclusive_and_suggests_one(self) -> None:
        plan = replace(self.plan, references=())
        found = verdict(plan, 1.0)
        assert set(states(found).values()) == {State.INCONCLUSIVE}
        messages = [f.message for one in found.checks for f in one.findings]
        assert any(re.search(r"--expect 'all-gather@8G>=\d+'", text) for text in messages)


@pytest.mark.parametrize(
    ("machine", "nodes", "figures", "state"),
    [
        # Four nodes with half of their NICs.
        ("b200-8", 4, {"all-reduce": 192.8, "all-gather": 192.7}, State.FAIL),
        # A ring inside the node, although the switches can reduce: the settings are not good.
        ("nd96isr-h100-v5", 1, {"all-reduce": 366}, State.INCONCLUSIVE),
        # On A3 High, eight channels reach their limit.
        ("a3-highgpu-8g", 1, {"all-reduce": 100}, State.PASS),
        # A vendor's own threshold, and less.
        ("a4-highgpu-8g", 2, {"all-gather": 250}, State.PASS),
        ("a4-highgpu-8g", 2, {"all-gather": 249}, State.FAIL),
        ("a4-highgpu-8g", 8, {"all-gather": 249}, State.FAIL),
        # Rings, although the switches should reduce; a rack whose NICs are all 30 % slow.
        ("h100-8", 1, {"all-reduce": 368.2}, State.INCONCLUSIVE),
        ("b200-8", 18, {"all-gather": 0.7 * 376.2}, State.INCONCLUSIVE),
        ("b200-8", 8, {"all-gather": 0.68 * 376.2}, State.FAIL),
        # One channel to each peer, although sendrecv has more: a slow NIC would look the same.
        ("b300-8x", 64, {"sendrecv": 14.6}, State.INCONCLUSIVE),
    ],
)
def test_figures_of_bad_and_badly_set_nodes_have_the_right_verdict(
    machine: str, nodes: int, figures: dict[str, float], state: State
) -> None:
    plan = planned(machine, nodes, *figures)
    records = measured(plan, 1.0, network=plan.machine.transport, figures=figures)
    assert set(states(judge(plan, records, checks=REGISTRY, attempt="one")).values()) == {state}


def test_the_shim_of_a_plugin_is_not_a_fallback() -> None:
    plan = planned("a3-megagpu-8g", 2, "all-reduce")
    assert verdict(plan, 1.0, network="uninitialized_shim_v7").state is State.PASS
    assert verdict(plan, 1.0, network="Socket").state is State.FAIL


def test_memory_of_the_machines_own_daemon_is_not_in_use_by_others() -> None:
    """On A3 High, the daemon holds 4 GiB of each GPU before the run begins."""
    plan = planned("a3-highgpu-8g", 2, "all-reduce")

    def causes(used: int) -> set[str]:
        named = {"memoryUsedMiB": used, "name": plan.machine.device}
        held = [{**gpu, **named} for gpu in verdicts.gpus("h0")]
        hosts, first, *rest = measured(plan, 1.0, network="GPUDirectTCPX")
        first = replace(first, facts=(verdicts.inventory_of("h0", gpus=held),))
        found = judge(plan, [hosts, first, *rest], checks=REGISTRY, attempt="one")
        return {f.cause for one in found.checks for f in one.findings if f.cause}

    assert "gpu-busy" not in causes(4600)
    assert "gpu-busy" in causes(9000)


@pytest.mark.parametrize("name", config.names("machines"))
def test_the_topology_command_needs_only_tools_of_the_image(name: str, tmp_path: Path) -> None:
    """The command uses only Python, which can parse the code."""
    code = 'import sys; compile(sys.argv[2], "topology", "exec"); print("/a/b")'
    (tmp_path / "code.py").write_text(code)
    write_program(tmp_path / "python3", f'exec {sys.executable} {tmp_path}/code.py "$@"')
    topology = config.load_machine(name).value.topology
    done = subprocess.run(
        ["/bin/sh", "-c", topology], env={"PATH": str(tmp_path)}, capture_output=True, check=True
    )
    assert done.stdout == (b"/a/b\n" if topology else b"")


class TestMachineOfTheUser:
    def test_extends_another_file(self, mine: Path) -> None:
        machine = config.load_machine(str(mine)).value
        base = config.load_machine("h100-8").value
        assert (machine.nics and machine.nics.count, machine.nics and machine.nics.gbps) == (4, 400)
        assert machine.gpus == base.gpus
        assert machine.nccl == base.nccl
        assert machine.kubernetes == base.kubernetes
        assert len(machine.references) == 1 + len(base.references)

    def test_is_judged_by_its_own_hardware(self, mine: Path) -> None:
        plan = planned(mine, 64, "all-gather")
        assert verdict(plan, 0.4, network="IB").state is not State.FAIL
        assert verdict(plan, 0.25, network="IB").state is State.FAIL

    def test_its_own_figure_applies_only_as_measured(self, mine: Path) -> None:
        assert verdict(planned(mine, 4, "all-gather"), 0.4, network="IB").state is State.FAIL
        assert verdict(planned(mine, 5, "all-gather"), 0.4, network="IB").state is not State.FAIL

    def test_is_rendered_with_the_settings_of_its_bases(self, mine: Path) -> None:
        machine = planned(mine, 2, "all-reduce").machine
        assert (machine.name, machine.device) == ("mine", "NVIDIA H100 80GB HBM3")
        assert (machine.transport, machine.gpu_direct, machine.peer_to_peer) == ("IB", True, True)


class TestBases:
    def refusal(self, folder: Path, text: str) -> BadInput:
        (folder / "mine.yaml").write_text(f"name: mine\ndescription: Mine.\n{text}")
        with pytest.raises(BadInput) as caught:
            config.load_machine(str(folder / "mine.yaml"))
        return caught.value

    def test_an_earlier_base_has_priority(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("interface: eth7\nnoise: 0.03\n")
        (tmp_path / "mine.yaml").write_text(
            "name: mine\ndescription: Mine.\nbase: [./a.yaml, h100-8]\nnoise: 0.02\n"
        )
        machine = config.load_machine(str(tmp_path / "mine.yaml")).value
        assert (machine.interface, machine.noise, machine.gpus.count) == ("eth7", 0.02, 8)

    def test_an_error_in_a_base_names_the_file_of_the_base(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("gpus: {count: 8}\nnics:\n  count: none\n")
        error = self.refusal(tmp_path, "base: [./a.yaml]\n")
        assert error.message.startswith(f"{tmp_path}/a.yaml:3: nics.count: ")

    def test_an_error_among_added_references_names_its_own_line(self, tmp_path: Path) -> None:
        figure = "  - {check: all-reduce, kind: floor, lower: 1, source: 'https://a'}\n"
        wrong = "  - {check: all-reduce, kind: flor, lower: 1, source: 'https://a'}\n"
        (tmp_path / "a.yaml").write_text(f"references:\n{figure}{wrong}")
        text = f"base: [./a.yaml]\ngpus: {{count: 8}}\nreferences:\n{figure}"
        error = self.refusal(tmp_path, text)
        assert error.message.startswith(f"{tmp_path}/a.yaml:3: references[2].kind: ")


def test_the_page_lists_every_machine() -> None:
    table = PAGE[PAGE.index("| whose |") : PAGE.index("\n\n", PAGE.index("| whose |"))]
    listed = set(re.findall(r"`([a-z0-9.-]+)`", table))
    assert listed == set(config.names("machines"))


def test_a_shared_base_is_not_a_machine() -> None:
    shared = {path.stem for path in (resources.values() / "machines" / "base").glob("*.yaml")}
    assert shared.isdisjoint(config.names("machines"))
