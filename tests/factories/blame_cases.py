"""Runs of 64 simulated GPU hosts with a fault, judged as a real run: for tests of the texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise

from tests.factories.judging import gpu_inventory, judged
from tests.factories.simulated_cluster import (
    Effect,
    Meeting,
    bad_pairs,
    border,
    leaf,
    slow_nodes,
    slow_rail,
)
from tests.factories.simulated_runs import REPEATS, records_of
from tests.factories.verdicts import FLOOR, GPU, hosts, hosts_record, plan, record, step, table

from accept.core.groups import Wave
from accept.core.plan import GroupKind, Plan, Step
from accept.core.records import Fact, Record
from accept.core.verdict import Verdict

COUNT = 64
#: The hosts that are bad in the cases.
BAD, SLOW, BEHIND_LEAF = 17, 40, range(16, 24)
_RANKS, _USUAL, _NOISE, _SEED = 8, 480.0, 0.01, 7
_CHECKS = ("all-reduce", "alltoall")
_EACH = step("all-reduce", "each", number=20, checks=_CHECKS)
_ALL = step("all-reduce", "all", number=30, checks=_CHECKS)
_PAIRS = step("all-reduce", "pairs", rounds=5, number=40, checks=_CHECKS, repeats=REPEATS)
_RAILS = step("all-reduce", "rails", number=50)


#: The faults of each case; a factor of 0 stands for wrong data.
CASES: Mapping[str, tuple[Effect, ...]] = {
    "healthy": (),
    "node": (slow_nodes({BAD}, 0.62), bad_pairs(0.05, 0.55, _SEED)),
    "leaf": (leaf(set(BEHIND_LEAF), 3, 0.45),),
    "border": (border(set(range(32)), 0.6),),
    "rail": (slow_rail(3, 0.6),),
    "fabric": (bad_pairs(0.1, 0.55, _SEED),),
    "wrong": (bad_pairs(0.08, 0.0, _SEED),),
    "wrong-node": (slow_nodes({BAD}, 0.0, 0.7), slow_nodes({SLOW}, 0.62)),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The plan of a run, its records and its verdict."""

    plan: Plan
    records: tuple[Record, ...]
    verdict: Verdict


@cache
def case(name: str, *, again: bool = True) -> Case:
    """Return the run of a case in `CASES`; `again`: with what is measured after the plan."""
    chance = random.Random(f"{_SEED}:{name}")
    inventory, listed = gpu_inventory(COUNT)
    # Different GPUs in each pair show which of them is behind the leaf.
    steps = (_EACH, _ALL, _PAIRS) if name == "leaf" else (_EACH, _ALL, _PAIRS, _RAILS)
    planned = plan(
        inventory,
        *steps,
        machine=replace(GPU, ranks=_RANKS),
        nodes=COUNT,
        seed=_SEED,
        references=tuple(replace(FLOOR, check=check, lower=200.0) for check in _CHECKS),
    )
    names = hosts(COUNT)
    records = [hosts_record(names), *(replace(r, ranks=_RANKS) for r in listed)]
    for of in steps:
        measure = partial(_measured, of, name, chance)
        records += records_of(planned, of, names, measure, ranks=_RANKS, again=again)
    return Case(plan=planned, records=tuple(records), verdict=judged(planned, *records))


def _measured(
    of: Step, name: str, chance: random.Random, wave: Wave, number: int
) -> Iterator[Record]:
    """Yield the records of a wave: each group is as slow as the slowest pair of its ring."""
    for index, group in enumerate(wave):
        local = frozenset(group.local_ranks) or None
        used = dict.fromkeys(group.hosts, local)
        if name == "leaf" and of.groups is GroupKind.PAIRS:
            used = {host: frozenset(chance.sample(range(_RANKS), 4)) for host in group.hosts}
        ring = (*group.hosts, *group.hosts[:1])
        factors = [
            effect(
                Meeting(
                    (int(one[1:]), int(other[1:])),
                    (used[one], used[other]),
                    number,
                    len(wave) == 1,
                    chance,
                )
            )
            for one, other in pairwise(ring)
            if one != other
            for effect in CASES[name]
        ]
        value = _USUAL * min((f for f in factors if f), default=1.0)
        wrong = 1024 if 0.0 in factors and of.groups is not GroupKind.RAILS else 0
        metrics = [
            metric
            for check in of.checks
            for metric in table(check, value * (1 + chance.gauss(0, _NOISE)), wrong=wrong)
        ]
        yield record(
            of,
            group,
            *metrics,
            wave=number,
            number=index,
            facts=tuple(
                Fact(name="gpus", host=host, value=sorted(gpus))
                for host, gpus in used.items()
                if gpus is not None and not group.local_ranks
            ),
            ranks=len(group.hosts) * (len(group.local_ranks) or _RANKS),
        )
