"""Judging evidence anew, wherever it lies: a run, an evidence folder, its archive, a saved log."""

from __future__ import annotations

import gc
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from accept import rundir, storage
from accept.commands.terminal import Terminal
from accept.core import evidence
from accept.core import report as reports
from accept.core.checks import parse_log
from accept.core.coordinator import HOSTS
from accept.core.errors import BadEvidence, BadInput
from accept.core.judge import judge
from accept.core.model import Parsed, Plan, Record, Verdict
from accept.core.shape import Invalid
from accept.spec.units import parse_expectation


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, what it was formed from, and the run's folder where there is one."""

    verdict: Verdict
    plan: Plan
    records: tuple[Record, ...]
    folder: Path | None = None


def judge_path(path: str, *, expect: Sequence[str]) -> Judged:
    """Judge what `path` names. Raises BadEvidence where it is incomplete or no evidence at all."""
    if storage.is_url(path):
        with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
            target = Path(scratch) / "evidence"
            storage.fetch(path, target, partial=False)
            return replace(_judge_folder(target, expect), folder=None)
    if path != "last" and rundir.kind(Path(path)) == "file":
        return _judge_file(Path(path), expect)
    folder = rundir.find(path)
    inner = folder / rundir.EVIDENCE
    if not inner.is_dir() and (folder / rundir.JOB).is_file():
        raise BadEvidence(
            f"the evidence of {folder.name} is not here",
            hint=f"fetch it: accept collect {folder.name}",
        )
    return _judge_folder(inner if inner.is_dir() else folder, expect)


def _judge_file(path: Path, expect: Sequence[str]) -> Judged:
    if tarfile.is_tarfile(path):
        with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
            unpack(path, Path(scratch))
            return replace(_judge_folder(Path(scratch) / "evidence", expect), folder=None)
    with path.open("rb") as lines:
        plan, records, old = evidence.unpack(lines, str(path))
    return _judged(plan, records, expect, attempt=old.attempt, broken_off=old.broken_off)


def unpack(archive: Path, target: Path) -> None:
    """Unpack an evidence archive. Raises BadEvidence where it is damaged or reaches outside."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadEvidence(f"{archive}: {error}", hint="collect the run again") from None
    if not (target / "evidence").is_dir():
        raise BadEvidence(f"{archive} holds no evidence", hint="it should hold a folder `evidence`")


def _judge_folder(folder: Path, expect: Sequence[str]) -> Judged:
    console = folder / evidence.CONSOLE
    if not (folder / evidence.PLAN).is_file() and console.is_file():
        # All that was left of a run was the log of its first pod, which holds plan and records.
        return replace(_judge_file(console, expect), folder=folder)
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
        broken = evidence.read_verdict(folder).broken_off
    else:
        broken = "the coordinator never finished: the evidence has no check sums"
    with nothing_collected():
        records = tuple(_read_again(folder, r) for r in evidence.read_records(folder))
        judged = _judged(plan, records, expect, attempt=attempt, broken_off=broken)
    return replace(judged, folder=folder)


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
    import json

    try:
        return str(json.loads((folder / HOSTS).read_text(encoding="utf-8"))["attempt"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
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
    parsed: Parsed = parse_log(record.checks, lines, record.hosts)
    seen = {(p.cause, p.check, p.host, p.rank, p.gpu) for p in parsed.problems}
    outside = tuple(
        p for p in record.problems if (p.cause, p.check, p.host, p.rank, p.gpu) not in seen
    )
    return replace(
        record, metrics=parsed.metrics, facts=parsed.facts, problems=(*outside, *parsed.problems)
    )


def _judged(
    plan: Plan, records: tuple[Record, ...], expect: Sequence[str], *, attempt: str, broken_off: str
) -> Judged:
    try:
        own = tuple(parse_expectation(text, source="--expect") for text in expect)
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", hint=error.hint) from None
    plan = replace(plan, references=(*own, *plan.references))
    verdict = judge(plan, records, attempt=attempt, broken_off=broken_off)
    return Judged(verdict=verdict, plan=plan, records=records)


def text(judged: Judged, terminal: Terminal) -> str:
    """The verdict as the terminal shows it."""
    return reports.table(judged.verdict, width=terminal.width, color=terminal.color)


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
