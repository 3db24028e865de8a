"""Fetch what runs measured, cancel runs, and remove what is left of them and their folders."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from accept import backends
from accept.backends.job import Job
from accept.backends.protocol import Phase
from accept.commands.order import claims_of, matches_order, read_run
from accept.core.error_codes import Code
from accept.core.errors import (
    AcceptError,
    BadEvidence,
    BadInput,
    Exit,
    Interrupted,
    NoEvidence,
    warning,
)
from accept.core.evidence import read_verdict, write
from accept.core.runner.launch import CANCELLED
from accept.core.serde import dump
from accept.core.text import command_line, count, plain
from accept.evidence import bucket, rundir
from accept.evidence.archive import DISK_ERRORS
from accept.report.console import Terminal


class Cancellation(StrEnum):
    """The outcome of a cancellation."""

    CANCELLED = "cancelled"
    #: It ended by itself before it could be cancelled.
    HAD_ENDED = "had-ended"
    STILL_RUNNING = "still-running"
    #: The run is over, but its evidence could not be fetched.
    NOT_COLLECTED = "not-collected"
    #: Neither its processes nor its folder or objects were found.
    NOT_FOUND = "not-found"


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The folder of the evidence: `accept collect`."""

    evidence: str


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """The outcome of `accept cancel`."""

    attempt: str
    outcome: Cancellation


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """The objects and folders that `accept clean` removed, or would remove, by attempt."""

    dry_run: bool
    removed: dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class PrunedRun:
    """A run or drill whose folder was removed, or would be."""

    name: str
    #: Of all its files.
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """The folders of old runs that were removed, or would be: `accept clean --folders`."""

    dry_run: bool
    removed: tuple[PrunedRun, ...]
    #: Old runs that stay, with the reason.
    kept: dict[str, str]


def write_job(job: Job, folder: Path) -> None:
    """Write job.json, by which later commands find the run."""
    write(folder / rundir.JOB, json.dumps(dump(job), indent=1) + "\n")


def collect(folder: Path, terminal: Terminal) -> Path:
    """Fetch the evidence of a run if needed, send it to the site's results, and return its folder.

    Evidence that was only reconstructed from a log is fetched again, and never sent.
    """
    target = folder / rundir.EVIDENCE
    if target.is_dir() and not (folder / rundir.JOB).is_file():
        # The run was started elsewhere.
        return target
    job = backends.load_job(folder)
    fetch_evidence(job, folder, terminal)
    send_evidence(job, folder, terminal)
    return target


def fetch_evidence(job: Job, folder: Path, terminal: Terminal) -> None:
    """Fetch the evidence of a run, unless it is here and complete."""
    # A command that follows the run and one that cancels it may collect at the same time.
    with rundir.held(folder):
        is_here = is_collected(folder)
        if is_here and backends.load_job(folder).evidence:
            return
        try:
            if not is_here:
                backends.load(job.backend).collect(job, folder=folder, say=terminal.progress)
            # Also if the command that fetched it was ended before this.
            _keep_hash(job, folder, terminal)
        except OSError as failed:
            if failed.errno not in DISK_ERRORS:
                raise
            raise BadEvidence(
                f"cannot write to {folder}: {failed.strerror}",
                code=Code.ARCHIVE_DISK,
                hint=f"free space on that disk, then: accept collect {job.attempt}",
            ) from None


def send_evidence(job: Job, folder: Path, terminal: Terminal) -> str:
    """Send the evidence to the site's results; return their location if it is there, else ""."""
    location = _results(folder, job, terminal)
    if not location:
        return ""
    if (folder / rundir.FROM_LOG).is_file():
        # The pods have written more than this there.
        terminal.progress(f"not sent to {location}: only the log of the run was fetched")
        return ""
    target = folder / rundir.EVIDENCE
    destination = f"{location.rstrip('/')}/runs/{job.attempt}"
    terminal.progress(f"sending the evidence to {destination}")
    if error := bucket.send(target, location, attempt=job.attempt):
        terminal.progress(f"not sent to {destination}: {error}")
        terminal.progress(
            f"the evidence is in {target}; to send it again: accept collect {job.attempt}"
        )
        return ""
    terminal.progress(f"sent to {destination}")
    return location


def _keep_hash(job: Job, folder: Path, terminal: Terminal) -> None:
    """Write the hash of the fetched evidence into job.json, so that later changes are seen.

    Raises BadEvidence if it does not answer the order: it was changed, or it is of another run.
    """
    evidence = folder / rundir.EVIDENCE
    if (folder / rundir.FROM_LOG).is_file():
        return
    try:
        verified = matches_order(claims_of(evidence)).verified
    except BadEvidence as error:
        if error.code in _REFUSED:
            refused = folder / f"{rundir.EVIDENCE}-refused"
            shutil.rmtree(refused, ignore_errors=True)
            evidence.rename(refused)
            terminal.progress(f"the evidence is not used: {refused}")
            raise
        # What a run left that was killed; a judgement shows why it cannot be read.
        return
    if verified.unsigned:
        text = f"the run did not sign its evidence, so it cannot be verified: {verified.unsigned}"
        terminal.progress(warning(Code.EVIDENCE_SIGNATURE, text))
    if verified.hash:
        write_job(replace(job, evidence=verified.hash), folder)


#: Errors of evidence that another run left, or that was changed on its way.
_REFUSED = (
    Code.EVIDENCE_CHANGED,
    Code.EVIDENCE_OTHER_RUN,
    Code.EVIDENCE_PLAN_CHANGED,
    Code.EVIDENCE_SIGNATURE,
)


def _results(folder: Path, job: Job, terminal: Terminal) -> str:
    """Return the results location of the run's site if this machine can write to it, else ""."""
    if not (folder / rundir.RUN).is_file():
        return ""
    try:
        location = read_run(folder).site.results.location or ""
    except BadInput as error:
        terminal.progress(f"not sent to the site's results location: {error.message}")
        return ""
    # On a cluster, a folder is one in the pods.
    is_local = not job.on_cluster and location.startswith("/")
    return location if is_local or bucket.is_url(location) else ""


def cancel(job: Job, folder: Path, terminal: Terminal) -> Cancellation:
    """End a run, keep its evidence so far, and remove its processes, files and objects.

    If the evidence cannot be fetched, nothing that holds it is removed. Raises the back end's error
    if it cannot confirm that the run ended, after the evidence was collected.
    """
    backend = backends.load(job.backend)
    unconfirmed: AcceptError | None = None
    try:
        # Asked before, because ending the run may remove the last of what exists.
        existed = bool(backend.delete(job, dry_run=True, say=terminal.detail))
    except AcceptError:
        # What cannot be looked at may exist.
        existed = True
    phase = backend.progress(job, folder=folder).phase
    ended = is_collected(folder) or phase is Phase.ENDED
    try:
        backend.cancel(job, folder=folder, say=terminal.progress)
    except AcceptError as error:
        unconfirmed = error
    try:
        evidence = collect(folder, terminal)
    except NoEvidence as error:
        if unconfirmed:
            raise unconfirmed from error
        if not existed:
            terminal.progress(f"found nothing to cancel: {error.message}")
            return Cancellation.NOT_FOUND
        terminal.progress(f"no evidence: {error.message}")
        # Nothing else would remove the folder of the run, which has its key.
        for name in backend.delete(job, dry_run=False, say=terminal.progress):
            terminal.progress(f"removed {name}")
    except AcceptError as error:
        terminal.progress(f"the evidence could not be fetched: {error.message}")
        if job.on_cluster:
            again = f"accept collect {job.attempt}, then accept clean {job.attempt}"
            terminal.progress(f"its objects stay on the cluster: {again}")
        if unconfirmed:
            raise unconfirmed from error
        still_running = isinstance(error, Interrupted)
        return Cancellation.STILL_RUNNING if still_running else Cancellation.NOT_COLLECTED
    else:
        ended = ended or _ended_by_itself(evidence)
        terminal.progress(f"evidence{'' if ended else ' so far'}: {evidence}")
    if unconfirmed:
        raise unconfirmed
    if job.on_cluster:
        # A cluster keeps the objects of a run that ended.
        for name in backend.delete(job, dry_run=False, say=terminal.progress):
            terminal.progress(f"removed {name}")
    return Cancellation.HAD_ENDED if ended else Cancellation.CANCELLED


def is_collected(folder: Path) -> bool:
    """Return True if the run folder holds all evidence, and not only what a log showed."""
    return (folder / rundir.EVIDENCE).is_dir() and not (folder / rundir.FROM_LOG).is_file()


def _ended_by_itself(evidence: Path) -> bool:
    """Return True if the coordinator formed a verdict, and the run was not cancelled."""
    try:
        return read_verdict(evidence).interruption != CANCELLED
    except AcceptError:
        return False


def do_collect(name: str, terminal: Terminal) -> int:
    """Fetch the evidence of a run, or of a bucket URL, which gets a run folder of its own."""
    if bucket.is_url(name):
        evidence = _fetch(name, terminal)
    else:
        evidence = collect(rundir.find_own(name), terminal)
    terminal.result(Collected(evidence=str(evidence)), str(evidence))
    terminal.suggest(f"accept judge {evidence.parent.name}")
    return Exit.PASS


def _fetch(url: str, terminal: Terminal) -> Path:
    attempt = url.rstrip("/").rpartition("/")[2]
    if not rundir.is_name(attempt):
        raise BadInput(
            f"{plain(url, 200)} does not end in a run name",
            code=Code.BUCKET_RUN,
            hint=bucket.list_hint(url),
        )
    if rundir.by_attempt(attempt):
        raise BadInput(
            f"a run {attempt} is here already",
            code=Code.ATTEMPT_EXISTS,
            hint=f"judge it: accept judge {attempt}; "
            f"the one at the URL: {command_line('accept', 'judge', url)}",
        )
    folder = rundir.create(attempt)
    target = folder / rundir.EVIDENCE
    try:
        finished = bucket.fetch(url, target)
    except BaseException:
        shutil.rmtree(folder)
        raise
    if not finished:
        terminal.progress("the upload was never finished: the evidence is incomplete")
    return target


def do_cancel(name: str, terminal: Terminal) -> int:
    """End a run, collect its evidence so far, and remove the rest."""
    folder = rundir.find_own(name)
    job = backends.load_job(folder)
    outcome = cancel(job, folder, terminal)
    result = Cancelled(attempt=job.attempt, outcome=outcome)
    terminal.result(result, _CANCELLATIONS[outcome].format(job.attempt))
    if is_collected(folder):
        terminal.suggest(f"accept judge {job.attempt}")
    done = outcome in (Cancellation.CANCELLED, Cancellation.HAD_ENDED)
    return Exit.PASS if done else Exit.INCOMPLETE


_CANCELLATIONS = {
    Cancellation.CANCELLED: "cancelled {}",
    Cancellation.HAD_ENDED: "{} had already ended; nothing was cancelled",
    Cancellation.STILL_RUNNING: "{} is still running: it did not end when it was cancelled",
    Cancellation.NOT_COLLECTED: "{} was cancelled, but its evidence could not be fetched",
    Cancellation.NOT_FOUND: "{} was not found, so nothing was cancelled",
}


def do_clean(
    names: Sequence[str],
    terminal: Terminal,
    *,
    older_than: float | None,
    dry_run: bool,
    collects: bool,
) -> int:
    """Collect runs, then remove what is left of them.

    `older_than` is an age in seconds. With `collects`, a run whose evidence exists but cannot be
    fetched is not removed.
    """
    if bool(names) == (older_than is not None):
        raise BadInput(
            "both runs and an age are given" if names else "the runs to remove are missing",
            code=Code.RUN_WHICH,
            hint="accept clean last, or accept clean --older-than 24h",
        )
    folders = [rundir.find_own(name) for name in names] or _older(older_than or 0.0)
    removed: dict[str, tuple[str, ...]] = {}
    last_error: AcceptError | None = None
    for folder in folders:
        if rundir.is_unfinished(folder):
            removed[folder.name] = (str(folder),)
            if not dry_run:
                shutil.rmtree(folder)
            continue
        job = backends.load_job(folder)
        try:
            removed[job.attempt] = _delete(
                job, folder, terminal, dry_run=dry_run, collects=collects
            )
        except AcceptError as error:
            if len(folders) == 1:
                raise
            terminal.progress(f"{job.attempt}: {error}")
            last_error = error
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {name}" for objects in removed.values() for name in objects]
    result = Cleaned(dry_run=dry_run, removed=removed)
    terminal.result(result, "\n".join(lines) or "nothing is left")
    return Exit.PASS if last_error is None else last_error.exit


def _delete(
    job: Job, folder: Path, terminal: Terminal, *, dry_run: bool, collects: bool
) -> tuple[str, ...]:
    backend = backends.load(job.backend)
    objects = backend.delete(job, dry_run=True, say=terminal.progress)
    if dry_run or not objects:
        return objects
    try:
        if collects:
            collect(folder, terminal)
    except NoEvidence as error:
        terminal.progress(f"{job.attempt}: nothing to collect: {error.message}")
    except AcceptError:
        reason = "its evidence cannot be fetched; --no-collect removes it anyway"
        terminal.progress(f"{job.attempt} is not removed: {reason}")
        raise
    return backend.delete(job, dry_run=False, say=terminal.progress)


def _older(seconds: float) -> list[Path]:
    """Return the folders of submitted runs that are at least `seconds` old."""
    limit = time.time() - seconds
    own = filter(rundir.is_own, rundir.listed())
    return [folder for folder in own if (_submitted(folder) or limit) < limit]


def _submitted(folder: Path) -> float | None:
    """Return the time at which a run was submitted, in seconds since 1970; None: unknown."""
    job = backends.known_job(folder)
    return job.began if job else None


def do_prune(terminal: Terminal, *, older_than: float, dry_run: bool) -> int:
    """Remove the folders of runs that started at least `older_than` seconds ago.

    A run whose evidence is not here stays, because its folder alone shows where it is.
    """
    limit = time.time() - older_than
    removed: list[PrunedRun] = []
    kept: dict[str, str] = {}
    for folder in filter(rundir.is_own, rundir.listed()):
        # A drill has no job of its own.
        if (_submitted(folder) or folder.stat().st_mtime) > limit:
            continue
        if reason := next(_reasons(folder), ""):
            kept[folder.name] = reason
            continue
        size = sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir())
        try:
            if not dry_run:
                shutil.rmtree(folder)
        except OSError as error:
            raise BadInput(
                f"{folder} cannot be removed: {error.strerror}",
                code=Code.OUTPUT_WRITE,
                hint="check its owner and permissions",
            ) from None
        removed.append(PrunedRun(name=folder.name, bytes=size))
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {run.name} ({_megabytes(run.bytes)})" for run in removed]
    lines += [f"kept {name}: {reason}" for name, reason in kept.items()]
    total = _megabytes(sum(run.bytes for run in removed))
    lines.append(f"{verb} {count(len(removed), 'run')}, {total}")
    terminal.result(Pruned(dry_run=dry_run, removed=tuple(removed), kept=kept), *lines)
    return Exit.PASS


def _reasons(folder: Path) -> Iterator[str]:
    """Yield why the folder of a run, or of a run of a drill, must stay."""
    for job in (folder / rundir.JOB, *sorted(folder.glob(f"*/{rundir.JOB}"))):
        run = job.parent
        if not job.is_file():
            continue
        progress = backends.progress_of(run)
        if progress.phase is Phase.RUNNING:
            yield f"it is {progress.text}"
        if not is_collected(run) and progress.phase is not Phase.GONE:
            yield f"its evidence was not collected: accept collect {run.name}, or accept clean"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB"
