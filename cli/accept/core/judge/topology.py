"""Find hosts that are near each other, from their places or from the speed of their pairs.

On healthy clusters, too, hosts under the same switch are faster than hosts under two switches. If
the places of the hosts do not show how they are wired, the fast pairs do: hosts joined by fast
pairs are a block. If hosts of several blocks are all slow with each other, the reason is the
distance between the blocks, not a host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log

from accept.core.causes import Judgement
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Evidence, Score
from accept.core.judge.groups import to_samples
from accept.core.judge.pairs import Sample
from accept.core.judge.robust_stats import FEWEST, median_of, spread
from accept.core.model import Finding, GroupKind, Record, State, Step

#: A smaller difference between near and far pairs, as a share, is not due to distance.
_MIN_DISTANCE = 0.02
#: The largest loss of speed by distance, as a share: ten hosts under three switches lost 11 %
#: (real logs: github.com/xxrjun/nccl-tests-cluster at 455de4f).
DISTANCE = 0.15
#: Number of the widest gaps between speeds that are tried as the border between near and far.
_MAX_GAPS = 5


def find_blocks(
    scored: Iterable[tuple[Evidence, Score]], places: Mapping[str, str]
) -> tuple[frozenset[str], ...]:
    """Return the blocks of hosts that are near each other; none if the pairs show no blocks.

    Among the steps of all checks, the one with the most pairs decides. If a step shows no blocks,
    it is tried again with the deficits of slow hosts removed, because the near pairs of a slow
    host do not look fast.
    """
    steps = [
        (evidence.plan.machine.noise, to_samples(evidence, score, step, evidence.of_step(step)))
        for evidence, score in scored
        for step in evidence.steps
        if step.groups in (GroupKind.PAIRS, GroupKind.EACH)
    ]
    shares: dict[tuple[int, str], float] | None = None
    for _, samples in sorted(steps, key=lambda item: -len(item[1])):
        if blocks := blocks_by_place(samples, places) or blocks_by_speed(samples):
            return blocks
        shares = _slow_shares(steps) if shares is None else shares
        if blocks := blocks_by_speed(_without_deficit(sample, shares) for sample in samples):
            return blocks
    return ()


def blocks_by_place(
    samples: Sequence[Sample], places: Mapping[str, str]
) -> tuple[frozenset[str], ...]:
    """Return the blocks of hosts that share a place; none unless distance slows the far pairs."""
    groups: dict[str, set[str]] = {}
    for host in {host for sample in samples for host in sample.hosts}:
        groups.setdefault(places.get(host, "").rpartition("/")[0], set()).add(host)
    if "" in groups:
        return ()
    near: list[float] = []
    far: list[float] = []
    for sample in samples:
        if sample.value and not sample.cause and len(sample.hosts) == 2:
            together = any(group.issuperset(sample.hosts) for group in groups.values())
            (near if together else far).append(sample.value)
    if not near or not far:
        return ()
    if not _MIN_DISTANCE <= 1 - median_of(far) / median_of(near) <= DISTANCE:
        return ()
    return tuple(frozenset(group) for group in groups.values())


def blocks_by_speed(samples: Iterable[Sample]) -> tuple[frozenset[str], ...]:
    """Return the blocks of hosts that fast pairs join; none if the pairs show no blocks."""
    pairs = [(s.value, s.hosts) for s in samples if s.value and not s.cause and len(s.hosts) == 2]
    if len(pairs) < 2 * FEWEST or min(value for value, _ in pairs) <= 0:
        return ()
    speeds = sorted(log(value) for value, _ in pairs)
    gaps = sorted(((b - a, (a + b) / 2) for a, b in pairwise(speeds)), reverse=True)
    for gap, border in gaps[:_MAX_GAPS]:
        blocks = _joined(hosts for value, hosts in pairs if log(value) > border)
        block_of = {host: index for index, block in enumerate(blocks) for host in block}
        far_pairs = {
            frozenset(hosts)
            for value, hosts in pairs
            if log(value) < border
            and None not in (block_of.get(hosts[0]), block_of.get(hosts[1]))
            and block_of[hosts[0]] != block_of[hosts[1]]
        }
        if gap >= _MIN_DISTANCE and len(blocks) > 1 and len(far_pairs) >= FEWEST:
            return blocks
    return ()


def split_by_distance(evidence: Evidence, step: Step) -> list[Evidence]:
    """Return the evidence of one step; near and far pairs separately if it has both."""
    near: list[Record] = []
    far: list[Record] = []
    for record in evidence.of_step(step):
        together = any(block.issuperset(record.hosts) for block in evidence.near)
        (near if together else far).append(record)
    parts = [near, far] if near and far and step.groups is GroupKind.PAIRS else [[*near, *far]]
    return [replace(evidence, steps=(step,), records=tuple(part)) for part in parts]


def ambiguous_hosts(evidence: Evidence, step: Step, accused: Collection[str]) -> Iterator[Finding]:
    """Yield a finding on hosts, not `accused`, that are slow in all their pairs.

    Such a host is slow or alone under its switch; both look alike. It must have been paired with
    every block and with every other host outside the blocks. If NVLink domains are known, they
    show which hosts are near, so there is no finding.
    """
    if evidence.domains:
        return
    in_blocks = frozenset[str]().union(*evidence.near)
    partners: dict[str, set[str]] = {}
    for record in (
        evidence.of_step(step) if evidence.near and step.groups is GroupKind.PAIRS else ()
    ):
        for host in set(record.hosts) - in_blocks:
            partners.setdefault(host, set()).update(record.hosts)
    hosts = [
        host
        for host, met in partners.items()
        if host not in accused
        and met.issuperset(partners)
        and not any(block.isdisjoint(met) for block in evidence.near)
    ]
    if hosts:
        verb = "is slower in all its pairs" if len(hosts) == 1 else "are slower in all their pairs"
        yield Finding(
            check=evidence.check,
            judgement=Judgement.POPULATION,
            state=State.INCONCLUSIVE,
            message=f"step {step.id}: {host_list(hosts)} {verb}: slow, or on another switch. "
            "A `topology` command in the machine's file would show which",
            hosts=tuple(hosts),
        )


def _joined(pairs: Iterable[tuple[str, ...]]) -> tuple[frozenset[str], ...]:
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


def _slow_shares(
    steps: Iterable[tuple[float, Sequence[Sample]]],
) -> dict[tuple[int, str], float]:
    """Return the share of the median that slow hosts reach, the lowest of all steps.

    The key is the number of local ranks and the host.
    """
    lowest: dict[tuple[int, str], float] = {}
    for noise, samples in steps:
        for key, share in _slow_shares_of_step(samples, noise):
            lowest[key] = min(lowest.get(key, 1.0), share)
    return lowest


def _slow_shares_of_step(
    samples: Sequence[Sample], noise: float
) -> Iterator[tuple[tuple[int, str], float]]:
    values = {id(s): s.value for s in samples if s.value is not None and not s.cause}
    peers = spread([*values.values()], noise)
    if peers is None or not 0 < peers.sigma <= _MIN_DISTANCE * peers.median:
        return
    shares: dict[tuple[int, str], list[float]] = {}
    for sample in samples:
        for host in sample.hosts if id(sample) in values else ():
            share = values[id(sample)] / peers.median
            shares.setdefault((len(sample.ranks), host), []).append(share)
    for key, host_shares in shares.items():
        if median_of(host_shares) < 1 - _MIN_DISTANCE:
            yield key, median_of(host_shares)


def _without_deficit(sample: Sample, slow_shares: Mapping[tuple[int, str], float]) -> Sample:
    """Return a sample with the value that it would have if its hosts were not slow."""
    if sample.value is None:
        return sample
    shares = (slow_shares.get((len(sample.ranks), host), 1.0) for host in sample.hosts)
    return sample._replace(value=sample.value / min(shares, default=1.0))
