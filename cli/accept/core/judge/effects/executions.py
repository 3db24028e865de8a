"""Declare what the effects model reads: executions, and what is known about the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accept.core.text import TextEnum


class Flow(TextEnum):
    """The path of data between the GPUs of hosts, by how NCCL executes a collective."""

    #: Each GPU exchanges data with the same GPU of other hosts, as far as these use it.
    RAILS = "rails"
    #: Each GPU sends to each GPU. What is for GPU d leaves by the sender's own GPU d (PXN).
    EVERY = "every"
    #: The last GPU of a host sends to the first one of the next host.
    RING = "ring"


class Execution(NamedTuple):
    """One value that some hosts reached together, or their failure."""

    hosts: tuple[str, ...]
    #: Key of the executions that are equally fast on healthy hosts: step, collective, size,
    #: number of GPUs, and whether the hosts are in one NVLink domain.
    population: str
    #: Higher is better; None: it failed.
    value: float | None
    #: The GPUs of each host that took part, in the order of ranks; () or None: all, or unknown.
    gpus: tuple[tuple[int, ...] | None, ...] = ()
    flow: Flow = Flow.RAILS
    #: Path of the raw log. Executions in one log share their moment.
    log: str = ""
    #: The step, and the number of the wave in it: executions at the same time.
    wave: tuple[str, int] = ("", 0)
    #: It followed the planned waves, because something looked bad.
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class Network:
    """The known properties of the hosts and their network, apart from measurements."""

    #: Host -> its place, such as "row/rack/host". Groups of hosts with a common place are
    #: candidates, not truths.
    places: Mapping[str, str] = field(default_factory=dict)
    #: NVLink domains: groups of hosts that are candidates, too.
    domains: tuple[frozenset[str], ...] = ()
    #: Host -> GPU -> the NICs that it uses.
    nics: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    #: True if NICs were measured without GPUs, and the GPUs of an execution are their numbers.
    of_nics: bool = False
    #: The lowest sigma of healthy values, as a share.
    noise: float = 0.01
    #: Population -> the value that healthy executions reach at least.
    bounds: Mapping[str, float] = field(default_factory=dict)
