"""Bounds of a machine: its own figures, and those that follow from its hardware.

`values/floors.yaml` says which share of a line rate a collective reaches on a healthy machine at
any scale. A machine that states its NVLink and NICs therefore has bounds without a figure of its
own; where it has one, both hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from accept.config import resources
from accept.config.expectations import METRICS
from accept.config.fields import Url, check_parameters
from accept.config.machine import Machine, Nics
from accept.config.references import Figure
from accept.config.yaml_file import read_file
from accept.core.checks import load
from accept.core.model import Reference
from accept.core.serde import Bounds, Doc
from accept.core.text import parse_size

#: What bounds a collective: NVLink of a GPU, PCI Express of a GPU, all NICs of a node, one of them,
#: or a GPU's share of them; what bounds one GPU: its memory, or its arithmetic in a data type.
Rate = Literal["nvlink", "pcie", "nics", "nic", "gpu", "memory", "bf16", "fp8", "tf32", "fp32"]
#: Where a floor holds: in one node, among nodes that say they are of one NVLink domain, among any
#: nodes, wherever the network is forced inside a node too, or of each GPU by itself.
Reach = Literal["node", "domain", "fabric", "loopback", "device"]


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A share of a line rate that collectives reach on every healthy machine."""

    checks: tuple[str, ...]
    of: Rate
    reach: Reach
    share: Annotated[float, Bounds(min=0.01, max=1)]
    #: What it bounds; of devices, any metric of theirs.
    metric: str = "busbw"
    #: Of NICs past the host's sockets (RDMA and the like), or through them.
    rdma: bool = True
    min_nodes: Annotated[int, Bounds(min=1)] = 1
    max_nodes: Annotated[int | None, Doc("None: any number.")] = None
    #: What the share in a report is of: the line rate; for a tree over two nodes, which moves each
    #: byte once, 2(n-1)/n of it; or nothing, where the metric may exceed the line rate.
    peak: Literal["rate", "tree", "none"] = "rate"
    why: str
    source: Url | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for a check that does not exist."""
        check_parameters({check: {} for check in self.checks}, ("checks",))


@dataclass(frozen=True, kw_only=True)
class Floors:
    """The file of floors."""

    floors: tuple[Floor, ...]


@lru_cache(maxsize=1)
def floors() -> tuple[Floor, ...]:
    """The floors that come with `accept`."""
    return read_file(Floors, resources.values() / "floors.yaml").floors


def figures(machine: Machine, profile: str = "default") -> tuple[Figure, ...]:
    """All figures of a machine under an NCCL profile, its own first."""
    own = (figure for figure in machine.references if profile in figure.profiles)
    return (*own, *(f for floor in floors() for f in _applied(floor, machine, profile)))


def bounds(
    machine: Machine, profile: str = "default", gpus_per_node: int | None = None
) -> tuple[Reference, ...]:
    """The figures as the judge knows them. For a part of each node those of single GPUs alone: the
    others are about whole nodes."""
    part = gpus_per_node not in (None, machine.gpus.count)
    return tuple(
        figure.reference()
        for figure in figures(machine, profile)
        if not part or load(figure.check).devices
    )


def _applied(floor: Floor, machine: Machine, profile: str) -> Iterator[Figure]:
    """The floor as figures of a machine, where its hardware and the profile's paths allow."""
    if floor.reach == "device":
        yield from _of_devices(floor, machine)
        return
    uses = machine.nccl.profiles[profile].uses
    inside = "nvlink" in uses
    domain = machine.nvlink.nodes if machine.nvlink and "domain" in uses and inside else 1
    rate = _rate(floor, machine, uses)
    ranges = {
        # One rank has nobody to send to.
        "node": (1, 1) if inside and machine.gpus.count != 1 else None,
        "domain": (2, domain) if domain > 1 else None,
        # Any two nodes may be of two domains.
        "fabric": (2, None) if inside else None,
        "loopback": (1, None) if not inside else None,
    }
    span = ranges[floor.reach]
    if rate is None or span is None:
        return
    low, highs = max(span[0], floor.min_nodes), [span[1], floor.max_nodes]
    high = min((most for most in highs if most is not None), default=None)
    if high is not None and low > high:
        return
    value, line, source = rate
    # Beyond one domain NCCL reduces inside each of them first, and may exceed a node's NICs.
    peak = None if floor.peak == "none" or (domain > 1 and floor.reach == "fabric") else line
    if peak is not None and floor.peak == "tree":
        ranks = 2 * machine.gpus.count if isinstance(machine.gpus.count, int) else 2
        peak *= 2 * (ranks - 1) / ranks
    for check in floor.checks:
        largest = machine.parameters.get(check, {}).get("max")
        if largest is None:
            continue
        yield Figure(
            check=check,
            kind="floor",
            value=value,
            share=floor.share,
            peak=peak,
            size=parse_size(str(largest)),
            min_nodes=low,
            max_nodes=high,
            one_domain=floor.reach == "domain",
            source=source,
            why=f"{floor.why} ({floor.source})" if floor.source else floor.why,
        )


def _of_devices(floor: Floor, machine: Machine) -> Iterator[Figure]:
    """The floor as figures of each GPU by itself, in a node that is measured alone."""
    peaks = machine.gpus.peaks
    if floor.of == "nvlink":
        link = machine.nvlink if machine.gpus.count != 1 else None
        rate, source = (link.gbytes_per_second, link.source) if link else (None, "")
    elif floor.of == "pcie":
        bus = machine.pcie
        rate, source = (bus.gbytes_per_second, bus.source) if bus else (None, "")
    elif peaks is None:
        return
    elif floor.of == "memory":
        rate, source = peaks.memory_gbytes_per_second, peaks.source
    else:
        rate, source = peaks.tflops.get(floor.of), peaks.source
    for check in floor.checks if rate else ():
        yield Figure(
            check=check,
            metric=floor.metric,
            unit=METRICS[check][floor.metric],
            kind="floor",
            value=rate,
            share=floor.share,
            peak=rate,
            min_nodes=1,
            max_nodes=1,
            source=source,
            why=f"{floor.why} ({floor.source})" if floor.source else floor.why,
        )


def _rate(floor: Floor, machine: Machine, uses: tuple[str, ...]) -> tuple[float, float, str] | None:
    """What is reached of a rate, the rate, both in GB/s, and its source; None: it has none."""
    if floor.of == "nvlink":
        link = machine.nvlink
        return (link.gbytes_per_second, link.gbytes_per_second, link.source) if link else None
    if floor.of == "pcie":
        bus = None if machine.nvlink else machine.pcie
        return (bus.gbytes_per_second, bus.gbytes_per_second, bus.source) if bus else None
    nics, gpus = machine.nics, machine.gpus.count
    if nics is None or nics.rdma != floor.rdma or "nics" not in uses or gpus in (0, "detect"):
        return None
    assert isinstance(gpus, int)
    share = {"nics": nics.count, "nic": 1, "gpu": nics.count / gpus}[floor.of]
    return _gbytes(nics, share)


def _gbytes(nics: Nics, share: float) -> tuple[float, float, str]:
    line = nics.gbps * share / 8
    reached = (nics.reachable_gbps or nics.gbps) * share / 8
    return reached, line, nics.source
