"""Machines, suites and sites: every mistake in a file, and its error message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.paths import TESTS

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
from accept.core.plan import BoundKind, Reference
from accept.core.serde import Invalid, schema
from accept.plan.resolve import Options, resolve

#: For each kind of file: a valid one, and what a mistake in it leads to.
FILES: dict[str, dict[str, Any]] = yaml.safe_load((TESTS / "data" / "mistakes.yaml").read_text())
MACHINE, SUITE = FILES["machine"]["file"], FILES["suite"]["file"]


def refusal(kind: str, folder: Path, text: str) -> BadInput:
    """Return the error of a file of this kind, which is called mine.yaml."""
    file = folder / "mine.yaml"
    file.write_text(text)
    suite = folder / "suite.yaml"
    suite.write_text(
        "name: s\ndescription: S.\nchecks: [{check: ./mine.yaml, params: {size: 1G}}]\n"
    )
    of_tool = Options(machine="cpu", suite=str(suite), backend="ssh", hosts=("a",))
    loaders: dict[str, Callable[[], object]] = {
        "machine": lambda: config.load_machine(str(file)),
        "suite": lambda: config.load_suite(str(file)),
        "site": lambda: config.load_site(str(file)),
        "tool": lambda: resolve(of_tool),
    }
    with pytest.raises(BadInput) as caught:
        loaders[kind]()
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("kind", "old", "new", "line", "key", "code", "hint"),
    [(kind, *row) for kind, of_kind in FILES.items() for row in of_kind["mistakes"]],
)
def test_a_mistake_in_a_file_is_one_error_with_its_place(
    tmp_path: Path, kind: str, old: str, new: str, line: int, key: str, code: str, hint: str
) -> None:
    valid = FILES[kind]["file"]
    assert old in valid
    error = refusal(kind, tmp_path, valid.replace(old, new))
    assert error.message.startswith(f"{tmp_path}/mine.yaml:{line}: {key and f'{key}: '}")
    assert error.code == code
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

    def test_seven_gpus_of_eight(self, tmp_path: Path) -> None:
        (tmp_path / "m.yaml").write_text(MACHINE)
        machine = config.load_machine(str(tmp_path / "m.yaml")).value
        for wanted, hint in ((7, "possible: 1, 2, 4, 8"), (16, "possible: 1, 2, 4, 8"), (0, "")):
            with pytest.raises(BadInput) as error:
                check_gpus_per_node(machine, wanted)
            assert (error.value.code, error.value.hint) == (Code.GPUS_PER_NODE, hint)
        check_gpus_per_node(machine, 4)

    def test_figures_are_about_whole_nodes(self, tmp_path: Path) -> None:
        (tmp_path / "m.yaml").write_text(MACHINE)
        machine = config.load_machine(str(tmp_path / "m.yaml")).value
        assert bounds(machine, gpus_per_node=4) == ()
        assert bounds(machine, gpus_per_node=8) == bounds(machine)


class TestSuite:
    def test_a_file_of_the_user(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(SUITE)
        loaded = config.load_suite(str(file))
        check = loaded.value.checks[0]
        assert check.timeout == 300.0
        assert check.params == {"max": "8G"}
        assert loaded.document.where(("checks", 0, "params", "max")) == f"{file}:8"

    def test_a_script_of_the_user(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(
            "name: a\ndescription: b\nchecks:\n  - {check: script, script: my.sh, name: mine}\n"
        )
        check = config.load_suite(str(file)).value.checks[0]
        assert (check.script, check.name) == ("my.sh", "mine")


class TestSite:
    @pytest.mark.parametrize(
        "folder",
        [
            *("/", "//", "/etc", "/etc/ssh", "/data/../etc", "/var", "/run", "/run/docker.sock"),
            *("/var/run/docker.sock", "/proc/1/root", "/data/my.sock", "///run/./x"),
        ],
    )
    def test_mounts_that_control_a_host_are_refused(self, tmp_path: Path, folder: str) -> None:
        volume = f"{{name: a, hostPath: {{path: '{folder}'}}}}"
        for key, text in (
            ("container.mounts[0]", f"container: {{mounts: ['{folder}:/in:ro']}}\n"),
            (
                "kubernetes.extraVolumes[0].hostPath.path",
                f"kubernetes: {{extraVolumes: [{volume}]}}\n",
            ),
        ):
            error = refusal("site", tmp_path, text)
            assert error.message.startswith(f"{tmp_path}/mine.yaml:1: {key}: ")
            assert error.code is Code.SITE_MOUNT

    @pytest.mark.parametrize("folder", ["/data", "/var/lib/x", "/runs", "/etcd", "/opt/a.sock.d"])
    def test_other_mounts_are_kept(self, tmp_path: Path, folder: str) -> None:
        file = tmp_path / "site.yaml"
        file.write_text(f"container: {{mounts: ['{folder}']}}\n")
        assert config.load_site(str(file)).value.container.mounts == (folder,)

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
    def test_a_file_that_looks_like_a_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine").write_text(MACHINE)
        with pytest.raises(BadInput) as caught:
            config.load_machine("mine")
        assert caught.value.hint == "for the file with that name write ./mine"
        assert config.load_machine("./mine").value.name == "mine"


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
            ("00:10:00", 600),
            ("1-00:00:00", 86400),
            ("1-12", 129600),
        ],
    )
    def test_forms(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == seconds

    @pytest.mark.parametrize(
        "text", ["", "0", "0s", "-5m", "5 m", "m", "1m1h", "1.5h", "5x", "٣m", "10:00"]
    )
    def test_mistakes_name_the_forms(self, text: str) -> None:
        with pytest.raises(ValueError, match="such as 90s or 1h30m"):
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
