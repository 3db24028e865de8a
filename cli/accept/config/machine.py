"""A machine: a kind of node, as `values/machines/NAME.yaml` holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.fields import MOST_GPUS, Name, Plain, check_parameters
from accept.config.hardware import Gpus, Nics, Nvlink, Pcie
from accept.config.nccl import Nccl
from accept.config.pod import MachineKubernetes
from accept.config.references import Figure
from accept.core.model import PlannedMachine
from accept.core.shape import Bounds, Doc, Invalid, known
from accept.core.sizes import parse_size


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
