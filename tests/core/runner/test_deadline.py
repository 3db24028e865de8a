"""A run ends at its deadline and names the rank that delayed it, if that is known."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.factories.paths import ROOT

from accept.core import evidence
from accept.core.runner import supervise
from accept.core.runner.coordinator import coordinate
from accept.core.runner.discovery import Candidate
from accept.core.runner.launch import Launch
from accept.core.serde import dump
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

#: Rank 1 waits for rank 0, which never entered operation 8; neither has moved for a minute.
HELD_UP = """\
mkdir -p "$ACCEPT_PROGRESS"
cd "$ACCEPT_PROGRESS"
echo '7 all_reduce 4096' > 0
echo '8 all_reduce 4096' > 1
touch -d '-1 minute' 0 1
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return a coordinator's folder on one host, with a plan of one user script."""
    (tmp_path / "own.sh").write_text("#!/bin/sh\n")
    entry = "{check: script, script: own.sh, groups: all, timeout: 5m}"
    (tmp_path / "own.yaml").write_text(f"name: own\ndescription: Ours.\nchecks: [{entry}]\n")
    folder = tmp_path / "node"
    (folder / "tmp").mkdir(parents=True)
    render(resolve(Options(machine="cpu", nodes=1, suite=str(tmp_path / "own.yaml")))).write(folder)
    plan = json.loads((folder / evidence.PLAN).read_text())
    plan["steps"] = [step for step in plan["steps"] if step["checks"] == ["script"]]
    plan["deadlineSeconds"] = 5
    (folder / evidence.PLAN).write_text(json.dumps(plan))
    for name, text in {"host": "h0\n", "run": "one\n"}.items():
        (folder / name).write_text(text)
    here = Candidate(name="h0", local=True)
    launch = Launch(attempt="one", hosts=(here,), start_seconds=600.0)
    (folder / evidence.HOSTS).write_text(json.dumps(dump(launch)))
    return folder


def judged(node: Path, script: str) -> Any:
    """Coordinate a run whose only step runs this script and never ends; return the verdict."""
    (own,) = (node / "steps").glob("*.user")
    own.write_text(f"#!/bin/sh\necho begun\n{script}\nexec sleep 600\n")
    code = asyncio.run(coordinate(node))
    verdict = json.loads((node / "evidence" / evidence.VERDICT).read_text())
    assert verdict["exit"] == code
    return verdict


def end(node: Path, script: str) -> Any:
    """Coordinate such a run until its deadline ends it; return the verdict.

    The deadline begins when the hosts are found, no matter how long that took.
    """
    verdict = judged(node, script)
    assert verdict["interruption"] == "the run did not end within 5 s"
    return verdict


def test_a_rank_that_delays_the_run_is_named(node: Path) -> None:
    verdict = end(node, HELD_UP)
    assert (verdict["state"], verdict["exit"]) == ("fail", 3)
    (suspect,) = verdict["suspects"]
    assert (suspect["name"], suspect["cause"]) == ("h0", "rank-hung")


def test_a_rank_that_nccl_shows_behind_is_named(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{port}")
    ranks = " ".join(f"{rank}:{40 - (rank == 1)}" for rank in range(_ranks(node)))
    serve = f"{sys.executable} -m tests.factories.ras_server {port} {ranks}"
    verdict = end(node, f"(cd {ROOT} && exec {serve}) &")
    (suspect,) = verdict["suspects"]
    assert (suspect["name"], suspect["cause"]) == ("h0", "rank-hung")
    assert list((node / "evidence" / "logs").rglob("*.ras.log"))


def _ranks(node: Path) -> int:
    """Return the number of ranks per host in the plan."""
    machine = json.loads((node / evidence.PLAN).read_text())["machine"]
    return int(machine["ranks"])


def test_a_failed_launch_that_hangs_is_ended(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_LOOK", 0.1)
    monkeypatch.setattr(supervise, "_ENDING_SECONDS", 0.1)
    plan = json.loads((node / evidence.PLAN).read_text())
    plan["deadlineSeconds"] = 600
    plan["steps"][0]["checks"] = ["all-reduce"]
    (node / evidence.PLAN).write_text(json.dumps(plan))
    verdict = judged(node, "echo A daemon failed to report back after being spawned.")
    assert (verdict["state"], verdict["interruption"]) == ("fail", "")
    (found,) = (f for one in verdict["checks"] for f in one["findings"])
    assert found["cause"] == "launch-failed"


def test_a_deadline_alone_accuses_no_host(node: Path) -> None:
    verdict = end(node, "")
    assert (verdict["state"], verdict["exit"]) == ("not-tested", 5)
    assert verdict["suspects"] == []
    assert not any("cause" in found for check in verdict["checks"] for found in check["findings"])
