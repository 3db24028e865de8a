"""Judge evidence again: of a run, or in a folder, archive, saved log or bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from accept.commands.judged import OF_EVIDENCE, GivenBounds, Judged, judge_paths, with_max_bad
from accept.commands.report import screen, write_page
from accept.core import checks
from accept.core.checks import REGISTRY
from accept.core.error_codes import Code
from accept.core.errors import Exit
from accept.core.plan import GroupKind, Reference
from accept.core.signatures import read_public_keys
from accept.core.table import Row, table_of
from accept.core.text import command_line, plain
from accept.core.verdict import State, Suspect, Verdict, Verification, worst_exit
from accept.evidence import standard_input
from accept.foreign_logs.answer import Answer
from accept.foreign_logs.corpus import NothingMeasured
from accept.foreign_logs.tables import SkippedFile
from accept.report.console import Terminal


@dataclass(frozen=True, kw_only=True)
class MeasuredValue:
    """One value that one group of hosts measured, in the output of `accept judge --json`."""

    check: str
    metric: str
    unit: str
    groups: GroupKind
    hosts: tuple[str, ...]
    #: Local ranks that took part on each host; empty: all.
    ranks: tuple[int, ...]
    #: Requested message size in bytes; None: the metric has no size.
    size: int | None
    value: float
    log: str


@dataclass(frozen=True, kw_only=True)
class NotTested:
    """A check that did not run or was not planned, or a collective without a check."""

    check: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class JudgedVerdict(Verdict):
    """The output of `accept judge --json`: a verdict, and what it rests on."""

    #: One value for each execution.
    metrics: tuple[MeasuredValue, ...]
    #: References and expectations of the checks that ran.
    references: tuple[Reference, ...]
    not_tested: tuple[NotTested, ...]
    #: Only if logs of nccl-tests were judged.
    skipped: tuple[SkippedFile, ...]
    #: Remarks for people, one line each.
    notes: tuple[str, ...]
    #: Why a job failed, as its log shows it; None: none did, or it is evidence of a run.
    answer: Answer | None


@dataclass(frozen=True, kw_only=True)
class NoVerdict:
    """The output of `accept judge --json` for logs that measured nothing: why they did not."""

    #: Nothing was measured, so there is none.
    state: None
    exit: Exit
    code: Code
    headline: str
    answer: Answer
    #: The answers of the other logs.
    also_failed: tuple[Answer, ...]
    #: As in a verdict, and always empty.
    suspects: tuple[Suspect, ...] = ()
    metrics: tuple[MeasuredValue, ...] = ()


def with_measurements(judged: Judged) -> JudgedVerdict:
    """Return the verdict with its measurements and references."""
    return JudgedVerdict(
        **vars(judged.verdict),
        metrics=tuple(_measured_values(judged)),
        references=tuple(ref for ref in judged.plan.references if ref.check in judged.plan.checks),
        not_tested=tuple(_not_tested(judged)),
        skipped=judged.skipped,
        notes=judged.notes,
        answer=judged.answer,
    )


def _measured_values(judged: Judged) -> Iterator[MeasuredValue]:
    figures: Iterable[Row] = judged.figures
    if judged.plan.origin:
        # Figures of other programs have a size and a NIC.
        others = table_of(judged.plan.steps, judged.records)
        figures = (*figures, *(row for row in others if row.check == "script"))
    for row in figures:
        if row.value is not None:
            yield MeasuredValue(
                check=row.check,
                metric=row.metric,
                unit=row.unit,
                groups=row.step.groups,
                hosts=row.hosts,
                ranks=row.ranks,
                size=row.nominal_size,
                value=row.value,
                log=row.log,
            )


def _not_tested(judged: Judged) -> Iterator[NotTested]:
    for check in judged.verdict.checks:
        if check.state is State.NOT_TESTED:
            reason = next((f.message for f in check.findings if f.state is check.state), "")
            yield NotTested(check=check.check, reason=reason)
    not_planned = "the logs do not show it" if judged.plan.origin else "not part of the run"
    planned = {*judged.plan.checks, *(check.check for check in judged.verdict.checks)}
    for name in dict.fromkeys((*checks.REGISTRY, *judged.unjudged)):
        has_own = name in REGISTRY and REGISTRY[name].user_script
        if name not in planned and not has_own:
            reason = "no check judges that" if name in judged.unjudged else not_planned
            yield NotTested(check=name, reason=reason)


def _refuse_unverified(judged: Judged) -> Judged:
    """Return the judgement with exit code 7, or a worse one, unless somebody vouches for it."""
    if judged.verdict.verified in (Verification.SIGNED, Verification.UNMODIFIED):
        return judged
    code = worst_exit((judged.verdict.exit, Exit.INCONCLUSIVE))
    return replace(judged, verdict=replace(judged.verdict, exit=code))


def do_judge(
    paths: tuple[str, ...],
    terminal: Terminal,
    *,
    by: GivenBounds = OF_EVIDENCE,
    collective: str | None = None,
    max_bad: int = 0,
    keys: tuple[Path, ...] = (),
    must_be_verified: bool = False,
) -> int:
    """Judge evidence or nccl-tests logs, and return the worst exit code.

    `keys` are files with public keys. With `must_be_verified`, evidence that nobody vouches for is
    inconclusive.
    """
    try:
        results = judge_paths(
            paths or ("last",),
            by,
            collective=collective,
            say=terminal.progress,
            keys=tuple(key for file in keys for key in read_public_keys(file)),
        )
    except NothingMeasured as error:
        if terminal.json:
            terminal.result(_no_verdict(error), "")
        raise
    results = [with_max_bad(judged, max_bad) for judged in results]
    if must_be_verified:
        results = [_refuse_unverified(judged) for judged in results]
    for judged in results if by == OF_EVIDENCE else ():
        write_page(judged, terminal)
    if terminal.json:
        values = [with_measurements(judged) for judged in results]
        terminal.result(values if len(values) > 1 else values[0], "")
    else:
        if len(results) > 1:
            sources = (f"  {plain(judged.source)}" for judged in results)
            terminal.progress("\n".join([f"{len(results)} verdicts:", *sources]))
        for judged in results:
            heading = f"{plain(judged.source)}:\n" if len(results) > 1 else ""
            terminal.result(judged.verdict, heading + screen(judged, terminal, by))
    is_lasting = standard_input.PATH not in paths
    if is_lasting and len(results) == len(paths) == 1 and results[0].folder is None:
        # There is no run folder that could have report.html already.
        page = command_line("accept", "report", paths[0], *by.words, "--format", "html")
        terminal.suggest(f"{page} > report.html")
    return worst_exit(judged.verdict.exit for judged in results)


def _no_verdict(error: NothingMeasured) -> NoVerdict:
    first, *others = error.answers
    return NoVerdict(
        state=None,
        exit=error.exit,
        code=error.code,
        headline=error.message,
        answer=first,
        also_failed=tuple(others),
    )
