"""Schemas refuse what the API server would refuse or silently drop."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kube.build import NotBuilt, program
from tests.cluster.kube.schemas import LAYOUT, NoSchema, locations, write

REF = "#/components/schemas/"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
STRING = {"type": "string"}


def document(**schemas: Any) -> dict[str, Any]:
    meta = {"type": "object", "properties": {"name": STRING, "labels": {"type": "object"}}}
    return {"components": {"schemas": {META: meta, **schemas}}}


def kind(group: str, version: str, name: str, **properties: Any) -> dict[str, Any]:
    named = [{"group": group, "version": version, "kind": name}]
    return {"type": "object", "properties": properties, "x-kubernetes-group-version-kind": named}


def crd(group: str, name: str, **spec: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"metadata": {"type": "object"}, "spec": spec}}
    versions = [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]
    return {
        "kind": "CustomResourceDefinition",
        "spec": {"group": group, "names": {"kind": name}, "versions": versions},
    }


def written(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_kubeconform_finds_each_kind_where_it_looks(tmp_path: Path) -> None:
    kinds = {"a": kind("", "v1", "Secret"), "b": kind("rbac.authorization.k8s.io", "v1", "Role")}
    location = write(tmp_path / "made", [document(**kinds)], [crd("jobset.x-k8s.io", "JobSet")])
    assert location == str(tmp_path / "made" / LAYOUT)
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "secret-v1.json",
        "role-rbac-v1.json",
        "jobset-jobset-v1.json",
    }


def test_unknown_fields_are_refused_at_every_depth(tmp_path: Path) -> None:
    parts = {"Inner": {"type": "object", "properties": {"deep": STRING}}}
    pod = kind("", "v1", "Pod", spec={"allOf": [{"$ref": f"{REF}Inner"}]})
    write(tmp_path, [document(Pod=pod, **parts)])
    made = written(tmp_path, "pod-v1.json")
    assert made["additionalProperties"] is False
    assert made["properties"]["spec"]["allOf"] == [{"$ref": "#/definitions/Inner"}]
    assert made["definitions"]["Inner"]["additionalProperties"] is False


def test_maps_and_free_objects_stay_open(tmp_path: Path) -> None:
    free = {"type": "object", "properties": {}, "x-kubernetes-preserve-unknown-fields": True}
    labels = {"type": "object", "additionalProperties": STRING}
    write(tmp_path, [document(A=kind("", "v1", "A", free=free, labels=labels, raw={}))])
    made = written(tmp_path, "a-v1.json")["properties"]
    assert "additionalProperties" not in made["free"]
    assert made["labels"]["additionalProperties"] == STRING


def test_a_custom_object_has_the_metadata_of_every_object(tmp_path: Path) -> None:
    write(tmp_path, [document()], [crd("jobset.x-k8s.io", "JobSet")])
    made = written(tmp_path, "jobset-jobset-v1.json")
    assert made["properties"]["metadata"] == {"$ref": f"#/definitions/{META}"}
    assert made["definitions"][META]["additionalProperties"] is False


def test_a_field_named_description_is_kept_and_a_null_where_it_may_be(tmp_path: Path) -> None:
    fields = {"description": {"type": "string", "nullable": True, "description": "for people"}}
    write(tmp_path, [document(A=kind("", "v1", "A", **fields))])
    made = written(tmp_path, "a-v1.json")["properties"]
    assert made == {"description": {"type": ["string", "null"], "nullable": True}}


def test_definitions_may_lead_in_circles(tmp_path: Path) -> None:
    around = {"type": "object", "properties": {"again": {"$ref": f"{REF}Around"}}}
    write(tmp_path, [document(A=kind("", "v1", "A", a={"$ref": f"{REF}Around"}), Around=around)])
    assert list(written(tmp_path, "a-v1.json")["definitions"]) == ["Around"]


def test_invalid_descriptions_of_kubernetes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSchema, match="ObjectMeta is not in"):
        write(tmp_path, [{"swagger": "2.0"}])
    with pytest.raises(NoSchema, match="ConfigMap is not a"):
        write(tmp_path, [document()], [{"kind": "ConfigMap"}])
    with pytest.raises(NoSchema, match="Gone is referred to"):
        write(tmp_path, [document(A=kind("", "v1", "A", a={"$ref": f"{REF}Gone"}))])


CONTAINER = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}}}
POD = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}
JOB = {"completionMode": "Indexed", "backoffLimitPerIndex": 0, "template": POD}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "a"},
    "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": JOB}}]},
}
DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "a", "namespace": "b", "labels": {"c": "d"}},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "a-channel"}}},
}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"a": "YQ=="}}


def found_good(thing: Any) -> bool:
    try:
        command = [str(program("kubeconform")), "-strict", *locations(), "-"]
    except NotBuilt as error:
        pytest.skip(str(error))
    text = json.dumps(thing)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert "invalid" in done.stdout or done.returncode == 0, done
    return done.returncode == 0


def test_kubeconform_takes_what_is_right_by_the_schemas_of_the_test_cluster() -> None:
    assert found_good(JOBSET)
    assert found_good({"apiVersion": "batch/v1", "kind": "Job", "spec": JOB})
    assert found_good(SECRET)
    assert found_good(DOMAIN)


def changed(document: Any, where: tuple[str | int, ...], what: object) -> Any:
    """Return a copy of a document with another value at a path."""
    result = copy.deepcopy(document)
    inner = result
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = what
    return result


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (("spec", "sucessPolicy"), {}),
        (("metadata", "label"), {}),
        (("spec", "replicatedJobs", 0, "template", "spec", "completions"), "3"),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "volume"), []),
    ],
)
def test_kubeconform_refuses_a_field_that_is_unknown_or_of_another_type(
    where: tuple[str | int, ...], what: object
) -> None:
    assert not found_good(changed(JOBSET, where, what))


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
def test_kubeconform_refuses_it_of_a_kind_whose_crd_cannot_be_had(
    where: tuple[str, ...], what: object
) -> None:
    assert not found_good(changed(DOMAIN, where, what))
