"""From options to a run: refusals, precedence, and the order of steps."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.paths import TESTS

from accept import config
from accept.commands.plan import planned
from accept.config import Site, load_site
from accept.config.slurm import Slurm
from accept.core.causes import Cause
from accept.core.checks.collectives import Params as CollectiveParams
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.limits import MOST_HOSTS
from accept.core.plan import Plan, Step
from accept.core.serde import read
from accept.core.table import message_sizes, planned_sizes
from accept.core.text import format_size
from accept.plan.resolve import Options, Resolved, resolve
from accept.plan.selection import Selection

#: A machine of GPU nodes with published figures.
FULL = "a4-highgpu-8g"


#: The site file of a cluster.
SITE = str(TESTS / "site.yaml")

IMAGE = "registry.example/accept:1"


def run(machine: str = "cpu", **options: Any) -> Resolved:
    """Resolve for as many hosts over ssh as there are nodes, two if the options do not say."""
    given = {"nodes": 2, **options}
    if given["nodes"] is not None and given.get("backend", "ssh") == "ssh":
        given.setdefault("hosts", tuple(f"h{number}" for number in range(1, given["nodes"] + 1)))
    return resolve(Options(machine=machine, **given))


def plan(machine: str = "cpu", **options: Any) -> Plan:
    return run(machine, **options).plan


def step(found: Plan, check: str, groups: str = "all") -> Step:
    return next(s for s in found.steps if check in s.checks and s.groups == groups)


def refusal(**options: Any) -> BadInput:
    with pytest.raises(BadInput) as error:
        run(**options)
    assert "\n" not in error.value.message
    return error.value


def site(tmp_path: Path, text: str) -> str:
    (tmp_path / "site.yaml").write_text(text)
    return str(tmp_path / "site.yaml")


def suite(tmp_path: Path, *checks: str) -> str:
    lines = "".join(f"  - {check}\n" for check in checks)
    (tmp_path / "own.yaml").write_text(f"name: own\ndescription: Ours.\nchecks:\n{lines}")
    return str(tmp_path / "own.yaml")


class TestNodes:
    @pytest.mark.parametrize("nodes", [0, -1, MOST_HOSTS + 1])
    def test_an_impossible_number_is_refused(self, nodes: int) -> None:
        for options in ({"backend": "kubernetes", "site": SITE}, {"backend": "local"}):
            assert refusal(nodes=nodes, **options).code == Code.NODES_NUMBER

    def test_a_number_that_contradicts_the_hosts_is_refused(self) -> None:
        assert refusal(nodes=3, hosts=("a", "b")).code == Code.NODES_MISMATCH

    def test_the_number_is_that_of_the_hosts(self) -> None:
        found = run(nodes=None, hosts=("a", "b", "c"))
        assert (found.plan.nodes, found.backend) == (3, "ssh")

    def test_without_number_and_hosts_this_machine_is_tested(self) -> None:
        found = run(nodes=None)
        assert (found.plan.nodes, found.backend) == (1, "local")

    def test_a_cluster_needs_a_number(self) -> None:
        assert refusal(nodes=None, backend="kubernetes", site=SITE).code == Code.NODES_UNKNOWN
        assert refusal(nodes=None, site=SITE).code == Code.NODES_UNKNOWN

    def test_hosts_of_the_site_file_may_be_patterns(self, tmp_path: Path) -> None:
        file = site(tmp_path, "ssh: {hosts: ['n[1-3]', m]}")
        assert run(nodes=None, site=file).hosts == ("n1", "n2", "n3", "m")

    def test_named_hosts_replace_those_of_the_site(self, tmp_path: Path) -> None:
        file = site(tmp_path, "ssh: {hosts: [n1, n2]}")
        assert run(nodes=None, site=file, hosts=("a",)).hosts == ("a",)


class TestExcluded:
    """No back end ignores a node that the user left out, or an option that only Slurm has."""

    def test_hosts_over_ssh_are_left_out(self) -> None:
        found = run(nodes=None, hosts=("n1", "n2", "n3"), slurm=Slurm(exclude=("n[1-2]",)))
        assert found.hosts == ("n3",)

    def test_nodes_of_a_cluster_are_left_out(self) -> None:
        found = run(backend="kubernetes", image=IMAGE, slurm=Slurm(exclude=("n[2-3]",)))
        assert found.site.kubernetes.exclude_nodes == ("n2", "n3")

    def test_slurm_reads_its_own_notation(self) -> None:
        found = run(backend="slurm", slurm=Slurm(exclude=("n7", "n[7-8]")))
        assert found.site.slurm.exclude == ("n7", "n[7-8]")

    @pytest.mark.parametrize("excluded", ["n9", "n1,n2"])
    def test_what_leaves_no_plan_is_refused(self, excluded: str) -> None:
        found = refusal(nodes=None, hosts=("n1", "n2"), slurm=Slurm(exclude=(excluded,)))
        assert "--exclude" in found.message

    @pytest.mark.parametrize("backend", ["local", "ssh", "kubernetes"])
    @pytest.mark.parametrize("option", sorted({item.name for item in fields(Slurm)} - {"exclude"}))
    def test_an_option_of_slurm_is_refused_elsewhere(self, backend: str, option: str) -> None:
        given: dict[str, Any] = {option: "1"}
        found = refusal(nodes=1, backend=backend, image=IMAGE, slurm=Slurm(**given))
        assert found.code is Code.OPTION_BACKEND
        assert option.replace("_args", "-arg") in found.message

    def test_this_machine_cannot_be_left_out(self) -> None:
        found = refusal(nodes=1, backend="local", slurm=Slurm(exclude=("n1",)))
        assert found.code is Code.OPTION_BACKEND


class TestNames:
    @pytest.mark.parametrize(
        ("option", "asked", "meant", "code"),
        [
            ("machine", "a4-highgpu-8", FULL, Code.MACHINE_UNKNOWN),
            ("machine", "CPU", "cpu", Code.MACHINE_UNKNOWN),
            ("suite", "standart", "standard", Code.SUITE_UNKNOWN),
            ("backend", "shs", "ssh", Code.OPTION_BACKEND),
        ],
    )
    def test_an_unknown_name_is_refused_with_the_nearest(
        self, option: str, asked: str, meant: str, code: Code
    ) -> None:
        error = refusal(**{option: asked})
        assert error.code == code
        assert meant in error.hint

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        error = refusal(machine=f"{tmp_path}/m.yaml")
        assert error.code == Code.YAML_UNREADABLE
        assert f"{tmp_path}/m.yaml" in error.message


class TestGpus:
    def test_a_part_of_a_node_has_only_bounds_of_single_gpus_and_nics(self) -> None:
        assert {one.check for one in plan(FULL).references} > {"gemm", "memory"}
        assert {one.check for one in plan(FULL, gpus_per_node=4).references} == {
            "burn",
            "gemm",
            "memory",
            "nic-loop",
        }


class TestSet:
    @pytest.mark.parametrize(
        ("text", "code", "hint"),
        [
            ("allreduce.max=1G", Code.PARAM_CHECK, "all-reduce"),
            ("all-reduce.mxa=1G", Code.PARAM_UNKNOWN, "max"),
            ("all-reduce.max=8X", Code.PARAM_INVALID, ""),
            ("all-reduce.max=[1", Code.YAML_SYNTAX, ""),
            ("all-reduce.factor=1", Code.PARAM_INVALID, ""),
            ("all-reduce.iters=many", Code.PARAM_INVALID, ""),
            ("all-reduce.max", Code.PARAM_SYNTAX, "CHECK.PARAM=VALUE"),
            ("max=1G", Code.PARAM_SYNTAX, "CHECK.PARAM=VALUE"),
            ("", Code.PARAM_SYNTAX, "CHECK.PARAM=VALUE"),
            ("script.seconds=1", Code.PARAM_CHECK, "all-reduce"),
        ],
    )
    def test_invalid_settings_of_parameters_are_refused(
        self, text: str, code: Code, hint: str
    ) -> None:
        error = refusal(settings=(text,))
        assert error.code == code
        assert hint in error.hint

    def test_changes_one_check_on_all_its_groups(self) -> None:
        found = plan(settings=("all-reduce.max=64K",))
        for one in (s for s in found.steps if s.checks == ("all-reduce",)):
            assert one.params["max"] == "64K"
        assert step(found, "alltoall").params["max"] == "1M"

    def test_checks_that_differ_no_longer_share_a_launch(self) -> None:
        together = step(plan(), "all-reduce").checks
        assert len(together) == 5
        assert step(plan(settings=("all-reduce.max=64K",)), "alltoall").checks == together[1:]

    @given(st.text(max_size=30))
    def test_any_text_is_a_setting_or_bad_input(self, text: str) -> None:
        try:
            plan(settings=(f"all-reduce.max={text}",))
        except BadInput as error:
            assert "\n" not in error.message  # noqa: PT017 - either outcome is right


class TestOrderOfParameters:
    """Later wins: the check's defaults, the machine, the suite, the site, --set."""

    def test_each_layer_beats_those_before(self, tmp_path: Path) -> None:
        bare = suite(tmp_path, "check: all-reduce")
        assert step(plan(suite=bare), "all-reduce").params["max"] == "1M", "the machine's"
        assert step(plan(suite=bare), "all-reduce").params["iters"] == 20, "the check's"
        own = suite(tmp_path, "{check: all-reduce, params: {max: 4M, iters: 7}}")
        assert step(plan(suite=own), "all-reduce").params["max"] == "4M"
        file = site(tmp_path, "parameters: {all-reduce: {max: 16M}}")
        found = step(plan(suite=own, site=file), "all-reduce").params
        assert (found["max"], found["iters"]) == ("16M", 7)
        chosen = plan(suite=own, site=file, settings=("all-reduce.max=64M",))
        assert step(chosen, "all-reduce").params["max"] == "64M"

    def test_the_wrong_one_is_named_by_file_and_line(self, tmp_path: Path) -> None:
        file = site(tmp_path, "parameters:\n  all-reduce:\n    mxa: 4M\n")
        error = refusal(site=file)
        assert error.code == Code.KEY_UNKNOWN
        assert error.message.startswith(f"{tmp_path}/site.yaml:3: parameters.all-reduce.mxa")


class TestNccl:
    @pytest.mark.parametrize(
        ("extra", "env", "option", "expected"),
        [
            ("{}", "{}", (), ("52", "profile written of a4-highgpu-8g")),
            ("{NCCL_IB_TC: 1}", "{}", (), ("1", "site file, kubernetes.extraEnv")),
            ("{NCCL_IB_TC: 1}", "{NCCL_IB_TC: 2}", (), ("2", "site file, nccl.env")),
            ("{NCCL_IB_TC: 1}", "{NCCL_IB_TC: 2}", ("NCCL_IB_TC=3",), ("3", "--nccl")),
        ],
    )
    def test_the_later_of_profile_extra_env_site_and_option_wins(
        self,
        extra: str,
        env: str,
        option: tuple[str, ...],
        expected: tuple[str, str],
        tmp_path: Path,
    ) -> None:
        nccl = f"nccl: {{profile: written, env: {env}}}"
        file = site(tmp_path, f"{nccl}\nkubernetes: {{image: a, extraEnv: {extra}}}")
        found = run(FULL, backend="kubernetes", site=file, nccl=option)
        setting = found.env["NCCL_IB_TC"]
        assert (setting.value, setting.origin) == expected
        assert "NCCL_IB_TC" not in found.pod.env

    def test_a_variable_that_the_plugins_script_may_read_stays_in_the_pod(
        self, tmp_path: Path
    ) -> None:
        file = site(tmp_path, "kubernetes: {image: a, extraEnv: {NCCL_LIB_DIR: /mine, OTHER: 1}}")
        found = run("a3-megagpu-8g", backend="kubernetes", site=file)
        assert found.pod.env["NCCL_LIB_DIR"] == found.env["NCCL_LIB_DIR"].value == "/mine"
        assert (found.pod.env["OTHER"], "OTHER" in found.env) == (1, False)

    def test_a_value_may_hold_an_equals_sign(self) -> None:
        assert run(nccl=("NCCL_X=a=b",)).env["NCCL_X"].value == "a=b"

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            *((text, Code.OPTION_NCCL) for text in ("bad", "")),
            *((text, Code.ENV_INVALID) for text in ("=1", "A B=1", "1A=1", "A;B=1")),
            *(
                (text, Code.SETTING_SECRET)
                for text in (
                    "HF_TOKEN=x",
                    "MYSQL_PWD=x",
                    "GITHUB_PAT=x",
                    "KRB5_CREDS=x",
                    "SLACK_WEBHOOK_URL=x",
                    "VAULT_AUTH=x",
                    "HTTPS_PROXY=http://u:pw@proxy:3128",
                    f"NCCL_X=ghp_{'a' * 36}",
                )
            ),
        ],
    )
    def test_invalid_nccl_settings_are_refused(self, text: str, code: Code) -> None:
        assert refusal(nccl=(text,)).code == code


class TestExpect:
    def test_has_priority_over_shipped_references(self) -> None:
        first = plan(FULL, expect=("all-reduce@8G>=380",)).references[0]
        assert (first.kind, first.source, first.lower) == ("expectation", "--expect", 380.0)

    def test_the_option_replaces_the_same_expectation_of_the_site(self, tmp_path: Path) -> None:
        file = site(tmp_path, "expect: [all-reduce@8G>=380, alltoall@8G>=40]")
        found = plan(FULL, site=file, expect=("all-reduce@8G>=300",)).references
        own = [(r.check, r.lower) for r in found if r.kind == "expectation"]
        assert own == [("all-reduce", 300.0), ("alltoall", 40.0)]
        assert {r.source for r in found if r.check == "alltoall"} >= {f"{tmp_path}/site.yaml:1"}

    def test_the_option_replaces_only_one_side_of_the_site_expectations(
        self, tmp_path: Path
    ) -> None:
        file = site(tmp_path, "expect: ['connectivity>=2', 'connectivity<=50']")
        found = plan(FULL, site=file, expect=("connectivity<=40",)).references
        own = [(r.lower, r.upper) for r in found if r.kind == "expectation"]
        assert own == [(None, 40.0), (2.0, None)]

    def test_an_invalid_expectation_is_refused(self) -> None:
        assert refusal(expect=("all-reduce>=3",)).code == Code.EXPECT_SIZE

    def test_an_expectation_for_a_check_outside_the_suite_is_refused(self) -> None:
        refused = refusal(expect=("latency@8<=20",))
        assert refused.code == Code.EXPECT_CHECK
        assert "all-reduce" in refused.hint

    def test_of_the_site_file_serves_the_suites_that_run_it(self, tmp_path: Path) -> None:
        file = site(tmp_path, "expect: ['latency@8<=20', 'all-reduce@8G>=380']")
        found = run(FULL, site=file, suite="quick")
        own = {r.check for r in found.plan.references if r.kind == "expectation"}
        assert own == {"all-reduce"}
        note = f"{tmp_path}/site.yaml:1: latency is expected, but suite quick does not run it"
        assert note in found.notes
        fuller = run(FULL, site=file, suite="standard")
        own = {r.check for r in fuller.plan.references if r.kind == "expectation"}
        assert own == {"all-reduce", "latency"}
        assert not any("latency" in note for note in fuller.notes)


class TestFaults:
    def test_without_a_rank_it_is_the_first(self) -> None:
        hosts = ("h1", "h2")
        found = plan(nodes=None, hosts=hosts, inject=("wrong@h2", "hang@h1:1"))
        assert [one.text for one in found.injected] == ["wrong@h2:0", "hang@h1:1"]

    @pytest.mark.parametrize(
        "text",
        [
            *("wrong", "fast@h1", "wrong@", "wrong@h1:x", "wrong@h1,h2", "", "wrong@*", "hang@#1"),
            *("sockets@h1", "full-disk@*", "full-disk@#1", "slow-link@h1:0", "unreachable@*"),
        ],
    )
    def test_invalid_faults_are_refused(self, text: str) -> None:
        assert refusal(inject=(text,)).code == Code.FAULT_SYNTAX

    def test_faults_of_hosts_have_no_rank(self) -> None:
        injected = ("full-disk@h1", "unreachable@#1", "sockets@*")
        found = plan(nodes=None, hosts=("h1", "h2"), inject=injected).injected
        assert tuple(one.text for one in found) == injected
        assert {one.rank for one in found} == {None}

    def test_sockets_turns_off_the_network_for_all(self) -> None:
        found = run(machine="a4-highgpu-8g", nodes=2, inject=("sockets@*",))
        values = [found.env[name].value for name in ("NCCL_NET", "NCCL_IB_DISABLE")]
        assert values == ["Socket", "1"]

    @pytest.mark.parametrize("text", ["wrong@h3", "wrong@h2:2"])
    def test_a_host_or_rank_outside_the_run_is_refused(self, text: str) -> None:
        error = refusal(nodes=None, hosts=("h1", "h2"), inject=(text,))
        assert error.code == Code.FAULT_HOST


class TestNotesOfMachines:
    def notes(self, machine: str, folder: Path, more: str = "", **options: Any) -> str:
        text = f"kubernetes: {{image: i, {more}}}\nresults: {{location: 'gs://b'}}\n"
        options = {"site": site(folder, text), "backend": "kubernetes", **options}
        return "\n".join(run(machine, **options).notes)

    @pytest.mark.parametrize("nodes", [2, 4, 18, 19, 24, 36, 64, 324])
    def test_the_advised_topology_keeps_pods_in_racks_and_is_printed(
        self, tmp_path: Path, nodes: int
    ) -> None:
        note = self.notes("a4x-highgpu-4g", tmp_path, nodes=nodes)
        assert "several NVLink domains" in note
        advised = re.search(r"topology: \{(.*?)\} keeps (\d+) pods", note)
        assert (advised is None) == (nodes == 19)
        if advised:
            size = int(advised[2])
            assert nodes % size == 0
            assert size <= 18
            kept = f"queue: q, topology: {{{advised[1].replace('LABEL', 'my/rack')}}}"
            placement = self.notes("a4x-highgpu-4g", tmp_path, kept, nodes=nodes)
            assert re.fullmatch(r"placement by queue q: .* of one my/rack", placement)
            whole, parts = f"all {nodes} pods ", f" {nodes // size} slices of {size} pods, "
            assert (whole if size == nodes else parts) in placement

    def test_only_machines_whose_nvlink_spans_nodes_have_advice(self, tmp_path: Path) -> None:
        assert self.notes("a4x-highgpu-4g", tmp_path, nodes=1) == ""
        assert self.notes("a4-highgpu-8g", tmp_path) == ""
        wish = "topology: {preferred: my/block}"
        note = self.notes("a4-highgpu-8g", tmp_path, wish, nodes=4)
        assert re.fullmatch("placement by affinity: all 4 pods .* my/block, if .*", note)

    def test_networks_for_some_of_the_nics_are_named(self, tmp_path: Path) -> None:
        networks = "networks: [{interface: eth0, network: default}, {interface: eth1, network: a}]"
        note = self.notes("a3-megagpu-8g", tmp_path, networks, nodes=2)
        assert "1 of the 8 NICs of a3-megagpu-8g" in note
        assert self.notes("a3-megagpu-8g", tmp_path, nodes=2) == ""

    def test_pods_need_certain_contents_of_the_image(self, tmp_path: Path) -> None:
        note = self.notes("a4x-maxgpu-4g-metal", tmp_path, nodes=1)
        assert note.startswith("the image must contain")
        assert run("a4x-maxgpu-4g-metal", nodes=1).notes == ()


class TestOrder:
    def test_connectivity_is_added_before_measurements_with_a_note(self, tmp_path: Path) -> None:
        file = suite(tmp_path, "check: all-reduce", "check: inventory")
        found = run(suite=file)
        assert [s.checks for s in found.plan.steps] == [
            ("inventory",),
            ("connectivity",),
            ("all-reduce",),
        ]
        assert [note for note in found.notes if "connectivity was added" in note]

    def test_connectivity_of_the_suite_is_moved_first_without_a_note(self, tmp_path: Path) -> None:
        file = suite(tmp_path, "check: train", "{check: connectivity, params: {pings: 9}}")
        found = run(suite=file)
        assert [s.checks[0] for s in found.plan.steps] == ["connectivity", "train"]
        assert found.plan.steps[0].params["pings"] == 9
        assert found.notes == ()

    def test_steps_are_numbered_as_they_run(self) -> None:
        found = plan(suite="standard")
        assert [s.id for s in found.steps] == sorted(s.id for s in found.steps)
        assert len({s.id for s in found.steps}) == len(found.steps)
        assert all(s.script == f"steps/{s.id}.sh" for s in found.steps)

    def test_groups_of_more_nodes_are_skipped_with_the_reason(self) -> None:
        found = plan(suite="standard", nodes=1)
        assert not [s for s in found.steps if s.groups == "pairs"]
        assert ("all-gather", "pairs: one node") in {(s.check, s.reason) for s in found.skipped}

    def test_groups_a_check_does_not_work_on_are_named_by_line(self, tmp_path: Path) -> None:
        file = suite(tmp_path, "{check: train, groups: rails}")
        error = refusal(suite=file)
        assert error.code == Code.SUITE_CONTRADICTION
        assert error.message.startswith(f"{tmp_path}/own.yaml:4: checks[0].groups")

    def test_groups_of_hosts_use_an_algorithm_that_loads_every_nic(self) -> None:
        """NVLS hides a slow NIC in an all-reduce over two nodes of Hopper."""
        one_host_or_all = ("each", "all")
        for name in ("quick", "standard", "soak"):
            steps = plan("h100-8", suite=name, nodes=64).steps
            found = {c for s in steps if s.groups not in one_host_or_all for c in s.checks}
            assert found - {"latency"} == {"all-gather"}, name

    def test_a_line_of_a_suite_can_have_its_own_nccl_profile(self, tmp_path: Path) -> None:
        file = suite(tmp_path, "{check: all-gather, profile: rdma}", "check: all-gather")
        found = run("gb200-4x", suite=file, nodes=2)
        rdma, default = (s for s in found.plan.steps if "all-gather" in s.checks)
        assert (rdma.profile, default.profile) == ("rdma", "")
        assert found.profiles["rdma"].env == {"NCCL_MNNVL_ENABLE": "0"}
        assert {b.profile for b in found.plan.references if b.check == "all-gather"} == {"", "rdma"}
        assert not [b for b in found.plan.references if b.profile == "rdma" and b.one_domain]
        assert found.plan.machine_in(rdma).nics == 4

    def test_a_line_that_does_not_apply_is_skipped(self, tmp_path: Path) -> None:
        file = suite(
            tmp_path,
            "{check: all-gather, profile: rdma}",
            "{check: all-gather, maxNodes: 1}",
            "check: train",
        )
        found = plan("h100-8", suite=file, nodes=2)
        assert [s.check for s in found.skipped] == ["all-gather", "all-gather"]
        assert all(s.optional for s in found.skipped)


class TestSizes:
    """`sizes` leaves the small messages out, because the largest decides."""

    @pytest.mark.parametrize(
        ("largest", "sizes"),
        [("8G", ["8M", "256M", "8G"]), ("1M", ["1K", "32K", "1M"]), ("64K", ["2K", "64K"])],
    )
    def test_are_the_largest_of_the_series(self, largest: str, sizes: list[str]) -> None:
        params = read(CollectiveParams, {"sizes": 3, "factor": 32, "max": largest})
        planned = message_sizes(params.min, params.max, params.factor)
        assert [format_size(size) for size in planned] == sizes

    def test_a_min_of_the_user_replaces_them(self) -> None:
        found = plan("h100-8", suite="standard", nodes=2, settings=("all-gather.min=256K",))
        assert {s.params["min"] for s in found.steps if "all-gather" in s.checks} == {"256K"}

    @pytest.mark.parametrize("source", ["suite", "site", "options"])
    def test_a_max_that_would_not_be_measured_is_refused(self, source: str, tmp_path: Path) -> None:
        params = "{min: 2K, max: 256K, factor: 4}"
        sources: dict[str, dict[str, Any]] = {
            "suite": {"suite": suite(tmp_path, f"{{check: all-reduce, params: {params}}}")},
            "site": {"site": site(tmp_path, f"parameters: {{all-reduce: {params}}}")},
            "options": {
                "settings": tuple(f"all-reduce.{p}" for p in ("min=2K", "max=256K", "factor=4"))
            },
        }
        error = refusal(**sources[source])
        assert error.code == Code.PARAM_INVALID
        assert "all-reduce" in error.message
        assert "max 128K" in error.message

    @pytest.mark.parametrize("name", config.names("suites"))
    def test_the_largest_size_of_each_suite_is_measured(self, name: str) -> None:
        for machine in ("cpu", "a4-highgpu-8g", "a4x-highgpu-4g"):
            for found in plan(machine, suite=name, nodes=2).steps:
                if sizes := planned_sizes(found):
                    assert format_size(sizes[-1]) == found.params["max"]

    def test_an_expectation_for_another_size_is_measured(self) -> None:
        found = plan("h100-8", suite="standard", nodes=2, expect=("all-gather@1G>=9",))
        steps = [s for s in found.steps if "all-gather" in s.checks]
        assert all(1 << 30 in planned_sizes(s) for s in steps)


@pytest.mark.parametrize(
    "machine", ["a3-ultragpu-8g", "a4-highgpu-8g", "b200-8", "gb200-4x", "h100-8"]
)
def test_standard_fits_into_twelve_minutes_on_64_nodes(machine: str) -> None:
    found = planned(run(machine, suite="standard", nodes=64))
    checks = {check for step in found.steps for check in step.checks}
    assert checks >= {"health", "gemm", "memory", "nic-loop", "burn"}
    assert found.seconds <= 12 * 60
    assert found.seconds_at_most <= 21 * 60


def names(found: Plan) -> list[str]:
    """Return the checks of a plan, those of a step together."""
    return [" ".join(step.checks) for step in found.steps]


class TestSelection:
    """`--only` and `--skip`."""

    def test_only_names_checks_and_the_gate_stays(self) -> None:
        found = plan(nodes=1, selection=Selection(only=("gemm", "memory")))
        assert names(found) == ["connectivity", "gemm memory"]
        left_out = {s.check for s in found.skipped}
        assert left_out == {c for s in plan(nodes=1).steps for c in s.checks} - {
            "connectivity",
            "gemm",
            "memory",
        }
        assert all(s.cause is Cause.DESELECTED and s.optional for s in found.skipped)

    def test_a_check_leaves_the_launch_that_it_shares(self) -> None:
        whole, found = plan(), plan(selection=Selection(skip=("memory",)))
        assert names(found)[-1] == "gemm"
        assert [s.id for s in found.steps] == [s.id for s in whole.steps]
        assert found.steps[-1].estimate < whole.steps[-1].estimate
        assert found.steps[-1].timeout <= whole.steps[-1].timeout

    def test_a_step_is_named_with_or_without_its_number(self) -> None:
        whole = plan(suite="standard")
        pairs = step(whole, "all-gather", "pairs")
        for name in (pairs.id, pairs.id.partition("-")[2]):
            found = plan(suite="standard", selection=Selection(skip=(name,)))
            assert {s.id for s in whole.steps} - {s.id for s in found.steps} == {pairs.id}
            (left_out,) = (s for s in found.skipped if s.cause is Cause.DESELECTED)
            assert (left_out.check, left_out.step) == ("all-gather", pairs.id)

    @pytest.mark.parametrize(
        ("only", "skip", "code"),
        [
            (("gem",), (), Code.OPTION_CHECK),
            ((), ("010-gemm",), Code.OPTION_CHECK),
            ((), ("connectivity",), Code.OPTION_CHECK),
            (("gemm",), ("gemm",), Code.OPTION_CHECK_NONE),
        ],
    )
    def test_a_selection_that_cannot_run_is_refused(
        self, only: tuple[str, ...], skip: tuple[str, ...], code: Code
    ) -> None:
        assert refusal(selection=Selection(only=only, skip=skip)).code == code

    def test_an_expectation_of_a_check_that_is_left_out_is_refused(self) -> None:
        error = refusal(selection=Selection(skip=("gemm",)), expect=("gemm.fp32>=1",))
        assert error.code == Code.EXPECT_CHECK

    @pytest.mark.parametrize(
        ("selection", "option"),
        [(Selection(skip=("gemm",)), "--skip"), (Selection(only=("all-reduce",)), "--only")],
    )
    def test_a_bound_of_the_site_for_a_check_that_is_left_out_is_noted(
        self, selection: Selection, option: str, tmp_path: Path
    ) -> None:
        file = site(tmp_path, "expect: ['gemm.fp32>=1', 'all-reduce@8G>=380']")
        notes = run(FULL, site=file, selection=selection).notes
        note = f"{tmp_path}/site.yaml:1: gemm is expected, but {option} leaves it out"
        assert [text for text in notes if "is expected" in text] == [note]

    @settings(max_examples=20)
    @given(st.sets(st.sampled_from(sorted({c for s in plan().steps for c in s.checks}))))
    def test_every_check_runs_or_is_named_as_left_out(self, skip: set[str]) -> None:
        whole = {c for s in plan().steps for c in s.checks}
        try:
            found = plan(selection=Selection(skip=tuple(skip)))
        except BadInput:
            return
        running = {c for s in found.steps for c in s.checks}
        left_out = {s.check for s in found.skipped if s.cause is Cause.DESELECTED}
        assert (running | left_out, running & left_out) == (whole, set())


class TestBudget:
    def test_the_budget_skips_checks(self) -> None:
        whole = plan()
        budget = sum(s.estimate for s in whole.steps) - 1
        found = plan(budget=budget)
        assert sum(s.estimate for s in found.steps) <= budget
        assert found.deadline_seconds <= budget
        dropped = [s for s in found.skipped if s.cause is Cause.OVER_BUDGET]
        assert dropped
        assert not [s for s in dropped if s.optional]
        kept = {c for s in found.steps for c in s.checks}
        assert kept | {s.check for s in dropped} >= {c for s in whole.steps for c in s.checks}

    def test_a_budget_below_every_step_is_refused(self) -> None:
        assert refusal(budget=0.5).code == Code.OPTION_BUDGET

    @given(st.floats(1, 200))
    def test_the_plan_never_exceeds_it(self, budget: float) -> None:
        try:
            found = plan(budget=budget)
        except BadInput:
            return
        assert sum(s.estimate for s in found.steps) <= budget


class TestScripts:
    def test_a_script_of_the_users_own_is_read_beside_its_suite(self, tmp_path: Path) -> None:
        (tmp_path / "mine.sh").write_text("#!/bin/sh\ntrue\n")
        found = run(suite=suite(tmp_path, "{check: script, script: mine.sh}"))
        (step_id,) = [s.id for s in found.plan.steps if s.checks == ("script",)]
        assert found.user_scripts == {step_id: "#!/bin/sh\ntrue\n"}

    @pytest.mark.parametrize("content", [None, b"true\n", b"\xff\xfe"])
    def test_one_that_cannot_run_is_named_by_line(
        self, tmp_path: Path, content: bytes | None
    ) -> None:
        if content is not None:
            (tmp_path / "mine.sh").write_bytes(content)
        error = refusal(suite=suite(tmp_path, "{check: script, script: mine.sh}"))
        assert error.code == Code.SUITE_SCRIPT
        assert error.message.startswith(f"{tmp_path}/own.yaml:4: checks[0].script")


class TestLimits:
    def test_option_beats_site_and_site_beats_suite(self, tmp_path: Path) -> None:
        file = site(tmp_path, "{deadline: 45m, startTimeout: 7m, keep: 2h}")
        assert plan().deadline_seconds == 1200, "the suite's"
        found = plan(site=file)
        assert (found.deadline_seconds, found.start_seconds, found.keep_seconds) == (
            2700,
            420,
            7200,
        )
        found = plan(site=file, deadline=600.0, start_timeout=5.0, keep=1.0)
        assert (found.deadline_seconds, found.start_seconds, found.keep_seconds) == (600, 5, 1)

    def test_the_suites_deadline_grows_with_the_nodes(self) -> None:
        options = {"suite": "standard", "machine": "a4-highgpu-8g", "site": SITE}
        small, large = (plan(backend="kubernetes", nodes=n, **options) for n in (64, 2048))
        assert small.deadline_seconds == 3600, "the suite's"
        assert large.deadline_seconds >= 1.5 * sum(step.estimate for step in large.steps)

    def test_the_users_deadline_must_fit_the_estimate(self) -> None:
        estimate = sum(step.estimate for step in plan().steps)
        assert refusal(deadline=estimate - 1).code == Code.OPTION_DEADLINE
        assert plan(deadline=estimate + 1).deadline_seconds == estimate + 1
        # The steps that are left then fit into both.
        assert plan(deadline=estimate - 1, budget=estimate - 1).deadline_seconds == estimate - 1

    def test_hosts_that_should_be_up_are_not_waited_for_as_long_as_a_cluster(self) -> None:
        ssh, cluster = plan(backend="ssh"), plan(backend="kubernetes", site=SITE)
        assert ssh.start_seconds < cluster.start_seconds


def test_every_site_key_that_resolve_reads_exists(tmp_path: Path) -> None:
    """The type of the site has every key that `resolve` reads, so no key is read and then lost."""
    file = site(tmp_path, "{requireAllNodes: true, interface: eth7, gpusPerNode: 4}")
    found = plan(FULL, site=file)
    assert (found.require_all_nodes, found.machine.interface, found.gpus_used) == (True, "eth7", 4)
    assert load_site(file).value != Site()


def test_the_same_options_resolve_to_the_same_run() -> None:
    assert run(FULL, suite="standard", nodes=64) == run(FULL, suite="standard", nodes=64)
    assert dataclasses.asdict(plan(seed=2)) != dataclasses.asdict(plan())


# -- rounds of pairs ---------------------------------------------------------------------------


def rounds(found: Plan) -> list[int]:
    return [step.rounds for step in found.steps if step.groups == "pairs"]


def test_the_number_of_rounds_depends_on_nodes_and_noise() -> None:
    assert rounds(plan(FULL, nodes=8)) == [4]
    assert rounds(plan(FULL, nodes=1000, site=SITE, backend="kubernetes")) == [5]
    assert rounds(plan(nodes=3)) == [2]


@pytest.mark.parametrize(("nodes", "minutes"), [(64, 5), (256, 7), (1000, 11), (4000, 16.6)])
def test_the_quick_suite_stays_short_on_many_nodes(nodes: int, minutes: float) -> None:
    found = plan("a4-highgpu-8g", nodes=nodes, site=SITE, backend="kubernetes")
    assert sum(step.estimate for step in found.steps) <= 60 * minutes
    of_all = {check for step in found.steps if step.groups == "all" for check in step.checks}
    of_blocks = {check for step in found.steps if step.groups == "blocks" for check in step.checks}
    assert {"all-reduce", "all-gather"} <= of_all
    other = {"connectivity", "reduce-scatter", "alltoall", "sendrecv", "train"}
    assert other <= (of_blocks if nodes > 256 else of_all)


@pytest.mark.parametrize(("nodes", "of_bandwidth"), [(2, 1), (4, 3), (5, 5), (8, 7), (64, 8)])
def test_standard_measures_eight_rounds_or_as_many_as_the_nodes_have(
    nodes: int, of_bandwidth: int
) -> None:
    of_latency = min(2, of_bandwidth)
    assert rounds(plan(FULL, nodes=nodes, suite="standard")) == [of_latency, of_bandwidth]


def test_rounds_of_the_command_line_win_over_those_of_the_suite(tmp_path: Path) -> None:
    own = suite(tmp_path, "{check: all-reduce, groups: pairs, rounds: 7}")
    assert rounds(plan(nodes=16, suite=own)) == [7]
    assert rounds(plan(nodes=16, suite=own, rounds="3")) == [3]
    assert rounds(plan(FULL, nodes=16, suite=own, rounds="auto")) == [4]


@pytest.mark.parametrize("text", ["0", "65", "many", "2.5"])
def test_invalid_rounds_are_refused(text: str) -> None:
    assert refusal(nodes=4, rounds=text).code == Code.OPTION_ROUNDS
