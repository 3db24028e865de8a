"""A simulated cluster, as a stand-in for networks of thousands of nodes.

Every host has its own speed; a pair is as fast as the slower of its two hosts, times noise. The
simulation covers the results of pair rounds, not NCCL, switches or routes. Schedule, decoding and
confirmation are those of the product.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Literal

from accept.core.causes import Cause
from accept.core.groups import Wave, pair_rounds
from accept.core.judge.pairs import Decoded, Sample, decode
from accept.core.judge.remeasure import confirming, doubtful, meeting
from accept.core.judge.robust_stats import rounds_for

#: `normal`; `heavy`: Student's t with three degrees of freedom; `switch`: half of the variance is
#: shared by the hosts of a switch in a round. All have the same standard deviation.
Law = Literal["normal", "heavy", "switch"]
LAWS: tuple[Law, ...] = ("normal", "heavy", "switch")
_SWITCH = 32
#: The noise in the machine files of GPU nodes, as a share.
FLOOR = 0.01


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts, the bad ones among them, and the noise of a pair."""

    hosts: tuple[str, ...]
    bad: frozenset[str] = frozenset()
    #: Share of the speed that a bad host lacks; at 1 its pairs fail.
    deficit: float = 0.0
    #: Share of its pairs in which a bad host is bad.
    often: float = 1.0
    #: Standard deviation of a pair, as a share.
    noise: float = 0.01
    law: Law = "normal"
    chance: random.Random = field(default_factory=random.Random)

    def measure(self, wave: Wave) -> list[Sample]:
        """Measure each pair of a wave; healthy pairs reach 100."""
        shared: dict[int, float] = {}
        return [Sample(group.hosts, *self._pair(group.hosts, shared)) for group in wave]

    def _pair(
        self, hosts: tuple[str, ...], shared: dict[int, float]
    ) -> tuple[float | None, Cause | None]:
        slow = any(h in self.bad and self.chance.random() < self.often for h in hosts)
        if slow and self.deficit >= 1:
            return None, Cause.TIMED_OUT
        level = math.log(1 - self.deficit) if slow else 0.0
        return 100 * math.exp(level + self._noise(hosts, shared)), None

    def _noise(self, hosts: tuple[str, ...], shared: dict[int, float]) -> float:
        chance, sigma = self.chance, self.noise
        if self.law == "heavy":
            square = sum(chance.gauss(0, 1) ** 2 for _ in range(3))
            return sigma * chance.gauss(0, 1) / math.sqrt(square)
        if self.law == "normal":
            return chance.gauss(0, sigma)
        total = chance.gauss(0, sigma * math.sqrt(0.5))
        for host in hosts:
            switch = int(host[1:]) // _SWITCH
            if switch not in shared:
                shared[switch] = chance.gauss(0, sigma * 0.5)
            total += shared[switch]
        return total


def cluster(
    count: int,
    bad: int = 0,
    *,
    deficit: float = 0.0,
    often: float = 1.0,
    noise: float = 0.01,
    law: Law = "normal",
    seed: int = 1,
) -> Cluster:
    """Return a cluster of `count` hosts with `bad` randomly chosen bad ones."""
    chance = random.Random(seed)
    hosts = tuple(f"h{i}" for i in range(count))
    return Cluster(
        hosts=hosts,
        bad=frozenset(chance.sample(hosts, bad)),
        deficit=deficit,
        often=often,
        noise=noise,
        law=law,
        chance=chance,
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of an acceptance of a simulated cluster."""

    rounds: int
    again: int
    found: frozenset[str]
    accused: frozenset[str]
    decoded: Decoded

    @property
    def rejected(self) -> bool:
        """Return True if any host, link or switch is blamed."""
        return bool(self.decoded.nodes or self.decoded.links or self.decoded.switches)


def accept(one: Cluster, rounds: int | None = None) -> Outcome:
    """Simulate rounds of pairs and the measurements that follow them in a run."""
    seed = one.chance.randrange(1 << 30)
    count = rounds or rounds_for(len(one.hosts), FLOOR)
    waves = pair_rounds(one.hosts, rounds=count, seed=seed)
    samples = [sample for wave in waves for sample in one.measure(wave)]
    met = {frozenset(sample.hosts) for sample in samples}
    suspects, links = doubtful(samples, FLOOR, {})
    again = confirming(one.hosts, suspects, links, met, seed=seed)
    samples += one.measure(again)
    mutual = meeting(one.hosts, suspects, (), met)
    samples += [sample for wave in mutual for sample in one.measure(wave)]
    decoded = decode(samples, FLOOR)
    accused = frozenset(host for node in decoded.nodes for host in node.hosts)
    return Outcome(
        rounds=len(waves),
        again=bool(again) + len(mutual),
        found=accused & one.bad,
        accused=accused - one.bad,
        decoded=decoded,
    )


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
