"""Make findings, problems and suspects of what a check measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

from accept.core.causes import Cause, Judgement
from accept.core.plan import Bound
from accept.core.records import Problem
from accept.core.table import Row
from accept.core.verdict import Executions, Finding, State, Strength, Suspect, SuspectKind

T = TypeVar("T", bound=Hashable)

#: Maximum number of logs of one finding or suspect.
_MAX_LOGS = 8


class Problems(NamedTuple):
    """Hold what rules found in the facts of hosts, by what follows from it."""

    #: They fail the check.
    problems: list[Problem]
    #: What may be a fault, or not: inconclusive.
    unclear: list[Problem]
    #: What accuses nothing.
    notes: list[str]

    @classmethod
    def all_of(cls, parts: Iterable[Problems]) -> Problems:
        """Return the findings of several rules together."""
        several = zip(*parts, strict=True)
        return cls(*([one for part in own for one in part] for own in several))


def first_logs(logs: Iterable[str]) -> tuple[str, ...]:
    """Return the first logs, each once."""
    return tuple(dict.fromkeys(filter(None, logs)))[:_MAX_LOGS]


def finding(
    check: str,
    judgement: Judgement,
    state: State,
    message: str,
    cause: Cause | None = None,
    *,
    hosts: Iterable[str] = (),
    logs: Iterable[str] = (),
    bound: Bound | None = None,
    metric: str | None = None,
    unit: str = "",
    executions: Executions | None = None,
    sign: str | None = None,
) -> Finding:
    """Return a finding, with each of its hosts and logs once."""
    return Finding(
        check=check,
        judgement=judgement,
        state=state,
        message=message,
        cause=cause,
        sign=sign,
        metric=metric,
        unit=unit,
        bound=bound,
        hosts=tuple(dict.fromkeys(hosts)),
        executions=executions,
        evidence=first_logs(logs),
    )


def problem_of(row: Row, cause: Cause, message: str) -> Problem:
    """Return a problem of the device that a row is about."""
    return Problem(cause=cause, message=message, host=row.host, rank=row.rank, gpu=row.gpu)


def suspect_of(row: Row, cause: Cause, strength: Strength, why: str) -> Suspect:
    """Return the GPU that a row is about as a suspect; without one, its host."""
    return Suspect(
        kind=SuspectKind.GPU if row.gpu else SuspectKind.NODE,
        hosts=(row.host or row.hosts[0],),
        device=row.gpu or None,
        cause=cause,
        strength=strength,
        why=why,
        evidence=first_logs([row.log]),
    )


def usual(values: Iterable[T | None]) -> T | None:
    """Return the value that more than half have; None if there is none, or if it is unknown."""
    counts = Counter(values)
    return next((one for one, number in counts.items() if 2 * number > counts.total()), None)
