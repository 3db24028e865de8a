"""docker/self_test.sh: it passes where an image has everything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.cluster.runs import VENV_MPI4
from tests.factories.clock import PATIENCE
from tests.factories.paths import ROOT


@pytest.mark.real
def test_passes_if_nothing_is_missing() -> None:
    if not Path("/usr/sbin/sshd").exists():
        pytest.skip("no sshd here")
    done = subprocess.run(
        ["sh", str(ROOT / "docker" / "self_test.sh"), "cpu"],
        env={**os.environ, "PATH": f"{VENV_MPI4 / 'bin'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    last = done.stdout.splitlines()[-1].partition(": ")[2]
    assert (done.returncode, last) == (0, "passed"), done.stderr
