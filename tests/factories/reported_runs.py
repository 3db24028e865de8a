"""Runs for reports: the judged runs of simulated clusters, with times, figures of GPUs and changes.

To look at the pages: `python -m tests.factories.reported_runs FOLDER [CASE]...`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.factories import health_runs
from tests.factories.blame_cases import BAD, case
from tests.factories.judging import gpu_inventory, judged
from tests.factories.simulated_cluster import Cluster, slow_nodes
from tests.factories.simulated_runs import run_of
from tests.factories.verdicts import (
    FLOOR,
    GPU,
    gpus,
    hosts,
    hosts_record,
    inventory_of,
    measured,
    of_gpu,
    plan,
    record,
    slow,
    step,
)

from accept.core.health_readings import Change
from accept.core.plan import BoundKind, Plan
from accept.core.records import Fact, Record
from accept.core.verdict import Verdict
from accept.report.data import Run
from accept.report.html import render_html

#: The first execution of each run, in seconds since 1970.
_START = 1_790_000_000.0
_GPUS = 8
#: A name and a version that would run a script or break the layout if they were not escaped.
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"\u202e&{{7*7}}"


def _of_case(name: str) -> Run:
    found = case(name)
    return _dressed(found.plan, found.verdict, found.records)


def _large(count: int) -> Run:
    bad = frozenset({BAD}) if count > BAD else frozenset({1})
    cluster = Cluster(
        count=count, effects=(slow_nodes(bad, 0.62),), bad=bad, chance=random.Random(count)
    )
    found = run_of(cluster, 3)
    return _dressed(found.plan, found.verdict, found.records)


def _health() -> Run:
    later = step("all-reduce", "pairs", rounds=3, number=20)
    change = Change(
        since=2,
        seconds=60.0,
        counters={"gpu 3": {"ecc-uncorrected": 2}},
        events=(("gpu 3", "xid", "48", "fatal", "0000:03:00"),),
    )
    planned, records = health_runs.recorded(("h2", 3, change), machine=GPU, later=())
    records += measured(later, hosts(4), slow(usual=380.0))
    planned = replace(planned, steps=(*planned.steps, later), references=(FLOOR,))
    return _dressed(planned, judged(planned, *records), records)


def _inconclusive() -> Run:
    names = hosts(8)
    every = step("all-reduce", "all", number=20)
    bound = replace(FLOOR, kind=BoundKind.EXPECTATION, size=1, source="--expect")
    planned = plan(every, machine=GPU, references=(bound,))
    records = [hosts_record(names), *measured(every, names, slow(usual=380.0))]
    return _dressed(planned, judged(planned, *records), records)


@cache
def hostile(text: str) -> Run:
    """Return a run in which a host, its GPUs and versions and the machine have a hostile name."""
    names = tuple(f"{text}{number}" for number in range(6))
    inventory = step("inventory", "each", number=10)
    pairs = step("all-reduce", "pairs", rounds=3, number=20)
    listed = [
        record(
            inventory,
            (name,),
            number=index,
            facts=(
                inventory_of(
                    name,
                    gpus=gpus(f"{name}-{index}", name=text, driver=f"{text}{index % 2}"),
                    pciNvidia=_GPUS,
                    kernel=text,
                    versions={text: text},
                ),
            ),
        )
        for index, name in enumerate(names)
    ]
    records = [hosts_record(names), *listed, *measured(pairs, names, slow(names[0], usual=380.0))]
    planned = plan(inventory, pairs, machine=replace(GPU, name=text), references=(FLOOR,))
    return _dressed(planned, judged(planned, *records), records)


def _dressed(planned: Plan, verdict: Verdict, records: Sequence[Record]) -> Run:
    """Return a run with times, figures of GPUs and inventories beside the given records."""
    chance = random.Random(verdict.headline)
    at = _START
    timed: list[Record] = []
    waves: dict[tuple[str, int], tuple[float, float]] = {}
    for made in records:
        key = made.step, made.wave
        if key not in waves:
            waves[key] = at, at + chance.uniform(20, 60)
            at = waves[key][1] + 2.0
        start, end = waves[key]
        timed.append(replace(made, start=start, began=start + 5, end=end))
    if verdict.machine == GPU.name:
        timed += _devices(verdict, chance, at)
        planned = replace(planned, steps=(*planned.steps, _GEMM))
    if not any(made.step.startswith("10-inventory") for made in timed):
        timed += [
            replace(made, start=_START, end=_START + 3)
            for made in gpu_inventory(len(verdict.hosts))[1]
        ]
    ends = replace(
        verdict,
        start=_START,
        end=max(made.end for made in timed),
        gpus=_GPUS * len(verdict.hosts),
    )
    return Run(plan=planned, verdict=ends, records=tuple(timed), evidence_hash="ab" * 32)


_GEMM = step("gemm", "each", checks=("gemm", "memory"), number=60, params={})


def _devices(verdict: Verdict, chance: random.Random, at: float) -> list[Record]:
    """Return figures of each GPU; one GPU is hot and slow, and one reports nothing."""
    made = []
    for index, host in enumerate(verdict.hosts):
        metrics = []
        facts = []
        for gpu in range(_GPUS):
            if (index, gpu) == (5, 6):
                continue
            is_hot = (index, gpu) == (3, 2)
            for check, name, value, unit in (
                ("gemm", "bf16", 780.0, "TFLOP/s"),
                ("gemm", "fp8", 1450.0, "TFLOP/s"),
                ("memory", "copy", 4200.0, "GB/s"),
            ):
                share = 0.8 if is_hot and check == "gemm" else chance.gauss(1, 0.005)
                metrics.append(of_gpu(check, name, value * share, unit, host, gpu))
            heat = 84.0 if is_hot else chance.gauss(62, 1)
            load = {"type": "bf16", "C": [50, heat, 70], "MHz": [1700, 1800 - 200 * is_hot, 1900]}
            facts.append(Fact(name="load", check="gemm", host=host, rank=gpu, value=load))
        one = record(_GEMM, (host,), *metrics, number=index, facts=tuple(facts))
        made.append(replace(one, start=at, began=at + 8, end=at + 40))
    return made


CASES: dict[str, Callable[[], Run]] = {
    "pass": lambda: _of_case("healthy"),
    "node": lambda: _of_case("node"),
    "leaf": lambda: _of_case("leaf"),
    "fabric": lambda: _of_case("fabric"),
    "wrong": lambda: _of_case("wrong"),
    "health": _health,
    "1024": lambda: _large(1024),
    "inconclusive": _inconclusive,
    "hostile": lambda: hostile(HOSTILE),
}


@cache
def reported(name: str) -> Run:
    """Return the run of a case in `CASES`, or of a cluster with that many nodes."""
    return CASES[name]() if name in CASES else _large(int(name))


@cache
def page(name: str) -> str:
    """Return the report on a case."""
    return render_html(reported(name))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for chosen in sys.argv[2:] or CASES:
        (folder / f"{chosen}.html").write_text(page(chosen), encoding="utf-8")
