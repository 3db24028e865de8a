"""Find the normal value and the noise of executions that should be equally fast.

Slow executions must not change what is normal. Where a network takes part, many pairs may be slow,
so the fastest speed that many hosts reach is normal, and the upper side shows the noise. Single
hosts are compared with their median, because nothing but the host itself makes one slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, lgamma, log, log1p, pi, sqrt
from statistics import median

#: Lowest number of hosts, or of values, that can be compared with each other.
FEWEST = 4
#: The machine's noise counts like this many values.
_NOISE_WEIGHT = 20
#: Rounds of looking for the center, and the width of what counts as normal.
_ROUNDS, _NEAR = 12, 3.0
#: Corrections of the median absolute deviation for small samples, by sample size.
_SMALL_SAMPLE = {4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
#: Sigma that has the same median absolute deviation of a normal distribution.
MAD = 1.4826


@dataclass(frozen=True)
class Law:
    """Student's t distribution of noise; many degrees of freedom: a normal distribution."""

    freedom: float
    #: The scale that has the median absolute deviation of a normal distribution with sigma 1.
    scale: float

    def log_density(self, z: float) -> float:
        """Return the log density of a deviation in sigma."""
        return self.peak - self.tail * log1p((z / self.scale) ** 2 / self.freedom)

    def slope(self, z: float) -> float:
        """Return how fast the log density falls at a deviation in sigma."""
        return 2 * self.tail * z / (self.freedom * self.scale**2 + z**2)

    @property
    def tail(self) -> float:
        """Return the exponent of the density."""
        return (self.freedom + 1) / 2

    @property
    def peak(self) -> float:
        """Return the log density of 0."""
        gammas = lgamma((self.freedom + 1) / 2) - lgamma(self.freedom / 2)
        return gammas - log(pi * self.freedom) / 2 - log(self.scale)


#: The noise of a network has heavy tails.
NETWORK = Law(4, 0.911)
#: Possible laws of single hosts, with their prior probabilities.
LAWS = (
    (Law(3, 0.882), 0.002),
    (NETWORK, 0.003),
    (Law(6, 0.940), 0.015),
    (Law(12, 0.970), 0.13),
    (Law(1000, 1.0), 0.85),
)


@dataclass(frozen=True)
class Center:
    """The log of the normal value, and sigma as a share of it."""

    log_value: float
    sigma: float


def of_network(
    values: Sequence[tuple[Sequence[int], float]], noise: float, bound: float | None = None
) -> Center | None:
    """Return what healthy executions reach, from pairs of hosts and log values; None: no values.

    A third of the hosts shows it by their best values, because the others may be slow or far away.
    `bound`: values below it are not normal, if any value reaches it.
    """
    if bound is not None and bound > 0:
        least = log(bound) - _NEAR * noise
        values = [row for row in values if row[1] >= least] or values
    if not values:
        return None
    best: dict[int, float] = {}
    for hosts, value in values:
        for h in hosts:
            best[h] = max(best.get(h, -inf), value)
    fastest = sorted(best.values(), reverse=True)[: len(best) // 3 + 1]
    center = fastest[-1]
    sigma = max(noise, 1.5 * MAD * median(v - center for v in fastest))
    every = sorted(value for _, value in values)
    for _ in range(_ROUNDS):
        near = [v for v in every if abs(v - center) <= _NEAR * sigma] or [center]
        before, count = (center, sigma), len(near)
        center = median(near)
        # Slow values cannot widen the upper side.
        wide = MAD * median(v - center for v in near if v >= center)
        mixed = (_NOISE_WEIGHT * noise**2 + count * wide**2) / (_NOISE_WEIGHT + count)
        sigma = max(noise, sqrt(mixed))
        if before == (center, sigma):
            break
    return Center(center, sigma)


def of_single_hosts(values: Mapping[int, Sequence[float]], noise: float) -> Center | None:
    """Return what healthy hosts reach alone, from their log values; None: too few hosts.

    Each host counts by its best value.
    """
    best = [max(own) for own in values.values()]
    if len(best) < FEWEST:
        return None
    return Center(median(best), max(noise, robust_sigma(best)))


def robust_sigma(values: Sequence[float]) -> float:
    """Return the sigma of at least `FEWEST` values; fewer than half of them may be unusual."""
    count, center = len(values), median(values)
    factor = _SMALL_SAMPLE.get(count, count / (count - 0.8))
    return MAD * factor * median(abs(value - center) for value in values)


def weights_of_laws(deviations: Iterable[float]) -> tuple[float, ...]:
    """Return the log probability of each law of single hosts, from deviations of their fast side.

    No fault makes a host faster, so the fast side shows the law of the noise.
    """
    fast = [z for z in deviations if z > 0]
    logs = [log(prior) + sum(map(law.log_density, fast)) for law, prior in LAWS]
    largest = max(logs)
    total = largest + log(sum(exp(x - largest) for x in logs))
    return tuple(x - total for x in logs)


def log_density(z: float, weights: Sequence[float]) -> float:
    """Return the log density of a deviation of a single host if its law is uncertain."""
    return log_sum(w + law.log_density(z) for w, (law, _) in zip(weights, LAWS, strict=True))


def log_sum(values: Iterable[float]) -> float:
    """Return the log of the sum of exponentials."""
    logs = list(values)
    largest = max(logs)
    return largest + log(sum(exp(x - largest) for x in logs))
