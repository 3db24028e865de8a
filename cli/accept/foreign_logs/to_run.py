"""Turn nccl-tests logs from runs without `accept` into the plan and records of a run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from accept import __version__, config
from accept.config import floors
from accept.config.machine import Confidence, Machine
from accept.config.tools import tool_of
from accept.config.versions import supported
from accept.core import checks, nccl_tests
from accept.core.by_key import by_key
from accept.core.catalog.metrics import BUSBW, WRONG
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.facts import GPUS, INVENTORY, NCCL_NETWORKS, NCCL_WARNINGS
from accept.core.failures import OF_TABLES
from accept.core.judge.hosts import is_device
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.nccl_tests.table import NamedBy, Table
from accept.core.plan import SCHEMA, GroupKind, Plan, PlannedMachine, Reference, Step
from accept.core.records import Fact, Problem, Record
from accept.core.signs import SignOwner, catalog
from accept.core.text import count, format_size, host_list, plain, shortened
from accept.evidence.untrusted import Limits
from accept.foreign_logs.answer import Answer
from accept.foreign_logs.corpus import OF_KERNEL, UNKNOWN, Logs, Population, gather, populations
from accept.foreign_logs.fill_gaps import completed
from accept.foreign_logs.host_state import OF_FIGURES, by_host, with_figures, with_states
from accept.foreign_logs.hosts import natural
from accept.foreign_logs.tables import Execution, Read, SkippedFile


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The plan and records of a run, or those of logs with remarks on them."""

    plan: Plan
    records: tuple[Record, ...]
    #: The machine, reduced to what the logs show of it; None: it is a run.
    machine: Machine | None = None
    #: Names of the machines that the logs may be of, if they do not show which.
    candidates: tuple[str, ...] = ()
    #: Remarks for people, one line each.
    notes: tuple[str, ...] = ()
    #: Files without results of their own.
    skipped: tuple[SkippedFile, ...] = ()
    #: Collectives without a check, with the number of their tables.
    unjudged: dict[str, int] = field(default_factory=dict)
    #: Why a job failed; None: none did.
    answer: Answer | None = None


def load(
    paths: Mapping[Path, str],
    machine: Machine | None,
    limits: Limits,
    *,
    collective: str | None = None,
) -> RunData:
    """Read the logs in `paths`, which are files, folders and archives, with their names for people.

    `collective` is that of tables without a name; None: it is inferred.

    If `machine` is None, it is guessed from the GPU names in the logs. Raises BadEvidence if a
    named file is not a log, or if no log is usable.
    """
    logs = gather(paths, limits, collective=collective)
    failed = [log for log in logs.read if log.answer and log.has_failed]
    shown = next(iter(failed or sorted(logs.failed_jobs, key=_is_unclear)), None)
    executions = tuple(_answered(_without_innocent(completed(logs), logs), shown))
    notes: list[str] = []
    expected: tuple[Reference, ...] = ()
    candidates: tuple[str, ...] = ()
    if machine is None:
        names = tuple(dict.fromkeys(device.name for device in logs.devices if device.name))
        gpus = [report.gpus for report in logs.reports]
        names = tuple(dict.fromkeys((*names, *(gpu.name for of_host in gpus for gpu in of_host))))
        guess = _guess_machine(names, max([_max_gpus(executions), *map(len, gpus)]))
        machine, expected, candidates = guess.machine, guess.expected, guess.candidates
        notes.append(f"machine {machine.name}: {guess.reason}")
    if shown and shown.answer:
        notes = [*shown.answer.sentences, *notes]
    notes += filter(None, [_device_differences(logs)])
    notes += _remarks(executions, machine)
    notes += (
        f"{plain(log.file, 200)}: its tables are complete, and it has an error beside them, which "
        f"is not judged: {log.error.message}"
        for log in logs.read
        if log.error and log.error.cause not in OF_KERNEL
    )
    bounds = (*floors.bounds(machine), *expected, *_bounds_of_tools(logs, machine))
    metric_names = {bound.metric for bound in bounds}
    plan, records, unjudged = _plan_and_records(logs, executions, machine.planned(), metric_names)
    figures = [report for report in logs.reports if report.kind in OF_FIGURES]
    if figures:
        plan, records = with_figures(plan, records, figures)
        notes += (report.line for report in figures)
    states, older = by_host(report for report in logs.reports if report not in figures)
    if states:
        plan, records = with_states(plan, records, states)
        notes += (report.line for state in states for report in state.reports)
    notes += [
        f"{count(tables, 'table')} of {name}: no check judges it"
        for name, tables in unjudged.items()
    ]
    if not plan.steps:
        raise _nothing_judged(next(iter(paths.values())), unjudged)
    return RunData(
        plan=replace(plan, references=bounds, supported=supported(machine)),
        records=records,
        machine=machine,
        candidates=candidates,
        notes=tuple(notes),
        skipped=(*logs.skipped, *(SkippedFile(file=file, reason=why) for file, why in older)),
        unjudged=unjudged,
        answer=shown.answer if shown else None,
    )


def _bounds_of_tools(logs: Logs, machine: Machine) -> Iterator[Reference]:
    """Yield the bounds in the files of the tools whose output was read."""
    for name in dict.fromkeys(report.tool.name for report in logs.reports if report.tool):
        if tool := tool_of(name, ""):
            yield from tool.value.bounds(machine.name)


def _is_unclear(log: Read) -> bool:
    return log.answer is None or not log.answer.is_evident


def _nothing_judged(path: str, unjudged: Collection[str]) -> BadEvidence:
    """Return the error for logs of collectives that no check judges, or that are not known."""
    if {*unjudged} == {UNKNOWN}:
        return BadEvidence(
            f"{plain(path, 200)}: neither the log nor its name shows the collective, "
            "and its figures fit several",
            code=Code.LOGS_UNKNOWN_COLLECTIVE,
            hint="name it, such as --collective all-reduce",
        )
    return BadEvidence(
        f"{plain(path, 200)}: only {', '.join(unjudged)} was measured",
        code=Code.LOGS_NOT_JUDGED,
        hint="the collectives that are judged: accept list checks",
    )


def _remarks(executions: Sequence[Execution], machine: Machine) -> Iterator[str]:
    """Yield what was inferred, and what the logs do not show."""
    tables = [(execution, execution.table) for execution in executions if execution.table]
    inferred = Counter(
        (execution.check, str(table.named_by))
        for execution, table in tables
        if execution.check and table.named_by is not NamedBy.LOG
    )
    for (check, source), number in inferred.items():
        yield f"{check}: inferred from {source} ({count(number, 'table')})"
    shared = [execution.shared for execution in executions if execution.shared]
    if shared:
        yield (
            f"{shared[0]} is listed twice in one run: two machines have the same name, or two "
            "ranks share the same GPU; so the hosts are unknown, and no bound of one node applies"
        )
    # Of an execution that a mistake of the user ended, only the hosts were removed.
    unlisted = sum(not (one.hosts or one.devices) for one, _ in tables) - len(shared)
    if unlisted > 0:
        yield (
            f"{count(unlisted, 'table')} without a complete list of devices: "
            "the nodes are not known, so nothing is compared with peers"
        )
    for execution, _ in tables:
        for host, gpus in execution.with_fewer_gpus.items():
            yield (
                f"{host} took part with {count(gpus, 'GPU')}, most hosts with {execution.count}; "
                f"its other GPUs were not tested ({execution.file_name})"
            )
    between = [execution for execution, _ in tables if len(execution.hosts) > 1]
    shown = any(fact.name == NCCL_NETWORKS.name for e in between for fact in e.facts)
    if machine.nccl.transport and between and not shown:
        yield (
            f"the logs do not show which network NCCL used (expected {machine.nccl.transport}); "
            "rerun with NCCL_DEBUG=INFO"
        )


def _max_gpus(executions: Sequence[Execution]) -> int:
    """Return the largest number of GPUs that took part on each host."""
    return max((execution.count for execution in executions), default=0)


def _gpus_used(executions: Sequence[Execution]) -> int:
    """Return the largest number of different GPUs of one host that took part in any execution."""
    gpus: dict[str, set[int]] = {}
    for execution in executions:
        for host, own in execution.gpus.items():
            gpus.setdefault(host, set()).update(own)
    return max(map(len, gpus.values()), default=0)


def machine_of(name: str | None) -> Machine | None:
    """Return the machine that the user names, if any. Raises BadInput."""
    return config.load_machine(name).value if name else None


# The machine, as the names of its GPUs suggest

#: The device name in logs of runs without GPUs.
_CPU = "CPU"


@dataclass(frozen=True, kw_only=True)
class _Guess:
    machine: Machine
    reason: str
    #: Less than this is not decided, because some of several fitting machines require it.
    expected: tuple[Reference, ...] = ()
    #: Names of the machines that fit, if they are several; that of any site is first.
    candidates: tuple[str, ...] = ()


def _guess_machine(devices: Sequence[str], gpus: int) -> _Guess:
    """Return the machine that has GPUs with these names, and at least `gpus` of them.

    If several machines fit, the generic machine with GPUs is taken. The name of a GPU shows what is
    inside a node, but not what is between nodes. So the machine gets no transport, and no
    references for more than one node. `devices` are all names in the logs; if none of them is a
    GPU, the machine is the one without GPUs.
    """
    machines = [config.load_machine(name).value for name in config.names("machines")]
    names = ", ".join(plain(name, 60) for name in devices[:3]) or "no device"
    if devices and all(name == _CPU for name in devices):
        without_gpus = next(m for m in machines if m.gpus.count == 0)
        return _Guess(machine=without_gpus, reason=f"the logs name {names}")
    fitting = [
        m
        for m in machines
        if m.gpus.device
        and (m.gpus.count == "detect" or m.gpus.count >= gpus)
        and all(is_device(m.gpus.device, name) for name in devices)
    ]
    # Prefer machines that any site may have over the machines of a cloud.
    not_in_cloud = [m for m in fitting if not m.nccl.transport and not m.topology]
    fitting = not_in_cloud if len(not_in_cloud) == 1 else fitting
    if len(fitting) == 1:
        machine = fitting[0]
        reason = (
            f"the only one with {names}; its references for more than one node need "
            f"--machine {machine.name}"
        )
        inside_node = tuple(figure for figure in machine.references if figure.max_nodes == 1)
        nccl = replace(machine.nccl, transport="", transport_aliases=(), gpu_direct=False)
        return _Guess(machine=replace(machine, references=inside_node, nccl=nccl), reason=reason)
    generic = next(m for m in machines if m.gpus.count == "detect" and not m.gpus.device)
    # What follows from a specification alone is of any site.
    fitting.sort(key=lambda machine: machine.confidence is not Confidence.DERIVED)
    candidates = tuple(m.name for m in fitting if devices)
    more = f"; it may be {', '.join(candidates[:8])}: choose one with --machine"
    return _Guess(
        machine=generic,
        reason=f"any node with GPUs{more if candidates else ''}",
        expected=_expected([m for m in fitting if m.gpus.count == gpus] if devices else []),
        candidates=candidates,
    )


def _expected(machines: Sequence[Machine]) -> tuple[Reference, ...]:
    """Return the highest bounds that these machines have inside a node, below which none fails."""
    highest: dict[tuple[str, str, int | None], Reference] = {}
    for machine in machines:
        for bound in floors.bounds(machine):
            if bound.lower and bound.max_nodes == 1 and not checks.REGISTRY[bound.check].devices:
                key = bound.check, bound.metric, bound.size
                required = bound.bound.required
                shown = replace(bound, lower=0.0, expected=required, device=machine.gpus.device)
                highest[key] = max(
                    highest.get(key, shown), shown, key=lambda one: one.expected or 0.0
                )
    return tuple(highest.values())


# The hosts and their GPUs

#: The PCI address in logs of runs without GPUs. Virtual machines have GPUs with this address, too.
_NO_BUS = "0x00"


def _hosts_record(logs: Logs, hosts: tuple[str, ...], machine: PlannedMachine) -> Record:
    """Return the record of the hosts: their GPUs, and which of these the machine does not have."""
    gpus: dict[str, dict[int, str]] = {}
    places: dict[tuple[str, int], set[str]] = {}
    for device in logs.devices:
        if device.bus != _NO_BUS or device.name not in ("", _CPU):
            gpus.setdefault(device.host, {})[device.device] = device.name
            places.setdefault((device.host, device.device), set()).add(device.bus)
    return Record(
        step=HOSTS_STEP,
        checks=("hosts",),
        wave=0,
        group=0,
        hosts=hosts,
        exit=0,
        facts=tuple(
            Fact(
                name=INVENTORY.name,
                host=host,
                value={
                    "gpus": [
                        {"index": i, "name": names[i], "pci": _address(places[host, i])}
                        for i in sorted(names)
                    ]
                },
            )
            for host, names in gpus.items()
        ),
        problems=(*_unexpected_devices(logs, machine), *_failed_jobs(logs)),
    )


def _address(buses: Collection[str]) -> str:
    """Return the PCI address of a GPU; empty if its logs have several, or only a part of one."""
    return next(iter(buses)) if len(buses) == 1 and ":" in next(iter(buses)) else ""


def _failed_jobs(logs: Logs) -> Iterator[Problem]:
    """Yield one problem for each reason for which jobs failed that show no output of nccl-tests.

    What the programs of a run report of hosts of the logs is as it is in the run. An error of the
    kernel counts beside complete tables, too.
    """
    reasons: list[tuple[str, str]] = []
    for log in logs.failed_jobs:
        if log.reported and {problem.host for problem in log.reported} <= {*logs.hosts}:
            yield from (replace(problem, check=None) for problem in log.reported)
        else:
            reasons.append((log.answer.means if log.answer else log.problems[0].message, log.file))
    reasons += (
        (log.error.message, log.file)
        for log in logs.read
        if log.error and log.error.cause in OF_KERNEL
    )
    files = by_key((means, plain(file, 200)) for means, file in reasons)
    for means, names in files.items():
        yield Problem(cause=Cause.JOB_FAILED, message=f"{shortened(names, 3)}: {means}")


def _device_differences(logs: Logs) -> str:
    """Return a sentence with the hosts of each kind of GPU; empty if all have the same."""
    names_of = _device_names(logs)
    hosts_of = by_key((" and ".join(sorted(names)), host) for host, names in names_of.items())
    if len(hosts_of) < 2:
        return ""
    kinds = "; ".join(f"{name} on {host_list(hosts)}" for name, hosts in hosts_of.items())
    return f"the GPUs differ, and each kind is compared only with its own: {kinds}"


def _device_names(logs: Logs) -> dict[str, set[str]]:
    """Return the names of the devices of each host, without hosts that have none."""
    names: dict[str, set[str]] = {host: set() for host in logs.hosts}
    for device in logs.devices:
        if device.name:
            names[device.host].add(device.name)
    return {host: devices for host, devices in names.items() if devices}


def _unexpected_devices(logs: Logs, machine: PlannedMachine) -> Iterator[Problem]:
    """Return a problem for each host with devices that the machine does not have.

    If most hosts have such devices, it is one problem of no host: the machine is probably wrong.
    """
    names = _device_names(logs)
    unexpected = {
        host: own
        for host, devices in names.items()
        if (own := sorted(device for device in devices if _is_unexpected(device, machine)))
    }
    expected = f"the machine {machine.name} has {machine.device or 'no GPUs'}"
    if len(unexpected) * 2 > len(names):
        device = next(iter(unexpected.values()))[0]
        count = f"{len(unexpected)} of {len(names)} hosts"
        message = f"{count} have {device}, {expected}; try another --machine"
        yield Problem(cause=Cause.INVENTORY_MISMATCH, message=message)
        return
    for host, devices in unexpected.items():
        message = f"{host} has {plain(devices[0], 80)}, {expected}"
        # Names that differ within a host may be one damaged line.
        known = host if len(devices) == len(names[host]) else None
        yield Problem(cause=Cause.INVENTORY_MISMATCH, message=message, host=known)


def _is_unexpected(device: str, machine: PlannedMachine) -> bool:
    if machine.gpus == 0:
        return device != _CPU
    return bool(machine.device) and not is_device(str(machine.device), device)


# Plan and records

#: Causes that show damage of a file, and nothing about a host.
_OF_FILES = {*OF_TABLES} - {Cause.WRONG_DATA, Cause.NOT_FINITE}
#: Many logs show their own noise, so no machine needs a larger assumed noise than this.
_MAX_NOISE = 0.01
_WORDS: dict[GroupKind, str] = {
    GroupKind.EACH: "single-node",
    GroupKind.PAIRS: "pair",
    GroupKind.RAILS: "rail",
    GroupKind.RAIL_PAIRS: "rail pair",
    GroupKind.LADDER: "block",
    GroupKind.BLOCKS: "block",
    GroupKind.ALL: "all-node",
    GroupKind.HALVES: "split",
}


def _plan_and_records(
    logs: Logs,
    executions: Sequence[Execution],
    machine: PlannedMachine,
    metric_names: Collection[str],
) -> tuple[Plan, tuple[Record, ...], dict[str, int]]:
    """Return plan, records, and the number of tables of each collective without a check.

    `metric_names` are the metrics to keep besides bandwidth.
    """
    all_gpus = machine.gpus or _max_gpus(executions)
    used = _gpus_used(executions)
    known = [e for e in executions if e.check in checks.REGISTRY]
    unknown = [e for e in executions if e.check not in checks.REGISTRY]
    # A collective without a check is only planned if it failed, so that the failure is reported.
    failed = {e.check for e in unknown if e.problems and (known or e.check or _has_failed(e))}
    reported = [_with_host(e, logs.hosts) for e in unknown if e.check in failed]
    by_population = populations([*known, *reported], logs.hosts, all_gpus, logs.names)
    steps: list[Step] = []
    hosts = {*logs.hosts}
    for execution in (*known, *reported):
        # A failure may name a host that no list of devices has.
        hosts.update(execution.hosts, (p.host for p in execution.problems if p.host))
    records = [_hosts_record(logs, tuple(sorted(hosts, key=natural)), machine)]
    for number, (population, peers) in enumerate(sorted(by_population.items(), key=_order), 1):
        step, step_records = _step(number, population, peers, metric_names)
        steps.append(step)
        records += step_records
    plan = Plan(
        schema=SCHEMA,
        version=__version__,
        hash=_digest(executions),
        machine=replace(machine, noise=min(machine.noise, _MAX_NOISE)),
        suite="logs",
        nodes=None,
        steps=tuple(steps),
        gpus_used=used if 0 < used < all_gpus else None,
        origin=_origin(len(hosts), known, by_population),
    )
    unjudged = Counter(e.check or UNKNOWN for e in unknown)
    return plan, tuple(records), dict(unjudged)


def _without_innocent(executions: Sequence[Execution], logs: Logs) -> tuple[Execution, ...]:
    """Return the executions; those that failed by a mistake of the user have no hosts.

    Neither have those with the only failure of a host that shows nothing about it, see
    `_is_of_others`. If only one host took part, its failures do not name it, either: its own report
    that a call failed shows no more than that, unless a line shows what failed.
    """
    answers = {log.file: log.answer for log in logs.read if log.answer}
    named = {problem.host for execution in executions for problem in execution.problems}
    is_one = len({*named, *(h for one in executions for h in one.hosts)} - {None}) == 1
    of_others = {id(one): one for one in executions if _is_of_others(one)}
    ended = {(host, one.file) for one in of_others.values() for host in one.hosts}
    ends = Counter(host for host, _ in ended)
    return tuple(
        replace(_without_names(execution), hosts=(), gpus={})
        if id(execution) in of_others and max(ends[host] for host in execution.hosts) == 1
        else _without_hosts(execution, answers.get(execution.file), is_one=is_one)
        for execution in executions
    )


def _is_of_others(execution: Execution) -> bool:
    """Return True if a failure shows nothing about its hosts, unless it happens to one again.

    The user or the scheduler may have ended the job, or a host alone reports that a connection
    failed, whose other end may be at fault. Wrong results before that count.
    """
    failed = [problem for problem in execution.problems if problem.cause not in OF_TABLES]
    signs = [catalog().find(problem.sign or "") for problem in failed]
    of_network = len(execution.hosts) == 1
    sides = (side for row in execution.rows for _, side in row.sides())
    if not (execution.hosts and failed) or any(side and side.wrong for side in sides):
        return False
    return all(
        sign and (sign.outside or (of_network and sign.owner is SignOwner.NETWORK))
        for sign in signs
    )


def _without_hosts(execution: Execution, answer: Answer | None, *, is_one: bool) -> Execution:
    failed = [problem for problem in execution.problems if problem.cause not in OF_TABLES]
    if answer and answer.is_mistake and _has_failed(execution) and not any(p.host for p in failed):
        return replace(execution, hosts=(), gpus={})
    return _without_names(execution) if is_one and not (answer and answer.is_evident) else execution


def _without_names(execution: Execution) -> Execution:
    """Return an execution whose failures name no host."""
    problems = (p if p.cause in OF_TABLES else replace(p, host=None) for p in execution.problems)
    return replace(execution, problems=tuple(problems))


def _answered(executions: Sequence[Execution], shown: Read | None) -> Iterator[Execution]:
    """Yield the executions; those of the log whose answer is shown do not quote its lines again."""
    for execution in executions:
        if shown is None or shown.answer is None or execution.file != shown.file:
            yield execution
            continue
        facts = tuple(f for f in execution.facts if f.name != NCCL_WARNINGS.name)
        problems = tuple(map(shown.answer.without_quote, execution.problems))
        yield replace(execution, problems=problems, facts=facts)


def _has_failed(execution: Execution) -> bool:
    """Return True if an execution reports a failure before its first row."""
    return not execution.rows and any(
        problem.cause not in OF_TABLES for problem in execution.problems
    )


def _with_host(execution: Execution, hosts: Sequence[str]) -> Execution:
    """Return an execution on one of several hosts with this host in all its problems.

    Nothing compares it with others, so no comparison will find the host. But a program that failed
    may be the user's mistake, and a damaged table shows nothing about its host.
    """
    # The list of devices may have lost other hosts.
    has_list = execution.table is None or execution.table.ranks is not None
    if len(execution.hosts) != 1 or len(hosts) == 1 or _has_failed(execution) or not has_list:
        return execution
    (host,) = execution.hosts
    problems = tuple(
        p if p.host or p.cause.row.names_no_node or p.cause in _OF_FILES else replace(p, host=host)
        for p in execution.problems
    )
    return replace(execution, problems=problems)


def _order(item: tuple[Population, list[Execution]]) -> tuple[int, int, str, str]:
    population, _ = item
    gpus = population.gpus or 99
    kinds = list(_WORDS)
    return kinds.index(population.kind), -gpus, population.check, str(population)


def _step(
    number: int,
    population: Population,
    executions: Sequence[Execution],
    metric_names: Collection[str],
) -> tuple[Step, list[Record]]:
    """Return the step and the records of executions that are comparable."""
    tables = [execution.table for execution in executions if execution.table]
    top = _top_size(tables)
    low, factor = population.min, population.factor
    params: dict[str, bool | int | float | str] = {}
    if low and factor and top and top >= low:
        params = {"min": format_size(low), "max": format_size(top), "factor": factor}
    gpus = population.gpus
    suffix = f"-{count(gpus, 'gpu')}".replace(" ", "-") if gpus else ""
    suffix += "-crossed" * population.crossed
    step = Step(
        id=f"{number:02d}-{population.check}-{population.kind}{suffix}",
        checks=(population.check,),
        script="",
        groups=population.kind,
        params=params,
    )
    positions = _positions(executions)
    records = [
        _record(step, execution, population, top, metric_names, position)
        for execution, position in zip(executions, positions, strict=True)
    ]
    return replace(step, rounds=max((wave + 1 for wave, _ in positions), default=1)), records


def _positions(executions: Sequence[Execution]) -> list[tuple[int, int]]:
    """Return wave and group of each execution; no host takes part twice in a wave."""
    busy: list[set[str]] = []
    groups: Counter[int] = Counter()
    positions = []
    for execution in executions:
        free = (wave for wave, hosts in enumerate(busy) if hosts.isdisjoint(execution.hosts))
        wave = next(free, len(busy))
        if wave == len(busy):
            busy.append(set())
        busy[wave].update(execution.hosts)
        positions.append((wave, groups[wave]))
        groups[wave] += 1
    return positions


def _top_size(tables: Sequence[Table]) -> int | None:
    """Return the largest requested size in bytes that 3 of 4 complete tables reached."""
    complete = [table for table in tables if table.complete] or tables
    sizes = sorted((_requested_top(table) for table in complete if table.rows), reverse=True)
    return sizes[max(0, -(-len(sizes) * 3 // 4) - 1)] if sizes else None


def _requested_top(table: Table) -> int:
    """Return the largest size as requested; the programs round sizes down to whole elements."""
    size, top = table.min_bytes or 0, table.top_size or 0
    if not table.factor or table.factor < 2 or not size:
        return top
    while size < top:
        size *= table.factor
    return size


def _record(
    step: Step,
    execution: Execution,
    population: Population,
    top: int | None,
    metric_names: Collection[str],
    position: tuple[int, int],
) -> Record:
    """Return the record of an execution; `position` is its wave and its group in the wave."""
    table = execution.table
    names = (BUSBW.name, WRONG.name, *metric_names)
    metrics = nccl_tests.table_metrics(table, names) if table else ()
    is_partial = bool(population.gpus) or population.kind in (GroupKind.RAILS, GroupKind.HALVES)
    facts = execution.facts
    facts += tuple(Fact(name=GPUS.name, host=h, value=list(g)) for h, g in execution.gpus.items())
    return Record(
        step=step.id,
        checks=step.checks,
        wave=position[0],
        group=position[1],
        hosts=execution.hosts,
        # These are the ranks of the first host; the facts have those of each host.
        local_ranks=next(iter(execution.gpus.values()), ()) if is_partial else (),
        ranks=(table.ranks if table else None) or 0,
        exit=0 if table is not None and table.complete else None,
        log=execution.file,
        metrics=tuple(m for m in metrics if m.size is None or top is None or m.size <= top),
        facts=facts,
        problems=execution.problems,
    )


def _digest(executions: Sequence[Execution]) -> str:
    """Return a hash of file names and values, which does not depend on the folder or archive."""
    digest = hashlib.sha256()
    texts = []
    for e in executions:
        texts.append(repr((e.file_name, e.check, e.hosts, e.table and e.rows)))
    for text in sorted(texts):
        digest.update(text.encode())
    return digest.hexdigest()


def _origin(
    hosts: int,
    executions: Sequence[Execution],
    by_population: dict[Population, list[Execution]],
) -> str:
    """Return a summary such as "45 pair logs, 10 nodes, 4 collectives; from logs alone"."""
    parts = []
    for kind, word in _WORDS.items():
        of_kind = [e for p, peers in by_population.items() if p.kind == kind for e in peers]
        files = len({(e.file, e.hosts) for e in of_kind if e.hosts})
        if files:
            parts.append(count(files, f"{word} log"))
    parts.append(count(hosts, "node"))
    parts.append(count(len({e.check for e in executions}), "collective"))
    return f"{', '.join(parts)}; from logs alone"
