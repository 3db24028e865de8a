"""Divide the hosts of a step into waves of disjoint groups.

The groups of a wave run at the same time; a wave starts when the previous one is finished. All
functions depend only on the ordered hosts and the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from accept.core.model import GroupKind


@dataclass(frozen=True, kw_only=True)
class Group:
    """The hosts of one execution, and the local ranks that take part on each (empty: all)."""

    hosts: tuple[str, ...]
    local_ranks: tuple[int, ...] = ()


Wave = tuple[Group, ...]


def waves(
    kind: GroupKind, hosts: Sequence[str], *, rounds: int = 1, seed: int = 1, ranks: int = 1
) -> tuple[Wave, ...]:
    """Return the waves of a group kind over `hosts` (in rank order).

    `rounds` applies only to pairs, `ranks` (local ranks per host) only to rails. Kinds that need
    two hosts return no waves for one host.
    """
    hosts = tuple(hosts)
    if kind is GroupKind.ALL:
        return ((Group(hosts=hosts),),) if hosts else ()
    if kind is GroupKind.EACH:
        return (tuple(Group(hosts=(h,)) for h in hosts),) if hosts else ()
    if len(hosts) < 2:
        return ()
    if kind is GroupKind.PAIRS:
        return pair_rounds(hosts, rounds=rounds, seed=seed)
    if kind is GroupKind.RAILS:
        return (tuple(Group(hosts=hosts, local_ranks=(r,)) for r in range(ranks)),)
    if kind is GroupKind.LADDER:
        return _ladder(hosts)
    middle = len(hosts) // 2
    return ((Group(hosts=hosts[:middle]), Group(hosts=hosts[middle:])),)


def pair_rounds(hosts: Sequence[str], *, rounds: int, seed: int) -> tuple[Wave, ...]:
    """Return up to `rounds` rounds of disjoint pairs in which no pair meets twice.

    Circle method over a seeded permutation: one seat is fixed, the others rotate by one per round.
    With an odd number of hosts, each round leaves out a different host. At most N - 1 rounds exist
    for an even N, and N for an odd one.
    """
    seats: list[str | None] = list(hosts)
    random.Random(seed).shuffle(seats)
    if len(seats) % 2:
        seats.append(None)
    half = len(seats) // 2
    result = []
    for _ in range(round_count(len(hosts), rounds)):
        pairs = ((seats[i], seats[-1 - i]) for i in range(half))
        result.append(
            tuple(Group(hosts=(a, b)) for a, b in pairs if a is not None and b is not None)
        )
        seats.insert(1, seats.pop())
    return tuple(result)


def round_count(hosts: int, rounds: int) -> int:
    """Return how many of `rounds` rounds of pairs exist for this number of hosts."""
    return max(0, min(rounds, hosts - 1 + hosts % 2))


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
