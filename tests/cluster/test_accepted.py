"""Hosts that are good are accepted, with either Open MPI, and look as before afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.runs import CONNECT, EVERYTHING, VENV, VENV_MPI4, Lab

Make = Callable[..., Lab]


@pytest.mark.parametrize(
    ("venv", "version"), [(VENV, 5), (VENV_MPI4, 4)], ids=["mpi-5.0", "mpi-4.1"]
)
def test_eight_good_hosts_are_accepted(make_lab: Make, venv: Path, version: int) -> None:
    lab = make_lab(8, venv=venv)
    done = lab.run("--deadline", "200s", checks=EVERYTHING)
    assert done.ending == ("pass", 0), done.err
    assert done.suspects == set()
    assert done.result["headline"] == "pass (no GPU tested)"
    assert done.result["hosts"] == list(lab.hosts.names)
    assert {each["check"] for each in done.result["checks"] if each["state"] == "pass"} == {
        *("hosts", "inventory", "connectivity", "train"),
        *("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv"),
    }
    lab.nothing_is_left()
    lab.evidence_holds(done)
    (log,) = (lab.evidence(done.result["attempt"]) / "logs" / "20-connectivity").iterdir()
    assert f"# Open MPI {version}:" in log.read_text()


def test_a_dry_run_shows_the_plan_and_touches_no_host(make_lab: Make) -> None:
    lab = make_lab(2, before=lambda hosts: hosts.stop_sshd("h1", "h2"))
    done = lab.run("--dry-run", checks=EVERYTHING)
    assert done.exit == 0
    assert done.result["hosts"] == ["h1", "h2"]
    assert done.result["seconds"] > 0
    assert not lab.runs.exists()


def test_two_runs_at_once_do_each_other_no_harm(make_lab: Make) -> None:
    lab = make_lab(4)
    both = [lab.start("--deadline", "120s", checks=CONNECT) for _ in range(2)]
    done = [each.wait() for each in both]
    assert [each.ending for each in done] == [("pass", 0)] * 2, done[0].err + done[1].err
    assert len({each.result["attempt"] for each in done}) == 2
    lab.nothing_is_left()
    for each in done:
        lab.evidence_holds(each)
