"""The chart renders valid objects, according to the real API server and to schemas of CRDs."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.kube import schemas
from tests.cluster.kube.build import NotBuilt, program
from tests.cluster.kube.cluster import Cluster
from tests.factories import helm
from tests.factories.chart_runs import KINDS, MACHINES, SITES, values
from tests.factories.paths import ROOT

#: The test cluster has no CRD of these kinds; their schemas are in tests/cluster/kube/foreign.
FOREIGN = ("ComputeDomain", "NodeReadinessRule")
EXAMPLES = [ROOT / "docs" / "gate" / name for name in ("pod.yaml", "node-readiness.yaml")]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Render machines with sites, with helm 4; also as plain Jobs.

    Machines that pass the same keys to the chart need only one of them with each site; each has its
    own figures, which show with a plain site, and in the pods of a Job with every key. The suite is
    data inside the ConfigMap.
    """
    found = {}
    folder = tmp_path_factory.mktemp("rendered")
    for name, site in SITES.items():
        for machine in (*MACHINES, "domain"):
            file = values(folder, machine, site=site, suite="quick")
            if name == "plain" or machine in (*KINDS, "domain"):
                found[f"{machine}, {name}, JobSet"] = helm.text(4, file, jobset=True)
            if name == "everything":
                found[f"{machine}, {name}, Job"] = helm.text(4, file, jobset=False)
    file = values(folder, "domain")
    for version in ("1.33.0", "1.32.0"):
        found[f"domain, Kubernetes {version}"] = helm.text(4, file, "--kube-version", version)
    return found


def documents(text: str, *, foreign: bool = False) -> Iterator[str]:
    for one in text.split("\n---\n"):
        kind = re.search("^kind: (.*)$", one, re.MULTILINE)
        if kind and (kind[1] in FOREIGN) is foreign:
            yield one


def refusal(*objects: str) -> str:
    """Return why the schemas of CRDs refuse objects; "" if they take them."""
    try:
        command = [str(program("kubeconform")), "-strict", *schemas.locations(), "-"]
    except NotBuilt as error:
        pytest.skip(str(error))
    text = "\n---\n".join(objects)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.stdout == "") is (done.returncode == 0), done
    return done.stdout


def test_objects_of_foreign_kinds_match_their_schemas(rendered: dict[str, str]) -> None:
    domains = [one for text in rendered.values() for one in documents(text, foreign=True)]
    rules = [one for path in EXAMPLES for one in documents(path.read_text(), foreign=True)]
    assert domains
    assert len(rules) == 1
    assert refusal(*domains, *rules) == ""


DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "a", "namespace": "b", "labels": {"c": "d"}},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "a-channel"}}},
}


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (("status",), {}),
        (("spec", "nodes"), 2),
        (("spec", "numNodes"), "2"),
        (("spec", "channel", "mode"), "All"),
        (("spec", "channel", "allocationMode"), "Some"),
        (("spec", "channel", "resourceClaimTemplate", "namespace"), "b"),
    ],
)
def test_a_schema_refuses_a_field_that_is_unknown_or_of_another_type(
    where: tuple[str, ...], what: object
) -> None:
    changed: dict[str, Any] = copy.deepcopy(DOMAIN)
    inner = changed
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = what
    assert refusal(json.dumps(DOMAIN)) == ""
    assert refusal(json.dumps(changed)) != ""


def taken(cluster: Cluster, *objects: str) -> str:
    """Let the API server try objects, without unknown fields; return why it refuses them."""
    words = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    return cluster.kubectl(*words, stdin="\n---\n".join(objects), check=False).stderr


def test_the_api_server_takes_every_object(cluster: Cluster, rendered: dict[str, str]) -> None:
    cluster.kubectl("create", "namespace", "team")
    refused = {}
    # Each start of kubectl first reads all schemas of the API server, so one takes many objects.
    names = [*rendered]
    try:
        for first in range(0, len(names), 20):
            some = names[first : first + 20]
            texts = (one for name in some for one in documents(rendered[name]))
            if error := taken(cluster, *texts):
                refused[", ".join(some)] = error
    finally:
        cluster.kubectl("delete", "namespace", "team", "--wait=true")
    assert refused == {}


def test_the_api_server_takes_the_examples_of_gate_and_no_unknown_field(cluster: Cluster) -> None:
    for path in EXAMPLES:
        assert taken(cluster, *documents(path.read_text())) == "", path
    (pod,) = yaml.safe_load_all(EXAMPLES[0].read_text())
    pod["spec"]["volume"] = []
    assert 'unknown field "spec.volume"' in taken(cluster, json.dumps(pod))


def test_a_namespace_that_restricts_its_pods_takes_them(cluster: Cluster, tmp_path: Path) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, by the API server."""
    sites = {"root": "  podSecurityContext: {runAsUser: 0}\n", "plain": ""}
    warnings = {}
    cluster.kubectl("create", "namespace", "team")
    try:
        strict = "pod-security.kubernetes.io/warn=restricted"
        cluster.kubectl("label", "namespace", "team", strict)
        for name, site in sites.items():
            # A plain Job: the API server looks into its pods, and not into those of a JobSet.
            file = values(tmp_path, "gpu", site=site)
            words = ("create", "--dry-run=server", "-f", "-")
            text = "\n---\n".join(documents(helm.text(4, file, jobset=False)))
            warnings[name] = cluster.kubectl(*words, stdin=text).stderr
    finally:
        cluster.kubectl("delete", "namespace", "team", "--wait=true")
    assert "violate PodSecurity" in warnings["root"]
    assert warnings["plain"] == ""
