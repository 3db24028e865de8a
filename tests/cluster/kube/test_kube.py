"""The test cluster is a real Kubernetes: properties that the tests of `accept` rely on."""

from __future__ import annotations

import json

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


def test_a_jobset_that_is_none_is_refused_by_its_webhook(cluster: Cluster, namespace: str) -> None:
    done = cluster.kubectl("apply", "-f", "-", stdin=jobset(namespace, "a" * 60), check=False)
    assert done.returncode != 0
    # Words of the webhook: the CRD alone does not limit the names of Jobs.
    assert "job names generated for this JobSet will exceed 63 characters" in done.stderr
