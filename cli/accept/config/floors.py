"""Compute the bounds of a machine: its own figures, and floors that follow from its hardware.

`values/floors.yaml` lists the share of a line rate that a collective reaches on a healthy machine
at any scale. A machine that states its NVLink and NICs therefore has bounds even without figures of
its own. If it has its own figures, both apply, with two exceptions: the threshold of the vendor's
own health check replaces the floor of its check, and limits the other checks of that floor. An own
figure of single GPUs replaces the floor of the same metric.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

from accept.config import load_machine
from accept.config.expectations import unit_of
from accept.config.fields import Url
from accept.config.machine import Machine, Nics
from accept.config.nccl import Profile
from accept.config.references import Figure
from accept.config.tools import check_exists
from accept.config.yaml_file import read_values
from accept.core.catalog.metrics import BUSBW
from accept.core.plan import BoundKind, Reference
from accept.core.serde import Bounds, Doc
from accept.core.text import parse_size

#: The rate that limits a collective: NVLink of a GPU, PCI Express of a GPU, all NICs of a node, one
#: NIC, or a GPU's share of the NICs. The rate that limits a single GPU: its memory, or its
#: arithmetic in a data type.
Rate = Literal["nvlink", "pcie", "nics", "nic", "gpu", "memory", "bf16", "fp8", "tf32", "fp32"]
#: Where a floor applies: inside a node, between nodes that report the same NVLink domain, between
#: any nodes, between one GPU of each of any nodes, with profiles that force the network inside a
#: node too, or to single GPUs and NICs.
Reach = Literal["node", "domain", "fabric", "rail", "loopback", "device"]


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A share of a line rate that collectives reach on every healthy machine."""

    checks: tuple[str, ...]
    of: Rate
    reach: Reach
    share: Annotated[float, Bounds(min=0.01, max=1)]
    #: The share that well configured machines reach. Less is inconclusive. None: no such figure.
    expected: Annotated[float, Bounds(min=0.01, max=2)] | None = None
    #: The metric that it bounds; for collectives always busbw.
    metric: str = BUSBW.name
    #: True if it is for NICs that bypass the host's sockets, such as RDMA; False for sockets.
    rdma: bool = True
    min_nodes: Annotated[int, Bounds(min=1)] = 1
    max_nodes: Annotated[int | None, Doc("None: any number.")] = None
    #: Fastest NICs that it applies to, in 10^9 bits per second.
    max_gbps: Annotated[float | None, Doc("None: any rate.")] = None
    #: The peak that reports compare with. "rate": the line rate. "tree": 2(n-1)/n of it, as a tree
    #: over two nodes moves each byte once. "none": no peak, as the metric may exceed the line rate.
    peak: Literal["rate", "tree", "none"] = "rate"
    why: str
    source: Annotated[Url | None, Doc("A published figure that `share` is derived from.")] = None

    @property
    def kind(self) -> BoundKind:
        """Return the kind of the bounds: `derived` without a published figure."""
        return BoundKind.FLOOR if self.source else BoundKind.DERIVED

    def __post_init__(self) -> None:
        """Raise Invalid for a check that does not exist."""
        for check in self.checks:
            check_exists(check, ("checks",))


@cache
def floors() -> tuple[Floor, ...]:
    """Return the floors that come with `accept`."""
    return read_values(dict[str, tuple[Floor, ...]], "floors")["floors"]


def figures(machine: Machine, profile: str = "default") -> tuple[Figure, ...]:
    """Return all figures of a machine under an NCCL profile: its own, then those from floors."""
    own = tuple(figure for figure in machine.references if profile in figure.profiles)
    from_floors = [
        figure
        for floor in floors()
        for figure in _below_vendor(floor, tuple(figures_of(floor, machine, profile)), own)
    ]
    of_gpus = {(f.check, f.metric): f for f in from_floors if check_exists(f.check).devices}
    own = tuple(_with_peak(figure, of_gpus.get((figure.check, figure.metric))) for figure in own)
    measured = {
        (figure.check, figure.metric) for figure in own if check_exists(figure.check).devices
    }
    left = (figure for figure in from_floors if (figure.check, figure.metric) not in measured)
    return (*own, *left, *(one for name in machine.devices_of for one in _of_devices(name)))


def _with_peak(figure: Figure, floor: Figure | None) -> Figure:
    """Return a figure of single GPUs with the peak of the floor that it replaces, if any."""
    if floor is None or floor.peak is None or figure.peak is not None:
        return figure
    return replace(figure, peak=floor.peak, peak_source=floor.source)


@cache
def _of_devices(name: str) -> tuple[Figure, ...]:
    """Return the figures of single GPUs of another machine, for its device.

    Those of NVLink are left out, because a node may have one such GPU. Derived ones are left out if
    the check has others, because the plan of a run must stay small.
    """
    other = load_machine(name).value
    link = other.nvlink.source if other.nvlink else None
    own = [f for f in figures(other) if check_exists(f.check).devices and f.source != link]
    bounded = {figure.check for figure in own if figure.kind is not BoundKind.DERIVED}
    return tuple(
        replace(figure, device=other.gpus.device)
        for figure in own
        if figure.kind is not BoundKind.DERIVED or figure.check not in bounded
    )


def _below_vendor(
    floor: Floor, figures: tuple[Figure, ...], own: tuple[Figure, ...]
) -> Iterator[Figure]:
    """Yield the figures of a floor that require no more than the vendor's own health check.

    The vendor's threshold for one of the floor's checks replaces the figure of that check. The data
    of the other checks takes the same path, so their bound cannot be higher than that threshold.
    """
    for figure in figures:
        thresholds = [
            one
            for one in own
            if one.kind is BoundKind.VENDOR
            and one.check in floor.checks
            and (one.metric, one.size) == (figure.metric, figure.size)
            and (one.min_nodes, one.max_nodes) == (figure.min_nodes, figure.max_nodes)
            and (one.one_domain, one.per_rail) == (figure.one_domain, figure.per_rail)
        ]
        if any(one.check == figure.check for one in thresholds):
            continue
        limits = [
            one.value * one.share / figure.value
            for one in thresholds
            if one.value and one.share and figure.value
        ]
        yield replace(figure, share=min([figure.share or 1, *limits]))


def bounds(
    machine: Machine,
    profile: str = "default",
    gpus_per_node: int | None = None,
    *,
    of_steps: bool = False,
) -> tuple[Reference, ...]:
    """Return the figures as references for the judge.

    If only some GPUs of each node are used, only figures of single GPUs apply: the others are for
    whole nodes. `of_steps`: the references apply only to steps with that profile.
    """
    some_gpus = gpus_per_node not in (None, machine.gpus.count)
    return tuple(
        replace(figure.reference(), profile=profile if of_steps else "")
        for figure in figures(machine, profile)
        if not some_gpus or check_exists(figure.check).devices
    )


def figures_of(floor: Floor, machine: Machine, profile: str) -> Iterator[Figure]:
    """Yield figures from a floor; none if the hardware or the profile lacks the path."""
    if floor.reach == "device":
        yield from _device_figures(floor, machine)
        return
    uses = machine.nccl.profiles[profile].uses
    nvlink_used = "nvlink" in uses
    domain = machine.nvlink.nodes if machine.nvlink and "domain" in uses and nvlink_used else 1
    rate = _rate(floor, machine, machine.nccl.profiles[profile])
    ranges = {
        # A single rank has no peer.
        "node": (1, 1) if nvlink_used and machine.gpus.count != 1 else None,
        "domain": (2, domain) if domain > 1 else None,
        # Any two nodes can be in two domains.
        "fabric": (2, None) if nvlink_used else None,
        "rail": (2, None),
        "loopback": (1, None) if not nvlink_used else None,
    }
    node_range = ranges[floor.reach]
    if rate is None or node_range is None:
        return
    min_nodes = max(node_range[0], floor.min_nodes)
    upper_limits = (node_range[1], floor.max_nodes)
    max_nodes = min((limit for limit in upper_limits if limit is not None), default=None)
    if max_nodes is not None and min_nodes > max_nodes:
        return
    value, line_rate, source = rate
    # With several domains NCCL first reduces inside each one, and may exceed the rate of the NICs.
    peak = None if floor.peak == "none" or (domain > 1 and floor.reach == "fabric") else line_rate
    if peak is not None and floor.peak == "tree":
        ranks = 2 * machine.gpus.count if isinstance(machine.gpus.count, int) else 2
        peak *= 2 * (ranks - 1) / ranks
    for check in floor.checks:
        largest = machine.parameters.get(check, {}).get("max")
        if largest is None:
            continue
        yield Figure(
            check=check,
            kind=floor.kind,
            value=value,
            share=floor.share,
            expected=floor.expected,
            peak=peak,
            size=parse_size(str(largest)),
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            one_domain=floor.reach == "domain",
            per_rail=floor.reach == "rail",
            source=source,
            why=f"{floor.why} ({floor.source})" if floor.source else floor.why,
        )


def _device_figures(floor: Floor, machine: Machine) -> Iterator[Figure]:
    """Yield the figures of single GPUs and NICs from a floor."""
    peaks, share, expected = machine.gpus.peaks, floor.share, floor.expected
    if floor.of == "nvlink":
        link = machine.nvlink if machine.gpus.count != 1 else None
        rate, source = (link.gbytes_per_second, link.source) if link else (None, "")
    elif floor.of == "pcie":
        bus = machine.pcie
        rate, source = (bus.gbytes_per_second, bus.source) if bus else (None, "")
        if bus and bus.share:
            share, expected = bus.share, None
    elif floor.of == "nic":
        # A share of the rate of each port, because some NICs appear as several slower ones.
        nics = machine.nics
        applies = nics and nics.rdma == floor.rdma and nics.gbps <= (floor.max_gbps or math.inf)
        rate = (nics.reachable_gbps or nics.gbps) / nics.gbps if nics and applies else None
        source = floor.source or ""
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
            unit=unit_of(check, floor.metric),
            kind=floor.kind,
            value=rate,
            share=share,
            expected=expected,
            peak=rate,
            min_nodes=1,
            max_nodes=1,
            source=source,
            why=f"{floor.why} ({floor.source})" if floor.source else floor.why,
        )


def _rate(floor: Floor, machine: Machine, profile: Profile) -> tuple[float, float, str] | None:
    """Return the reachable rate and the line rate, both in GB/s, and their source.

    None if the machine lacks the link, its rate is unknown, or the profile does not use it.
    """
    if floor.of == "nvlink":
        if machine.nvlink is None:
            return None
        rate = machine.nvlink.gbytes_per_second
        return rate * profile.nvlink_share, rate, machine.nvlink.source
    if floor.of == "pcie":
        bus = None if machine.nvlink else machine.pcie
        return (bus.gbytes_per_second, bus.gbytes_per_second, bus.source) if bus else None
    nics, gpus = machine.nics, machine.gpus.count
    if (
        nics is None
        or nics.rdma != floor.rdma
        or "nics" not in profile.uses
        or gpus in (0, "detect")
    ):
        return None
    assert isinstance(gpus, int)
    shares = {"nics": nics.count, "nic": 1, "gpu": nics.count / gpus}
    return _gbytes(nics, shares[floor.of])


def _gbytes(nics: Nics, share: float) -> tuple[float, float, str]:
    """Return the rates, in GB/s, of `share` times one NIC, and their source."""
    line_rate = nics.gbps * share / 8
    reachable = (nics.reachable_gbps or nics.gbps) * share / 8
    return reachable, line_rate, nics.source
