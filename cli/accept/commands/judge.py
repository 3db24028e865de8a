"""Judge evidence again: of a run, or in a folder, archive, saved log or bucket."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from accept import backends
from accept.backends.protocol import Phase
from accept.config.expectations import parse_expectation
from accept.config.floors import bounds
from accept.config.machine import Machine
from accept.core import checks, evidence
from accept.core.catalog.metrics import BUSBW
from accept.core.checks import REGISTRY, parse_log, with_problems_seen
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, BadInput, Exit
from accept.core.judge import judge
from accept.core.judge.collective_metrics import nominal, read
from accept.core.model import (
    BoundKind,
    GroupKind,
    Plan,
    Record,
    Reference,
    State,
    Step,
    Verdict,
    worst_exit,
)
from accept.core.report import text as reports
from accept.core.report.markdown import render_markdown
from accept.core.runner.coordinator import HOSTS
from accept.core.serde import Invalid
from accept.core.text import count, plain
from accept.evidence import archive as evidence_archive
from accept.evidence import bucket, rundir
from accept.nccl_logs import to_run
from accept.nccl_logs.tables import SkippedFile
from accept.report.console import Terminal


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One value that one group of hosts measured."""

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


def measurements(plan: Plan, records: Sequence[Record]) -> Iterator[Measurement]:
    """Return the values that verdicts rest on; of a collective, its bandwidth at the largest size.

    Metrics of single ranks, infinite values and NaN are left out.
    """
    steps = {step.id: step for step in plan.steps}
    for record in records:
        step = steps.get(record.step)
        if step is not None:
            for check in record.checks:
                yield from _of_check(record, step, check)


def _of_check(record: Record, step: Step, check: str) -> Iterator[Measurement]:
    metrics = [metric for metric in record.metrics if metric.check == check]

    def measurement(name: str, unit: str, size: int | None, value: float) -> Measurement:
        return Measurement(
            check=check,
            metric=name,
            unit=unit,
            groups=step.groups,
            hosts=record.hosts,
            ranks=record.local_ranks,
            size=size,
            value=value,
            log=record.log,
        )

    if any(metric.name == BUSBW.name for metric in metrics):
        bandwidth = read(metrics, check)
        if bandwidth.value is not None:
            yield measurement(BUSBW.name, BUSBW.unit, nominal(bandwidth.top, step), bandwidth.value)
        return
    for metric in metrics:
        if metric.rank is None and metric.size is None and abs(metric.value) < float("inf"):
            yield measurement(metric.name, metric.unit, None, metric.value)


@dataclass(frozen=True, kw_only=True)
class LoadedEvidence:
    """The evidence of a run. Raw logs, if there are any, were parsed again for the records."""

    plan: Plan
    records: tuple[Record, ...]
    attempt: str
    #: Why the run ended early; empty: it did not.
    interruption: str
    folder: Path | None = None


def load(path: str) -> LoadedEvidence:
    """Load the evidence that `path` names.

    Raises BadInput if `path` names nothing, and BadEvidence if it holds no complete evidence.
    """
    if bucket.is_url(path):
        with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
            target = Path(scratch) / "evidence"
            bucket.fetch(path, target, partial=False)
            return replace(_of_folder(target), folder=None)
    if path != "last" and rundir.is_file(Path(path)):
        return _of_file(Path(path))
    folder = rundir.find(path)
    inner = folder / rundir.EVIDENCE
    if not inner.is_dir() and (folder / rundir.JOB).is_file():
        raise _not_collected(folder, "last" if path == "last" else folder.name)
    return _of_folder(inner if inner.is_dir() else folder)


def _not_collected(folder: Path, name: str) -> BadEvidence:
    """Return the error for a run folder without evidence; `name` is what commands call the run."""
    if not rundir.is_own(folder):
        return BadEvidence(
            f"{folder} holds no evidence",
            code=Code.EVIDENCE_NONE,
            hint="ask whoever ran it for the folder `evidence`, which accept collect fetched there",
        )
    progress = backends.progress_of(folder)
    if progress.phase is Phase.RUNNING:
        return BadEvidence(
            f"{folder.name} is still {progress.text}",
            code=Code.RUN_STILL_RUNNING,
            hint=f"follow it: accept watch {name}",
        )
    return BadEvidence(
        f"the evidence of {folder.name} was not collected",
        code=Code.EVIDENCE_NOT_COLLECTED,
        hint=f"fetch it: accept collect {name}",
    )


def _of_file(path: Path) -> LoadedEvidence:
    if evidence_archive.is_tar(path):
        with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
            evidence_archive.unpack(path, Path(scratch), source=str(path))
            folder = Path(scratch) / "evidence"
            if not folder.is_dir():
                raise BadEvidence(
                    f"{path} holds no evidence",
                    code=Code.EVIDENCE_NONE,
                    hint="it should hold a folder `evidence`",
                )
            return replace(_of_folder(folder), folder=None)
    with path.open("rb") as lines:
        plan, records, verdict = evidence.unpack(lines, str(path))
    return LoadedEvidence(
        plan=plan, records=records, attempt=verdict.attempt, interruption=verdict.interruption
    )


def _of_folder(folder: Path) -> LoadedEvidence:
    console = folder / evidence.CONSOLE
    others = (evidence.PLAN, evidence.CHECKSUMS, evidence.RECORDS)
    if console.is_file() and not any((folder / name).exists() for name in others):
        # Only the log of the first pod was left of the run. It holds plan and records.
        return replace(_of_file(console), folder=folder)
    plan = evidence.read_plan(folder)
    attempt = _attempt(folder)
    if (folder / evidence.CHECKSUMS).is_file():
        if wrong := evidence.check_checksums(folder):
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise BadEvidence(
                f"{folder}: {'; '.join(wrong[:3])}{more}",
                code=Code.EVIDENCE_CHANGED,
                hint="collect the run again, or ask who changed it",
            )
        interruption = evidence.read_interruption(folder)
    else:
        interruption = "the coordinator never finished: the evidence has no checksums"
    with _no_garbage_collection():
        records = tuple(_parse_log_again(folder, r) for r in evidence.read_records(folder))
    return LoadedEvidence(
        plan=plan, records=records, attempt=attempt, interruption=interruption, folder=folder
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, because the objects of thousands of logs are all kept.

    Searching them for cycles takes a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _attempt(folder: Path) -> str:
    try:
        return str(json.loads(evidence.read_text(folder / HOSTS))["attempt"])
    except (BadEvidence, ValueError, KeyError, TypeError, RecursionError):
        return folder.name


def _parse_log_again(folder: Path, record: Record) -> Record:
    """Return the record with metrics, facts and problems parsed from its raw log.

    So no value depends on the record alone. Problems that the coordinator found outside the log
    stay. Raises BadEvidence if the log is missing.
    """
    if not record.log:
        return record
    lines = evidence.open_log(folder, record.log)
    if lines is None:
        raise BadEvidence(
            f"{folder / record.log} is missing, but the records contain {record.step}",
            code=Code.EVIDENCE_LOG_MISSING,
            hint="collect the run again",
        )
    parsed = parse_log(record.checks, lines, record.hosts)
    problems = with_problems_seen(record.problems, parsed)
    return replace(record, metrics=parsed.metrics, facts=parsed.facts, problems=problems)


#: Most files without results that a terminal shows.
_MAX_SKIPPED = 20


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, and its plan and records."""

    verdict: Verdict
    plan: Plan
    records: tuple[Record, ...]
    #: The folder with the evidence; None: there is none on this machine.
    folder: Path | None = None
    #: The machine that nccl-tests logs show; None for evidence of a run.
    machine: Machine | None = None
    #: Remarks for people, one line each.
    notes: tuple[str, ...] = ()
    #: Files that were left out.
    skipped: tuple[SkippedFile, ...] = ()
    #: Collectives without a check, with the number of their tables.
    unjudged: dict[str, int] = field(default_factory=dict)


def judge_paths(
    paths: Sequence[str], *, expect: Sequence[str], machine: str | None = None
) -> list[Judged]:
    """Judge each run or evidence in `paths`, and all nccl-tests logs among them together."""
    logs = list(dict.fromkeys(path for path in paths if to_run.is_foreign(path)))
    result = [
        judge_path(path, expect=expect, machine=machine) for path in paths if path not in logs
    ]
    return [*result, _judge_logs(logs, expect, machine)] if logs else result


def judge_path(path: str, *, expect: Sequence[str], machine: str | None = None) -> Judged:
    """Judge the evidence or logs at `path`, with the references of `machine` if it is given.

    The run's own expectations apply in any case. Raises BadInput if `path` names nothing, and
    BadEvidence if it holds neither complete evidence nor a log.
    """
    if to_run.is_foreign(path):
        return _judge_logs([path], expect, machine)
    other_machine = to_run.machine_of(machine)
    loaded = load(path)
    plan = loaded.plan
    if other_machine is not None:
        expectations = (bound for bound in plan.references if bound.kind is BoundKind.EXPECTATION)
        references = (*expectations, *bounds(other_machine, gpus_per_node=plan.gpus_used))
        plan = replace(plan, machine=other_machine.planned(), references=references)
    plan, verdict = _judged(plan, loaded.records, expect, loaded.attempt, loaded.interruption)
    return Judged(verdict=verdict, plan=plan, records=loaded.records, folder=loaded.folder)


def _judge_logs(paths: Sequence[str], expect: Sequence[str], machine: str | None) -> Judged:
    with _no_garbage_collection():
        logs = to_run.load(paths, to_run.machine_of(machine))
        attempt = Path(paths[0]).name if len(paths) == 1 else f"{len(paths)} paths"
        plan, verdict = _judged(logs.plan, logs.records, expect, attempt, "")
    return Judged(
        verdict=verdict,
        plan=plan,
        records=logs.records,
        machine=logs.machine,
        notes=logs.notes,
        skipped=logs.skipped,
        unjudged=logs.unjudged,
    )


def _judged(
    plan: Plan, records: tuple[Record, ...], expect: Sequence[str], attempt: str, interruption: str
) -> tuple[Plan, Verdict]:
    try:
        expectations = tuple(parse_expectation(text, source="--expect") for text in expect)
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", code=error.code, hint=error.hint) from None
    plan = replace(plan, references=(*expectations, *plan.references))
    return plan, judge(plan, records, checks=REGISTRY, attempt=attempt, interruption=interruption)


def text(judged: Judged, terminal: Terminal) -> str:
    """Return the verdict as text for the terminal."""
    lines = [reports.table(judged.verdict, width=terminal.width, color=terminal.color)]
    if judged.notes:
        lines += ["", "Notes", *(f"  {plain(note)}" for note in judged.notes)]
    if judged.skipped:
        skipped = len(judged.skipped)
        lines += ["", f"Left out: {count(skipped, 'file')} without results"]
        lines += [f"  {plain(s.file)}: {s.reason}" for s in judged.skipped[:_MAX_SKIPPED]]
        if skipped > _MAX_SKIPPED:
            lines.append(f"  … and {skipped - _MAX_SKIPPED} more: see --json")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class NotTested:
    """A check that did not run or was not planned, or a collective without a check."""

    check: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class JudgedVerdict(Verdict):
    """The output of `accept judge --json`: a verdict, and what it rests on."""

    #: One value for each execution.
    metrics: tuple[Measurement, ...]
    #: References and expectations of the checks that ran.
    references: tuple[Reference, ...]
    not_tested: tuple[NotTested, ...]
    #: Only if logs of nccl-tests were judged.
    skipped: tuple[SkippedFile, ...]
    #: Remarks for people, one line each.
    notes: tuple[str, ...]


def with_measurements(judged: Judged) -> JudgedVerdict:
    """Return the verdict with its measurements and references."""
    judged_checks = {check for step in judged.plan.steps for check in step.checks}
    return JudgedVerdict(
        **vars(judged.verdict),
        metrics=tuple(measurements(judged.plan, judged.records)),
        references=tuple(ref for ref in judged.plan.references if ref.check in judged_checks),
        not_tested=tuple(_not_tested(judged, judged_checks)),
        skipped=judged.skipped,
        notes=judged.notes,
    )


def _not_tested(judged: Judged, judged_checks: set[str]) -> Iterator[NotTested]:
    for check in judged.verdict.checks:
        if check.state is State.NOT_TESTED:
            reason = next((f.message for f in check.findings if f.state is check.state), "")
            yield NotTested(check=check.check, reason=reason)
    not_planned = "the logs do not show it" if judged.plan.origin else "not part of the run"
    planned = judged_checks | {check.check for check in judged.verdict.checks}
    for name in dict.fromkeys((*checks.names(), *judged.unjudged)):
        has_own = name in REGISTRY and REGISTRY[name].user_script
        if name not in planned and not has_own:
            reason = "no check judges that" if name in judged.unjudged else not_planned
            yield NotTested(check=name, reason=reason)


@dataclass(frozen=True, kw_only=True)
class Reports:
    """The output of `accept report --json`: the files that it wrote, or the one that it printed."""

    files: tuple[str, ...] | None = None
    md: str | None = None
    junit: str | None = None


def write_reports(judged: Judged) -> tuple[str, ...]:
    """Write the verdict and all reports beside the evidence, and return the paths.

    Raises BadInput if there is no folder for them.
    """
    if judged.folder is None:
        raise BadInput(
            "there is no folder to write to",
            code=Code.EVIDENCE_NO_FOLDER,
            hint="give --format md or --format junit",
        )
    evidence.write_judgement(judged.folder, judged.plan, judged.verdict)
    names = (evidence.VERDICT, evidence.REPORT, evidence.JUNIT)
    return tuple(str(judged.folder / name) for name in names)


def do_judge(
    paths: tuple[str, ...],
    terminal: Terminal,
    *,
    expect: tuple[str, ...],
    machine: str | None = None,
) -> int:
    """Judge evidence or nccl-tests logs, and return the worst exit code."""
    results = judge_paths(paths or ("last",), expect=expect, machine=machine)
    if terminal.json:
        values = [with_measurements(judged) for judged in results]
        terminal.result(values if len(values) > 1 else values[0], "")
    else:
        for judged in results:
            terminal.result(judged.verdict, text(judged, terminal))
    return worst_exit(judged.verdict.exit for judged in results)


def do_report(name: str, terminal: Terminal, *, form: str) -> int:
    """Write report.md and junit.xml beside the evidence, or print one of them."""
    judged = judge_path(name, expect=())
    if form == "files":
        files = write_reports(judged)
        terminal.result(Reports(files=files), "\n".join(files))
    elif form == "md":
        page = render_markdown(judged.verdict, judged.plan)
        terminal.result(Reports(md=page), page)
    else:
        xml = reports.junit(judged.verdict)
        terminal.result(Reports(junit=xml), xml)
    return Exit.PASS
