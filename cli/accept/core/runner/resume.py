"""Keep the finished steps of an earlier attempt, which was interrupted or lost its first host."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from accept.core import evidence
from accept.core.causes import Cause
from accept.core.errors import BadEvidence
from accept.core.judge.hosts import find
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.plan import Plan
from accept.core.records import Problem, Record
from accept.core.runner.state import Run

#: Folder in that of a run with the finished steps of an earlier attempt.
EARLIER = "earlier"


def finished(folder: Path, plan: Plan) -> tuple[Record, ...]:
    """Return the records of the steps that an attempt has finished, and of the sweeps around them.

    Each has the name of the attempt that executed it. `folder` is a copy of its evidence that the
    coordinator made between two steps, or that `copy_finished` made, so every step in it is
    complete. Return nothing if the copy is of another plan, or not complete.
    """
    try:
        if evidence.read_plan(folder).hash != plan.hash:
            return ()
        attempt = evidence.read_attempt(folder)
        records = tuple(
            replace(record, attempt=record.attempt or attempt)
            for record in evidence.read_records(folder)
        )
    except BadEvidence:
        return ()
    done = [record for record in records if record.step != HOSTS_STEP]
    if not all(evidence.open_log(folder, record.log) for record in done):
        return ()
    if not done:
        return ()
    # Discovery runs again, so only its record is left out.
    return tuple(r for r in records if r.step != HOSTS_STEP or r.wave > 0)


def finished_steps(records: Sequence[Record], plan: Plan, begun: int) -> tuple[str, ...]:
    """Return the ids of the steps that an attempt has finished, in the order of the plan.

    The last step with records may be incomplete, unless a later one has begun: `begun` is the
    number of the step that began last, 0 if it is unknown.
    """
    ran = {record.step for record in records}
    numbers = [number for number, step in enumerate(plan.steps, 1) if step.id in ran]
    return tuple(
        plan.steps[number - 1].id for number in numbers if number < max(numbers[-1], begun)
    )


def begun(folder: Path) -> int:
    """Return the number of the step that began last, from evidence; 0 if it is unknown."""
    current = evidence.read_step(folder)
    return current.number if current else 0


def copy_finished(source: Path, target: Path, plan: Plan) -> None:
    """Copy the evidence of the finished steps of an attempt, as the coordinator does between steps.

    `target` must not exist.
    """
    target.mkdir(mode=0o700)
    records = tuple(evidence.read_records(source))
    steps = finished_steps(records, plan, begun(source))
    for name in (evidence.PLAN, evidence.HOSTS):
        shutil.copyfile(source / name, target / name)
    (target / evidence.RECORDS).touch()
    for record in records:
        if record.step in (HOSTS_STEP, *steps):
            evidence.append_record(target, record)
    _copy_logs(source, target, steps)


def pack_finished(source: Path, plan: Plan) -> bytes:
    """Return what `copy_finished` copies as a tar archive with the folder `EARLIER`."""
    content = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="accept-resume-") as scratch:
        copy_finished(source, Path(scratch) / EARLIER, plan)
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(Path(scratch) / EARLIER, arcname=EARLIER)
    return content.getvalue()


def _copy_logs(source: Path, target: Path, steps: Iterable[str]) -> None:
    logs = source / evidence.LOGS
    (target / evidence.LOGS).mkdir(exist_ok=True)
    for step in steps:
        if (logs / step).is_dir():
            shutil.copytree(logs / step, target / evidence.LOGS / step)
        if (archive := logs / f"{step}.tar").is_file():
            shutil.copy(archive, target / evidence.LOGS)


def keep(state: Run, records: Sequence[Record], folder: Path) -> None:
    """Add records of an earlier attempt to the run, with their logs from `folder`.

    A host that was lost in that attempt takes no further part.
    """
    _copy_logs(folder, state.evidence, {record.step for record in records} - {HOSTS_STEP})
    for record in records:
        state.keep(record)
    for host, cause in find(records).lost.items():
        state.lose(host, cause, f"{host} was lost in the earlier attempt")


def as_lost(problems: Sequence[Problem], records: Sequence[Record]) -> tuple[Problem, ...]:
    """Return problems of hosts that were not found; those that took part before count as lost."""
    before = {host for record in records for host in record.hosts}
    return tuple(
        replace(problem, cause=Cause.HOST_DIED) if problem.host in before else problem
        for problem in problems
    )
