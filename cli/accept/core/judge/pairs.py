"""Turn measurements of pairs of hosts into events that can be compared with each other.

Measurements of different collectives, sizes and numbers of GPUs have different normal speeds. Each
such population has its own median and spread; after that, only deviations in sigma count, and all
populations are one pool. All measurements in one log are one event, because they are not
independent: the same faults and the same neighbors were present at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import NormalDist
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.robust_stats import (
    DEAD_SIGMAS,
    MIN_SIGMAS,
    SIGMAS,
    Spread,
    median_of,
    spread,
)

#: Numbers of the GPUs of a host that took part; None: all of them.
Gpus = frozenset[int] | None


#: A pair below this share of normal has collapsed: distance in the network costs less.
COLLAPSED = 0.85
#: At first, pairs within this many sigma of the center count as the normal ones.
_NEAR_SIGMAS = 2.5
#: Hosts count as few if they are at most one in this many of all hosts.
_HOSTS_PER_FEW = 3
#: A population is wide if its sigma is this many times the noise of the machine.
_WIDE = 3.0
#: Weight of the noise in the machine's file, as a number of values.
_NOISE_WEIGHT = 20


class Measurement(NamedTuple):
    """One value that a pair of hosts reached."""

    hosts: tuple[str, ...]
    #: Higher is better; None: nothing was measured.
    value: float | None
    #: The cause that makes it bad regardless of its value: failed, wrong data.
    cause: Cause | None = None
    #: Path of the raw log.
    log: str = ""
    #: The GPUs of each host that took part, in the order of `hosts`.
    gpus: tuple[Gpus, ...] = (None, None)
    #: Measurements with the same step and wave ran at the same time.
    step: str = ""
    wave: int = 0
    #: The check, for messages.
    check: str = ""
    #: True if nothing else ran at the same time.
    alone: bool = False
    #: True if its wave followed the planned ones because something looked bad.
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class Population:
    """Measurements that should be equally fast on healthy hosts."""

    measurements: tuple[Measurement, ...]
    #: Lowest sigma of healthy values, as a share of their median.
    noise: float
    #: The value that a pair should reach; None: unknown.
    bound: float | None = None


class Event(NamedTuple):
    """The result of one log of a pair, over all its populations."""

    hosts: tuple[str, ...]
    gpus: tuple[Gpus, ...]
    #: In sigma, negative if slower than healthy pairs; that of the slowest population.
    deviation: float
    #: The value as a share of normal, in the slowest population; None: unknown.
    share: float | None
    bad: bool
    cause: Cause | None
    log: str
    step: str
    wave: int
    checks: frozenset[str]
    alone: bool
    repeated: bool

    @property
    def lost(self) -> float:
        """Return the share of its normal value that is missing: 1 if it failed."""
        if self.cause is not None:
            return 1.0
        return 0.0 if self.share is None else 1 - self.share

    @property
    def collapsed(self) -> bool:
        """Return True if it failed, or was far slower than noise or distance explains."""
        failed = self.cause is not None
        return failed or (self.bad and self.share is not None and self.share < COLLAPSED)


class _Deviation(NamedTuple):
    measurement: Measurement
    deviation: float
    share: float | None
    #: The population is narrow enough to show a small loss.
    narrow: bool


def events(populations: Iterable[Population]) -> list[Event]:
    """Return one event for each log, from the measurements of all populations.

    An event is bad if at least half of its measurements are: NCCL uses the network in other ways
    in other collectives, so a fault shows in some of them only.
    """
    by_log: dict[tuple[str, ...], list[_Deviation]] = {}
    for population in populations:
        for number, one in enumerate(_deviations(population)):
            found = one.measurement
            key = (found.log,) if found.log else (found.step, str(found.wave), *found.hosts)
            key = (*key, "" if found.log else str(number))
            by_log.setdefault((*key, *found.hosts, str(found.gpus)), []).append(one)
    return [_event(own) for own in by_log.values()]


def healthy_spread(
    measurements: Iterable[Measurement], noise: float, bound: float | None
) -> Spread | None:
    """Return the spread of the pairs without a bad host; None below four hosts.

    First each host is judged by its best pair: if a quarter of the hosts is bad, nearly half of the
    pairs are slow, and the median of all pairs would be meaningless. Then the values above the
    center show the width, because slow pairs cannot widen that side. If most pairs are slower than
    the best ones by no more than distance costs, the slower ones are the normal ones.
    """
    # Healthy values vary, so a bound at their median must not remove their lower half.
    floor = 0.0 if bound is None else bound * (1 - SIGMAS * noise)
    live = [m for m in measurements if not m.cause and m.value is not None and m.value > floor]
    best: dict[str, float] = {}
    for pair in live:
        for host in pair.hosts:
            best[host] = max(best.get(host, 0.0), pair.value or 0.0)
    best_spread = spread(list(best.values()), 0.0)
    if best_spread is None:
        return None
    # The best of r normal values has a higher median and a smaller sigma than a single value. The
    # correction is accurate within 4 % up to r = 10.
    rounds = len(live) * 2 / len(best)
    sigma = best_spread.sigma * rounds**0.24
    center = best_spread.median - sigma * NormalDist().inv_cdf((rounds - 0.375) / (rounds + 0.25))
    limit = center - _NEAR_SIGMAS * max(sigma, noise * center)
    values = [pair.value or 0.0 for pair in live]
    normal = spread([value for value in values if value >= limit], noise)
    if normal is None:
        return spread(list(best.values()), noise)
    above = spread([v - normal.median for v in values if v > normal.median] * 2, 0.0)
    expected = noise * normal.median
    measured = above.median / 0.6745 if above else 0.0
    # The width of few values is uncertain; the machine's noise counts like that many values.
    count = len(values)
    mixed = (_NOISE_WEIGHT * expected**2 + count * measured**2) / (_NOISE_WEIGHT + count)
    sigma = max(expected, sqrt(mixed))
    limit = normal.median - MIN_SIGMAS * sigma
    # Few hosts without any fast pair are slow or far away; they do not show what is normal.
    few = {host for host, value in best.items() if value < limit}
    if _HOSTS_PER_FEW * len(few) <= len(best):
        values = [pair.value or 0.0 for pair in live if few.isdisjoint(pair.hosts)]
    slow = [value for value in values if value < limit]
    if 2 * len(slow) > len(values) and median_of(slow) >= COLLAPSED * normal.median:
        return spread(values, noise)
    return replace(normal, sigma=sigma)


def _deviations(population: Population) -> list[_Deviation]:
    """Return the deviation of each measurement from the healthy ones."""
    pairs = [m for m in population.measurements if len(m.hosts) == len(set(m.hosts)) == 2]
    healthy = healthy_spread(pairs, population.noise, population.bound)
    if healthy:
        center, sigma = healthy.median, healthy.sigma
    else:
        center = population.bound or 0.0
        sigma = population.noise * center
    narrow = sigma <= _WIDE * population.noise * center
    return [_Deviation(m, *_deviation(m, center, sigma), narrow) for m in pairs]


def _deviation(measurement: Measurement, center: float, sigma: float) -> tuple[float, float | None]:
    """Return a deviation in sigma, negative if it is slower than healthy pairs, and the share.

    Return 0 if there is nothing to compare it with.
    """
    value = measurement.value
    if measurement.cause or value is None or value <= 0:
        return -DEAD_SIGMAS, None
    if sigma <= 0 or center <= 0:
        return 0.0, None
    # The difference of logarithms cannot underflow to 0, unlike the quotient of tiny values.
    deviation = (log(value) - log(center)) * center / sigma
    return max(deviation, -DEAD_SIGMAS), value / center


def _event(own: Sequence[_Deviation]) -> Event:
    # A value that looks normal in a wide population proves nothing.
    own = [o for o in own if o.narrow or o.deviation <= -MIN_SIGMAS] or own
    bad = [one for one in own if one.deviation <= -MIN_SIGMAS]
    is_bad = 2 * len(bad) >= len(own)
    # With several values, the median of the bad ones shows what the pair lost.
    worst = min(own, key=lambda one: (one.deviation, one.share or 0.0))
    first = own[0].measurement
    causes = [one.measurement.cause for one in own if one.measurement.cause]
    return Event(
        hosts=first.hosts,
        gpus=first.gpus,
        deviation=worst.deviation,
        share=worst.share,
        bad=is_bad,
        cause=_gravest(causes) if causes else None,
        log=first.log,
        step=first.step,
        wave=first.wave,
        checks=frozenset(one.measurement.check for one in (bad or own)),
        alone=all(one.measurement.alone for one in own),
        repeated=first.repeated,
    )


def _gravest(causes: Sequence[Cause]) -> Cause:
    """Return the most serious cause: wrong data, else the most frequent one."""
    if Cause.WRONG_DATA in causes:
        return Cause.WRONG_DATA
    return max(set(causes), key=lambda cause: (causes.count(cause), cause))
