"""What is measured again while the run goes on: who stood out, against who is known to be good."""

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
from accept.core.model import Plan, Record, Step

#: Rounds of pairs that follow a slow rail: three name a single host without accusing another.
_RAIL_ROUNDS = 3

#: Up to so many hosts those in doubt meet, in so many waves at most: all of four suspects do.
_SMALL, _MEETINGS = 64, 3
#: Where more than one host in so many is in no block, that says nothing about it.
_RARE = 4

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
    """What is to follow the waves of a step, and belongs to it.

    Pairs: suspects against good hosts, in one wave, then those of whom it is not known whether they
    are slow or far. Single hosts and blocks of a ladder: those that stood out, in one wave. A slow
    rail: rounds of pairs of its local rank, which name the host.
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
    measured = list(scored(evidences, checks))
    near = (domains or find_blocks(measured, places)) if step.groups == "pairs" else ()
    suspects: set[str] = set()
    links: list[_Pair] = []
    groups: list[Group] = []
    rails: set[int] = set()
    for evidence, score in measured:
        if step.groups == "pairs":
            for part in split_by_distance(replace(evidence, near=near), step):
                samples = to_samples(part, score, step, part.records)
                some, pairs = doubtful(samples, plan.machine.noise, places)
                suspects |= some
                links += pairs
        elif step.groups == "rails":
            rails.update(slow_rails(evidence, score, step))
        else:
            groups += slow_groups(evidence, score, step)
    if step.groups == "rails":
        rounds = pair_rounds(hosts, rounds=_RAIL_ROUNDS, seed=plan.seed)
        return tuple(
            tuple(replace(group, local_ranks=(rank,)) for group in wave)
            for rank in sorted(rails)
            for wave in rounds
        )
    met = {frozenset(record.hosts) for record in records}
    wave = confirming(hosts, suspects, links, met, seed=plan.seed) or tuple(dict.fromkeys(groups))
    # Who is in no domain is known to be far: only who is slow is not.
    mutual = meeting(hosts, suspects, () if domains else near, met)
    mutual = mutual if step.groups == "pairs" else ()
    return (wave, *mutual) if wave else mutual


def doubtful(
    samples: Sequence[Sample], noise: float, places: Mapping[str, str]
) -> tuple[set[str], list[_Pair]]:
    """Hosts, and pairs between other hosts, that rounds of pairs give reason to measure again."""
    found = decode(samples, noise, places=places, alarms=CANDIDATES)
    accused = [*found.nodes, *found.switches]
    suspects = {host for one in accused for host in one.hosts}.union(found.unknown)
    return suspects, [link.hosts for link in found.links if suspects.isdisjoint(link.hosts)]


def confirming(
    hosts: Sequence[str],
    suspects: set[str],
    links: Sequence[_Pair],
    met: set[frozenset[str]],
    *,
    seed: int,
) -> Wave:
    """A wave of disjoint pairs that confirms or clears; none where there is nobody to doubt.

    Each suspect meets a good host, one that it did not meet before where there is one, and a
    doubtful pair is measured again. The other good hosts meet each other, so that the network
    carries what it did before.
    """
    if not suspects and not links:
        return ()
    good = [host for host in hosts if host not in suspects.union(*links)]
    random.Random(seed).shuffle(good)
    result: list[_Pair] = []
    for link in links:
        if suspects.isdisjoint(link) and all(set(link).isdisjoint(other) for other in result):
            result.append(link)
    for host in (host for host in hosts if host in suspects):
        result += _met_by(host, good, met)
    while len(good) > 1:
        result += _met_by(good.pop(), good, met)
    return tuple(Group(hosts=pair) for pair in result)


def meeting(
    hosts: Sequence[str],
    suspects: set[str],
    near: Sequence[frozenset[str]],
    met: set[frozenset[str]],
) -> tuple[Wave, ...]:
    """Waves that tell who is far from who is slow; none among many hosts.

    Hosts that are far from all others and near each other look like bad ones until they meet: each
    suspect meets the others, and a host of no block, where that is rare, the others and one of
    each. The few rounds of a small cluster leave that to chance.
    """
    if len(hosts) > _SMALL:
        return ()
    doubted = [host for host in hosts if host in suspects]
    wanted = [(a, frozenset((b,))) for a, b in combinations(doubted, 2)]
    alone = [host for host in hosts if not any(host in block for block in near)]
    if len(alone) * _RARE <= len(hosts):
        wanted += [(a, frozenset((b,))) for a, b in combinations(alone, 2)]
        wanted += [(host, block) for block in near for host in alone]
    open_ = [
        (host, others)
        for host, others in wanted
        if not any(frozenset((host, other)) in met for other in others)
    ]
    waves = []
    for _ in range(_MEETINGS):
        busy: set[str] = set()
        pairs = []
        for host, others in tuple(open_):
            other = next((o for o in hosts if o in others and o not in busy), None)
            if other is not None and host not in busy:
                busy |= {host, other}
                pairs.append(Group(hosts=(host, other)))
                open_.remove((host, others))
        waves.append(tuple(pairs))
    return tuple(filter(None, waves))


def _met_by(host: str, good: list[str], met: set[frozenset[str]]) -> list[_Pair]:
    """A pair of `host` and one of `good`, which is taken out."""
    if not good:
        return []
    new = (i for i, other in enumerate(good) if frozenset((host, other)) not in met)
    return [(host, good.pop(next(new, 0)))]
