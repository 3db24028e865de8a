"""One launch of a run on its way: started, followed, collected or cancelled, and judged."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from accept import backends
from accept.backends import Job, local
from accept.commands import judge
from accept.commands.judge import Judged
from accept.commands.plan import write_run
from accept.core.errors import AcceptError, BadInput, BrokenOff, NoEvidence, NotStarted
from accept.core.evidence import read_verdict, write
from accept.core.runner.coordinator import CANCELLED
from accept.core.typed import dump, read
from accept.evidence import bucket, rundir
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved
from accept.report.console import Terminal

#: From here on the console says what the result says once more.
_VERDICT_FOLLOWS = "verdict of the coordinator:"


class Cancellation(StrEnum):
    """What came of a cancellation."""

    CANCELLED = "cancelled"
    #: It ended by itself before it could be cancelled.
    HAD_ENDED = "had-ended"
    STILL_RUNNING = "still-running"
    #: The run is over, and its evidence stays where it is.
    NOT_COLLECTED = "not-collected"
    #: Neither its processes nor its folder or objects were found.
    NOT_FOUND = "not-found"


def new_name() -> str:
    """A name for a launch: time and chance."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def start(
    run: Resolved, bundle: Bundle, terminal: Terminal, *, name: str, within: Path | None = None
) -> tuple[Job, Path]:
    """Start a run called `name`, as its back end calls it; returns its job and its folder.

    `within`: the drill that it is part of. Where nothing could be started nothing stays.
    """
    backend = backends.load(run.backend)
    name = backend.named(name, run.place)
    target = rundir.create(name, within=within)
    try:
        write_run(run, bundle, target)
        job = backend.submit(run, bundle, attempt=name, folder=target, say=terminal.progress)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    write(target / rundir.JOB, json.dumps(dump(job), indent=1) + "\n")
    return job, target


def load_job(folder: Path) -> Job:
    """Return the job of a run folder.

    Raises BadInput if the run was never submitted, or if the job uses another folder here.
    """
    path = folder / rundir.JOB
    try:
        job = read(Job, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BadInput(
            f"{folder.name} was never started", hint=f"start it: accept submit {folder}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {error}", hint="name another run") from None
    if job.backend == "local":
        local.check_folder(job, folder)
    return job


def finish(job: Job, folder: Path, terminal: Terminal, *, detach: bool = True) -> Judged:
    """Follow a run that was started to its end, fetch its evidence, judge it and write reports.

    `detach`: whether somebody who presses Ctrl-C may let it go on.
    """
    try:
        follow(job, folder, terminal, whole=False, detach=detach)
    except BrokenOff as error:
        terminal.progress(str(error))
    except NotStarted:
        cancel(job, folder, terminal)
        raise
    collect(folder, terminal)
    judged = judge.judge_path(str(folder), expect=())
    judge.report(judged, "files")
    return judged


def follow(job: Job, folder: Path, terminal: Terminal, *, whole: bool, detach: bool = True) -> int:
    """Follow the coordinator's console; Ctrl-C asks whether to detach, where it may, or cancels."""
    muted = False

    def say(line: str) -> None:
        nonlocal muted
        if line.startswith("-----BEGIN ACCEPT") or (_VERDICT_FOLLOWS in line and not whole):
            muted = True
        if not muted:
            terminal.progress(line)
        if line.startswith("-----END ACCEPT"):
            muted = False

    backend = backends.load(job.backend)
    try:
        return backend.watch(job, folder=folder, say=say)
    except KeyboardInterrupt:
        if detach and _asked_to_detach():
            terminal.progress(
                f"detached; the run goes on. accept watch {job.attempt}, "
                f"or accept cancel {job.attempt}"
            )
            raise
        cancel(job, folder, terminal)
        raise


def _asked_to_detach() -> bool:
    """Ask whether to detach; False means to cancel.

    Without a terminal nobody can answer. Then, at the end of input and at a second Ctrl-C the run
    is cancelled, because what was started must not stay behind.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write("\nCtrl-C: [d]etach and let the run go on, or [c]ancel it and clean up?")
    try:
        while True:
            sys.stderr.write(" [d/c] ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            answer = line.strip().lower()
            if not line or answer in ("c", "cancel"):
                return False
            if answer in ("d", "detach"):
                return True
            sys.stderr.write("type d to detach, or c to cancel:")
    except KeyboardInterrupt:
        return False


def collect(folder: Path, terminal: Terminal) -> Path:
    """The evidence of a run, fetched where it is not here yet, and sent where the site says."""
    place = folder / rundir.EVIDENCE
    if place.is_dir() and not (folder / rundir.JOB).is_file():
        # Fetched from elsewhere: it was not run from here.
        return place
    job = load_job(folder)
    # The command that follows a run and one that cancels it come here at the same moment.
    with rundir.held(folder):
        if not place.is_dir() or (folder / rundir.FROM_LOG).is_file():
            backends.load(job.backend).collect(job, folder=folder, say=terminal.progress)
    location = _results(folder, job.backend)
    if location and (folder / rundir.FROM_LOG).is_file():
        # What the pods wrote there is more than this.
        terminal.progress(f"not sent to {location}: all that is here is what a log told")
    elif location:
        failed = bucket.send(place, location, attempt=job.attempt)
        where = f"{location.rstrip('/')}/runs/{job.attempt}"
        terminal.progress(f"not sent to {where}: {failed}" if failed else f"sent to {where}")
        if failed:
            terminal.progress(f"the evidence is here; again: accept collect {job.attempt}")
    return place


def _results(folder: Path, backend: str) -> str:
    """The bucket or folder of a run, where its site names one that can be reached from here."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        run = json.loads((folder / rundir.RUN).read_text(encoding="utf-8"))["run"]
        location = run["site"]["results"]["location"]
        # A folder of a cluster's is one in its pods.
        here = backend != "kubernetes" and str(location).startswith("/")
        if isinstance(location, str) and (here or bucket.is_url(location)):
            return location
    return ""


def cancel(job: Job, folder: Path, terminal: Terminal) -> Cancellation:
    """End a run, keep its evidence so far, and remove what it made.

    Evidence that cannot be fetched stays where it is, and so does what holds it. Raises the back
    end's error if it cannot confirm that the run ended, after the evidence was collected.
    """
    backend = backends.load(job.backend)
    unconfirmed: AcceptError | None = None
    ended = _is_collected(folder) or (job.backend == "local" and local.is_over(folder))
    try:
        backend.cancel(job, folder=folder, say=terminal.progress)
    except AcceptError as error:
        unconfirmed = error
    try:
        place = collect(folder, terminal)
    except NoEvidence as error:
        if unconfirmed:
            raise unconfirmed from error
        if not backend.delete(job, dry_run=True, say=terminal.progress):
            terminal.progress(f"nothing to cancel was found: {error.message}")
            return Cancellation.NOT_FOUND
        terminal.progress(f"no evidence: {error.message}")
    except AcceptError as error:
        terminal.progress(f"the evidence could not be fetched: {error.message}")
        if job.place:
            again = f"accept collect {job.attempt}, then accept delete {job.attempt}"
            terminal.progress(f"what the cluster has of it is left there: {again}")
        if unconfirmed:
            raise unconfirmed from error
        over = not isinstance(error, BrokenOff)
        return Cancellation.NOT_COLLECTED if over else Cancellation.STILL_RUNNING
    else:
        ended = ended or _ended_by_itself(place)
        terminal.progress(f"evidence{'' if ended else ' so far'}: {place}")
    if unconfirmed:
        raise unconfirmed
    if job.place:
        # What a cluster was given stays there until it is removed.
        for what in backend.delete(job, dry_run=False, say=terminal.progress):
            terminal.progress(f"removed {what}")
    return Cancellation.HAD_ENDED if ended else Cancellation.CANCELLED


def _is_collected(folder: Path) -> bool:
    """Return True if the run folder holds all evidence, and not only what a log showed."""
    return (folder / rundir.EVIDENCE).is_dir() and not (folder / rundir.FROM_LOG).is_file()


def _ended_by_itself(place: Path) -> bool:
    """Return True if the coordinator formed a verdict on a run that nobody cancelled."""
    try:
        return read_verdict(place).broken_off != CANCELLED
    except AcceptError:
        return False
