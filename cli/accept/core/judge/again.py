"""What is measured again after the rounds of a step: who stood out, against who is known to be good."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from accept.core.judge.blame import Sample, decode
from accept.core.judge.likelihood import CANDIDATES
from accept.core.schedule import Group, Wave


def pairs_again(
    samples: Sequence[Sample],
    hosts: Sequence[str],
    noise: float,
    bound: float | None = None,
    *,
    places: Mapping[str, str] | None = None,
    seed: int = 1,
) -> Wave:
    """One wave of disjoint pairs that confirms or clears, or none where nobody stood out.

    Each suspect meets a good host that it did not meet before, and a suspected link is measured
    again; the other good hosts meet each other, so that the network carries what it did before.
    """
    found = decode(samples, noise, bound, places=places, alarms=CANDIDATES)
    accused = [*found.nodes, *found.switches]
    suspects = {host for one in accused for host in one.hosts}.union(found.unknown)
    links = [one.hosts for one in found.links if suspects.isdisjoint(one.hosts)]
    if not suspects and not links:
        return ()
    busy = suspects.union(*links)
    met = {frozenset(sample.hosts) for sample in samples}
    good = [host for host in hosts if host not in busy]
    random.Random(seed).shuffle(good)
    result = [tuple(link) for link in _disjoint(links)]
    for host in (host for host in hosts if host in suspects):
        result += _met_by(host, good, met)
    while len(good) > 1:
        result += _met_by(good.pop(), good, met)
    return tuple(Group(hosts=pair) for pair in result)


def _met_by(host: str, good: list[str], met: set[frozenset[str]]) -> list[tuple[str, str]]:
    """A pair of `host` and one of `good`, which is taken out; somebody it has not met, if it can be."""
    if not good:
        return []
    new = (i for i, other in enumerate(good) if frozenset((host, other)) not in met)
    return [(host, good.pop(next(new, 0)))]


def _disjoint(links: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    busy: set[str] = set()
    result = []
    for link in links:
        if busy.isdisjoint(link):
            busy.update(link)
            result.append(link)
    return result
