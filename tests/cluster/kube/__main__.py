"""`python -m tests.cluster.kube up|down|status`: a test cluster for manual use.

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
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster import folders
from tests.cluster.kube.build import NotBuilt, cache, program
from tests.cluster.kube.cluster import Cluster, why_not
from tests.cluster.kube.control import NotUp
from tests.cluster.kube.nodes import sweep_groups

_STARTED, _SECONDS = "cluster.json", 3600.0


def _state() -> Path:
    return cache() / _STARTED


def _running() -> dict[str, str]:
    """Return the stored description of the running cluster; empty if none runs."""
    try:
        found: dict[str, str] = json.loads(_state().read_text())
        os.kill(int(found["pid"]), 0)
    except (OSError, ValueError, KeyError):
        return {}
    return found


def _show(found: dict[str, str]) -> None:
    print(f"export KUBECONFIG={found['kubeconfig']}")
    print(f"export PATH={cache() / 'cluster-bin'}:$PATH")
    sys.stderr.write(f"nodes: {found['nodes']}; bucket server: {found['bucket']}\n")


def up(nodes: int) -> int:
    """Start a cluster and wait until it is up; only print it if one is up already."""
    if found := _running():
        _show(found)
        return 0
    if reason := why_not():
        sys.stderr.write(f"{reason}\n")
        return 2
    _state().unlink(missing_ok=True)
    log = cache() / "cluster.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.kube", "hold", "--nodes", str(nodes)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    sys.stderr.write(f"starting {nodes} nodes; what is built the first time takes minutes: {log}\n")
    end = time.monotonic() + _SECONDS
    while not (found := _running()):
        if process.poll() is not None or time.monotonic() > end:
            sys.stderr.write(log.read_text()[-2000:] + f"no cluster; see {log}\n")
            process.terminate()
            return 1
        time.sleep(0.2)
    _show(found)
    return 0


def hold(nodes: int) -> int:
    """Run the cluster until a signal ends it."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    with Cluster(nodes) as cluster:
        tools = cache() / "cluster-bin"
        tools.mkdir(exist_ok=True)
        for name, target in (("kubectl", "kubectl"), ("helm", "helm4"), ("helm3", "helm3")):
            (tools / name).unlink(missing_ok=True)
            (tools / name).symlink_to(program(target))
        found = {
            "pid": str(os.getpid()),
            "kubeconfig": str(cluster.kubeconfig),
            "nodes": " ".join(cluster.nodes),
            "bucket": cluster.bucket_server,
        }
        half = _state().with_suffix(".new")
        half.write_text(json.dumps(found))
        half.rename(_state())
        try:
            signal.pause()
        finally:
            _state().unlink(missing_ok=True)
    return 0


def down() -> int:
    """End the cluster and wait until it is removed."""
    found = _running()
    if not found:
        # One that was killed ended by itself, and left a little.
        folders.sweep()
        sweep_groups()
        sys.stderr.write("there is no cluster\n")
        return 0
    pid = int(found["pid"])
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while _running():
        time.sleep(0.1)
    while Path(f"/proc/{pid}").exists() and "kube" in Path(f"/proc/{pid}/cmdline").read_text():
        time.sleep(0.1)
    return 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kube", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "status", "hold"))
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (default 3)")
    options = parser.parse_args()
    try:
        if options.verb == "up":
            return up(options.nodes)
        if options.verb == "hold":
            return hold(options.nodes)
    except (NotBuilt, NotUp) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.verb == "down":
        return down()
    found = _running()
    if found:
        _show(found)
    else:
        sys.stderr.write("there is no cluster: make cluster\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
