"""Judged runs of simulated clusters, with the records that a run would leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.factories.judging import gpu_plan, judged
from tests.factories.simulated_cluster import Cluster, Measured
from tests.factories.verdicts import hosts_record, record, step, table

from accept.commands.judged import Judged
from accept.core.checks import REGISTRY
from accept.core.facts import GPUS
from accept.core.groups import Group, Wave, waves
from accept.core.judge.remeasure import waves_again
from accept.core.plan import GroupKind, Plan, Step
from accept.core.records import Fact, Record

#: The most waves that may follow those of a step, as in a run.
REPEATS = 10
#: The normal speed of a check in GB/s, unless it is 100.
_USUAL = {"alltoall": 40.0, "sendrecv": 45.0}

#: Measures the groups of a wave with this number.
Measure = Callable[[Wave, int], Iterable[Record]]


def records_of(
    planned: Plan,
    of: Step,
    hosts: Sequence[str],
    measure: Measure,
    *,
    ranks: int = 1,
    again: bool = True,
) -> list[Record]:
    """Return the records of a step; `again`: with those of the waves that the judge adds."""
    own: list[Record] = []
    todo = waves(of.groups, hosts, rounds=of.rounds, seed=planned.seed, ranks=ranks)
    while todo:
        for wave in todo:
            own += measure(wave, 1 + max((r.wave for r in own), default=-1))
        todo = waves_again(planned, of, own, hosts, {}, checks=REGISTRY) if again else ()
    return own


@dataclass(frozen=True, kw_only=True)
class SimulatedRun(Judged):
    """The judged run of a simulated cluster."""

    measured: tuple[Measured, ...]
    #: The number of waves that the judge added.
    added: int


def run_of(cluster: Cluster, rounds: int, *, seed: int = 1, again: bool = False) -> SimulatedRun:
    """Return the run of rounds of pairs on a cluster, and of what else it measures.

    `seed` is that of the schedule; `again`: the judge adds the waves that it needs.
    """
    steps = [(_step(cluster, GroupKind.PAIRS, 10, rounds), cluster.gpus)]
    steps += [
        (_step(cluster, kind, 20 + 10 * index, rounds), gpus)
        for index, (kind, gpus) in enumerate(cluster.more)
    ]
    planned = gpu_plan(*(of for of, _ in steps), seed=seed)
    records = [hosts_record(cluster.hosts)]
    measured: list[Measured] = []
    added = 0
    for of, gpus in steps:

        def measure(
            wave: Wave, number: int, of: Step = of, gpus: int | None = gpus
        ) -> list[Record]:
            found = cluster.measure(wave, number, gpus)
            measured.extend(found)
            return [_record(of, one, number, index) for index, one in enumerate(found)]

        own = records_of(planned, of, cluster.hosts, measure, again=again)
        added += len({r.wave for r in own}) - len(
            waves(of.groups, cluster.hosts, rounds=of.rounds, seed=seed)
        )
        records += own
    return SimulatedRun(
        verdict=judged(planned, *records),
        plan=planned,
        records=tuple(records),
        measured=tuple(measured),
        added=added,
    )


def _step(cluster: Cluster, kind: GroupKind, number: int, rounds: int) -> Step:
    of_pairs = kind.of_pairs
    return step(
        cluster.checks[0],
        kind,
        rounds=rounds if of_pairs else 1,
        number=number,
        checks=cluster.checks,
        repeats=REPEATS if of_pairs else 0,
    )


def _record(of: Step, one: Measured, wave: int, number: int) -> Record:
    """Return the record of an execution; after a failed check, the launch ends."""
    tables = [
        metric
        for check, share in one.shares.items()
        if share is not None
        for metric in table(check, _USUAL.get(check, 100.0) * share)
    ]
    return record(
        of,
        Group(hosts=one.hosts),
        *tables,
        wave=wave,
        number=number,
        status=1 if None in one.shares.values() else 0,
        facts=tuple(
            Fact(name=GPUS.name, value=sorted(gpus), host=host)
            for host, gpus in zip(one.hosts, one.gpus, strict=True)
            if gpus is not None
        ),
    )
