"""`accept gate`: one line and exit code 0 or 3 about this host, and evidence like any run."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from tests.factories.clock import PATIENCE
from tests.factories.command_line import SOURCE, Done, accept, refused
from tests.factories.paths import ROOT
from tests.factories.ports import free_port
from tests.golden.runs import FAMILIES

from accept.commands import timed
from accept.commands.choices import OnTimeout
from accept.commands.gate import Gated, Reason, answer_of
from accept.core.error_codes import Code
from accept.core.errors import Exit
from accept.core.verdict import State
from accept.evidence import rundir

HOST = os.uname().nodename
#: Seconds in which even a busy machine starts and ends a gate.
_LONG = f"{PATIENCE}s"
#: What is quick, and then a check that never ends.
_ENDLESS = """\
name: endless
description: Ours.
checks:
- check: inventory
- {check: all-reduce, groups: each, timeout: 20m, params: {iters: 10000000}}
"""


@pytest.fixture(autouse=True)
def runs(run_extra: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    return tmp_path / "runs"


def gate(*words: object) -> Done:
    return accept("gate", "-m", "cpu", "--time", _LONG, *words)


@pytest.mark.real
def test_a_good_host_passes_with_one_line_and_evidence_like_any_run() -> None:
    done = gate()
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(
        rf"GATE pass {HOST} \(no GPU tested\) · [^·]*, on-timeout fail · run \S+\n", done.out
    )
    run = done.out.split()[-1]
    assert accept("explain", "last", HOST).code == 0
    assert accept("verify", run).code == 0
    assert "pass (no GPU tested)" in accept("list", "runs").out
    verdict = json.loads(accept("judge", run, "--json").out)
    assert verdict["state"] == "pass"
    checks = {check["check"] for check in verdict["checks"]}
    assert checks >= {"inventory", "health", "gemm", "memory", "all-reduce"}


@pytest.mark.real
def test_a_missed_bound_is_a_reason_with_its_figures(tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"
    suite.write_text(
        "name: own\ndescription: Ours.\nchecks: [{check: gemm, params: {size: 256}}]\n"
    )
    done = gate("--suite", suite, "--expect", "gemm.fp32>=1e6", "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["passed"], answer["unfinished"]) == (3, False, [])
    (reason,) = answer["reasons"]
    assert (reason["check"], reason["metric"]) == ("gemm", "fp32")
    assert 0 < reason["measured"] < reason["lower"] == 1e6
    assert reason["unit"] == "TFLOP/s"
    assert reason["message"] in accept("judge", answer["attempt"], "--json").out


@pytest.mark.rare
@pytest.mark.real
@pytest.mark.parametrize(("choice", "code"), [("fail", 3), ("pass", 0)])
def test_the_site_decides_about_checks_that_do_not_finish(
    tmp_path: Path, runs: Path, choice: str, code: int
) -> None:
    suite = tmp_path / "endless.yaml"
    suite.write_text(_ENDLESS)
    done = accept("gate", "-m", "cpu", "-s", suite, "--time", "30s", "--on-timeout", choice)
    assert done.code == code, done.err
    assert re.search(
        rf"not finished within 30 s: [^·]*all-reduce · .*, on-timeout {choice}", done.out
    )
    (run,) = runs.iterdir()
    assert not (run / "node").exists()
    assert "did not run" in accept("judge", run).out


@pytest.mark.real
def test_a_verdict_that_cannot_be_written_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = tmp_path / "own.yaml"
    suite.write_text("name: own\ndescription: Ours.\nchecks: [{check: inventory}]\n")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "verdict.json")

    monkeypatch.setattr(timed, "write_verdict", fail)
    done = gate("--suite", suite)
    assert (done.code, done.out[:9], done.err) == (0, "GATE pass", "")


@pytest.mark.rare
@pytest.mark.real
def test_the_init_container_of_the_example_starts_the_job_of_a_good_host() -> None:
    pod = yaml.safe_load((ROOT / "docs/gate/pod.yaml").read_text())
    (gate,) = pod["spec"]["initContainers"]
    for machine, code in (("h100-8", Exit.REJECTED), ("cpu", Exit.PASS)):
        words = [word.replace("h100-8", machine).replace("60s", _LONG) for word in gate["command"]]
        assert words[0] == "accept"
        assert accept(*words[1:]).code == code


@pytest.mark.real
@pytest.mark.parametrize(("machine", "status"), [("h100-8", 404), ("cpu", 200)])
def test_the_pod_of_the_readiness_rule_answers_whether_its_host_is_good(
    tmp_path: Path, machine: str, status: int
) -> None:
    _, _, _, _, daemons = yaml.safe_load_all((ROOT / "docs/gate/node-readiness.yaml").read_text())
    gate, reporter = daemons["spec"]["template"]["spec"]["containers"]
    (script,), port = gate["args"], free_port()
    for ours, theirs in (
        ("h100-8", machine), ("60s", _LONG), ("/tmp/answer", f"{tmp_path}/answer"), ("9099", port),
    ):  # fmt: skip
        assert ours in script
        script = script.replace(ours, str(theirs))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    server = subprocess.Popen(
        [*gate["command"], script], env={**os.environ, "PATH": path}, stderr=subprocess.DEVNULL
    )
    (url,) = (one["value"] for one in reporter["env"] if one["name"] == "CHECK_ENDPOINT")
    try:
        assert answer(url.replace("9099", str(port)), server) == status
    finally:
        server.terminate()
        server.wait()


def answer(url: str, server: subprocess.Popen[bytes]) -> int:
    """Return the status of the answer of a server that starts."""
    for _ in range(10 * PATIENCE):
        try:
            with urllib.request.urlopen(url) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            assert server.poll() is None
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def test_a_host_without_a_gpu_does_not_pass_unless_the_machine_is_named() -> None:
    done = accept("gate", "--json")
    (reason,) = json.loads(done.out)["reasons"]
    assert (done.code, reason["code"]) == (3, Code.LOCAL_NO_GPU)
    assert rundir.listed() == ()


def test_options_are_refused_like_those_of_a_run() -> None:
    refused("gate", "--time", "soon", error="E-OPTION-DURATION")
    refused("gate", "-m", "cpu", "--expect", "train.throughput>=1", error="E-EXPECT-CHECK")
    refused("gate", "--on-timeout", "maybe", error="E-USAGE")
    plan = json.loads(accept("gate", "-m", "cpu", "--dry-run", "--json").out)
    assert (plan["suite"], plan["backend"], rundir.listed()) == ("gate", "local", ())
    # The estimate is longer than the limit, so the plan explains both.
    assert "limit: 15 s (--time)" in accept("gate", "-m", "cpu", "--dry-run", "--time", "15s").out


@pytest.mark.parametrize("family", ["recorded", "small"])
def test_only_a_pass_of_every_required_check_passes(family: str) -> None:
    """A check that was measured is never excused by the time limit."""
    for name, make in FAMILIES[family].items():
        verdict = make()
        reasons, unfinished = answer_of(verdict, (), is_late=False)
        assert unfinished == (), name
        assert bool(reasons) == (verdict.state is not State.PASS), name
        _, late = answer_of(verdict, (), is_late=True)
        required = {c.check for c in verdict.checks if not (c.optional or c.state is State.PASS)}
        assert required <= {*late, *(reason.check for reason in reasons)}, name


def test_what_the_host_reports_stays_in_one_line() -> None:
    lie = "x\033[2J\nGATE pass gpu01\r\u202e"
    reason = Reason(check="memory", code="wrong-data", message=lie)
    answer = Gated(passed=False, host=lie, reasons=(reason,), on_timeout=OnTimeout.PASS)
    assert answer.line.startswith("GATE fail ")
    assert answer.line.isprintable()
