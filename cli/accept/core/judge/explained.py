"""Query the executions of all checks: their populations, and what explains their losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.effects.distances import LIMIT
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.explanation import Explanation, Normal
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.rounds import FOUND, rounds_for, slowdown_found
from accept.core.judge.values import SIGMAS, is_bad, limit_of
from accept.core.plan import Step
from accept.core.table import BANDWIDTH, Measure
from accept.core.verdict import Detectable, Suspect

#: A smaller difference from normal, as a share, is not reported if distance may explain it.
_LEAST_GAP = 0.01
#: Values are not comparable if their sigma is more than this many times the noise.
UNEVEN = 3.0


class Population(NamedTuple):
    """Executions that are equally fast on healthy hosts have this in common."""

    check: str
    step: str
    #: Number of hosts.
    nodes: int
    #: Number of GPUs of each host; 0: all, or unknown.
    gpus: tuple[int, ...] = ()
    #: True if the hosts are in one NVLink domain.
    together: bool = False
    #: True for the step of pairs of hosts, planned in rounds.
    of_rounds: bool = False
    #: What is compared.
    measure: Measure = BANDWIDTH

    @property
    def key(self) -> str:
        """Return the text by which the model knows it."""
        return f"{self.check} {self.step} {self.nodes} {self.gpus} {self.together}"


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Executions, and what explains their losses and failures."""

    executions: tuple[Execution, ...] = ()
    #: Index of an execution -> the cause of its failure.
    causes: Mapping[int, Cause] = field(default_factory=dict)
    populations: Mapping[str, Population] = field(default_factory=dict)
    explanation: Explanation = field(default_factory=Explanation)
    #: The lowest sigma of healthy values, as a share.
    noise: float = 0.01

    def logs(self, indexes: Iterable[int]) -> Iterator[str]:
        """Yield the log of each of these executions."""
        return (self.executions[i].log for i in indexes)

    def of(self, check: str, step: Step) -> list[int]:
        """Return the indexes of the executions of a step."""
        keys = {
            k for k, one in self.populations.items() if (one.check, one.step) == (check, step.id)
        }
        return [i for i, one in enumerate(self.executions) if one.population in keys]

    def normal(self, check: str, step: Step) -> Normal | None:
        """Return what healthy executions of a step reach; None if they are too few."""
        found = (
            self.explanation.normal.get(key)
            for key, one in self.populations.items()
            if (one.check, one.step) == (check, step.id)
        )
        known = [one for one in found if one is not None and one.hosts >= FEWEST]
        return max(known, key=lambda one: one.values, default=None)

    def is_uneven(self, check: str, step: Step) -> bool:
        """Return True if slow and normal executions of a step cannot be distinguished.

        Most are slow without a reason, or the values are much wider than the noise. If most values
        are slow, the others look fast.
        """
        own = [i for i in self.of(check, step) if i not in self.explained]
        normal = self.normal(check, step)
        if normal is None:
            return False
        if any(len(self.executions[i].hosts) > 1 for i in own):
            # Between hosts, distance may cost that much, although the pairs show no blocks.
            lowest = normal.value * (1 - LIMIT)
            return 2 * sum(is_bad(self.executions[i].value, lowest) for i in own) > len(own)
        slow = sum(self.is_slow(i) for i in own)
        highest = 2 * normal.value - limit_of(normal)
        fast = sum((self.executions[i].value or 0.0) > highest for i in own)
        return 2 * slow > len(own) or 3 * fast >= len(own) > 0 or normal.sigma > UNEVEN * self.noise

    @cached_property
    def explained(self) -> frozenset[int]:
        """Return the executions that a fault, a distance or a slow wave explains."""
        found = self.explanation
        hits = [part.hits for part in (*found.faults, *found.apart)]
        hits += [wave.hits for wave in found.waves]
        return frozenset(index for own in hits for index in own)

    def slow_among(self, own: Sequence[int]) -> list[int]:
        """Return the slow ones of repetitions; if peers are too few, compared with the others."""
        normal = self.explanation.normal.get(self.executions[own[0]].population)
        if normal is not None and normal.hosts >= FEWEST:
            return [i for i in own if self.is_slow(i)]
        values = {i: self.executions[i].value or 0.0 for i in own}
        lowest = median(values.values()) * (1 - SIGMAS * self.noise)
        return [i for i, value in values.items() if is_bad(value, lowest)]

    def is_slow(self, index: int) -> bool:
        """Return True if an execution failed, or is slower than noise and distance explain."""
        one = self.executions[index]
        normal, lowest = self.explanation.normal.get(one.population), None
        if normal is not None and normal.hosts >= FEWEST:
            lowest = (1 - self._far(index)) * limit_of(normal)
        return is_bad(one.value, lowest)

    def is_lower(self, index: int) -> bool:
        """Return True if an execution is slower than normal by enough to report it."""
        one = self.executions[index]
        normal = self.explanation.normal.get(one.population)
        lowest = normal.value * (1 - _LEAST_GAP) if normal else None
        return one.value is not None and is_bad(one.value, lowest)

    def is_far(self, index: int) -> bool:
        """Return True if an execution is slower, but no more than distance may explain."""
        apart = index in self._apart or self._far(index) > 0
        return apart and self.is_lower(index) and not self.is_affected(index)

    def is_affected(self, index: int) -> bool:
        """Return True if an execution is slow, or if a fault explains what it lost."""
        return index in self._faulty or self.is_slow(index)

    def share(self, index: int) -> float | None:
        """Return a value as a share of what healthy executions reach; None: unknown or failed."""
        one = self.executions[index]
        normal = self.explanation.normal.get(one.population)
        known = one.value is not None and normal is not None and normal.value > 0
        return one.value / normal.value if known and one.value and normal else None

    def compared(self, indexes: Iterable[int], population: str = "") -> str:
        """Return the values of executions beside what is normal; empty if that is unknown.

        Values of other populations are left out; by default, of all but the slowest execution's.
        """
        shares = {i: share for i in indexes if (share := self.share(i)) is not None}
        if shares and not population:
            population = self.executions[min(shares, key=lambda i: (shares[i], i))].population
        own = [one for i in shares if (one := self.executions[i]).population == population]
        normal, known = self.explanation.normal.get(population), self.populations.get(population)
        if not own or normal is None or known is None:
            return ""
        return known.measure.compared([one.value or 0.0 for one in own], normal.value)

    @cached_property
    def _faulty(self) -> frozenset[int]:
        return frozenset(index for one in self.explanation.faults for index in one.hits)

    @cached_property
    def _apart(self) -> frozenset[int]:
        return frozenset(index for one in self.explanation.apart for index in one.hits)

    def _far(self, index: int) -> float:
        distance = self.explanation.distance
        if distance is None or index not in distance.far:
            return 0.0
        return distance.losses.get(self.executions[index].population, 0.0)


@dataclass(frozen=True, kw_only=True)
class Effects:
    """An explanation of the results of all checks together: their speed, and wrong data."""

    speed: Explained = field(default_factory=Explained)
    wrong: Explained = field(default_factory=Explained)
    network: Network = field(default_factory=Network)
    #: The hosts in the run's order.
    order: tuple[str, ...] = ()
    #: The suspects that were described already: each check and step asks for them again.
    described: dict[tuple[bool, int], Suspect] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def both(self) -> tuple[Explained, Explained]:
        """Return wrong data first, because it comes first in every verdict."""
        return self.wrong, self.speed

    @property
    def nics(self) -> Mapping[str, Mapping[int, frozenset[str]]]:
        """Return the NICs that NCCL used for each GPU of each host."""
        return self.network.nics

    def in_order(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Return hosts in the run's order."""
        order = {host: index for index, host in enumerate(self.order)}
        return tuple(sorted(hosts, key=lambda host: (order.get(host, len(order)), host)))

    def detectable(self) -> Detectable | None:
        """Return the smallest slowdown of a node that all checks of pairs would have shown.

        Return None if there were fewer rounds than a node needs, or too few hosts.
        """
        hosts, worst = len(self.order), []
        planned: dict[str, int] = {}
        for one in self.speed.executions:
            if self.speed.populations[one.population].of_rounds and not one.repeated:
                planned[one.population] = planned.get(one.population, 0) + 1
        for key, pairs in planned.items():
            normal, noise = self.speed.explanation.normal.get(key), self.network.noise
            enough = hosts > 1 and noise > 0 and 2 * pairs >= hosts * rounds_for(hosts, noise)
            found = slowdown_found(normal.sigma, hosts) if normal and enough else None
            if found is None:
                return None
            worst.append(found)
        return Detectable(slowdown=max(worst), probability=FOUND) if worst else None
