"""Which nodes can take a pod of the run: pure functions over plain nodes and pods of the API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accept.backends.kubernetes.affinity import matches
from accept.core.text import decimal, plain

Object = Mapping[str, Any]

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
