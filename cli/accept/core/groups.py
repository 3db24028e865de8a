"""Divide the hosts of a step into waves of disjoint groups.

The groups of a wave run at the same time; a wave starts when the previous one is finished. All
functions depend only on the ordered hosts and the seed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from accept.core.plan import GroupKind

#: Maximum number of hosts in one of the blocks. What grows faster than the number of hosts, such as
#: an all-to-all, takes minutes on larger groups, and shows nothing that blocks of this size do not.
MAX_BLOCK = 256
#: Maximum number of starts at the same time over all groups, and of calls over all hosts.
MAX_CONCURRENT = 128


@dataclass(frozen=True, kw_only=True)
class Group:
    """The hosts of one execution, and the local ranks that take part on each (empty: all)."""

    hosts: tuple[str, ...]
    local_ranks: tuple[int, ...] = ()


Wave = tuple[Group, ...]


def waves(
    kind: GroupKind,
    hosts: Sequence[str],
    *,
    rounds: int = 1,
    seed: int = 1,
    ranks: int = 1,
    pairs: Sequence[tuple[str, ...]] = (),
) -> tuple[Wave, ...]:
    """Return the waves of a group kind over `hosts` (in rank order).

    `rounds` applies only to kinds of pairs, `ranks` (local ranks per host) only to kinds of rails.
    If `pairs` are given, kinds of pairs measure these instead of rounds. Kinds that need two hosts
    return no waves for one host.
    """
    hosts = tuple(hosts)
    if kind is GroupKind.ALL:
        return ((Group(hosts=hosts),),) if hosts else ()
    if kind is GroupKind.BLOCKS:
        return (_blocks(hosts),) if hosts else ()
    if kind is GroupKind.EACH:
        return (tuple(Group(hosts=(h,)) for h in hosts),) if hosts else ()
    if kind is GroupKind.ALONE:
        return tuple((Group(hosts=(h,)),) for h in hosts)
    if len(hosts) < 2:
        return ()
    if kind.of_pairs:
        rounds_of_pairs = (
            disjoint(pairs, hosts) if pairs else pair_rounds(hosts, rounds=rounds, seed=seed)
        )
        if kind is GroupKind.PAIRS:
            return rounds_of_pairs
        return tuple(on_each_rail(wave, range(ranks)) for wave in rounds_of_pairs)
    if kind is GroupKind.RAILS:
        return (tuple(Group(hosts=hosts, local_ranks=(r,)) for r in range(ranks)),)
    if kind is GroupKind.LADDER:
        return _ladder(hosts)
    middle = len(hosts) // 2
    return ((Group(hosts=hosts[:middle]), Group(hosts=hosts[middle:])),)


def pair_rounds(hosts: Sequence[str], *, rounds: int, seed: int) -> tuple[Wave, ...]:
    """Return up to `rounds` rounds of disjoint pairs in which no pair meets twice.

    The method is the circle method over a seeded permutation: one seat is fixed, and the others
    rotate around it. The rotations are used in random order. After consecutive rotations, the
    partners of a host would have met the same few other hosts, so a few rounds on a large cluster
    would not show which hosts belong together. With an odd number of hosts, each round leaves out a
    different host. At most N - 1 rounds exist for an even N, and N for an odd one.
    """
    chance = random.Random(seed)
    seats: list[str | None] = list(hosts)
    chance.shuffle(seats)
    if len(seats) % 2:
        seats.append(None)
    half = len(seats) // 2
    turns = list(range(len(seats) - 1))
    chance.shuffle(turns)
    result = []
    for turn in turns[: round_count(len(hosts), rounds)]:
        turned = [*seats[:1], *seats[1 + turn :], *seats[1 : 1 + turn]]
        pairs = ((turned[i], turned[-1 - i]) for i in range(half))
        result.append(
            tuple(Group(hosts=(a, b)) for a, b in pairs if a is not None and b is not None)
        )
    return tuple(result)


def disjoint(pairs: Iterable[tuple[str, ...]], hosts: Collection[str]) -> tuple[Wave, ...]:
    """Return waves of disjoint pairs that contain each of `pairs` once, if both hosts are known.

    Each pair is added to the first wave that contains neither of its hosts.
    """
    result: list[list[Group]] = []
    known = set(hosts)
    busy: list[set[str]] = []
    for pair in dict.fromkeys(pairs):
        if not known.issuperset(pair):
            continue
        free = next((i for i, one in enumerate(busy) if one.isdisjoint(pair)), len(busy))
        if free == len(busy):
            busy.append(set())
            result.append([])
        busy[free].update(pair)
        result[free].append(Group(hosts=pair))
    return tuple(map(tuple, result))


def on_each_rail(wave: Wave, ranks: Iterable[int]) -> Wave:
    """Return the groups of a wave for each local rank, so that all rails run at the same time."""
    return tuple(Group(hosts=group.hosts, local_ranks=(r,)) for r in ranks for group in wave)


def round_count(hosts: int, rounds: int) -> int:
    """Return how many of `rounds` rounds of pairs exist for this number of hosts."""
    return max(0, min(rounds, hosts - 1 + hosts % 2))


def _blocks(hosts: tuple[str, ...]) -> Wave:
    """Return the fewest blocks of neighbors with at most `MAX_BLOCK` hosts, of similar sizes."""
    blocks = -(-len(hosts) // MAX_BLOCK)
    edges = [len(hosts) * i // blocks for i in range(blocks + 1)]
    return tuple(Group(hosts=hosts[a:b]) for a, b in pairwise(edges))


def _ladder(hosts: tuple[str, ...]) -> tuple[Wave, ...]:
    """Return waves of blocks of 2, 4, 8 … neighbors, without incomplete blocks, then all hosts."""
    result = []
    size = 2
    while size < len(hosts):
        blocks = range(0, len(hosts) - size + 1, size)
        result.append(tuple(Group(hosts=hosts[i : i + size]) for i in blocks))
        size *= 2
    result.append((Group(hosts=hosts),))
    return tuple(result)
