"""docker/self_test.sh: it passes where an image has everything, and names what an image lacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.cluster.runs import VENV_MPI4
from tests.factories.paths import ROOT
from tests.factories.shell import run_program

pytestmark = pytest.mark.real

PROGRAMS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")


def self_tested(target: str, *folders: Path) -> tuple[int, str]:
    """Run it with the tools of this machine; return the exit code and the last line."""
    if not Path("/usr/sbin/sshd").exists():
        pytest.skip("no sshd here")
    path = ":".join([*map(str, folders), str(VENV_MPI4 / "bin"), os.environ["PATH"]])
    done = run_program(
        ["sh", ROOT / "docker" / "self_test.sh", target], env={**os.environ, "PATH": path}
    )
    return done.returncode, done.stdout.splitlines()[-1].partition(": ")[2]


def test_passes_if_nothing_is_missing() -> None:
    assert self_tested("cpu") == (0, "passed")


@pytest.mark.rare
@pytest.mark.parametrize("suffix", ["", "_mpi"])
def test_finds_nccl_tests_by_both_names(tmp_path: Path, suffix: str) -> None:
    # Any program with libraries stands in for them.
    for name in PROGRAMS:
        shutil.copy("/bin/ls", tmp_path / f"{name}_perf{suffix}")
    assert self_tested("ngc", tmp_path) == (0, "passed")
    (tmp_path / f"sendrecv_perf{suffix}").unlink()
    assert self_tested("ngc", tmp_path) == (1, "nccl-tests lacks sendrecv_perf")
