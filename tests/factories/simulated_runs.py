"""Judged runs of simulated clusters: one step of pairs, with the records that a run would leave."""

from __future__ import annotations

from tests.factories.judging import gpu_plan, judged
from tests.factories.simulated_cluster import Cluster
from tests.factories.verdicts import hosts_record, record, step, table

from accept.commands.judge import Judged
from accept.core.facts import GPUS
from accept.core.groups import Group, pair_rounds
from accept.core.model import Fact


def run_of(cluster: Cluster, rounds: int) -> Judged:
    """Return the verdict on rounds of pairs of a simulated cluster, with its plan and records."""
    pairs = step("all-reduce", "pairs", rounds=rounds)
    records = [hosts_record(cluster.hosts)]
    for wave, groups in enumerate(pair_rounds(cluster.hosts, rounds=rounds, seed=1)):
        for number, one in enumerate(cluster.measure(groups, wave)):
            records.append(
                record(
                    pairs,
                    Group(hosts=one.hosts),
                    *(table("all-reduce", one.value) if one.value else ()),
                    wave=wave,
                    number=number,
                    status=0 if one.value else 1,
                    facts=tuple(
                        Fact(name=GPUS.name, value=sorted(gpus), check="all-reduce", host=host)
                        for host, gpus in zip(one.hosts, one.gpus, strict=True)
                        if gpus is not None
                    ),
                )
            )
    plan = gpu_plan(pairs, seed=1)
    return Judged(verdict=judged(plan, *records), plan=plan, records=tuple(records))
