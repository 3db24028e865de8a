"""`accept drill`: refusals, plans, stored results, and a real drill on this machine."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.clock import PATIENCE
from tests.factories.command_line import SMALL, SOURCE, accept, refused

from accept.commands.drill_faults import Drill, Drilled, DrillReason, Result
from accept.config import resources
from accept.config.faults import parse_faults
from accept.core.catalog.faults import FAULTS, Scope, for_ranks
from accept.core.error_codes import Code
from accept.core.runner.discovery import Candidate
from accept.core.runner.fault_injection import cut_off
from accept.core.serde import dump
from accept.evidence import rundir

OPTIONS = ("-m", "cpu", "--hosts", "h[1-8]")
SUITE = SMALL + "- {check: gemm, params: {seconds: 0.2, alone: 0}}\n"


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    return tmp_path / "runs"


class TestRefuses:
    @pytest.mark.parametrize(
        ("faults", "error", "shown"),
        [
            ("wrng", Code.FAULT_UNKNOWN, "did you mean wrong?"),
            ("hang,bogus", Code.FAULT_UNKNOWN, "'bogus'"),
            (",", Code.FAULT_UNKNOWN, "slow-link"),
            ("sockets", Code.DRILL_NOTHING, "--dry-run"),
        ],
    )
    def test_bad_faults_with_one_error(self, faults: str, error: Code, shown: str) -> None:
        done = accept("drill", *OPTIONS, "--faults", faults)
        assert (done.code, done.out, done.error) == (2, "", error)
        assert shown in done.err
        assert rundir.listed() == ()


class TestPlan:
    def planned(self, *options: str) -> Any:
        return json.loads(accept("drill", *OPTIONS, "--dry-run", "--json", *options).out)

    def test_a_dry_run_shows_the_plan_and_starts_nothing(self) -> None:
        faults = {one["fault"]: one for one in self.planned()["faults"]}
        assert faults["unreachable"]["injected"] in {f"unreachable@h{i}" for i in range(2, 9)}
        assert faults["sockets"]["code"] == DrillReason.NO_NETWORK
        assert accept("drill", *OPTIONS, "--dry-run").code == 0
        assert rundir.listed() == ()

    def test_is_the_same_for_the_same_seed_and_another_for_another(self) -> None:
        faults = [self.planned("--seed", seed)["faults"] for seed in ("1", "1", "2")]
        assert faults[0] == faults[1] != faults[2]

    def test_takes_less_time_with_only_needed_steps(self) -> None:
        assert self.planned("--only-needed")["seconds"] < self.planned()["seconds"]

    def test_uses_the_first_of_steps_that_take_about_the_same_time(self, tmp_path: Path) -> None:
        few = "check: all-reduce, params: {min: 4K, max: 64K, iters: 3, warmup: 1}"
        checks = f"[{{{few}, groups: all}}, {{{few}, groups: pairs, rounds: 1}}]"
        suite = tmp_path / "suite.yaml"
        suite.write_text(f"name: two\ndescription: Ours.\ndeadline: 5m\nchecks: {checks}\n")
        options = "--suite", str(suite), "--faults", "wrong,slow", "--only-needed"
        seconds = {one["fault"]: one["seconds"] for one in self.planned(*options)["faults"]}
        # A slow host needs only the step of pairs, which takes a few tenths of a second less.
        assert 0 < seconds["wrong"] - seconds["slow"] < 0.5

    def test_has_only_the_named_faults(self) -> None:
        found = self.planned("--faults", "hang,wrong", "--faults", "die")["faults"]
        assert {one["fault"] for one in found} == {"hang", "wrong", "die"}


class TestKeeps:
    @pytest.fixture
    def drill(self) -> Path:
        """Return the folder of a finished drill with one run."""
        folder = rundir.create("d")
        run = rundir.create("d-wrong", within=folder)
        sample_evidence.write(run / rundir.EVIDENCE)
        (run / rundir.RUN).write_text("{}")
        one = Drilled(
            fault="wrong", injected="wrong@h1:0", result=Result.MISSED, why="not rejected"
        )
        result = Drill(
            schema=1, drill="d", machine="cpu", suite="quick", backend="ssh", seed=1,
            hosts=("h1",), clean="pass", clean_attempt="d-clean", faults=(one,), exit=3,
        )  # fmt: skip
        (folder / rundir.DRILL).write_text(json.dumps(dump(result)))
        return folder

    def test_a_drill_is_listed_with_its_result(self, drill: Path) -> None:
        assert "drill: 0 of 1 caught; missed: wrong" in accept("list", "runs").out
        (drill / rundir.DRILL).write_text("{")
        assert "cannot be read" in accept("list", "runs").out

    @pytest.mark.parametrize("command", ["judge", "watch", "collect", "report", "cancel"])
    @pytest.mark.parametrize("name", ["d", "last"])
    def test_a_drill_is_refused_as_a_run(self, drill: Path, command: str, name: str) -> None:
        assert "d-wrong" in refused(command, name, error="E-RUN-IS-DRILL")

    def test_its_runs_are_found_by_name(self, drill: Path) -> None:
        assert accept("judge", "d-wrong").code == accept("judge", drill / "d-wrong").code != 2

    def test_its_result_has_a_schema(self, drill: Path) -> None:
        known = json.loads(accept("show", "schema", "drill").out)["properties"]
        assert set(json.loads((drill / rundir.DRILL).read_text())) <= set(known)


class TestInjection:
    def test_ranks_get_only_the_faults_of_ranks(self) -> None:
        injected = ("wrong@h1:0", "slow-link@h2", "full-disk@h3", "unreachable@h4", "sockets@*")
        assert for_ranks(parse_faults(injected, ())) == "wrong@h1:0,full-disk@h3"

    def test_ranks_and_command_line_know_the_same_faults(self) -> None:
        text = (resources.launchers() / "programs" / "rank_io.py").read_text()
        known = dict(re.findall(r"^(FAULTS|AROUND) = (\(.*\))$", text, re.MULTILINE))
        of_ranks = {fault.name for fault in FAULTS.values() if fault.scope is Scope.RANK}
        of_hosts = {fault.name for fault in FAULTS.values() if fault.for_ranks}
        assert set(ast.literal_eval(known["FAULTS"])) == of_ranks
        assert set(ast.literal_eval(known["AROUND"])) == of_hosts

    def test_an_unreachable_host_gets_a_closed_port_unless_it_is_the_first(self) -> None:
        given = (Candidate(name="h1", port=22, local=True), Candidate(name="h2", port=22))
        first = "unreachable@h1: the coordinator runs on it"
        for named, ports, noted in (
            ("unreachable@h2", [22, 1], ("injected", "unreachable@h2", "h2")),
            ("unreachable@#1", [22, 1], ("injected", "unreachable@#1", "h2")),
            ("unreachable@h1", [22, 22], ("not-injected", first, "h1")),
        ):
            kept, facts = cut_off(parse_faults([named], ()), given)
            assert [one.port for one in kept] == ports, named
            assert [(fact.name, fact.value, fact.host) for fact in facts] == [noted]
        assert cut_off((), given) == (given, ())


@pytest.mark.real
@pytest.mark.usefixtures("run_extra")
class TestHere:
    @pytest.mark.rare
    def test_faults_on_one_host_are_caught_and_leave_nothing_behind(
        self, runs: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "small.yaml").write_text(SUITE)
        options = ("-m", "cpu", "-s", tmp_path / "small.yaml", "--attempt", "d", "--json")
        faults = "slow,wrong,flip,die,full-disk"
        done = accept("drill", *options, "--only-needed", "--faults", faults)
        result = json.loads(done.out)
        shown = {one["fault"]: (one["result"], one["why"]) for one in result["faults"]}
        host = os.uname().nodename
        # One host has no peers that are faster.
        assert shown.pop("slow")[0] == "left-out"
        assert shown == {
            "wrong": ("caught", f"{host}: wrong-data"),
            "flip": ("caught", f"{host}: wrong-result"),
            "die": ("caught", f"{host}: crashed"),
            "full-disk": ("caught", f"{host}: disk-full"),
        }
        assert done.code == 6
        assert json.loads((runs / "d" / rundir.DRILL).read_text()) == result
        assert not list(runs.glob("d/*/node")), "nothing but the evidence stays"
        assert accept("judge", "d-die").out.startswith("■ DRILL")
        clean = json.loads((runs / "d/d-clean/evidence/verdict.json").read_text())
        assert (clean["accepted"], clean["injected"]) == (True, [])

    @pytest.mark.rare
    def test_ctrl_c_ends_it_and_reports_the_results_so_far(
        self, runs: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "small.yaml").write_text(SUITE)
        command = [sys.executable, "-m", "accept", "drill", "-m", "cpu", "--attempt", "d"]
        command += ["-s", str(tmp_path / "small.yaml"), "--faults", "hang"]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert process.stderr is not None
        drilled, lines = False, []
        for line in process.stderr:
            lines.append(line)
            drilled = drilled or "[1/1] hang@" in line
            if drilled and "20-connectivity (" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (130, ""), "".join([*lines, err])
        assert "the drill was interrupted" in err
        assert "Traceback" not in err
        kept = json.loads((runs / "d" / rundir.DRILL).read_text())
        assert kept["interruption"] == "interrupted"
        assert (runs / "d/d-hang/evidence/verdict.json").is_file()
        assert not list(runs.glob("d/*/node"))
