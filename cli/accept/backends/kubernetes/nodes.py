"""The nodes of a cluster as a run sees them: which machine they are, which are free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accept import config
from accept.backends.kubernetes.client import Api
from accept.backends.kubernetes.place import Place, find
from accept.backends.kubernetes.scheduling import Fit, Wanted, fits, whole
from accept.config import Machine, Site
from accept.core.errors import NotStarted
from accept.core.text import plain
from accept.plan.resolve import Resolved

_GPU = "nvidia.com/gpu"
#: The label of nodes that are made when a pod asks for them.
_ON_DEMAND = "cloud.google.com/gke-flex-start"
#: What the chart tolerates on top: of pods that ask for GPUs, of spot nodes, of flex-start.
_OF_GPUS = ({"key": _GPU, "operator": "Exists"},)
_OF_SPOT = [
    {"key": "cloud.google.com/gke-spot", "operator": "Exists"},
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists"},
]
_OF_FLEX = [
    {"key": _ON_DEMAND, "operator": "Exists"},
    {"key": "cloud.google.com/gke-queued", "operator": "Exists"},
]


def place_of(place: Mapping[str, str], site: Site) -> Place:
    """Where a run goes: what the options say, then the site file, then kubectl's own choice."""
    return find(
        place.get("kubeconfig", ""),
        place.get("context", ""),
        place.get("namespace", "") or site.kubernetes.namespace or "",
    )


def wanted_of(run: Resolved) -> Wanted:
    """What a pod of the run asks of its node."""
    return wanted(run.machine, run.site, run.gpus_per_pod, run.hosts)


def wanted(
    machine: Machine, site: Site, gpus: int | None = None, hosts: tuple[str, ...] = ()
) -> Wanted:
    """What a pod on the machine asks for; `gpus` of each node, or all."""
    of_machine, of_site = machine.kubernetes, site.kubernetes
    resource, amount = _resource(of_machine.resources, of_site.resources)
    gpus = gpus or of_site.gpus_per_pod
    if machine.gpus.count == "detect" and not (gpus or amount):
        # As many as it shows: a node that shows none is no node of this machine.
        gpus = 1
    if gpus and not resource:
        resource = _GPU
    tolerations = [*of_machine.tolerations, *of_site.tolerations]
    if resource == _GPU:
        tolerations += _OF_GPUS
    selector = {**of_machine.node_selector, **of_site.node_selector}
    if of_site.spot:
        tolerations += _OF_SPOT
    if of_site.flex_start:
        tolerations += _OF_FLEX
        selector[_ON_DEMAND] = "true"
    return Wanted(
        selector=selector,
        affinity=of_site.affinity,
        tolerations=tolerations,
        include=hosts or of_site.include_nodes,
        exclude=of_site.exclude_nodes,
        resource=resource,
        amount=gpus or amount,
    )


def _resource(machine: Mapping[str, Any], site: Mapping[str, Any]) -> tuple[str, int]:
    """The GPUs that a pod asks for; the chart merges the two as this does, name by name."""
    for kind in ("limits", "requests"):
        merged = {**(machine.get(kind) or {}), **(site.get(kind) or {})}
        for name, amount in merged.items():
            if name.endswith("/gpu"):
                return name, whole(amount)
    return "", 0


def to_come(site: Site, wanted: Wanted) -> str:
    """Why nodes may come that are not there yet, for people; empty: nobody says that any will."""
    of_site = site.kubernetes
    if of_site.queue:
        return f"queue {plain(of_site.queue, 80)} admits the run when there are enough"
    if of_site.suspend:
        return "the run waits to be released"
    if _ON_DEMAND in wanted.selector:
        return "flex-start makes them"
    return "the cluster makes them (kubernetes.autoscaling)" if of_site.autoscaling else ""


def fits_of(api: Api, wanted: Wanted) -> tuple[Fit, ...]:
    """Every node of the cluster, with what is in the way of a pod of the run there."""
    return fits(all_nodes(api), api.items("/api/v1/pods", fieldSelector=_LIVE), wanted)


_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def all_nodes(api: Api) -> list[dict[str, Any]]:
    """The nodes of the cluster."""
    return api.items("/api/v1/nodes")


def free(api: Api, wanted: Wanted) -> tuple[str, ...]:
    """Names of the nodes that are meant and have all their GPUs free."""
    found = fits_of(api, wanted)
    return tuple(f.node for f in found if not f.why and f.free == f.allocatable)


def machines_of(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """The machines whose labels nodes carry, and how many of each there are."""
    counted: dict[str, int] = {}
    for name in config.names("machines"):
        selector = config.load_machine(name).value.kubernetes.node_selector
        if not selector:
            continue
        for node in nodes:
            labels = node.get("metadata", {}).get("labels") or {}
            if all(labels.get(key) == value for key, value in selector.items()):
                counted[name] = counted.get(name, 0) + 1
    return counted


def machine_of(api: Api) -> str:
    """Return the one machine of the cluster.

    It comes from the labels of the nodes; GPU nodes with other labels are machine `gpu`. Raises
    NotStarted if the cluster has several machines, or if no node shows a GPU: a node whose device
    plugin is missing shows none either, and must not be tested as a machine without GPUs.
    """
    nodes = all_nodes(api)
    counted = machines_of(nodes)
    if len(counted) > 1:
        there = ", ".join(f"{name} ({count} nodes)" for name, count in counted.items())
        raise NotStarted(f"the cluster has several machines: {there}", hint="give --machine NAME")
    if counted:
        return next(iter(counted))
    has = any(whole((n.get("status", {}).get("capacity") or {}).get(_GPU, 0)) for n in nodes)
    if not has:
        raise NotStarted(
            "no node of the cluster shows a GPU, so the machine cannot be detected",
            hint="give --machine NAME (accept list machines); cpu is a machine without GPUs",
        )
    return "gpu"
