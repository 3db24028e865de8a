"""What a machine says of a pod on it; what a site says of pods is in `accept.config.kubernetes`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from accept.config.fields import Env, Plain, Url, check_capabilities, check_containers
from accept.core.shape import Doc, Invalid, Pattern

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
