"""Define a machine as its YAML file states it: GPUs, NICs, NVLink, pod settings, profiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.fields import MOST_GPUS, Name, Plain, Url, check_parameters
from accept.config.kubernetes import MachineKubernetes
from accept.config.nccl import Nccl
from accept.config.references import Figure
from accept.core.checks.gemm_memory import TYPES
from accept.core.model import PlannedMachine
from accept.core.serde import Bounds, Doc, Invalid, known
from accept.core.text import parse_size

Rate = Annotated[float, Bounds(min=0.1), Doc("One direction of each GPU, in 10^9 bytes a second.")]


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What one GPU can do at most, by its specification; dense, without structured sparsity."""

    tflops: Annotated[
        dict[str, Annotated[float, Bounds(min=0.1)]],
        Doc("10^12 floating-point operations a second, by data type of `gemm`."),
    ] = field(default_factory=dict)
    memory_gbytes_per_second: Annotated[
        Annotated[float, Bounds(min=1)] | None,
        Doc("Of its memory, reads and writes together, in 10^9 bytes a second."),
    ] = None
    source: Url

    def __post_init__(self) -> None:
        """Raise Invalid for a data type that is not measured."""
        for name in self.tflops:
            if name not in TYPES:
                raise Invalid(("tflops", name), "no such data type", known(name, TYPES))


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs of one node."""

    count: Annotated[
        Annotated[int, Bounds(min=0, max=MOST_GPUS)] | Literal["detect"],
        Doc('GPUs a node must have; 0: none; "detect": as many as it shows, at least one.'),
    ]
    device: Annotated[
        str | None,
        Doc(
            "What nvidia-smi calls each of them, or a part of it; none: any will do. "
            "Cards of a chip (NVL, PCIe) are meant where that is said."
        ),
    ] = None
    memory_gb: Annotated[
        Annotated[int, Bounds(min=1)] | None, Doc("Memory of each, in 10^9 bytes, for people.")
    ] = None
    source: Url | None = None
    peaks: Peaks | None = None


@dataclass(frozen=True, kw_only=True)
class Nvlink:
    """NVLink between the GPUs."""

    gbytes_per_second: Rate
    nodes: Annotated[
        int, Bounds(min=1, max=1024), Doc("Nodes that one NVLink domain spans at most.")
    ] = 1
    source: Url


@dataclass(frozen=True, kw_only=True)
class Pcie:
    """PCI Express, where the GPUs of a node have nothing better between them."""

    gbytes_per_second: Rate
    source: Url


@dataclass(frozen=True, kw_only=True)
class Nics:
    """The network cards of one node that carry data between GPUs."""

    count: Annotated[int, Bounds(min=1, max=64), Doc("How many there are in a node.")]
    gbps: Annotated[float, Bounds(min=0.1), Doc("Line rate of each, in 10^9 bits a second.")]
    reachable_gbps: Annotated[
        Annotated[float, Bounds(min=0.1)] | None,
        Doc("What the maker says is reached of it; none: the line rate."),
    ] = None
    rdma: Annotated[
        bool, Doc("Whether NCCL's data goes past the host's sockets: RDMA, GPUDirect-TCPX.")
    ] = True
    source: Url

    def __post_init__(self) -> None:
        """Raise Invalid where more than the line rate is to be reached."""
        if self.reachable_gbps is not None and self.reachable_gbps > self.gbps:
            raise Invalid(("reachableGbps",), f"more than the line rate of {self.gbps:g}")


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
    note: Annotated[
        str, Doc("What whoever runs on it in pods must have seen to; said before a run.")
    ] = ""
    base: Annotated[
        tuple[str, ...],
        Doc("Machines, or files of values/machines/base, that hold what this file leaves out."),
    ] = ()
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
        Bounds(min=0.0001, max=1),
        Doc("Noise floor when nodes are compared, as a share of the median."),
    ] = 0.01
    nvlink: Nvlink | None = None
    pcie: Pcie | None = None
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
        for check, given in self.parameters.items():
            for key in ("min", "max"):
                try:
                    parse_size(str(given.get(key, "1")))
                except ValueError as error:
                    raise Invalid(("parameters", check, key), str(error)) from None
        for index, figure in enumerate(self.references):
            for name in figure.profiles:
                if name not in self.nccl.profiles:
                    hint = known(name, self.nccl.profiles)
                    raise Invalid(("references", index, "profiles"), "no such profile", hint)
        if self.gpus.count == 0 and self.ranks_per_node == "gpus":
            hint = "say how many ranks a node without GPUs runs, such as 2"
            raise Invalid(
                ("ranksPerNode",), "a machine without GPUs has no rank for each GPU", hint
            )

    def planned(self, profile: str = "default") -> PlannedMachine:
        """What the nodes need to know of it under an NCCL profile."""
        chosen = self.nccl.profiles[profile]
        transport = self.nccl.transport if chosen.transport is None else chosen.transport
        own = transport == self.nccl.transport
        found = self.nics if self.nccl.find_devices and "nics" in chosen.uses else None
        return PlannedMachine(
            name=self.name,
            gpus=None if self.gpus.count == "detect" else self.gpus.count,
            ranks=None if self.ranks_per_node == "gpus" else self.ranks_per_node,
            device=self.gpus.device,
            speed_promised=self.speed_promised,
            noise=self.noise,
            interface=self.interface,
            topology=self.topology,
            transport=transport,
            transport_aliases=self.nccl.transport_aliases if own else (),
            gpu_direct=self.nccl.gpu_direct and own,
            peer_to_peer=self.nvlink is not None and "nvlink" in chosen.uses,
            rdma_devices=found.count if found else 0,
            rdma_gbps=found.gbps if found else 0.0,
        )


def check_gpus_per_node(machine: Machine, wanted: int) -> None:
    """Raise Invalid where a run cannot use `wanted` GPUs of each node of the machine.

    The number must divide the GPUs of a node: rails and groups of nodes would differ otherwise.
    """
    count = machine.gpus.count
    if wanted < 1 or count == 0:
        raise Invalid((), f"{wanted} GPUs a node is not possible on {machine.name}")
    if wanted > MOST_GPUS:
        raise Invalid((), f"{wanted} GPUs a node", f"at most {MOST_GPUS} are possible")
    if count != "detect" and count % wanted:
        allowed = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise Invalid((), f"{wanted} of the {count} GPUs of {machine.name}", f"possible: {allowed}")
