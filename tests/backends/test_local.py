"""Complete runs on this machine with real mpirun and torch, up to each kind of verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.factories.command_line import SMALL, SOURCE, Done, accept
from tests.factories.shell import write_program

from accept.backends.requirements import survey_script
from accept.core import evidence
from accept.core.errors import Exit
from accept.core.facts import mapping
from accept.core.verdict import Verification
from accept.evidence import bucket
from accept.report.console import Terminal

pytestmark = pytest.mark.real

HOST = os.uname().nodename


@pytest.fixture(autouse=True)
def runs(run_extra: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    return tmp_path / "runs"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path / "small.yaml"


def run(suite: Path, *more: object) -> Done:
    return accept("run", "-m", "cpu", "-s", suite, *more)


def processes(folder: Path) -> list[str]:
    """Return the processes with the mark of the run in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"ACCEPT_DIR={folder / 'node'}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


class TestPass:
    @pytest.mark.rare
    def test_is_not_verifiable_if_ssh_keygen_is_too_old_to_sign(
        self, suite: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = shutil.which("ssh-keygen")
        refuses = "case $* in *'-Y sign'*) echo 'unknown option -- Y' >&2; exit 1 ;; esac"
        keygen = write_program(tmp_path / "bin" / "ssh-keygen", f'{refuses}\nexec {real} "$@"')
        monkeypatch.setenv("PATH", f"{keygen.parent}:{os.environ['PATH']}")
        done = run(suite, "--attempt", "one", "--json")
        assert (done.code, json.loads(done.out)["verified"]) == (0, Verification.NOT_VERIFIABLE)
        assert evidence.NOT_SIGNED in (runs / "one" / "evidence" / "console.log").read_text()
        assert accept("judge", "one", "--verified").code == Exit.INCONCLUSIVE

    def test_health_is_read_before_every_step_and_after_the_last(
        self, suite: Path, runs: Path
    ) -> None:
        suite.write_text(SMALL[: SMALL.index("- check: connectivity")] + "- check: health\n")
        done = run(suite, "--attempt", "one", "--json")
        assert (done.code, json.loads(done.out)["state"]) == (0, "pass")
        records = tuple(evidence.read_records(runs / "one" / "evidence"))
        readings = [r for r in records if r.step == "00-hosts" and r.wave]
        order = [f"{r.step} {r.wave}" if r in readings else r.step for r in records]
        assert order == [
            "00-hosts", "00-hosts 1", "10-inventory", "00-hosts 2", "20-health", "00-hosts 3",
            "30-connectivity", "00-hosts 4",
        ]  # fmt: skip
        whole = next(r for r in records if r.step == "20-health").facts[0]
        assert float(str(mapping(whole.value)["uptime"])) > 0
        unread = [f.value for r in readings for f in r.facts if "unread" in mapping(f.value)]
        assert unread == []

    def test_shows_the_verdict_before_evidence_is_sent_to_a_place_that_may_not_answer(
        self, suite: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        suite.write_text(SMALL[: SMALL.index("- check: connectivity")])
        site = tmp_path / "site.yaml"
        site.write_text(f"results: {{location: {tmp_path / 'bucket'}}}\n")
        order: list[str] = []
        monkeypatch.setattr(Terminal, "result", lambda *_, **__: order.append("verdict"))
        monkeypatch.setattr(bucket, "send", lambda path, *_, **__: order.append(path.name))
        run(suite, "--site", site)
        assert order == ["verdict", "evidence", "report.html"]


class TestDryRun:
    def test_a_run_leaves_out_what_exceeds_its_budget_and_does_not_pass(self, suite: Path) -> None:
        done = run(suite, "--budget", "11s", "--json")
        assert done.code == 6
        states = {one["check"]: one["state"] for one in json.loads(done.out)["checks"]}
        assert states["all-reduce"] == "not-tested"
        assert states["connectivity"] == "pass"


class TestDrills:
    @pytest.mark.rare
    def test_a_hung_rank_is_named_and_nothing_stays(self, suite: Path, runs: Path) -> None:
        suite.write_text(SMALL.replace("all-reduce,", "all-reduce, timeout: 45s,"))
        done = run(suite, "--attempt", "one", "--inject", f"hang@{HOST}:1", "--json")
        verdict = json.loads(done.out)
        assert (done.code, verdict["state"]) == (3, "fail")
        assert "rank-hung" in {one["cause"] for one in verdict["suspects"]}
        assert processes(runs / "one") == []

    @pytest.mark.rare
    def test_a_drill_is_never_an_acceptance(self, suite: Path) -> None:
        """A fault that does no harm (here: on a rank that does not exist) still marks the run."""
        done = run(suite, "--inject", f"wrong@{HOST}:77", "--json")
        verdict = json.loads(done.out)
        assert done.code != 0
        assert verdict["accepted"] is False
        assert verdict["injected"] == [f"wrong@{HOST}:77"]


class TestEnd:
    def begun(self, suite: Path, runs: Path, attempt: str) -> None:
        """Start a run whose rank hangs, and wait until its step runs."""
        assert run_submit(suite, attempt, f"hang@{HOST}:0").code == 0
        console = runs / attempt / "node" / "console.log"
        while not (console.exists() and "20-connectivity (" in console.read_text()):
            assert not (runs / attempt / "node" / "status").exists(), console.read_text()
            time.sleep(0.05)

    @pytest.mark.rare
    def test_cancel_does_not_end_another_run_of_the_same_name(
        self, suite: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two people can share a machine."""
        other = tmp_path / "other"
        for folder in (runs, other):
            monkeypatch.setenv("ACCEPT_RUNS", str(folder))
            self.begun(suite, folder, "one")
        assert accept("cancel", "one").code == 0
        assert processes(other / "one") == []
        assert processes(runs / "one") != []
        monkeypatch.setenv("ACCEPT_RUNS", str(runs))
        assert accept("cancel", "one").code == 0
        assert processes(runs / "one") == []


def run_submit(suite: Path, attempt: str, fault: str) -> Done:
    return accept("submit", "-m", "cpu", "-s", suite, "--attempt", attempt, "--inject", fault, "-q")


class TestScript:
    def own(self, tmp_path: Path, script: str) -> Path:
        """Write a user's suite of one script."""
        (tmp_path / "mine.sh").write_text(script)
        entry = "{check: script, groups: each, script: mine.sh}"
        text = f"name: own\ndescription: Ours.\nchecks:\n- {entry}\n"
        (tmp_path / "own.yaml").write_text(text)
        return tmp_path / "own.yaml"

    def test_is_run_and_its_metrics_are_compared_with_the_expected_values(
        self, tmp_path: Path
    ) -> None:
        line = 'ACCEPT {"metric":"free","value":42,"unit":"GB"}'
        suite = self.own(tmp_path, f"#!/bin/sh\necho '{line}'\n")
        done = run(suite, "--expect", "script.free>=40")
        assert done.code == 0, done.out
        assert "connectivity was added" in done.err
        done = accept("judge", "last", "--expect", "script.free>=50")
        assert done.code == 3
        assert "42" in done.out
        assert "50" in done.out

    def test_that_fails_fails_the_run(self, tmp_path: Path) -> None:
        done = run(self.own(tmp_path, "#!/bin/sh\necho no; exit 3\n"), "--json")
        findings = [f for c in json.loads(done.out)["checks"] for f in c["findings"]]
        assert done.code == 3
        assert "script-failed" in {finding.get("cause") for finding in findings}


def test_doctor_finds_nothing_missing_on_this_machine() -> None:
    done = accept("doctor", "-m", "cpu", "--json")
    assert done.code == 0, done.out
    assert all(need["good"] for need in json.loads(done.out)["needs"])


def test_the_script_of_doctor_is_plain_sh() -> None:
    done = subprocess.run(["sh", "-n", "-c", survey_script()], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
