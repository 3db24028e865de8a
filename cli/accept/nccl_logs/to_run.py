"""Turn other people's nccl-tests logs into the plan, inventory and records of a run."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accept import __version__, config
from accept.config import floors
from accept.config.machine import Machine
from accept.core import checks, evidence, nccl_tests
from accept.core.errors import BadEvidence
from accept.core.judge.completeness import host_list
from accept.core.judge.crosscheck import GPUS
from accept.core.judge.hosts import is_device
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.model import (
    SCHEMA,
    Fact,
    GroupKind,
    Metric,
    Plan,
    PlannedMachine,
    Problem,
    Record,
    Step,
)
from accept.core.nccl_tests.table import Log, Table
from accept.core.runner.coordinator import HOSTS
from accept.core.text import format_size, plain
from accept.evidence import archive, bucket, rundir
from accept.nccl_logs.corpus import UNKNOWN, Execution, Logs, Population, gather, populations
from accept.nccl_logs.fill_gaps import completed

#: What stands in place of a GPU's name, and of its PCI address, where there is none.
_CPU, _NO_BUS = "CPU", "0x00"


def hosts_record(logs: Logs, executions: Sequence[Execution], machine: PlannedMachine) -> Record:
    """Who took part, what the logs call their GPUs, and what is wrong with that."""
    gpus: dict[str, dict[int, str]] = {}
    for one, _ in logs.read:
        for table in one.tables:
            for device in table.devices:
                if device.bus != _NO_BUS:
                    gpus.setdefault(device.host, {})[device.device] = device.name
    return Record(
        step=HOSTS_STEP,
        checks=("hosts",),
        wave=0,
        group=0,
        hosts=logs.hosts,
        exit=0,
        facts=tuple(
            Fact(
                name="inventory",
                host=host,
                value={"gpus": [{"index": i, "name": mine[i]} for i in sorted(mine)]},
            )
            for host, mine in gpus.items()
        ),
        problems=(*_fewer(executions), *_others(logs, machine)),
    )


def different(logs: Logs) -> str:
    """Which hosts have which GPUs, in words; empty: all have the same."""
    kinds: dict[str, list[str]] = {}
    for host, names in _names(logs).items():
        kinds.setdefault(" and ".join(sorted(names)), []).append(host)
    if len(kinds) < 2:
        return ""
    said = "; ".join(f"{name} on {host_list(hosts)}" for name, hosts in kinds.items())
    return f"the GPUs differ, and each kind is compared with its own alone: {said}"


def _names(logs: Logs) -> dict[str, set[str]]:
    """What the logs call the devices of each host that they name."""
    found: dict[str, set[str]] = {host: set() for host in logs.hosts}
    for one, _ in logs.read:
        for table in one.tables:
            for device in table.devices:
                if device.name:
                    found[device.host].add(device.name)
    return {host: names for host, names in found.items() if names}


def _fewer(executions: Sequence[Execution]) -> Iterator[Problem]:
    """Hosts that never showed as many GPUs as most hosts did."""
    most: dict[str, int] = {}
    for one in executions:
        for host, gpus in one.gpus.items() if one.measured else ():
            most[host] = max(most.get(host, 0), len(gpus))
    for usual, count in Counter(most.values()).most_common(1):
        for host, mine in most.items():
            if mine < usual and count * 2 > len(most):
                said = f"{host} has {mine} GPUs in all logs, {count} of {len(most)} hosts {usual}"
                yield Problem(cause="gpu-missing", message=said, host=host)


def _others(logs: Logs, machine: PlannedMachine) -> Iterator[Problem]:
    """Devices other than the machine's. Where most hosts have them, it is none of the hosts."""
    names = _names(logs)
    bad = {
        host: sorted(one for one in mine if _foreign(one, machine)) for host, mine in names.items()
    }
    bad = {host: devices for host, devices in bad.items() if devices}
    has = machine.device or "no GPUs"
    said = f"the machine {machine.name} has {has}"
    if len(bad) * 2 > len(names):
        device = next(iter(bad.values()))[0]
        text = f"{len(bad)} of {len(names)} hosts have {device}, {said}: another --machine?"
        yield Problem(cause="inventory-mismatch", message=text)
        return
    for host, devices in bad.items():
        text = f"{host} has {devices[0]}, {said}"
        yield Problem(cause="inventory-mismatch", message=text, host=host)


def _foreign(device: str, machine: PlannedMachine) -> bool:
    if machine.gpus == 0:
        return device != _CPU
    return bool(machine.device) and not is_device(str(machine.device), device)


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A machine, and why it is this one."""

    machine: Machine
    why: str


def guess(devices: Sequence[str], gpus: int) -> Guess:
    """The machine whose device has that name and that has so many GPUs at least.

    Where there are several, the logs cannot tell which of them it is, and it is the one that is
    any node with GPUs. The name of a GPU says what is in a node and not what is between nodes: no
    transport is promised, and figures for more than one node are left out. `devices`: all names in
    the logs; none of them a GPU's: the machine without.
    """
    machines = [config.load_machine(name).value for name in config.names("machines")]
    called = ", ".join(plain(name, 60) for name in devices[:3]) or "no device"
    if all(name == "CPU" for name in devices):
        without = next(m for m in machines if m.gpus.count == 0)
        return Guess(machine=without, why=f"the logs name {called}")
    fitting = [
        m
        for m in machines
        if m.gpus.device
        and (m.gpus.count == "detect" or m.gpus.count >= gpus)
        and all(is_device(m.gpus.device, name) for name in devices)
    ]
    # One that can be anywhere fits before one of a certain cloud.
    anywhere = [m for m in fitting if not m.nccl.transport and not m.topology]
    fitting = anywhere if len(anywhere) == 1 else fitting
    if len(fitting) == 1:
        one = fitting[0]
        inside = tuple(figure for figure in one.references if figure.max_nodes == 1)
        unpromised = replace(one.nccl, transport="", transport_aliases=(), gpu_direct=False)
        machine = replace(one, references=inside, nccl=unpromised)
        why = f"the only one with {called}; its figures between nodes need --machine {one.name}"
        return Guess(machine=machine, why=why)
    generic = next(m for m in machines if m.gpus.count == "detect" and not m.gpus.device)
    could = ", ".join(m.name for m in fitting[:8])
    more = f"; it may be {could}: say which with --machine" if could else ""
    return Guess(machine=generic, why=f"any node with GPUs{more}")


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


#: What of a run's own lies in a folder of evidence, or of a run.
_OURS = (
    evidence.PLAN,
    evidence.RECORDS,
    evidence.CHECKSUMS,
    evidence.VERDICT,
    HOSTS,
    rundir.RUN,
    rundir.JOB,
    rundir.EVIDENCE,
)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Logs as the plan and records of a run, and what is to be said of them."""

    plan: Plan
    records: tuple[Record, ...]
    #: As the logs show it, which may be less than the file says.
    machine: Machine
    #: One line each.
    notes: tuple[str, ...]
    #: Files that are no logs, and why not.
    skipped: tuple[tuple[str, str], ...]
    #: Collectives that no check judges, and in how many tables.
    unjudged: dict[str, int]


def is_foreign(path: str) -> bool:
    """Whether `path` is no evidence of ours. Raises BadInput where it is not there at all."""
    if bucket.is_url(path) or path == "last":
        return False
    if rundir.kind(Path(path)) == "file":
        return not _is_our_file(Path(path))
    folder = rundir.find(path)
    if any((folder / name).exists() for name in _OURS):
        return False
    console = folder / evidence.CONSOLE
    return not (console.is_file() and evidence.is_packed(console))


def _is_our_file(path: Path) -> bool:
    try:
        if archive.is_tar(path):
            with tarfile.open(path) as tar:
                first = tar.next()
            return first is None or Path(first.name).parts[:1] == ("evidence",)
        return not zipfile.is_zipfile(path) and evidence.is_packed(path)
    except EOFError:
        return False
    except OSError as error:
        raise BadEvidence(f"{plain(path)}: {error.strerror}", hint="name another file") from None
    except Exception:
        # Whoever reads it as an archive of ours says what is wrong with it.
        return True


def load(paths: Sequence[str], machine: Machine | None) -> Foreign:
    """Read the logs that `paths` name. `machine`: theirs; None: by what they call their GPUs.

    Raises BadEvidence where there are none, or one that was named is none.
    """
    logs = gather([_place(path) for path in paths])
    executions = completed(logs)
    notes: list[str] = []
    if machine is None:
        most = max((one.count for one in executions), default=0)
        guessed = guess(logs.devices, most)
        machine = guessed.machine
        notes.append(f"machine {machine.name}: {guessed.why}")
    notes += filter(None, [different(logs)])
    bounds = floors.bounds(machine)
    names = {bound.metric for bound in bounds}
    made = found(logs, executions, machine.planned(), names)
    notes += [
        f"{count} table{'s' * (count != 1)} of {name}: no check judges that"
        for name, count in made.unjudged.items()
    ]
    if not made.plan.steps:
        raise BadEvidence(
            f"{plain(paths[0], 200)}: nothing but {', '.join(made.unjudged)} was measured",
            hint="accept list checks names the collectives that are judged",
        )
    return Foreign(
        plan=replace(made.plan, references=bounds),
        records=made.records,
        machine=machine,
        notes=tuple(notes),
        skipped=logs.skipped,
        unjudged=made.unjudged,
    )


def _place(path: str) -> Path:
    return Path(path) if rundir.kind(Path(path)) == "file" else rundir.find(path)


def machine_of(name: str | None) -> Machine | None:
    """The machine that the user names, if any. Raises BadInput."""
    return config.load_machine(name).value if name else None
