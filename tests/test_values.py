"""The data that comes with accept: every file is good, every figure has a source, none misleads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest

from accept import assets, spec
from accept.core import checks
from accept.core.shape import fields_of, members, split
from accept.core.sizes import parse_size
from accept.core.typed import read
from accept.spec.figure import Figure
from accept.spec.units import METRICS

MACHINES = spec.names("machines")
SUITES = spec.names("suites")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")
#: Machines of which so much is known that a healthy cluster can pass at any size.
KNOWN = ("a3-megagpu-8g", "a3-ultragpu-8g", "a4-highgpu-8g")


def _figures(name: str) -> tuple[Figure, ...]:
    return spec.load_machine(name).value.references


def test_what_comes_with_accept() -> None:
    assert set(MACHINES) >= {"cpu", "gpu", *KNOWN}
    assert set(SUITES) >= {"quick", "standard", "soak"}


@pytest.mark.parametrize("name", MACHINES)
class TestMachines:
    def test_is_called_like_its_file(self, name: str) -> None:
        assert spec.load_machine(name).value.name == name

    def test_its_parameters_are_those_of_the_checks(self, name: str) -> None:
        for check, values in spec.load_machine(name).value.parameters.items():
            read(checks.load(check).params, values)

    def test_its_figures_are_about_metrics_there_are(self, name: str) -> None:
        for figure in _figures(name):
            assert METRICS[figure.check][figure.metric] == figure.unit

    def test_its_figures_are_about_the_size_that_is_measured(self, name: str) -> None:
        machine = spec.load_machine(name).value
        for figure in machine.references:
            params = read(checks.load(figure.check).params, machine.parameters[figure.check])
            assert parse_size(params.max) == figure.size

    def test_no_figure_of_two_nodes_is_used_at_more(self, name: str) -> None:
        for figure in _figures(name):
            assert figure.kind != "measured" or figure.min_nodes == figure.max_nodes, figure

    def test_no_bound_lies_above_what_it_is_taken_from(self, name: str) -> None:
        for bound in spec.load_machine(name).value.bounds():
            assert bound.lower is not None
            assert bound.value is not None
            assert 0 < bound.lower < bound.value

    def test_every_setting_and_figure_has_a_source(self, name: str) -> None:
        machine = spec.load_machine(name).value
        assert all(figure.source for figure in machine.references)
        assert all(profile.source for profile in machine.nccl.profiles.values() if profile.env)
        if machine.gpus.device:
            assert machine.gpus.source
        if machine.kubernetes.node_selector:
            assert machine.kubernetes.source


@pytest.mark.parametrize("name", KNOWN)
class TestKnownMachines:
    @pytest.mark.parametrize("check", COLLECTIVES)
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 64, 128, 129, 1000])
    def test_a_healthy_cluster_of_any_size_can_pass(
        self, name: str, check: str, nodes: int
    ) -> None:
        fitting = [
            figure
            for figure in _figures(name)
            if figure.check == check
            and (figure.min_nodes or 1) <= nodes <= (figure.max_nodes or 10**9)
        ]
        assert len(fitting) == 1, fitting

    def test_a_floor_is_a_share_of_the_line_rate_or_of_nvlink(self, name: str) -> None:
        machine = spec.load_machine(name).value
        assert machine.nics is not None
        nic = machine.nics.gbps / 8
        for figure in machine.references:
            if figure.kind == "floor" and figure.min_nodes != 1:
                assert figure.value in (nic, nic * machine.nics.count)

    def test_promises_its_plugin(self, name: str) -> None:
        nccl = spec.load_machine(name).value.nccl
        assert nccl.transport
        assert nccl.script
        assert nccl.profiles["default"].script is None


def test_the_cpu_machine_promises_no_speed() -> None:
    machine = spec.load_machine("cpu").value
    assert not machine.speed_promised
    assert machine.references == ()
    assert machine.planned().gpus == 0


def test_the_gpu_machine_has_specifications_alone() -> None:
    machine = spec.load_machine("gpu").value
    assert machine.planned().gpus is None
    for figure in machine.references:
        assert figure.device
        assert figure.kind in ("spec", "floor")
        assert (figure.min_nodes, figure.max_nodes) == (1, 1)


@pytest.mark.parametrize("name", SUITES)
class TestSuites:
    def test_is_called_like_its_file(self, name: str) -> None:
        assert spec.load_suite(name).value.name == name

    def test_its_checks_know_their_parameters_and_groups(self, name: str) -> None:
        for entry in spec.load_suite(name).value.checks:
            check = checks.load(entry.check)
            read(check.params, entry.params)
            assert entry.groups is None or entry.groups in check.groups

    def test_leaves_the_sizes_to_the_machine(self, name: str) -> None:
        for entry in spec.load_suite(name).value.checks:
            assert not {"min", "max", "factor"} & set(entry.params)


def test_the_collectives_of_quick_fit_into_one_launch() -> None:
    suite = spec.load_suite("quick").value
    together = [entry for entry in suite.checks if entry.groups == "all"]
    assert [entry.check for entry in together] == list(COLLECTIVES)
    assert len({str(entry.params) for entry in together}) == 1


class TestExampleSite:
    file = assets.values() / "site.example.yaml"

    def test_changes_nothing(self) -> None:
        assert spec.load_site(str(self.file)).value == spec.Site()

    def test_mentions_every_key(self) -> None:
        text = self.file.read_text()
        missing = [key for key in _keys(spec.Site) if f"{key}:" not in text]
        assert missing == []

    def test_what_it_comments_out_is_right_too(self, tmp_path: Path) -> None:
        lines = [self.uncommented(line) for line in self.file.read_text().splitlines()]
        (tmp_path / "site.yaml").write_text("\n".join(lines))
        site = spec.load_site(str(tmp_path / "site.yaml")).value
        assert site.backend == "ssh"
        assert site.gpus_per_node == 8
        assert site.kubernetes.networks is not None
        assert len(site.expect) == 3

    @staticmethod
    def uncommented(line: str) -> str:
        """A line `# key: value` or `#  - item` without its `#`, any other as it is."""
        before, mark, after = line.partition("#")
        example = after.lstrip().startswith("- ") or after.strip().split(":")[0] in _keys(spec.Site)
        if mark and not before.strip() and (example or "NCCL_" in after or "all-reduce:" in after):
            return before + (after if after.startswith("  ") else after[1:])
        if line.endswith((": []", ": {}")) and line.split(":", maxsplit=1)[0].strip() in _FILLED:
            return line.removesuffix(" []").removesuffix(" {}")
        return line


#: Keys whose example follows them as comments.
_FILLED = ("expect", "parameters", "env")


def _keys(cls: Any) -> list[str]:
    """The outside names of all fields of a dataclass and of the dataclasses in it."""
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
