"""A site: one cluster, as the user's own file describes it. Every key may be left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from accept.core.shape import Bounds, Doc, Invalid, Pattern
from accept.spec.fields import Env, Plain, check_env, check_parameters
from accept.spec.machine import Network
from accept.spec.units import Seconds, parse_expectation

Absolute = Annotated[str, Pattern(r"/[^\0\n]*", "an absolute path")]
Label = Annotated[
    str, Pattern(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "a name of a-z, 0-9, '.' and '-'")
]


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """Hosts that are reached over ssh; anything not said here comes from your own ssh config."""

    hosts: Annotated[tuple[str, ...], Doc("Host names or patterns such as node[01-16].")] = ()
    user: Annotated[str | None, Doc("User on the hosts.")] = None
    port: Annotated[Annotated[int, Bounds(min=1, max=65535)] | None, Doc("Port of their sshd.")] = (
        None
    )
    jump_host: Annotated[str | None, Doc("Host to go through, as for `ssh -J`.")] = None


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """A Kubernetes cluster. The `extra` keys and those named as in a pod go into it as written."""

    namespace: Annotated[Label, Doc("Namespace of the run.")] = "default"
    queue: Annotated[str | None, Doc("Kueue LocalQueue; none: no queue.")] = None
    image: Annotated[str | None, Doc("Container image of the run.")] = None
    controller: Annotated[
        Literal["auto", "jobset", "job"],
        Doc("What runs the pods; auto: a JobSet where there are any."),
    ] = "auto"
    service_account: Annotated[str | None, Doc("Service account of the pods.")] = None
    image_pull_secrets: Annotated[tuple[str, ...], Doc("Secrets that pull the image.")] = ()
    include_nodes: Annotated[tuple[str, ...], Doc("Only these nodes, by name.")] = ()
    exclude_nodes: Annotated[tuple[str, ...], Doc("None of these nodes, by name.")] = ()
    node_selector: Annotated[dict[str, str], Doc("Node labels, on top of the machine's.")] = field(
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
    host_network: Annotated[
        bool | None, Doc("The node's own network; none: as the machine says.")
    ] = None
    extra_volumes: Annotated[tuple[Plain, ...], Doc("Further volumes.")] = ()
    extra_volume_mounts: Annotated[tuple[Plain, ...], Doc("Further mounts.")] = ()
    extra_env: Annotated[Env, Doc("Further environment of the pods.")] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Invalid for an environment that no shell accepts."""
        check_env(self.extra_env, ("extraEnv",))


@dataclass(frozen=True, kw_only=True)
class Results:
    """Where the evidence goes."""

    location: Annotated[
        Annotated[
            str,
            Pattern(
                r"(?:gs|s3|az|file)://[^\s]+|/[^\0\n]*", "gs://, s3://, az:// or an absolute path"
            ),
        ]
        | None,
        Doc("Bucket or folder; none: it stays on the first host until it is collected."),
    ] = None
    hold_seconds: Annotated[
        float,
        Bounds(min=0, max=86400),
        Doc("How long pods wait to be collected where there is no location."),
    ] = 600.0


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Where things are on the hosts; anything not said is looked for on PATH."""

    venv: Annotated[
        Absolute | None, Doc("Virtual environment with torch, mpi4py, or Open MPI.")
    ] = None
    python: Annotated[Absolute | None, Doc("The python3 to use.")] = None
    mpirun: Annotated[Absolute | None, Doc("The mpirun to use.")] = None
    nccl_tests: Annotated[Absolute | None, Doc("Folder of all_reduce_perf and its like.")] = None
    scratch: Annotated[
        Absolute, Doc("Folder on a local disk that the run's own folder is made in.")
    ] = "/tmp"


@dataclass(frozen=True, kw_only=True)
class SiteNccl:
    """NCCL settings of this cluster."""

    profile: Annotated[str, Doc("Which of the machine's profiles: `accept show machine`.")] = (
        "default"
    )
    env: Annotated[Env, Doc("Settings on top of the profile.")] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Invalid for an environment that no shell accepts."""
        check_env(self.env, ("env",))


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster."""

    name: Annotated[str, Doc("What reports call it.")] = ""
    backend: Annotated[
        Literal["local", "ssh", "slurm", "kubernetes"] | None,
        Doc("What obtains the hosts; none: taken from the other keys and the options."),
    ] = None
    ssh: Ssh = field(default_factory=Ssh)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    results: Results = field(default_factory=Results)
    tools: Tools = field(default_factory=Tools)
    interface: Annotated[
        str | None, Doc("Interface of start-up and control traffic; none: as the machine says.")
    ] = None
    gpus_per_node: Annotated[
        Annotated[int, Bounds(min=1, max=64)] | None, Doc("GPUs of each node to use; none: all.")
    ] = None
    require_all_nodes: Annotated[
        bool, Doc("Whether to stop where one host never answers; else the others go on.")
    ] = False
    start_timeout: Annotated[
        Seconds | None,
        Doc("Longest wait for hosts to answer; none: 60s where they should be up, else 5m."),
    ] = None
    deadline: Annotated[Seconds | None, Doc("Longest run; none: as the suite says.")] = None
    keep: Annotated[Seconds, Doc("How long the first host keeps evidence nobody collected.")] = (
        86400.0
    )
    expect: Annotated[
        tuple[str, ...], Doc("Thresholds of your own, such as all-reduce@8G>=380; they beat ours.")
    ] = ()
    parameters: Annotated[
        dict[str, dict[str, Any]], Doc("Parameters of checks on this cluster, by check.")
    ] = field(default_factory=dict)
    nccl: SiteNccl = field(default_factory=SiteNccl)

    def __post_init__(self) -> None:
        """Raise Invalid for parameters of no check and for expectations that are none."""
        check_parameters(self.parameters, ("parameters",))
        for index, text in enumerate(self.expect):
            try:
                parse_expectation(text, source="site")
            except Invalid as error:
                raise error.under("expect", index) from None
