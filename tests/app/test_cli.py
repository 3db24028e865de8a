"""The command line: output and exit codes for people, shells and programs."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from tests.factories import sample_evidence
from tests.factories.clock import PATIENCE
from tests.factories.command_line import SOURCE, accept, installed, program, refused
from tests.factories.jobs import job_of, submitted
from tests.factories.paths import TESTS
from tests.factories.shell import run_program, write_program

from accept import __version__, backends, config
from accept.backends.job import Job
from accept.backends.protocol import Say
from accept.commands import collect, run
from accept.commands.choices import Listing, Schema, Shown
from accept.commands.demo import unpack_demo
from accept.config import resources, tools
from accept.config.explanations import explanations
from accept.config.yaml_file import load
from accept.core import checks, evidence
from accept.core.catalog.faults import FAULTS
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import (
    AcceptError,
    BadEvidence,
    BadInput,
    Exit,
    Interrupted,
    NotStarted,
    Terminated,
)
from accept.core.serde import dump
from accept.evidence import rundir
from accept.report.console import Terminal

pytestmark = pytest.mark.usefixtures("runs")


@pytest.mark.parametrize("name", ["accept", "gpu-accept"])
def test_the_version_is_that_of_the_package_under_both_names(name: str) -> None:
    done = run_program([installed(name), "--version"], check=True)
    assert done.stdout == accept("--version").out == f"accept {__version__}\n"


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "code"), [(BadInput, 2), (NotStarted, 4), (Interrupted, 5), (BadEvidence, 6)]
    )
    def test_of_each_kind_have_their_code_and_one_message(
        self, error: type[AcceptError], code: int
    ) -> None:
        with mock.patch(
            "accept.commands.catalog.do_list",
            side_effect=error("no", code=Code.MEMORY, hint="do this"),
        ):
            done = accept("list", "runs")
        assert (done.code, done.out, done.err) == (code, "", "error[E-MEMORY]: no\n  do this\n")

    def test_ctrl_c_is_130(self) -> None:
        with mock.patch("accept.commands.catalog.do_list", side_effect=KeyboardInterrupt):
            assert accept("list", "runs").code == 130

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            ("frobnicate", Code.USAGE),
            ("list", Code.USAGE),
            ("list dogs", Code.USAGE),
            ("run --nosuch", Code.USAGE),
            ("run --seed x", Code.USAGE),
            ("show machine", Code.USAGE),
            ("report last --format pdf", Code.USAGE),
            ("render -m cpu -n 2 --gpus-per-node x", Code.USAGE),
            ("show machine nosuch --json", Code.MACHINE_UNKNOWN),
            *((name, Code.RUN_NONE) for name in ("watch", "collect", "cancel", "judge", "report")),
        ],
    )
    def test_are_one_on_stderr_with_nothing_on_stdout(self, words: str, error: Code) -> None:
        refused(*words.split(), error=error)

    @pytest.mark.parametrize("name", ["watch", "collect", "cancel"])
    def test_of_a_run_never_started_show_how_to_start_it(self, name: str, tmp_path: Path) -> None:
        accept("render", "-m", "cpu", "-n", 1, "-o", tmp_path / "one")
        shown = refused(name, tmp_path / "one", error="E-RUN-NOT-STARTED")
        assert f"accept submit {tmp_path}/one" in shown


class TestSubmittingARenderedRun:
    @pytest.fixture
    def rendered(self, tmp_path: Path) -> Path:
        assert accept("render", "-m", "cpu", "-n", 1, "-o", tmp_path / "one").code == 0
        return tmp_path / "one"

    @pytest.mark.parametrize(
        "options",
        [
            "--suite soak", "--suite quick", "-m cpu", "--seed 1", "--rounds 1",
            "--expect all-reduce@8G>=380", "--nodes 64", "--busy-ok", "--hold 1m",
            "--suite soak --nodes 2",
        ],
    )  # fmt: skip
    def test_refuses_and_names_options_that_would_change_its_plan(
        self, rendered: Path, options: str
    ) -> None:
        shown = refused("submit", rendered, *options.split(), "--dry-run", error="E-PLAN-FIXED")
        given = {"--machine" if word == "-m" else word for word in options.split()}
        for option in ("--suite", "--machine", "--seed", "--rounds", "--expect", "--nodes"):
            assert (option in shown) == (option in given)

    def test_takes_options_of_the_launch_and_of_the_cluster(self, rendered: Path) -> None:
        options = ["--attempt=a", "--kubeconfig=k", "--context=c", "--namespace=n", "--release=r"]
        done = accept("submit", rendered, "--dry-run", "--json", "-v", *options)
        assert done.code == 0, done.err
        assert json.loads(done.out)["machine"] == "cpu"

    def test_with_an_empty_name_starts_nothing(self) -> None:
        refused("submit", "", error="E-OPTION-EMPTY")
        assert rundir.listed() == ()


class TestOutput:
    def test_progress_goes_to_stderr_and_quiet_stops_it(self) -> None:
        shown = accept("run", "--dry-run")
        assert "machine: " in shown.err
        quiet = accept("run", "--dry-run", "-q")
        assert (quiet.err, quiet.out) == ("", shown.out)

    def test_verbose_shows_the_parameters(self) -> None:
        args = ("run", "--dry-run", "-m", "cpu", "--set", "all-reduce.max=64K")
        assert "max 64K" in accept(*args, "-v").err
        assert "max 64K" not in accept(*args).err

    def test_options_of_every_command_may_precede_it(self) -> None:
        for option in ("--json", "-q", "-v"):
            before, after = accept(option, "list", "faults"), accept("list", "faults", option)
            assert (before.code, before.out, before.err) == (0, after.out, after.err)
        assert accept("-v").code == accept("-x", "list", "faults").code == 2

    @pytest.mark.parametrize("no_color", ["", "1"])
    def test_colors_are_only_for_terminals_and_can_be_turned_off(
        self, no_color: str, runs: Path
    ) -> None:
        sample_evidence.write(runs / "one" / "evidence", status=1)
        arguments = shlex.join([sys.executable, "-m", "accept", "judge", "one"])
        environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "NO_COLOR": no_color,
            "TERM": "xterm",
        }
        done = run_program(["script", "-qec", arguments, "/dev/null"], env=environment)
        assert done.returncode == 3
        assert ("\x1b[" in done.stdout) == (not no_color)

    @pytest.mark.rare
    def test_a_pipe_gets_no_colors(self, runs: Path) -> None:
        sample_evidence.write(runs / "one" / "evidence", status=1)
        assert "\x1b" not in program("judge", "one").out
        assert "\x1b[" in program("judge", "one", FORCE_COLOR="1", NO_COLOR="").out
        for off in ({"FORCE_COLOR": "0"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}):
            assert "\x1b" not in program("judge", "one", **off).out

    def test_a_character_set_without_the_marks_does_not_matter(self, runs: Path) -> None:
        sample_evidence.write(runs / "one" / "evidence")
        done = program("judge", "one", PYTHONIOENCODING="ascii")
        assert (done.code, done.out[:10]) == (0, "? ACCEPTED")

    @pytest.mark.rare
    def test_a_reader_that_ends_early_causes_no_traceback(self) -> None:
        command = f"{shlex.quote(sys.executable)} -m accept show schema plan; echo $? >&2"
        done = run_program(
            ["sh", "-c", f"({command}) | true"], env={**os.environ, "PYTHONPATH": str(SOURCE)}
        )
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


class TestList:
    @pytest.mark.parametrize(
        ("what", "names"),
        [
            *(
                (what, sorted(path.stem for path in (resources.values() / what).glob("*.yaml")))
                for what in ("machines", "suites")
            ),
            ("checks", sorted({*checks.REGISTRY, *tools.names()})),
            ("causes", list(Cause)),
            ("faults", list(FAULTS)),
            ("backends", list(backends.BACKENDS)),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_names_everything(self, what: str, names: list[str]) -> None:
        listed = json.loads(accept("list", what, "--json").out)[what]
        assert [entry["name"] for entry in listed] == names
        assert [line.split()[0] for line in accept("list", what).out.splitlines()] == names

    @pytest.mark.parametrize("shown", [name for name in Shown if name is not Shown.NODES])
    def test_has_a_list_for_everything_that_can_be_shown(self, shown: Shown) -> None:
        assert f"{shown}s" in [*Listing]

    def test_names_the_runs_newest_first_with_their_verdicts(self, runs: Path) -> None:
        for age, name in enumerate(("old", "new")):
            sample_evidence.write(runs / name / "evidence", status=age)
            os.utime(runs / name, ns=(age, age))
        (runs / "begun").mkdir()
        (runs / "begun" / rundir.JOB).write_text("{}")
        os.utime(runs / "begun", ns=(9, 9))
        listed = json.loads(accept("list", "runs", "--json").out)["runs"]
        assert [run["name"] for run in listed] == ["begun", "new", "old"]
        assert listed[0]["about"] == "submitted"
        assert listed[1]["about"].startswith("fail")
        assert listed[2]["about"].startswith("pass")
        verdict = json.loads((runs / "old" / "evidence" / evidence.VERDICT).read_text())
        assert listed[2]["seconds"] == verdict["end"] - verdict["start"]
        assert listed[2]["hosts"] == len(verdict["hosts"])
        assert all(listed[2][key] == verdict[key] for key in ("machine", "suite", "start"))

    def test_leaves_out_columns_on_a_narrow_terminal(self, runs: Path) -> None:
        sample_evidence.write(runs / "one" / "evidence")
        assert "SUITE" in accept("list", "runs").out
        with mock.patch.object(Terminal, "is_narrow", new=True):
            shown = accept("list", "runs").out
        assert "SUITE" not in shown
        assert "STARTED" in shown
        assert "pass" in shown

    def test_shows_how_sure_each_machine_is(self) -> None:
        listed = json.loads(accept("list", "machines", "--json").out)["machines"]
        confidence = {machine["name"]: machine["confidence"] for machine in listed}
        assert (confidence["p5.48xlarge"], confidence["p5e.48xlarge"]) == ("manifest", "derived")
        lines = [line.split()[:2] for line in accept("list", "machines").out.splitlines()]
        assert lines == [[*row] for row in confidence.items()]


class TestShow:
    @pytest.mark.parametrize("name", checks.REGISTRY)
    def test_a_check_with_everything_that_it_declares(self, name: str) -> None:
        page = json.loads(accept("show", "check", name, "--json").out)
        check = checks.REGISTRY[name]
        assert page["check"] == name
        assert page["groups"] == [str(kind) for kind in check.groups]
        assert set(page["metrics"]) == {spec.name for spec in check.metrics}
        assert all(parameter["about"] for parameter in page["params"].values())
        shown = accept("show", "check", name).out
        assert all(key in shown for key in (*page["params"], *page["metrics"], *page["faults"]))

    @pytest.mark.parametrize("name", config.names("machines"))
    def test_a_machine_that_can_be_read_with_the_source_of_every_figure(
        self, name: str, tmp_path: Path
    ) -> None:
        done = accept("show", "machine", name)
        data = yaml.safe_load(done.out)
        assert all(figure["source"] for figure in data["references"])
        (tmp_path / "own.yaml").write_text(done.out)
        read = config.load_machine(str(tmp_path / "own.yaml")).value
        assert read == replace(config.load_machine(name).value, base=())

    def test_a_machine_with_the_bounds_of_its_hardware(self) -> None:
        shown = accept("show", "machine", "a4-highgpu-8g").out
        floor = ">= 250 GB/s (floor), 0.625 of 400, 0.74 expected;"
        assert f"# - reduce-scatter at 8G on 2 to 8 nodes: {floor}" in shown
        # The threshold of the vendor's own health check replaces the floor.
        assert "# - all-gather at 8G on 2 to 8 nodes" not in shown

    @pytest.mark.parametrize("name", config.names("suites"))
    def test_a_suite(self, name: str) -> None:
        assert yaml.safe_load(accept("show", "suite", name).out)["name"] == name

    def test_a_site_and_its_example_unmodified(self) -> None:
        file = resources.values() / "site.example.yaml"
        assert yaml.safe_load(accept("show", "site", file).out)["results"]["holdSeconds"] == 600
        assert accept("show", "site", "example").out == file.read_text()

    @pytest.mark.parametrize("name", FAULTS)
    def test_a_fault_with_its_causes(self, name: str) -> None:
        page = json.loads(accept("show", "fault", name, "--json").out)
        assert {*page["causes"]} == {*FAULTS[name].causes}
        assert name in accept("show", "fault", name).out

    def test_a_run_with_its_plan(self, runs: Path) -> None:
        assert accept("render", "-m", "cpu", "-n", 1, "-o", runs / "one").code == 0
        page = json.loads(accept("show", "run", "one", "--json").out)
        assert page["run"]["name"] == "one"
        assert page["plan"]["machine"] == "cpu"
        assert "machine cpu, suite quick" in accept("show", "run", "one").out
        # The newest run is the newest that was started.
        assert accept("show", "run", "last").error == Code.RUN_NONE

    def test_a_run_without_a_plan(self, runs: Path) -> None:
        sample_evidence.write(runs / "one" / "evidence")
        page = json.loads(accept("show", "run", "one", "--json").out)
        assert (page["plan"], page["run"]["about"][:4]) == (None, "pass")
        copied = json.loads(accept("show", "run", runs / "one" / "evidence", "--json").out)
        assert copied["run"]["about"] == page["run"]["about"]
        assert "not a run" in accept("show", "run", runs.parent).out

    @pytest.mark.parametrize(
        ("what", "typed", "meant", "error"),
        [
            ("machine", "a4", "a4-highgpu-8g?", Code.MACHINE_UNKNOWN),
            ("machine", "gpuu", "gpu?", Code.MACHINE_UNKNOWN),
            ("machine", "a4x", "a4x-highgpu-4g or a4x-maxgpu-4g-metal?", Code.MACHINE_UNKNOWN),
            ("suite", "stan", "standard?", Code.SUITE_UNKNOWN),
            ("check", "conn", "connectivity?", Code.CHECK_UNKNOWN),
            ("cause", "rank-h", "rank-hung?", Code.CAUSE_UNKNOWN),
            ("fault", "han", "hang?", Code.FAULT_UNKNOWN),
            ("error", "E-USA", "E-USAGE?", Code.CODE_UNKNOWN),
            ("error", "E-USAGES", "E-USAGE?", Code.CODE_UNKNOWN),
            ("schema", "sites", "site?", Code.USAGE),
            ("backend", "kube", "kubernetes?", Code.OPTION_BACKEND),
            ("run", "mon", "show run monday", Code.RUN_UNKNOWN),
        ],
    )
    def test_a_part_of_a_name_with_what_it_may_be(
        self, runs: Path, what: str, typed: str, meant: str, error: Code
    ) -> None:
        sample_evidence.write(runs / "monday" / "evidence")
        shown = refused("show", what, typed, error=error)
        assert "did you mean" in shown
        assert meant in shown

    def test_every_error_and_cause_with_its_explanation(self) -> None:
        listed = json.loads(accept("list", "errors", "--json").out)["errors"]
        about = {one["name"]: one["about"] for one in listed}
        explained = explanations()
        assert {code: about[code] for code in explained} == explained
        assert {cause.code for cause in Cause} == set(about) - set(explained)
        assert "accept show cause rank-hung" in accept("show", "error", "W-RANK-HUNG").out
        for name in ("E-USAGE", "e-usage"):
            assert accept("show", "error", name).out == f"E-USAGE\n{explained[Code.USAGE]}\n"


def _keys(schema: object) -> Iterator[str]:
    """Yield the keys that a JSON Schema allows."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from _keys(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _keys(part)


def test_every_name_is_in_lower_case() -> None:
    metrics = [spec.name for check in checks.REGISTRY.values() for spec in check.metrics]
    names = [*Cause, *FAULTS, *checks.REGISTRY, *metrics, *config.names("suites")]
    assert [name for name in names if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name)] == []


_KINDS: dict[str, type[Any] | tuple[type[Any], ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def fits(data: Any, schema: dict[str, Any], top: dict[str, Any]) -> bool:
    """Return True if `data` matches a JSON Schema, which may use only keywords of our schemas."""
    if "$ref" in schema:
        return fits(data, top["$defs"][schema["$ref"].rpartition("/")[2]], top)
    if "anyOf" in schema:
        return any(fits(data, one, top) for one in schema["anyOf"])
    if "enum" in schema:
        return data in schema["enum"]
    if "type" in schema and not isinstance(data, _KINDS[schema["type"]]):
        return False
    if isinstance(data, str) and "pattern" in schema:
        return re.search(schema["pattern"], data) is not None
    if isinstance(data, list):
        return all(fits(one, schema.get("items", {}), top) for one in data)
    if isinstance(data, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        lacks = set(schema.get("required", ())) - set(data)
        if lacks or (others is False and set(data) - set(known)):
            return False
        rest = others if isinstance(others, dict) else {}
        return all(fits(value, known.get(key, rest), top) for key, value in data.items())
    return True


class TestSchema:
    def schema(self, what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(accept("show", "schema", what).out)
        assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        return found

    def test_every_shipped_file_fits(self) -> None:
        files = [
            *(("machine", config.load_machine(name).document) for name in config.names("machines")),
            *(("suite", config.load_suite(name).document) for name in config.names("suites")),
            ("site", load(resources.values() / "site.example.yaml")),
        ]
        for what, document in files:
            schema = self.schema(what)
            assert fits(document.data, schema, schema), document.name
            assert not fits({**document.data, "color": "red"}, schema, schema)
            assert not fits({**document.data, "name": 1}, schema, schema)

    @pytest.mark.parametrize(
        ("what", "words"),
        [
            *(
                ("runs" if listing is Listing.RUNS else "list", ["list", listing.value])
                for listing in Listing
                if listing is not Listing.NODES
            ),
            ("cause", ["show", "cause", "rank-hung"]),
            ("error", ["show", "error", "E-USAGE"]),
            ("error", ["show", "backend", "ssh"]),
            ("fault", ["show", "fault", "hang"]),
            ("run", ["show", "run", "one"]),
            ("site", ["show", "site", "example"]),
            ("chart", ["chart"]),
            ("doctor", ["doctor", "-m", "cpu"]),
            ("dry-run", ["run", "--dry-run", "-m", "cpu"]),
            ("drill-dry-run", ["drill", "--dry-run", "-m", "cpu"]),
            ("collect", ["collect", "one"]),
            ("render", ["render", "-m", "cpu", "--out", "rendered"]),
            ("rbac", ["doctor", "--rbac", "-m", "cpu"]),
            ("machine", ["show", "machine", "gpu"]),
            ("suite", ["show", "suite", "quick"]),
            ("judge", ["judge", "one"]),
            ("report", ["report", "one"]),
            ("report", ["report", "one", "--format", "md"]),
        ],
    )
    def test_json_output_of_a_command_fits(
        self,
        what: str,
        words: list[str],
        runs: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KUBECONFIG", os.devnull)
        sample_evidence.write(runs / "one" / "evidence")
        schema = self.schema(what)
        done = accept(*words, "--json")
        assert (done.error, words[0] == "doctor" or done.code == 0) == ("", True), done.err
        assert fits(json.loads(done.out), schema, schema)

    @pytest.mark.parametrize("what", list(Schema))
    def test_every_name_has_a_strict_schema_with_keys_in_camel_case(self, what: Schema) -> None:
        schema = json.loads(accept("show", "schema", what.value).out)
        definitions = (schema.get("$defs") or schema.get("definitions") or {}).values()
        for definition in (schema, *definitions):
            assert (definition["type"], definition["additionalProperties"]) == ("object", False)
            assert definition["description"]
        assert [key for key in _keys(schema) if not re.fullmatch("[a-z][a-zA-Z0-9]*", key)] == []

    def test_helm_values_are_one_json_value(self) -> None:
        words = ("render", "-m", "cpu", "-n", "2", "--site", TESTS / "site.yaml")
        assert json.loads(accept(*words, "--json").out)["accept"]

    def test_files_of_a_run_fit(self) -> None:
        record = sample_evidence.record()
        made: dict[str, Any] = {"plan": sample_evidence.PLAN, "record": record}
        made["verdict"] = sample_evidence.verdict_of(record)
        for what, value in made.items():
            schema = self.schema(what)
            assert fits(dump(value), schema, schema), what
            assert not fits({}, schema, schema)


class TestHosts:
    """Errors before the start: exit 4, and no run folder is left."""

    def test_without_ssh_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        for machine in ([], ["-m", "cpu"]):
            words = ("run", "--hosts", "a,b", *machine, "-q")
            refused(*words, code=Exit.NOT_STARTED, error="E-SSH-MISSING")
        assert rundir.listed() == ()

    def test_with_unknown_names(self, runs: Path) -> None:
        hosts = ("--hosts", "a.invalid,b.invalid", "--start-timeout", "1s", "-q")
        refused("run", *hosts, code=Exit.NOT_STARTED, error="E-SSH-NO-ANSWER")
        words = ("run", *hosts, "-m", "cpu")
        shown = refused(*words, code=Exit.NOT_STARTED, error="E-SSH-HOSTS-UNUSABLE")
        assert "a.invalid" in shown
        assert rundir.listed() == ()

    def test_that_are_missing_are_lines_of_doctor(self) -> None:
        done = accept("doctor", "--hosts", "a.invalid,b.invalid", "-m", "cpu", "--json")
        assert done.code == 4
        rows = [(one["host"], one["code"], one["good"]) for one in json.loads(done.out)["needs"]]
        assert rows == [("a.invalid", "R-SSH", False), ("b.invalid", "R-SSH", False)]

    def test_are_not_needed_to_see_the_plan(self) -> None:
        done = accept("run", "--hosts", "n[1-64]", "-m", "a4-highgpu-8g", "--dry-run")
        assert done.code == 0
        assert "64 nodes over ssh" in done.out
        assert "GPU-hours" in done.out


def test_the_plan_shows_added_checks(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("name: own\ndescription: x.\nchecks:\n- check: train\n")
    args = ("run", "-m", "cpu", "-s", tmp_path / "own.yaml", "--dry-run")
    assert "connectivity was added" in accept(*args).out
    assert json.loads(accept(*args, "--json").out)["notes"]


class TestCtrlC:
    """On a terminal, Ctrl-C shows a question; elsewhere nobody can answer it."""

    @pytest.mark.parametrize(
        ("answers", "detaches", "questions"),
        [
            ("d\n", True, 1),
            ("Detach\n", True, 1),
            ("c\n", False, 1),
            ("C", False, 1),
            ("cancel\n", False, 1),
            ("x\nd\n", True, 2),
            ("\ndc\n\nc\n", False, 4),
            ("", False, 1),
            ("x\n", False, 2),
        ],
    )
    def test_asks_on_a_terminal_until_it_is_answered(
        self, answers: str, *, detaches: bool, questions: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        screen = _Terminal()
        monkeypatch.setattr("sys.stdin", _Terminal(answers))
        monkeypatch.setattr("sys.stderr", screen)
        assert run._wants_to_detach() is detaches
        assert screen.getvalue().count("[d/c]") == questions
        # A second Ctrl-C cancels, and nobody can answer without a terminal.
        monkeypatch.setattr(sys.stdin, "readline", mock.Mock(side_effect=KeyboardInterrupt))
        assert run._wants_to_detach() is False
        monkeypatch.setattr("sys.stdin", io.StringIO("d\n"))
        assert run._wants_to_detach() is False


class TestSigterm:
    """It cannot ask, so it cancels the run, and a later SIGTERM does not stop that."""

    @pytest.mark.parametrize("interrupt", [Terminated, KeyboardInterrupt])
    def test_does_not_stop_a_cancellation(
        self, interrupt: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cancelled = []

        def cancel(*_: object) -> None:
            signal.raise_signal(signal.SIGTERM)
            cancelled.append(True)

        job = job_of(tmp_path)
        monkeypatch.setattr("accept.backends.local.watch", mock.Mock(side_effect=interrupt))
        monkeypatch.setattr(run, "cancel", cancel)
        # Terminated asks nobody, even on a terminal.
        answer = "d\n" if interrupt is Terminated else "c\n"
        monkeypatch.setattr("sys.stdin", _Terminal(answer))
        monkeypatch.setattr("sys.stderr", _Terminal())
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(interrupt):
            run.follow(job, tmp_path, Terminal())
        assert cancelled == [True]
        assert signal.getsignal(signal.SIGTERM) is before


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestDoctor:
    def test_shows_the_tools_of_this_machine_and_the_checks_that_will_run(self) -> None:
        done = accept("doctor", "-m", "cpu")
        assert done.code in (Exit.PASS, Exit.NOT_STARTED)
        assert re.search(r"^(ok|missing) +\S+: mpirun: ", done.out, re.MULTILINE)
        assert re.search(r"^will run +inventory", done.out, re.MULTILINE)

    def test_as_json_has_an_entry_for_each_need(self) -> None:
        needs = json.loads(accept("doctor", "-m", "cpu", "--json").out)["needs"]
        assert {"mpirun", "torch"} <= {need["what"] for need in needs}
        for code in {need["code"] for need in needs}:
            assert accept("show", "error", code).out.startswith(f"{code}\n")

    def test_and_a_run_name_the_extra_of_a_missing_tool(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accept.backends.local.tools_here", lambda *_: {})
        done = accept("doctor", "-m", "cpu")
        assert done.code == 4
        assert "missing" in done.out
        assert "[run]'" in done.out
        assert "will not   connectivity" in done.out
        assert "[run]'" in refused("run", "-m", "cpu", "-q", code=4, error="E-LOCAL-NO-MPIRUN")
        assert rundir.listed() == ()


def test_gpus_in_use_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "accept.backends.local.tools_here", lambda *_: {"busy": ["GPU-1, 77, python"]}
    )
    shown = refused("run", "-m", "gpu", "-q", code=4, error="E-GPUS-IN-USE")
    assert "GPU-1, 77, python" in shown
    assert rundir.listed() == ()


class TestHangingDriver:
    @pytest.fixture(autouse=True)
    def hanging(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        smi = write_program(tmp_path / "bin" / "nvidia-smi", "exec sleep 600")
        monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
        monkeypatch.setattr("accept.backends.requirements.SECONDS", 0.5)

    @pytest.mark.parametrize("asked", [("run", "-q"), ("run", "-m", "gpu", "-q"), ("doctor",)])
    def test_ends_commands_that_query_it_with_one_error(self, asked: tuple[str, ...]) -> None:
        refused(*asked, code=Exit.NOT_STARTED, error="E-LOCAL-SURVEY-TIMEOUT")
        assert rundir.listed() == ()


def test_two_commands_that_collect_one_run_fetch_it_once(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = rundir.create("one")
    job = job_of(submitted(folder))
    fetched: list[str] = []
    both, arrived = threading.Barrier(2), [None, None]

    def fetch(job: Job, *, folder: Path, say: Say) -> Path:
        fetched.append(job.attempt)
        (folder / rundir.EVIDENCE).mkdir()
        return folder / rundir.EVIDENCE

    def load_job(folder: Path) -> Job:
        if arrived:
            arrived.pop()
            both.wait(timeout=PATIENCE)
        return job

    monkeypatch.setattr(backends.load("local"), "collect", fetch)
    monkeypatch.setattr(backends, "load_job", load_job)
    terminal = Terminal(json=True, quiet=True)
    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(lambda name: collect.do_collect(name, terminal), ["one", "one"]))
    assert (ends, fetched) == ([0, 0], ["one"])


#: Ends a command that looks for a server or connects to one.
OFFLINE = """
import os, sys
def audit(event, words):
    if event in ("socket.getaddrinfo", "socket.connect", "socket.sendto"):
        os.write(2, f"{event} {words}".encode())
        os._exit(99)
sys.addaudithook(audit)
from accept.__main__ import main
main()
"""


@pytest.mark.rare
def test_no_command_about_a_run_asks_a_server(runs: Path) -> None:
    """SECURITY.md: "`accept` sends nothing to its authors, and asks no server for updates"."""
    unpack_demo()
    for line in (
        *("--version", "judge last", "report last --format md", "verify last", "list runs"),
        *("explain last gpu17", "show machine h100-8", "run -m cpu --dry-run", "help all"),
    ):
        done = run_program(
            [sys.executable, "-c", OFFLINE, *line.split()],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert done.returncode in (0, Exit.REJECTED, Exit.INCONCLUSIVE), (line, done.stderr)
