"""Evidence of simulated clusters: the records of `simulated_runs`, with logs that give them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.factories import nccl_logs
from tests.factories.judging import gpu_inventory, judged
from tests.factories.simulated_cluster import Cluster
from tests.factories.simulated_runs import run_of
from tests.factories.verdicts import FLOOR, GPU, TOP

from accept import __version__
from accept.core import evidence
from accept.core.checks import parse_log
from accept.core.plan import Plan
from accept.core.records import Fact, Placement, Record
from accept.core.report import write_judgement
from accept.core.serde import dump

_DEVICE = "NVIDIA B200"
#: Healthy pairs of the simulation reach 100 GB/s.
_REFERENCE = replace(FLOOR, lower=60.0, expected=80.0, peak=120.0)
_SIZES = (TOP >> 2, TOP >> 1, TOP)


def write(folder: Path, cluster: Cluster, *, rounds: int, name: str) -> None:
    """Write the evidence of rounds of pairs of a simulated cluster; `name` is the attempt."""
    run = run_of(cluster, rounds)
    inventory, listed = gpu_inventory(cluster.count)
    ranks = cluster.gpus or GPU.gpus or 1
    plan = replace(
        run.plan,
        version=__version__,
        files_hash="0" * 64,
        machine=replace(GPU, ranks=ranks),
        nodes=cluster.count,
        steps=(inventory, *(replace(step, id=f"20-{step.checks[0]}") for step in run.plan.steps)),
        references=(_REFERENCE,),
    )
    listed = [replace(record, ranks=ranks) for record in listed]
    hosts, *pairs = run.records
    measured = (
        replace(record, step=plan.steps[1].id, ranks=ranks * len(record.hosts)) for record in pairs
    )
    plan = replace(plan, hash=evidence.plan_hash(dump(plan)))
    write_run(folder, plan, (hosts, *listed, *measured), name)


def write_run(folder: Path, plan: Plan, records: Iterable[Record], attempt: str) -> None:
    """Write the evidence of a run whose logs are those that give these records."""
    folder.mkdir(parents=True)
    evidence.write(folder / evidence.PLAN, json.dumps(dump(plan)))
    evidence.write(folder / evidence.HOSTS, json.dumps({"attempt": attempt}))
    written = [_with_log(folder, plan, record) for record in records]
    for record in written:
        evidence.append_record(folder, record)
    evidence.write_run_end(folder, "")
    evidence.write_readme(folder, plan, attempt)
    write_judgement(folder, plan, replace(judged(plan, *written), attempt=attempt), written)
    evidence.write_checksums(folder)


def _with_log(folder: Path, plan: Plan, record: Record) -> Record:
    """Write the log of a record; return the record as the reader of the log gives it."""
    if not record.log:
        return record
    step = next(step for step in plan.steps if step.id == record.step)
    log = evidence.log_path(
        step, record.wave, record.group, hosts=record.hosts, ranks=record.ranks, start=record.start
    )
    path = folder / log
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_log(record), encoding="utf-8")
    lines = evidence.open_log(folder, log)
    assert lines is not None
    parsed = parse_log(record.checks, lines, record.hosts, status=record.exit)
    return replace(
        record, log=log, metrics=parsed.metrics, facts=parsed.facts, problems=parsed.problems
    )


def _log(record: Record) -> str:
    """Return the lines of the facts of a record, and the tables of its collectives."""
    facts = "".join(f"ACCEPT {json.dumps(_item(fact))}\n" for fact in record.facts)
    speeds = {
        metric.check: metric.value
        for metric in record.metrics
        if (metric.name, metric.size, metric.placement) == ("busbw", TOP, Placement.OUT)
    }
    gpus = range((record.ranks or 2) // len(record.hosts))
    tables = (
        nccl_logs.table(
            check.replace("-", "_"), record.hosts, gpus, speed, sizes=_SIZES, device=_DEVICE
        )
        for check, speed in speeds.items()
    )
    return facts + "\n".join(tables)


def _item(fact: Fact) -> dict[str, object]:
    return {"fact": fact.name, "check": fact.check, "host": fact.host, "value": fact.value}
