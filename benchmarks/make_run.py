"""Measure how long `make run` takes on this machine after the set-up."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import Row

_BAR = 60.0
_ROOT = Path(__file__).resolve().parents[1]


def rows() -> list[Row]:
    """Measure one run. It must be accepted, because an interrupted run takes less time."""
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as folder:
        environment = {**os.environ, "ACCEPT_RUNS": folder}
        subprocess.run(
            ["make", ".venv/.stamp-run"], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL
        )
        began = time.perf_counter()
        subprocess.run(
            ["make", "run"], cwd=_ROOT, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        taken = time.perf_counter() - began
    return [
        Row(
            what="`make run` after set-up",
            measured=f"{taken:.1f} s",
            bar=f"{_BAR:.0f} s",
            met=taken <= _BAR,
        )
    ]
