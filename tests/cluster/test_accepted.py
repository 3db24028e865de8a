"""Good hosts are accepted, with either Open MPI, and are unchanged afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.runs import EVERYTHING, VENV, VENV_MPI4, Lab

Make = Callable[..., Lab]


@pytest.mark.parametrize(
    ("venv", "version", "hosts"),
    [
        pytest.param(VENV, 5, 6, id="mpi-5.0"),
        pytest.param(VENV_MPI4, 4, 4, id="mpi-4.1"),
    ],
)
def test_good_hosts_are_accepted(make_lab: Make, venv: Path, version: int, hosts: int) -> None:
    lab = make_lab(hosts, venv=venv)
    done = lab.run(checks=EVERYTHING)
    assert done.ending == ("pass", 0), done.err
    assert done.suspects == set()
    assert done.result["headline"] == "pass (no GPU tested)"
    assert done.result["hosts"] == list(lab.hosts.names)
    assert {each["check"] for each in done.result["checks"] if each["state"] == "pass"} == {
        *("hosts", "inventory", "health", "connectivity", "train"),
        *("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv"),
    }
    lab.nothing_is_left()
    lab.evidence_holds(done)
    folder = lab.evidence(done.result["attempt"])
    (log,) = (folder / "logs" / "30-connectivity").iterdir()
    assert f"# Open MPI {version}:" in log.read_text()
    answers = (folder / "connectivity-test.log").read_text()
    assert all(f"\n{host} " in answers for host in lab.hosts.names)
    tables = (folder / "nccl-test-results.txt").read_text()
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"):
        assert re.search(rf"\n# {collective}_perf, \d+ ranks on {hosts} nodes, torch 2", tables)
