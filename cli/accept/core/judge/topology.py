"""Find hosts that are near each other, from their places or from the speed of their pairs.

On healthy clusters, too, hosts under the same switch are faster than hosts under two switches. If
the places of the hosts do not show how they are wired, the fast pairs do: hosts joined by fast
pairs are a block. Pairs of two blocks are compared with each other only, in each population where
distance explains how much slower they are. A loss of more than `DISTANCE` is not distance but a
fault, and is left to `accept.core.judge.blame`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log

from accept.core.judge.pairs import Measurement, Population, healthy_spread
from accept.core.judge.robust_stats import FEWEST, median_of, spread

#: A smaller difference between near and far pairs, as a share, is not due to distance.
_MIN_DISTANCE = 0.02
#: The largest loss of speed by distance, as a share: ten hosts under three switches lost 11 %
#: (real logs: github.com/xxrjun/nccl-tests-cluster at 455de4f).
DISTANCE = 0.15
#: Noise of a measured distance.
_TOLERANCE = 0.01
#: Number of the widest gaps between speeds that are tried as the border between near and far.
_MAX_GAPS = 5
#: If at least one host in this many is in no block, no host is suspected for that.
_HOSTS_PER_LONER = 4
#: On larger clusters, a few rounds of pairs leave many hosts without a near partner.
_MAX_HOSTS_FOR_LONERS = 64

Blocks = tuple[frozenset[str], ...]


def find_blocks(populations: Iterable[Population], places: Mapping[str, str]) -> Blocks:
    """Return the blocks of hosts that are near each other; none if the pairs show no blocks.

    The population with the most pairs decides. If it shows no blocks, it is tried again with the
    deficits of slow hosts removed, because the near pairs of a slow host do not look fast.
    """
    populations = sorted(populations, key=lambda population: -len(population.measurements))
    shares: dict[tuple[int, str], float] | None = None
    for population in populations:
        pairs = population.measurements
        if blocks := blocks_by_place(pairs, places) or blocks_by_speed(pairs):
            return blocks
        shares = _slow_shares(populations) if shares is None else shares
        if blocks := blocks_by_speed(_without_deficit(pair, shares) for pair in pairs):
            return blocks
    return ()


def near_and_far(
    population: Population, blocks: Blocks, *, limited: bool = True
) -> list[Population]:
    """Return the near pairs and the far pairs of a population.

    It stays one population without blocks, and if the two differ by more than distance explains:
    then the slower ones are a fault. NVLink domains are not `limited`, because pairs inside them
    use no network. Too few far pairs cannot be compared with each other. The near ones show how
    fast they should be at least.
    """
    near: list[Measurement] = []
    far: list[Measurement] = []
    for pair in population.measurements:
        (near if is_near(pair.hosts, blocks) else far).append(pair)
    if not near or not far or (limited and not _explains(near, far, blocks)):
        return [population]
    parts = []
    for part, other, loss in ((near, far, 0.0), (far, near, DISTANCE)):
        bound = population.bound
        if healthy_spread(part, population.noise, bound) is None:
            others = healthy_spread(other, population.noise, bound)
            bound = others.median * (1 - loss) if others else bound
        parts.append(replace(population, measurements=tuple(part), bound=bound))
    return parts


def is_near(hosts: Collection[str], blocks: Blocks) -> bool:
    """Return True if all hosts of a pair are in one block."""
    return any(block.issuperset(hosts) for block in blocks)


def _explains(near: Sequence[Measurement], far: Sequence[Measurement], blocks: Blocks) -> bool:
    """Return True if distance explains how much near and far pairs of one population differ.

    The pairs of a host in no block count only if there are no others: it may be slow.
    """
    known = frozenset[str]().union(*blocks)
    between = [pair for pair in far if known.issuperset(pair.hosts)]
    medians = [
        median_of(values)
        for pairs in (near, between or far)
        if (values := [pair.value for pair in pairs if pair.value and not pair.cause])
    ]
    return len(medians) < 2 or min(medians) >= (1 - DISTANCE - _TOLERANCE) * max(medians)


def blocks_by_place(pairs: Sequence[Measurement], places: Mapping[str, str]) -> Blocks:
    """Return the blocks of hosts that share a place; none unless distance slows the far pairs."""
    groups: dict[str, set[str]] = {}
    for host in {host for pair in pairs for host in pair.hosts}:
        groups.setdefault(places.get(host, "").rpartition("/")[0], set()).add(host)
    if "" in groups:
        return ()
    near: list[float] = []
    far: list[float] = []
    for pair in pairs:
        if pair.value and not pair.cause and len(pair.hosts) == 2:
            together = any(group.issuperset(pair.hosts) for group in groups.values())
            (near if together else far).append(pair.value)
    return tuple(map(frozenset, groups.values())) if _is_distance(near, far) else ()


def blocks_by_speed(pairs: Iterable[Measurement]) -> Blocks:
    """Return the blocks of hosts that fast pairs join; none if the pairs show no blocks."""
    known = [(p.value, p.hosts) for p in pairs if p.value and not p.cause and len(p.hosts) == 2]
    if len(known) < 2 * FEWEST or min(value for value, _ in known) <= 0:
        return ()
    speeds = sorted(log(value) for value, _ in known)
    gaps = sorted(((b - a, (a + b) / 2) for a, b in pairwise(speeds)), reverse=True)
    for gap, border in gaps[:_MAX_GAPS]:
        if gap < _MIN_DISTANCE:
            break
        blocks = _joined(hosts for value, hosts in known if log(value) > border)
        block_of = {host: index for index, block in enumerate(blocks) for host in block}
        far = {
            frozenset(hosts): value
            for value, hosts in known
            if log(value) < border
            and None not in (block_of.get(hosts[0]), block_of.get(hosts[1]))
            and block_of[hosts[0]] != block_of[hosts[1]]
        }
        near = [value for value, _ in known if log(value) > border]
        if len(blocks) > 1 and len(far) >= FEWEST and _is_distance(near, [*far.values()]):
            return blocks
    return ()


def _is_distance(near: Sequence[float], far: Sequence[float]) -> bool:
    """Return True if far pairs are slower than near ones, and by no more than distance costs."""
    if not near or not far:
        return False
    return _MIN_DISTANCE <= 1 - median_of(far) / median_of(near) <= DISTANCE + _TOLERANCE


def lone_hosts(hosts: Collection[str], blocks: Blocks) -> list[str]:
    """Return the hosts without any fast pair: slow, or alone under their switch.

    In large clusters, and if they are many, chance explains that they met no near host: then none
    is returned.
    """
    in_blocks = frozenset[str]().union(*blocks)
    lone = [host for host in hosts if blocks and host not in in_blocks]
    few = _HOSTS_PER_LONER * len(lone) <= len(hosts) <= _MAX_HOSTS_FOR_LONERS
    return lone if few else []


def _joined(pairs: Iterable[tuple[str, ...]]) -> Blocks:
    """Return the groups of hosts that pairs join: union-find with path halving."""
    parents: dict[str, str] = {}

    def root(host: str) -> str:
        parents.setdefault(host, host)
        while parents[host] != host:
            parents[host] = host = parents[parents[host]]
        return host

    for a, b in pairs:
        parents[root(a)] = root(b)
    groups: dict[str, set[str]] = {}
    for host in parents:
        groups.setdefault(root(host), set()).add(host)
    return tuple(frozenset(group) for group in groups.values())


def _slow_shares(populations: Iterable[Population]) -> dict[tuple[int, str], float]:
    """Return the share of the median that slow hosts reach, the lowest of all populations.

    The key is the number of GPUs and the host.
    """
    lowest: dict[tuple[int, str], float] = {}
    for population in populations:
        for key, share in _slow_shares_of(population):
            lowest[key] = min(lowest.get(key, 1.0), share)
    return lowest


def _slow_shares_of(population: Population) -> Iterator[tuple[tuple[int, str], float]]:
    live = [m for m in population.measurements if m.value is not None and not m.cause]
    peers = spread([m.value or 0.0 for m in live], population.noise)
    if peers is None or not 0 < peers.sigma <= _MIN_DISTANCE * peers.median:
        return
    shares: dict[tuple[int, str], list[float]] = {}
    for measurement in live:
        for host in measurement.hosts:
            share = (measurement.value or 0.0) / peers.median
            shares.setdefault((_width(measurement), host), []).append(share)
    for key, host_shares in shares.items():
        if median_of(host_shares) < 1 - _MIN_DISTANCE:
            yield key, median_of(host_shares)


def _width(measurement: Measurement) -> int:
    return len(measurement.gpus[0] or ())


def _without_deficit(
    measurement: Measurement, slow_shares: Mapping[tuple[int, str], float]
) -> Measurement:
    """Return a measurement with the value that it would have if its hosts were not slow."""
    if measurement.value is None:
        return measurement
    width = _width(measurement)
    shares = (slow_shares.get((width, host), 1.0) for host in measurement.hosts)
    return measurement._replace(value=measurement.value / min(shares, default=1.0))
