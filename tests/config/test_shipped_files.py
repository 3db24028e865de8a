"""The data files of accept: all are valid, and every figure has a source."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from accept import config
from accept.config import floors, resources
from accept.config.references import Figure
from accept.config.tool_file import ToolFile
from accept.config.tools import check_exists
from accept.core import checks
from accept.core.checks.collectives import Params
from accept.core.serde import fields_of, members, read, split
from accept.core.table import message_sizes
from accept.plan.placement import gpu_resource
from accept.plan.resolve import Options, resolve

MACHINES = config.names("machines")
SUITES = config.names("suites")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")
#: Machines of one kind of node; `cpu` and `gpu` stand for any hardware.
KINDS = tuple(name for name in MACHINES if name not in ("cpu", "gpu"))
SIZES = (1, 2, 3, 4, 5, 18, 19, 64, 128, 129, 1000)


def _figures(name: str, profile: str = "default") -> tuple[Figure, ...]:
    return floors.figures(config.load_machine(name).value, profile)


def _profiles() -> list[tuple[str, str]]:
    return [(name, one) for name in KINDS for one in config.load_machine(name).value.nccl.profiles]


@pytest.mark.parametrize("name", MACHINES)
class TestMachines:
    def test_has_the_name_of_its_file_and_states_how_sure_it_is(self, name: str) -> None:
        assert config.load_machine(name).value.name == name
        file = resources.values() / "machines" / f"{name}.yaml"
        assert "confidence" in yaml.safe_load(file.read_text())

    def test_its_parameters_are_those_of_the_checks(self, name: str) -> None:
        for check, values in config.load_machine(name).value.parameters.items():
            read(checks.REGISTRY[check].params, values)

    def test_its_figures_have_measured_sizes(self, name: str) -> None:
        machine = config.load_machine(name).value
        for figure in _figures(name):
            if checks.REGISTRY[figure.check].devices or figure.metric == "sustained":
                assert figure.size is None
                continue
            params = checks.REGISTRY[figure.check].params
            given = read(params, machine.parameters.get(figure.check, {}))
            assert isinstance(given, Params)
            assert figure.size in message_sizes(given.min, given.max, given.factor)

    def test_a_figure_of_two_nodes_applies_only_to_two(self, name: str) -> None:
        for figure in _figures(name):
            assert figure.kind != "measured" or figure.min_nodes == figure.max_nodes, figure

    def test_no_bound_exceeds_its_source(self, name: str) -> None:
        for bound in floors.bounds(config.load_machine(name).value):
            assert bound.value is not None
            if bound.upper is not None:
                assert bound.lower is None
                assert bound.upper > bound.value
            else:
                assert bound.lower is not None
                assert 0 < bound.lower <= bound.value
                assert bound.lower < bound.value or bound.kind == "vendor"

    def test_its_device_and_labels_have_a_source(self, name: str) -> None:
        machine = config.load_machine(name).value
        if machine.gpus.device:
            assert machine.gpus.source
        if machine.kubernetes.node_selector:
            assert machine.kubernetes.source


@pytest.mark.parametrize("name", KINDS)
class TestKindsOfNodes:
    @pytest.mark.parametrize("check", COLLECTIVES)
    def test_has_a_bound_at_any_size(self, name: str, check: str) -> None:
        alone = config.load_machine(name).value.gpus.count == 1
        for nodes in SIZES[alone:]:
            assert [f for f in _figures(name) if f.check == check and _spans(f, nodes)], nodes

    def test_a_floor_is_a_share_of_a_rate_of_its_hardware(self, name: str) -> None:
        machine = config.load_machine(name).value
        assert machine.nics is not None
        assert isinstance(machine.gpus.count, int)
        nic = (machine.nics.reachable_gbps or machine.nics.gbps) / 8
        rates = {nic, nic * machine.nics.count, nic * machine.nics.count / machine.gpus.count}
        rates |= {one.gbytes_per_second for one in (machine.nvlink, machine.pcie) if one}
        assert machine.gpus.peaks is not None
        rates |= {*machine.gpus.peaks.tflops.values()}
        rates.add(machine.gpus.peaks.memory_gbytes_per_second or 0)
        if machine.nvlink:
            profile = machine.nccl.profiles["default"]
            rates.add(machine.nvlink.gbytes_per_second * profile.nvlink_share)
        for figure in _figures(name):
            of_port = {nic / (machine.nics.gbps / 8)} if figure.metric == "line-share" else set()
            assert figure.kind != "floor" or figure.value in rates | of_port, figure
            assert figure.why

    def test_a_rail_that_lost_one_of_the_two_nics_of_its_gpu_fails(self, name: str) -> None:
        machine = config.load_machine(name).value
        assert machine.nics is not None
        if machine.nics.count == 2 * (machine.planned().gpus or 0):
            left = machine.nics.gbps / 8
            rails = [f.reference() for f in _figures(name) if f.per_rail]
            assert rails
            assert all(bound.lower is not None and bound.lower > left for bound in rails)

    def test_no_figure_exceeds_its_peak(self, name: str) -> None:
        for figure in _figures(name):
            assert figure.peak is None or figure.value is None or figure.value <= figure.peak

    def test_machines_with_rdma_require_a_network(self, name: str) -> None:
        machine = config.load_machine(name).value
        assert machine.nics is not None
        assert bool(machine.nccl.transport) == machine.nics.rdma
        assert machine.planned().gpu_direct == machine.nccl.gpu_direct

    def test_requests_all_gpus_of_a_node(self, name: str) -> None:
        machine = config.load_machine(name).value
        limits = machine.kubernetes.resources["limits"]
        assert isinstance(limits, dict)
        assert limits[gpu_resource(machine.kubernetes.resources)] == machine.gpus.count


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("a3-highgpu-8g", "NCCL_GPUDIRECTTCPX_RX_BINDINGS"),
        ("a3-megagpu-8g", "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY"),
    ],
)
def test_profiles_with_nics_have_the_settings_of_the_plugin(name: str, setting: str) -> None:
    machine = config.load_machine(name).value
    for profile in machine.nccl.profiles.values():
        if "nics" in profile.uses:
            assert setting in {**machine.kubernetes.env, **profile.env}


@pytest.mark.parametrize(("name", "profile"), _profiles())
class TestProfiles:
    def test_is_described_and_has_a_source(self, name: str, profile: str) -> None:
        one = config.load_machine(name).value.nccl.profiles[profile]
        assert one.description
        assert one.source

    def test_its_bounds_are_for_paths_that_it_uses(self, name: str, profile: str) -> None:
        machine = config.load_machine(name).value
        uses = machine.nccl.profiles[profile].uses
        assert machine.nvlink is None or machine.planned(profile).peer_to_peer == ("nvlink" in uses)
        for figure in _figures(name, profile):
            # The checks of single GPUs do not use NCCL.
            if checks.REGISTRY[figure.check].devices:
                continue
            if figure.kind == "floor" and "nvlink" not in uses:
                assert figure.source != (machine.nvlink and machine.nvlink.source)
            if figure.kind == "floor" and "nics" not in uses:
                assert figure.source != (machine.nics and machine.nics.source)


def _spans(figure: Figure, nodes: int) -> bool:
    return (figure.min_nodes or 1) <= nodes <= (figure.max_nodes or 10**9)


def test_nvlink_bounds_apply_to_one_domain_and_nic_bounds_to_all_nodes() -> None:
    def bounds(profile: str, nodes: int) -> dict[bool, float]:
        fitting = (f for f in _figures("a4x-highgpu-4g", profile) if f.check == "all-gather")
        spanning = (f for f in fitting if _spans(f, nodes) and not f.per_rail)
        return {one.one_domain: (one.value or 0) * (one.share or 0) for one in spanning}

    assert (bounds("default", 18), bounds("default", 19)) == ({True: 450, False: 120}, {False: 120})
    assert (bounds("rdma", 18), bounds("rdma", 19)) == ({False: 120}, {False: 120})


def test_machines_of_a_cloud_have_different_labels() -> None:
    """The machine of a cluster is detected by labels, so no two machines may have the same ones."""
    selectors = [
        tuple(sorted(config.load_machine(name).value.kubernetes.node_selector.items()))
        for name in KINDS
    ]
    named = [one for one in selectors if one]
    assert len(set(named)) == len(named)


def test_the_gpu_machine_has_only_specifications() -> None:
    machine = config.load_machine("gpu").value
    assert machine.planned().gpus is None
    for figure in machine.references:
        assert figure.device
        assert figure.kind in ("spec", "floor")
        assert (figure.min_nodes, figure.max_nodes) == (1, 1)


def test_the_gpu_machine_knows_every_device_with_nvlink() -> None:
    known = [
        config.load_machine(name).value for name in config.load_machine("gpu").value.devices_of
    ]
    devices = [machine.gpus.device for machine in known]
    assert len(set(devices)) == len(devices)
    others = [config.load_machine(name).value for name in KINDS]
    assert {other.gpus.device for other in others if other.nvlink} == {*devices}


@pytest.mark.parametrize("name", SUITES)
class TestSuites:
    def test_has_the_name_of_its_file(self, name: str) -> None:
        assert config.load_suite(name).value.name == name

    def test_its_checks_know_their_parameters_and_groups(self, name: str) -> None:
        for entry in config.load_suite(name).value.checks:
            check = check_exists(entry.check)
            read(check.params, entry.params)
            assert entry.groups is None or entry.groups in check.groups

    def test_has_no_sizes_because_machines_have_them(self, name: str) -> None:
        for entry in config.load_suite(name).value.checks:
            assert not {"min", "max"} & set(entry.params)


def test_the_collectives_of_quick_fit_into_one_launch() -> None:
    suite = config.load_suite("quick").value
    together = [entry for entry in suite.checks if entry.check in COLLECTIVES][: len(COLLECTIVES)]
    assert [entry.check for entry in together] == list(COLLECTIVES)
    assert {entry.groups for entry in together} == {"all", "blocks"}
    assert len({str(entry.params) for entry in together}) == 1


class TestExampleSite:
    file = resources.values() / "site.example.yaml"

    def test_changes_nothing(self) -> None:
        assert config.load_site(str(self.file)).value == config.Site()

    def test_mentions_every_key(self) -> None:
        text = self.file.read_text()
        # The file of each tool is an example of its keys.
        keys = [key for key in _keys(config.Site) if key not in _keys(ToolFile)]
        assert [key for key in keys if f"{key}:" not in text] == []

    def test_its_commented_keys_are_valid(self, tmp_path: Path) -> None:
        lines = [self.uncommented(line) for line in self.file.read_text().splitlines()]
        (tmp_path / "site.yaml").write_text("\n".join(lines))
        site = config.load_site(str(tmp_path / "site.yaml")).value
        assert site.backend == "ssh"
        assert site.gpus_per_node == 8
        assert site.kubernetes.networks is not None
        assert len(site.expect) == 3
        assert [tool.name for tool in site.tools.checks] == ["clock"]

    @staticmethod
    def uncommented(line: str) -> str:
        """Return a line `# key: value` or `#  - item` without its `#`, and any other unchanged."""
        before, mark, after = line.partition("#")
        example = after.lstrip().startswith("- ") or after.strip().split(":")[0] in _keys(
            config.Site
        )
        if mark and not before.strip() and (example or "NCCL_" in after or "all-reduce:" in after):
            return before + (after if after.startswith("  ") else after[1:])
        if line.endswith((": []", ": {}")) and line.split(":", maxsplit=1)[0].strip() in _FILLED:
            return line.removesuffix(" []").removesuffix(" {}")
        return line


#: Keys whose example follows them as comments.
_FILLED = ("checks", "expect", "parameters", "env")


def _keys(cls: Any) -> list[str]:
    """Return the external names of all fields of a dataclass and of the dataclasses in it."""
    found = []
    for _, key, hint in fields_of(cls):
        found.append(key)
        for inner in _inside(hint):
            found += _keys(inner)
    return found


def _inside(hint: Any) -> list[Any]:
    base, _ = split(hint)
    if dataclasses.is_dataclass(base):
        return [base]
    return [inner for arg in (members(base) or get_args(base)) for inner in _inside(arg)]


# -- bounds and plans of single devices ------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_every_gpu_machine_has_a_bound_for_compute_and_for_memory(name: str) -> None:
    machine = config.load_machine(name).value
    bounded = {bound.check for bound in floors.bounds(machine)}
    assert bounded >= {"gemm", "memory"} if machine.gpus.count != 0 else not bounded


@pytest.mark.parametrize(
    ("name", "lower"),
    [("g4-standard-48", 19.2), ("a100-8", 20.8), ("h200-8", 38.4), ("gb200-4x", 67.5)],
)
def test_the_links_to_the_host_have_bounds(name: str, lower: float) -> None:
    found = {one.metric: one for one in floors.bounds(config.load_machine(name).value)}
    ways = ("host-to-device", "device-to-host")
    assert [found[way].lower for way in ways] == [pytest.approx(lower)] * 2


def test_soak_keeps_all_gpus_at_their_limit_for_an_hour_and_ends_before_its_deadline() -> None:
    options = Options(machine="h200-8", suite="soak", hosts=("h0", "h1"), backend="ssh")
    plan = resolve(options).plan
    (step,) = [one for one in plan.steps if "gemm" in one.checks]
    assert float(step.params["seconds"]) * 4 >= 3600, "four data types"
    assert step.timeout > 1.5 * step.estimate
    (train,) = [one for one in plan.steps if one.checks == ("train",)]
    assert train.estimate < step.estimate, "a small model leaves a GPU nearly idle"
    assert sum(one.estimate for one in plan.steps) < 0.8 * plan.deadline_seconds
