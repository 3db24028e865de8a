"""Compute robust statistics: median, spread, and the likelihood that a deviation is noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb, exp, expm1, log, log1p, sqrt

#: Below this many values nothing is concluded.
FEWEST = 4
#: How many sigma below the median is slow: one in 30,000 normal values.
SIGMAS = 4.0

_SMALL = {4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Centre and width of a population, and the limit below which a value is slow."""

    count: int
    median: float
    sigma: float

    @property
    def limit(self) -> float:
        """The lowest value that is not slow."""
        return self.median - SIGMAS * self.sigma

    @property
    def share(self) -> float:
        """The limit as a share of the median."""
        return self.limit / self.median if self.median else 0.0


def median_of(values: Iterable[float]) -> float:
    """The median of one value or more."""
    # Loaded where it is used: those who only plan load this module too.
    from statistics import median

    return median(values)


def spread(values: Sequence[float], noise: float, *, fixed: bool = False) -> Spread | None:
    """The spread of `values` (finite), or None below `FEWEST` of them.

    `noise`: what is known to vary in healthy machines, as a share of the median; sigma is never
    less. Without it, equal values would turn the smallest difference into an outlier. `fixed`:
    nor is it more, however far values of unequals lie apart.
    """
    count = len(values)
    if count < FEWEST:
        return None
    centre = median_of(values)
    least = noise * abs(centre)
    if fixed:
        return Spread(count=count, median=centre, sigma=least)
    mad = median_of(abs(value - centre) for value in values)
    factor = _SMALL.get(count, count / (count - 0.8))
    return Spread(count=count, median=centre, sigma=max(1.4826 * factor * mad, least))


FREEDOM = 4.0
#: Sigma is estimated as for normal values; this is the scale of Student's t with the same MAD
#: (quartiles 0.6745 and 0.7407).
_SCALE = 0.6745 / 0.7407
#: A pair that died counts as this many sigma: more would let one pair outweigh several.
DEAD_SIGMAS = 20.0
#: Less is not held against a host, however sure it is: of several nodes one is always the slowest.
MIN_SIGMAS = 3.0
#: Healthy clusters in which a host may be accused by chance, before suspects are tested again.
FALSE_ALARMS = 1e-3
#: The same for being tested again, which costs minutes and accuses nobody.
CANDIDATES = 0.05

#: What rounds are to find where speed is promised: bad B200 nodes in the field were 6 to 6.7 % slow
#: (https://github.com/togethercomputer/together-nccl-tests); and where none is: half of it lost.
DEFICIT = 0.06
GROSS = 0.5
#: Of the hosts, how many may be bad beside the one that is to be found.
BAD = 0.02
#: How often a bad host may be missed, half of it for want of good partners, half by noise: the
#: one-sided quantile of the normal law.
_MISSED = 1e-3
_POWER = 3.29
#: What a healthy deviation costs on average: `surprise` of one sigma.
_USUAL = 0.5 * (FREEDOM + 1) * log1p(1 / _SCALE**2 / FREEDOM)
#: More rounds cost minutes each and detect little more.
MOST_ROUNDS = 5


def surprise(deviation: float) -> float:
    """Minus the logarithm of a deviation's density (in sigma), 0 where there is none."""
    scaled = deviation / _SCALE
    return 0.5 * (FREEDOM + 1) * log1p(scaled * scaled / FREEDOM)


def threshold(hypotheses: int, alarms: float) -> float:
    """The ratio above which one of so many hypotheses is believed: at most `alarms` false ones."""
    return log(max(hypotheses, 1) / alarms)


def gains(deviations: Sequence[float], explained: Sequence[float], shift: float) -> list[float]:
    """What each pair says for its host being `shift` sigma slow.

    `explained`: the shift (<= 0) that each pair has already, because of its other host.
    """
    return [
        surprise(z - known) - surprise(z - min(known, -shift))
        for z, known in zip(deviations, explained, strict=True)
    ]


def intermittent_gain(gain: float) -> float:
    """What a pair says for a host that is slow in half of its pairs: the ratio of the mixture."""
    return gain + log(0.5 + 0.5 * exp(-gain)) if gain > 0 else log(0.5 + 0.5 * exp(gain))


def rounds_for(hosts: int, noise: float, deficit: float = DEFICIT) -> int:
    """How many rounds of pairs find 99.9 % of the hosts that are slow by the share `deficit`.

    `noise`: sigma of healthy pairs, as a share. Pairs with a partner that is bad too say nothing.
    What the rounds find is measured again, so the threshold is that of candidates.
    """
    shift = -log(1 - deficit) / noise
    mean = surprise(shift) - _USUAL
    slope = (FREEDOM + 1) * shift / _SCALE / (FREEDOM + (shift / _SCALE) ** 2) / _SCALE
    needed = threshold(hosts, CANDIDATES)
    # A round of an odd number of hosts leaves one out, and there is one round more.
    most = min(MOST_ROUNDS, hosts - 1 + hosts % 2)
    for rounds in range(2, most):
        left = rounds - _lost(rounds)
        if left > 0 and left * mean - _POWER * slope * sqrt(left) >= needed:
            return rounds
    return max(1, most)


def _lost(rounds: int) -> int:
    """How many of its partners are bad, with all but half of `_MISSED`, by the binomial law."""
    lost, tail = 0, 1 - (1 - BAD) ** rounds
    while tail > _MISSED / 2:
        lost += 1
        tail -= comb(rounds, lost) * BAD**lost * (1 - BAD) ** (rounds - lost)
    return lost


def detectable_deficit(hosts: int, sigma: float, pairs: int) -> float:
    """The deficit, as a share, at which a host with so many pairs is accused one time in two."""
    each = threshold(hosts, FALSE_ALARMS) / max(pairs, 1) + _USUAL
    shift = _SCALE * sqrt(FREEDOM * expm1(each / (0.5 * (FREEDOM + 1))))
    return -expm1(-max(shift, MIN_SIGMAS) * sigma)
