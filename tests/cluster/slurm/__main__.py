"""`python -m tests.cluster.slurm up|down`: a test cluster of Slurm for manual use.

Tests make clusters of their own. This one lives in a process of its own until `down`, or until that
process ends; one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster import folders
from tests.cluster.runs import VENV
from tests.cluster.slurm.cluster import SlurmCluster, why_not

_SECONDS = 300.0
_STATE = Path(tempfile.gettempdir()) / "accept-slurm.json"


def _running() -> dict[str, str]:
    """Return the description of the running cluster; empty if none runs."""
    try:
        found: dict[str, str] = json.loads(_STATE.read_text())
        os.kill(int(found["pid"]), 0)
    except (OSError, ValueError, KeyError):
        return {}
    return found


def _show(found: dict[str, str]) -> None:
    print(f"export SLURM_CONF={found['conf']}")
    sys.stderr.write(f"nodes: {found['nodes']}; all nodes see {found['home']}\n")


def up(nodes: int) -> int:
    """Start a cluster and wait until it is up; only print it if one is up already."""
    if found := _running():
        _show(found)
        return 0
    if reason := why_not():
        sys.stderr.write(f"{reason}\n")
        return 2
    _STATE.unlink(missing_ok=True)
    log = _STATE.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.slurm", "hold", "--nodes", str(nodes)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    end = time.monotonic() + _SECONDS
    while not (found := _running()):
        if process.poll() is not None or time.monotonic() > end:
            process.terminate()
            sys.stderr.write(f"{log.read_text()[-2000:]}no cluster; see {log}\n")
            return 1
        time.sleep(0.1)
    _show(found)
    return 0


def hold(nodes: int) -> int:
    """Run the cluster until a signal ends it."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    with SlurmCluster(nodes, venv=VENV) as cluster:
        found = {
            "pid": str(os.getpid()),
            "conf": cluster.environment["SLURM_CONF"],
            "home": str(cluster.home),
            "nodes": " ".join(cluster.names),
        }
        half = _STATE.with_suffix(".new")
        half.write_text(json.dumps(found))
        half.rename(_STATE)
        try:
            signal.pause()
        finally:
            _STATE.unlink(missing_ok=True)
    return 0


def down() -> int:
    """End the cluster and wait until it is removed."""
    found = _running()
    if not found:
        folders.sweep()
        sys.stderr.write("there is no cluster\n")
        return 0
    pid = int(found["pid"])
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    with suppress(OSError):
        while b"tests.cluster.slurm" in Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0.1)
    return 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.slurm", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "hold"))
    parser.add_argument("--nodes", type=int, default=4, help="how many nodes (default 4)")
    options = parser.parse_args()
    if options.verb == "down":
        return down()
    return (up if options.verb == "up" else hold)(options.nodes)


if __name__ == "__main__":
    sys.exit(main())
