"""Plan and records of a run as it would have been: each population of executions is a step."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accept import __version__
from accept.core import checks, nccl_tests
from accept.core.judge.crosscheck import GPUS
from accept.core.model import SCHEMA, Fact, GroupKind, Metric, Plan, PlannedMachine, Record, Step
from accept.core.nccl_tests.nccl_table import Log, Table
from accept.core.sizes import format_size
from accept.nccl_logs.corpus import Execution, Logs
from accept.nccl_logs.inventory import hosts_record
from accept.nccl_logs.populations import UNKNOWN, Population, populations

#: Many logs show their own noise, so that no more than this need be assumed of any machine.
_NOISE = 0.01
_WORDS: dict[GroupKind, str] = {
    "each": "single-node",
    "pairs": "pair",
    "rails": "rail",
    "ladder": "block",
    "all": "all-node",
    "halves": "split",
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run as it would have been, made from logs."""

    plan: Plan
    records: tuple[Record, ...]
    #: Collectives that no check judges, with how many tables of each there are.
    unjudged: dict[str, int]


def found(
    logs: Logs, executions: Sequence[Execution], machine: PlannedMachine, names: Collection[str]
) -> Found:
    """Make plan and records. `names`: the metrics that are wanted besides bandwidth."""
    most = max((one.count for one in executions), default=0)
    whole = machine.gpus or most
    known = [one for one in executions if one.check in checks.names()]
    unknown = [one for one in executions if one.check not in checks.names()]
    # No check judges these; nor does one of them that failed go by unseen.
    failed = {one.check for one in unknown if one.problems and (known or one.check)}
    told = [_told(one) for one in unknown if one.check in failed]
    equals = populations([*known, *told], logs.hosts, whole)
    steps: list[Step] = []
    records = [hosts_record(logs, executions, machine)]
    for number, (key, some) in enumerate(sorted(equals.items(), key=_order), 1):
        step, made = _step(number, key, some, names)
        steps.append(step)
        records += made
    plan = Plan(
        schema=SCHEMA,
        version=__version__,
        hash=_digest(executions),
        machine=replace(machine, noise=min(machine.noise, _NOISE)),
        suite="logs",
        nodes=None,
        steps=tuple(steps),
        gpus_used=most if most < whole else None,
        origin=_origin(logs, known, equals),
    )
    unjudged = Counter(one.check or UNKNOWN for one in unknown)
    return Found(plan=plan, records=tuple(records), unjudged=dict(unjudged))


def _told(one: Execution) -> Execution:
    """An execution that nobody compares with others: what went wrong on one host is of that one."""
    (host, *more) = one.hosts or (None,)
    if host is None or more:
        return one
    problems = tuple(p if p.host else replace(p, host=host) for p in one.problems)
    return replace(one, problems=problems)


def _order(item: tuple[Population, list[Execution]]) -> tuple[Any, ...]:
    key = item[0]
    kinds = list(_WORDS)
    return kinds.index(key.kind), -(key.gpus or 99), key.check, str(key)


def _step(
    number: int, key: Population, executions: Sequence[Execution], names: Collection[str]
) -> tuple[Step, list[Record]]:
    top = _top([one.measured.table for one in executions if one.measured and one.measured.table])
    params: dict[str, Any] = {}
    if key.min and key.factor and top and top >= key.min:
        params = {"min": format_size(key.min), "max": format_size(top), "factor": key.factor}
    if _unchecked(executions):
        params["check"] = 0
    some = f"-{key.gpus}-gpu{'s' * (key.gpus != 1)}" if key.gpus else ""
    some += "-crossed" * key.crossed
    step = Step(
        id=f"{number:02d}-{key.check}-{key.kind}{some}",
        checks=(key.check,),
        script="",
        groups=key.kind,
        params=params,
    )
    busy: list[set[str]] = []
    sizes: Counter[int] = Counter()
    records = []
    for one in executions:
        wave = next((n for n, hosts in enumerate(busy) if hosts.isdisjoint(one.hosts)), len(busy))
        if wave == len(busy):
            busy.append(set())
        busy[wave].update(one.hosts)
        records.append(_record(step, one, key, top, names, (wave, sizes[wave])))
        sizes[wave] += 1
    return replace(step, rounds=max(len(busy), 1)), records


def _unchecked(executions: Sequence[Execution]) -> bool:
    """Whether nobody checked any data, as with `-c 0`."""
    tables = [one.measured.table for one in executions if one.measured and one.measured.table]
    sides = [row.out_of_place for table in tables for row in table.rows if row.out_of_place]
    return bool(sides) and all(side.wrong is None for side in sides)


def _top(tables: Sequence[Table]) -> int | None:
    """The largest size, as asked for, that three in four of the whole tables reached."""
    whole = [table for table in tables if table.complete] or tables
    tops = sorted((_asked(table) for table in whole if table.rows), reverse=True)
    return tops[max(0, -(-len(tops) * 3 // 4) - 1)] if tops else None


def _asked(table: Table) -> int:
    """The largest size of a table as it was asked for: programs round down to whole elements."""
    size, top = table.min_bytes or 0, table.top_size or 0
    if not table.factor or table.factor < 2 or not size:
        return top
    while size < top:
        size *= table.factor
    return size


def _record(
    step: Step,
    one: Execution,
    key: Population,
    top: int | None,
    names: Collection[str],
    place: tuple[int, int],
) -> Record:
    table = one.measured.table if one.measured else None
    metrics: tuple[Metric, ...] = ()
    if table is not None:
        log = Log(tables=(table,), problems=(), networks={}, detours={}, nccl_lines=0, warnings=())
        metrics = tuple(
            metric
            for metric in nccl_tests.metrics(log, names=("busbw", "wrong", *names))
            if metric.size is None or top is None or metric.size <= top
        )
    partial = bool(key.gpus) or key.kind in ("rails", "halves")
    facts = one.measured.facts if one.measured else ()
    facts += tuple(Fact(name=GPUS, host=h, value=list(mine)) for h, mine in one.gpus.items())
    return Record(
        step=step.id,
        checks=step.checks,
        wave=place[0],
        group=place[1],
        hosts=one.hosts,
        # Those of the first host; the facts say which they were of each.
        local_ranks=next(iter(one.gpus.values()), ()) if partial else (),
        ranks=(table.ranks if table else None) or 0,
        exit=0 if table is not None and table.complete else None,
        log=one.file,
        metrics=metrics,
        facts=facts,
        problems=one.problems,
    )


def _digest(executions: Sequence[Execution]) -> str:
    """Says which logs were judged: equal for equal names and figures, wherever they lie."""
    digest = hashlib.sha256()
    said = []
    for one in executions:
        table = one.measured.table if one.measured else None
        said.append(repr((Path(one.file).name, one.check, one.hosts, table and table.rows)))
    for text in sorted(said):
        digest.update(text.encode())
    return digest.hexdigest()


def _origin(
    logs: Logs, executions: Sequence[Execution], equals: dict[Population, list[Execution]]
) -> str:
    """What is judged, in words: "45 pair logs, 10 nodes, 4 collectives; from logs alone"."""
    parts = []
    for kind, word in _WORDS.items():
        some = [e for k, mine in equals.items() if k.kind == kind for e in mine]
        count = len({(one.file, one.hosts) for one in some if one.hosts})
        if count:
            parts.append(f"{count} {word} log{'s' * (count != 1)}")
    hosts = len({*logs.hosts, *(host for one in executions for host in one.hosts)})
    count = len({one.check for one in executions})
    parts.append(f"{hosts} node{'s' * (hosts != 1)}")
    return f"{', '.join(parts)}, {count} collective{'s' * (count != 1)}; from logs alone"
