"""What only other logs of its kind can say of one: what it lacks at its end, and whom it is about.

Logs are of one kind where their names differ in the names of hosts alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from accept.core.model import Problem
from accept.nccl_logs.corpus import Execution, Logs
from accept.nccl_logs.hosts import HostNames
from accept.nccl_logs.tables import Read

#: Fewest logs of a kind that say what belongs into it.
_FEWEST = 3

#: Hosts, and GPUs of each.
_Who = tuple[int, tuple[int, ...]]


def completed(logs: Logs) -> tuple[Execution, ...]:
    """All executions that the logs are about, with those that are missing from damaged ones."""
    names = logs.names
    who: dict[str, Counter[_Who]] = {}
    checks: dict[str, Counter[tuple[str | None, ...]]] = {}
    for one, executions in logs.read:
        kind = names.kind(one.file)
        if not _is_dead(executions):
            first = executions[0]
            gpus = next(iter(first.gpus.values()), ())
            who.setdefault(kind, Counter())[len(first.hosts), gpus] += 1
            checks.setdefault(kind, Counter())[tuple(e.check for e in executions)] += 1
    found: list[Execution] = []
    for one, executions in logs.read:
        kind = names.kind(one.file)
        usual = _usual(checks.get(kind, Counter()))
        if not _is_dead(executions):
            whole = tuple(_whole(e, names, who[kind]) for e in executions)
            found += whole
            found += _cut_off(one, whole, usual)
            failed = _by_host(one.problems) if not names.of(one.file) else [one.problems]
            for some in failed if one.problems else ():
                mine = usual or (executions[0].check,)
                found += _dead(replace(one, problems=some), names, who[kind], mine)
        else:
            said = dict.fromkeys(p for e in executions for p in e.problems)
            seen = who.get(kind) or sum(who.values(), Counter())
            others = checks.get(kind) or sum(checks.values(), Counter())
            dead = replace(one, problems=(*said, *one.problems))
            found += _dead(dead, names, seen, usual or _most(others))
    return tuple(found)


def _is_dead(executions: Sequence[Execution]) -> bool:
    """Whether a log has no table that says what was measured, or on whom."""
    tables = [e.measured.table for e in executions if e.measured and e.measured.table]
    return not any(table.rows or table.collective or table.listing for table in tables)


def _most(counted: Counter[tuple[str | None, ...]]) -> tuple[str | None, ...]:
    return counted.most_common(1)[0][0] if counted else (None,)


def _usual(counted: Counter[tuple[str | None, ...]]) -> tuple[str | None, ...]:
    """The checks of two logs in three, in their order; empty: there is no such habit."""
    checks, count = counted.most_common(1)[0] if counted else ((), 0)
    return checks if count >= _FEWEST and count * 3 >= counted.total() * 2 else ()


def _whole(execution: Execution, names: HostNames, who: Counter[_Who]) -> Execution:
    """An execution whose list of devices is cut off has it from the name of the log and others."""
    table = execution.measured.table if execution.measured else None
    named = names.of(execution.file)
    listed = table is not None and (table.complete or (table.rows and execution.hosts))
    if table is None or listed or not set(execution.hosts) <= set(named):
        return execution
    return replace(execution, hosts=named, gpus=_gpus_of(named, who) or execution.gpus)


def _gpus_of(hosts: tuple[str, ...], who: Counter[_Who]) -> dict[str, tuple[int, ...]]:
    """The GPUs that most logs of so many hosts are about; none where nothing says it."""
    fitting = [gpus for (count, gpus), _ in who.most_common() if count == len(hosts)]
    return dict.fromkeys(hosts, fitting[0]) if fitting else {}


def _cut_off(
    one: Read, executions: tuple[Execution, ...], usual: tuple[str | None, ...]
) -> Iterator[Execution]:
    """What a log ends before, though the others of its kind have it."""
    have = tuple(execution.check for execution in executions)
    if usual[: len(have)] != have:
        return
    for check in usual[len(have) :]:
        text = f"the log ends before {check}, which the others of its kind have"
        said = Problem(cause="incomplete-log", message=text, check=check)
        last = executions[-1]
        yield Execution(
            file=one.file, check=check, hosts=last.hosts, gpus=last.gpus, problems=(said,)
        )


def _by_host(problems: Sequence[Problem]) -> list[tuple[Problem, ...]]:
    """What is said of each host, or what is said of none where nothing is said of any."""
    by_host: dict[str | None, list[Problem]] = {}
    for problem in problems:
        by_host.setdefault(problem.host, []).append(problem)
    named = [tuple(some) for host, some in by_host.items() if host]
    return named or [tuple(problems)]


def _dead(
    one: Read, names: HostNames, who: Counter[_Who], usual: tuple[str | None, ...]
) -> Iterator[Execution]:
    """What a log without any table is about: by its name, by whom it names, by the others."""
    problems = tuple(replace(p, host=names.called(p.host)) if p.host else p for p in one.problems)
    said = dict.fromkeys(problem.host for problem in problems if problem.host)
    hosts = names.of(one.file) or tuple(said)
    for check in dict.fromkeys(usual):
        yield Execution(
            file=one.file,
            check=check,
            hosts=hosts,
            gpus=_gpus_of(hosts, who),
            problems=problems,
        )
