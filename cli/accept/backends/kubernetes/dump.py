"""Record what the cluster says about a run: objects and events, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.status import find_workload, object_path, run_selector
from accept.core import evidence

#: Annotations that contain a copy of the whole object, with its values.
_COPIES = ("kubectl.kubernetes.io/last-applied-configuration",)
_HIDDEN = "(not kept)"


def scrubbed(value: Any) -> Any:
    """Return the object without environment values, managed fields and applied copies of itself."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        if key == "managedFields" or key in _COPIES:
            continue
        kept[key] = (
            [_scrubbed_variable(v) for v in item]
            if key == "env" and _is_list(item)
            else scrubbed(item)
        )
    return kept


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _scrubbed_variable(variable: Any) -> Any:
    """Return a variable with its name and source, but without its value."""
    if not isinstance(variable, Mapping):
        return _HIDDEN
    return {k: (_HIDDEN if k == "value" else scrubbed(v)) for k, v in variable.items()}


#: Bytes that are kept of each container's log, and the number of logs fetched at once.
_LOG_LIMIT = 16 << 20
_AT_ONCE = 16


def describe(api: Api, name: str, folder: Path) -> list[str]:
    """Save what the cluster knows about a run; return what could not be read."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    owners = _ask(missing, "the JobSet and the Job", lambda: find_workload(api, name)) or (
        None,
        None,
    )
    for kind, owner in zip(("jobset", "job"), owners, strict=True):
        if owner is not None:
            _save(folder / f"{kind}.json", scrubbed(owner))
    pods: list[dict[str, Any]] = (
        _ask(
            missing,
            "the pods",
            lambda: api.items(object_path(api, "api/v1", "pods"), labelSelector=run_selector(name)),
        )
        or []
    )
    _save(folder / "pods.json", [scrubbed(p) for p in pods])
    events = _ask(missing, "events", lambda: api.items(object_path(api, "api/v1", "events"))) or []
    names = {name, *(str(o["metadata"]["name"]) for o in (*owners, *pods) if o)}
    own_events = [e for e in events if (e.get("involvedObject") or {}).get("name") in names]
    _save(folder / "events.json", [scrubbed(e) for e in own_events])
    used = sorted({p["spec"]["nodeName"] for p in pods if p.get("spec", {}).get("nodeName")})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        nodes = list(pool.map(lambda n: _node(api, n, missing), used))
        list(
            pool.map(
                lambda w: _save_log(api, w[0], w[1], folder / "logs", missing),
                _started_containers(pods),
            )
        )
    _save(folder / "nodes.json", [n for n in nodes if n])
    return sorted(missing)


def _ask(missing: list[str], what: str, ask: Any) -> Any:
    """Return the answer of `ask`; if the API refuses, return None and add a line to `missing`."""
    try:
        return ask()
    except ApiError as error:
        missing.append(f"{what}: {error.message}")
        return None


def _started_containers(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield pod and container for every container that has a log."""
    for pod in pods:
        status = pod.get("status", {})
        statuses = (status.get("initContainerStatuses"), status.get("containerStatuses"))
        for container in chain.from_iterable(found or [] for found in statuses):
            state = container.get("state") or {}
            if "running" in state or "terminated" in state:
                yield pod["metadata"]["name"], container["name"]


def _save_log(api: Api, pod: str, container: str, folder: Path, missing: list[str]) -> None:
    def save() -> None:
        with (folder / f"{pod}.{container}.log").open("wb") as file:
            for line in api.log(pod, container, limitBytes=_LOG_LIMIT):
                file.write(line)

    _ask(missing, f"the log of {pod}, container {container}", save)


def _node(api: Api, name: str, missing: list[str]) -> Any:
    """Return the parts of a node that show its type and its condition."""
    node = _ask(missing, f"node {name}", lambda: api.get(f"/api/v1/nodes/{name}"))
    if node is None:
        return None
    status, spec = node.get("status", {}), node.get("spec", {})
    return {
        "name": name,
        "labels": node["metadata"].get("labels") or {},
        "taints": spec.get("taints") or [],
        "unschedulable": bool(spec.get("unschedulable")),
        **{key: status.get(key) for key in ("conditions", "capacity", "allocatable", "nodeInfo")},
    }


def _save(file: Path, value: object) -> None:
    evidence.write(file, json.dumps(value, indent=1, sort_keys=True) + "\n")
