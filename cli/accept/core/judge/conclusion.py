"""Conclude a check: its own comparisons, and what every check is judged by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from accept.core import sentences
from accept.core.causes import Judgement
from accept.core.judge import bounds, completeness
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding
from accept.core.judge.summary import worst_state
from accept.core.judge.suspects import from_problems
from accept.core.records import Problem
from accept.core.table import Outcome
from accept.core.verdict import CheckVerdict, Finding, State, Suspect

#: Maximum number of findings that accuse nothing.
_MAX_NOTES = 20


def conclude(
    evidence: Evidence,
    *,
    measured: str = "",
    required: str = "",
    problems: Iterable[Problem] = (),
    unclear: Iterable[Problem] = (),
    notes: Sequence[str] = (),
    findings: Iterable[Finding] = (),
    suspects: Iterable[Suspect] = (),
    outcomes: Mapping[int, Outcome] = MappingProxyType({}),
    bounded: Sequence[Finding] | None = None,
    host_count: int | None = None,
) -> Judged:
    """Return the conclusion of a check from what it found itself.

    `problems`, `unclear` and `notes`: as in `findings.Problems`. The parts that `problems` name are
    accused, and `suspects`, which are those of comparisons.
    Missing GPUs come before missing executions, because they may explain them. `outcomes`: as for
    `problem_findings`. `bounded`: the findings on its bounds, if it needed them. `host_count`: as
    for `from_problems`; without it, all hosts.
    """
    problems, bounded = list(problems), bounds.findings(evidence) if bounded is None else bounded
    own = completeness.problem_findings(evidence, outcomes=outcomes, more=problems)
    own = [*completeness.step_findings(evidence), *own]
    own.sort(key=lambda one: not (one.cause and one.cause.row.no_gpu))
    everything = [
        *own,
        *bounded,
        *findings,
        *(_unclear(evidence.check, problem) for problem in unclear),
        *_notes(evidence.check, notes),
        *completeness.repeated_launches(evidence),
    ]
    # Its groups need two hosts.
    not_applicable = not evidence.records and not everything
    if not_applicable:
        text, state = "needs two hosts, and this run has one", State.NOT_TESTED
        everything = [finding(evidence.check, Judgement.COMPLETENESS, state, text)]
    verdict = CheckVerdict(
        check=evidence.check,
        state=worst_state(one.state for one in everything),
        optional=not_applicable or evidence.optional,
        measured=measured,
        required="; ".join(filter(None, [required, *sentences.sources(bounded)])),
        findings=tuple(everything),
    )
    # Files are of the hosts that somebody chose, so those with one fault may be most of them.
    of_files = 2 * len(problems) if evidence.plan.origin else len(evidence.hosts)
    return Judged(verdict, (*from_problems(problems, "", host_count or of_files), *suspects))


def _unclear(check: str, problem: Problem) -> Finding:
    hosts = (problem.host,) if problem.host else ()
    text, state = problem.message, State.INCONCLUSIVE
    return finding(check, Judgement.COMPLETENESS, state, text, problem.cause, hosts=hosts)


def _notes(check: str, notes: Sequence[str]) -> Iterator[Finding]:
    more = [f"{len(notes) - _MAX_NOTES} more notes"] if len(notes) > _MAX_NOTES else []
    for note in (*notes[:_MAX_NOTES], *more):
        yield finding(check, Judgement.CONSISTENCY, State.PASS, note)
