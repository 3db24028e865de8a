"""Check that measurements are of one population, so that their median is a good reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt
from statistics import median

from accept.core.judge.blame import Attribution, Blamed, attribute
from accept.core.judge.pair_results import network_faults
from accept.core.judge.pairs import COLLAPSED, Event, Measurement, Population, events
from accept.core.judge.robust_stats import FEWEST, spread
from accept.core.judge.topology import find_blocks, near_and_far
from accept.core.model import SuspectKind
from accept.core.text import count, shortened

#: Two groups are apart if the gap between them is this many sigma of a group. Of 2,000 simulated
#: sets of normal values with the noise of the machine, none is divided by that. With ten times
#: that noise, 15 % of the sets of 4 values are, and 0.5 % of those of 8.
_GAP_SIGMAS = 6.0
#: Log of the loss between two hosts that distance explains, with the noise of a measured distance.
_MOST_DISTANCE = -log(COLLAPSED - 0.01)
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


def summarize(measured: Sequence[Measurement], noise: float) -> Summary:
    """Return the median and the spread of measurements, and whether they are of one population.

    Values are above 0, and higher is better. Each measurement has a log of its own. `noise` is the
    lowest sigma of healthy values, as a share. Pairs are examined as in a verdict: two groups of
    hosts may be apart by no more than distance explains, and a wave may be slow for all hosts.
    """
    parts: list[list[float]] = [[m.value for m in measured if m.value]]
    divided, lowest_gap = "", 0.0
    if all(len(set(m.hosts)) == 2 for m in measured):
        parts, divided = _examine_pairs(measured, noise)
        lowest_gap = _MOST_DISTANCE
    values = [value for part in parts for value in part]
    middle = median(values)
    return Summary(
        count=len(values),
        median=middle,
        share=min(_lowest_healthy(part, noise) for part in parts) / middle
        if len(values) >= FEWEST
        else None,
        divided=divided or _two_groups(values, noise, lowest_gap),
    )


def _examine_pairs(measured: Sequence[Measurement], noise: float) -> tuple[list[list[float]], str]:
    """Return the values of near pairs and of far pairs, and why they are not one population."""
    population = Population(measurements=tuple(measured), noise=noise)
    near_far = near_and_far(population, find_blocks([population], {}))
    found_events = events(near_far)
    found = attribute(found_events)
    divided = "; ".join(_faults(found))
    far = {event.log for one in found.blamed for event in one.events}
    explained = {event.log for event in found_events if event.bad}
    disturbed = explained - far - {e.log for unit in found.open_pairs for e in unit.events}
    # What looks bad and is not divided is far away, or was measured at a bad time.
    parts = [
        [m.value for m in part.measurements if m.value and m.log not in far | disturbed]
        for part in near_far
    ]
    parts.append([m.value for m in measured if m.value and m.log in far])
    return [part for part in parts if part] or [[m.value for m in measured if m.value]], divided


def _faults(found: Attribution) -> Iterator[str]:
    for blamed in (*(b for b in found.blamed if not b.distance), *network_faults(found)):
        counts = f"{blamed.bad} of {count(blamed.pairs, 'pair')} bad"
        yield f"{_name(blamed)}: {counts}"
    if found.collapsed:
        yield _collapsed(found.collapsed, found.pairs)


def _name(blamed: Blamed) -> str:
    if blamed.kind is SuspectKind.FABRIC:
        return "fabric"
    device = f" GPU {blamed.device}" if blamed.device is not None else ""
    return f"{blamed.kind} {shortened(blamed.hosts, _MOST_NAMED)}{device}"


def _collapsed(collapsed: Sequence[Event], pairs: int) -> str:
    names = [" - ".join(event.hosts) for event in collapsed]
    return f"{len(collapsed)} of {count(pairs, 'pair')} collapsed: {shortened(names, _MOST_NAMED)}"


def _lowest_healthy(values: Sequence[float], noise: float) -> float:
    """Return the lowest value that is not slow; of too few values, the lowest one."""
    peers = spread(values, noise)
    return peers.limit if peers else min(values)


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
