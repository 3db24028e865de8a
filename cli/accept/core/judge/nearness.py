"""Pairs of hosts that are near each other and pairs that are far, told from what they reached.

Hosts under one switch reach more than hosts under two, on healthy clusters too. Where nobody says
how hosts are wired, fast pairs tell: hosts that are joined by them are a block, and where hosts of
several blocks are all slow with each other, the distance between the blocks is what slows them, and
no host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import log

from accept.core.checks import Evidence, Score
from accept.core.judge.blame import Sample
from accept.core.judge.compare import samples_of
from accept.core.judge.population import FEWEST
from accept.core.model import Record, Step

#: Less than this between slow and fast, as a share, is no distance.
_GAP = 0.02
#: Widest gaps that are looked at.
_GAPS = 3


def blocks(samples: Iterable[Sample]) -> tuple[frozenset[str], ...]:
    """Blocks of hosts that are near each other; none where the pairs do not fall into such."""
    live = [(s.value, s.hosts) for s in samples if s.value and not s.cause and len(s.hosts) == 2]
    if len(live) < 2 * FEWEST or min(value for value, _ in live) <= 0:
        return ()
    speeds = sorted(log(value) for value, _ in live)
    gaps = sorted(((b - a, (a + b) / 2) for a, b in pairwise(speeds)), reverse=True)[:_GAPS]
    for gap, border in gaps:
        found = _joined(hosts for value, hosts in live if log(value) > border)
        block = {host: index for index, some in enumerate(found) for host in some}
        between = {
            frozenset(hosts)
            for value, hosts in live
            if log(value) < border
            and None not in (block.get(hosts[0]), block.get(hosts[1]))
            and block[hosts[0]] != block[hosts[1]]
        }
        if gap >= _GAP and len(found) > 1 and len(between) >= FEWEST:
            return found
    return ()


def _joined(pairs: Iterable[tuple[str, ...]]) -> tuple[frozenset[str], ...]:
    """Hosts that are joined by pairs, each group once."""
    group: dict[str, set[str]] = {}
    for a, b in pairs:
        both = group.setdefault(a, {a}) | group.setdefault(b, {b})
        for host in both:
            group[host] = both
    return tuple(dict.fromkeys(frozenset(some) for some in group.values()))


def blocks_of(evidence: Evidence, score: Score) -> tuple[frozenset[str], ...]:
    """The blocks that the step with the most pairs shows, where nothing else says who is near."""
    if not evidence.plan.origin or evidence.places:
        return ()
    of_step: dict[str, list[Record]] = {step.id: [] for step in evidence.steps}
    for record in evidence.records:
        of_step[record.step].append(record)
    pairs = [step for step in evidence.steps if step.groups == "pairs"]
    pairs.sort(key=lambda step: -len(of_step[step.id]))
    found = (blocks(samples_of(evidence, score, step, of_step[step.id])) for step in pairs)
    return next((some for some in found if some), ())


def apart(evidence: Evidence, step: Step, found: Iterable[frozenset[str]]) -> list[Evidence]:
    """The evidence of one step; that of near and of far pairs by itself, where it has both."""
    records = tuple(record for record in evidence.records if record.step == step.id)
    near, far = [], []
    for record in records:
        together = any(block.issuperset(record.hosts) for block in found)
        (near if together else far).append(record)
    parts = [near, far] if near and far and step.groups == "pairs" else [records]
    return [replace(evidence, steps=(step,), records=tuple(part)) for part in parts]
