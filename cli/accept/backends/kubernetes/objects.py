"""Read objects of the Kubernetes API into dataclasses, and name the kinds that this back end uses.

A field that is missing, null or of another type reads as empty: many versions write these objects.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from accept.core.text import decimal

#: The JSON of an object.
Document = Mapping[str, object]

#: The container that runs the suite.
MAIN_CONTAINER = "accept"
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
#: Kubernetes' default for `terminationGracePeriodSeconds`.
_GRACE_SECONDS = 30


def value_at(value: object, *path: str) -> object:
    """Return what is at a path of keys; None if a part of it is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def text_at(value: object, *path: str) -> str:
    """Return what is at a path as text; empty if it is missing."""
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
class Owner:
    """The object that made another one."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition of an object's status."""

    type: str
    holds: bool
    reason: str
    message: str

    @property
    def text(self) -> str:
        """Return reason and message for people."""
        return ": ".join(filter(None, (self.reason, self.message)))


@dataclass(frozen=True, kw_only=True)
class Meta:
    """The metadata of an object."""

    name: str
    namespace: str
    uid: str
    #: When it was created, in the API's format, which sorts as text.
    created: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    #: Whether the API is deleting it already.
    leaving: bool
    owners: tuple[Owner, ...]


@dataclass(frozen=True, kw_only=True)
class Object:
    """An object of any kind: its metadata and its conditions."""

    meta: Meta
    conditions: tuple[Condition, ...]
    #: The object as the API returned it, for the copy that `collect` saves.
    document: Document = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """Return the name of the object."""
        return self.meta.name

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of a type; None if the object has none."""
        return next((c for c in self.conditions if c.type == kind), None)

    @classmethod
    def read(cls, document: Document) -> Object:
        """Read an object of a kind whose other fields are not used."""
        return Object(meta=_meta(document), conditions=_conditions(document), document=document)


def _meta(document: Document) -> Meta:
    meta = value_at(document, "metadata")
    return Meta(
        name=text_at(meta, "name"),
        namespace=text_at(meta, "namespace"),
        uid=text_at(meta, "uid"),
        created=text_at(meta, "creationTimestamp"),
        labels=texts_at(meta, "labels"),
        annotations=texts_at(meta, "annotations"),
        leaving=bool(text_at(meta, "deletionTimestamp")),
        owners=tuple(
            Owner(kind=text_at(o, "kind"), name=text_at(o, "name"), uid=text_at(o, "uid"))
            for o in list_at(meta, "ownerReferences")
        ),
    )


def _conditions(document: Document) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=text_at(condition, "type"),
            holds=text_at(condition, "status") == "True",
            reason=text_at(condition, "reason"),
            message=text_at(condition, "message"),
        )
        for condition in list_at(document, "status", "conditions")
    )


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """Return the taint as `kubectl taint` takes it."""
        return f"{self.key}{self.value and f'={self.value}'}:{self.effect}"


@dataclass(frozen=True, kw_only=True)
class Node(Object):
    """A node of the cluster."""

    cordoned: bool
    taints: tuple[Taint, ...]
    #: Amounts by resource: those that the node has, and those that pods may use.
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]

    @property
    def ready(self) -> bool:
        """Return whether the kubelet reports the node as Ready."""
        ready = self.condition("Ready")
        return ready is not None and ready.holds

    @classmethod
    def read(cls, document: Document) -> Node:
        """Read a node."""
        return Node(
            meta=_meta(document),
            conditions=_conditions(document),
            document=document,
            cordoned=value_at(document, "spec", "unschedulable") is True,
            taints=tuple(
                Taint(key=text_at(t, "key"), value=text_at(t, "value"), effect=text_at(t, "effect"))
                for t in list_at(document, "spec", "taints")
            ),
            capacity=texts_at(document, "status", "capacity"),
            allocatable=texts_at(document, "status", "allocatable"),
        )


@dataclass(frozen=True, kw_only=True)
class Container:
    """The last known state of a container in a pod; texts are empty where they do not apply."""

    name: str
    image: str
    running: bool
    #: Whether it has ended; then with its exit code, if the kubelet knows it.
    ended: bool
    code: int | None
    #: Why it waits or ended.
    reason: str
    message: str


def _container(status: Document) -> Container:
    ended = value_at(status, "state", "terminated")
    cause = ended or value_at(status, "state", "waiting")
    code = value_at(ended, "exitCode")
    return Container(
        name=text_at(status, "name"),
        image=text_at(status, "image"),
        running=value_at(status, "state", "running") is not None,
        ended=ended is not None,
        code=code if isinstance(code, int) else None,
        reason=text_at(cause, "reason"),
        message=text_at(cause, "message"),
    )


@dataclass(frozen=True, kw_only=True)
class Pod(Object):
    """A pod of the cluster."""

    #: Name of its node; empty until it is scheduled.
    node: str
    #: Its index in an Indexed Job; -1 if unknown.
    index: int
    #: The phase, reason and message of its status.
    phase: str
    reason: str
    message: str
    init_containers: tuple[Container, ...]
    containers: tuple[Container, ...]
    #: Amounts of extended resources that it requests, such as GPUs.
    requests: Mapping[str, int]
    #: Seconds that it may take to end after it is told to.
    grace: int

    @property
    def main(self) -> Container | None:
        """Return the container that runs the suite; None if there is no state of it yet."""
        return next((c for c in self.containers if c.name == MAIN_CONTAINER), None)

    @classmethod
    def read(cls, document: Document) -> Pod:
        """Read a pod."""
        meta, status = _meta(document), value_at(document, "status")
        index = decimal({**meta.annotations, **meta.labels}.get(_INDEX_LABEL, ""))
        grace = value_at(document, "spec", "terminationGracePeriodSeconds")
        return Pod(
            meta=meta,
            conditions=_conditions(document),
            document=document,
            node=text_at(document, "spec", "nodeName"),
            index=-1 if index is None else index,
            phase=text_at(status, "phase"),
            reason=text_at(status, "reason"),
            message=text_at(status, "message"),
            init_containers=tuple(map(_container, list_at(status, "initContainerStatuses"))),
            containers=tuple(map(_container, list_at(status, "containerStatuses"))),
            requests=_requests(value_at(document, "spec")),
            grace=grace if isinstance(grace, int) else _GRACE_SECONDS,
        )


def _requests(spec: object) -> Mapping[str, int]:
    """Return the larger of what init containers and main containers request, by resource."""
    sidecars, initial = Counter[str](), Counter[str]()
    for container in list_at(spec, "initContainers"):
        if text_at(container, "restartPolicy") == "Always":
            sidecars += _amounts(container)
        else:
            # For counters, `|` is the maximum.
            initial |= _amounts(container) + sidecars
    return initial | sum(map(_amounts, list_at(spec, "containers")), sidecars)


def _amounts(container: Document) -> Counter[str]:
    resources = value_at(container, "resources")
    merged = {**texts_at(resources, "limits"), **texts_at(resources, "requests")}
    return Counter({key: whole_number(amount) for key, amount in merged.items() if "/" in key})


@dataclass(frozen=True, kw_only=True)
class Controller(Object):
    """What runs the pods of a run: a JobSet, its Job, or a plain Job."""

    suspended: bool
    #: Number of pods.
    pods: int
    #: Environment variables of the main container that have literal values.
    environment: Mapping[str, str]

    @classmethod
    def read(cls, document: Document) -> Controller:
        """Read a JobSet or a Job."""
        spec = value_at(document, "spec")
        jobs = [
            (text_at(job, "replicas") or "1", value_at(job, "template", "spec"))
            for job in list_at(spec, "replicatedJobs")
        ] or [("1", spec)]
        containers = list_at(jobs[0][1], "template", "spec", "containers")
        return Controller(
            meta=_meta(document),
            conditions=_conditions(document),
            document=document,
            suspended=value_at(spec, "suspend") is True,
            pods=sum(
                (decimal(replicas) or 0) * (decimal(text_at(job, "parallelism")) or 0)
                for replicas, job in jobs
            ),
            environment={
                text_at(variable, "name"): text_at(variable, "value")
                for container in containers
                if text_at(container, "name") == MAIN_CONTAINER
                for variable in list_at(container, "env")
                if "valueFrom" not in variable
            },
        )


@dataclass(frozen=True, kw_only=True)
class Event(Object):
    """An event about an object."""

    #: Name of the object that it is about.
    about: str
    warning: bool
    reason: str
    message: str
    #: When it last occurred, in the API's format, which sorts as text.
    when: str

    @classmethod
    def read(cls, document: Document) -> Event:
        """Read an event, in the form of either of its two APIs."""
        times = (
            ("lastTimestamp",),
            ("series", "lastObservedTime"),
            ("eventTime",),
            ("metadata", "creationTimestamp"),
        )
        return Event(
            meta=_meta(document),
            conditions=(),
            document=document,
            about=text_at(document, "involvedObject", "name")
            or text_at(document, "regarding", "name"),
            warning=text_at(document, "type") == "Warning",
            reason=text_at(document, "reason"),
            message=text_at(document, "message") or text_at(document, "note"),
            when=next(filter(None, (text_at(document, *path) for path in times)), ""),
        )


@dataclass(frozen=True, kw_only=True)
class VolumeClaim(Object):
    """A claim of a volume."""

    phase: str
    modes: tuple[str, ...]
    storage_class: str

    @classmethod
    def read(cls, document: Document) -> VolumeClaim:
        """Read a PersistentVolumeClaim."""
        modes = value_at(document, "status", "accessModes") or value_at(
            document, "spec", "accessModes"
        )
        return VolumeClaim(
            meta=_meta(document),
            conditions=_conditions(document),
            document=document,
            phase=text_at(document, "status", "phase"),
            modes=tuple(map(str, modes)) if isinstance(modes, list) else (),
            storage_class=text_at(document, "spec", "storageClassName"),
        )


@dataclass(frozen=True, kw_only=True)
class StorageClass(Object):
    """A class of volumes."""

    binding_mode: str

    @classmethod
    def read(cls, document: Document) -> StorageClass:
        """Read a StorageClass."""
        return StorageClass(
            meta=_meta(document),
            conditions=(),
            document=document,
            binding_mode=text_at(document, "volumeBindingMode"),
        )


AnyObject_co = TypeVar("AnyObject_co", bound=Object, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[AnyObject_co]):
    """A kind of object, and the calls of the Kubernetes client for it."""

    name: str
    read: Callable[[Document], AnyObject_co]
    #: The class of the client and the word in its methods, such as `pod` in `list_namespaced_pod`.
    #: Empty for kinds that the client does not know: those are custom objects.
    client: str = ""
    noun: str = ""
    #: Group, version and name in paths of the API, for custom objects.
    group: str = ""
    version: str = ""
    plural: str = ""
    namespaced: bool = True


def _custom(name: str, api: str, plural: str, *, namespaced: bool = True) -> Kind[Object]:
    group, _, version = api.partition("/")
    return Kind(
        name=name,
        read=Object.read,
        group=group,
        version=version,
        plural=plural,
        namespaced=namespaced,
    )


POD = Kind(name="Pod", read=Pod.read, client="CoreV1Api", noun="pod")
NODE = Kind(name="Node", read=Node.read, client="CoreV1Api", noun="node", namespaced=False)
NAMESPACE = Kind(
    name="Namespace", read=Object.read, client="CoreV1Api", noun="namespace", namespaced=False
)
EVENT = Kind(name="Event", read=Event.read, client="CoreV1Api", noun="event")
SERVICE = Kind(name="Service", read=Object.read, client="CoreV1Api", noun="service")
SERVICE_ACCOUNT = Kind(
    name="ServiceAccount", read=Object.read, client="CoreV1Api", noun="service_account"
)
CONFIG_MAP = Kind(name="ConfigMap", read=Object.read, client="CoreV1Api", noun="config_map")
SECRET = Kind(name="Secret", read=Object.read, client="CoreV1Api", noun="secret")
VOLUME_CLAIM = Kind(
    name="PersistentVolumeClaim",
    read=VolumeClaim.read,
    client="CoreV1Api",
    noun="persistent_volume_claim",
)
STORAGE_CLASS = Kind(
    name="StorageClass",
    read=StorageClass.read,
    client="StorageV1Api",
    noun="storage_class",
    namespaced=False,
)
NETWORK_POLICY = Kind(
    name="NetworkPolicy", read=Object.read, client="NetworkingV1Api", noun="network_policy"
)
JOB = Kind(name="Job", read=Controller.read, client="BatchV1Api", noun="job")
JOBSET = Kind(
    name="JobSet",
    read=Controller.read,
    group="jobset.x-k8s.io",
    version="v1alpha2",
    plural="jobsets",
)
#: Kinds with several versions, the newest first.
LOCAL_QUEUES, WORKLOADS = (
    tuple(_custom(name, f"kueue.x-k8s.io/{v}", plural) for v in ("v1beta2", "v1beta1"))
    for name, plural in (("LocalQueue", "localqueues"), ("Workload", "workloads"))
)
CLAIM_TEMPLATES = tuple(
    _custom("ResourceClaimTemplate", f"resource.k8s.io/{version}", "resourceclaimtemplates")
    for version in ("v1", "v1beta2", "v1beta1")
)
COMPUTE_DOMAIN = _custom("ComputeDomain", "resource.nvidia.com/v1beta1", "computedomains")
NETWORK = _custom("Network", "networking.gke.io/v1", "networks", namespaced=False)
NETWORK_PARAMETERS = _custom(
    "GKENetworkParamSet", "networking.gke.io/v1", "gkenetworkparamsets", namespaced=False
)
