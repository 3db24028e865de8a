"""Define the content of a site file, in which the user describes a cluster; no key is required."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.collectors import SiteCollector, check_collectors
from accept.config.container import Container
from accept.config.expectations import Seconds, parse_expectation
from accept.config.fields import Env, Plain, check_env
from accept.config.kubernetes import Kubernetes, Results
from accept.config.slurm import Slurm
from accept.config.tool_file import ToolFile
from accept.config.tools import check_exists, check_name
from accept.core.limits import MOST_GPUS
from accept.core.serde import Bounds, Doc, Invalid, Pattern

BackendName = Literal["local", "ssh", "slurm", "kubernetes"]
Absolute = Annotated[str, Pattern(r"/[^\0\n]*", "an absolute path")]
#: A path without characters that are special in sshd_config or sed.
Simple = Annotated[
    str, Pattern(r"/[A-Za-z0-9._/+@-]*", "an absolute path of letters, digits and ._/+@-")
]


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """Hosts that are reached over ssh; all other settings come from your own ssh config."""

    hosts: Annotated[tuple[str, ...], Doc("Host names or patterns such as node[01-16].")] = ()
    user: Annotated[str | None, Doc("User on the hosts.")] = None
    port: Annotated[Annotated[int, Bounds(min=1, max=65535)] | None, Doc("Port of their sshd.")] = (
        None
    )
    jump_host: Annotated[str | None, Doc("Host to go through, as for `ssh -J`.")] = None


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Paths of tools on the hosts, searched for on PATH if unset; and programs as checks."""

    venv: Annotated[Absolute | None, Doc("Virtual environment with torch, mpi4py or Open MPI.")] = (
        None
    )
    python: Annotated[Absolute | None, Doc("The python3 to use.")] = None
    mpirun: Annotated[Absolute | None, Doc("The mpirun to use.")] = None
    nccl_tests: Annotated[
        Absolute | None, Doc("Folder of the nccl-tests programs, such as all_reduce_perf.")
    ] = None
    scratch: Annotated[
        Simple, Doc("Folder on a local disk; the folder of the run is created in it.")
    ] = "/tmp"
    checks: Annotated[
        tuple[ToolFile, ...],
        Doc("Programs that become checks, each with the keys of a tool file: docs/tools.md."),
    ] = ()

    def __post_init__(self) -> None:
        """Raise Invalid for a tool that has the name of another check."""
        for index, tool in enumerate(self.checks):
            try:
                check_name(tool.name, {other.name for other in self.checks[:index]})
            except Invalid as error:
                raise error.under("checks", index) from None


@dataclass(frozen=True, kw_only=True)
class SiteNccl:
    """NCCL settings of this cluster."""

    profile: Annotated[
        str, Doc("NCCL profile of the machine; `accept list profiles` lists them.")
    ] = "default"
    env: Annotated[
        Env, Doc("Environment variables that are added to the profile or replace its own.")
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Invalid for invalid environment variables."""
        check_env(self.env, ("env",))


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster."""

    name: Annotated[str, Doc("Name of the cluster in reports.")] = ""
    backend: Annotated[
        BackendName | None,
        Doc("How to reach the hosts; unset: chosen from the other keys and the options."),
    ] = None
    machine: Annotated[
        str | None, Doc("Machine of its nodes; --machine replaces it. Unset: detected.")
    ] = None
    ssh: Ssh = field(default_factory=Ssh)
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    container: Container = field(default_factory=Container)
    results: Results = field(default_factory=Results)
    tools: Tools = field(default_factory=Tools)
    interface: Annotated[
        str | None, Doc("Interface for start-up and control traffic; unset: the machine's.")
    ] = None
    gpus_per_node: Annotated[
        Annotated[int, Bounds(min=1, max=MOST_GPUS)] | None,
        Doc("Number of GPUs to use on each node; unset: all."),
    ] = None
    require_all_nodes: Annotated[
        bool,
        Doc("Whether to stop if a host does not answer; otherwise the run continues without it."),
    ] = False
    start_timeout: Annotated[
        Seconds | None,
        Doc(
            "Longest wait for hosts to answer; unset: 15m on Kubernetes or with a container image, "
            "24h with kubernetes.autoscaling, or flexStart without a queue, 2m on Slurm, else 60s."
        ),
    ] = None
    deadline: Annotated[Seconds | None, Doc("Longest run; unset: as in the suite.")] = None
    keep: Annotated[
        Seconds, Doc("How long the first host keeps evidence that nobody has collected.")
    ] = 86400.0
    expect: Annotated[
        tuple[str, ...],
        Doc("Your own thresholds, such as all-reduce@8G>=380; they replace the machine's."),
    ] = ()
    parameters: Annotated[
        dict[str, Plain], Doc("Parameters of checks on this cluster, by check.")
    ] = field(default_factory=dict)
    nccl: SiteNccl = field(default_factory=SiteNccl)
    collectors: Annotated[
        dict[str, SiteCollector],
        Doc("Commands whose output the run keeps from its suspects, by name."),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Invalid for parameters of an unknown check, expectations and collectors."""
        try:
            check_collectors(self.collectors)
        except Invalid as error:
            raise error.under("collectors") from None
        own = [tool.check() for tool in self.tools.checks]
        for check in self.parameters:
            check_exists(check, ("parameters", check), own)
        for index, text in enumerate(self.expect):
            try:
                parse_expectation(text, source="site", own=own)
            except Invalid as error:
                raise error.under("expect", index) from None
