"""The values of the chart, which `accept render` prints: a run as Helm takes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from accept.config.kubernetes import Kubernetes, MachineKubernetes, Results
from accept.core.serde import Bounds, Doc, Pattern


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the values were rendered from."""

    version: Annotated[str, Doc("Version of accept that rendered them.")] = ""
    run: Annotated[str, Doc("Hash of the run: says what is run.")] = ""
    machine: Annotated[str, Doc("Name of the machine.")] = ""


@dataclass(frozen=True, kw_only=True)
class SshValues:
    """The run's own sshd, through which its pods start ranks on each other."""

    existing_secret: Annotated[
        str, Doc("A Secret of type kubernetes.io/ssh-auth; empty: the chart makes a key.")
    ] = ""
    port: Annotated[int, Bounds(min=1, max=65535), Doc("Port of sshd in every pod.")] = 2222


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of the chart; all but `attempt` and `ssh` come from `accept render`."""

    accept: Origin = field(default_factory=Origin)
    nodes: Annotated[int, Bounds(min=0), Doc("Pods, one for each node.")] = 0
    gpus_per_node: Annotated[int | None, Doc("GPUs that are tested of each node.")] = None
    attempt: Annotated[
        str,
        Pattern(r"(?:[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?)?", "at most 40 of a-z, 0-9 and '-'"),
        Doc("Name of this launch; everything is called RELEASE-ATTEMPT. Empty: five at random."),
    ] = ""
    machine: MachineKubernetes = field(default_factory=MachineKubernetes)
    site: Kubernetes = field(default_factory=Kubernetes)
    results: Results = field(default_factory=Results)
    ssh: SshValues = field(default_factory=SshValues)
    deadline_seconds: Annotated[
        int, Bounds(min=0), Doc("Longest run once the hosts are found.")
    ] = 0
    start_seconds: Annotated[int, Bounds(min=0), Doc("Longest wait for hosts to answer.")] = 0
    debug_hold_seconds: Annotated[
        int, Bounds(min=0), Doc("How long pods stay after a failed run, to be looked at.")
    ] = 0
    plan: Annotated[str, Doc("The plan as JSON, for people: kubectl get configmap.")] = ""
    bundle: Annotated[str, Doc("What the pods run, plan included: a tar archive in base64.")] = ""
