"""The test cluster is a real Kubernetes: properties that the tests of `accept` rely on."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from tests.cluster.kube.build import helm
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.image import BASE


def jobset(namespace: str, name: str) -> str:
    """Return a JobSet as JSON, without the fields that its webhooks fill in."""
    container = {"name": "main", "image": BASE, "imagePullPolicy": "Never", "command": ["true"]}
    job = {"spec": {"template": {"spec": {"containers": [container]}}}}
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicatedJobs": [{"name": "w", "template": job}]},
    }
    return json.dumps(made)


def start(cluster: Cluster, namespace: str, name: str, *command: str, node: str) -> None:
    """Start a pod on a node, and wait until it is ready."""
    container = {"name": "main", "image": BASE, "imagePullPolicy": "Never", "command": command}
    spec: dict[str, Any] = {
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
        "nodeName": node,
    }
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(made))
    ready = ("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=110s")
    cluster.kubectl("-n", namespace, *ready)


def test_its_nodes_are_ready_and_named_as_the_hosts(cluster: Cluster) -> None:
    items = cluster.get("nodes")["items"]
    assert tuple(sorted(item["metadata"]["name"] for item in items)) == cluster.nodes


def test_a_jobset_that_is_none_is_refused_by_its_webhook(cluster: Cluster, namespace: str) -> None:
    done = cluster.kubectl("apply", "-f", "-", stdin=jobset(namespace, "a" * 60), check=False)
    assert done.returncode != 0
    # Words of the webhook: the CRD alone does not limit the names of Jobs.
    assert "job names generated for this JobSet will exceed 63 characters" in done.stderr


def test_what_a_jobset_leaves_out_its_webhook_fills_in(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=jobset(namespace, "short"))
    spec = cluster.get("jobset", "short", "-n", namespace)["spec"]
    assert spec["successPolicy"] == {"operator": "All"}
    assert spec["network"]["publishNotReadyAddresses"] is True
    filled = spec["replicatedJobs"][0]["template"]["spec"]
    assert filled["completionMode"] == "Indexed"
    assert filled["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_a_service_account_may_do_what_its_role_allows(cluster: Cluster, namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    config = cluster.kubeconfig_for(namespace, rules)

    def may(verb: str, what: str) -> str:
        asked = ("-n", namespace, "auth", "can-i", verb, what)
        return cluster.kubectl("--kubeconfig", str(config), *asked, check=False).stdout.strip()

    assert (may("list", "pods"), may("list", "secrets")) == ("yes", "no")


def test_a_node_whose_kubelet_is_stopped_is_not_ready_and_its_pods_go_on(
    cluster: Cluster, namespace: str
) -> None:
    node, other = cluster.nodes[:2]
    start(cluster, namespace, "goes-on", "python3", "-m", "http.server", "5000", node=node)
    start(cluster, namespace, "asks", "sleep", "infinity", node=other)
    address = cluster.get("pod", "goes-on", "-n", namespace)["status"]["podIP"]
    ask = f"import urllib.request as u; print(u.urlopen('http://{address}:5000').status)"
    cluster.stop_kubelet(node)
    try:
        cluster.wait_ready(node, ready=False)
        words = ("exec", "asks", "--", "python3", "-c", ask)
        assert cluster.kubectl("-n", namespace, *words).stdout == "200\n"
    finally:
        cluster.start_kubelet(node)
    cluster.wait_ready(node)
    before = cluster.get("pod", "goes-on", "-n", namespace)["status"]["containerStatuses"]
    assert [each["restartCount"] for each in before] == [0]


@pytest.mark.parametrize("major", [3, 4])
def test_helm_has_the_requested_major_version(major: int) -> None:
    command = [str(helm(major)), "version", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"v{major}."), done
