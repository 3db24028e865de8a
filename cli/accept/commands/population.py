"""Check that measurements are of one population, so that their median is a good reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt
from statistics import median

from accept.core.judge.effects.distances import LIMIT
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.effects.search import explain
from accept.core.judge.parts import name_of
from accept.core.judge.values import limit_of
from accept.core.text import count, shortened

#: Two groups are apart if the gap between them is this many sigma of a group. Of 2,000 simulated
#: sets of normal values with the noise of the machine, none is divided by that. With ten times
#: that noise, 15 % of the sets of 4 values are, and 0.5 % of those of 8.
_GAP_SIGMAS = 6.0
#: Log of the loss between two hosts that distance explains.
_MOST_DISTANCE = -log(1 - LIMIT)
#: Most hosts of a suspect that a message names.
_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The median and the spread of comparable measurements."""

    #: Number of measurements that count. Those of a wave that was slow for all hosts do not.
    count: int
    median: float
    #: What healthy measurements reach, as a share of the median. None: too few to know.
    share: float | None
    #: Why this is not one population, for people; empty if it is one.
    divided: str = ""


def summarize(measured: Sequence[Execution], noise: float) -> Summary:
    """Return the median and the spread of measurements, and whether they are of one population.

    Values are above 0, and higher is better. Each measurement has a log of its own. `noise` is the
    lowest sigma of healthy values, as a share. Pairs are examined as in a verdict: two groups of
    hosts may be apart by no more than distance explains, and a wave may be slow for all hosts.
    """
    parts: list[list[Execution]] = [list(measured)]
    divided, lowest_gap = "", 0.0
    if all(len(set(m.hosts)) == 2 for m in measured):
        parts, divided = _examine_pairs(measured, noise)
        lowest_gap = _MOST_DISTANCE
    values = [one.value for part in parts for one in part if one.value]
    middle = median(values)
    return Summary(
        count=len(values),
        median=middle,
        share=min(_lowest_healthy(part, noise) for part in parts) / middle
        if len(values) >= FEWEST
        else None,
        divided=divided or _two_groups(values, noise, lowest_gap),
    )


def _examine_pairs(
    measured: Sequence[Execution], noise: float
) -> tuple[list[list[Execution]], str]:
    """Return near pairs and far pairs, and why they are not one population."""
    found = explain(measured, Network(noise=noise))
    divided = [
        f"{name_of(one.part)}: {one.pairs_hit} of {count(one.pairs, 'pair')} bad"
        for one in found.faults
    ]
    if found.open_pairs:
        names = [" - ".join(one.hosts) for one in found.open_pairs]
        collapsed = f"{len(names)} of {count(len(measured), 'pair')} collapsed"
        divided.append(f"{collapsed}: {shortened(names, _MOST_NAMED)}")
    far = {i for one in found.apart for i in one.hits}
    far |= {*found.distance.far} if found.distance else set()
    # What was measured at a bad time shows nothing.
    disturbed = {i for wave in found.waves for i in wave.hits}
    parts = [
        [one for i, one in enumerate(measured) if i not in disturbed and (i in far) is is_far]
        for is_far in (False, True)
    ]
    return [part for part in parts if part] or [list(measured)], "; ".join(divided)


def _lowest_healthy(own: Sequence[Execution], noise: float) -> float:
    """Return the lowest value that is not slow; of too few values, the lowest one."""
    values = [one.value for one in own if one.value]
    alone = [Execution(hosts=(str(i),), population="", value=v) for i, v in enumerate(values)]
    normal = explain(alone, Network(noise=noise)).normal.get("") if len(values) >= FEWEST else None
    return limit_of(normal) if normal else min(values)


def _two_groups(values: Sequence[float], noise: float, lowest_gap: float) -> str:
    """Return the two groups at the widest gap between the logs of values; empty if it is noise."""
    logs = sorted(map(log, values))
    widest, index = max(((b - a, i) for i, (a, b) in enumerate(pairwise(logs), 1)), default=(0, 0))
    groups = (logs[:index], logs[index:])
    freedom = max(1, len(logs) - 2)
    squares = sum((value - sum(g) / len(g)) ** 2 for g in groups for value in g)
    sigma = max(noise, sqrt(squares / freedom))
    if widest <= max(_GAP_SIGMAS * sigma, lowest_gap):
        return ""
    low, high = (median(sorted(values)[part]) for part in (slice(index), slice(index, None)))
    return f"{index} of {len(values)} at {low / high:.0%} of the others"
