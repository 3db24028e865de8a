"""Judging anew, wherever it lies: a run, evidence, its archive, a saved log, logs of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accept.commands import figures, loading
from accept.config.expectations import parse_expectation
from accept.config.floors import bounds
from accept.config.machine import Machine
from accept.core import checks, evidence
from accept.core.checks import REGISTRY
from accept.core.errors import BadInput
from accept.core.judge import judge
from accept.core.model import Plan, Record, State, Verdict
from accept.core.report import text as reports
from accept.core.shape import Invalid
from accept.core.text import plain
from accept.core.typed import dump
from accept.nccl_logs import foreign
from accept.report.console import Terminal

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
    theirs = {path for path in paths if foreign.is_foreign(path)}
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
    if foreign.is_foreign(path):
        return _judge_logs([path], expect, machine)
    own = foreign.machine_of(machine)
    found = loading.load(path)
    plan = found.plan
    if own is not None:
        asked = (bound for bound in plan.references if bound.kind == "expectation")
        references = (*asked, *bounds(own, gpus_per_node=plan.gpus_used))
        plan = replace(plan, machine=own.planned(), references=references)
    plan, verdict = _judged(plan, found.records, expect, found.attempt, found.broken_off)
    return Judged(verdict=verdict, plan=plan, records=found.records, folder=found.folder)


def _judge_logs(paths: Sequence[str], expect: Sequence[str], machine: str | None) -> Judged:
    with loading.nothing_collected():
        found = foreign.load(paths, foreign.machine_of(machine))
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
        "metrics": [
            figures.as_json(one) for one in figures.measurements(judged.plan, judged.records)
        ],
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
        return reports.markdown(judged.verdict, judged.plan)
    if form == "junit":
        return reports.junit(judged.verdict)
    if judged.folder is None:
        raise BadInput("there is no folder to write to", hint="give --format md or --format junit")
    evidence.write_judgement(judged.folder, judged.plan, judged.verdict)
    names = (evidence.VERDICT, evidence.REPORT, evidence.JUNIT)
    return "\n".join(str(judged.folder / name) for name in names)
