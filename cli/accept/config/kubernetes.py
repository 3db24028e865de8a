"""Define what site and machine files say about pods: image, placement, resources, results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.fields import (
    MOST_GPUS,
    Env,
    Plain,
    Url,
    check_capabilities,
    check_containers,
    check_env,
)
from accept.core.serde import Bounds, Doc, Invalid, Pattern

#: A name of Kubernetes: DNS-1123.
NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
Label = Annotated[str, Pattern(NAME, "a name of a-z, 0-9, '.' and '-'")]
#: What a helm release of ours, and so the run's objects, may be called: a Service's name, DNS-1035.
RELEASE_NAME = r"[a-z]([a-z0-9-]*[a-z0-9])?"
#: A name of something inside a pod.
Short = Annotated[str, Pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name of a-z, 0-9 and '-'")]
Quantity = Annotated[
    str, Pattern(r"|[1-9][0-9]*(?:[kMGTP]i?)?", "a quantity of memory such as 250Gi")
]


@dataclass(frozen=True, kw_only=True)
class Network:
    """One interface of a pod and the cluster's network behind it."""

    interface: Annotated[str, Doc("Name of the interface in the pod, such as eth2.")]
    network: Annotated[str, Doc("Name of the Network object; it differs between clusters.")]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Devices that a pod asks for by dynamic resource allocation (DRA)."""

    name: Annotated[Short, Doc("What the pod calls it.")]
    template: Annotated[
        str | None, Doc("A ResourceClaimTemplate that the cluster has; none: one is made.")
    ] = None
    devices: Annotated[
        Plain, Doc("`spec.devices` of the template that is made, as resource.k8s.io/v1 has it.")
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Invalid where both or neither are given."""
        if (self.template is None) == (not self.devices):
            raise Invalid((), "either `template` or `devices` says what is asked for")


@dataclass(frozen=True, kw_only=True)
class MachineKubernetes:
    """What a pod on this machine needs; what is named as in a pod goes into it as it is written."""

    node_selector: Annotated[dict[str, str], Doc("Node labels to ask for.")] = field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[Plain, ...], Doc("Taints to tolerate.")] = ()
    labels: Annotated[dict[str, str], Doc("Labels of the pod.")] = field(default_factory=dict)
    annotations: Annotated[dict[str, str], Doc("Annotations of the pod.")] = field(
        default_factory=dict
    )
    networks: Annotated[
        tuple[Network, ...], Doc("Interfaces; they become the networking.gke.io annotations.")
    ] = ()
    host_network: Annotated[bool, Doc("Whether the pod uses the node's own network.")] = False
    resources: Annotated[Plain, Doc("Resources of the main container.")] = field(
        default_factory=dict
    )
    resource_claims: Annotated[
        tuple[Claim, ...], Doc("Devices by dynamic resource allocation, such as RDMA NICs.")
    ] = ()
    compute_domain: Annotated[
        bool, Doc("Whether the nodes share NVLink, by a ComputeDomain of NVIDIA's DRA driver.")
    ] = False
    shared_memory: Annotated[
        Quantity, Doc("Most of /dev/shm; empty: half of the node's memory.")
    ] = ""
    security_context: Annotated[Plain, Doc("Security context of the main container.")] = field(
        default_factory=dict
    )
    env: Annotated[Env, Doc("Environment of the main container.")] = field(default_factory=dict)
    volumes: Annotated[tuple[Plain, ...], Doc("Volumes of the pod.")] = ()
    volume_mounts: Annotated[tuple[Plain, ...], Doc("Mounts of the main container.")] = ()
    init_containers: Annotated[
        tuple[Plain, ...], Doc("Containers that end before the others start.")
    ] = ()
    sidecars: Annotated[
        tuple[Plain, ...], Doc("Containers that run beside it, as native side cars.")
    ] = ()
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for a capability that no container runtime knows."""
        check_capabilities(self.security_context, ("securityContext",))
        check_containers(self.init_containers, "initContainers")
        check_containers(self.sidecars, "sidecars")


#: Where a results volume is mounted in every pod.
RESULTS = "/accept/results"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where Kueue may place the pods of a queue: names of node labels, coarse to fine."""

    required: Annotated[str | None, Doc("All pods within one value of this label, or none.")] = None
    preferred: Annotated[str | None, Doc("The same where it can be had.")] = None
    slice: Annotated[str | None, Doc("Each `sliceSize` pods within one value of this label.")] = (
        None
    )
    slice_size: Annotated[Annotated[int, Bounds(min=1)] | None, Doc("Pods of a slice.")] = None

    def __post_init__(self) -> None:
        """Raise Invalid for keys that contradict each other."""
        if self.required is not None and self.preferred is not None:
            raise Invalid((), "a topology is either required or preferred")
        if (self.slice is None) != (self.slice_size is None):
            raise Invalid((), "slice and sliceSize go together")


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """A Kubernetes cluster. The `extra` keys and those named as in a pod go into it as written."""

    namespace: Annotated[
        Label | None,
        Doc("Namespace of the run; none: the context's. With `render | helm install`: helm's."),
    ] = None
    queue: Annotated[str | None, Doc("Kueue LocalQueue; none: no queue.")] = None
    suspend: Annotated[
        bool | None, Doc("Whether the run waits to be released; none: where there is a queue.")
    ] = None
    workload_priority_class: Annotated[
        str | None, Doc("Kueue WorkloadPriorityClass: the place in the queue.")
    ] = None
    topology: Annotated[Topology | None, Doc("Where Kueue places the pods.")] = None
    flex_start: Annotated[
        bool, Doc("Nodes of GKE's flex-start, which are there for as long as the run may last.")
    ] = False
    autoscaling: Annotated[
        bool, Doc("Whether nodes are made when pods ask for them, by an autoscaler of the cluster.")
    ] = False
    spot: Annotated[bool, Doc("Whether to tolerate the taints of spot nodes.")] = False
    image: Annotated[str | None, Doc("Container image of the run.")] = None
    image_pull_policy: Annotated[
        Literal["IfNotPresent", "Always", "Never"], Doc("When nodes pull the image.")
    ] = "IfNotPresent"
    image_pull_secrets: Annotated[tuple[str, ...], Doc("Secrets that pull the image.")] = ()
    controller: Annotated[
        Literal["auto", "jobset", "job"],
        Doc("What runs the pods; auto: a JobSet where there are any."),
    ] = "auto"
    service_account: Annotated[str | None, Doc("Service account of the pods.")] = None
    priority_class_name: Annotated[str | None, Doc("PriorityClass of the pods.")] = None
    runtime_class_name: Annotated[str | None, Doc("RuntimeClass of the pods.")] = None
    include_nodes: Annotated[tuple[str, ...], Doc("Only these nodes, by name.")] = ()
    exclude_nodes: Annotated[tuple[str, ...], Doc("None of these nodes, by name.")] = ()
    node_selector: Annotated[dict[str, str], Doc("Node labels, on top of the machine's.")] = field(
        default_factory=dict
    )
    affinity: Annotated[Plain, Doc("Affinity of the pods; node lists are added to it.")] = field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[Plain, ...], Doc("Taints to tolerate, on top.")] = ()
    labels: Annotated[dict[str, str], Doc("Labels of the pods.")] = field(default_factory=dict)
    annotations: Annotated[dict[str, str], Doc("Annotations of the pods.")] = field(
        default_factory=dict
    )
    networks: Annotated[
        tuple[Network, ...] | None, Doc("Interfaces and networks, in place of the machine's.")
    ] = None
    resource_claims: Annotated[
        tuple[Claim, ...] | None,
        Doc(
            "Devices by dynamic resource allocation, in place of the machine's; none: those, but "
            "not where `networks` are given, as NICs come by one of the two."
        ),
    ] = None
    host_network: Annotated[
        bool | None, Doc("The node's own network; none: as the machine says.")
    ] = None
    gpus_per_pod: Annotated[
        Annotated[int, Bounds(min=1, max=MOST_GPUS)] | None,
        Doc("GPUs that a pod asks for and uses; none: all of a node's."),
    ] = None
    resources: Annotated[
        Plain, Doc("Resources of the main container, on top of the machine's.")
    ] = field(default_factory=dict)
    shared_memory: Annotated[
        Quantity | None, Doc("Most of /dev/shm; none: as the machine says.")
    ] = None
    security_context: Annotated[
        Plain, Doc("Security context of the main container, on top of the machine's.")
    ] = field(default_factory=dict)
    pod_security_context: Annotated[Plain, Doc("Security context of the pods.")] = field(
        default_factory=dict
    )
    extra_volumes: Annotated[tuple[Plain, ...], Doc("Further volumes.")] = ()
    extra_volume_mounts: Annotated[tuple[Plain, ...], Doc("Further mounts.")] = ()
    extra_env: Annotated[Env, Doc("Further environment of the pods.")] = field(default_factory=dict)
    extra_env_from: Annotated[
        tuple[Plain, ...], Doc("Secrets or ConfigMaps whose entries are environment too.")
    ] = ()
    extra_init_containers: Annotated[
        tuple[Plain, ...], Doc("Further containers that end before the others start.")
    ] = ()
    extra_sidecars: Annotated[
        tuple[Plain, ...],
        Doc(
            "Further containers that run beside it, as native side cars; of the name of one of the "
            "machine's: what is different of that."
        ),
    ] = ()
    network_policy: Annotated[
        bool, Doc("Whether a NetworkPolicy keeps other pods away from the run's.")
    ] = True
    ttl_seconds: Annotated[
        Annotated[int, Bounds(min=0)] | None,
        Doc("When the ended run is removed, logs and all; none: never."),
    ] = None

    def __post_init__(self) -> None:
        """Raise Invalid for names that no shell or runtime knows, and for keys without effect."""
        check_env(self.extra_env, ("extraEnv",))
        check_capabilities(self.security_context, ("securityContext",))
        check_containers(self.extra_init_containers, "extraInitContainers")
        check_containers(self.extra_sidecars, "extraSidecars")
        for name in ("workload_priority_class", "topology"):
            if getattr(self, name) is not None and self.queue is None:
                key = "topology" if name == "topology" else "workloadPriorityClass"
                raise Invalid((key,), "only a queue heeds it", "name the LocalQueue: queue")
        for node in self.include_nodes:
            if node in self.exclude_nodes:
                raise Invalid(("excludeNodes",), f"{node} is in includeNodes too")


@dataclass(frozen=True, kw_only=True)
class Results:
    """Where the evidence goes."""

    location: Annotated[
        Annotated[
            str,
            Pattern(
                r"(?:gs|s3|az|file)://[^\s]+|/[^\x00-\x1f\x7f]*",
                "gs://, s3://, az:// or an absolute path",
            ),
        ]
        | None,
        Doc("Bucket or folder; none: it stays on the first host until it is collected."),
    ] = None
    volume: Annotated[
        Plain,
        Doc(
            "Kubernetes: a volume to write to, without its name (a PVC, a CSI mount); "
            f"mounted at {RESULTS}, and the location where none is named."
        ),
    ] = field(default_factory=dict)
    hold_seconds: Annotated[
        float,
        Bounds(min=0, max=86400),
        Doc(
            "How long index 0 waits to be collected where nothing could be sent, or only to a "
            "folder and the records are more than its log holds."
        ),
    ] = 600.0

    def __post_init__(self) -> None:
        """Raise Invalid where evidence would go past the volume."""
        inside = self.location is None or f"{self.location}/".startswith(f"{RESULTS}/")
        if self.volume and not inside:
            raise Invalid(
                ("location",),
                "the volume would stay empty",
                f"leave it out, or name a folder below {RESULTS}",
            )
