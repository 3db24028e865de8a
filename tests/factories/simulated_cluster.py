"""Simulated clusters, as a stand-in for networks of thousands of nodes.

A world is a list of effects. Each effect multiplies the speed of a group; noise comes on top. The
simulation covers the results of pairs and of single hosts, not NCCL, switches or routes. It knows
nothing about the judge: `simulated_runs` turns its measurements into the records of a run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from accept.core.groups import Group, Wave
from accept.core.plan import GroupKind
from accept.core.verdict import Suspect, SuspectKind

#: `normal`; `heavy`: Student's t with three degrees of freedom; `switch`: half of the variance is
#: shared by the hosts of a switch in a round. All have the same standard deviation.
Law = Literal["normal", "heavy", "switch"]
_SWITCH = 32
#: Executions that a fault slows are below this share of the normal speed.
_NORMAL = 0.9
#: Kinds that name no device.
_WITHOUT_DEVICE = (SuspectKind.NODE, SuspectKind.BORDER, SuspectKind.SWITCH)

#: Numbers of the GPUs of a host that take part; None: all of them.
Gpus = frozenset[int] | None


class Meeting(NamedTuple):
    """Two hosts that are measured together, or one host alone."""

    hosts: tuple[int, ...]
    gpus: tuple[Gpus, ...]
    wave: int
    alone: bool
    chance: random.Random
    check: str = ""


#: The share of the normal speed that a group keeps; 0: it fails.
Effect = Callable[[Meeting], float]


def slow_nodes(bad: Collection[int], factor: float, often: float = 1.0) -> Effect:
    """Slow everything that some hosts do, or a share `often` of it."""

    def effect(meeting: Meeting) -> float:
        hit = any(h in bad and meeting.chance.random() < often for h in meeting.hosts)
        return factor if hit else 1.0

    return effect


def bad_pairs(share: float, factor: float, seed: int) -> Effect:
    """Slow a share of all pairs, always the same ones: bad links and routes."""

    def effect(meeting: Meeting) -> float:
        pair = ":".join(map(str, sorted(meeting.hosts)))
        is_bad = random.Random(f"{seed}:{pair}").random() < share
        return factor if is_bad and len(meeting.hosts) > 1 else 1.0

    return effect


def slow_link(pair: Collection[int], factor: float) -> Effect:
    """Slow the measurements of one pair."""
    return lambda meeting: factor if set(meeting.hosts) == set(pair) else 1.0


def collisions(share: float, factor: float) -> Effect:
    """Slow a share of all measurements while others run: flows that share a link by chance."""

    def effect(meeting: Meeting) -> float:
        crosses = len(meeting.hosts) > 1 and not meeting.alone
        return factor if crosses and meeting.chance.random() < share else 1.0

    return effect


def border(group: Collection[int], factor: float) -> Effect:
    """Slow the pairs between a group and the other hosts."""

    def effect(meeting: Meeting) -> float:
        return factor if len({host in group for host in meeting.hosts}) > 1 else 1.0

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
        return factor if used and len(meeting.hosts) > 1 else 1.0

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


def shared_nic(host: int, one: int, other: int, factor: float) -> Effect:
    """Slow the pairs of a host in which two GPUs take part that share the NIC of one of them."""

    def effect(meeting: Meeting) -> float:
        both = any(
            h == host and (gpus is None or gpus >= {one, other})
            for h, gpus in zip(meeting.hosts, meeting.gpus, strict=True)
        )
        return factor if both and len(meeting.hosts) > 1 else 1.0

    return effect


def only(effect: Effect, *, check: str = "", gpus: int | None = 0) -> Effect:
    """Limit an effect to one collective, or to groups with a number of GPUs on each host."""

    def limited(meeting: Meeting) -> float:
        own = meeting.gpus[0]
        number = None if own is None else len(own)
        is_other = (check and meeting.check != check) or (gpus != 0 and number != gpus)
        return 1.0 if is_other else effect(meeting)

    return limited


def distance(size: int, loss: float) -> Effect:
    """Slow the pairs between blocks of `size` neighbors."""

    def effect(meeting: Meeting) -> float:
        return 1.0 if len({host // size for host in meeting.hosts}) == 1 else 1.0 - loss

    return effect


def disturbed(waves: Collection[int], factor: float) -> Effect:
    """Slow some waves for everybody."""
    return lambda meeting: factor if meeting.wave in waves else 1.0


def fixed_gpus(host: int, number: int) -> frozenset[int]:
    """Return the GPUs of a host that a scheduler gives to the whole run."""
    return frozenset(random.Random(f"GPUs of {host}").sample(range(8), number))


class Measured(NamedTuple):
    """One execution: the share of the normal speed that each check reached; None: it failed."""

    hosts: tuple[str, ...]
    gpus: tuple[Gpus, ...]
    shares: Mapping[str, float | None]

    @property
    def worst(self) -> float:
        """Return the lowest share, 0 if a check failed."""
        return min(share or 0.0 for share in self.shares.values())


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault other than a whole node, as an ideal judge names it: its kind and its members."""

    kinds: frozenset[SuspectKind]
    #: Any of these sets of hosts: a border has two sides.
    members: tuple[frozenset[int], ...]
    #: Any of these local ranks; empty: none.
    devices: frozenset[str] = frozenset()

    def is_named_by(self, one: Suspect, hidden: Collection[int] = ()) -> bool:
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

    def _needs_device(self, one: Suspect) -> bool:
        return bool(self.devices) and one.kind not in _WITHOUT_DEVICE

    def hidden(self, measured: Iterable[Measured]) -> set[int]:
        """Return the hosts with fewer than two slow pairs through a device of this fault."""
        partners: dict[int, set[str]] = {}
        for one in measured:
            for index, gpus in enumerate(one.gpus):
                uses = gpus is None or not self.devices.isdisjoint(map(str, gpus))
                if uses and len(one.hosts) > 1 and one.worst < _NORMAL:
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
    checks: tuple[str, ...] = ("all-reduce",)
    #: GPUs that take part on each host, different ones in each pair, of 8; None: all.
    gpus: int | None = None
    #: What is measured after the pairs, each with its number of GPUs.
    more: tuple[tuple[GroupKind, int | None], ...] = ()
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

    def measure(self, wave: Wave, number: int, gpus: int | None = 0) -> list[Measured]:
        """Measure each group of a wave, with this number of GPUs instead of that of the cluster."""
        shared: dict[tuple[str, int], float] = {}
        return [
            self._measure(
                group, number, self.gpus if gpus == 0 else gpus, shared, alone=len(wave) == 1
            )
            for group in wave
        ]

    def _measure(
        self,
        group: Group,
        wave: int,
        gpus: int | None,
        shared: dict[tuple[str, int], float],
        *,
        alone: bool,
    ) -> Measured:
        numbers = tuple(int(host[1:]) for host in group.hosts)
        used = tuple(self._gpus(host, wave, gpus) for host in numbers)
        # What happens by chance happens to all collectives of an execution.
        seed = self.chance.random()
        shares: dict[str, float | None] = {}
        for check in self.checks:
            meeting = Meeting(numbers, used, wave, alone, random.Random(seed), check)
            factor = self.factor(meeting)
            noise = math.exp(self.noise_of(numbers, shared, check))
            shares[check] = factor * noise if factor > 0 else None
        return Measured(group.hosts, used, shares)

    def factor(self, meeting: Meeting) -> float:
        """Return the share of the normal speed that a pair keeps."""
        return math.prod(effect(meeting) for effect in self.effects)

    def _gpus(self, host: int, wave: int, number: int | None) -> Gpus:
        if number is None:
            return None
        if self.fixed:
            return fixed_gpus(host, number)
        chance = random.Random(f"{self.schedule}:{host}:{wave}")
        return frozenset(chance.sample(range(8), number))

    def noise_of(
        self, hosts: tuple[int, ...], shared: dict[tuple[str, int], float], check: str = ""
    ) -> float:
        """Return the log of the noise of a group; `shared` is that of the switches in this wave."""
        chance, sigma = self.chance, self.noise
        if self.law == "heavy":
            square = sum(chance.gauss(0, 1) ** 2 for _ in range(3))
            return sigma * chance.gauss(0, 1) / math.sqrt(square)
        if self.law == "normal":
            return chance.gauss(0, sigma)
        total = chance.gauss(0, sigma * math.sqrt(0.5))
        for host in hosts:
            switch = host // _SWITCH
            if (check, switch) not in shared:
                shared[check, switch] = chance.gauss(0, sigma * 0.5)
            total += shared[check, switch]
        return total


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
