"""Choose what to measure again during a run: outliers, paired with hosts known to be good."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import log

from accept.core.groups import Group, Wave, on_each_rail, pair_rounds, round_count
from accept.core.judge.attribution import examine
from accept.core.judge.blame import Attribution
from accept.core.judge.bounds import highest_lower_bound
from accept.core.judge.evidence import Checks, Evidence
from accept.core.judge.groups import is_full_rail, scored, slow_groups, slow_rails
from accept.core.judge.pair_results import network_faults
from accept.core.judge.pairs import Event
from accept.core.judge.robust_stats import FALSE_ALARMS
from accept.core.judge.topology import Blocks, lone_hosts
from accept.core.model import GroupKind, Plan, Record, Step, Strength, SuspectKind
from accept.core.table import BANDWIDTH, planned_sizes

#: Rounds of pairs that follow a slow rail: three name one host without accusing another.
_RAIL_ROUNDS = 3
#: Suspects meet each other only if there are at most this many.
_MOST_MUTUAL = 16
#: If at most this many nodes are blamed, each of them meets each of the others.
_FEW_MUTUAL = 6
#: One wave in this many measures collapsed pairs again even if their hosts are in doubt.
_PAIRS_EVERY = 6
#: The kinds of groups of hosts that are good with each other.
_OF_GROUP = (SuspectKind.BORDER, SuspectKind.LEAF, SuspectKind.SWITCH)
#: Number of last waves that measure single pairs even if their hosts are in doubt.
_LAST = 2
#: Number of bad repetitions after which an intermittently bad host needs no more.
_CONFIRMED = 4


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
    """Return the waves that should follow those of a step, and belong to it; empty: none.

    Pairs, of full hosts or on each rail: the next wave that confirms or clears suspects; call this
    again after it. Single hosts and blocks of a ladder: one wave of the outliers. Slow rails:
    rounds of pairs of their local ranks, which name the host.
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
    compared = list(scored(evidences, checks))
    if step.groups.of_pairs:
        found = examine(compared, places, domains)
        met = {frozenset(record.hosts) for record in records}
        waves = max((record.wave for record in records), default=-1) + 1
        done = waves - round_count(len({h for r in records for h in r.hosts}), step.rounds)
        wave = next_wave(
            found.slow,
            hosts,
            met,
            # NVLink domains are known, so nothing needs to be measured to find them.
            blocks=() if domains else found.blocks,
            done=max(0, done),
            limit=step.repeats,
            seed=plan.seed,
        )
        if wave and step.groups is GroupKind.RAIL_PAIRS:
            wave = on_each_rail(wave, sorted({r for record in records for r in record.local_ranks}))
        return (wave,) if wave else ()
    repeated = len({(r.hosts, r.local_ranks) for r in records}) < len(records)
    if step.groups is GroupKind.RAILS:
        slow = {
            rank
            for evidence in compared
            for rank in slow_rails(evidence, step, _rail_bound(evidence, step))
        }
        if any(len(record.hosts) == 2 for record in records):
            return ()
        rounds = pair_rounds(hosts, rounds=_RAIL_ROUNDS, seed=plan.seed)
        return tuple(on_each_rail(wave, sorted(slow)) for wave in rounds) if slow else ()
    if repeated:
        return ()
    groups = [group for evidence in compared for group in slow_groups(evidence, step)]
    return (tuple(dict.fromkeys(groups)),) if groups else ()


def _rail_bound(evidence: Evidence, step: Step) -> float | None:
    """Return the bandwidth that the full rails of a step must reach; None: unknown."""
    rails = [r for r in evidence.of_step(step) if is_full_rail(r, evidence.hosts)]
    if not rails:
        return None
    part = replace(evidence, records=tuple(rails))
    nodes = max(len(record.hosts) for record in rails)
    return highest_lower_bound(part, nodes, BANDWIDTH.metric, top=planned_sizes(step)[-1:])


def next_wave(
    found: Attribution,
    hosts: Sequence[str],
    met: Collection[frozenset[str]],
    *,
    blocks: Blocks = (),
    done: int,
    limit: int,
    seed: int,
) -> Wave:
    """Return the next wave of pairs that confirms or clears suspects; empty if nothing is open.

    Each suspect is paired with a good host, a new partner if possible, and suspects with each
    other. Hosts in doubt meet hosts on their own side of a faulty group, because pairs across its
    edge are bad anyway. Hosts in none of `blocks` are paired with each other and with a host of
    each block. Then each collapsed pair that no host explains is measured again, finally with
    nothing else running, unless there are so many that the fabric is the reason. The other good
    hosts are paired with each other, so that the network carries the same load as before. `met`
    holds the pairs that were measured already, `done` is the number of repeat waves so far, of at
    most `limit`.
    """
    if done >= limit:
        return ()
    chance = random.Random(f"{seed}:{done}")
    suspects, unmet = _suspects(found), _unmet(found, met)
    unmet += _loner_pairs(hosts, blocks, met)
    suspects |= {host for pair in unmet for host in pair}
    by_pair: dict[tuple[str, ...], list[Event]] = {}
    for unit in found.open_pairs:
        by_pair.setdefault(unit.hosts, []).extend(unit.events)
    collapsed = {pair: own for pair, own in by_pair.items() if any(e.collapsed for e in own)}
    # Only pairs of the planned rounds, because chance decides which pairs the later waves add.
    planned = {p: own for p, own in collapsed.items() if not all(e.repeated for e in own)}
    twice = [
        pair
        for pair, own in planned.items()
        if len(own) > 1 and all(e.bad for e in own) and not any(e.alone for e in own)
    ]
    # New partners first: they decide about hosts. But a host may stay in doubt because of a pair.
    last = done >= limit - _LAST
    clear = [pair for pair in twice if last or suspects.isdisjoint(pair)]
    # If the fabric is blamed for its many bad pairs, none of them needs to be measured alone.
    flaky = any(one.kind is SuspectKind.FABRIC for one in network_faults(found))
    if clear and not flaky:
        return (Group(hosts=clear[0]),)
    its_turn = done % _PAIRS_EVERY == _PAIRS_EVERY - 1
    again = [
        pair
        for pair, own in planned.items()
        if len(own) == 1 and (its_turn or suspects.isdisjoint(pair))
    ]
    if not suspects and not again:
        return ()
    busy: set[str] = set()
    pairs: list[tuple[str, ...]] = []

    def add(pair: tuple[str, ...]) -> None:
        pairs.append(pair)
        busy.update(pair)

    for two in (*again, *unmet):
        if busy.isdisjoint(two):
            add(two)
    doubted = suspects.union(*collapsed)
    good = [host for host in hosts if host not in doubted and host not in busy]
    chance.shuffle(good)
    groups = [{*one.hosts} for one in found.blamed if len(one.hosts) > 1]
    for host in (h for h in hosts if h in suspects):
        if host not in busy:
            # If no good host is left, a doubtful one is better than none.
            others = [h for h in hosts if h not in busy and h != host and h in doubted]
            # Across the edge of a faulty group, a pair is bad no matter how good the host is.
            across = groups if host in found.doubtful else []
            for pair in _pair_with_good(host, good or others, met, across):
                add(pair)
    rest = good + [h for h in hosts if h in doubted and h not in busy and h not in suspects]
    while len(rest) > 1:
        for pair in _pair_with_good(rest.pop(), rest, met):
            add(pair)
    return tuple(Group(hosts=pair) for pair in pairs)


def _suspects(found: Attribution) -> set[str]:
    """Return the hosts to measure again: doubtful ones, and accused ones without enough proof.

    An accused host, or group, is measured until chance explains its bad repetitions in fewer than
    one of a thousand clusters, and accused hosts until each has met another one.
    """
    suspects = {*found.doubtful, *found.unknown}
    needed = max(1, round(log(FALSE_ALARMS) / log(found.background))) if found.background else 1
    for one in found.blamed:
        confirmed = sum(event.repeated for event in one.events)
        if confirmed < (needed if one.strength is Strength.STRONG else max(needed, _CONFIRMED)):
            suspects.update(one.hosts)
    return suspects


def _unmet(found: Attribution, met: Collection[frozenset[str]]) -> list[tuple[str, str]]:
    """Return pairs of suspects that show whether they are bad, or what they share."""
    nodes = [h for b in found.blamed if b.kind is SuspectKind.NODE for h in b.hosts]
    hosts = list(dict.fromkeys((*nodes, *found.doubtful, *found.unknown)))
    if len(hosts) > _MOST_MUTUAL:
        return []
    unmet = [pair for pair in combinations(hosts, 2) if frozenset(pair) not in met]
    if len(nodes) <= _FEW_MUTUAL:
        unmet = [pair for pair in unmet if set(nodes).issuperset(pair)]
        # A host that is good with a member of a bad group is a member, too.
        for group in (set(b.hosts).difference(nodes) for b in found.blamed if b.kind in _OF_GROUP):
            strange = (h for h in nodes if not any(frozenset((h, o)) in met for o in group))
            unmet += zip(strange, sorted(group), strict=False)
        return unmet
    alone = {h for h in nodes if not any(frozenset((h, o)) in met for o in hosts if o != h)}
    return [pair for pair in unmet if not alone.isdisjoint(pair)]


def _loner_pairs(
    hosts: Sequence[str], blocks: Blocks, met: Collection[frozenset[str]]
) -> list[tuple[str, str]]:
    """Return pairs that separate hosts that are alone under their switch from slow ones."""
    lone = lone_hosts(hosts, blocks)
    pairs = [pair for pair in combinations(lone, 2) if frozenset(pair) not in met]
    for host in lone:
        for block in blocks:
            if not any(frozenset((host, other)) in met for other in block):
                pairs.append((host, min(block)))
    return pairs


def _pair_with_good(
    host: str,
    good: list[str],
    met: Collection[frozenset[str]],
    groups: Sequence[Collection[str]] = (),
) -> list[tuple[str, ...]]:
    """Return a pair of `host` and a good host, which is removed from `good`; [] if none is left.

    Hosts on the same side of the groups are preferred, then new partners.
    """
    if not good:
        return []
    new = [i for i, other in enumerate(good) if frozenset((host, other)) not in met]
    near = (i for i in new if all((host in g) is (good[i] in g) for g in groups))
    return [(host, good.pop(next(near, new[0] if new else 0)))]
