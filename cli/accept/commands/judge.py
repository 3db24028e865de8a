"""Judge evidence again, wherever it is: a run, a folder, an archive, a saved log, a bucket."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from accept import backends
from accept.backends.protocol import Phase
from accept.config.expectations import parse_expectation
from accept.config.floors import bounds
from accept.config.machine import Machine
from accept.core import checks, evidence
from accept.core.checks import REGISTRY, parse_log, with_problems_seen
from accept.core.errors import BadEvidence, BadInput, Exit
from accept.core.judge import judge
from accept.core.judge.collective_metrics import nominal, read
from accept.core.model import GroupKind, Plan, Record, State, Step, Verdict, worst_exit
from accept.core.report import text as reports
from accept.core.report.markdown import render_markdown
from accept.core.runner.coordinator import HOSTS
from accept.core.serde import Invalid, dump
from accept.core.text import plain
from accept.evidence import archive as evidence_archive
from accept.evidence import bucket, rundir
from accept.nccl_logs import to_run
from accept.report.console import Terminal


class Measurement(NamedTuple):
    """One figure of one execution."""

    check: str
    metric: str
    unit: str
    groups: GroupKind
    hosts: tuple[str, ...]
    #: Local ranks of each host that took part; empty: all.
    ranks: tuple[int, ...]
    #: Size of the message in bytes, as it was asked for; None: the metric has none.
    size: int | None
    value: float
    log: str


def measurements(plan: Plan, records: Sequence[Record]) -> Iterator[Measurement]:
    """The figures that verdicts rest on: of a collective the bandwidth at the largest size.

    Metrics of single ranks, and numbers that are none, are left out.
    """
    steps = {step.id: step for step in plan.steps}
    for record in records:
        step = steps.get(record.step)
        for check in record.checks if step else ():
            assert step is not None
            yield from _of(record, step, check)


def _of(record: Record, step: Step, check: str) -> Iterator[Measurement]:
    mine = [metric for metric in record.metrics if metric.check == check]

    def made(name: str, unit: str, size: int | None, value: float) -> Measurement:
        where = (record.hosts, record.local_ranks)
        return Measurement(check, name, unit, step.groups, *where, size, value, record.log)

    if any(metric.name == "busbw" for metric in mine):
        found = read(mine, check)
        if found.value is not None:
            yield made("busbw", "GB/s", nominal(found.top, step), found.value)
        return
    for metric in mine:
        if metric.rank is None and metric.size is None and abs(metric.value) < float("inf"):
            yield made(metric.name, metric.unit, None, metric.value)


def figures_as_json(found: Measurement) -> dict[str, Any]:
    """A measurement as `judge --json` prints it."""
    return {**found._asdict(), "hosts": list(found.hosts), "ranks": list(found.ranks)}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a run left, with every figure read from its raw log again where there are any."""

    plan: Plan
    records: tuple[Record, ...]
    attempt: str
    #: Why the run ended early, where it did.
    broken_off: str
    folder: Path | None = None


def load(path: str) -> Evidence:
    """The evidence that `path` names. Raises BadEvidence where it is incomplete or none at all."""
    if bucket.is_url(path):
        with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
            target = Path(scratch) / "evidence"
            bucket.fetch(path, target, partial=False)
            return replace(_of_folder(target), folder=None)
    if path != "last" and rundir.kind(Path(path)) == "file":
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
            hint="ask whoever ran it for the folder `evidence`, which accept collect fetches there",
        )
    progress = backends.progress_of(folder)
    if progress.phase is Phase.RUNNING:
        return BadEvidence(
            f"{folder.name} is still {progress.text}",
            hint=f"follow it: accept watch {name}",
        )
    return BadEvidence(
        f"the evidence of {folder.name} is not here", hint=f"fetch it: accept collect {name}"
    )


def _of_file(path: Path) -> Evidence:
    if evidence_archive.is_tar(path):
        with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
            unpack(path, Path(scratch))
            return replace(_of_folder(Path(scratch) / "evidence"), folder=None)
    with path.open("rb") as lines:
        plan, records, old = evidence.unpack(lines, str(path))
    return Evidence(plan=plan, records=records, attempt=old.attempt, broken_off=old.broken_off)


def unpack(archive: Path, target: Path) -> None:
    """Unpack an evidence archive. Raises BadEvidence where it is damaged or reaches outside."""
    evidence_archive.unpack(archive, target, source=str(archive))
    if not (target / "evidence").is_dir():
        raise BadEvidence(f"{archive} holds no evidence", hint="it should hold a folder `evidence`")


def _of_folder(folder: Path) -> Evidence:
    console = folder / evidence.CONSOLE
    rest = (evidence.PLAN, evidence.CHECKSUMS, evidence.RECORDS)
    if console.is_file() and not any((folder / name).exists() for name in rest):
        # All that was left of a run was the log of its first pod, which holds plan and records.
        return replace(_of_file(console), folder=folder)
    plan = evidence.read_plan(folder)
    broken = ""
    attempt = _attempt(folder)
    if (folder / evidence.CHECKSUMS).is_file():
        if wrong := evidence.check_checksums(folder):
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise BadEvidence(
                f"{folder}: {'; '.join(wrong[:3])}{more}",
                hint="collect the run again, or ask who changed it",
            )
        broken = evidence.read_interruption(folder)
    else:
        broken = "the coordinator never finished: the evidence has no check sums"
    with nothing_collected():
        records = tuple(_read_again(folder, r) for r in evidence.read_records(folder))
    return Evidence(plan=plan, records=records, attempt=attempt, broken_off=broken, folder=folder)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Python's search for cycles put off: all that is read here is kept, and none of it is a cycle.

    Over thousands of logs the search takes a quarter of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _attempt(folder: Path) -> str:
    try:
        return str(json.loads(evidence.read_text(folder / HOSTS))["attempt"])
    except (BadEvidence, ValueError, KeyError, TypeError, RecursionError):
        return folder.name


def _read_again(folder: Path, record: Record) -> Record:
    """The record with what its raw log says today, so that no figure rests on the record alone.

    Problems that the coordinator saw from outside are in no log, and stay.
    """
    if not record.log:
        return record
    lines = evidence.open_log(folder, record.log)
    if lines is None:
        raise BadEvidence(
            f"{folder / record.log} is missing, and {record.step} was recorded",
            hint="collect the run again",
        )
    parsed = parse_log(record.checks, lines, record.hosts)
    problems = with_problems_seen(record.problems, parsed)
    return replace(record, metrics=parsed.metrics, facts=parsed.facts, problems=problems)


#: Most files that a terminal is told were left out.
_SCREEN = 20


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, what it was formed from, and the run's folder where there is one."""

    verdict: Verdict
    plan: Plan
    records: tuple[Record, ...]
    folder: Path | None = None
    #: Of logs: their machine, as they show it.
    machine: Machine | None = None
    #: What else is to be said, one line each.
    notes: tuple[str, ...] = ()
    #: Files that were left out, and why.
    skipped: tuple[tuple[str, str], ...] = ()
    #: Collectives that no check judges, and in how many tables.
    unjudged: dict[str, int] = field(default_factory=dict)


def judge_paths(
    paths: Sequence[str], *, expect: Sequence[str], machine: str | None = None
) -> list[Judged]:
    """Judge each run or evidence that `paths` name, and all logs of others among them as one."""
    theirs = {path for path in paths if to_run.is_foreign(path)}
    result = [
        judge_path(path, expect=expect, machine=machine) for path in paths if path not in theirs
    ]
    logs = [path for path in dict.fromkeys(paths) if path in theirs]
    return [*result, _judge_logs(logs, expect, machine)] if logs else result


def judge_path(path: str, *, expect: Sequence[str], machine: str | None = None) -> Judged:
    """Judge what `path` names, by the references of `machine` where one is named.

    What the run's own user expects holds either way. Raises BadEvidence where it is incomplete, or
    neither evidence nor a log.
    """
    if to_run.is_foreign(path):
        return _judge_logs([path], expect, machine)
    own = to_run.machine_of(machine)
    found = load(path)
    plan = found.plan
    if own is not None:
        asked = (bound for bound in plan.references if bound.kind == "expectation")
        references = (*asked, *bounds(own, gpus_per_node=plan.gpus_used))
        plan = replace(plan, machine=own.planned(), references=references)
    plan, verdict = _judged(plan, found.records, expect, found.attempt, found.broken_off)
    return Judged(verdict=verdict, plan=plan, records=found.records, folder=found.folder)


def _judge_logs(paths: Sequence[str], expect: Sequence[str], machine: str | None) -> Judged:
    with nothing_collected():
        found = to_run.load(paths, to_run.machine_of(machine))
        attempt = Path(paths[0]).name if len(paths) == 1 else f"{len(paths)} paths"
        plan, verdict = _judged(found.plan, found.records, expect, attempt, "")
    return Judged(
        verdict=verdict,
        plan=plan,
        records=found.records,
        machine=found.machine,
        notes=found.notes,
        skipped=found.skipped,
        unjudged=found.unjudged,
    )


def _judged(
    plan: Plan, records: tuple[Record, ...], expect: Sequence[str], attempt: str, broken_off: str
) -> tuple[Plan, Verdict]:
    try:
        own = tuple(parse_expectation(text, source="--expect") for text in expect)
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", hint=error.hint) from None
    plan = replace(plan, references=(*own, *plan.references))
    return plan, judge(plan, records, checks=REGISTRY, attempt=attempt, broken_off=broken_off)


def text(judged: Judged, terminal: Terminal) -> str:
    """The verdict as the terminal shows it."""
    lines = [reports.table(judged.verdict, width=terminal.width, color=terminal.color)]
    if judged.notes:
        lines += ["", "Notes", *(f"  {plain(note)}" for note in judged.notes)]
    if judged.skipped:
        lines += ["", f"Left out: {len(judged.skipped)} files that are no logs"]
        lines += [f"  {plain(f)}: {why}" for f, why in judged.skipped[:_SCREEN]]
        if len(judged.skipped) > _SCREEN:
            lines.append(f"  … and {len(judged.skipped) - _SCREEN} more: see --json")
    return "\n".join(lines)


def as_json(judged: Judged) -> dict[str, Any]:
    """The verdict with what it was formed from: `accept judge --json`."""
    judged_checks = {check for step in judged.plan.steps for check in step.checks}
    return {
        **dump(judged.verdict),
        "metrics": [figures_as_json(one) for one in measurements(judged.plan, judged.records)],
        "references": [dump(one) for one in judged.plan.references if one.check in judged_checks],
        "not_tested": _not_tested(judged, judged_checks),
        "skipped": [{"file": file, "reason": why} for file, why in judged.skipped],
        "notes": list(judged.notes),
    }


def _not_tested(judged: Judged, judged_checks: set[str]) -> list[dict[str, str]]:
    """Checks that did not run, and those that nobody asked for."""
    found = {
        one.check: next((f.message for f in one.findings if f.state is one.state), "")
        for one in judged.verdict.checks
        if one.state is State.NOT_TESTED
    }
    what = "the logs do not show it" if judged.plan.origin else "not part of the run"
    asked = judged_checks | {one.check for one in judged.verdict.checks}
    for name in (*checks.names(), *judged.unjudged):
        if name not in asked and name != "script":
            found[name] = "no check judges that" if name in judged.unjudged else what
    return [{"check": check, "reason": why} for check, why in found.items()]


def report(judged: Judged, form: str) -> str:
    """The report in a form; `files` writes verdict, report and JUnit file, and names them."""
    if form == "md":
        return render_markdown(judged.verdict, judged.plan)
    if form == "junit":
        return reports.junit(judged.verdict)
    if judged.folder is None:
        raise BadInput("there is no folder to write to", hint="give --format md or --format junit")
    evidence.write_judgement(judged.folder, judged.plan, judged.verdict)
    names = (evidence.VERDICT, evidence.REPORT, evidence.JUNIT)
    return "\n".join(str(judged.folder / name) for name in names)


def do_judge(
    paths: tuple[str, ...],
    terminal: Terminal,
    *,
    expect: tuple[str, ...],
    machine: str | None = None,
) -> int:
    """Judge evidence anew, or logs that no run of ours left."""
    found = judge_paths(paths or ("last",), expect=expect, machine=machine)
    if terminal.json:
        # One verdict for each path, or for all paths where they are logs.
        several = [as_json(judged) for judged in found]
        terminal.result(several if len(found) > 1 else several[0], "")
    else:
        for judged in found:
            terminal.result(judged.verdict, text(judged, terminal))
    return worst_exit(judged.verdict.exit for judged in found)


def do_report(name: str, terminal: Terminal, *, form: str) -> int:
    """Write report.md and junit.xml beside the evidence, or print one of them."""
    judged = judge_path(name, expect=())
    written = report(judged, form)
    if form == "files":
        terminal.result({"files": written.splitlines()}, written)
    else:
        terminal.result({form: written}, written)
    return Exit.PASS
