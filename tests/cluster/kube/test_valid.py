"""The chart renders valid objects, according to Kubernetes' schemas and to the real API server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.kube import schemas
from tests.cluster.kube.build import program
from tests.cluster.kube.cluster import Cluster
from tests.factories import helm
from tests.factories.chart_runs import KINDS, MACHINES, SITES, values
from tests.factories.paths import ROOT

from accept import config

#: The test cluster has no CRD of it; its schema is in tests/cluster/kube/foreign.
FOREIGN = "ComputeDomain"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Render machines with sites, and every suite, with helm 4; also as plain Jobs.

    Machines that pass the same keys to the chart need only one of them with each site; each has its
    own figures, which show with a plain site, and in the pods of a Job with every key.
    """
    found = {}
    folder = tmp_path_factory.mktemp("rendered")
    for name, site in SITES.items():
        for machine in (*MACHINES, "domain"):
            file = values(folder, machine, site=site, suite="quick")
            if name == "plain" or machine in (*KINDS, "domain"):
                found[f"{machine}, quick, {name}, JobSet"] = helm.text(4, file, jobset=True)
            if name == "everything":
                found[f"{machine}, quick, {name}, Job"] = helm.text(4, file, jobset=False)
        # The suite is data inside the ConfigMap, so it needs no other machines.
        for suite in set(config.names("suites")) - {"quick"}:
            file = values(folder, "a4-highgpu-8g", site=site, suite=suite)
            found[f"a4-highgpu-8g, {suite}, {name}, JobSet"] = helm.text(4, file, jobset=True)
    file = values(folder, "domain")
    for version in ("1.33.0", "1.32.0"):
        found[f"domain, Kubernetes {version}"] = helm.text(4, file, "--kube-version", version)
    return found


def documents(text: str, *, foreign: bool = False) -> Iterator[str]:
    for one in text.split("\n---\n"):
        if "kind:" in one and (foreign or f"kind: {FOREIGN}" not in one):
            yield one


def test_every_object_matches_its_schema(rendered: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    for number, text in enumerate(rendered.values()):
        (folder / f"{number}.yaml").write_text("\n---\n".join(documents(text, foreign=True)))
    command = [str(program("kubeconform")), "-strict", "-summary", *schemas.locations()]
    command += [str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "Skipped: 0" in done.stdout
    assert any(f"kind: {FOREIGN}" in text for text in rendered.values())


@pytest.mark.parametrize("name", ["pod.yaml", "node-readiness.yaml"])
def test_the_examples_of_gate_match_their_schemas(name: str) -> None:
    command = [str(program("kubeconform")), "-strict", "-summary", *schemas.locations()]
    command += [str(ROOT / "docs" / "gate" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Skipped: 0" in done.stdout


def test_the_api_server_takes_every_object(
    cluster: Cluster, rendered: dict[str, str], tmp_path: Path
) -> None:
    cluster.kubectl("create", "namespace", "team")
    refused = {}
    # The suite is data inside the ConfigMap. Each start of kubectl first reads all schemas of the
    # API server, so one takes the objects of many machines.
    machines = (*MACHINES, "domain")
    try:
        for first in range(0, len(machines), 9):
            some = machines[first : first + 9]
            starts = tuple(f"{machine}, quick," for machine in some)
            names = [name for name in rendered if name.startswith(starts)]
            assert {name.partition(",")[0] for name in names} == {*some}
            text = "\n---\n".join(one for name in names for one in documents(rendered[name]))
            words = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
            done = cluster.kubectl(*words, stdin=text, check=False)
            if done.returncode:
                refused[some] = done.stderr
    finally:
        cluster.kubectl("delete", "namespace", "team", "--wait=true")
    assert refused == {}


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
