"""Faults that tests cause in the test cluster affect its pods and can be undone."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kube.build import helm
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.image import BASE
from tests.cluster.runs import until

VENV = Path(__file__).resolve().parents[3] / ".venv"
#: Sends 2 MiB to whoever connects.
SERVE = """
import socket
server = socket.create_server(("", 5000))
while True:
    server.accept()[0].sendall(bytes(1 << 21))
"""
FETCH = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 5000)) as link:
    left = 1 << 21
    while left:
        left -= len(link.recv(left))
print(time.monotonic() - began)
"""


def start(
    cluster: Cluster,
    namespace: str,
    name: str,
    *command: str,
    node: str = "",
    mounted: bool = False,
) -> None:
    """Start a pod, on a node of choice, and wait until it is ready."""
    volumes, mounts = cluster.checkout_volumes() if mounted else ([], [])
    container: dict[str, Any] = {
        "name": "main",
        "image": BASE,
        "imagePullPolicy": "Never",
        "command": command or ["sleep", "infinity"],
        "volumeMounts": mounts,
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": 0,
    }
    if node:
        spec["nodeName"] = node
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(made))
    ready = ("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=110s")
    cluster.kubectl("-n", namespace, *ready)


def inside(cluster: Cluster, namespace: str, name: str, *command: str) -> str:
    return cluster.kubectl("-n", namespace, "exec", name, "--", *command).stdout


def test_what_a_jobset_leaves_out_its_webhook_fills_in(cluster: Cluster, namespace: str) -> None:
    container = {"name": "main", "image": BASE, "imagePullPolicy": "Never", "command": ["true"]}
    job = {"spec": {"template": {"spec": {"containers": [container]}}}}
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "short", "namespace": namespace},
        "spec": {"replicatedJobs": [{"name": "w", "template": job}]},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    spec = cluster.get("jobset", "short", "-n", namespace)["spec"]
    assert spec["successPolicy"] == {"operator": "All"}
    assert spec["network"]["publishNotReadyAddresses"] is True
    filled = spec["replicatedJobs"][0]["template"]["spec"]
    assert filled["completionMode"] == "Indexed"
    assert filled["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_pods_of_a_slow_node_hear_slower_and_as_fast_again(
    cluster: Cluster, namespace: str
) -> None:
    source, quick, slow = cluster.nodes[:3]
    start(cluster, namespace, "source", "python3", "-c", SERVE, node=source)
    for node in (quick, slow):
        start(cluster, namespace, node, node=node)
    address = cluster.get("pod", "source", "-n", namespace)["status"]["podIP"]

    def ratio() -> float:
        taken = [
            float(inside(cluster, namespace, node, "python3", "-c", FETCH, address))
            for node in (slow, quick)
        ]
        return taken[0] / taken[1]

    cluster.shape("16mbit")
    try:
        # Half the rate takes twice as long, less what the bucket lets through at once.
        cluster.slow(slow)
        until(lambda: ratio() > 1.4)
        cluster.shape("16mbit")
        until(lambda: ratio() < 1.4)
    finally:
        cluster.unshape()


def test_a_node_whose_kubelet_is_stopped_is_not_ready_and_its_pods_go_on(
    cluster: Cluster, namespace: str
) -> None:
    node = cluster.nodes[0]
    start(cluster, namespace, "goes-on", "python3", "-m", "http.server", "5000", node=node)
    start(cluster, namespace, "asks", node=cluster.nodes[1])
    address = cluster.get("pod", "goes-on", "-n", namespace)["status"]["podIP"]
    ask = f"import urllib.request as u; print(u.urlopen('http://{address}:5000').status)"
    cluster.stop_kubelet(node)
    try:
        cluster.wait_ready(node, ready=False)
        assert inside(cluster, namespace, "asks", "python3", "-c", ask) == "200\n"
    finally:
        cluster.start_kubelet(node)
    cluster.wait_ready(node)
    before = cluster.get("pod", "goes-on", "-n", namespace)["status"]["containerStatuses"]
    assert [each["restartCount"] for each in before] == [0]


def test_what_a_pod_puts_into_a_bucket_is_read_here(cluster: Cluster, namespace: str) -> None:
    start(cluster, namespace, "puts")
    put = """
import json, sys, urllib.request as u
def send(path, body):
    request = u.Request(sys.argv[1] + path, body, {"Content-Type": "application/json"})
    u.urlopen(request).read()
send("/storage/v1/b", json.dumps({"name": "from-a-pod"}).encode())
send("/upload/storage/v1/b/from-a-pod/o?uploadType=media&name=one", b"text")
"""
    inside(cluster, namespace, "puts", "python3", "-c", put, cluster.bucket_server)
    # Not by way of a proxy that this machine may have.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"{cluster.bucket_server}/storage/v1/b/from-a-pod/o/one?alt=media"
    with opener.open(url) as answer:
        assert answer.read() == b"text"


def test_ranks_run_in_a_pod_with_the_open_mpi_of_this_checkout(
    cluster: Cluster, namespace: str
) -> None:
    if Path(sys.prefix) != VENV or not (VENV / "bin" / "mpirun").exists():
        pytest.skip(f"there is no Open MPI in {VENV}: make setup-dev")
    start(cluster, namespace, "ranks", mounted=True)
    asked = "from mpi4py.MPI import COMM_WORLD as w; print(w.allreduce(1))"
    line = [f"{VENV}/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    said = inside(cluster, namespace, "ranks", *line, f"{VENV}/bin/python", "-c", asked)
    assert said == "2\n2\n"


@pytest.mark.parametrize("major", [3, 4])
def test_helm_is_of_the_major_that_was_asked_for(major: int) -> None:
    command = [str(helm(major)), "version", "--short"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"v{major}."), said
