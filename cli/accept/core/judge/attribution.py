"""Attribute the bad pairs of a run: from records to suspects.

All steps and checks that measure pairs of hosts are one pool (`accept.core.judge.blame`). Wrong
data is attributed apart from speed, because it has other reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from accept.core.causes import Cause
from accept.core.facts import NCCL_NICS
from accept.core.judge import bounds
from accept.core.judge.blame import Attribution, attribute, units
from accept.core.judge.evidence import Evidence
from accept.core.judge.groups import is_full_rail
from accept.core.judge.pair_results import OF_HOST, PairResults
from accept.core.judge.pairs import Event, Measurement, Population, events, healthy_spread
from accept.core.judge.robust_stats import FALSE_ALARMS, FEWEST, median_of
from accept.core.judge.topology import Blocks, find_blocks, near_and_far
from accept.core.model import GroupKind, Step
from accept.core.table import BANDWIDTH, Measure, Outcome, planned_sizes


def examine(
    scored: Iterable[Evidence],
    places: Mapping[str, str],
    domains: Blocks,
    *,
    measure: Measure = BANDWIDTH,
    noise: float = 0.0,
) -> PairResults:
    """Attribute the bad pairs of some checks, which share their evidence.

    `noise`: noise of healthy pairs, if it is larger than that of the machine.
    """
    populations: dict[tuple[str, str], Population] = {}
    rails: dict[tuple[str, str], Mapping[int, float]] = {}
    nics: dict[str, dict[int, frozenset[str]]] = {}
    evidences: dict[tuple[str, str], Evidence] = {}
    order: tuple[str, ...] = ()
    for evidence in scored:
        order = order or evidence.hosts
        own_names = {name: host for host, name in (evidence.hostnames or {}).items()}
        for _, by_host in NCCL_NICS.of(*evidence.records):
            for host, by_gpu in by_host.items():
                known = nics.setdefault(own_names.get(host, host), {})
                for gpu, names in by_gpu.items():
                    known[gpu] = known.get(gpu, frozenset()) | names
        for step in evidence.steps:
            if shares := _rail_shares(evidence, step):
                rails[evidence.check, step.id] = shares
            found = tuple(_measurements(evidence, step, measure))
            if found:
                key = (evidence.check, step.id)
                width = max(evidence.plan.machine.noise, noise)
                populations[key] = Population(measurements=found, noise=width)
                evidences[key] = replace(
                    evidence, steps=(step,), records=tuple(evidence.of_step(step))
                )
    blocks = domains or find_blocks(populations.values(), places)
    parts = {
        key: tuple(
            _with_bound(part, evidences[key], measure)
            for part in near_and_far(
                _with_bound(population, evidences[key], measure), blocks, limited=not domains
            )
        )
        for key, population in populations.items()
    }
    pool = [part for own in parts.values() for part in own]
    slow = attribute(events(map(_of_speed, pool)), places=places)
    by_population = _by_population(parts, slow, places)
    groups = [event for own in by_population.values() for b in own.blamed for event in b.events]
    explained = {_execution(event) for event in groups}
    collapsed = tuple(e for e in slow.collapsed if _execution(e) not in explained)
    return PairResults(
        slow=replace(slow, collapsed=collapsed),
        by_population=by_population,
        wrong=attribute(events(_of_results(pool)), places=places),
        blocks=blocks,
        populations=parts,
        rails=rails,
        nics=nics,
        order=order,
    )


def _by_population(
    parts: Mapping[tuple[str, str], Sequence[Population]],
    pooled: Attribution,
    places: Mapping[str, str],
) -> dict[tuple[str, str], Attribution]:
    """Return what single populations show by themselves and the pool of all does not.

    In the pool, a collapse in one of several collectives or steps looks like a good pair with some
    bad results. Here it shows a fault of the network, or pairs that are open: one collective alone
    accuses no host. All populations together are wrong by chance as often as the pool.
    """
    known = {
        (check, *_execution(event))
        for one in pooled.blamed
        for event in one.events
        for check in event.checks
    }
    result: dict[tuple[str, str], Attribution] = {}
    for (check, step), own in parts.items() if len(parts) > 1 else ():
        if all(healthy_spread(p.measurements, p.noise, p.bound) is None for p in own):
            continue  # nothing but a bound, whose finding reports it
        found = events(map(_of_speed, own))
        new = {e for e in found if e.collapsed and (check, *_execution(e)) not in known}
        if not new:
            continue
        alone = attribute(found, places=places, alarms=FALSE_ALARMS / len(parts))
        of_hosts = [event for b in alone.blamed if b.kind in OF_HOST for event in b.events]
        open_pairs = (*alone.open_pairs, *units(of_hosts))
        result[check, step] = replace(
            alone,
            blamed=tuple(
                one
                for one in alone.blamed
                if one.kind not in OF_HOST and not new.isdisjoint(one.events)
            ),
            open_pairs=tuple(unit for unit in open_pairs if not new.isdisjoint(unit.events)),
            collapsed=tuple(event for event in alone.collapsed if event in new),
        )
    return result


def _execution(event: Event) -> tuple[object, ...]:
    return event.step, event.log, event.wave, event.hosts


def _measurements(evidence: Evidence, step: Step, measure: Measure) -> Iterator[Measurement]:
    """Yield the measurements of pairs of hosts in one step."""
    if not step.groups.of_pairs and step.groups is not GroupKind.RAILS:
        return
    # In a run of two hosts, a pair is a full rail.
    if step.groups is GroupKind.RAILS and len(evidence.hosts) <= 2:
        return
    for row in evidence.results(measure, step):
        if len(set(row.hosts)) == 2 and row.outcome is not Outcome.MISSING:
            yield Measurement(
                row.hosts,
                None if row.outcome is Outcome.FAILED else row.score,
                row.cause,
                log=row.log,
                gpus=row.execution.gpus,
                step=step.id,
                wave=row.wave,
                check=evidence.check,
                alone=row.execution.alone,
                repeated=row.execution.repeated,
            )


def _rail_shares(evidence: Evidence, step: Step) -> dict[int, float]:
    """Return the values of the full rails of a step, as shares of their median."""
    values: dict[int, list[float]] = {}
    for row in evidence.results(step=step) if step.groups is GroupKind.RAILS else ():
        is_rail = is_full_rail(row.execution.record, evidence.hosts) and row.ranks
        if is_rail and row.outcome is not Outcome.MISSING:
            value = row.score if row.outcome is Outcome.OK else None
            values.setdefault(row.ranks[0], []).append(value or 0.0)
    best = {rank: max(own) for rank, own in values.items()}
    median = median_of(best.values()) if len(best) >= FEWEST else 0.0
    return {rank: value / median for rank, value in best.items()} if median > 0 else {}


def _with_bound(population: Population, evidence: Evidence, measure: Measure) -> Population:
    """Return a population with the bound that its pairs should reach, if there is one."""
    if population.bound is not None:
        return population
    step = evidence.steps[0]
    pairs = {frozenset(m.hosts) for m in population.measurements}
    records = tuple(r for r in evidence.records if frozenset(r.hosts) in pairs)
    # Bounds of a latency are for single sizes, not for the median.
    if measure.inverse or all(not r.local_ranks and r.ranks == 1 for r in records):
        return population
    # Pairs are compared by the value at the largest size of their step.
    top = planned_sizes(step)[-1:]
    part = replace(evidence, records=records)
    return replace(population, bound=bounds.highest_lower_bound(part, 2, measure.metric, top=top))


def _of_speed(population: Population) -> Population:
    """Return a population in which wrong data is not bad; results without a value are left out."""
    kept = (
        m._replace(cause=None) if m.cause is Cause.WRONG_DATA else m
        for m in population.measurements
        if m.cause is not Cause.WRONG_DATA or m.value is not None
    )
    return replace(population, measurements=tuple(kept))


def _of_results(pool: Sequence[Population]) -> list[Population]:
    """Return populations in which only wrong data is bad; none if all results are correct."""
    if not any(m.cause is Cause.WRONG_DATA for p in pool for m in p.measurements):
        return []
    return [
        replace(
            population,
            bound=None,
            measurements=tuple(
                m if m.cause else m._replace(value=1.0)
                for m in population.measurements
                if m.cause in (None, Cause.WRONG_DATA) and m.value is not None
            ),
        )
        for population in pool
    ]
