"""A site: one cluster, as the user's own file describes it. Every key may be left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from accept.config.expectations import Seconds, parse_expectation
from accept.config.fields import MOST_GPUS, Env, check_env, check_parameters
from accept.config.kubernetes import Kubernetes, Results
from accept.core.serde import Bounds, Doc, Invalid, Pattern

Absolute = Annotated[str, Pattern(r"/[^\0\n]*", "an absolute path")]
#: sshd and sed read it, too, and neither takes everything.
Simple = Annotated[
    str, Pattern(r"/[A-Za-z0-9._/+@-]*", "an absolute path of letters, digits and ._/+@-")
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
class Tools:
    """Where things are on the hosts; anything not said is looked for on PATH."""

    venv: Annotated[
        Absolute | None, Doc("Virtual environment with torch, mpi4py, or Open MPI.")
    ] = None
    python: Annotated[Absolute | None, Doc("The python3 to use.")] = None
    mpirun: Annotated[Absolute | None, Doc("The mpirun to use.")] = None
    nccl_tests: Annotated[Absolute | None, Doc("Folder of all_reduce_perf and its like.")] = None
    scratch: Annotated[
        Simple, Doc("Folder on a local disk that the run's own folder is made in.")
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
        Literal["local", "ssh", "kubernetes"] | None,
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
        Annotated[int, Bounds(min=1, max=MOST_GPUS)] | None,
        Doc("GPUs of each node to use; none: all."),
    ] = None
    require_all_nodes: Annotated[
        bool, Doc("Whether to stop where one host never answers; else the others go on.")
    ] = False
    start_timeout: Annotated[
        Seconds | None,
        Doc("Longest wait for hosts; none: 60s where they should be up, Kubernetes 15m, else 5m."),
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
