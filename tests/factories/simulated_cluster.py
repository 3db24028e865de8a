"""Simulated clusters, as a stand-in for networks of thousands of nodes.

A world is a list of effects. Each effect multiplies the speed of a pair; noise comes on top. The
simulation covers the results of pair rounds, not NCCL, switches or routes. Schedule, attribution
and repetitions are those of the product.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from accept.core.causes import Cause
from accept.core.groups import Wave, pair_rounds
from accept.core.judge.blame import Attribution, Blamed, attribute
from accept.core.judge.pair_results import network_faults
from accept.core.judge.pairs import Gpus, Measurement, Population, events
from accept.core.judge.remeasure import next_wave
from accept.core.judge.robust_stats import MOST_REPEATS, rounds_for
from accept.core.judge.topology import Blocks, find_blocks, near_and_far
from accept.core.model import SuspectKind

#: `normal`; `heavy`: Student's t with three degrees of freedom; `switch`: half of the variance is
#: shared by the hosts of a switch in a round. All have the same standard deviation.
Law = Literal["normal", "heavy", "switch"]
LAWS: tuple[Law, ...] = ("normal", "heavy", "switch")
_SWITCH = 32
#: The noise in the machine files of GPU nodes, as a share.
FLOOR = 0.01
#: Pairs that a fault slows are below this.
_NORMAL = 90.0
#: Kinds that name no device.
_WITHOUT_DEVICE = (SuspectKind.NODE, SuspectKind.BORDER, SuspectKind.SWITCH)


class Meeting(NamedTuple):
    """Two hosts that are measured together."""

    hosts: tuple[int, int]
    gpus: tuple[Gpus, Gpus]
    wave: int
    alone: bool
    chance: random.Random


#: The share of the normal speed that a pair keeps; 0: it fails.
Effect = Callable[[Meeting], float]


def _key(meeting: Meeting) -> tuple[int, int]:
    one, other = sorted(meeting.hosts)
    return one, other


def slow_nodes(bad: Collection[int], factor: float, often: float = 1.0) -> Effect:
    """Slow all pairs of some hosts, or a share `often` of their pairs."""

    def effect(meeting: Meeting) -> float:
        hit = any(h in bad and meeting.chance.random() < often for h in meeting.hosts)
        return factor if hit else 1.0

    return effect


def bad_pairs(share: float, factor: float, seed: int) -> Effect:
    """Slow a share of all pairs, always the same ones: bad links and routes."""

    def effect(meeting: Meeting) -> float:
        one, other = _key(meeting)
        return factor if random.Random(f"{seed}:{one}:{other}").random() < share else 1.0

    return effect


def collisions(share: float, factor: float) -> Effect:
    """Slow a share of all measurements while others run: flows that share a link by chance."""

    def effect(meeting: Meeting) -> float:
        return factor if not meeting.alone and meeting.chance.random() < share else 1.0

    return effect


def border(group: Collection[int], factor: float) -> Effect:
    """Slow the pairs between a group and the other hosts."""

    def effect(meeting: Meeting) -> float:
        one, other = meeting.hosts
        return factor if (one in group) is not (other in group) else 1.0

    return effect


def leaf(group: Collection[int], gpu: int, factor: float) -> Effect:
    """Slow the traffic of one GPU of the hosts of a group that leaves the group's rail."""

    def effect(meeting: Meeting) -> float:
        uses = [
            host in group and (gpus is None or gpu in gpus)
            for host, gpus in zip(meeting.hosts, meeting.gpus, strict=True)
        ]
        return factor if any(uses) and not all(uses) else 1.0

    return effect


def slow_rail(gpu: int, factor: float) -> Effect:
    """Slow all traffic through one local rank."""

    def effect(meeting: Meeting) -> float:
        used = any(gpus is None or gpu in gpus for gpus in meeting.gpus)
        return factor if used else 1.0

    return effect


def slow_gpus(host: int, numbers: Collection[int], factor: float) -> Effect:
    """Slow the pairs of a host in which any of some GPUs takes part: a GPU, or a NIC of several."""

    def effect(meeting: Meeting) -> float:
        used = any(
            h == host and (gpus is None or not gpus.isdisjoint(numbers))
            for h, gpus in zip(meeting.hosts, meeting.gpus, strict=True)
        )
        return factor if used else 1.0

    return effect


def distance(size: int, loss: float) -> Effect:
    """Slow the pairs between blocks of `size` neighbors."""

    def effect(meeting: Meeting) -> float:
        one, other = meeting.hosts
        return 1.0 if one // size == other // size else 1.0 - loss

    return effect


def disturbed(waves: Collection[int], factor: float) -> Effect:
    """Slow some waves for everybody."""
    return lambda meeting: factor if meeting.wave in waves else 1.0


def fixed_gpus(host: int, number: int) -> frozenset[int]:
    """Return the GPUs of a host that a scheduler gives to the whole run."""
    return frozenset(random.Random(f"GPUs of {host}").sample(range(8), number))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault other than a whole node, as an ideal judge names it: its kind and its members."""

    kinds: frozenset[SuspectKind]
    #: Any of these sets of hosts: a border has two sides.
    members: tuple[frozenset[int], ...]
    #: Any of these local ranks; empty: none.
    devices: frozenset[str] = frozenset()

    def is_named_by(self, one: Blamed, hidden: Collection[int] = ()) -> bool:
        """Return True if a suspect has the right kind, members and device.

        `hidden`: members that may be missing, because the measurements do not show them.
        """
        hosts = {int(host[1:]) for host in one.hosts}
        device = one.device in self.devices or (one.device is None and not self._needs_device(one))
        return (
            one.kind in self.kinds
            and device
            and any(hosts <= side <= hosts.union(hidden) for side in self.members)
        )

    def _needs_device(self, one: Blamed) -> bool:
        return bool(self.devices) and one.kind not in _WITHOUT_DEVICE

    def hidden(self, measured: Iterable[Measurement]) -> set[int]:
        """Return the hosts with fewer than two slow pairs through a device of this fault."""
        partners: dict[int, set[str]] = {}
        for one in measured:
            for index, gpus in enumerate(one.gpus):
                uses = gpus is None or not self.devices.isdisjoint(map(str, gpus))
                if uses and (one.value or 0.0) < _NORMAL:
                    host = int(one.hosts[index][1:])
                    partners.setdefault(host, set()).add(one.hosts[1 - index])
        members = {host for side in self.members for host in side}
        return {host for host in members if len(partners.get(host, ())) <= 1}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts, the effects on their pairs, and the noise of a pair."""

    count: int
    effects: tuple[Effect, ...] = ()
    noise: float = 0.01
    law: Law = "normal"
    #: GPUs that take part on each host, different ones in each pair, of 8; None: all.
    gpus: int | None = None
    #: Each host has the same GPUs in all of its pairs.
    fixed: bool = False
    #: Seed of the GPUs that a scheduler gives to each pair.
    schedule: str = ""
    #: The faults that an ideal judge names: nodes by index, and others.
    bad: frozenset[int] = frozenset()
    faults: tuple[Fault, ...] = ()
    #: Pairs are slow that no host or group explains.
    flaky: bool = False
    chance: random.Random = field(default_factory=random.Random)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts."""
        return tuple(f"h{i}" for i in range(self.count))

    def measure(self, wave: Wave, number: int, *, repeated: bool = False) -> list[Measurement]:
        """Measure each pair of a wave; healthy pairs reach 100."""
        shared: dict[int, float] = {}
        result = []
        for group in wave:
            one, other = (int(host[1:]) for host in group.hosts)
            gpus = (self._gpus(one, number), self._gpus(other, number))
            meeting = Meeting((one, other), gpus, number, len(wave) == 1, self.chance)
            factor = self.factor(meeting)
            value = 100 * factor * math.exp(self.noise_of(meeting.hosts, shared))
            result.append(
                Measurement(
                    group.hosts,
                    value if factor > 0 else None,
                    None if factor > 0 else Cause.TIMED_OUT,
                    gpus=gpus,
                    step="pairs",
                    wave=number,
                    check="all-gather",
                    alone=len(wave) == 1,
                    repeated=repeated,
                )
            )
        return result

    def factor(self, meeting: Meeting) -> float:
        """Return the share of the normal speed that a pair keeps."""
        return math.prod(effect(meeting) for effect in self.effects)

    def _gpus(self, host: int, wave: int) -> Gpus:
        if self.gpus is None:
            return None
        if self.fixed:
            return fixed_gpus(host, self.gpus)
        chance = random.Random(f"{self.schedule}:{host}:{wave}")
        return frozenset(chance.sample(range(8), self.gpus))

    def noise_of(self, hosts: tuple[int, int], shared: dict[int, float]) -> float:
        """Return the log of the noise of a pair; `shared` is that of the switches in this wave."""
        chance, sigma = self.chance, self.noise
        if self.law == "heavy":
            square = sum(chance.gauss(0, 1) ** 2 for _ in range(3))
            return sigma * chance.gauss(0, 1) / math.sqrt(square)
        if self.law == "normal":
            return chance.gauss(0, sigma)
        total = chance.gauss(0, sigma * math.sqrt(0.5))
        for host in hosts:
            switch = host // _SWITCH
            if switch not in shared:
                shared[switch] = chance.gauss(0, sigma * 0.5)
            total += shared[switch]
        return total


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of an acceptance of a simulated cluster."""

    rounds: int
    again: int
    attribution: Attribution
    measured: tuple[Measurement, ...]

    @property
    def blamed(self) -> tuple[Blamed, ...]:
        """Return everything that is blamed, also the fabric and links."""
        return (*self.attribution.blamed, *network_faults(self.attribution))

    def named(self, *kinds: SuspectKind) -> set[int]:
        """Return the hosts that are accused as one of these kinds (none given: node or GPU)."""
        kinds = kinds or (SuspectKind.NODE, SuspectKind.GPU)
        found = self.attribution.blamed
        return {int(host[1:]) for one in found if one.kind in kinds for host in one.hosts}

    @property
    def rejected(self) -> bool:
        """Return True if anything is blamed."""
        return bool(self.blamed)


def judged(
    measurements: Sequence[Measurement],
    noise: float = FLOOR,
    *,
    bound: float | None = None,
    places: Mapping[str, str] | None = None,
) -> tuple[Attribution, Blocks]:
    """Return the attribution of the measurements of a cluster, and the blocks of near hosts."""
    population = Population(measurements=tuple(measurements), noise=noise, bound=bound)
    blocks = find_blocks([population], places or {})
    return attribute(events(near_and_far(population, blocks)), places=places), blocks


def accept(one: Cluster, rounds: int | None = None, *, seed: int = 1) -> Outcome:
    """Simulate rounds of pairs and the measurements that follow them in a run.

    `seed` is that of the schedule.
    """
    count = rounds or rounds_for(one.count, FLOOR)
    waves = pair_rounds(one.hosts, rounds=count, seed=seed)
    found = [m for number, wave in enumerate(waves) for m in one.measure(wave, number)]
    again = 0
    attribution, blocks = judged(found)
    while wave := next_wave(
        attribution,
        one.hosts,
        {frozenset(m.hosts) for m in found},
        blocks=blocks,
        done=again,
        limit=MOST_REPEATS,
        seed=seed,
    ):
        found += one.measure(wave, len(waves) + again, repeated=True)
        again += 1
        attribution, blocks = judged(found)
    return Outcome(rounds=len(waves), again=again, attribution=attribution, measured=tuple(found))


def rate(events: int, trials: int) -> tuple[float, float]:
    """Return a rate's 95 % bounds (Wilson, 1927: Probable inference, the law of succession)."""
    if not trials:
        return 0.0, 1.0
    z = 1.96
    share = events / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials)
    half *= math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)
