"""Count the nodes that a run matches and that are free, and detect the machine from the nodes.

This is a simple count, not the scheduler: labels, names, readiness, taints and free GPUs. It does
not read the site's `affinity`, so it can be too high.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from accept import config
from accept.backends.kubernetes.client import Api
from accept.backends.kubernetes.objects import (
    NODE,
    POD,
    Node,
    Pod,
    Taint,
    text_at,
    value_at,
    whole_number,
)
from accept.backends.protocol import FreeNodes
from accept.config import Site
from accept.config.kubernetes import Kubernetes, PodSettings
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.plan import LeftOutNode
from accept.core.text import count, plain, shortened
from accept.plan.placement import GPU, gpu_resource

_BLOCKING = ("NoSchedule", "NoExecute")
#: Taints that nodes have because they are NotReady or cordoned, which is reported separately.
_IMPLIED_TAINTS = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
)


@dataclass(frozen=True, kw_only=True)
class PodRequest:
    """The requirements of one pod on its node."""

    selector: Mapping[str, str]
    #: As in a pod.
    tolerations: Sequence[Mapping[str, object]]
    #: Names of nodes; if `include` is empty, every node matches.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    #: The extended resource and its amount, such as nvidia.com/gpu and 8; empty: none.
    resource: str = ""
    amount: int = 0
    #: When the run may end, in seconds since 1970. Nodes whose maintenance begins before that are
    #: left out, unless the user names the nodes.
    end: float = 0.0


class Misfit(StrEnum):
    """The reason why a pod of the run cannot go to a node."""

    NOT_INCLUDED = "not-included"
    EXCLUDED = "excluded"
    LABEL = "label"
    NOT_READY = "not-ready"
    CORDONED = "cordoned"
    TAINT = "taint"
    GPUS_IN_USE = "gpus-in-use"
    MAINTENANCE = "maintenance"


#: Why a node gets no pods of any run.
_CLOSED = (Misfit.NOT_READY, Misfit.CORDONED, Misfit.MAINTENANCE)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One node, and why a pod of the run cannot go there."""

    node: str
    #: None if a pod can go there now.
    misfit: Misfit | None = None
    #: The reason for people; empty if there is none.
    why: str = ""
    #: Whether no other pod holds any of its GPUs.
    whole: bool = False
    #: Taints that the pods do not tolerate.
    taints: tuple[str, ...] = ()

    @property
    def matches(self) -> bool:
        """Return whether the name and the labels match the run's requirements."""
        return self.misfit not in (Misfit.NOT_INCLUDED, Misfit.EXCLUDED, Misfit.LABEL)


def node_fits(nodes: Iterable[Node], pods: Iterable[Pod], wanted: PodRequest) -> tuple[Fit, ...]:
    """Return every node, sorted by name, with the reason why a pod cannot go there."""
    used = Counter[str]()
    for pod in pods:
        if pod.reported not in ("Succeeded", "Failed"):
            used[pod.node] += pod.requests.get(wanted.resource, 0)
    return tuple(
        _fit(node, used[node.name], wanted) for node in sorted(nodes, key=lambda node: node.name)
    )


def _fit(node: Node, used: int, wanted: PodRequest) -> Fit:
    if mismatch := _mismatch(node, wanted):
        return mismatch
    total = whole_number(node.allocatable.get(wanted.resource, 0))
    free = max(0, total - used)
    taints = tuple(plain(t, 120) for t in node.taints if _blocks(t, wanted.tolerations))
    misfit, why = None, ""
    if not node.ready:
        misfit, why = Misfit.NOT_READY, "it is not Ready"
    elif node.cordoned:
        misfit, why = Misfit.CORDONED, "it is cordoned"
    elif taints:
        misfit, why = Misfit.TAINT, f"taint {', '.join(taints)} is not tolerated"
    elif free < wanted.amount:
        why = f"{free} of its {total} {wanted.resource} are free, {wanted.amount} requested"
        misfit = Misfit.GPUS_IN_USE
    elif node.maintenance is not None and node.maintenance < wanted.end and not wanted.include:
        when = datetime.fromtimestamp(node.maintenance, UTC).isoformat(timespec="minutes")
        misfit, why = Misfit.MAINTENANCE, f"maintenance of its host is scheduled for {when}"
    return Fit(node=node.name, misfit=misfit, why=why, whole=used == 0, taints=taints)


def _mismatch(node: Node, wanted: PodRequest) -> Fit | None:
    """Return why a node is not one that the run requests; None if it is."""
    if wanted.include and node.name not in wanted.include:
        why = "not among the requested nodes"
        return Fit(node=node.name, misfit=Misfit.NOT_INCLUDED, why=why)
    if node.name in wanted.exclude:
        return Fit(node=node.name, misfit=Misfit.EXCLUDED, why="among the excluded nodes")
    for key, value in wanted.selector.items():
        label = node.labels.get(key)
        if label != value:
            has = "is missing" if label is None else f"is {plain(label, 80)}"
            why = f"label {key} {has}, {value} is required"
            return Fit(node=node.name, misfit=Misfit.LABEL, why=why)
    return None


def _blocks(taint: Taint, tolerations: Iterable[Mapping[str, object]]) -> bool:
    implied = taint.key in _IMPLIED_TAINTS
    tolerated = any(tolerates(toleration, taint) for toleration in tolerations)
    return taint.effect in _BLOCKING and not implied and not tolerated


def tolerates(toleration: Mapping[str, object], taint: Taint) -> bool:
    """Return whether a toleration covers a taint, by the rules of Kubernetes."""
    key, effect = text_at(toleration, "key"), text_at(toleration, "effect")
    if effect not in ("", taint.effect) or key not in ("", taint.key):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and text_at(toleration, "value") == taint.value


def shortage(found: Sequence[Fit], nodes: int, wanted: PodRequest) -> str:
    """Return why the run cannot start, for people; empty if enough nodes are free."""
    good = sum(1 for fit in found if fit.misfit is None)
    if good >= nodes:
        return ""
    gpus = f" with {wanted.amount} {wanted.resource}" if wanted.amount else ""
    short = f"{count(nodes, 'node')} requested, {good} free{gpus}"
    return "; ".join(filter(None, (short, misfits(found, wanted))))


def misfits(found: Sequence[Fit], wanted: PodRequest) -> str:
    """Return why nodes get no pod of the run, for people."""
    if not found:
        return "the cluster has no nodes"
    unknown = set(wanted.include).difference(fit.node for fit in found)
    reasons: dict[str, list[str]] = {"no such node": sorted(unknown)} if unknown else {}
    for fit in [f for f in found if f.matches] or found:
        if fit.misfit is not None:
            reasons.setdefault(fit.why, []).append(fit.node)
    return "; ".join(f"{shortened(own, 3)}: {why}" for why, own in list(reasons.items())[:6])


def pod_request(pod: PodSettings, site: Kubernetes, *, seconds: float = 0) -> PodRequest:
    """Return what a pod with these settings, which lasts `seconds`, requires of its node."""
    resource = gpu_resource(pod.resources)
    amounts = (value_at(pod.resources, kind, resource) for kind in ("limits", "requests"))
    return PodRequest(
        selector=pod.node_selector,
        tolerations=pod.tolerations,
        include=site.include_nodes,
        exclude=site.exclude_nodes,
        end=time.time() + seconds,
        resource=resource,
        amount=whole_number(next(filter(None, amounts), 0)),
    )


def expected_nodes(site: Site) -> str:
    """Return why the run may start although too few nodes are free; empty if it cannot."""
    of_site = site.kubernetes
    if of_site.queue:
        return f"queue {plain(of_site.queue, 80)} admits the run when enough are free"
    if of_site.suspend:
        return "the run waits until it is resumed"
    if of_site.flex_start:
        return "flex-start creates them"
    if of_site.autoscaling:
        return "the cluster creates them (kubernetes.autoscaling)"
    if of_site.priority_class_name:
        return "pods of lower priority may make room (kubernetes.priorityClassName)"
    return ""


def requires_affinity(site: Site) -> bool:
    """Return whether the site restricts nodes by rules that only the scheduler evaluates."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return value_at(site.kubernetes.affinity, "nodeAffinity", required) is not None


_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def query_fits(
    api: Api, wanted: PodRequest, nodes: Iterable[Node] | None = None
) -> tuple[Fit, ...]:
    """Return every node of the cluster, with the reason why a pod of the run cannot go there."""
    pods = api.find_all(POD, everywhere=True, fields=_LIVE)
    return node_fits(api.find_all(NODE) if nodes is None else nodes, pods, wanted)


def free_nodes(fits: Sequence[Fit]) -> FreeNodes:
    """Return the matching nodes with all their GPUs free, and those that get no pods."""
    return FreeNodes(
        names=tuple(fit.node for fit in fits if fit.misfit is None and fit.whole),
        left_out=tuple(
            LeftOutNode(name=fit.node, reason=fit.why) for fit in fits if fit.misfit in _CLOSED
        ),
    )


def count_machines(nodes: Iterable[Node]) -> dict[str, int]:
    """Count the nodes of each machine type, by their labels, and under "" other nodes with GPUs."""
    selectors = {
        name: labels.items()
        for name in config.names("machines")
        if (labels := config.load_machine(name).value.kubernetes.node_selector)
    }
    counted = Counter[str]()
    for node in nodes:
        own = [name for name, labels in selectors.items() if labels <= node.labels.items()]
        counted.update(own or ([""] if _gpus(node) else []))
    return dict(sorted(counted.items()))


def _gpus(node: Node) -> int:
    return whole_number(node.capacity.get(GPU, 0))


def count_gpus(nodes: Iterable[Node]) -> int:
    """Return the total number of GPUs of the nodes."""
    return sum(map(_gpus, nodes))


def gpus_of_most(nodes: Iterable[Node]) -> int:
    """Return the number of GPUs that most of the nodes with GPUs have; 0 if none has any."""
    numbers = Counter(filter(None, map(_gpus, nodes)))
    return max(numbers, key=lambda number: (numbers[number], number), default=0)


def detect_machine(api: Api) -> str:
    """Return the one machine of the cluster.

    It comes from the labels of the nodes; GPU nodes with other labels are machine `gpu`. Raises
    NotStarted if the cluster has several machines, or if no node shows a GPU: a node whose device
    plugin is missing shows none either, and must not be tested as a machine without GPUs.
    """
    nodes = api.find_all(NODE)
    counted = count_machines(nodes)
    others = counted.pop("", 0)
    if len(counted) > 1:
        listed = ", ".join(f"{name} ({count(number, 'node')})" for name, number in counted.items())
        raise NotStarted(
            f"the cluster has several machines: {listed}",
            code=Code.KUBE_MACHINES,
            hint="name one: --machine NAME",
        )
    if counted:
        return next(iter(counted))
    if not others:
        raise NotStarted(
            "no node of the cluster shows a GPU, so the machine cannot be detected",
            code=Code.KUBE_MACHINE_UNKNOWN,
            hint="give --machine NAME (accept list machines); cpu is a machine without GPUs",
        )
    return "gpu"
