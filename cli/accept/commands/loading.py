"""Read evidence wherever it is: a run, its folder, an archive, a bucket, a saved log."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from accept.backends import local
from accept.core import evidence
from accept.core.checks import parse_log, with_problems_seen
from accept.core.errors import BadEvidence
from accept.core.model import Plan, Record
from accept.core.runner.coordinator import HOSTS
from accept.evidence import archive as evidence_archive
from accept.evidence import bucket, rundir


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
    if local.is_running(folder):
        step = local.step_text(folder)
        return BadEvidence(
            f"{folder.name} is still running{', ' if step else ''}{step}",
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
