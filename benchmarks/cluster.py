"""On a real Kubernetes: how soon pods are found, and how large what is rendered is.

From `helm install` to the hostfile, which counts the pods' start, against `mpirun hostname` in the
same pods; on three nodes, and on as many as this machine carries.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path

from tests.chartcases import values
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import CONNECT

from benchmarks import Row

_NODES = (3, 16)
_SIZES = (8, 64, 1000)
#: On one host, so that the pods stay until somebody lets the run go on.
_WAITS = "check: script, script: own.sh, groups: all, timeout: 200s, params: {name: wait}"
_OWN = "#!/bin/sh\nuntil [ -e /tmp/go-on ]; do sleep 0.2; done\n"
_HOSTNAME = (
    "ACCEPT_DIR=/opt/accept ACCEPT_EXEC=bench; export ACCEPT_DIR ACCEPT_EXEC; cd /opt/accept; "
    "read -r ACCEPT_RUN < run; export ACCEPT_RUN; . ./lib.sh; read_group; "
    # Ranks that end at once make Open MPI 5.0 hang now and then.
    "launch 1 sh -c 'hostname; sleep 0.3'"
)


def _found(nodes: int) -> Row:
    """One cluster of this many nodes, and one run on it."""
    with (
        Cluster(nodes) as cluster,
        cluster.namespace() as namespace,
        tempfile.TemporaryDirectory(prefix="accept-bench-") as folder,
    ):
        desk = Desk(cluster, namespace, Path(folder))
        (Path(folder) / "own.sh").write_text(_OWN)
        file = desk.render(nodes=nodes, checks=[*CONNECT, _WAITS])
        began = time.time()
        desk.install(file)
        desk.says("[1/2]")
        pod = desk.pods()[0]["metadata"]["name"]
        inside = ("-n", namespace, "exec", pod, "-c", "accept", "--", "sh", "-c")
        # The coordinator's own words, stamped by the kubelet: what `says` sees comes later.
        log = cluster.kubectl("-n", namespace, "logs", pod, "-c", "accept", "--timestamps").stdout
        (line,) = (one for one in log.splitlines() if f"hosts: {nodes} of {nodes}" in one)
        stamp = re.sub(r"(\.\d{6})\d*Z", r"\1+00:00", line.split()[0])
        ready = time.mktime(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
        ready += float(stamp[19:26])
        start = time.perf_counter()
        said = cluster.kubectl(*inside, _HOSTNAME).stdout
        taken = time.perf_counter() - start - 0.3
        cluster.kubectl(*inside, "touch /tmp/go-on")
        if said.count("-w-0-") < nodes:
            raise RuntimeError(f"mpirun did not reach all: {said[-500:]}")
        desk.ended()
    return Row(
        what=f"{nodes} pods: from helm install to the hostfile",
        measured=f"{ready - began:.1f} s",
        yardstick=f"`mpirun hostname` in them {taken:.1f} s",
        ratio=(ready - began) / taken,
    )


def rows() -> list[Row]:
    """Pods found, and bytes rendered."""
    found = [_found(nodes) for nodes in _NODES]
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as folder:
        for nodes in _SIZES:
            size = len(values(Path(folder), "a4-highgpu-8g", nodes=nodes).read_bytes())
            found.append(Row(what=f"values of {nodes:,} nodes", measured=f"{size / 1e3:.0f} kB"))
    return found


if __name__ == "__main__":
    print(json.dumps([row.cells() for row in rows()], indent=1))
