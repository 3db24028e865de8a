"""Pairs of hosts that are near each other and pairs that are far, told from what they reached.

Hosts under one switch reach more than hosts under two, on healthy clusters too. Where the places
of hosts do not say how they are wired, fast pairs tell: hosts that are joined by them are a block,
and where hosts of several blocks are all slow with each other, the distance between the blocks is
what slows them, and no host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log

from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Evidence, Score
from accept.core.judge.groups import to_samples
from accept.core.judge.pairs import Sample
from accept.core.judge.robust_stats import FEWEST, median_of, spread
from accept.core.model import Finding, Record, State, Step

#: Less than this between slow and fast, as a share, is no distance.
_GAP = 0.02
#: What distance takes, at most: hosts of ten under three switches lost 11 %
#: (real logs: github.com/xxrjun/nccl-tests-cluster at 455de4f).
DISTANCE = 0.15
#: Widest gaps that are looked at.
_GAPS = 5


def blocks_by_place(
    samples: Sequence[Sample], places: Mapping[str, str]
) -> tuple[frozenset[str], ...]:
    """Blocks of hosts that share a place, where pairs show that distance matters; else none."""
    groups: dict[str, set[str]] = {}
    for host in {host for sample in samples for host in sample.hosts}:
        groups.setdefault(places.get(host, "").rpartition("/")[0], set()).add(host)
    if "" in groups:
        return ()
    sides: tuple[list[float], list[float]] = ([], [])
    for sample in samples:
        if sample.value and not sample.cause and len(sample.hosts) == 2:
            sides[any(group.issuperset(sample.hosts) for group in groups.values())].append(
                sample.value
            )
    far, near = sides
    if not near or not far or not _GAP <= 1 - median_of(far) / median_of(near) <= DISTANCE:
        return ()
    return tuple(frozenset(group) for group in groups.values())


def blocks_by_speed(samples: Iterable[Sample]) -> tuple[frozenset[str], ...]:
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
    """Hosts that are joined by pairs, each group once: union-find with halving of paths."""
    above: dict[str, str] = {}

    def top(host: str) -> str:
        above.setdefault(host, host)
        while above[host] != host:
            above[host] = host = above[above[host]]
        return host

    for a, b in pairs:
        above[top(a)] = top(b)
    groups: dict[str, set[str]] = {}
    for host in above:
        groups.setdefault(top(host), set()).add(host)
    return tuple(frozenset(group) for group in groups.values())


def find_blocks(
    found: Iterable[tuple[Evidence, Score]], places: Mapping[str, str]
) -> tuple[frozenset[str], ...]:
    """The blocks that the step with the most pairs shows, of all checks.

    Where they show none, what slows a host is taken off: its fast pairs are not seen as such else.
    """
    steps = [
        (evidence.plan.machine.noise, to_samples(evidence, score, step, evidence.of_step(step)))
        for evidence, score in found
        for step in evidence.steps
        if step.groups in ("pairs", "each")
    ]
    most_first = sorted(steps, key=lambda item: -len(item[1]))
    slow = None
    for _, samples in most_first:
        if shown := blocks_by_place(samples, places) or blocks_by_speed(samples):
            return shown
        slow = _slow_by(steps) if slow is None else slow
        if shown := blocks_by_speed(_undone(sample, slow) for sample in samples):
            return shown
    return ()


def _slow_by(steps: Iterable[tuple[float, Sequence[Sample]]]) -> dict[tuple[int, str], float]:
    """What of the median slow hosts reach, by the number of their GPUs; the least of all steps."""
    slow: dict[tuple[int, str], float] = {}
    for noise, samples in steps:
        for key, share in _slowness(samples, noise):
            slow[key] = min(slow.get(key, 1.0), share)
    return slow


def _slowness(samples: Sequence[Sample], noise: float) -> Iterator[tuple[tuple[int, str], float]]:
    """Hosts that are slow, by the number of their GPUs: their share of the median."""
    live = {id(s): s.value for s in samples if s.value is not None and not s.cause}
    among = spread([*live.values()], noise)
    if among is None or not 0 < among.sigma <= _GAP * among.median:
        return
    shares: dict[tuple[int, str], list[float]] = {}
    for sample in samples:
        for host in sample.hosts if id(sample) in live else ():
            share = live[id(sample)] / among.median
            shares.setdefault((len(sample.ranks), host), []).append(share)
    for key, mine in shares.items():
        if median_of(mine) < 1 - _GAP:
            yield key, median_of(mine)


def _undone(sample: Sample, slow: Mapping[tuple[int, str], float]) -> Sample:
    if sample.value is None:
        return sample
    known = (slow.get((len(sample.ranks), host), 1.0) for host in sample.hosts)
    share = min(known, default=1.0)
    return sample._replace(value=sample.value / share)


def ambiguous_hosts(evidence: Evidence, step: Step, accused: Collection[str]) -> Iterator[Finding]:
    """A finding on hosts, not `accused`, that were far from all there are.

    They are slow, or alone under their switch, which look alike. All there are: each block, and
    each other host that is in none. Where blocks are NVLink domains nobody has to ask.
    """
    if evidence.domains:
        return
    known = frozenset[str]().union(*evidence.near)
    met: dict[str, set[str]] = {}
    for record in evidence.of_step(step) if evidence.near and step.groups == "pairs" else ():
        for host in set(record.hosts) - known:
            met.setdefault(host, set()).update(record.hosts)
    hosts = [
        host
        for host, others in met.items()
        if host not in accused
        and others.issuperset(met)
        and not any(block.isdisjoint(others) for block in evidence.near)
    ]
    if hosts:
        yield Finding(
            check=evidence.check,
            judgement="population",
            state=State.INCONCLUSIVE,
            message=f"step {step.id}: {host_list(hosts)} reached less in each pair, which most did "
            "not: slow, or farther away. A `topology` command in the machine's file would tell",
            hosts=tuple(hosts),
        )


def split_by_distance(evidence: Evidence, step: Step) -> list[Evidence]:
    """The evidence of one step; that of near and of far pairs by itself, where it has both."""
    near: list[Record] = []
    far: list[Record] = []
    for record in evidence.of_step(step):
        together = any(block.issuperset(record.hosts) for block in evidence.near)
        (near if together else far).append(record)
    parts = [near, far] if near and far and step.groups == "pairs" else [[*near, *far]]
    return [replace(evidence, steps=(step,), records=tuple(part)) for part in parts]
