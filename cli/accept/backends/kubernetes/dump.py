"""Record the objects and events of a run in the cluster, without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.objects import EVENT, NODE, POD, Pod, value_at
from accept.backends.kubernetes.status import find_controllers, run_selector
from accept.core import evidence

Answer = TypeVar("Answer")

#: Annotations that contain a copy of the whole object, with its values.
_COPIES = ("kubectl.kubernetes.io/last-applied-configuration",)
_HIDDEN = "(not kept)"


def scrubbed(value: object) -> object:
    """Return the object without environment values, managed fields and applied copies of itself."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: [_scrubbed_variable(v) for v in item]
        if key == "env" and isinstance(item, list)
        else scrubbed(item)
        for key, item in value.items()
        if key != "managedFields" and key not in _COPIES
    }


def _scrubbed_variable(variable: object) -> object:
    """Return a variable with its name and source, but without its value."""
    if not isinstance(variable, Mapping):
        return _HIDDEN
    return {k: (_HIDDEN if k == "value" else scrubbed(v)) for k, v in variable.items()}


#: Maximum number of bytes kept of each container's log, and of logs fetched at once.
_LOG_LIMIT = 16 << 20
_AT_ONCE = 16


def describe(api: Api, name: str, folder: Path) -> list[str]:
    """Save the cluster's objects and events of a run; return what could not be read."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    owners = _ask(missing, "the JobSet and the Job", lambda: find_controllers(api, name))
    for kind, owner in zip(("jobset", "job"), owners or (), strict=False):
        if owner is not None:
            _save(folder / f"{kind}.json", scrubbed(owner.document))
    pods = _ask(missing, "the pods", lambda: api.find_all(POD, labels=run_selector(name))) or ()
    _save(folder / "pods.json", [scrubbed(pod.document) for pod in pods])
    events = _ask(missing, "events", lambda: api.find_all(EVENT)) or ()
    names = {name, *(o.name for o in (*(owners or ()), *pods) if o)}
    _save(folder / "events.json", [scrubbed(e.document) for e in events if e.about in names])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        used = sorted({pod.node for pod in pods if pod.node})
        nodes = list(pool.map(lambda node: _node(api, node, missing), used))
        list(
            pool.map(
                lambda names: _save_log(api, names[0], names[1], folder / "logs", missing),
                _started_containers(pods),
            )
        )
    _save(folder / "nodes.json", [node for node in nodes if node])
    return sorted(missing)


def _ask(missing: list[str], what: str, ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer of `ask`; if the API refuses, return None and add a line to `missing`."""
    try:
        return ask()
    except ApiError as error:
        missing.append(f"{what}: {error.message}")
        return None


def _started_containers(pods: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    """Yield pod and container for every container that has a log."""
    for pod in pods:
        for container in (*pod.init_containers, *pod.containers):
            if container.running or container.ended:
                yield pod.name, container.name


def _save_log(api: Api, pod: str, container: str, folder: Path, missing: list[str]) -> None:
    def save() -> None:
        with (folder / f"{pod}.{container}.log").open("wb") as file:
            for line in api.log(pod, container, limit=_LOG_LIMIT):
                file.write(line)

    _ask(missing, f"the log of {pod}, container {container}", save)


def _node(api: Api, name: str, missing: list[str]) -> dict[str, object] | None:
    """Return the parts of a node that show its type and its condition."""
    node = _ask(missing, f"node {name}", lambda: api.get(NODE, name))
    if node is None:
        return None
    status = ("conditions", "capacity", "allocatable", "nodeInfo")
    return {
        "name": name,
        "labels": node.labels,
        "providerID": node.provider_id,
        "taints": value_at(node.document, "spec", "taints") or [],
        "unschedulable": node.cordoned,
        **{key: value_at(node.document, "status", key) for key in status},
    }


def _save(file: Path, value: object) -> None:
    evidence.write(file, json.dumps(value, indent=1, sort_keys=True) + "\n")
