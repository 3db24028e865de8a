"""JSON schemas for kubeconform, out of Kubernetes' own OpenAPI and of CRDs: no network is asked.

What the API server would drop as unknown is refused. Not checked here, and left to the API server
in dry-run mode: rules in CEL, what webhooks want, and what only code knows (a name's length).

    command = [str(program("kubeconform")), "-strict", *locations(), "-"]
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.kube.build import alone, cache, jobset_manifests, openapi
from tests.cluster.kube.versions import JOBSET, KUBERNETES

#: Below the folder: where kubeconform (`-schema-location`) looks for a kind.
LAYOUT = "{{.ResourceKind}}{{.KindSuffix}}.json"
_KINDS = "x-kubernetes-group-version-kind"
_REF = "#/components/schemas/"
_METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


class NoSchema(Exception):
    """The input is not an OpenAPI document of Kubernetes, or not a CRD."""


#: Strict schemas of kinds whose CRD cannot be had here, each with its source.
FOREIGN = Path(__file__).with_name("foreign")


def locations() -> tuple[str, ...]:
    """Return the options of kubeconform for every kind that the chart makes."""
    foreign = str(FOREIGN / LAYOUT)
    return ("-schema-location", location(), "-schema-location", foreign)


def location() -> str:
    """Return kubeconform's `-schema-location` for the kinds of the test cluster; make it once."""
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    target = cache() / f"schemas-{KUBERNETES.version}-{JOBSET.version}-{code}"
    # Both first: each of them holds the lock of its own accord.
    documents, manifests = openapi(), jobset_manifests() / "crd" / "bases"
    with alone("schemas"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=cache()) as scratch:
                made = Path(scratch) / "made"
                write(
                    made,
                    [json.loads(path.read_text()) for path in documents.glob("*.json")],
                    [yaml.safe_load(path.read_text()) for path in manifests.glob("*.yaml")],
                )
                made.rename(target)
    return str(target / LAYOUT)


def write(
    target: Path, openapi: Iterable[Mapping[str, Any]], crds: Iterable[Mapping[str, Any]] = ()
) -> str:
    """Write a schema for each kind into a folder; return what `-schema-location` takes.

    `openapi` are documents of /openapi/v3, all of one version of Kubernetes: from a server, or from
    api/openapi-spec/v3 of its source.
    """
    defined: dict[str, Any] = {}
    for document in openapi:
        defined |= document.get("components", {}).get("schemas", {})
    if _METADATA not in defined:
        raise NoSchema(f"{_METADATA} is not in the OpenAPI documents: no kind can be described")
    target.mkdir(parents=True, exist_ok=True)
    for name, schema in [*_built_in(defined), *_custom(crds)]:
        whole = {**_strict(schema), "definitions": _needed(schema, defined)}
        (target / name).write_text(json.dumps(whole, sort_keys=True))
    return str(target / LAYOUT)


def _file(group: str, version: str, kind: str) -> str:
    """Return the name under which kubeconform looks for a kind: of the group, the first word."""
    words = (kind, group.partition(".")[0], version)
    return "-".join(word.lower() for word in words if word) + ".json"


def _built_in(defined: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for schema in defined.values():
        kinds = schema.get(_KINDS, ())
        # What belongs to many groups (DeleteOptions) goes with requests, and is never applied.
        if len(kinds) == 1:
            yield _file(kinds[0]["group"], kinds[0]["version"], kinds[0]["kind"]), schema


def _custom(crds: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for crd in crds:
        if crd.get("kind") != "CustomResourceDefinition":
            raise NoSchema(f"{crd.get('kind')} is not a CustomResourceDefinition")
        spec = crd["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            # A CRD leaves an object's own metadata to the server.
            own = {**schema["properties"], "metadata": {"$ref": f"{_REF}{_METADATA}"}}
            name = _file(spec["group"], version["name"], spec["names"]["kind"])
            yield name, {**schema, "properties": own}


def _needed(schema: Any, defined: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions that a schema leads to, strict ones."""
    found: dict[str, Any] = {}
    ahead = list(_references(schema))
    while ahead:
        name = ahead.pop()
        if name not in found:
            if name not in defined:
                raise NoSchema(f"{name} is referred to, and in none of the OpenAPI documents")
            found[name] = _strict(defined[name])
            ahead += _references(defined[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    for value in _parts(schema):
        yield from _references(value)
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"].removeprefix(_REF)


def _parts(schema: Any) -> Iterable[Any]:
    if isinstance(schema, dict):
        return schema.values()
    return schema if isinstance(schema, list) else ()


def _strict(schema: Any) -> Any:
    """Return a part of OpenAPI as JSON schema that takes only fields it knows."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # Texts in place of a schema are for people; a field may well be named "description".
    made = {
        key: _strict(value)
        for key, value in schema.items()
        if not (key == "description" and isinstance(value, str))
    }
    if isinstance(made.get("$ref"), str):
        made["$ref"] = f"#/definitions/{made['$ref'].removeprefix(_REF)}"
    if made.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    free = "additionalProperties" in made or made.get("x-kubernetes-preserve-unknown-fields")
    if made.get("type") == "object" and "properties" in made and not free:
        made["additionalProperties"] = False
    return made
