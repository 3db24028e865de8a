"""The folder of a run on its hosts: its file system may be mounted noexec, its path may be long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.hosts import Hosts
from tests.cluster.runs import CONNECT, VENV, VENV_MPI4, Lab

Make = Callable[..., Lab]
SCRIPT = "check: script, script: own.sh, groups: all, params: {name: own}"


def forbid_exec(hosts: Hosts) -> None:
    """Remount the /tmp of every host so that no file in it can be executed."""
    for name in hosts.names:
        hosts.run(name, "mount -o remount,nosuid,nodev,noexec /tmp")


@pytest.mark.parametrize("venv", [VENV, VENV_MPI4], ids=["mpi-5.0", "mpi-4.1"])
def test_two_hosts_with_a_noexec_scratch_folder_are_accepted(make_lab: Make, venv: Path) -> None:
    lab = make_lab(2, venv=venv, before=forbid_exec)
    (lab.folder / "own.sh").write_text("#!/bin/sh\nexit 0\n")
    done = lab.run(checks=[*CONNECT, SCRIPT])
    assert done.ending == ("pass", 0), done.err
    lab.nothing_is_left()


def test_doctor_reports_a_noexec_scratch_folder_and_passes(make_lab: Make) -> None:
    lab = make_lab(1, before=forbid_exec)
    done = lab.do(
        *("doctor", "--hosts", *lab.hosts.names, "--json"),
        *("--machine", str(lab.machine), "--site", str(lab.site)),
        *("--suite", str(lab.suite(CONNECT))),
    )
    assert done.exit == 0, done.out
    (need,) = (each for each in done.result["needs"] if each["code"] == "R-SCRATCH")
    assert need["good"]
    assert "noexec" in need["found"]


def test_two_hosts_with_the_longest_attempt_and_a_long_scratch_path_are_accepted(
    make_lab: Make,
) -> None:
    lab = make_lab(2)
    scratch = f"/tmp/{'s' * 60}"
    for name in lab.hosts.names:
        lab.hosts.run(name, f"mkdir {scratch}")
    lab.site.write_text(f"{lab.site.read_text()}  scratch: {scratch}\n")
    done = lab.run("--attempt", "a" * 63, checks=CONNECT)
    assert done.ending == ("pass", 0), done.err
