"""Predict which nodes can take the pods of a run: labels, taints, affinity, free GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accept import config
from accept.backends.kubernetes.client import Api, Place, find_place
from accept.config import Machine, Site
from accept.core.errors import NotStarted
from accept.core.text import decimal, plain
from accept.plan.resolve import Resolved

Object = Mapping[str, Any]

_HARD = "requiredDuringSchedulingIgnoredDuringExecution"


def matches(affinity: Object, node: Object) -> bool:
    """Whether a node answers what an `affinity` requires of nodes; preferences rule nothing out.

    What is no affinity rules out nothing either: the API refuses it, in words of its own.
    Terms are alternatives, the rules of one hold together, and a term without any matches nothing:
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
    """
    required = _mapping(_mapping(affinity.get("nodeAffinity")).get(_HARD))
    terms = required.get("nodeSelectorTerms")
    if not isinstance(terms, list | tuple):
        return True
    meta = node.get("metadata", {})
    labels, fields = meta.get("labels") or {}, {"metadata.name": meta.get("name", "")}
    for term in map(_mapping, terms):
        rules, named = _rules(term, "matchExpressions"), _rules(term, "matchFields")
        if not rules and not named:
            continue
        if all(_holds(r, labels) for r in rules) and all(_holds(r, fields) for r in named):
            return True
    return False


def _mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _rules(term: Object, key: str) -> list[Object]:
    found = term.get(key)
    return [_mapping(rule) for rule in found] if isinstance(found, list | tuple) else []


def _holds(rule: Object, values: Mapping[str, str]) -> bool:
    key, operator = str(rule.get("key")), rule.get("operator")
    given = rule.get("values")
    wanted = [str(v) for v in given] if isinstance(given, list | tuple) else []
    there = values.get(key)
    if operator == "Exists":
        return there is not None
    if operator == "DoesNotExist":
        return there is None
    if operator == "In":
        return there in wanted
    if operator == "NotIn":
        return there not in wanted
    if operator in ("Gt", "Lt") and there is not None and len(wanted) == 1:
        try:
            one, other = int(there), int(wanted[0])
        except ValueError:
            return False
        return one > other if operator == "Gt" else one < other
    return False


_HOSTNAME = "kubernetes.io/hostname"
_BLOCKING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What one pod of the run asks of its node."""

    selector: Mapping[str, str]
    tolerations: Sequence[Object]
    #: What the site asks of nodes besides, as a pod has it. What it asks of other pods is left to
    #: the scheduler.
    affinity: Object = field(default_factory=dict)
    #: Names of nodes; where `include` is empty every node is meant.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    #: The extended resource and how much of it, such as nvidia.com/gpu and 8; "": none.
    resource: str = ""
    amount: int = 0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One node, and why a pod of the run cannot go there; empty: it can, now."""

    node: str
    why: str = ""
    #: Whether it is a node that is meant at all, by name and labels.
    meant: bool = True
    allocatable: int = 0
    free: int = 0
    #: Taints that nothing of the run tolerates.
    taints: tuple[str, ...] = ()


def fits(nodes: Iterable[Object], pods: Iterable[Object], wanted: Wanted) -> tuple[Fit, ...]:
    """Every node by name, with what is in the way there."""
    used: dict[str, int] = {}
    for pod in pods:
        node = str(pod.get("spec", {}).get("nodeName") or "")
        if node and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            used[node] = used.get(node, 0) + requested(pod, wanted.resource)
    found = (_fit(node, used, wanted) for node in nodes)
    return tuple(sorted(found, key=lambda f: f.node))


def requested(pod: Object, resource: str) -> int:
    """How much of an extended resource a pod asks for: the larger of its start and its run."""
    spec = pod.get("spec", {})
    beside = first = 0
    for one in spec.get("initContainers") or ():
        amount = _of(one, resource)
        if one.get("restartPolicy") == "Always":
            beside += amount
        else:
            first = max(first, amount + beside)
    return max(first, beside + sum(_of(one, resource) for one in spec.get("containers") or ()))


def _of(container: Object, resource: str) -> int:
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        amount = (resources.get(kind) or {}).get(resource)
        if amount is not None:
            return whole(amount)
    return 0


def whole(amount: object) -> int:
    """An amount of an extended resource, which Kubernetes keeps to whole numbers."""
    # 2k is allowed to stand for 2000.
    text = re.sub("k$", "000", str(amount))
    return decimal(text) or 0


def _fit(node: Object, used: Mapping[str, int], wanted: Wanted) -> Fit:
    meta, spec, told = node.get("metadata", {}), node.get("spec", {}), node.get("status", {})
    name = str(meta.get("name", ""))
    labels = meta.get("labels") or {}
    there = whole((told.get("allocatable") or {}).get(wanted.resource, 0)) if wanted.resource else 0
    free = there - used.get(name, 0)
    if wanted.include and name not in wanted.include:
        why = "not among the nodes that are named"
        if labels.get(_HOSTNAME) in wanted.include:
            why += f"; {plain(labels[_HOSTNAME], 80)} is its host name, not the name of the node"
        return Fit(node=name, why=why, meant=False)
    if name in wanted.exclude:
        return Fit(node=name, why="among the nodes that are excluded", meant=False)
    for key, value in wanted.selector.items():
        if labels.get(key) != value:
            has = f"is {plain(labels[key], 80)}" if key in labels else "is missing"
            return Fit(node=name, why=f"label {key} {has}, {value} is wanted", meant=False)
    if not matches(wanted.affinity, node):
        why = "not what the site's affinity asks of a node (kubernetes.affinity)"
        return Fit(node=name, why=why, meant=False)
    taints = tuple(_shown(t) for t in spec.get("taints") or () if _in_the_way(t, wanted))
    ready = any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in told.get("conditions") or ()
    )
    why = ""
    if not ready:
        why = "it is not Ready"
    elif spec.get("unschedulable"):
        why = "it is cordoned"
    elif taints:
        why = f"taint {', '.join(taints)} is not tolerated"
    elif wanted.amount and there < wanted.amount:
        why = f"it has {there} {wanted.resource}, {wanted.amount} are wanted"
    elif wanted.amount and free < wanted.amount:
        why = (
            f"{max(0, free)} of its {there} {wanted.resource} are free, {wanted.amount} are wanted"
        )
    return Fit(node=name, why=why, allocatable=there, free=max(0, free), taints=taints)


def _in_the_way(taint: Object, wanted: Wanted) -> bool:
    return taint.get("effect") in _BLOCKING and not any(
        tolerates(one, taint) for one in (*wanted.tolerations, *_always(taint))
    )


def _always(taint: Object) -> tuple[Object, ...]:
    """What being not Ready or cordoned is said by already."""
    key = str(taint.get("key", ""))
    said = key in ("node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready")
    return ({"operator": "Exists"},) if said or key == "node.kubernetes.io/unreachable" else ()


def tolerates(toleration: Object, taint: Object) -> bool:
    """Whether a toleration covers a taint, as Kubernetes reads them."""
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    if key and key != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")


def _shown(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return plain(f"{taint.get('key')}{value}:{taint.get('effect')}", 120)


def shortage(found: Sequence[Fit], nodes: int, wanted: Wanted) -> str:
    """Why the run cannot start, for people; empty: enough nodes are free."""
    good = [f for f in found if not f.why]
    if len(good) >= nodes:
        return ""
    meant = [f for f in found if f.meant]
    what = f"with {wanted.amount} {wanted.resource} free" if wanted.amount else "that are free"
    reasons: dict[str, list[str]] = {}
    for fit in meant or found:
        if fit.why:
            reasons.setdefault(fit.why, []).append(fit.node)
    shown = []
    for why, names in list(reasons.items())[:6]:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown.append(f"{', '.join(names[:3])}{more}: {why}")
    rest = "".join(f"; {line}" for line in shown)
    if not found:
        rest = "; the cluster has no nodes"
    return f"{nodes} nodes are wanted, and there are {len(good)} {what}{rest}"


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
    return find_place(
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
