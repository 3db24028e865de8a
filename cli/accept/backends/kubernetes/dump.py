"""Record what the cluster says about a run: objects and events, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.status import jobs, of_run, path
from accept.core import evidence

#: What holds a whole object once more, values and all.
_COPIES = ("kubectl.kubernetes.io/last-applied-configuration",)
_HIDDEN = "(not kept)"


def scrubbed(value: Any) -> Any:
    """The object without environment values, managed fields and applied copies of itself."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        if key == "managedFields" or key in _COPIES:
            continue
        kept[key] = [_variable(v) for v in item] if key == "env" and _list(item) else scrubbed(item)
    return kept


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _variable(one: Any) -> Any:
    """A variable by its name; where it comes from stays, its value does not."""
    if not isinstance(one, Mapping):
        return _HIDDEN
    return {k: (_HIDDEN if k == "value" else scrubbed(v)) for k, v in one.items()}


#: What is kept of each container's log, in bytes, and how many are fetched at once.
_LOG_LIMIT = 16 << 20
_AT_ONCE = 16


def describe(api: Api, name: str, folder: Path) -> list[str]:
    """Save what the cluster says of a run; returns what could not be had."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    owners = _had(missing, "the JobSet and the Job", lambda: jobs(api, name)) or (None, None)
    for kind, one in zip(("jobset", "job"), owners, strict=True):
        if one is not None:
            _save(folder / f"{kind}.json", scrubbed(one))
    pods: list[dict[str, Any]] = (
        _had(
            missing,
            "the pods",
            lambda: api.items(path(api, "api/v1", "pods"), labelSelector=of_run(name)),
        )
        or []
    )
    _save(folder / "pods.json", [scrubbed(p) for p in pods])
    events = _had(missing, "events", lambda: api.items(path(api, "api/v1", "events"))) or []
    of_this = {name, *(str(o["metadata"]["name"]) for o in (*owners, *pods) if o)}
    mine = [e for e in events if (e.get("involvedObject") or {}).get("name") in of_this]
    _save(folder / "events.json", [scrubbed(e) for e in mine])
    used = sorted({p["spec"]["nodeName"] for p in pods if p.get("spec", {}).get("nodeName")})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        nodes = list(pool.map(lambda n: _node(api, n, missing), used))
        list(pool.map(lambda w: _log(api, w[0], w[1], folder / "logs", missing), _containers(pods)))
    _save(folder / "nodes.json", [n for n in nodes if n])
    return sorted(missing)


def _had(missing: list[str], what: str, ask: Any) -> Any:
    """The answer of `ask`; None, and a line of what is missing, where the API refused."""
    try:
        return ask()
    except ApiError as error:
        missing.append(f"{what}: {error.message}")
        return None


def _containers(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Pod and container of every container that has a log."""
    for pod in pods:
        told = pod.get("status", {})
        each = (told.get("initContainerStatuses") or [], told.get("containerStatuses") or [])
        for one in chain(*each):
            now = one.get("state") or {}
            if "running" in now or "terminated" in now:
                yield pod["metadata"]["name"], one["name"]


def _log(api: Api, pod: str, container: str, folder: Path, missing: list[str]) -> None:
    def save() -> None:
        with (folder / f"{pod}.{container}.log").open("wb") as file:
            for line in api.log(pod, container, limitBytes=_LOG_LIMIT):
                file.write(line)

    _had(missing, f"the log of {pod}, container {container}", save)


def _node(api: Api, name: str, missing: list[str]) -> Any:
    """What says how a node is, and what it is."""
    node = _had(missing, f"node {name}", lambda: api.get(f"/api/v1/nodes/{name}"))
    if node is None:
        return None
    told, spec = node.get("status", {}), node.get("spec", {})
    return {
        "name": name,
        "labels": node["metadata"].get("labels") or {},
        "taints": spec.get("taints") or [],
        "unschedulable": bool(spec.get("unschedulable")),
        **{key: told.get(key) for key in ("conditions", "capacity", "allocatable", "nodeInfo")},
    }


def _save(file: Path, value: object) -> None:
    evidence.write(file, json.dumps(value, indent=1, sort_keys=True) + "\n")
