"""Gather nccl-tests logs from files and folders into executions and comparable populations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from accept.core.by_key import by_key
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.failures import OF_TABLES
from accept.core.nccl_tests.lines import UNKNOWN_BUS, Device
from accept.core.plan import GroupKind
from accept.core.records import Problem
from accept.core.text import count, plain, shortened
from accept.evidence.untrusted import Entry, Limits, walk
from accept.foreign_logs.answer import Answer, of_cut
from accept.foreign_logs.host_state import Report, labelled, words_of
from accept.foreign_logs.hosts import HostNames, natural
from accept.foreign_logs.tables import Execution, NoLog, Read, SkippedFile, deduplicate, read

_UNDERSTOOD = (
    "name a run, its evidence, or the output of a program that accept reads: nccl-tests "
    "(all_reduce_perf and others), dmesg, journalctl -k, nvidia-smi -q, nvidia-bug-report.sh, "
    "dcgmi diag, perftest, fio, HPL, nvbandwidth, amd-smi"
)
#: Causes that the kernel reports.
OF_KERNEL = (Cause.GPU_XID, Cause.GPU_LOST, Cause.KERNEL_CRASHED)
#: Beginnings of the names of files and folders that describe a host, not a launch. Such a file is
#: a log only if it contains results; without results it is not a log that ended early.
_CONTEXT = re.compile(
    r"(?:dcgmi|dmesg|dmidecode|env|ethtool|hostname|ibdev2netdev|ibstat|ibstatus|ibv_devinfo|"
    r"ifconfig|journal|journalctl|kern|license|lscpu|lsmod|lspci|nvidia[-_]bug|nvidia[-_]smi|"
    r"os-release|readme|sosreport|sysinfo|syslog|uname)(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class _LogFile:
    """The content of a file that may be a log."""

    log: Read
    #: True if the user named this file, and not its folder or archive.
    named: bool
    #: True if the name of the file or of its folder shows that it describes a host or a run.
    is_context: bool


def _read_all(
    path: Path, limits: Limits, *, collective: str | None = None, title: str = ""
) -> Iterator[_LogFile]:
    """Read every file in a file, folder or archive, one after another.

    `title` is what people call the path; empty: the path.
    Raises BadEvidence for a damaged archive, and if something exceeds the limits.
    """
    for entry in walk(path, limits):
        if entry.is_hidden and not entry.named:
            continue
        name = entry.name.replace(str(path), title, 1) if title else entry.name
        if entry.is_other_kind:
            log = Read(file=name, no_log=NoLog.OTHER_KIND)
        elif entry.unread:
            log = Read(file=name, no_log=entry.unread)
        else:
            log = read(name, entry.blocks, collective=collective)
        if log.reports:
            words = words_of((title,) if title and entry.named else _parts(path, entry))
            log = replace(log, reports=tuple(replace(one, words=words) for one in log.reports))
        is_context = any(_CONTEXT.match(part) for part in entry.parts[-2:])
        yield _LogFile(log=log, named=entry.named, is_context=is_context)


def _parts(path: Path, entry: Entry) -> tuple[str, ...]:
    """Return the parts of a path that may name the host of a file.

    These are the parts that the user wrote, if it is not an absolute path of a file.
    """
    if not entry.named:
        return (path.resolve().name, *entry.parts)
    return path.parts if not path.is_absolute() else (path.name,)


@dataclass(frozen=True, kw_only=True)
class Logs:
    """The logs that were read, and the files that were left out."""

    read: tuple[Read, ...]
    #: In natural order: node9 before node10.
    hosts: tuple[str, ...]
    names: HostNames
    #: Files without results of their own.
    skipped: tuple[SkippedFile, ...]
    #: Files of other programs that show that a job failed, and not on which hosts.
    failed_jobs: tuple[Read, ...] = ()
    #: What other files show of the state of hosts.
    reports: tuple[Report, ...] = ()

    @property
    def devices(self) -> Iterator[Device]:
        """Return the devices that all tables list."""
        for log in self.read:
            for table in log.tables:
                yield from table.devices


class NothingMeasured(BadEvidence):
    """No log has a result. `answers` show why, the most decisive one first."""

    def __init__(self, names: str, answers: Sequence[Answer]) -> None:
        self.answers = answers
        others = [plain(answer.file, 100) for answer in answers[1:]]
        also = f"; also failed: {shortened(others, 3)}" if others else ""
        super().__init__(
            f"{names}: no verdict, because nothing was measured{also}",
            code=Code.LOGS_NOTHING_MEASURED,
            details=(*answers[0].sentences,),
        )


def gather(paths: Mapping[Path, str], limits: Limits, *, collective: str | None = None) -> Logs:
    """Read all logs in `paths`, which are files, folders and archives, with their names for people.

    `collective` is that of tables without a name; None: it is inferred.
    Raises BadEvidence if a named file is not a log, or if there is no log at all, and
    NothingMeasured if no log has results.
    """
    logs: list[Read] = []
    failed_jobs: list[Read] = []
    others: list[_LogFile] = []
    reports: list[Report] = []
    for path, title in paths.items():
        for file in _read_all(path, limits, collective=collective, title=title):
            if file.log.reports:
                reports += file.log.reports
            elif file.log.no_log or (file.log.launcher_only and not file.named):
                others.append(file)
            else:
                logs.append(file.log)
    logs, skipped = deduplicate(logs)
    tables = [table for log in logs for table in log.tables if table.hosts]
    hosts = {host for table in tables for host in table.hosts}
    names = HostNames(hosts, [log.file for log in logs if log.tables])
    for file in others:
        log = file.log
        of_others = (NoLog.OTHER_KIND, NoLog.COPIES, NoLog.VERDICT)
        # A kernel log in an unknown form still shows what the kernel reports of a GPU.
        is_kernel = any(problem.cause in OF_KERNEL for problem in log.problems)
        is_other = (file.is_context and not is_kernel) or log.no_log in of_others
        is_empty = log.no_log is NoLog.EMPTY
        if names.fits(log.file, empty=is_empty) and not is_other:
            logs.append(_as_log(log))
        elif log.problems and (file.named or not is_other):
            failed_jobs.append(log)
        elif file.named:
            raise BadEvidence(
                f"{plain(log.file)} is not a log of nccl-tests and holds no packed evidence: "
                f"{log.no_log}",
                code=Code.LOGS_NOT_A_LOG,
                hint=_UNDERSTOOD,
            )
        else:
            skipped.append(SkippedFile(file=log.file, reason=str(log.no_log or NoLog.LAUNCHER)))
    if not _show_anything(logs) and not reports:
        raise _no_results([*paths.values()], [*logs, *failed_jobs], [file.log for file in others])
    number = _numbering(tables)
    return Logs(
        read=tuple(_with_gpus(log, number) for log in logs),
        hosts=tuple(sorted(hosts, key=natural)),
        names=names,
        skipped=tuple(skipped),
        failed_jobs=tuple(failed_jobs),
        reports=tuple(labelled(reports, hosts)),
    )


def _as_log(log: Read) -> Read:
    """Return a file without results that is named like the logs, as a log that ended early."""
    if log.problems:
        return replace(log, no_log=None)
    message = f"the log is not usable: {log.no_log}"
    return Read(file=log.file, problems=(Problem(cause=Cause.INCOMPLETE_LOG, message=message),))


def _show_anything(logs: Sequence[Read]) -> bool:
    """Return True if a table has rows, or a log with a list of devices shows why it has none."""
    tables = [table for log in logs for table in log.tables]
    if any(table.rows for table in tables):
        return True
    causes = {problem.cause for table in tables for problem in table.problems}
    return any(table.hosts for table in tables) and bool(causes - {Cause.INCOMPLETE_LOG})


def _no_results(paths: Sequence[str], logs: Sequence[Read], others: Sequence[Read]) -> BadEvidence:
    """Return the error for `paths` without any result; `others` files are not logs."""
    names = ", ".join(plain(path, 200) for path in paths[:3])
    if logs:
        return NothingMeasured(names, sorted(map(_answer_of, logs), key=_decisiveness))
    packed = next(
        (f"; {one.file} is {one.no_log}" for one in others if one.no_log is NoLog.PACKED), ""
    )
    return BadEvidence(
        f"{names} holds no evidence (plan.json is missing) and no log of nccl-tests; "
        f"{count(len(others), 'file')} searched{plain(packed)}",
        code=Code.EVIDENCE_NONE,
        hint=_UNDERSTOOD,
    )


def _answer_of(log: Read) -> Answer:
    """Return why a log has no results."""
    problems = (*log.problems, *(p for table in log.tables for p in table.problems))
    message = next((problem.message for problem in problems), "no list of devices")
    return log.answer or of_cut(log.file, log.last, plain(message, 200))


def _decisiveness(answer: Answer) -> tuple[bool, bool]:
    """Return the key by which answers are sorted: those that show what failed come first."""
    return not answer.is_evident, answer.cause in OF_TABLES


_Numbering = Callable[[str, Sequence[Device]], tuple[int, ...]]


def _numbering(tables: Iterable[Execution]) -> _Numbering:
    """Return a function that numbers the GPUs of a host.

    These are the device numbers of its ranks. But if every process sees only one GPU, each is
    device 0, and the GPUs are numbered in the order of their PCI addresses.
    """
    buses: dict[str, dict[int, set[str]]] = {}
    for table in tables:
        for device in table.devices:
            if device.bus != UNKNOWN_BUS:
                buses.setdefault(device.host, {}).setdefault(device.device, set()).add(device.bus)
    ambiguous = {
        host: sorted(set().union(*by_device.values()))
        for host, by_device in buses.items()
        if any(len(addresses) > 1 for addresses in by_device.values())
    }

    def number(host: str, devices: Sequence[Device]) -> tuple[int, ...]:
        if host in ambiguous and all(device.bus != UNKNOWN_BUS for device in devices):
            numbers = {ambiguous[host].index(device.bus) for device in devices}
        else:
            numbers = {device.device for device in devices}
        if len(numbers) < len(devices):
            # Without GPUs all ranks have the same device.
            return tuple(range(len(devices)))
        return tuple(sorted(numbers))

    return number


def _with_gpus(log: Read, number: _Numbering) -> Read:
    """Return a log whose executions have the numbers of their GPUs."""
    tables = []
    for execution in log.tables:
        by_host = by_key((device.host, device) for device in execution.devices)
        gpus = {host: number(host, devices) for host, devices in by_host.items()}
        tables.append(replace(execution, gpus=gpus))
    return replace(log, tables=tuple(tables))


#: Name of a collective that the log does not name.
UNKNOWN = "unknown-collective"


class Population(NamedTuple):
    """The properties that comparable executions share; None where the log does not show one."""

    kind: GroupKind
    check: str
    #: GPUs of each host; 0: all of them.
    gpus: int
    #: True if the hosts took part with different GPUs, so that traffic crosses rails.
    crossed: bool
    #: For rails: the hosts that they span.
    hosts: tuple[str, ...]
    min: int | None = None
    max: int | None = None
    factor: int | None = None
    type: str | None = None
    #: Names of the GPUs, each once.
    devices: tuple[str, ...] = ()
    #: Settings in which they differ from other executions.
    settings: str = ""


def populations(
    executions: Sequence[Execution], hosts: Sequence[str], all_gpus: int, names: HostNames
) -> dict[Population, list[Execution]]:
    """Group comparable executions. `all_gpus` is the number of GPUs that a host has."""
    rails: dict[tuple[str | None, tuple[str, ...]], set[tuple[int, ...]]] = {}
    for execution in executions:
        if execution.count == 1 and not _is_crossed(execution):
            rails.setdefault(_check_and_hosts(execution), set()).update(execution.gpus.values())
    blocks = _smallest_blocks(executions)
    result: dict[Population, list[Execution]] = {}
    without_rows = []
    for execution in executions:
        key = Population(
            kind=GroupKind.LADDER if execution.hosts in blocks else _kind(execution, len(hosts)),
            check=execution.check or UNKNOWN,
            gpus=0 if execution.count == all_gpus else execution.count,
            crossed=_is_crossed(execution),
            hosts=(),
        )
        check_and_hosts = _check_and_hosts(execution)
        is_rail = (
            len(rails.get(check_and_hosts, ())) > 1 and execution.count == 1 and not key.crossed
        )
        if is_rail and (len(execution.hosts) > 2 or len(hosts) == 2):
            key = key._replace(kind=GroupKind.RAILS, hosts=check_and_hosts[1])
        table = execution.table
        if table is None or table.min_bytes is None or not table.rows:
            without_rows.append((key, table, execution))
            continue
        key = key._replace(
            min=table.min_bytes,
            max=table.max_bytes,
            factor=table.factor,
            type=table.rows[0].type,
            devices=_devices(execution),
        )
        result.setdefault(key, []).append(execution)
    result = {
        key._replace(settings=settings): alike
        for key, peers in result.items()
        for settings, alike in _by_settings(peers, names).items()
    }
    for key, table, execution in without_rows:
        # An execution that failed early belongs to those with the same hosts and sizes.
        sizes = (table.min_bytes, table.max_bytes) if table else (None, None)
        similar = [k for k in result if k[:5] == key[:5]]
        candidates = [k for k in similar if (k.min, k.max) == sizes] or similar
        best = max(candidates, key=lambda k: len(result[k]), default=key)
        result.setdefault(best, []).append(execution)
    return result


def _by_settings(executions: Sequence[Execution], names: HostNames) -> dict[str, list[Execution]]:
    """Divide executions by parameters, variables of NCCL, and the pattern of the file name.

    Patterns differ in their settings only if the same GPUs were measured with several of them.
    """
    shown: list[dict[str, str]] = []
    patterns: dict[tuple[tuple[str, tuple[int, ...]], ...], set[str]] = {}
    for execution in executions:
        table, pattern = execution.table, names.pattern(execution.file)
        variables = (
            " ".join(f"{name}={value}" for name, value in table.environment) if table else ""
        )
        parameters = table.parameters if table else ""
        shown.append({"parameters": parameters, "variables": variables, "file": pattern})
        patterns.setdefault(tuple(sorted(execution.gpus.items())), set()).add(pattern)
    kinds = []
    for kind in ("parameters", "variables", "file"):
        # A log that shows no settings may have any.
        values = {settings[kind] for settings in shown} - {""}
        if len(values) > 1 and (kind != "file" or any(len(p) > 1 for p in patterns.values())):
            kinds.append(kind)
    return by_key(
        ("; ".join(settings[kind] for kind in kinds), execution)
        for execution, settings in zip(executions, shown, strict=True)
    )


def _devices(execution: Execution) -> tuple[str, ...]:
    return tuple(sorted({device.name for device in execution.devices if device.name}))


def _smallest_blocks(executions: Sequence[Execution]) -> set[tuple[str, ...]]:
    """Return the pairs of hosts if they are the smallest blocks of a ladder, else none.

    This is the case if no host is in two pairs, and each pair is in a larger block that is not all
    hosts.
    """
    pairs: set[tuple[str, ...]] = {e.hosts for e in executions if len(e.hosts) == 2}
    all_hosts = len({host for e in executions for host in e.hosts})
    larger = [{*e.hosts} for e in executions if 2 < len(e.hosts) < all_hosts]
    members = [host for pair in {frozenset(pair) for pair in pairs} for host in pair]
    if len({*members}) < len(members):
        return set()
    all_in_larger = all(any(block.issuperset(pair) for block in larger) for pair in pairs)
    return pairs if all_in_larger else set()


def _is_crossed(execution: Execution) -> bool:
    return len(set(execution.gpus.values())) > 1


def _check_and_hosts(execution: Execution) -> tuple[str | None, tuple[str, ...]]:
    return execution.check, tuple(sorted(execution.hosts))


def _kind(execution: Execution, all_hosts: int) -> GroupKind:
    if len({device.group for device in execution.devices}) > 1:
        # Several groups ran at once, and share one result.
        return GroupKind.HALVES
    hosts = len(execution.hosts)
    if hosts < 3:
        return GroupKind.PAIRS if hosts == 2 else GroupKind.EACH
    return GroupKind.ALL if hosts == all_hosts else GroupKind.LADDER
