"""Find blocks of hosts that are near each other: others are slower with them without a fault.

On healthy clusters, too, hosts under the same switch are faster than hosts under two switches. The
places of hosts show blocks, or the fast pairs do. Each population has its own distance, of at most
`LIMIT`; a larger loss is a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import hypot, lgamma, log
from statistics import median

from accept.core.judge.effects import populations
from accept.core.judge.effects.background import FIRST, VARIES, density
from accept.core.judge.effects.evidence import FAILS
from accept.core.judge.effects.units import Units

#: The largest loss by distance, as a share, and as a log loss.
LIMIT = 0.18
LOG_LIMIT = -log(1 - LIMIT)
#: Losses up to this many times the limit show whether distance explains them.
_AROUND = 1.3
#: A distance below this many sigma is noise.
_LEAST = 1.5
#: More than this share of the executions of a population are slower than the fastest ones.
_MOST = 0.6
#: Number of the widest gaps between losses that may separate near and far pairs, and the largest
#: loss of a near pair.
_GAPS, _NEAR = 5, 0.25
#: Number of the most likely divisions into blocks that are compared by all that they leave open.
_MOST_DIVISIONS = 4
#: The populations that are searched for blocks: those with the most executions.
_MOST_POPULATIONS = 16

Blocks = tuple[frozenset[int], ...]


@dataclass(frozen=True, eq=False)
class Blocked:
    """Blocks of hosts, the log loss between them by population, and the executions between."""

    blocks: Blocks = ()
    losses: Mapping[int, float] = field(default_factory=dict)
    far: frozenset[int] = frozenset()
    #: Log of the number of such divisions.
    price: float = 0.0
    #: Populations in which most executions are slower than the fastest ones by no more than
    #: distance costs -> the log loss of these: nothing shows which hosts are near.
    common: Mapping[int, float] = field(default_factory=dict)


def joined(hosts: Iterable[int], groups: Iterable[Sequence[int]]) -> tuple[frozenset[int], ...]:
    """Return the sets of hosts that groups connect."""
    parents = {h: h for h in hosts}

    def root(h: int) -> int:
        while parents[h] != h:
            parents[h] = h = parents[parents[h]]
        return h

    for first, *rest in groups:
        for other in rest:
            parents[root(other)] = root(first)
    result: dict[int, set[int]] = {}
    for h in parents:
        result.setdefault(root(h), set()).add(h)
    return tuple(sorted(map(frozenset, result.values()), key=min))


def likely(units: Units, places: Mapping[int, str]) -> list[Blocked]:
    """Return the most likely divisions into blocks, and that without any blocks last."""
    found = sorted(_divisions(units, places), key=lambda row: -row[0])
    rows = [blocked for gain, blocked in found[:_MOST_DIVISIONS] if gain > 0]
    return [_with_common(units, blocked) for blocked in (*rows, Blocked())]


def _divisions(units: Units, places: Mapping[int, str]) -> Iterator[tuple[float, Blocked]]:
    """Yield divisions into blocks, with how much likelier distance makes the data."""
    for blocks, price in _partitions(units, places):
        block_of = {h: n for n, block in enumerate(blocks) for h in block}
        far = frozenset(
            i
            for i, members in enumerate(units.members)
            if any(block_of[a] != block_of[members[0]] for a in members)
        )
        losses: dict[int, float] = {}
        gain = -price
        for k, own in enumerate(units.of_population):
            apart = [i for i in own if i in far]
            more, loss = _distance(units, k, apart)
            if more > 0:
                losses[k] = loss
                gain += more
        yield gain, Blocked(blocks, losses, far, price)


def _with_common(units: Units, blocked: Blocked) -> Blocked:
    common = {}
    for k, own in enumerate(units.of_population):
        shared = [i for i in own if len(units.members[i]) > 1]
        losses = sorted(x for i in shared if (x := units.loss[i]) is not None)
        slow = [x for x in losses if x > _LEAST * units.sigma[k]]
        # Half of the pairs may leave one side of a border.
        middle = median(slow) if len(slow) > _MOST * len(losses) else 0.0
        if k not in blocked.losses and 2 * _LEAST * units.sigma[k] <= middle <= LOG_LIMIT:
            common[k] = middle
    return replace(blocked, common=common)


def _distance(units: Units, k: int, far: Sequence[int]) -> tuple[float, float]:
    """Return how much likelier a distance makes far executions, and its log loss."""
    known = [(i, x) for i in far if (x := units.loss[i]) is not None]
    sigma = units.sigma[k]
    values = [(units.members[i], -x) for i, x in known]
    center = populations.of_network(values, sigma) if len(known) > 2 else None
    loss = -center.log_value if center else 0.0
    if not _LEAST * sigma <= loss <= LOG_LIMIT:
        return 0.0, 0.0
    return _gain((x for _, x in known), loss, sigma), loss


def _gain(losses: Iterable[float], distance: float, sigma: float) -> float:
    """Return how much likelier a distance makes some losses."""
    scale = hypot(sigma, VARIES * distance)
    return sum(
        density(x, distance, distance, scale, FAILS) - density(x, 0.0, 0.0, sigma, FAILS)
        for x in losses
        if x < _AROUND * LOG_LIMIT
    )


def _partitions(units: Units, places: Mapping[int, str]) -> Iterator[tuple[Blocks, float]]:
    """Yield divisions of the hosts into blocks, each with the price of choosing it."""
    hosts = range(len(units.names))
    by_place: dict[str, set[int]] = {}
    for h in hosts:
        by_place.setdefault(places.get(h, "").rpartition("/")[0], set()).add(h)
    if len(by_place) > 1 and "" not in by_place:
        yield tuple(map(frozenset, by_place.values())), 0.0
    seen = set()
    largest = sorted(units.of_population, key=lambda own: -len(own))[:_MOST_POPULATIONS]
    for own in largest:
        pairs = [
            (x, units.members[i])
            for i in own
            if len(units.members[i]) == 2 and (x := units.loss[i]) is not None
        ]
        losses = sorted(x for x, _ in pairs)
        gaps = sorted(((b - a, (a + b) / 2) for a, b in pairwise(losses)), reverse=True)
        likely = [edge for gap, edge in gaps if 0 < edge < _NEAR and gap > FIRST / 2]
        for edge in likely[:_GAPS]:
            blocks = joined(hosts, (members for x, members in pairs if x < edge))
            for divided in (blocks, _without_single(blocks)):
                # A single host apart is slow, or alone under its switch: only others can show that.
                if sum(len(block) > 1 for block in divided) < 2 or divided in seen:
                    continue
                seen.add(divided)
                yield divided, _log_divisions(divided)


def _log_divisions(blocks: Blocks) -> float:
    """Return the log of the number of ways to divide the hosts into blocks of these sizes."""
    sizes = Counter(map(len, blocks))
    ways = lgamma(sum(map(len, blocks)) + 1)
    return ways - sum(count * lgamma(size + 1) + lgamma(count + 1) for size, count in sizes.items())


def _without_single(blocks: Blocks) -> Blocks:
    """Return blocks with the single hosts in the largest one: they may be slow, not far away."""
    several = [block for block in blocks if len(block) > 1]
    if len(several) < 2:
        return blocks
    largest = max(several, key=lambda block: (len(block), -min(block)))
    single = frozenset(h for block in blocks if len(block) == 1 for h in block)
    result = [block | single if block is largest else block for block in several]
    return tuple(sorted(result, key=min))
