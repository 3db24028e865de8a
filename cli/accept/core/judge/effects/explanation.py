"""Declare what the effects model returns: parts, their effects, and what remains open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from accept.core.verdict import SuspectKind


@dataclass(frozen=True, kw_only=True, order=True)
class Part:
    """Something that executions exercise and in which a fault can be."""

    kind: SuspectKind
    #: The host of a node, GPU or NIC; the two of a link; those behind a switch or leaf; the
    #: smaller side of a border; none for a rail or the fabric.
    hosts: tuple[str, ...] = ()
    #: The hosts on the other side of a border.
    others: tuple[str, ...] = ()
    #: GPUs: that of a GPU or rail, those that share a NIC, those of a leaf, those of a node that
    #: always took part together.
    gpus: tuple[int, ...] = ()
    #: The name of a NIC, if it is known.
    nic: str | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Return its NIC, or its GPUs; none for a node."""
        if self.kind is SuspectKind.NODE:
            return ()
        return (self.nic,) if self.nic else tuple(map(str, self.gpus))

    @property
    def device(self) -> str | None:
        """Return the device as suspects name it: a NIC, or the lowest GPU."""
        return next(iter(self.devices), None)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The loss by a part in one population, as shares of the normal value."""

    population: str
    #: The loss with its 95 % bounds; 1.0: every execution failed.
    loss: float
    low: float
    high: float
    #: Executions that exercise the part.
    executions: int
    #: The same for pairs of hosts (or other groups of hosts).
    pairs_hit: int
    pairs: int
    #: Number of hit executions that failed.
    failures: int


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A part that explains losses, with the evidence."""

    part: Part
    #: One for each population in which it loses anything, largest loss first.
    effects: tuple[Effect, ...]
    #: Log of the odds against chance, after the prices of all alternatives; above 0, it would
    #: accuse in fewer than one of a thousand healthy clusters.
    odds: float
    #: It shows in only some of the executions that exercise it.
    intermittent: bool = False
    #: Indexes of the executions that it explains, and of all that exercise it in these populations.
    hits: tuple[int, ...] = ()
    covered: tuple[int, ...] = ()
    #: Pairs (or other groups of hosts) hit, and all that exercise it, over all populations.
    pairs_hit: int = 0
    pairs: int = 0
    #: The same counts for all pairs that do not exercise it and that nothing else explains.
    other_hit: int = 0
    other_pairs: int = 0
    #: Partners in its bad pairs that were good with a third host.
    cleared: tuple[str, ...] = ()
    #: Parts that explain the same executions about as well.
    indistinguishable: tuple[Part, ...] = ()
    #: Distance between hosts explains it as well, so nothing is at fault.
    only_distance: bool = False


@dataclass(frozen=True, kw_only=True)
class SlowWave:
    """A wave that was slow for everybody: the time is the reason."""

    step: str
    wave: int
    effects: tuple[Effect, ...]
    hits: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Blocks of hosts that are near each other, and what the distance between them costs."""

    blocks: tuple[frozenset[str], ...]
    #: Population -> share of the normal value.
    losses: Mapping[str, float]
    #: Indexes of the executions between blocks.
    far: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OpenPair:
    """Hosts with executions that collapsed and that no part explains: a pair, or a larger group."""

    hosts: tuple[str, ...]
    #: Number of their logs with a collapse, and of all their logs that nothing explains.
    bad: int
    logs: int
    #: Indexes of the executions that collapsed.
    hits: tuple[int, ...]


#: A host is in doubt if it is bad with more than this probability.
_DOUBTED = 0.05


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A part that is neither accepted nor excluded, with its probability."""

    part: Part
    probability: float
    #: It would show in only some of the executions that exercise it.
    intermittent: bool = False
    #: The part at fault whose executions it explains about as well.
    instead_of: Part | None = None


def hosts_in_doubt(doubts: Sequence[Doubt]) -> dict[str, Doubt]:
    """Return the hosts in doubt, each with the first of its doubts: the most probable one."""
    single = [one for one in doubts if len(one.part.hosts) == 1 and one.probability > _DOUBTED]
    return {one.part.hosts[0]: one for one in reversed(single)}


@dataclass(frozen=True, kw_only=True)
class Normal:
    """The value that healthy executions of one population reach, and its noise."""

    value: float
    #: Width of their noise, as a share.
    sigma: float
    #: Number of measured values, and of hosts.
    values: int
    hosts: int


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The parts that explain losses and failures, and the rest."""

    #: Parts at fault, with links and the fabric, strongest first.
    faults: tuple[Fault, ...] = ()
    #: Groups of hosts that are slower with others only because of the distance.
    apart: tuple[Fault, ...] = ()
    waves: tuple[SlowWave, ...] = ()
    distance: Distance | None = None
    open_pairs: tuple[OpenPair, ...] = ()
    #: What follow-up waves should separate, most probable first.
    doubtful: tuple[Doubt, ...] = ()
    #: Hosts that were measured only together with bad parts, so nothing is known about them.
    unknown: tuple[str, ...] = ()
    #: Population -> what its healthy executions reach.
    normal: Mapping[str, Normal] = field(default_factory=dict)
    #: Share of pairs that are bad without a known reason.
    background: float = 0.0
