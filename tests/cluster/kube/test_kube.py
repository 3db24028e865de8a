"""The test cluster is a real Kubernetes: properties that the tests of `accept` rely on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kube.cluster import CONTROL, Cluster
from tests.cluster.kube.image import BASE


def jobset(name: str, command: str, *, pods: int = 3, **pod: Any) -> str:
    """Return a JobSet as JSON, without the fields that its webhooks fill in."""
    container = {
        "name": "main",
        "image": BASE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "env": [{"name": "PODS", "value": str(pods)}],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": name}},
    }
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "topologySpreadConstraints": [spread],
            **pod,
        },
    }
    job = {"spec": {"parallelism": pods, "completions": pods, "template": template}}
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "w", "template": job}]},
    }
    return json.dumps(made)


def finish(cluster: Cluster, namespace: str, name: str) -> None:
    condition = "--for=condition=Completed"
    cluster.kubectl("-n", namespace, "wait", condition, f"jobset/{name}", "--timeout=110s")


def test_its_nodes_are_ready_and_named_as_the_hosts(cluster: Cluster) -> None:
    items = cluster.get("nodes")["items"]
    assert tuple(sorted(item["metadata"]["name"] for item in items)) == cluster.nodes


def test_pods_of_a_jobset_find_each_other_by_name(cluster: Cluster, namespace: str) -> None:
    # A name that is asked for too early stays unknown for half a minute.
    command = """
        sleep 3; n=0; while [ $n -lt $PODS ]; do
            until getent hosts meet-w-0-$n.meet >/dev/null; do sleep 1; done; n=$((n + 1))
        done; echo met $PODS
    """
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=jobset("meet", command))
    finish(cluster, namespace, "meet")
    said = cluster.kubectl("-n", namespace, "logs", "-l", "app=meet", "--tail=-1").stdout
    assert said == "met 3\n" * 3
    pods = cluster.get("pods", "-n", namespace)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(cluster.nodes)


def test_pods_on_the_nodes_own_network_do_not_collide(cluster: Cluster, namespace: str) -> None:
    command = "grep -q . /etc/resolv.conf && hostname"
    made = jobset("own", command, hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=made)
    finish(cluster, namespace, "own")
    said = cluster.kubectl("-n", namespace, "logs", "-l", "app=own", "--tail=-1").stdout
    assert sorted(said.split()) == sorted(cluster.nodes)


def test_a_jobset_that_is_none_is_refused_by_its_webhook(cluster: Cluster, namespace: str) -> None:
    made = json.loads(jobset("Wrong", "true"))
    made["metadata"]["name"] = "a" * 60
    done = cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(made), check=False)
    assert done.returncode != 0
    # Words of the webhook's: the CRD alone knows nothing of pods' names.
    assert "pod names generated for this JobSet will exceed 63 characters" in done.stderr


def test_commands_run_in_pods(cluster: Cluster, namespace: str) -> None:
    made = jobset("inside", "sleep 600", pods=1)
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=made)
    for what in ("create", "condition=Ready"):
        awaited = ("wait", f"--for={what}", "pod", "-l", "app=inside", "--timeout=110s")
        cluster.kubectl("-n", namespace, *awaited)
    name = cluster.get("pods", "-n", namespace)["items"][0]["metadata"]["name"]
    done = cluster.kubectl(
        "-n", namespace, "exec", name, "--", "sh", "-c", "echo in $0; exit 3", check=False
    )
    assert done.stdout == "in sh\n"
    assert "exit code 3" in done.stderr


def test_a_pod_runs_what_this_checkout_has_installed(cluster: Cluster, namespace: str) -> None:
    volumes, mounts = cluster.checkout_volumes()
    root = Path(__file__).resolve().parents[3]
    python = root / ".venv" / "bin" / "python"
    if not python.exists():
        pytest.skip("there is no .venv: make setup-dev")
    command = f"{python} -c 'import torch; print(torch.ones(2).sum().item())'"
    made = json.loads(jobset("torch", command, pods=1, volumes=volumes))
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"] = mounts
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(made))
    finish(cluster, namespace, "torch")
    assert cluster.kubectl("-n", namespace, "logs", "-l", "app=torch").stdout == "2.0\n"


def test_a_service_account_may_do_what_its_role_says(cluster: Cluster, namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    config = cluster.kubeconfig_for(namespace, rules)

    def may(verb: str, what: str) -> str:
        asked = ("-n", namespace, "auth", "can-i", verb, what)
        return cluster.kubectl("--kubeconfig", str(config), *asked, check=False).stdout.strip()

    assert (may("list", "pods"), may("list", "secrets")) == ("yes", "no")


def test_gpus_can_be_claimed_that_are_not_there(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    cluster.fake_gpus(node, 8, "nvidia-b200")
    try:
        assert cluster.get("node", node)["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    finally:
        cluster.no_gpus(node)
    assert "nvidia.com/gpu" not in cluster.get("node", node)["status"]["capacity"]


def test_the_api_server_comes_back_with_what_it_knew(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("-n", namespace, "create", "configmap", "kept", "--from-literal=a=1")
    cluster.stop_api()
    assert cluster.kubectl("get", "nodes", check=False).returncode != 0
    cluster.start_api()
    assert cluster.get("configmap", "kept", "-n", namespace)["data"] == {"a": "1"}
    # The controllers follow it again.
    with cluster.namespace() as another:
        assert cluster.get("serviceaccount", "default", "-n", another)


def test_a_node_is_lost_and_comes_back(cluster: Cluster) -> None:
    node = cluster.nodes[-1]
    cluster.cut(node)
    try:
        cluster.wait_ready(node, ready=False)
    finally:
        cluster.join(node)
    cluster.wait_ready(node)


def test_the_bucket_keeps_what_it_has_while_it_is_away(cluster: Cluster) -> None:
    def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
        # From the control plane's host: the machine's own proxies are not asked.
        return cluster.hosts.run(CONTROL, ["curl", "-sf", *arguments], check=False)

    url = f"http://127.0.0.1:{cluster.bucket_server.rpartition(':')[2]}"
    curl("-X", "POST", f"{url}/storage/v1/b", "-d", '{"name": "kept"}')
    sent = f"{url}/upload/storage/v1/b/kept/o?uploadType=media&name=one"
    assert curl("-X", "POST", sent, "--data-binary", "text").returncode == 0
    cluster.stop_bucket()
    assert curl(f"{url}/storage/v1/b").returncode != 0
    cluster.start_bucket()
    assert curl(f"{url}/storage/v1/b/kept/o/one?alt=media").stdout == "text"
