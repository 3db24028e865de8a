"""Complete damaged logs with the help of other logs of the same kind.

The other logs show which tables are missing at the end of a log, and which hosts and GPUs took
part. Logs are of the same kind if only the host names in their file names differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from accept.core.by_key import by_key
from accept.core.causes import Cause
from accept.core.records import Problem
from accept.foreign_logs.corpus import Logs
from accept.foreign_logs.hosts import HostNames
from accept.foreign_logs.tables import Execution, Read

#: Minimum number of logs of a kind that show what its logs contain.
_FEWEST = 3

#: Number of hosts, and the GPUs of the first.
_Participants = tuple[int, tuple[int, ...]]


def completed(logs: Logs) -> tuple[Execution, ...]:
    """Return the executions in all logs, and those that damaged logs should have contained."""
    names = logs.names
    participants: dict[str, Counter[_Participants]] = {}
    checks: dict[str, Counter[tuple[str | None, ...]]] = {}
    for log in logs.read:
        kind, executions = names.kind(log.file), log.tables
        if not _is_without_results(executions):
            first = executions[0]
            gpus = next(iter(first.gpus.values()), ())
            participants.setdefault(kind, Counter())[len(first.hosts), gpus] += 1
            checks.setdefault(kind, Counter())[tuple(e.check for e in executions)] += 1
    result: list[Execution] = []
    for log in logs.read:
        kind, executions = names.kind(log.file), log.tables
        usual = _usual(checks.get(kind, Counter()))
        if not _is_without_results(executions):
            with_hosts = tuple(_with_hosts(e, names, participants[kind]) for e in executions)
            result += with_hosts
            result += _missing_at_end(log, with_hosts, usual)
            failures = _by_host(log.problems) if not names.of(log.file) else [log.problems]
            for problems in failures if log.problems else ():
                expected = usual or (executions[0].check,)
                failure = replace(log, problems=problems)
                result += _expected(failure, names, participants[kind], expected)
        else:
            table_problems = dict.fromkeys(p for e in executions for p in e.problems)
            known = participants.get(kind) or sum(participants.values(), Counter())
            checks_of_kind = checks.get(kind) or sum(checks.values(), Counter())
            failure = replace(log, problems=(*table_problems, *log.problems))
            result += _expected(failure, names, known, usual or _most_common(checks_of_kind))
    return tuple(_excused(execution, names, result) for execution in result)


def _excused(execution: Execution, names: HostNames, others: Sequence[Execution]) -> Execution:
    """Return the execution; gaps in an excerpt of a log do not count as a failed run.

    A log that ends early is an excerpt if it shows no failure, and no log of its kind has a
    complete table of the same collective. The table must be its last: a log that goes on was not
    cut there.
    """
    table = execution.table
    if table is None or table.complete or not {*execution.problems} <= {*table.problems}:
        return execution
    of_file = [other for other in others if other.table and other.file == execution.file]
    if of_file[-1] is not execution or not any(other.rows for other in of_file):
        return execution
    pattern = names.pattern(execution.file)
    if any(
        other.table
        and other.table.complete
        and other.check == execution.check
        and names.pattern(other.file) == pattern
        for other in others
    ):
        return execution
    problems = tuple(
        replace(p, cause=Cause.PARTIAL_LOG) if p.cause is Cause.INCOMPLETE_LOG else p
        for p in execution.problems
    )
    return replace(execution, problems=problems)


def _is_without_results(executions: Sequence[Execution]) -> bool:
    """Return True if no table of a log has rows, or shows its collective or devices."""
    tables = [(execution, execution.table) for execution in executions if execution.table]
    return not any(
        table.rows or table.collective or table.devices or execution.devices
        for execution, table in tables
    )


def _most_common(checks: Counter[tuple[str | None, ...]]) -> tuple[str | None, ...]:
    return checks.most_common(1)[0][0] if checks else (None,)


def _usual(counts: Counter[tuple[str | None, ...]]) -> tuple[str | None, ...]:
    """Return the checks that 2 of 3 logs contain, in their order; empty: they differ too much."""
    checks, count = counts.most_common(1)[0] if counts else ((), 0)
    return checks if count >= _FEWEST and count * 3 >= counts.total() * 2 else ()


def _with_hosts(
    execution: Execution, names: HostNames, participants: Counter[_Participants]
) -> Execution:
    """Return the execution; if its list of devices is cut off, with the hosts of the file name."""
    table = execution.table
    named = names.of(execution.file)
    if not named and not execution.hosts and table is not None and not table.rows:
        named = tuple(dict.fromkeys(p.host for p in execution.problems if p.host))
    is_listed = table is not None and (table.complete or (table.rows and execution.hosts))
    if table is None or is_listed or not set(execution.hosts) <= set(named):
        return execution
    return replace(execution, hosts=named, gpus=_gpus_of(named, participants) or execution.gpus)


def _gpus_of(
    hosts: tuple[str, ...], participants: Counter[_Participants]
) -> dict[str, tuple[int, ...]]:
    """Return the GPUs by host, as in most logs with the same number of hosts; empty: unknown."""
    fitting = [gpus for (count, gpus), _ in participants.most_common() if count == len(hosts)]
    return dict.fromkeys(hosts, fitting[0]) if fitting else {}


def _missing_at_end(
    log: Read, executions: tuple[Execution, ...], usual: tuple[str | None, ...]
) -> Iterator[Execution]:
    """Return the executions that other logs of the kind contain, but that this log ends before."""
    present = tuple(execution.check for execution in executions)
    if usual[: len(present)] != present:
        return
    for check in usual[len(present) :]:
        message = f"the log ends before {check}, which the other logs of its kind contain"
        problem = Problem(cause=Cause.INCOMPLETE_LOG, message=message, check=check)
        last = executions[-1]
        yield Execution(
            file=log.file, check=check, hosts=last.hosts, gpus=last.gpus, problems=(problem,)
        )


def _by_host(problems: Sequence[Problem]) -> list[tuple[Problem, ...]]:
    """Return the problems of each host, or all problems if none has a host."""
    by_host = by_key((problem.host, problem) for problem in problems)
    with_host = [tuple(group) for host, group in by_host.items() if host]
    return with_host or [tuple(problems)]


def _expected(
    log: Read,
    names: HostNames,
    participants: Counter[_Participants],
    checks: tuple[str | None, ...],
) -> Iterator[Execution]:
    """Return an execution without results for each of the `checks`.

    Its hosts are those in the file name, else those in the problems of the log.
    """
    problems = tuple(replace(p, host=names.called(p.host)) if p.host else p for p in log.problems)
    with_problems = dict.fromkeys(problem.host for problem in problems if problem.host)
    hosts = names.of(log.file) or tuple(with_problems)
    for check in dict.fromkeys(checks):
        yield Execution(
            file=log.file,
            check=check,
            hosts=hosts,
            gpus=_gpus_of(hosts, participants),
            problems=problems,
        )
