"""Conclude a check: its own comparisons, and what every check is judged by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from accept.core.causes import Cause, Judgement
from accept.core.judge import bounds, completeness
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Bound, Finding, Problem, State, Strength, Suspect, SuspectKind
from accept.core.table import Outcome, Row

T = TypeVar("T", bound=Hashable)

#: Maximum number of logs of one finding or suspect, and of findings that accuse nothing.
_MAX_LOGS, _MAX_NOTES = 8, 20


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


def conclude(
    evidence: Evidence,
    *,
    measured: str,
    required: str,
    problems: Iterable[Problem] = (),
    unclear: Iterable[Problem] = (),
    notes: Sequence[str] = (),
    findings: Iterable[Finding] = (),
    suspects: Iterable[Suspect] = (),
    outcomes: Mapping[int, Outcome] = MappingProxyType({}),
    bounded: Sequence[Finding] | None = None,
) -> Judged:
    """Return the conclusion of a check from what it found itself.

    `problems`, `unclear` and `notes`: as in `Problems`. The parts that `problems` name are accused,
    and `suspects`, which are those of comparisons.
    Missing GPUs come before missing executions, because they may explain them. `outcomes`: as for
    `problem_findings`. `bounded`: the findings on its bounds, if it needed them.
    """
    problems, bounded = list(problems), bounds.findings(evidence) if bounded is None else bounded
    own = completeness.problem_findings(evidence, outcomes=outcomes, more=problems)
    own = [*completeness.step_findings(evidence), *own]
    own.sort(key=lambda one: not (one.cause and one.cause.row.no_gpu))
    verdict = verdict_of(
        evidence,
        [
            *own,
            *bounded,
            *findings,
            *(_unclear(evidence.check, problem) for problem in unclear),
            *_notes(evidence.check, notes),
        ],
        measured=measured,
        required="; ".join([required, *bounds.sources(bounded)]),
    )
    # Files are of the hosts that somebody chose, so those with one fault may be most of them.
    hosts = 2 * len(problems) if evidence.plan.origin else len(evidence.hosts)
    return Judged(verdict, (*from_problems(problems, "", hosts), *suspects))


def _unclear(check: str, problem: Problem) -> Finding:
    hosts = (problem.host,) if problem.host else ()
    text, state = problem.message, State.INCONCLUSIVE
    return finding(check, Judgement.COMPLETENESS, state, text, problem.cause, hosts=hosts)


def _notes(check: str, notes: Sequence[str]) -> Iterator[Finding]:
    more = [f"{len(notes) - _MAX_NOTES} more notes"] if len(notes) > _MAX_NOTES else []
    for note in (*notes[:_MAX_NOTES], *more):
        yield finding(check, Judgement.CONSISTENCY, State.PASS, note)


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
) -> Finding:
    """Return a finding, with each of its hosts and logs once."""
    return Finding(
        check=check,
        judgement=judgement,
        state=state,
        message=message,
        cause=cause,
        metric=metric,
        unit=unit,
        bound=bound,
        hosts=tuple(dict.fromkeys(hosts)),
        evidence=tuple(dict.fromkeys(filter(None, logs)))[:_MAX_LOGS],
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
        evidence=(row.log,) if row.log else (),
    )


def usual(values: Iterable[T | None]) -> T | None:
    """Return the value that more than half have; None if there is none, or if it is unknown."""
    counts = Counter(values)
    return next((one for one, number in counts.items() if 2 * number > counts.total()), None)
