"""Define the content of a machine file: GPUs, NICs, NVLink, pod settings, NCCL profiles."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from accept.config.fields import Name, Plain, Url
from accept.config.kubernetes import MachinePods
from accept.config.nccl import Nccl
from accept.config.references import Figure
from accept.config.tools import check_exists
from accept.core.checks.gemm_memory import TYPES
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.limits import MOST_GPUS, MOST_RANKS
from accept.core.plan import PlannedMachine
from accept.core.serde import Bounds, Doc, Invalid, known
from accept.core.text import count, parse_size

Rate = Annotated[
    float, Bounds(min=0.1), Doc("One direction of each GPU, in 10^9 bytes per second.")
]


class Confidence(StrEnum):
    """The origin of a machine file, surest first."""

    #: `accept` ran on such nodes.
    MEASURED = "measured"
    #: From the maker's own manifest and published figures for this kind of node.
    MANIFEST = "manifest"
    #: Partly inferred from similar machines.
    DERIVED = "derived"


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Specified peak rates of one GPU; dense, without structured sparsity."""

    tflops: Annotated[
        dict[str, Annotated[float, Bounds(min=0.1)]],
        Doc("Arithmetic, in 10^12 floating-point operations a second, by data type of `gemm`."),
    ] = field(default_factory=dict)
    memory_gbytes_per_second: Annotated[
        Annotated[float, Bounds(min=1)] | None,
        Doc("Memory, reads and writes together, in 10^9 bytes per second."),
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
        Doc('GPUs that a node must have; 0: none; "detect": all that it has, at least one.'),
    ]
    device: Annotated[
        str | None,
        Doc(
            "Name of each GPU in nvidia-smi, or a part of it; unset: any GPU. "
            "NVL and PCIe cards match only if the name contains that word."
        ),
    ] = None
    memory_gb: Annotated[
        Annotated[int, Bounds(min=1)] | None,
        Doc("Memory of each GPU, in 10^9 bytes; for information."),
    ] = None
    source: Url | None = None
    peaks: Peaks | None = None


@dataclass(frozen=True, kw_only=True)
class Nvlink:
    """NVLink between the GPUs."""

    gbytes_per_second: Rate
    nodes: Annotated[
        int, Bounds(min=1, max=1024), Doc("Maximum number of nodes in one NVLink domain.")
    ] = 1
    nvls: Annotated[
        bool,
        Doc("Whether its switches can reduce, so that NCCL's log must not report NVLS as missing."),
    ] = False
    links: Annotated[
        Annotated[int, Bounds(min=1, max=72)] | None,
        Doc("Links of each GPU, which must all be active; unset: as many as most GPUs of a run."),
    ] = None
    source: Url


@dataclass(frozen=True, kw_only=True)
class Pcie:
    """The link between each GPU and its host: PCI Express or NVLink-C2C."""

    gbytes_per_second: Rate
    share: Annotated[
        Annotated[float, Bounds(min=0.01, max=1)] | None,
        Doc("Share of its rate that copies must reach; unset: that of values/floors.yaml."),
    ] = None
    source: Url


@dataclass(frozen=True, kw_only=True)
class Nics:
    """The network cards of one node that carry data between GPUs."""

    count: Annotated[int, Bounds(min=1, max=64), Doc("Number of NICs in a node.")]
    gbps: Annotated[float, Bounds(min=0.1), Doc("Line rate of each NIC, in 10^9 bits a second.")]
    reachable_gbps: Annotated[
        Annotated[float, Bounds(min=0.1)] | None,
        Doc("Reachable rate according to the vendor; unset: the line rate."),
    ] = None
    rdma: Annotated[
        bool,
        Doc("Whether NCCL bypasses the host's sockets, by RDMA or GPUDirect-TCPX."),
    ] = True
    source: Url

    def __post_init__(self) -> None:
        """Raise Invalid if the reachable rate is above the line rate."""
        if self.reachable_gbps is not None and self.reachable_gbps > self.gbps:
            message = f"more than the line rate of {self.gbps:g}"
            raise Invalid(("reachableGbps",), message, code=Code.MACHINE_CONTRADICTION)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The run that measured a machine's figures; `accept baseline` writes it."""

    run: Annotated[str, Doc("Hash of the run.")]
    attempt: Annotated[str, Doc("Name of its launch, or of the folder of logs.")]
    state: Annotated[str, Doc("Its verdict.")]
    date: Annotated[
        str | None, Doc("Date and time of the run, UTC; unset: unknown from the logs.")
    ] = None
    hosts: Annotated[tuple[str, ...], Doc("Hosts that took part.")] = ()
    versions: Annotated[dict[str, str], Doc("Versions of the software that it used.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A kind of node: its GPUs and network, its NCCL settings, and its reference figures."""

    name: Name
    description: Annotated[str, Doc("One line for people.")]
    confidence: Annotated[
        Confidence,
        Doc(
            "Origin of the file. measured: `accept` ran on such nodes; manifest: the maker's own "
            "manifest and published figures; derived: partly inferred from similar machines."
        ),
    ] = Confidence.DERIVED
    note: Annotated[
        str, Doc("Preparation that runs in pods need; printed before each such run.")
    ] = ""
    caveat: Annotated[
        str, Doc("What is unproven about such nodes; each plan and verdict has this sentence.")
    ] = ""
    base: Annotated[
        tuple[str, ...],
        Doc("Machines, or files of values/machines/base, that provide the keys missing here."),
    ] = ()
    gpus: Gpus
    ranks_per_node: Annotated[
        Annotated[int, Bounds(min=1, max=MOST_RANKS)] | Literal["gpus"],
        Doc('Ranks that a node runs; "gpus": one for each GPU.'),
    ] = "gpus"
    interface: Annotated[
        str,
        Doc("Interface for start-up and control traffic; empty: the one that routes to the hosts."),
    ] = ""
    topology: Annotated[
        str,
        Doc("Shell command that prints the node's place in the network in one line; empty: none."),
    ] = ""
    speed_promised: Annotated[
        bool, Doc("False: no speed target; the verdict covers only correctness, and states that.")
    ] = True
    noise: Annotated[
        float,
        Bounds(min=0.0001, max=1),
        Doc("Measurement noise in comparisons of nodes, as a share of the median."),
    ] = 0.01
    nvlink: Nvlink | None = None
    pcie: Pcie | None = None
    nics: Nics | None = None
    nccl: Nccl = field(default_factory=Nccl)
    kubernetes: MachinePods = field(default_factory=MachinePods)
    parameters: Annotated[
        dict[str, Plain], Doc("Parameters of checks on this machine, by check.")
    ] = field(default_factory=dict)
    references: Annotated[tuple[Figure, ...], Doc("Reference figures for its metrics.")] = ()
    devices_of: Annotated[
        tuple[str, ...],
        Doc("Machines whose bounds of single GPUs apply here, by the name of the device."),
    ] = ()
    baseline: Annotated[Baseline | None, Doc("The run that measured its own figures.")] = None

    def __post_init__(self) -> None:
        """Raise Invalid for keys that contradict each other."""
        for check, given in self.parameters.items():
            check_exists(check, ("parameters", check))
            for key in ("min", "max"):
                try:
                    parse_size(str(given.get(key, "1")))
                except ValueError as error:
                    raise Invalid(("parameters", check, key), str(error)) from None
        for index, figure in enumerate(self.references):
            for name in figure.profiles:
                if name not in self.nccl.profiles:
                    hint = known(name, self.nccl.profiles)
                    raise Invalid(
                        ("references", index, "profiles"),
                        "no such profile",
                        hint,
                        code=Code.NCCL_PROFILE_UNKNOWN,
                    )
        if self.gpus.count == 0 and self.ranks_per_node == "gpus":
            hint = "give the number of ranks on a node, such as 2"
            raise Invalid(
                ("ranksPerNode",),
                'a machine without GPUs cannot use "gpus", the default',
                hint,
                code=Code.MACHINE_CONTRADICTION,
            )

    @property
    def may_have_rdma(self) -> bool:
        """Return False if the machine has no RDMA devices; one of any kind may have some."""
        return self.nics.rdma if self.nics else self.gpus.count == "detect"

    def planned(self, profile: str = "default") -> PlannedMachine:
        """Return the part of the machine that the plan contains, under an NCCL profile."""
        chosen = self.nccl.profiles[profile]
        transport = self.nccl.transport if chosen.transport is None else chosen.transport
        default_transport = transport == self.nccl.transport
        detected_nics = self.nics if self.nccl.find_devices and "nics" in chosen.uses else None
        return PlannedMachine(
            name=self.name,
            gpus=None if self.gpus.count == "detect" else self.gpus.count,
            ranks=None if self.ranks_per_node == "gpus" else self.ranks_per_node,
            caveat=self.caveat,
            device=self.gpus.device,
            speed_promised=self.speed_promised,
            noise=self.noise,
            interface=self.interface,
            topology=self.topology,
            transport=transport,
            transport_aliases=self.nccl.transport_aliases if default_transport else (),
            gpu_direct=self.nccl.gpu_direct and default_transport,
            peer_to_peer=self.nvlink is not None and "nvlink" in chosen.uses,
            nvls=self.nvlink is not None
            and self.nvlink.nvls
            and "nvlink" in chosen.uses
            and chosen.nvlink_share == 1,
            nvlinks=(self.nvlink.links or 0) if self.nvlink else 0,
            rdma_devices=detected_nics.count if detected_nics else 0,
            rdma_gbps=detected_nics.gbps if detected_nics else 0.0,
            nics=self.nics.count if self.nics and "nics" in chosen.uses else 0,
            faster_profile=next(
                (n for n, p in self.nccl.profiles.items() if p.faster and n != profile), ""
            ),
        )


def check_gpus_per_node(machine: Machine, wanted: int | None) -> None:
    """Raise BadInput if a run cannot use `wanted` GPUs of each node of the machine; None: all.

    The number must divide the GPUs of a node; otherwise rails and groups would differ in size.
    """
    gpus = machine.gpus.count
    hint = ""
    if wanted is None:
        return
    if wanted < 1 or gpus == 0:
        message = f"{count(wanted, 'GPU')} per node cannot be used on {machine.name}"
    elif wanted > MOST_GPUS:
        message, hint = f"{wanted} GPUs per node", f"at most {MOST_GPUS} are possible"
    elif gpus != "detect" and gpus % wanted:
        message = f"{wanted} of the {gpus} GPUs of {machine.name}"
        hint = f"possible: {', '.join(str(n) for n in range(1, gpus + 1) if gpus % n == 0)}"
    else:
        return
    raise BadInput(message, code=Code.GPUS_PER_NODE, hint=hint)
