"""Read objects of the Kubernetes API into dataclasses, and name the kinds that this back end uses.

A field that is missing, null or of another type reads as empty: many versions write these objects.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Generic, Self, TypeVar
from urllib.parse import quote

from accept.config.chart_rules import chart_rules
from accept.core.text import decimal

Value = TypeVar("Value")
AnyRecord = TypeVar("AnyRecord", bound="Record")
#: The JSON of an object.
Document = Mapping[str, object]

#: The container that runs the suite.
MAIN_CONTAINER = "accept"
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_ROLE_LABEL = "accept-role"
#: Kubernetes' default for `terminationGracePeriodSeconds`.
_GRACE_SECONDS = 30


def value_at(value: object, *path: str) -> object:
    """Return the value at a path of keys; None if a part of the path is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def text_at(value: object, *path: str) -> str:
    """Return the text at a path; empty if it is missing."""
    found = value_at(value, *path)
    return "" if found is None else str(found)


def texts_at(value: object, *path: str) -> dict[str, str]:
    """Return the mapping of texts at a path; empty if it is missing."""
    found = value_at(value, *path)
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, Mapping) else {}


def list_at(value: object, *path: str) -> list[Document]:
    """Return the list of objects at a path; empty if it is missing."""
    found = value_at(value, *path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def whole_number(amount: object) -> int:
    """Return an amount of an extended resource, which Kubernetes restricts to whole numbers."""
    # Kubernetes accepts 2k for 2000.
    return decimal(re.sub("k$", "000", str(amount))) or 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """A part of an object; each field states how it is read from the JSON."""

    @classmethod
    def read(cls, document: Document) -> Self:
        """Read all fields."""
        return cls(**{item.name: item.metadata["read"](document) for item in fields(cls)})


def _read_by(read: Callable[[Document], Value]) -> Value:
    """Return a field of a Record that `read` finds in the JSON."""
    found: Value = field(metadata={"read": read})
    return found


def _text(*path: str) -> str:
    return _read_by(lambda document: text_at(document, *path))


def _texts(*path: str) -> Mapping[str, str]:
    return _read_by(lambda document: texts_at(document, *path))


def _many(kind: type[AnyRecord], *path: str) -> tuple[AnyRecord, ...]:
    return _read_by(lambda document: tuple(map(kind.read, list_at(document, *path))))


def _holds(value: object, *path: str) -> bool:
    return _read_by(lambda document: value_at(document, *path) == value)


@dataclass(frozen=True, kw_only=True)
class Owner(Record):
    """The object that made another one."""

    kind: str = _text("kind")
    name: str = _text("name")
    uid: str = _text("uid")


@dataclass(frozen=True, kw_only=True)
class Condition(Record):
    """One condition of an object's status."""

    type: str = _text("type")
    holds: bool = _holds("True", "status")
    reason: str = _text("reason")
    message: str = _text("message")

    @property
    def text(self) -> str:
        """Return reason and message for people."""
        return ": ".join(filter(None, (self.reason, self.message)))


@dataclass(frozen=True, kw_only=True)
class Object(Record):
    """An object of any kind: its metadata and its conditions."""

    name: str = _text("metadata", "name")
    namespace: str = _text("metadata", "namespace")
    uid: str = _text("metadata", "uid")
    #: When it was created, in the API's format, which sorts as text.
    created: str = _text("metadata", "creationTimestamp")
    labels: Mapping[str, str] = _texts("metadata", "labels")
    #: When the API began to delete it; empty if it did not.
    deleted: str = _text("metadata", "deletionTimestamp")
    owners: tuple[Owner, ...] = _many(Owner, "metadata", "ownerReferences")
    conditions: tuple[Condition, ...] = _many(Condition, "status", "conditions")
    #: The object as the API returned it, for the copy that `collect` saves.
    document: Mapping[str, object] = _read_by(lambda document: document)

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of a type; None if the object has none."""
        return next((c for c in self.conditions if c.type == kind), None)


@dataclass(frozen=True, kw_only=True)
class Taint(Record):
    """A taint of a node."""

    key: str = _text("key")
    value: str = _text("value")
    effect: str = _text("effect")

    def __str__(self) -> str:
        """Return the taint as `kubectl taint` takes it."""
        return f"{self.key}{self.value and f'={self.value}'}:{self.effect}"


@dataclass(frozen=True, kw_only=True)
class Node(Object):
    """A node of the cluster."""

    cordoned: bool = _holds(True, "spec", "unschedulable")
    #: The cloud's name of the machine, such as gce://project/zone/instance.
    provider_id: str = _text("spec", "providerID")
    taints: tuple[Taint, ...] = _many(Taint, "spec", "taints")
    #: Amounts by resource: those that the node has, and those that pods may use.
    capacity: Mapping[str, str] = _texts("status", "capacity")
    allocatable: Mapping[str, str] = _texts("status", "allocatable")

    @property
    def maintenance(self) -> int | None:
        """Return when GKE begins to maintain its host, in seconds since 1970; None: not planned.

        https://cloud.google.com/kubernetes-engine/docs/how-to/view-maintenance-events
        """
        return decimal(self.labels.get("cloud.google.com/scheduled-maintenance-time", ""))

    @property
    def ready(self) -> bool:
        """Return whether the kubelet reports the node as Ready."""
        ready = self.condition("Ready")
        return ready is not None and ready.holds


def _cause(document: Document, key: str) -> str:
    ended = value_at(document, "state", "terminated")
    return text_at(ended or value_at(document, "state", "waiting"), key)


def _exit_code(document: Document) -> int | None:
    code = value_at(document, "state", "terminated", "exitCode")
    return code if isinstance(code, int) else None


@dataclass(frozen=True, kw_only=True)
class Container(Record):
    """The last known state of a container in a pod; texts are empty where they do not apply."""

    name: str = _text("name")
    image: str = _text("image")
    running: bool = _read_by(lambda status: value_at(status, "state", "running") is not None)
    #: Whether it has ended; then with its exit code, if the kubelet knows it.
    ended: bool = _read_by(lambda status: value_at(status, "state", "terminated") is not None)
    code: int | None = _read_by(_exit_code)
    #: Why it waits or ended.
    reason: str = _read_by(lambda status: _cause(status, "reason"))
    message: str = _read_by(lambda status: _cause(status, "message"))


def _index(document: Document) -> int:
    marks = {**texts_at(document, "metadata", "annotations")}
    index = decimal({**marks, **texts_at(document, "metadata", "labels")}.get(_INDEX_LABEL, ""))
    return -1 if index is None else index


def _coordinates(document: Document) -> bool:
    # Only a run whose coordinator has a pod of its own has this label.
    role = text_at(document, "metadata", "labels", _ROLE_LABEL)
    return role == "coordinator" or (not role and _index(document) == 0)


def _grace(document: Document) -> int:
    seconds = value_at(document, "spec", "terminationGracePeriodSeconds")
    return seconds if isinstance(seconds, int) else _GRACE_SECONDS


def _requests(document: Document) -> Mapping[str, int]:
    """Return the larger of what init containers and main containers request, by resource."""
    sidecars, initial = Counter[str](), Counter[str]()
    for container in list_at(document, "spec", "initContainers"):
        if text_at(container, "restartPolicy") == "Always":
            sidecars += _amounts(container)
        else:
            # For counters, `|` is the maximum.
            initial |= _amounts(container) + sidecars
    return initial | sum(map(_amounts, list_at(document, "spec", "containers")), sidecars)


def _amounts(container: Document) -> Counter[str]:
    limits, requests = (texts_at(container, "resources", key) for key in ("limits", "requests"))
    merged = {**limits, **requests}
    return Counter({key: whole_number(amount) for key, amount in merged.items() if "/" in key})


class PodPhase(StrEnum):
    """The phase of a pod."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"
    #: The pod is being deleted while it runs.
    LEAVING = "leaving"


@dataclass(frozen=True, kw_only=True)
class Pod(Object):
    """A pod of the cluster."""

    #: Name of its node; empty until it is scheduled.
    node: str = _text("spec", "nodeName")
    #: Its index in an Indexed Job; -1 if unknown.
    index: int = _read_by(_index)
    #: Whether it is the pod of the coordinator.
    coordinates: bool = _read_by(_coordinates)
    #: The phase that the API reports; `phase` shows more.
    reported: str = _text("status", "phase")
    reason: str = _text("status", "reason")
    message: str = _text("status", "message")
    init_containers: tuple[Container, ...] = _many(Container, "status", "initContainerStatuses")
    containers: tuple[Container, ...] = _many(Container, "status", "containerStatuses")
    #: Amounts of extended resources that it requests, such as GPUs.
    requests: Mapping[str, int] = _read_by(_requests)
    #: Seconds that it may take to end after the signal.
    grace: int = _read_by(_grace)

    @property
    def main(self) -> Container | None:
        """Return the container that runs the suite; None if there is no state of it yet."""
        return next((c for c in self.containers if c.name == MAIN_CONTAINER), None)

    @property
    def code(self) -> int | None:
        """Return the exit code of the main container; None until it ends."""
        return self.main.code if self.main else None

    @property
    def ran(self) -> bool:
        """Return whether its main container has ever run."""
        return self.main is not None and (self.main.running or self.main.ended)

    @property
    def phase(self) -> PodPhase:
        """Return what it does."""
        # Without a state of a container, the kubelet refused or evicted it, or its node is lost.
        if (self.main and self.main.ended) or self.reported in ("Failed", "Succeeded"):
            return PodPhase.ENDED
        if self.deleted:
            return PodPhase.LEAVING
        return PodPhase.RUNNING if self.main and self.main.running else PodPhase.WAITING


def _job_specs(document: Document) -> list[tuple[str, object]]:
    """Return the number of replicas and the spec of each Job of a JobSet, or of a single Job."""
    jobs = list_at(document, "spec", "replicatedJobs")
    return [
        (text_at(job, "replicas") or "1", value_at(job, "template", "spec")) for job in jobs
    ] or [("1", value_at(document, "spec"))]


def _pod_count(document: Document) -> int:
    return sum(
        (decimal(replicas) or 0) * (decimal(text_at(spec, "parallelism")) or 0)
        for replicas, spec in _job_specs(document)
    )


def _environment(document: Document) -> dict[str, str]:
    return {
        text_at(variable, "name"): text_at(variable, "value")
        for _, spec in _job_specs(document)
        for container in list_at(spec, "template", "spec", "containers")
        if text_at(container, "name") == MAIN_CONTAINER
        for variable in list_at(container, "env")
        if "valueFrom" not in variable
    }


@dataclass(frozen=True, kw_only=True)
class Controller(Object):
    """A JobSet, its Job or a plain Job, which runs the pods of a run."""

    suspended: bool = _holds(True, "spec", "suspend")
    #: Whether it runs the pod of the coordinator.
    coordinates: bool = _read_by(
        lambda document: text_at(document, "metadata", "labels", _ROLE_LABEL) != "host"
    )
    #: Number of pods.
    pods: int = _read_by(_pod_count)
    #: Environment variables of the main container that have literal values.
    environment: Mapping[str, str] = _read_by(_environment)


def _last_time(document: Document) -> str:
    paths = ("lastTimestamp",), ("series", "lastObservedTime"), ("eventTime",)
    times = (text_at(document, *path) for path in (*paths, ("metadata", "creationTimestamp")))
    return next(filter(None, times), "")


@dataclass(frozen=True, kw_only=True)
class Event(Object):
    """An event about an object."""

    #: Name of the object that it is about.
    about: str = _text("involvedObject", "name")
    warning: bool = _holds("Warning", "type")
    reason: str = _text("reason")
    message: str = _text("message")
    #: When it last occurred, in the API's format, which sorts as text.
    when: str = _read_by(_last_time)


def _access_modes(document: Document) -> tuple[str, ...]:
    modes = value_at(document, "status", "accessModes") or value_at(document, "spec", "accessModes")
    return tuple(map(str, modes)) if isinstance(modes, list) else ()


@dataclass(frozen=True, kw_only=True)
class VolumeClaim(Object):
    """A claim of a volume."""

    phase: str = _text("status", "phase")
    modes: tuple[str, ...] = _read_by(_access_modes)
    storage_class: str = _text("spec", "storageClassName")


@dataclass(frozen=True, kw_only=True)
class StorageClass(Object):
    """A class of volumes."""

    binding_mode: str = _text("volumeBindingMode")


@dataclass(frozen=True, kw_only=True)
class DaemonSet(Object):
    """A set of pods, one on each node of some kind."""

    #: Number of nodes that need its pod, and of those with a ready one.
    wanted: int = _read_by(
        lambda document: whole_number(value_at(document, "status", "desiredNumberScheduled"))
    )
    ready: int = _read_by(
        lambda document: whole_number(value_at(document, "status", "numberReady"))
    )
    #: Folders of the node that its pods mount.
    folders: tuple[str, ...] = _read_by(
        lambda document: tuple(
            text_at(volume, "hostPath", "path")
            for volume in list_at(document, "spec", "template", "spec", "volumes")
            if volume.get("hostPath")
        )
    )
    #: Image of each container by name.
    images: Mapping[str, str] = _read_by(
        lambda document: {
            text_at(container, "name"): text_at(container, "image")
            for kind in ("initContainers", "containers")
            for container in list_at(document, "spec", "template", "spec", kind)
        }
    )


AnyObject_co = TypeVar("AnyObject_co", bound=Object, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[AnyObject_co]):
    """A kind of object, and its place in the API."""

    name: str
    read: Callable[[Document], AnyObject_co]
    #: Group, version and name in paths of the API.
    group: str
    version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of all objects, of those in a namespace, or of one object."""
        words = ("apis", self.group) if self.group else ("api",)
        place = ("namespaces", namespace) if namespace else ()
        parts = (*words, self.version, *place, self.plural, *filter(None, (name,)))
        return "".join(f"/{quote(part, safe='')}" for part in parts)


def _kind(
    api: str, plural: str, name: str, read: Callable[[Document], AnyObject_co]
) -> Kind[AnyObject_co]:
    """Return a namespaced kind; `api` is its group and version, as in a manifest."""
    group, _, version = api.rpartition("/")
    return Kind(name=name, read=read, group=group, version=version, plural=plural, namespaced=True)


def _wide(
    api: str, plural: str, name: str, read: Callable[[Document], AnyObject_co]
) -> Kind[AnyObject_co]:
    """Return a kind whose objects belong to the whole cluster."""
    return replace(_kind(api, plural, name, read), namespaced=False)


POD = _kind("v1", "pods", "Pod", Pod.read)
NODE = _wide("v1", "nodes", "Node", Node.read)
NAMESPACE = _wide("v1", "namespaces", "Namespace", Object.read)
EVENT = _kind("v1", "events", "Event", Event.read)
SERVICE = _kind("v1", "services", "Service", Object.read)
SERVICE_ACCOUNT = _kind("v1", "serviceaccounts", "ServiceAccount", Object.read)
CONFIG_MAP = _kind("v1", "configmaps", "ConfigMap", Object.read)
SECRET = _kind("v1", "secrets", "Secret", Object.read)
VOLUME_CLAIM = _kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim", VolumeClaim.read)
STORAGE_CLASS = _wide("storage.k8s.io/v1", "storageclasses", "StorageClass", StorageClass.read)
NETWORK_POLICY = _kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", Object.read)
DAEMON_SET = _kind("apps/v1", "daemonsets", "DaemonSet", DaemonSet.read)
JOB = _kind("batch/v1", "jobs", "Job", Controller.read)
JOBSET = _kind("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", Controller.read)
COMPUTE_DOMAIN = _kind(
    "resource.nvidia.com/v1beta1", "computedomains", "ComputeDomain", Object.read
)
NETWORK = _wide("networking.gke.io/v1", "networks", "Network", Object.read)
NETWORK_PARAMETERS = _wide(
    "networking.gke.io/v1", "gkenetworkparamsets", "GKENetworkParamSet", Object.read
)
#: Kinds with several versions, the newest first.
LOCAL_QUEUES, WORKLOADS = (
    tuple(_kind(f"kueue.x-k8s.io/{v}", plural, name, Object.read) for v in ("v1beta2", "v1beta1"))
    for plural, name in (("localqueues", "LocalQueue"), ("workloads", "Workload"))
)
TOPOLOGIES = tuple(
    _wide(f"kueue.x-k8s.io/{v}", "topologies", "Topology", Object.read)
    for v in ("v1beta2", "v1beta1", "v1alpha1")
)
_RESOURCE_APIS = [f"resource.k8s.io/{claim.version}" for claim in chart_rules().claim_versions]
CLAIM_TEMPLATES = tuple(
    _kind(api, "resourceclaimtemplates", "ResourceClaimTemplate", Object.read)
    for api in _RESOURCE_APIS
)
DEVICE_CLASSES = tuple(
    _wide(api, "deviceclasses", "DeviceClass", Object.read) for api in _RESOURCE_APIS
)
