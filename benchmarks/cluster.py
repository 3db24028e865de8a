"""Measure discovery of pods, overhead of a run, and size of rendered values on a real Kubernetes.

The time from `helm install` to the hostfile includes the start of the pods. It is compared with
`mpirun hostname` in the same pods, on 3 nodes and on as many nodes as this machine can run.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, Desk
from tests.cluster.runs import CONNECT
from tests.factories.chart_runs import values

from benchmarks import Row
from benchmarks.overhead import MACHINE_TEXT, shares

_NODES = (3, 16)
#: Seconds from the applied objects to the hostfile.
_HOSTFILE = 5.0
#: Seconds that a run of `quick` may take outside the waves, if that is more than the share.
_OUTSIDE = 5.0
_SIZES = (8, 64, 1000)
_HOSTNAME = (
    "ACCEPT_DIR=/opt/accept ACCEPT_EXEC=bench; export ACCEPT_DIR ACCEPT_EXEC; cd /opt/accept; "
    "read -r ACCEPT_RUN < run; export ACCEPT_RUN; . ./lib.sh; read_group; "
    # Open MPI 5.0 sometimes hangs if ranks end immediately.
    "launch 1 sh -c 'hostname; sleep 0.3'"
)


def _seconds(stamp: str) -> float:
    """Return the seconds of a time as Kubernetes writes it, with up to nanoseconds."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z", r"\1Z", stamp)).timestamp()


def _warm_up(cluster: Cluster) -> None:
    """Make a run that is not measured: a new JobSet controller needs 10 s for its first."""
    with (
        cluster.namespace(wait=True) as namespace,
        tempfile.TemporaryDirectory(prefix="accept-bench-") as folder,
    ):
        desk = Desk(cluster, namespace, Path(folder))
        desk.install(desk.render(nodes=1))
        desk.ended()


def _discovery(nodes: int) -> list[Row]:
    """Measure one run on a new cluster of `nodes` nodes."""
    with (
        Cluster(nodes) as cluster,
        cluster.namespace(wait=True) as namespace,
        tempfile.TemporaryDirectory(prefix="accept-bench-") as folder,
    ):
        _warm_up(cluster)
        desk = Desk(cluster, namespace, Path(folder))
        file = desk.render(nodes=nodes, checks=[*CONNECT, WAITS])
        began = time.time()
        desk.install(file)
        applied = time.time()
        desk.wait_for_log("[1/2]")
        pods = desk.pods()
        pod = pods[0]["metadata"]["name"]
        inside = ("-n", namespace, "exec", pod, "-c", "accept", "--", "sh", "-c")

        # Uses the kubelet's time stamps, because `desk` reads a line later than the pod writes it.
        def printed_at(index: int, words: str) -> float:
            log = desk.log(index, stamped=True)
            return next(_seconds(line.split()[0]) for line in log.splitlines() if words in line)

        ready = printed_at(0, f"hosts: {nodes} of {nodes}")
        running = max(printed_at(index, "accept: ") for index in pods)
        start = time.perf_counter()
        answer = cluster.kubectl(*inside, _HOSTNAME).stdout
        taken = time.perf_counter() - start - 0.3
        desk.let_go_on()
        if answer.count("-w-0-") < nodes:
            raise RuntimeError(f"mpirun did not reach all: {answer[-500:]}")
        desk.ended()
    yardstick = f"`mpirun hostname` in them {taken:.1f} s"
    rows = [
        Row(
            what=f"{nodes} pods: {what}",
            measured=f"{seconds:.1f} s",
            yardstick=yardstick,
            ratio=seconds / taken,
        )
        for what, seconds in (
            ("from `helm install` to the hostfile", ready - began),
            ("… after `helm install` has applied the objects", ready - applied),
            ("… after the last pod runs", ready - running),
        )
    ]
    rows[1] = replace(rows[1], bar=f"{_HOSTFILE:.0f} s", met=ready - applied <= _HOSTFILE)
    return rows


def _overhead(nodes: int = 3) -> list[Row]:
    """Measure a full `accept run` of `quick`, including pod start and evidence download."""
    with (
        Cluster(nodes) as cluster,
        cluster.namespace(wait=True) as namespace,
        tempfile.TemporaryDirectory(prefix="accept-bench-") as folder,
    ):
        _warm_up(cluster)
        desk = Desk(cluster, namespace, Path(folder), results={"holdSeconds": 60})
        desk.machine.write_text(MACHINE_TEXT)
        options = ("--nodes", str(nodes), "--machine", str(desk.machine), "--site", str(desk.site))
        began = time.time()
        done = desk.command("run", *options, "--json").wait()
        wall = time.time() - began
        if done.exit != 0:
            raise RuntimeError(done.err[-2000:])
        text = (desk.evidence(desk.attempt()) / "records.jsonl").read_text()
        records = [json.loads(line) for line in text.splitlines()]
    return shares(records, wall, f"`quick` on {nodes} pods", seconds=_OUTSIDE)


def rows() -> list[Row]:
    """Measure discovery, overhead, and the size of rendered values."""
    measured = [row for nodes in _NODES for row in _discovery(nodes)]
    measured += _overhead()
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as folder:
        for nodes in _SIZES:
            size = len(values(Path(folder), "a4-highgpu-8g", nodes=nodes).read_bytes())
            measured.append(Row(what=f"values of {nodes:,} nodes", measured=f"{size / 1e3:.0f} kB"))
    return measured


if __name__ == "__main__":
    print(json.dumps([row.cells() for row in rows()], indent=1))
