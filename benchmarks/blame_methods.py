"""Reimplement other methods that name bad nodes, from their public code or documentation.

All of them get the correct speed as input, which is unknown on a real cluster: a group of hosts is
slow below `_SLOW`, halfway between a healthy group and one that is 6 % slow. A group test has the
speed of its slowest ring edge.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, stdev

from tests.factories.simulated_cluster import Cluster, Meeting

from accept.core.groups import Group, pair_rounds

#: Healthy pairs reach 100.
_SLOW = 97.0
#: Rounds after which the methods that repeat stop.
_MOST_ROUNDS = 6
#: Sizes of the groups in which CRE and bisection start.
_PAIR = 2
#: Together: share of the values at each end that the baseline leaves out, lowest sigma as a share
#: of the mean, and the z-score of a suspect.
_TRIMMED, _LOWEST_SIGMA, _SUSPECT = 0.2, 0.005, -2.0

Hosts = tuple[str, ...]
#: The named nodes, and the number of rounds.
Result = tuple[set[int], int]
Method = Callable[[Cluster], Result]


@dataclass
class _Rounds:
    """Measure groups of hosts in rounds; each host is in one group at a time."""

    cluster: Cluster
    #: Random numbers for the schedule.
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    count: int = 0

    def paired(self) -> list[Hosts]:
        """Return all hosts in random pairs."""
        hosts = list(self.cluster.hosts)
        self.chance.shuffle(hosts)
        return list(zip(hosts[::2], hosts[1::2], strict=False))

    def measure(self, groups: Sequence[Hosts]) -> dict[Hosts, float]:
        """Return the value of each group, in one round; 0 if it failed."""
        if all(len(group) == _PAIR for group in groups):
            wave = tuple(Group(hosts=group) for group in groups)
            samples = self.cluster.measure(wave, self.count)
            self.count += 1
            return {sample.hosts: 100 * sample.worst for sample in samples}
        result = {}
        shared: dict[tuple[str, int], float] = {}
        for group in groups:
            numbers = [int(host[1:]) for host in group]
            ring = [*pairwise(numbers), (numbers[-1], numbers[0])]
            factor = min(
                self.cluster.factor(
                    Meeting(edge, (None, None), self.count, len(groups) == 1, self.cluster.chance)
                )
                for edge in ring
            )
            noise = self.cluster.noise_of(ring[0], shared)
            result[group] = 100 * factor * math.exp(noise)
        self.count += 1
        return result

    def with_good(self, suspects: Collection[str], good: Collection[str]) -> dict[str, float]:
        """Measure each suspect with a good host, in as many rounds as that takes."""
        values: dict[str, float] = {}
        waiting = sorted(suspects)
        while waiting and good:
            partners = sorted(good)
            self.chance.shuffle(partners)
            now, waiting = waiting[: len(partners)], waiting[len(partners) :]
            measured = self.measure(list(zip(now, partners, strict=False)))
            values.update({pair[0]: value for pair, value in measured.items()})
        return values

    def result(self, named: Iterable[str]) -> Result:
        return {int(host[1:]) for host in named}, self.count


def chs(cluster: Cluster) -> Result:
    """Judge like Google's cluster-health-scanner: nodes of slow pairs meet nodes of good ones."""
    rounds = _Rounds(cluster)
    values = rounds.measure(rounds.paired())
    suspects = {host for pair, value in values.items() if value < _SLOW for host in pair}
    good = set(cluster.hosts) - suspects
    again = rounds.with_good(suspects, good) if good else dict.fromkeys(suspects, 0.0)
    return rounds.result({host for host, value in again.items() if value < _SLOW})


def two_partners(cluster: Cluster) -> Result:
    """Judge like Oracle: a node is bad if it is slow with two partners, which may be bad too."""
    rounds = _Rounds(cluster)
    #: Partners in the slow pairs of a host since its last good one.
    slow_with: dict[str, set[str]] = {}
    groups = rounds.paired()
    while groups and rounds.count < _MOST_ROUNDS:
        for pair, value in rounds.measure(groups).items():
            for host, other in (pair, pair[::-1]):
                if value < _SLOW:
                    slow_with.setdefault(host, set()).add(other)
                elif len(slow_with.get(host, ())) == 1:
                    del slow_with[host]
        groups = []
        free = list(cluster.hosts)
        rounds.chance.shuffle(free)
        for host in [host for host, met in slow_with.items() if len(met) == 1]:
            others = [o for o in free if o != host and o not in slow_with[host]]
            if host in free and others:
                groups.append((host, others[0]))
                free = [one for one in free if one not in groups[-1]]
    return rounds.result({host for host, met in slow_with.items() if len(met) > 1})


def cre(cluster: Cluster) -> Result:
    """Judge like NVIDIA CRE: about √N groups, halves of the slow ones, then a good partner."""
    rounds = _Rounds(cluster)
    hosts = cluster.hosts
    size = math.ceil(len(hosts) / math.ceil(math.sqrt(len(hosts))))
    groups = [hosts[i : i + size] for i in range(0, len(hosts), size)]
    groups = [group for group in groups if len(group) > 1]
    slow = [group for group, value in rounds.measure(groups).items() if value < _SLOW]
    good = set(hosts) - {host for group in slow for host in group}
    while any(len(group) > _PAIR for group in slow):
        halves = [h for group in slow for h in _halves(group)]
        values = rounds.measure(halves)
        good |= {host for half in halves if values[half] >= _SLOW for host in half}
        slow = [half for half in halves if values[half] < _SLOW]
    suspects = {host for group in slow for host in group}
    good -= suspects
    again = rounds.with_good(suspects, good) if good else dict.fromkeys(suspects, 0.0)
    return rounds.result({host for host, value in again.items() if value < _SLOW})


def _halves(hosts: Hosts) -> list[Hosts]:
    """Return both halves, of at least two hosts each; one host alone cannot be measured."""
    middle = len(hosts) // 2
    if len(hosts) <= _PAIR:
        return [hosts]
    return [hosts[:2], hosts[1:]] if middle < _PAIR else [hosts[:middle], hosts[middle:]]


def z_scores(cluster: Cluster) -> Result:
    """Judge like Together: a node is bad if z-scores call it slow, also with a good partner."""
    rounds = _Rounds(cluster)
    values = rounds.measure(rounds.paired())
    ordered = sorted(values.values())
    cut = int(_TRIMMED * len(ordered))
    baseline = ordered[cut : len(ordered) - cut] or ordered
    center = mean(baseline)
    spread = stdev(baseline) if len(baseline) > 1 else 0.0
    limit = center + _SUSPECT * max(spread, _LOWEST_SIGMA * center)
    suspects = {host for pair, value in values.items() if value < limit for host in pair}
    again = rounds.with_good(suspects, set(cluster.hosts) - suspects)
    return rounds.result({host for host, value in again.items() if value < limit})


def most_pairs_bad(number: int) -> Method:
    """Return the one-line rule: a node is bad if most of its pairs are slow."""

    def method(cluster: Cluster) -> Result:
        values_of, rounds = _values(cluster, number)
        return rounds.result(
            h for h, own in values_of.items() if 2 * sum(v < _SLOW for v in own) > len(own)
        )

    return method


def all_pairs(cluster: Cluster) -> Result:
    """Measure N - 1 rounds; a node is bad if its mean is 3 standard deviations below the others."""
    values_of, rounds = _values(cluster, cluster.count)
    means = {host: mean(values) for host, values in values_of.items()}
    limit = mean(means.values()) - 3 * stdev(means.values())
    return rounds.result(host for host, value in means.items() if value < limit)


def _values(cluster: Cluster, number: int) -> tuple[dict[str, list[float]], _Rounds]:
    """Return the values of the pairs of each host in some rounds of pairs."""
    rounds = _Rounds(cluster)
    values_of: dict[str, list[float]] = {host: [] for host in cluster.hosts}
    for wave in pair_rounds(cluster.hosts, rounds=number, seed=1):
        for pair, value in rounds.measure([(g.hosts[0], g.hosts[1]) for g in wave]).items():
            for host in pair:
                values_of[host].append(value)
    return values_of, rounds


def random_partner(cluster: Cluster) -> Result:
    """Measure two rounds with different partners; a node is bad if both its pairs are slow."""
    rounds = _Rounds(cluster)
    suspects = set(cluster.hosts)
    for _ in range(2):
        values = rounds.measure(rounds.paired())
        suspects &= {host for pair, value in values.items() if value < _SLOW for host in pair}
    return rounds.result(suspects)


def bisection(cluster: Cluster) -> Result:
    """Measure both halves of every slow set, all sets of a size at once, down to pairs."""
    rounds = _Rounds(cluster)
    slow = [cluster.hosts]
    while slow and max(map(len, slow)) > _PAIR:
        values = rounds.measure([half for group in slow for half in _halves(group)])
        slow = [half for half, value in values.items() if value < _SLOW]
    return rounds.result({host for group in slow for host in group})


METHODS: Mapping[str, Method] = {
    "CHS, two passes": chs,
    "Oracle, two partners": two_partners,
    "CRE, diagnose": cre,
    "Together, z-scores": z_scores,
    "most pairs bad, 4 rounds": most_pairs_bad(4),
    "most pairs bad, 8 rounds": most_pairs_bad(8),
    "all pairs, mean - 3 sigma": all_pairs,
    "a random partner, twice": random_partner,
    "bisection": bisection,
}
