"""Define what site and machine files say about pods: image, placement, resources, results."""

from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

from accept.config.fields import (
    Env,
    Plain,
    Url,
    check_capabilities,
    check_containers,
    check_env,
    check_mount,
    check_tolerations,
)
from accept.core.error_codes import Code
from accept.core.facts import POSITION
from accept.core.limits import MOST_GPUS
from accept.core.serde import Bounds, Doc, Invalid, Keys, Pattern

#: A Kubernetes object name: DNS-1123.
NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
ObjectName = Annotated[str, Pattern(NAME, "a name of a-z, 0-9, '.' and '-'")]
#: Labels: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
_LABEL_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"(?:[a-z0-9][a-z0-9.-]{{0,252}}/)?{_LABEL_NAME}"
_LABEL_FORM = "the key of a label, such as cloud.google.com/gce-topology-block"
LabelKey = Annotated[str, Pattern(_LABEL_KEY, _LABEL_FORM)]
_LabelValue = Annotated[
    str, Pattern(rf"(?:{_LABEL_NAME})?", "a label's value: at most 63 of A-Z, a-z, 0-9, '.-_'")
]
Labels = Annotated[dict[str, _LabelValue], Keys(_LABEL_KEY, _LABEL_FORM)]
#: The name of an image, perhaps with its registry, a tag, a digest:
#: https://github.com/distribution/reference/blob/v0.6.0/reference.go
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
Image = Annotated[
    str,
    Pattern(
        r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/)?"
        rf"{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
        "an image such as registry/name:tag, in lowercase up to the tag",
    ),
]


def longest_name(nodes: int) -> int:
    """Return how many characters the name of a run may have.

    The webhook of JobSet limits the name of a pod, NAME-w-0-INDEX-abcde, to 63 characters. A plain
    Job allows ten more, which are not used, so that a name fits both.
    """
    return 63 - len(f"-w-0-{max(1, nodes) - 1}-abcde")


#: Name of something inside a pod.
Short = Annotated[str, Pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name of a-z, 0-9 and '-'")]
CodeSource = Literal["auto", "chart", "image"]
Quantity = Annotated[
    str, Pattern(r"|[1-9][0-9]*(?:[kMGTP]i?)?", "a quantity of memory such as 250Gi")
]


@dataclass(frozen=True, kw_only=True)
class Network:
    """One interface of a pod and the network of the cluster that it connects to."""

    interface: Annotated[str, Doc("Name of the interface in the pod, such as eth2.")]
    network: Annotated[ObjectName, Doc("Name of the Network object; it differs between clusters.")]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Devices that a pod requests by dynamic resource allocation (DRA)."""

    name: Annotated[Short, Doc("Name of the claim in the pod.")]
    template: Annotated[
        str | None,
        Doc("An existing ResourceClaimTemplate; unset: one is created from `devices`."),
    ] = None
    devices: Annotated[
        Plain, Doc("`spec.devices` of the created template, in the form of resource.k8s.io/v1.")
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Invalid if both or neither are given."""
        if (self.template is None) == (not self.devices):
            raise Invalid(
                (),
                "a claim needs either `template` or `devices`",
                "name an existing ResourceClaimTemplate, or describe the devices",
                code=Code.KUBE_CLAIM,
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the device classes in `devices`."""
        requests = self.devices.get("requests")
        listed = requests if isinstance(requests, list) else []
        exact = [r.get("exactly") for r in listed if isinstance(r, dict)]
        names = [one.get("deviceClassName") for one in exact if isinstance(one, dict)]
        return tuple(str(name) for name in names if name)


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings of pods: a machine's, or those of a run, with the site's. Pod fields are copied."""

    node_selector: Annotated[Labels, Doc("Required node labels.")] = field(default_factory=dict)
    tolerations: Annotated[tuple[Plain, ...], Doc("Taints to tolerate.")] = ()
    labels: Annotated[Labels, Doc("Labels of the pod.")] = field(default_factory=dict)
    annotations: Annotated[dict[str, str], Doc("Annotations of the pod.")] = field(
        default_factory=dict
    )
    networks: Annotated[
        tuple[Network, ...], Doc("Interfaces, written as the networking.gke.io annotations.")
    ] = ()
    host_network: Annotated[bool, Doc("Whether the pod uses the node's own network.")] = False
    resources: Annotated[Plain, Doc("Resources of the main container.")] = field(
        default_factory=dict
    )
    reserve: Annotated[
        Plain,
        Doc("Requests of CPU and memory; left out with a queue, whose quota may not cover them."),
    ] = field(default_factory=dict)
    resource_claims: Annotated[
        tuple[Claim, ...], Doc("Devices by dynamic resource allocation, such as RDMA NICs.")
    ] = ()
    compute_domain: Annotated[
        bool, Doc("Whether nodes share NVLink through a ComputeDomain of NVIDIA's DRA driver.")
    ] = False
    shared_memory: Annotated[
        Quantity, Doc("Size limit of /dev/shm; empty: half of the node's memory.")
    ] = ""
    security_context: Annotated[Plain, Doc("Security context of the main container.")] = field(
        default_factory=dict
    )
    env: Annotated[Env, Doc("Environment of the main container.")] = field(default_factory=dict)
    volumes: Annotated[tuple[Plain, ...], Doc("Volumes of the pod.")] = ()
    volume_mounts: Annotated[tuple[Plain, ...], Doc("Mounts of the main container.")] = ()
    init_containers: Annotated[
        tuple[Plain, ...], Doc("Init containers: they end before the others start.")
    ] = ()
    sidecars: Annotated[
        tuple[Plain, ...],
        Doc("Containers that run beside the main container, as native sidecars."),
    ] = ()
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for tolerations and containers that are not valid."""
        check_tolerations(self.tolerations)
        check_capabilities(self.security_context, ("securityContext",))
        check_containers(self.init_containers, "initContainers")
        check_containers(self.sidecars, "sidecars")


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The plugin of NCCL that a DaemonSet puts on the nodes, and other ways to get it."""

    daemon_sets: Annotated[
        tuple[str, ...],
        Doc("Names of the DaemonSets that prepare the nodes; the first one fills `volumes`."),
    ] = ()
    daemons: Annotated[
        dict[str, str],
        Doc("Versions of the plugin, each with that of the sidecar that its maker pairs with it."),
    ] = field(default_factory=dict)
    volumes: Annotated[
        tuple[Plain, ...], Doc("Volumes with folders of the node, which only the plugin needs.")
    ] = ()
    volume_mounts: Annotated[
        tuple[Plain, ...], Doc("Mounts of these volumes in the main container.")
    ] = ()
    installer: Annotated[
        Plain,
        Doc(
            "Init container that installs the plugin for one pod. The volumes that it mounts are "
            "then empty folders, and the others are left out."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MachinePods(PodSettings):
    """Settings of a machine's pods, with those that depend on the cluster."""

    plugin: Annotated[Plugin, Doc("The plugin of NCCL, unless the image contains it.")] = field(
        default_factory=Plugin
    )
    nic_claims: Annotated[
        tuple[Claim, ...],
        Doc(
            "Claims that `accept init` writes for clusters which provide NICs by DRA, not by "
            "`networks`."
        ),
    ] = ()


#: Mount path of the results volume in every pod.
RESULTS = "/accept/results"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Placement of the pods by Kueue, or by affinity. The values are names of node labels."""

    required: Annotated[
        LabelKey | None, Doc("All pods must be on nodes with the same value of this label.")
    ] = None
    preferred: Annotated[
        LabelKey | None, Doc("Like `required`, but other nodes are used if that is not possible.")
    ] = None
    slice: Annotated[
        LabelKey | None,
        Doc("Each group of `sliceSize` pods must be on nodes with the same value of this label."),
    ] = None
    slice_size: Annotated[
        Annotated[int, Bounds(min=1)] | None, Doc("Number of pods in a slice.")
    ] = None

    def __post_init__(self) -> None:
        """Raise Invalid for keys that contradict each other."""
        if self.required is not None and self.preferred is not None:
            raise Invalid(
                (),
                "a topology is either required or preferred",
                "leave one of them out",
                code=Code.KUBE_TOPOLOGY,
            )
        if (self.slice is None) != (self.slice_size is None):
            raise Invalid(
                (),
                "slice and sliceSize need each other",
                "give both, or neither",
                code=Code.KUBE_TOPOLOGY,
            )


@dataclass(frozen=True, kw_only=True)
class CoordinatorPod:
    """The coordinator's own pod, which runs on a node without GPUs (`coordinator: separate`)."""

    node_selector: Annotated[Labels, Doc("Required node labels.")] = field(default_factory=dict)
    tolerations: Annotated[tuple[Plain, ...], Doc("Taints to tolerate.")] = ()
    resources: Annotated[
        Plain, Doc("Resources of its main container; unset: a request of 1 CPU and 2 GiB.")
    ] = field(default_factory=dict)
    volumes: Annotated[
        tuple[Plain, ...], Doc("Volumes; those of the other pods are not mounted.")
    ] = ()
    volume_mounts: Annotated[tuple[Plain, ...], Doc("Mounts of its main container.")] = ()

    def __post_init__(self) -> None:
        """Raise Invalid for a toleration that is not valid."""
        check_tolerations(self.tolerations)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Settings of a cluster that a machine file does not have."""

    namespace: Annotated[
        ObjectName | None,
        Doc(
            "Namespace of the run; unset: that of the context. "
            "`render | helm install` uses helm's namespace instead."
        ),
    ] = None
    queue: Annotated[ObjectName | None, Doc("Kueue LocalQueue; unset: no queue.")] = None
    suspend: Annotated[
        bool | None,
        Doc("Whether the run is created suspended; unset: only if a queue is set."),
    ] = None
    workload_priority_class: Annotated[
        ObjectName | None, Doc("Kueue WorkloadPriorityClass: the priority in the queue.")
    ] = None
    topology: Annotated[
        Topology | None,
        Doc("Placement of the pods: by Kueue, or without a queue by a rule of affinity."),
    ] = None
    position_labels: Annotated[
        tuple[LabelKey, ...],
        Doc(
            "Node labels that show where a node is in the network, from the largest part to the "
            "node. `accept run` reads them."
        ),
    ] = (
        "cloud.google.com/gce-topology-block",
        "cloud.google.com/gce-topology-subblock",
        "cloud.google.com/gce-topology-host",
    )
    positions: Annotated[
        dict[str, Annotated[str, Pattern(POSITION.pattern, "a position such as block/rack/host")]],
        Doc("Positions of nodes in the network by name, instead of `positionLabels`."),
    ] = field(default_factory=dict)
    read_nodes: Annotated[
        bool,
        Doc(
            "Whether the pods get an identity that may list nodes, so that index 0 reads "
            "`positionLabels` itself. It needs a ClusterRole. `accept run` needs none of this."
        ),
    ] = False
    flex_start: Annotated[
        bool, Doc("Whether to use flex-start nodes of GKE, which exist only for the run.")
    ] = False
    autoscaling: Annotated[
        bool, Doc("Whether an autoscaler of the cluster creates nodes for pending pods.")
    ] = False
    image: Annotated[Image | None, Doc("Container image of the run.")] = None
    code: Annotated[
        CodeSource,
        Doc(
            "Source of the code for the nodes: ConfigMaps of the chart, or the image, which must "
            "contain the same version in /usr/local/share/accept/code. auto: the image if its tag "
            "ends in `code-` and the first 12 digits of `accept.code`, else the chart; `accept "
            "render` writes which of the two it is."
        ),
    ] = "auto"
    image_pull_policy: Annotated[
        Literal["IfNotPresent", "Always", "Never"], Doc("When nodes pull the image.")
    ] = "IfNotPresent"
    image_pull_secrets: Annotated[
        tuple[ObjectName, ...], Doc("Secrets for pulling the image.")
    ] = ()
    controller: Annotated[
        Literal["auto", "jobset", "job"],
        Doc("Kind of the object that runs the pods; auto: a JobSet if the cluster supports it."),
    ] = "auto"
    coordinator: Annotated[
        Literal["first", "separate"],
        Doc(
            "Place of the coordinator: the first of the tested nodes, or a small pod of its own on "
            "a node without GPUs, which needs a JobSet."
        ),
    ] = "first"
    coordinator_pod: Annotated[
        CoordinatorPod, Doc("Settings of that pod, for `coordinator: separate`.")
    ] = field(default_factory=CoordinatorPod)
    service_account: Annotated[ObjectName | None, Doc("Service account of the pods.")] = None
    priority_class_name: Annotated[ObjectName | None, Doc("PriorityClass of the pods.")] = None
    runtime_class_name: Annotated[ObjectName | None, Doc("RuntimeClass of the pods.")] = None
    include_nodes: Annotated[tuple[str, ...], Doc("Names of the only nodes to use.")] = ()
    exclude_nodes: Annotated[tuple[str, ...], Doc("Names of nodes not to use.")] = ()
    affinity: Annotated[Plain, Doc("Affinity of the pods; node lists are added to it.")] = field(
        default_factory=dict
    )
    pod_security_context: Annotated[Plain, Doc("Security context of the pods.")] = field(
        default_factory=dict
    )
    extra_env_from: Annotated[
        tuple[Plain, ...],
        Doc("Secrets or ConfigMaps with additional environment variables, as `envFrom`."),
    ] = ()
    network_policy: Annotated[
        bool, Doc("Whether a NetworkPolicy keeps other pods away from the run's.")
    ] = True
    ttl_seconds: Annotated[
        Annotated[int, Bounds(min=0)] | None,
        Doc("Seconds until the ended run and its logs are removed; unset: never."),
    ] = None

    @property
    def waits_for_capacity(self) -> bool:
        """Return True if nodes for the pods may not exist yet. The chart decides the same.

        With a queue, flex-start nodes exist when the pods do: Kueue requests them before.
        """
        return self.autoscaling or (self.flex_start and not self.queue)

    def __post_init__(self) -> None:
        """Raise Invalid for keys without effect."""
        slices = self.topology is not None and self.topology.slice is not None
        for key, given in (
            (("workloadPriorityClass",), self.workload_priority_class is not None),
            (("topology", "slice"), slices),
        ):
            if given and self.queue is None:
                raise Invalid(
                    key,
                    "has no effect without a queue",
                    "name a LocalQueue: queue",
                    code=Code.KUBE_QUEUE_UNSET,
                )
        if self.coordinator == "separate" and self.controller == "job":
            raise Invalid(
                ("coordinator",),
                "a plain Job has one kind of pods, so none of them can be the coordinator's own",
                "leave out `controller: job`, or use `coordinator: first`",
                code=Code.KUBE_COORDINATOR,
            )
        if self.coordinator == "first" and self.coordinator_pod != CoordinatorPod():
            raise Invalid(
                ("coordinatorPod",),
                "has no effect, because the coordinator has no pod of its own",
                "add `coordinator: separate`",
                code=Code.KUBE_COORDINATOR,
            )
        for node in self.include_nodes:
            if node in self.exclude_nodes:
                raise Invalid(
                    ("excludeNodes",),
                    f"{node} is also in includeNodes",
                    "remove it from one of them",
                    code=Code.NODES_EXCLUDED,
                )


@dataclass(frozen=True, kw_only=True)
class Kubernetes(ClusterSettings):
    """A Kubernetes cluster. `extra…` keys and keys of pod fields are copied into the pod."""

    spot: Annotated[bool, Doc("Whether to tolerate the taints of spot nodes.")] = False
    node_selector: Annotated[Labels, Doc("Required node labels, added to the machine's.")] = field(
        default_factory=dict
    )
    tolerations: Annotated[
        tuple[Plain, ...], Doc("Taints to tolerate, added to the machine's.")
    ] = ()
    labels: Annotated[Labels, Doc("Labels of the pods.")] = field(default_factory=dict)
    annotations: Annotated[dict[str, str], Doc("Annotations of the pods.")] = field(
        default_factory=dict
    )
    networks: Annotated[
        tuple[Network, ...] | None,
        Doc(
            "Interfaces and networks; unset: the machine's, or none if `resourceClaims` are given."
        ),
    ] = None
    resource_claims: Annotated[
        tuple[Claim, ...] | None,
        Doc(
            "Devices by dynamic resource allocation, instead of the machine's claims and networks; "
            "unset: the machine's, or no claims if `networks` are given, because they replace such "
            "NICs."
        ),
    ] = None
    plugin: Annotated[
        Literal["daemonset", "init", "image"],
        Doc(
            "Source of NCCL's plugin, for machines that support it: folders of the node, filled by "
            "a DaemonSet; an init container of each pod; or the image."
        ),
    ] = "daemonset"
    host_network: Annotated[
        bool | None, Doc("Whether the pod uses the node's own network; unset: as in the machine.")
    ] = None
    gpus_per_pod: Annotated[
        Annotated[int, Bounds(min=1, max=MOST_GPUS)] | None,
        Doc("GPUs that a pod requests and uses; unset: all GPUs of the node."),
    ] = None
    resources: Annotated[
        Plain, Doc("Resources of the main container, merged into the machine's.")
    ] = field(default_factory=dict)
    shared_memory: Annotated[
        Quantity | None, Doc("Size limit of /dev/shm; unset: as in the machine.")
    ] = None
    security_context: Annotated[
        Plain, Doc("Security context of the main container, merged into the machine's.")
    ] = field(default_factory=dict)
    extra_volumes: Annotated[tuple[Plain, ...], Doc("Additional volumes.")] = ()
    extra_volume_mounts: Annotated[tuple[Plain, ...], Doc("Additional mounts.")] = ()
    extra_env: Annotated[Env, Doc("Additional environment variables of the pods.")] = field(
        default_factory=dict
    )
    extra_init_containers: Annotated[tuple[Plain, ...], Doc("Additional init containers.")] = ()
    extra_sidecars: Annotated[
        tuple[Plain, ...],
        Doc(
            "Additional native sidecars. An entry with the name of a machine's sidecar is merged "
            "into that one."
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Raise Invalid for invalid names and for keys without effect."""
        super().__post_init__()
        check_tolerations(self.tolerations)
        check_env(self.extra_env, ("extraEnv",))
        check_capabilities(self.security_context, ("securityContext",))
        check_containers(self.extra_init_containers, "extraInitContainers")
        check_containers(self.extra_sidecars, "extraSidecars")
        for index, volume in enumerate(self.extra_volumes):
            source = volume.get("hostPath")
            if isinstance(source, dict):
                path = ("extraVolumes", index, "hostPath", "path")
                check_mount(str(source.get("path", "")), path)


#: A character of a URL, and a bucket, before which a secret has an error of its own.
#: https://cloud.google.com/storage/docs/buckets#naming
_OF_URL = r"""[^\s\x00-\x1f\x7f"'`$\\|;&<>(){}*!#]"""
_BUCKET = rf"(?:gs|s3|az)://(?:{_OF_URL}*@)?[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"


@dataclass(frozen=True, kw_only=True)
class Results:
    """The place for the evidence."""

    location: Annotated[
        Annotated[
            str,
            Pattern(
                rf"(?:{_BUCKET}|file:/)(?:/{_OF_URL}*)?|/[^\x00-\x1f\x7f]*",
                "gs://, s3:// or az:// with a bucket and without characters of the shell, or an "
                "absolute path",
            ),
        ]
        | None,
        Doc("Bucket or folder; unset: evidence stays on the first host until it is collected."),
    ] = None
    volume: Annotated[
        Plain,
        Doc(
            "Kubernetes: a volume for the evidence, such as a PVC or a CSI mount, without `name`. "
            f"It is mounted at {RESULTS}, which is also the default location."
        ),
    ] = field(default_factory=dict)
    hold_seconds: Annotated[
        float,
        Bounds(min=0, max=86400),
        Doc(
            "Kubernetes: how long the pod of index 0 keeps its evidence for `accept collect`. It "
            "waits if it could not send the evidence, or only to a folder with more records than "
            "its log holds."
        ),
    ] = 600.0

    @property
    def folder(self) -> str:
        """Return the location if it is a folder, as a path; empty if it is not."""
        path = (self.location or "").removeprefix("file://")
        return path if path.startswith("/") else ""

    def __post_init__(self) -> None:
        """Raise Invalid if the location is outside the volume, or contains a secret."""
        url = urlsplit("" if self.folder else self.location or "")
        if url.query or "@" in url.netloc:
            raise Invalid(
                ("location",),
                "a location with a user, a password or a query may contain a secret",
                "name only bucket and path, and give pods and workstation an identity",
                code=Code.SETTING_SECRET,
            )
        inside = self.location is None or f"{self.location}/".startswith(f"{RESULTS}/")
        if self.volume and not inside:
            raise Invalid(
                ("location",),
                "it is outside the volume, which would stay empty",
                f"leave it out, or name a folder below {RESULTS}",
                code=Code.KUBE_RESULTS_OUTSIDE,
            )
