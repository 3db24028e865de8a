"""Choose what to measure again during a run: what separates the leading explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accept.core.groups import Group, Wave, on_each_rail, pair_rounds, round_count
from accept.core.judge import bounds
from accept.core.judge.effects.executions import Flow
from accept.core.judge.effects.follow_up import next_wave
from accept.core.judge.evidence import Checks, Evidence, Found
from accept.core.judge.explained import Explained
from accept.core.judge.results import compare, is_full_rail, scored
from accept.core.judge.values import is_bad
from accept.core.plan import GroupKind, Plan, Step
from accept.core.records import Record
from accept.core.table import BANDWIDTH

#: Rounds of pairs that follow a slow rail: three name one host without accusing another.
_RAIL_ROUNDS = 3


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

    Pairs, of full hosts or on each rail: the next wave that separates the leading explanations;
    call this again after it. Single hosts and blocks of a ladder: one wave of the outliers. Slow
    rails: rounds of pairs of their local ranks, which name the host.
    """
    evidences = [
        Evidence(
            check=name,
            plan=plan,
            steps=(step,),
            records=tuple(records),
            found=Found(present=tuple(hosts), places=places, domains=domains),
            flow=rules.flow if (rules := checks.get(name)) else Flow.RAILS,
        )
        for name in step.checks
    ]
    compared = list(scored(evidences, checks))
    found = compare(compared).speed
    if step.groups.of_pairs:
        wave = _next_pairs(found, step, records, hosts)
        if wave and step.groups is GroupKind.RAIL_PAIRS:
            wave = on_each_rail(wave, sorted({r for record in records for r in record.local_ranks}))
        return (wave,) if wave else ()
    if step.groups is GroupKind.RAILS:
        if any(len(record.hosts) == 2 for record in records):
            return ()
        slow = {rank for one in compared for rank in _slow_rails(one, found, step)}
        rounds = pair_rounds(hosts, rounds=_RAIL_ROUNDS, seed=plan.seed)
        return tuple(on_each_rail(wave, sorted(slow)) for wave in rounds) if slow else ()
    repeated = len({(r.hosts, r.local_ranks) for r in records}) < len(records)
    if repeated or step.groups not in (GroupKind.EACH, GroupKind.LADDER):
        return ()
    groups = {
        Group(hosts=found.executions[i].hosts): None
        for one in compared
        for i in found.of(one.check, step)
        if found.is_affected(i)
    }
    return (tuple(groups),) if groups else ()


def _next_pairs(
    found: Explained, step: Step, records: Sequence[Record], hosts: Sequence[str]
) -> Wave:
    """Return the next wave of pairs; empty if nothing is open or the step has no more waves."""
    waves = max((record.wave for record in records), default=-1) + 1
    done = max(0, waves - round_count(len({h for r in records for h in r.hosts}), step.rounds))
    if done >= step.repeats:
        return ()
    pairs = next_wave(found.explanation, found.executions, hosts)
    return tuple(Group(hosts=pair) for pair in pairs)


def _slow_rails(evidence: Evidence, found: Explained, step: Step) -> set[int]:
    """Return the local ranks whose rail failed or is slow, also if most of them are below a bound.

    If rails differ by so much that nothing shows which of them are normal, all are returned.
    """
    logs = {r.log for r in evidence.of_step(step) if is_full_rail(r, evidence.hosts)}
    bound = bounds.lowest(evidence, step, BANDWIDTH)
    slow, every = set(), set()
    for i in found.of(evidence.check, step):
        one = found.executions[i]
        ranks = {rank for own in one.gpus for rank in own or ()} if one.log in logs else set()
        every |= ranks
        if found.is_affected(i) or is_bad(one.value, bound):
            slow |= ranks
    return slow or (every if found.is_uneven(evidence.check, step) else set())
