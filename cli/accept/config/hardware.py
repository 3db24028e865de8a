"""The hardware of a node, as far as bounds follow from it: GPUs, NVLink, PCI Express, NICs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.fields import MOST_GPUS, Url
from accept.core.checks.devices import TYPES
from accept.core.shape import Bounds, Doc, Invalid, known

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
