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
from accept.plan.resolve import ClusterPlace, Resolved

Object = Mapping[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity_matches(affinity: Object, node: Object) -> bool:
    """Return whether a node has what an `affinity` requires. Preferences exclude no node.

    An invalid affinity excludes no node either, because the API refuses it with its own message.
    A node must match at least one term, and all rules of that term. An empty term matches nothing:
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
    """
    required = _as_mapping(_as_mapping(affinity.get("nodeAffinity")).get(_REQUIRED))
    terms = required.get("nodeSelectorTerms")
    if not isinstance(terms, list | tuple):
        return True
    meta = node.get("metadata", {})
    labels, fields = meta.get("labels") or {}, {"metadata.name": meta.get("name", "")}
    for term in map(_as_mapping, terms):
        on_labels = _term_rules(term, "matchExpressions")
        on_fields = _term_rules(term, "matchFields")
        if not on_labels and not on_fields:
            continue
        rules = [(rule, labels) for rule in on_labels] + [(rule, fields) for rule in on_fields]
        if all(_rule_holds(rule, values) for rule, values in rules):
            return True
    return False


def _as_mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _term_rules(term: Object, key: str) -> list[Object]:
    rules = term.get(key)
    return [_as_mapping(rule) for rule in rules] if isinstance(rules, list | tuple) else []


def _rule_holds(rule: Object, values: Mapping[str, str]) -> bool:
    key, operator = str(rule.get("key")), rule.get("operator")
    given = rule.get("values")
    wanted = [str(v) for v in given] if isinstance(given, list | tuple) else []
    value = values.get(key)
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "In":
        return value in wanted
    if operator == "NotIn":
        return value not in wanted
    if operator in ("Gt", "Lt") and value is not None and len(wanted) == 1:
        try:
            number, bound = int(value), int(wanted[0])
        except ValueError:
            return False
        return number > bound if operator == "Gt" else number < bound
    return False


_HOSTNAME = "kubernetes.io/hostname"
_BLOCKING = ("NoSchedule", "NoExecute")
_IMPLIED_TAINTS = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
)


@dataclass(frozen=True, kw_only=True)
class PodRequest:
    """What one pod of the run requires of its node."""

    selector: Mapping[str, str]
    tolerations: Sequence[Object]
    #: The site's affinity, as in a pod. Only its rules about nodes are read here; the scheduler
    #: applies those about other pods.
    affinity: Object = field(default_factory=dict)
    #: Names of nodes; if `include` is empty, every node is eligible.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    #: The extended resource and its amount, such as nvidia.com/gpu and 8; empty: none.
    resource: str = ""
    amount: int = 0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One node, and why a pod of the run cannot go there; `why` is empty if it can go there now."""

    node: str
    why: str = ""
    #: Whether the node is eligible by name, labels and affinity.
    meant: bool = True
    allocatable: int = 0
    free: int = 0
    #: Taints that the pods do not tolerate.
    taints: tuple[str, ...] = ()


def node_fits(
    nodes: Iterable[Object], pods: Iterable[Object], wanted: PodRequest
) -> tuple[Fit, ...]:
    """Return every node, sorted by name, with the reason why a pod cannot go there."""
    used: dict[str, int] = {}
    for pod in pods:
        node = str(pod.get("spec", {}).get("nodeName") or "")
        if node and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            used[node] = used.get(node, 0) + requested_amount(pod, wanted.resource)
    found = (_fit(node, used, wanted) for node in nodes)
    return tuple(sorted(found, key=lambda f: f.node))


def requested_amount(pod: Object, resource: str) -> int:
    """Return how much of an extended resource a pod requests.

    This is the larger of what its init containers and its main containers request.
    """
    spec = pod.get("spec", {})
    sidecars = initial = 0
    for container in spec.get("initContainers") or ():
        amount = _container_amount(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += amount
        else:
            initial = max(initial, amount + sidecars)
    return max(
        initial,
        sidecars + sum(_container_amount(c, resource) for c in spec.get("containers") or ()),
    )


def _container_amount(container: Object, resource: str) -> int:
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        amount = (resources.get(kind) or {}).get(resource)
        if amount is not None:
            return whole_number(amount)
    return 0


def whole_number(amount: object) -> int:
    """Return an amount of an extended resource, which Kubernetes restricts to whole numbers."""
    # Kubernetes accepts 2k for 2000.
    text = re.sub("k$", "000", str(amount))
    return decimal(text) or 0


def _fit(node: Object, used: Mapping[str, int], wanted: PodRequest) -> Fit:
    meta, spec, status = node.get("metadata", {}), node.get("spec", {}), node.get("status", {})
    name = str(meta.get("name", ""))
    labels = meta.get("labels") or {}
    allocatable = 0
    if wanted.resource:
        allocatable = whole_number((status.get("allocatable") or {}).get(wanted.resource, 0))
    free = allocatable - used.get(name, 0)
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
    if not affinity_matches(wanted.affinity, node):
        why = "not what the site's affinity asks of a node (kubernetes.affinity)"
        return Fit(node=name, why=why, meant=False)
    taints = tuple(_taint_text(t) for t in spec.get("taints") or () if _blocks(t, wanted))
    ready = any(
        c.get("type") == "Ready" and c.get("status") == "True"
        for c in status.get("conditions") or ()
    )
    why = ""
    if not ready:
        why = "it is not Ready"
    elif spec.get("unschedulable"):
        why = "it is cordoned"
    elif taints:
        why = f"taint {', '.join(taints)} is not tolerated"
    elif wanted.amount and allocatable < wanted.amount:
        why = f"it has {allocatable} {wanted.resource}, {wanted.amount} are wanted"
    elif wanted.amount and free < wanted.amount:
        why = (
            f"{max(0, free)} of its {allocatable} {wanted.resource} are free, "
            f"{wanted.amount} are wanted"
        )
    return Fit(node=name, why=why, allocatable=allocatable, free=max(0, free), taints=taints)


def _blocks(taint: Object, wanted: PodRequest) -> bool:
    return taint.get("effect") in _BLOCKING and not any(
        tolerates(one, taint) for one in (*wanted.tolerations, *_implied_tolerations(taint))
    )


def _implied_tolerations(taint: Object) -> tuple[Object, ...]:
    """Return tolerations for taints that being not Ready or cordoned implies."""
    key = str(taint.get("key", ""))
    return ({"operator": "Exists"},) if key in _IMPLIED_TAINTS else ()


def tolerates(toleration: Object, taint: Object) -> bool:
    """Return whether a toleration covers a taint, by the rules of Kubernetes."""
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    if key and key != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")


def _taint_text(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return plain(f"{taint.get('key')}{value}:{taint.get('effect')}", 120)


def shortage(found: Sequence[Fit], nodes: int, wanted: PodRequest) -> str:
    """Return why the run cannot start, for people; empty if enough nodes are free."""
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
#: The label of nodes that are created when a pod requests them.
_ON_DEMAND = "cloud.google.com/gke-flex-start"
#: Tolerations that the chart adds: for pods that request GPUs, for spot nodes, for flex-start.
_OF_GPUS = ({"key": _GPU, "operator": "Exists"},)
_OF_SPOT = [
    {"key": "cloud.google.com/gke-spot", "operator": "Exists"},
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists"},
]
_OF_FLEX = [
    {"key": _ON_DEMAND, "operator": "Exists"},
    {"key": "cloud.google.com/gke-queued", "operator": "Exists"},
]


def resolve_place(place: ClusterPlace, site: Site) -> Place:
    """Return where a run goes: by the options, else the site file, else kubectl's own choice."""
    return find_place(
        place.kubeconfig or "",
        place.context or "",
        place.namespace or site.kubernetes.namespace or "",
    )


def request_of_run(run: Resolved) -> PodRequest:
    """Return what a pod of the run requires of its node."""
    return pod_request(run.machine, run.site, run.gpus_per_pod, run.hosts)


def pod_request(
    machine: Machine, site: Site, gpus: int | None = None, hosts: tuple[str, ...] = ()
) -> PodRequest:
    """Return what a pod on the machine requires, with `gpus` of each node, or all."""
    of_machine, of_site = machine.kubernetes, site.kubernetes
    resource, amount = _gpu_resource(of_machine.resources, of_site.resources)
    gpus = gpus or of_site.gpus_per_pod
    if machine.gpus.count == "detect" and not (gpus or amount):
        # A pod takes as many GPUs as the node has; a node without any is not of this machine type.
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
    return PodRequest(
        selector=selector,
        affinity=of_site.affinity,
        tolerations=tolerations,
        include=hosts or of_site.include_nodes,
        exclude=of_site.exclude_nodes,
        resource=resource,
        amount=gpus or amount,
    )


def _gpu_resource(machine: Mapping[str, Any], site: Mapping[str, Any]) -> tuple[str, int]:
    """Return the GPU resource and amount that a pod requests.

    Resources of machine and site are merged by name, as the chart does.
    """
    for kind in ("limits", "requests"):
        merged = {**(machine.get(kind) or {}), **(site.get(kind) or {})}
        for name, amount in merged.items():
            if name.endswith("/gpu"):
                return name, whole_number(amount)
    return "", 0


def expected_nodes(site: Site, wanted: PodRequest) -> str:
    """Return why more nodes may come later, for people; empty if nothing adds nodes."""
    of_site = site.kubernetes
    if of_site.queue:
        return f"queue {plain(of_site.queue, 80)} admits the run when there are enough"
    if of_site.suspend:
        return "the run waits to be released"
    if _ON_DEMAND in wanted.selector:
        return "flex-start makes them"
    return "the cluster makes them (kubernetes.autoscaling)" if of_site.autoscaling else ""


def query_fits(api: Api, wanted: PodRequest) -> tuple[Fit, ...]:
    """Return every node of the cluster, with the reason why a pod of the run cannot go there."""
    return node_fits(all_nodes(api), api.items("/api/v1/pods", fieldSelector=_LIVE), wanted)


_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def all_nodes(api: Api) -> list[dict[str, Any]]:
    """Return the nodes of the cluster."""
    return api.items("/api/v1/nodes")


def free_nodes(api: Api, wanted: PodRequest) -> tuple[str, ...]:
    """Return the names of the eligible nodes with all their GPUs free."""
    found = query_fits(api, wanted)
    return tuple(f.node for f in found if not f.why and f.free == f.allocatable)


def count_machines(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """Count the nodes of each machine type, by their labels."""
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


def detect_machine(api: Api) -> str:
    """Return the one machine of the cluster.

    It comes from the labels of the nodes; GPU nodes with other labels are machine `gpu`. Raises
    NotStarted if the cluster has several machines, or if no node shows a GPU: a node whose device
    plugin is missing shows none either, and must not be tested as a machine without GPUs.
    """
    nodes = all_nodes(api)
    counted = count_machines(nodes)
    if len(counted) > 1:
        listed = ", ".join(f"{name} ({count} nodes)" for name, count in counted.items())
        raise NotStarted(f"the cluster has several machines: {listed}", hint="give --machine NAME")
    if counted:
        return next(iter(counted))
    capacities = [n.get("status", {}).get("capacity") or {} for n in nodes]
    if not any(whole_number(capacity.get(_GPU, 0)) for capacity in capacities):
        raise NotStarted(
            "no node of the cluster shows a GPU, so the machine cannot be detected",
            hint="give --machine NAME (accept list machines); cpu is a machine without GPUs",
        )
    return "gpu"
