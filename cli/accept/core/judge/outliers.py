"""Who stands out among equal executions, each measured alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accept.core.judge.blame import Sample
from accept.core.judge.population import SIGMAS, Spread, spread

_Group = tuple[tuple[str, ...], tuple[int, ...]]


class Slow(NamedTuple):
    """Members of a population that are bad, by index, and the limit they were held against."""

    bad: tuple[int, ...]
    spread: Spread | None


def outliers(samples: Sequence[Sample], noise: float, bound: float | None = None) -> Slow:
    """Bad ones among equal executions: dead, wrong, below `bound`, or clearly slower than the rest.

    What was executed again is held to its best time, unless it was wrong: chance does not strike
    the same one twice. Where more than half are bad nothing is wrong with one of them in
    particular: none is returned.
    """
    floor = float("-inf") if bound is None else bound
    best: dict[_Group, float] = {}
    wrong = set()
    latest: dict[_Group, int] = {}
    for index, sample in enumerate(samples):
        group = (sample.hosts, sample.ranks)
        latest[group] = index
        if sample.cause == "wrong-data":
            wrong.add(group)
        elif sample.value is not None and not sample.cause:
            best[group] = max(best.get(group, sample.value), sample.value)
    among = spread(list(best.values()), noise)
    limit = floor
    if among:
        # A bound in the middle of the healthy noise tells nobody from his equals.
        limit = max(min(floor, among.median * (1 - SIGMAS * noise)), among.limit)
    bad = [g for g in latest if g in wrong or g not in best or best[g] < limit]
    if len(latest) > 1 and len(bad) * 2 > len(latest):
        return Slow((), among)
    return Slow(tuple(sorted(latest[group] for group in bad)), among)
