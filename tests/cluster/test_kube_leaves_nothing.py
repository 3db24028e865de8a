"""A cluster leaves nothing behind, also if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.cluster import folders
from tests.cluster.kube import nodes
from tests.cluster.kube.cluster import why_not
from tests.cluster.runs import until
from tests.factories.paths import ROOT

GROUPS = Path("/sys/fs/cgroup")
#: A cluster of one node that prints its state folder and its link, then runs until it is killed.
HALF_WAY = """
import time
from tests.cluster.kube.cluster import Cluster

class PrintingCluster(Cluster):
    def _start_control(self):
        print(self.hosts.state.name, self.hosts.switch.interface, flush=True)
        super()._start_control()

with PrintingCluster(1):
    time.sleep(3600)
"""


def left(state: str, link: str) -> set[str]:
    """Return remains of a cluster: processes, mounts, cgroups, files, links, routes."""
    found = {folder for folder, _, _ in os.walk(GROUPS) if state in folder}
    found |= {str(path) for path in Path(tempfile.gettempdir()).glob(f"{state}*")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "cgroup").read_bytes()
        except OSError:
            continue
        if state.encode() in words:
            found.add(str(process))
    for shown in (["cat", "/proc/self/mounts"], ["ip", "-br", "link"], ["ip", "route"]):
        lines = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        found |= {line for line in lines.splitlines() if state in line or link in line}
    return found


def swept(state: str, link: str) -> bool:
    """Sweep; return True if nothing is left. The kernel removes links a while after their users."""
    folders.sweep()
    nodes.sweep_groups()
    return not left(state, link)


def test_what_a_killed_cluster_leaves_is_swept() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with subprocess.Popen(
        [sys.executable, "-c", HALF_WAY], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        try:
            assert child.stdout
            state, link = child.stdout.readline().split()
            # The kubelet makes it when it is ready for pods.
            group = f"{state}-h2/kubepods"
            until(lambda: list(GROUPS.glob(f"*/{group}")) or (GROUPS / group).exists())
            assert left(state, link)
        finally:
            child.send_signal(signal.SIGKILL)
    until(lambda: not [each for each in left(state, link) if each.startswith("/proc/")])
    until(lambda: swept(state, link))
