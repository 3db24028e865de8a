"""A machine: a kind of node, as `values/machines/NAME.yaml` holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.core.model import PlannedMachine, Reference
from accept.core.shape import Bounds, Doc, Invalid
from accept.spec.fields import Env, Name, Plain, Url, check_env, check_parameters
from accept.spec.figure import Figure
from accept.spec.pod import MachineKubernetes


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs of one node."""

    count: Annotated[
        Annotated[int, Bounds(min=0, max=64)] | Literal["detect"],
        Doc('GPUs a node must have; 0: none; "detect": as many as it shows, at least one.'),
    ]
    device: Annotated[str | None, Doc("What nvidia-smi calls each of them; none: any will do.")] = (
        None
    )
    memory_gb: Annotated[
        Annotated[int, Bounds(min=1)] | None, Doc("Memory of each, in 10^9 bytes, for people.")
    ] = None
    source: Url | None = None


@dataclass(frozen=True, kw_only=True)
class Nics:
    """The network cards of one node that carry data between GPUs."""

    count: Annotated[int, Bounds(min=1, max=64), Doc("How many there are in a node.")]
    gbps: Annotated[float, Bounds(min=0.1), Doc("Line rate of each, in 10^9 bits a second.")]
    source: Url


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A set of NCCL settings, applied after the plugin's own script."""

    env: Annotated[Env, Doc("Environment variables of every rank.")] = field(default_factory=dict)
    script: Annotated[
        str | None, Doc("Script to source first; none: the machine's; empty: no script.")
    ] = None
    description: Annotated[str, Doc("When to use it.")] = ""
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for settings without a source, or that no shell accepts."""
        check_env(self.env, ("env",))
        if self.env and self.source is None:
            raise Invalid(("env",), "settings need a source", "add `source:`, a URL")


@dataclass(frozen=True, kw_only=True)
class Nccl:
    """How NCCL is set up on the machine."""

    script: Annotated[str, Doc("The NCCL plugin's own environment script, sourced first.")] = ""
    transport: Annotated[
        str, Doc("The network NCCL's own log must name; empty: nothing is promised.")
    ] = ""
    profiles: Annotated[
        dict[str, Profile], Doc("Settings by name; a site picks one, else `default`.")
    ] = field(default_factory=lambda: {"default": Profile()})
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid where no profile is called `default`."""
        if "default" not in self.profiles:
            raise Invalid(("profiles",), 'a profile called "default" is needed')


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The run that a machine's own figures are from, as `accept baseline` writes it."""

    run: Annotated[str, Doc("Hash of what was run.")]
    attempt: Annotated[str, Doc("Name of its launch, or of the folder of logs.")]
    state: Annotated[str, Doc("Its verdict.")]
    date: Annotated[str | None, Doc("When it ran, UTC; none: the logs do not say.")] = None
    hosts: Annotated[tuple[str, ...], Doc("Hosts that took part.")] = ()
    versions: Annotated[dict[str, str], Doc("What it ran with.")] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A kind of node: its GPUs and network, its NCCL settings, and what it should reach."""

    name: Name
    description: Annotated[str, Doc("One line for people.")]
    gpus: Gpus
    ranks_per_node: Annotated[
        Annotated[int, Bounds(min=1, max=256)] | Literal["gpus"],
        Doc('Ranks that a node runs; "gpus": one for each GPU.'),
    ] = "gpus"
    interface: Annotated[
        str, Doc("Interface of start-up and control traffic; empty: the route to the other hosts.")
    ] = ""
    topology: Annotated[
        str,
        Doc("Shell command that prints one line: the node's place in the network; empty: none."),
    ] = ""
    speed_promised: Annotated[
        bool, Doc("False: judged by correctness alone, and the verdict says so.")
    ] = True
    noise: Annotated[
        float,
        Bounds(min=0, max=1),
        Doc("Noise floor when nodes are compared, as a share of the median."),
    ] = 0.01
    nics: Nics | None = None
    nccl: Nccl = field(default_factory=Nccl)
    kubernetes: MachineKubernetes = field(default_factory=MachineKubernetes)
    parameters: Annotated[
        dict[str, Plain], Doc("Parameters of checks that suit this machine, by check.")
    ] = field(default_factory=dict)
    references: Annotated[tuple[Figure, ...], Doc("What its metrics should be.")] = ()
    baseline: Annotated[Baseline | None, Doc("The run that its own figures are from.")] = None

    def __post_init__(self) -> None:
        """Raise Invalid for keys that contradict each other."""
        check_parameters(self.parameters, ("parameters",))
        if self.gpus.count == 0 and self.ranks_per_node == "gpus":
            hint = "say how many ranks a node without GPUs runs, such as 2"
            raise Invalid(
                ("ranksPerNode",), "a machine without GPUs has no rank for each GPU", hint
            )

    def planned(self) -> PlannedMachine:
        """What the nodes need to know of it."""
        return PlannedMachine(
            name=self.name,
            gpus=None if self.gpus.count == "detect" else self.gpus.count,
            ranks=None if self.ranks_per_node == "gpus" else self.ranks_per_node,
            device=self.gpus.device,
            speed_promised=self.speed_promised,
            noise=self.noise,
            interface=self.interface,
            topology=self.topology,
            transport=self.nccl.transport,
        )

    def bounds(self, gpus_per_node: int | None = None) -> tuple[Reference, ...]:
        """Its figures as the judge knows them; they are about whole nodes, so none for a part."""
        if gpus_per_node not in (None, self.gpus.count):
            return ()
        return tuple(figure.reference() for figure in self.references)


def check_gpus_per_node(machine: Machine, wanted: int) -> None:
    """Raise Invalid where a run cannot use `wanted` GPUs of each node of the machine.

    The number must divide the GPUs of a node: rails and groups of nodes would differ otherwise.
    """
    count = machine.gpus.count
    if wanted < 1 or count == 0:
        raise Invalid((), f"{wanted} GPUs a node is not possible on {machine.name}")
    if count != "detect" and count % wanted:
        allowed = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise Invalid((), f"{wanted} of the {count} GPUs of {machine.name}", f"possible: {allowed}")
