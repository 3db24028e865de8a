"""On a real Kubernetes: how soon pods are found, and how large what is rendered is.

From `helm install` to the hostfile, which counts the pods' start, against `mpirun hostname` in the
same pods; on three nodes, and on as many as this machine carries.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, Desk
from tests.cluster.runs import CONNECT
from tests.factories.chart_runs import values

from benchmarks import Row
from benchmarks.overhead import MACHINE_TEXT, shares

_NODES = (3, 16)
_SIZES = (8, 64, 1000)
_HOSTNAME = (
    "ACCEPT_DIR=/opt/accept ACCEPT_EXEC=bench; export ACCEPT_DIR ACCEPT_EXEC; cd /opt/accept; "
    "read -r ACCEPT_RUN < run; export ACCEPT_RUN; . ./lib.sh; read_group; "
    # Ranks that end at once make Open MPI 5.0 hang now and then.
    "launch 1 sh -c 'hostname; sleep 0.3'"
)


def _seconds(stamp: str) -> float:
    """Of a time as Kubernetes writes it, up to nanoseconds."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z", r"\1Z", stamp)).timestamp()


def _first(cluster: Cluster) -> None:
    """A run that is not measured: a new JobSet controller takes ten seconds over its first."""
    with (
        cluster.namespace(wait=True) as namespace,
        tempfile.TemporaryDirectory(prefix="accept-bench-") as folder,
    ):
        desk = Desk(cluster, namespace, Path(folder))
        desk.install(desk.render(nodes=1))
        desk.ended()


def _found(nodes: int) -> list[Row]:
    """One cluster of this many nodes, and one run on it."""
    with (
        Cluster(nodes) as cluster,
        cluster.namespace(wait=True) as namespace,
        tempfile.TemporaryDirectory(prefix="accept-bench-") as folder,
    ):
        _first(cluster)
        desk = Desk(cluster, namespace, Path(folder))
        file = desk.render(nodes=nodes, checks=[*CONNECT, WAITS])
        began = time.time()
        desk.install(file)
        desk.says("[1/2]")
        pods = desk.pods()
        pod = pods[0]["metadata"]["name"]
        inside = ("-n", namespace, "exec", pod, "-c", "accept", "--", "sh", "-c")

        # Stamped by the kubelet, because what `says` sees comes later.
        def said(index: int, words: str) -> float:
            log = desk.log(index, stamped=True)
            return next(_seconds(one.split()[0]) for one in log.splitlines() if words in one)

        ready = said(0, f"hosts: {nodes} of {nodes}")
        running = max(said(index, "accept: ") for index in pods)
        start = time.perf_counter()
        answer = cluster.kubectl(*inside, _HOSTNAME).stdout
        taken = time.perf_counter() - start - 0.3
        desk.let_go_on()
        if answer.count("-w-0-") < nodes:
            raise RuntimeError(f"mpirun did not reach all: {answer[-500:]}")
        desk.ended()
    yardstick = f"`mpirun hostname` in them {taken:.1f} s"
    return [
        Row(
            what=f"{nodes} pods: {what}",
            measured=f"{seconds:.1f} s",
            yardstick=yardstick,
            ratio=seconds / taken,
        )
        for what, seconds in (
            ("from `helm install` to the hostfile", ready - began),
            ("… of it after the last pod runs", ready - running),
        )
    ]


def _overhead(nodes: int = 3) -> list[Row]:
    """A whole `accept run` of `quick`, pods' start and the fetching of evidence included."""
    with (
        Cluster(nodes) as cluster,
        cluster.namespace(wait=True) as namespace,
        tempfile.TemporaryDirectory(prefix="accept-bench-") as folder,
    ):
        _first(cluster)
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
    return shares(records, wall, f"`quick` on {nodes} pods")


def rows() -> list[Row]:
    """Pods found, a run's overhead, and bytes rendered."""
    found = [row for nodes in _NODES for row in _found(nodes)]
    found += _overhead()
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as folder:
        for nodes in _SIZES:
            size = len(values(Path(folder), "a4-highgpu-8g", nodes=nodes).read_bytes())
            found.append(Row(what=f"values of {nodes:,} nodes", measured=f"{size / 1e3:.0f} kB"))
    return found


if __name__ == "__main__":
    print(json.dumps([row.cells() for row in rows()], indent=1))
