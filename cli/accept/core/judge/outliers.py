"""Who stands out among equal executions, each measured alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from types import MappingProxyType
from typing import NamedTuple

from accept.core.judge.blame import Sample
from accept.core.judge.population import SIGMAS, Spread, middle, spread

_Group = tuple[tuple[str, ...], tuple[int, ...]]


#: Slow executions of one group from which on it is no chance.
SEVERAL = 2


class Slow(NamedTuple):
    """Members of a population that are bad, by index, and the limit they were held against."""

    bad: tuple[int, ...]
    spread: Spread | None
    #: Of the bad, those that were fine as well: in how many of their executions they were slow.
    at_times: Mapping[int, tuple[int, int]] = MappingProxyType({})
    #: Slow in one execution and fine in another. Not among the bad.
    once: tuple[int, ...] = ()


def outliers(samples: Sequence[Sample], noise: float, bound: float | None = None) -> Slow:
    """Bad ones among equal executions: dead, wrong, below `bound`, or clearly slower than the rest.

    What was executed again is bad by its best time, by wrong data, and by being slow more than
    once: chance does not strike the same one twice. Where more than half are bad nothing is wrong
    with one of them in particular: none is returned.
    """
    floor = float("-inf") if bound is None else bound
    values: dict[_Group, dict[int, float]] = {}
    wrong = set()
    latest: dict[_Group, int] = {}
    for index, sample in enumerate(samples):
        group = (sample.hosts, sample.ranks)
        latest[group] = index
        if sample.cause == "wrong-data":
            wrong.add(group)
        elif sample.value is not None and not sample.cause:
            values.setdefault(group, {})[index] = sample.value
    best = {group: max(mine.values()) for group, mine in values.items()}
    among = spread(list(best.values()), noise)
    limit = floor
    if among:
        # A bound in the middle of the healthy noise tells nobody from his equals.
        limit = max(min(floor, among.median * (1 - SIGMAS * noise)), among.limit)
    bad = {g: latest[g] for g in latest if g in wrong or g not in best or best[g] < limit}
    at_times, once = {}, []
    for group, slow in _now_and_then(values, among) if among else ():
        if group not in bad and len(slow) < SEVERAL:
            once += slow
        elif group not in bad:
            bad[group] = min(slow, key=values[group].__getitem__)
            at_times[bad[group]] = len(slow), len(values[group])
    if len(latest) > 1 and len(bad) * 2 > len(latest):
        return Slow((), among)
    return Slow(tuple(sorted(bad.values())), among, at_times, tuple(once))


def _now_and_then(
    values: Mapping[_Group, Mapping[int, float]], among: Spread
) -> Iterator[tuple[_Group, list[int]]]:
    """The slow executions of groups that have several. What varies within a group widens the limit.

    `among`: of the best of each group.
    """
    usual = {group: middle(mine.values()) for group, mine in values.items()}
    within = spread([v - usual[g] for g, mine in values.items() for v in mine.values()], 0.0)
    sigma = hypot(among.sigma, within.sigma if within else 0.0)
    limit = middle(usual.values()) - SIGMAS * sigma
    for group, mine in values.items():
        slow = [index for index, value in mine.items() if value < limit]
        if len(mine) > 1 and slow:
            yield group, slow
