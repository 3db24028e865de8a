"""The chart as a package: its metadata, and how people get it from a registry."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.kube.build import program
from tests.cluster.kube.schemas import locations
from tests.factories.chart_runs import Write
from tests.factories.doc_examples import examples
from tests.factories.helm import CHART, JOBSET, KUBERNETES, call, pushed_chart
from tests.factories.oci_registry import OciRegistry, oci_registry

from accept import __version__

pytestmark = pytest.mark.real
SAME = ("--set", "attempt=a1,ssh.existingSecret=mine")


@pytest.fixture
def registry() -> Iterator[OciRegistry]:
    with oci_registry() as made:
        yield made


def rendered(major: int, *chart: object, values: Path) -> str:
    """Return what a chart renders, from a folder or a registry."""
    cluster = ("--kube-version", KUBERNETES, "--api-versions", JOBSET)
    done = call(major, "template", "mytest", *chart, "--values", values, *SAME, *cluster)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_metadata_name_the_project_and_show_a_readme(major: int) -> None:
    chart = yaml.safe_load(call(major, "show", "chart", CHART).stdout)
    assert chart["icon"].startswith("data:image/svg+xml;base64,")
    assert chart["maintainers"] == [{"name": "The accept authors"}]
    assert "helm test" in call(major, "show", "readme", CHART).stdout


def test_from_a_registry_is_that_of_the_workstation(
    major: int, registry: OciRegistry, write: Write, tmp_path: Path
) -> None:
    url = pushed_chart(registry, major, tmp_path)
    assert f"team/charts/accept:{__version__}" in registry.tags
    values = write(nodes=3)
    pulled = (url, "--version", __version__, "--plain-http")
    assert rendered(major, *pulled, values=values) == rendered(major, CHART, values=values)
    readme = call(major, "show", "readme", *pulled)
    assert readme.stdout == call(major, "show", "readme", CHART).stdout


def gitops(name: str) -> list[dict[str, Any]]:
    """Return the objects of an example in the docs."""
    return [one for one in yaml.safe_load_all(examples("docs/kubernetes-chart.md")[name]) if one]


def test_examples_for_argo_and_flux_name_values_that_the_chart_takes(
    major: int, write: Write, tmp_path: Path
) -> None:
    (argo,) = gitops("argo-application.yaml")
    source = next(one for one in argo["spec"]["sources"] if "chart" in one)
    release = next(one for one in gitops("flux-helmrelease.yaml") if one["kind"] == "HelmRelease")
    for name, version, values in (
        (source["chart"], source["targetRevision"], source["helm"]["valuesObject"]),
        ("accept", _version_of_flux(), release["spec"]["values"]),
    ):
        assert (name, version) == ("accept", __version__)
        assert {"attempt", "ssh"} <= set(values)
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(values))
        done = call(
            major, "template", "mytest", CHART, "--values", write(), "--values",
            tmp_path / "own.yaml", "--kube-version", KUBERNETES,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"mytest-{values['attempt']}" in done.stdout
        assert not re.search("^kind: (Secret|Pod)$", done.stdout, re.MULTILINE)


def conforms(*objects: Any) -> subprocess.CompletedProcess[str]:
    """Compare objects with the CRDs of Argo CD and Flux."""
    return subprocess.run(
        [str(program("kubeconform")), "-strict", *locations(), "-"],
        input=yaml.safe_dump_all(objects),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["argo-application.yaml", "flux-helmrelease.yaml"])
def test_examples_for_argo_and_flux_match_the_crds(name: str) -> None:
    for one in gitops(name):
        done = conforms(one)
        assert done.returncode == 0, done.stdout
        # The schema knows the keys: no other one is taken.
        for key in one["spec"]:
            spec = {k + "x" * (k == key): value for k, value in one["spec"].items()}
            assert conforms({**one, "spec": spec}).returncode == 1


def _version_of_flux() -> str:
    (repository,) = (
        one for one in gitops("flux-helmrelease.yaml") if one["kind"] == "OCIRepository"
    )
    return str(repository["spec"]["ref"]["tag"])
