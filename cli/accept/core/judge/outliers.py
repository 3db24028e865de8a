"""Who stands out among equal executions, each measured alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import hypot
from types import MappingProxyType
from typing import NamedTuple

from accept.core.judge.pairs import Sample
from accept.core.judge.robust_stats import SIGMAS, Spread, median_of, spread

#: Values that vary by more than so many times the noise are not of equals.
_UNEVEN = 3.0

_Group = tuple[tuple[str, ...], tuple[int, ...]]


class Outlier(NamedTuple):
    """A bad member of a population: what shows it, and what it was held against."""

    sample: Sample
    cause: str
    among: Spread | None
    #: Of one that was fine as well: in how many of its executions it was slow.
    times: tuple[int, int] | None = None

    @property
    def share(self) -> str:
        """What it reached of the median, and how often; empty where nothing was measured."""
        value, among = self.sample.value, self.among
        if self.sample.cause or value is None or not among or not among.median:
            return ""
        often = f"; slow in {self.times[0]} of {self.times[1]} executions" if self.times else ""
        return f"{value / among.median:.0%} of the median of {among.count}{often}"


class Outliers(NamedTuple):
    """The bad members of a population, by index, and the spread of the healthy."""

    bad: Mapping[int, Outlier]
    spread: Spread | None
    #: The worst execution of what is slow too rarely to be bad: in how many of how many.
    rarely: Mapping[int, tuple[int, int]] = MappingProxyType({})
    #: They fall apart so far that nobody can tell who is slow.
    uneven: bool = False


def is_frequent(slow: int, executions: int) -> bool:
    """Whether something is slow too often for it to be chance: twice, in more than a quarter.

    Noise with heavy tails makes some member of a large population slow twice in many executions.
    """
    return slow > 1 and slow * 4 > executions


def outliers(
    samples: Sequence[Sample], noise: float, bound: float | None = None, *, fixed: bool = False
) -> Outliers:
    """Bad ones among equal executions: dead, wrong, below `bound`, or clearly slower than the rest.

    What was executed again is bad by its best time, by wrong data, and by being slow often. Where
    more than half are bad nothing is wrong with one of them in particular: none is returned.
    `fixed`: as for `spread`.
    """
    floor = float("-inf") if bound is None else bound
    values: dict[_Group, dict[int, float]] = {}
    shown: dict[_Group, int] = {}
    wrong = set()
    for index, sample in enumerate(samples):
        group = (sample.hosts, sample.ranks)
        if group not in wrong:
            shown[group] = index
        if sample.cause == "wrong-data":
            wrong.add(group)
        elif sample.value is not None and not sample.cause:
            values.setdefault(group, {})[index] = sample.value
    best = {group: max(mine.values()) for group, mine in values.items()}
    among = spread(list(best.values()), noise, fixed=fixed)
    limit, apart = floor, False
    if among:
        apart = _uneven(best.values(), among, noise)
        # A bound in the middle of the healthy noise tells nobody from his equals.
        limit = max(min(floor, among.median * (1 - SIGMAS * noise)), among.limit)
    bad, rarely = {}, {}
    for group, index in shown.items():
        if group in wrong or group not in best or best[group] < limit:
            one = samples[index]
            below = one.value is not None and one.value < floor
            cause = one.cause or ("below-reference" if below else "slow-outlier")
            bad[index] = Outlier(one, cause, among)
    for group, slow in _now_and_then(values, among) if among else ():
        worst = min(slow, key=values[group].__getitem__)
        times = len(slow), len(values[group])
        if shown[group] in bad:
            continue
        if is_frequent(*times):
            bad[worst] = Outlier(samples[worst], "intermittent", among, times)
        else:
            rarely[worst] = times
    if len(shown) > 1 and len(bad) * 2 > len(shown):
        return Outliers({}, among, uneven=apart)
    return Outliers(dict(sorted(bad.items())), among, rarely, apart)


def _uneven(best: Collection[float], among: Spread, noise: float) -> bool:
    """Whether what should be equal falls apart so far that nobody can tell who of them is slow.

    Many slow ones widen the limit that is to find them; where they are most, the others are fast.
    """
    fast = sum(value > among.median * (1 + SIGMAS * noise) for value in best)
    return among.sigma > _UNEVEN * noise * abs(among.median) or 3 * fast >= len(best)


def _now_and_then(
    values: Mapping[_Group, Mapping[int, float]], among: Spread
) -> Iterator[tuple[_Group, list[int]]]:
    """The slow executions of groups that have any and others.

    `among`: of the best of each group; what varies within groups widens its limit.
    """
    usual = {group: median_of(mine.values()) for group, mine in values.items()}
    within = spread([v - usual[g] for g, mine in values.items() for v in mine.values()], 0.0)
    sigma = hypot(among.sigma, within.sigma if within else 0.0)
    limit = median_of(usual.values()) - SIGMAS * sigma
    for group, mine in values.items():
        slow = [index for index, value in mine.items() if value < limit]
        if len(mine) > 1 and slow:
            yield group, slow
