"""Machines, suites and sites: every mistake in a file, and its error message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept import config
from accept.config.collectors import (
    SiteCollector,
    check_collectors,
    known_collectors,
    planned_collectors,
)
from accept.config.expectations import parse_duration, parse_expectation
from accept.config.floors import bounds
from accept.config.machine import check_gpus_per_node
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.model import BoundKind, Reference
from accept.core.serde import Invalid, dump, read, schema

MACHINE = """\
name: mine
description: A machine of my own.
gpus:
  count: 8
nccl:
  profiles:
    default: {}
references:
  - check: all-reduce
    kind: floor
    value: 400
    share: 0.6
    size: 8G
    source: https://example.org/figures
"""

SUITE = """\
name: mine
description: A suite of my own.
checks:
  - check: all-reduce
    groups: pairs
    rounds: 2
    timeout: 5m
    params: {max: 8G}
"""


def refusal(kind: str, file: Path, text: str) -> BadInput:
    file.write_text(text)
    loaders: dict[str, Any] = {
        "machine": config.load_machine,
        "suite": config.load_suite,
        "site": config.load_site,
    }
    with pytest.raises(BadInput) as caught:
        loaders[kind](str(file))
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


def check_mistake(error: BadInput, where: str, key: str, code: Code, hint: str) -> None:
    """Check that an error has this place, key and code, and a hint in its text."""
    assert error.message.startswith(f"{where}: {key}: " if key else f"{where}: ")
    assert error.code is code
    assert hint in str(error)


class TestMachine:
    def test_a_file_of_the_user(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(MACHINE)
        machine = config.load_machine(str(file)).value
        assert machine.planned().gpus == 8
        assert machine.planned().ranks is None
        assert bounds(machine) == (
            Reference(
                check="all-reduce",
                metric="busbw",
                unit="GB/s",
                kind=BoundKind.FLOOR,
                source="https://example.org/figures",
                value=400.0,
                lower=240.0,
                size=8 << 30,
            ),
        )

    @pytest.mark.parametrize(
        ("old", "new", "line", "key", "code", "hint"),
        [
            ("  count: 8", "  cuont: 8", 4, "gpus.cuont", Code.KEY_UNKNOWN, "mean count?"),
            ("  count: 8", "  count: eight", 4, "gpus.count", Code.VALUE_INVALID, "detect"),
            ("  count: 8", "  count: -1", 4, "gpus.count", Code.VALUE_INVALID, "at least 0"),
            ("  count: 8", "  count: 8.5", 4, "gpus.count", Code.VALUE_INVALID, ""),
            (
                "  count: 8",
                "  count: 0",
                1,
                "ranksPerNode",
                Code.MACHINE_CONTRADICTION,
                "such as 2",
            ),
            ("name: mine", "name: My Machine", 1, "name", Code.VALUE_INVALID, ""),
            ("    default: {}", "    fast: {}", 6, "nccl.profiles", Code.NCCL_PROFILE_UNKNOWN, ""),
            (
                "    default: {}",
                "    default: {env: {NCCL_ALGO: Ring}}",
                7,
                "nccl.profiles.default.env",
                Code.MACHINE_SOURCE,
                "add `source:`",
            ),
            (
                "    default: {}",
                "    default: {source: 'https://a.b', env: {'NCCL ALGO': Ring}}",
                7,
                "nccl.profiles.default.env.NCCL ALGO",
                Code.ENV_INVALID,
                "",
            ),
            (
                "    default: {}",
                "    default: {source: 'https://a.b', env: {NCCL_NVLS_ENABLE: true}}",
                7,
                "nccl.profiles.default.env.NCCL_NVLS_ENABLE",
                Code.VALUE_INVALID,
                "quotes",
            ),
            ("    size: 8G", "    size: 8X", 13, "references[0].size", Code.VALUE_INVALID, "8G"),
            (
                "    size: 8G",
                "    size: 0",
                13,
                "references[0].size",
                Code.VALUE_INVALID,
                "at least 1",
            ),
            (
                "    size: 8G",
                "    minNodes: 0",
                13,
                "references[0].minNodes",
                Code.VALUE_INVALID,
                "1",
            ),
            (
                "    size: 8G",
                "    minNodes: 4\n    maxNodes: 2",
                14,
                "references[0].maxNodes",
                Code.MACHINE_CONTRADICTION,
                "",
            ),
            (
                "    kind: floor",
                "    kind: floor\n    metric: busBW",
                11,
                "references[0].metric",
                Code.METRIC_UNKNOWN,
                "mean busbw?",
            ),
            (
                "    kind: floor",
                "    kind: floor\n    unit: MB/s",
                11,
                "references[0].unit",
                Code.METRIC_UNIT,
                "",
            ),
            ("gpus:", "noise: 0\ngpus:", 3, "noise", Code.VALUE_INVALID, "at least"),
            (
                "gpus:",
                "parameters: {all-reduce: {max: -5}}\ngpus:",
                3,
                "parameters.all-reduce.max",
                Code.VALUE_INVALID,
                "",
            ),
            ("    share: 0.6", "", 9, "references[0]", Code.MACHINE_NO_BOUND, "add `share`"),
            (
                "    share: 0.6",
                "    share: 60",
                12,
                "references[0].share",
                Code.VALUE_INVALID,
                "most 1",
            ),
            ("    value: 400", "", 12, "references[0].share", Code.MACHINE_CONTRADICTION, ""),
            (
                "    kind: floor",
                "    kind: flor",
                10,
                "references[0].kind",
                Code.VALUE_INVALID,
                "mean floor?",
            ),
            (
                "    kind: floor",
                "    kind: expectation",
                10,
                "references[0].kind",
                Code.MACHINE_CONTRADICTION,
                "expect",
            ),
            (
                "  - check: all-reduce",
                "  - check: allreduce",
                9,
                "references[0].check",
                Code.CHECK_UNKNOWN,
                "mean all-reduce?",
            ),
            (
                "https://example.org/figures",
                "hearsay",
                14,
                "references[0].source",
                Code.VALUE_INVALID,
                "",
            ),
        ],
    )
    def test_mistakes(
        self, tmp_path: Path, old: str, new: str, line: int, key: str, code: Code, hint: str
    ) -> None:
        file = tmp_path / "mine.yaml"
        error = refusal("machine", file, MACHINE.replace(old, new))
        check_mistake(error, f"{file}:{line}", key, code, hint)

    def test_parameters_of_a_check_that_does_not_exist(self, tmp_path: Path) -> None:
        text = MACHINE + "parameters:\n  allgather: {max: 8G}\n"
        file = tmp_path / "m.yaml"
        error = refusal("machine", file, text)
        hint = "did you mean all-gather?"
        check_mistake(error, f"{file}:16", "parameters.allgather", Code.CHECK_UNKNOWN, hint)

    def test_seven_gpus_of_eight(self, tmp_path: Path) -> None:
        (tmp_path / "m.yaml").write_text(MACHINE)
        machine = config.load_machine(str(tmp_path / "m.yaml")).value
        for wanted, hint in ((7, "possible: 1, 2, 4, 8"), (16, "possible: 1, 2, 4, 8"), (0, "")):
            with pytest.raises(Invalid) as error:
                check_gpus_per_node(machine, wanted)
            assert (error.value.code, error.value.hint) == (Code.GPUS_PER_NODE, hint)
        check_gpus_per_node(machine, 4)

    def test_figures_are_about_whole_nodes(self, tmp_path: Path) -> None:
        (tmp_path / "m.yaml").write_text(MACHINE)
        machine = config.load_machine(str(tmp_path / "m.yaml")).value
        assert bounds(machine, gpus_per_node=4) == ()
        assert bounds(machine, gpus_per_node=8) == bounds(machine)

    def test_gpus_per_node_needs_a_machine_with_gpus(self) -> None:
        with pytest.raises(Invalid) as error:
            check_gpus_per_node(config.load_machine("cpu").value, 1)
        assert error.value.code is Code.GPUS_PER_NODE


class TestSuite:
    def test_a_file_of_the_user(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(SUITE)
        loaded = config.load_suite(str(file))
        check = loaded.value.checks[0]
        assert check.timeout == 300.0
        assert check.params == {"max": "8G"}
        assert loaded.document.where(("checks", 0, "params", "max")) == f"{file}:8"

    @pytest.mark.parametrize(
        ("old", "new", "line", "key", "code", "hint"),
        [
            (
                "check: all-reduce",
                "check: all-redcue",
                4,
                "checks[0].check",
                Code.CHECK_UNKNOWN,
                "did you mean all-reduce?",
            ),
            (
                "groups: pairs",
                "groups: pair",
                5,
                "checks[0].groups",
                Code.VALUE_INVALID,
                "mean pairs?",
            ),
            ("rounds: 2", "rounds: 0", 6, "checks[0].rounds", Code.VALUE_INVALID, "at least 1"),
            ("groups: pairs", "groups: all", 6, "checks[0].rounds", Code.SUITE_CONTRADICTION, ""),
            (
                "timeout: 5m",
                "timeout: 5 minutes",
                7,
                "checks[0].timeout",
                Code.VALUE_INVALID,
                "15m",
            ),
            ("timeout: 5m", "timeout: 0", 7, "checks[0].timeout", Code.VALUE_INVALID, "at least"),
            ("timeout: 5m", "optional: yes", 7, "checks[0].optional", Code.VALUE_INVALID, "plain"),
            ("timeout: 5m", "script: x.sh", 7, "checks[0].script", Code.SUITE_CONTRADICTION, ""),
            ("timeout: 5m", "params_: 1", 7, "checks[0].params_", Code.KEY_UNKNOWN, "params?"),
            (
                "check: all-reduce",
                "check: script",
                4,
                "checks[0]",
                Code.SUITE_CONTRADICTION,
                "PATH",
            ),
            ("name: mine\n", "", 1, "", Code.KEY_MISSING, ""),
        ],
    )
    def test_mistakes(
        self, tmp_path: Path, old: str, new: str, line: int, key: str, code: Code, hint: str
    ) -> None:
        file = tmp_path / "mine.yaml"
        error = refusal("suite", file, SUITE.replace(old, new))
        check_mistake(error, f"{file}:{line}", key, code, hint)

    def test_a_suite_without_checks(self, tmp_path: Path) -> None:
        text = "name: a\ndescription: b\nchecks: []\n"
        file = tmp_path / "s.yaml"
        error = refusal("suite", file, text)
        check_mistake(error, f"{file}:3", "checks", Code.VALUE_INVALID, "at least 1")

    def test_a_script_of_the_user(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(
            "name: a\ndescription: b\nchecks:\n  - {check: script, script: my.sh, name: mine}\n"
        )
        check = config.load_suite(str(file)).value.checks[0]
        assert (check.script, check.name) == ("my.sh", "mine")


class TestSite:
    @pytest.mark.parametrize(
        ("text", "line", "key", "code", "hint"),
        [
            ("backend: pbs\n", 1, "backend", Code.VALUE_INVALID, "kubernetes"),
            ("ssh:\n  prot: 22\n", 2, "ssh.prot", Code.KEY_UNKNOWN, "did you mean port?"),
            ("ssh: {port: 70000}\n", 1, "ssh.port", Code.VALUE_INVALID, "at most 65535"),
            ("ssh: {hosts: a}\n", 1, "ssh.hosts", Code.VALUE_INVALID, ""),
            ("gpusPerNode: 0\n", 1, "gpusPerNode", Code.VALUE_INVALID, "at least 1"),
            ("requireAllNodes: 1\n", 1, "requireAllNodes", Code.VALUE_INVALID, ""),
            ("results: {location: my-bucket}\n", 1, "results.location", Code.VALUE_INVALID, ""),
            (
                'results: {location: "/a\\tb"}\n',
                1,
                "results.location",
                Code.VALUE_INVALID,
                "",
            ),
            *(
                (f"{text}\n", 1, key, Code.SETTING_SECRET, hint)
                for text, key, hint in (
                    ("nccl: {env: {HF_TOKEN: x}}", "nccl.env.HF_TOKEN", "extraEnvFrom"),
                    (
                        "kubernetes: {extraEnv: {AWS_SECRET_ACCESS_KEY: x}}",
                        "kubernetes.extraEnv.AWS_SECRET_ACCESS_KEY",
                        "extraEnvFrom",
                    ),
                    ("results: {location: 'az://me:pw@box/a'}", "results.location", "identity"),
                    ("results: {location: 'az://box/a?sig=x'}", "results.location", "identity"),
                )
            ),
            ('tools: {scratch: "/a\'b"}\n', 1, "tools.scratch", Code.VALUE_INVALID, "letters"),
            ("tools: {scratch: /a b}\n", 1, "tools.scratch", Code.VALUE_INVALID, "letters"),
            ("tools: {venv: venv}\n", 1, "tools.venv", Code.VALUE_INVALID, ""),
            ("keep: forever\n", 1, "keep", Code.VALUE_INVALID, "15m"),
            (
                "expect:\n  - all-reduce@8G>=380\n  - all-reduce@8X>=380\n",
                3,
                "expect[1]",
                Code.EXPECT_SYNTAX,
                "",
            ),
            (
                "expect: [all-redcue@8G>=380]\n",
                1,
                "expect[0]",
                Code.CHECK_UNKNOWN,
                "did you mean all-reduce?",
            ),
            (
                "parameters: {trian: {}}\n",
                1,
                "parameters.trian",
                Code.CHECK_UNKNOWN,
                "did you mean train?",
            ),
            ("nccl: {env: {A-B: 1}}\n", 1, "nccl.env.A-B", Code.ENV_INVALID, ""),
            (
                "kubernetes: {controller: pod}\n",
                1,
                "kubernetes.controller",
                Code.VALUE_INVALID,
                "jobset",
            ),
            (
                "kubernetes: {securityContext: {capabilities: {add: [CAP_SYS_ADMIN]}}}\n",
                1,
                "kubernetes.securityContext.capabilities.add",
                Code.KUBE_CAPABILITY,
                "write SYS_ADMIN",
            ),
            ("kubernetes: {namespace: My_NS}\n", 1, "kubernetes.namespace", Code.VALUE_INVALID, ""),
        ],
    )
    def test_mistakes(
        self, tmp_path: Path, text: str, line: int, key: str, code: Code, hint: str
    ) -> None:
        file = tmp_path / "site.yaml"
        check_mistake(refusal("site", file, text), f"{file}:{line}", key, code, hint)

    @pytest.mark.parametrize(
        "folder",
        [
            *("/", "//", "/etc", "/etc/ssh", "/data/../etc", "/var", "/run", "/run/docker.sock"),
            *("/var/run/docker.sock", "/proc/1/root", "/data/my.sock", "///run/./x"),
        ],
    )
    def test_mounts_that_control_a_host_are_refused(self, tmp_path: Path, folder: str) -> None:
        file = tmp_path / "site.yaml"
        volume = f"{{name: a, hostPath: {{path: '{folder}'}}}}"
        for key, text in (
            ("container.mounts[0]", f"container: {{mounts: ['{folder}:/in:ro']}}\n"),
            (
                "kubernetes.extraVolumes[0].hostPath.path",
                f"kubernetes: {{extraVolumes: [{volume}]}}\n",
            ),
        ):
            check_mistake(refusal("site", file, text), f"{file}:1", key, Code.SITE_MOUNT, "/data")

    @pytest.mark.parametrize("folder", ["/data", "/var/lib/x", "/runs", "/etcd", "/opt/a.sock.d"])
    def test_other_mounts_are_kept(self, tmp_path: Path, folder: str) -> None:
        file = tmp_path / "site.yaml"
        file.write_text(f"container: {{mounts: ['{folder}']}}\n")
        assert config.load_site(str(file)).value.container.mounts == (folder,)

    def test_a_capability_of_a_sidecar_has_no_prefix_cap(self, tmp_path: Path) -> None:
        context = "securityContext: {capabilities: {drop: [CAP_CHOWN]}}"
        text = f"kubernetes:\n  extraSidecars:\n    - {context}\n"
        file = tmp_path / "site.yaml"
        key = "kubernetes.extraSidecars[0].securityContext.capabilities.drop"
        error = refusal("site", file, text)
        check_mistake(error, f"{file}:3", key, Code.KUBE_CAPABILITY, "write CHOWN")

    @pytest.mark.parametrize(
        "collectors",
        [
            "{mine: {}}",
            "{nvidia-smy: {timeout: 5s}}",
            "{'../x': {command: ls}}",
            "{dmesg: {timeout: 31m}}",
            "{dmesg: {maxBytes: 1G}}",
        ],
    )
    def test_collectors_need_a_name_a_command_and_limits(
        self, tmp_path: Path, collectors: str
    ) -> None:
        error = refusal("site", tmp_path / "site.yaml", f"collectors: {collectors}\n")
        assert error.code is Code.SITE_COLLECTOR

    def test_known_collectors_have_a_command_and_limits(self) -> None:
        known = known_collectors()
        assert {"nvidia-bug-report", "nvidia-smi", "dmesg", "sel", "dmi", "lldp"} <= set(known)
        planned = planned_collectors({name: SiteCollector() for name in known})
        assert all(one.command and one.timeout and one.max_bytes for one in planned)
        check_collectors({name: SiteCollector() for name in known})

    def test_expectations_name_their_file_and_line(self, tmp_path: Path) -> None:
        file = tmp_path / "site.yaml"
        file.write_text("expect:\n  - all-reduce@8G>=380\n  - connectivity<=50\n")
        bounds = config.site_expectations(config.load_site(str(file)))
        assert [bound.source for bound in bounds] == [f"{file}:2", f"{file}:3"]


class TestNames:
    @pytest.mark.parametrize(("kind", "name"), [("machine", "a4-high"), ("suite", "quik")])
    def test_a_name_that_does_not_exist(self, kind: str, name: str) -> None:
        load: Any = config.load_machine if kind == "machine" else config.load_suite
        with pytest.raises(BadInput) as caught:
            load(name)
        assert caught.value.code in (Code.MACHINE_UNKNOWN, Code.SUITE_UNKNOWN)
        expected = "a4-highgpu-8g" if kind == "machine" else "quick"
        assert caught.value.hint.startswith(f"did you mean {expected}? ")

    def test_a_file_that_looks_like_a_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine").write_text(MACHINE)
        with pytest.raises(BadInput) as caught:
            config.load_machine("mine")
        assert caught.value.hint == "for the file with that name write ./mine"
        assert config.load_machine("./mine").value.name == "mine"

    def test_a_missing_file(self) -> None:
        with pytest.raises(BadInput, match=r"nowhere\.yaml: ") as caught:
            config.load_machine("nowhere.yaml")
        assert caught.value.code is Code.YAML_UNREADABLE


class TestExpectations:
    def test_all_parts(self) -> None:
        assert parse_expectation("all-reduce@8G>=380", source="--expect") == Reference(
            check="all-reduce",
            metric="busbw",
            unit="GB/s",
            kind=BoundKind.EXPECTATION,
            source="--expect",
            value=380.0,
            lower=380.0,
            size=8 << 30,
        )

    @pytest.mark.parametrize(
        ("text", "attributes"),
        [
            ("all-reduce@8G/2>=600", {"min_nodes": 2, "max_nodes": 2}),
            ("all-reduce@8G/4-64>=300", {"min_nodes": 4, "max_nodes": 64}),
            ("all-reduce@8G/3->=300", {"min_nodes": 3, "max_nodes": None}),
            ("all-reduce.time@1M <= 90 us", {"metric": "time", "upper": 90.0, "lower": None}),
            ("all-gather@512K>=1e2", {"size": 512 << 10, "lower": 100.0}),
            ("connectivity<=50", {"metric": "ping", "unit": "us", "upper": 50.0, "size": None}),
            ("train>=1000", {"metric": "throughput", "unit": "samples/s", "lower": 1000.0}),
            ("train.step-p50<=0.2", {"metric": "step-p50", "unit": "s"}),
            ("script.files>=3", {"metric": "files", "unit": ""}),
        ],
    )
    def test_forms(self, text: str, attributes: dict[str, Any]) -> None:
        bound = parse_expectation(text, source="x")
        assert {name: getattr(bound, name) for name in attributes} == attributes

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("", Code.EXPECT_SYNTAX),
            ("all-reduce", Code.EXPECT_SYNTAX),
            ("all-reduce@8G=380", Code.EXPECT_SYNTAX),
            ("all-reduce@8G>380", Code.EXPECT_SYNTAX),
            ("all-reduce@8G>=", Code.EXPECT_SYNTAX),
            ("all-reduce@8G>=fast", Code.EXPECT_SYNTAX),
            ("all-reduce@8G>=nan", Code.EXPECT_SYNTAX),
            ("all-reduce>=380", Code.EXPECT_SIZE),
            ("all-reduce@8X>=380", Code.EXPECT_SYNTAX),
            ("all-reduce@0>=380", Code.EXPECT_SYNTAX),
            ("all-reduce.bw@8G>=380", Code.METRIC_UNKNOWN),
            ("all-reduce@8G>=380 Gbit/s", Code.METRIC_UNIT),
            ("all-reduce@8G/0>=380", Code.EXPECT_SYNTAX),
            ("all-reduce@8G/8-4>=380", Code.EXPECT_SYNTAX),
            ("reduce@8G>=380", Code.CHECK_UNKNOWN),
            ("inventory>=1", Code.METRIC_UNKNOWN),
            ("inventory.clock-offset<=1", Code.METRIC_UNKNOWN),
            ("script>=1", Code.METRIC_UNKNOWN),
            ("all-reduce@8G>=0", Code.EXPECT_ALWAYS_MET),
        ],
    )
    def test_mistakes(self, text: str, code: Code) -> None:
        with pytest.raises(Invalid) as caught:
            parse_expectation(text, source="x")
        assert caught.value.code is code

    @given(st.text(max_size=40))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        try:
            bound = parse_expectation(text, source="x")
        except Invalid:
            return
        assert bound.kind == "expectation"


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("90s", 90),
            ("15m", 900),
            ("1h30m", 5400),
            ("2h", 7200),
            ("7d", 604800),
            ("600", 600),
            ("0.5s", 0.5),
            (" 1H ", 3600),
            ("1m30", 90),
        ],
    )
    def test_forms(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == seconds

    @pytest.mark.parametrize("text", ["", "0", "0s", "-5m", "5 m", "m", "1m1h", "1.5h", "5x", "٣m"])
    def test_mistakes_name_the_forms(self, text: str) -> None:
        with pytest.raises(ValueError, match="such as 90s, 15m or 1h30m"):
            parse_duration(text)


@pytest.mark.parametrize("kind", [config.Machine, config.Suite, config.Site])
def test_every_key_of_a_file_has_a_description(kind: type) -> None:
    found = schema(kind)
    for definition in (found, *found["$defs"].values()):
        for key, value in definition["properties"].items():
            assert _explained(value), key


def _explained(value: dict[str, Any]) -> bool:
    inside = [*value.get("anyOf", []), value.get("items", {})]
    return (
        "description" in value
        or "$ref" in value
        or any("$ref" in v or "description" in v for v in inside)
    )


class TestRoundTrip:
    @pytest.mark.parametrize("name", config.names("machines"))
    def test_machines(self, name: str) -> None:
        machine = config.load_machine(name).value
        assert read(config.Machine, dump(machine)) == machine

    @pytest.mark.parametrize("name", config.names("suites"))
    def test_suites(self, name: str) -> None:
        suite = config.load_suite(name).value
        assert read(config.Suite, dump(suite)) == suite
