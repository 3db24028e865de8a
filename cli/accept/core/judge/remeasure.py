"""Choose what to measure again during a run: outliers, paired with hosts known to be good."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from accept.core.groups import Group, Wave, pair_rounds
from accept.core.judge.evidence import Checks, Evidence
from accept.core.judge.groups import scored, slow_groups, slow_rails, to_samples
from accept.core.judge.pairs import Sample, decode
from accept.core.judge.robust_stats import CANDIDATES
from accept.core.judge.topology import find_blocks, split_by_distance
from accept.core.model import GroupKind, Plan, Record, Step

#: Rounds of pairs that follow a slow rail: three name one host without accusing another.
_RAIL_ROUNDS = 3
#: On clusters of at most this many hosts, undecided hosts are also paired with each other.
_MAX_HOSTS_FOR_MUTUAL_PAIRS = 64
#: Number of waves for that; three waves are enough to pair four suspects with each other.
_MUTUAL_PAIR_WAVES = 3
#: If at least one host in this many is in no block, being in no block says nothing about a host.
_HOSTS_PER_LONER = 4

_Pair = tuple[str, ...]


def waves_again(
    plan: Plan,
    step: Step,
    records: Sequence[Record],
    hosts: Sequence[str],
    places: Mapping[str, str],
    domains: tuple[frozenset[str], ...] = (),
    *,
    checks: Checks,
) -> tuple[Wave, ...]:
    """Return the waves that should follow those of a step, and belong to it.

    Pairs: one wave of suspects with good hosts, then waves of hosts that are slow or far.
    Single hosts and blocks of a ladder: one wave of the outliers. A slow rail: rounds of pairs of
    its local rank, which name the host.
    """
    evidences = [
        Evidence(
            check=name,
            plan=plan,
            steps=(step,),
            records=tuple(records),
            hosts=tuple(hosts),
            domains=domains,
        )
        for name in step.checks
    ]
    with_scores = list(scored(evidences, checks))
    if step.groups is GroupKind.RAILS:
        slow = {
            rank for evidence, score in with_scores for rank in slow_rails(evidence, score, step)
        }
        rounds = pair_rounds(hosts, rounds=_RAIL_ROUNDS, seed=plan.seed)
        return tuple(
            tuple(replace(group, local_ranks=(rank,)) for group in wave)
            for rank in sorted(slow)
            for wave in rounds
        )
    if step.groups is not GroupKind.PAIRS:
        groups = [g for evidence, score in with_scores for g in slow_groups(evidence, score, step)]
        return (tuple(dict.fromkeys(groups)),) if groups else ()
    blocks = domains or find_blocks(with_scores, places)
    suspects: set[str] = set()
    links: list[_Pair] = []
    for evidence, score in with_scores:
        for part in split_by_distance(replace(evidence, near=blocks), step):
            samples = to_samples(part, score, step, part.records)
            part_suspects, part_links = doubtful(samples, plan.machine.noise, places)
            suspects |= part_suspects
            links += part_links
    met = {frozenset(record.hosts) for record in records}
    wave = confirming(hosts, suspects, links, met, seed=plan.seed)
    # A host in no NVLink domain is known to be far, so that need not be measured.
    mutual = meeting(hosts, suspects, () if domains else blocks, met)
    return (wave, *mutual) if wave else mutual


def doubtful(
    samples: Sequence[Sample], noise: float, places: Mapping[str, str]
) -> tuple[set[str], list[_Pair]]:
    """Return the hosts to measure again, and the pairs to measure again between other hosts."""
    decoded = decode(samples, noise, places=places, alarms=CANDIDATES)
    accusations = [*decoded.nodes, *decoded.switches]
    suspects = {host for accusation in accusations for host in accusation.hosts}
    suspects.update(decoded.unknown)
    return suspects, [link.hosts for link in decoded.links if suspects.isdisjoint(link.hosts)]


def confirming(
    hosts: Sequence[str],
    suspects: set[str],
    links: Sequence[_Pair],
    met: set[frozenset[str]],
    *,
    seed: int,
) -> Wave:
    """Return a wave of disjoint pairs that confirms or clears suspects; empty without suspects.

    Each suspect is paired with a good host, a new partner if possible. Each pair in `links` is
    measured again. The other good hosts are paired with each other, so that the network carries
    the same load as before. `met` holds the pairs that were measured already.
    """
    if not suspects and not links:
        return ()
    good = [host for host in hosts if host not in suspects.union(*links)]
    random.Random(seed).shuffle(good)
    pairs: list[_Pair] = []
    for link in links:
        if suspects.isdisjoint(link) and all(set(link).isdisjoint(pair) for pair in pairs):
            pairs.append(link)
    for host in (host for host in hosts if host in suspects):
        pairs += _pair_with_good(host, good, met)
    while len(good) > 1:
        pairs += _pair_with_good(good.pop(), good, met)
    return tuple(Group(hosts=pair) for pair in pairs)


def meeting(
    hosts: Sequence[str],
    suspects: set[str],
    near: Sequence[frozenset[str]],
    met: set[frozenset[str]],
) -> tuple[Wave, ...]:
    """Return waves that separate far hosts from slow ones; none on large clusters.

    Hosts that are far from all others and near each other look bad until they are paired with each
    other. So each suspect is paired with the other suspects. If few hosts are in no block, each of
    these is paired with the others and with one host of each block. The few rounds of a small
    cluster would leave that to chance.
    """
    if len(hosts) > _MAX_HOSTS_FOR_MUTUAL_PAIRS:
        return ()
    undecided = [host for host in hosts if host in suspects]
    wanted = [(a, frozenset((b,))) for a, b in combinations(undecided, 2)]
    loners = [host for host in hosts if not any(host in block for block in near)]
    if len(loners) * _HOSTS_PER_LONER <= len(hosts):
        wanted += [(a, frozenset((b,))) for a, b in combinations(loners, 2)]
        wanted += [(host, block) for block in near for host in loners]
    remaining = [
        (host, partners)
        for host, partners in wanted
        if not any(frozenset((host, partner)) in met for partner in partners)
    ]
    waves = []
    for _ in range(_MUTUAL_PAIR_WAVES):
        busy: set[str] = set()
        wave = []
        for host, partners in tuple(remaining):
            partner = next((h for h in hosts if h in partners and h not in busy), None)
            if partner is not None and host not in busy:
                busy |= {host, partner}
                wave.append(Group(hosts=(host, partner)))
                remaining.remove((host, partners))
        waves.append(tuple(wave))
    return tuple(filter(None, waves))


def _pair_with_good(host: str, good: list[str], met: set[frozenset[str]]) -> list[_Pair]:
    """Return a pair of `host` and a good host, which is removed from `good`; [] if none is left."""
    if not good:
        return []
    new = (i for i, other in enumerate(good) if frozenset((host, other)) not in met)
    return [(host, good.pop(next(new, 0)))]
