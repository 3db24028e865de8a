"""Start, follow, collect and cancel runs; `accept run` is all of it, up to the verdict."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from accept import backends
from accept.backends.job import Job
from accept.backends.protocol import Phase
from accept.commands import judge
from accept.commands.judge import Judged
from accept.commands.plan import plan_text, planned, prepare, write_run
from accept.config.expectations import parse_duration
from accept.core.errors import AcceptError, BadInput, BrokenOff, Exit, NoEvidence, NotStarted
from accept.core.evidence import read_verdict, write
from accept.core.runner.coordinator import CANCELLED
from accept.core.serde import dump, read
from accept.core.text import plain
from accept.evidence import bucket, rundir
from accept.plan.bundle import Bundle, load_bundle
from accept.plan.resolve import Options, Resolved
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
    name = backend.attempt_name(name, run.place, run.plan.nodes or 1)
    target = rundir.create(name, within=within)
    try:
        write_run(run, bundle, target)
        job = backend.submit(run, bundle, attempt=name, folder=target, say=terminal.progress)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    write(target / rundir.JOB, json.dumps(dump(job), indent=1) + "\n")
    return job, target


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
    job = backends.load_job(folder)
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
    phase = backend.progress(job, folder=folder).phase
    ended = _is_collected(folder) or phase is Phase.ENDED
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


def _read(folder: Path) -> tuple[Resolved, Bundle]:
    path = folder / rundir.RUN
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        run = read(Resolved, data["run"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {error}", hint="render the run again") from None
    return run, load_bundle(folder / rundir.RENDERED, run.plan)


def do_submit(
    options: Options, terminal: Terminal, *, folder: str | None, attempt: str, dry_run: bool
) -> int:
    """Render and start a run, or start one that was rendered before."""
    job = _submit(options, terminal, folder=folder, attempt=attempt, dry_run=dry_run)
    if job is not None:
        terminal.result(job, job.attempt)
        terminal.progress(f"next: accept watch {job.attempt}")
    return Exit.PASS


def _submit(
    options: Options, terminal: Terminal, *, folder: str | None, attempt: str, dry_run: bool
) -> Job | None:
    if folder is not None:
        run, bundle = _read(rundir.find(folder))
        run = replace(run, place={**run.place, **options.place})
    else:
        run, bundle = prepare(options, terminal, probe=True)
    plan = planned(run)
    for step in run.plan.steps:
        shown = ", ".join(f"{key} {value}" for key, value in step.params.items())
        terminal.detail(f"{step.id}: {shown or 'no parameters'}; at most {step.timeout:.0f} s")
    if dry_run:
        terminal.result(plan, plan_text(plan))
        return None
    for line in plan_text(plan).splitlines():
        terminal.progress(line)
    job, target = start(run, bundle, terminal, name=attempt or new_name())
    terminal.progress(f"started {job.attempt}; everything about it: {target}")
    return job


def do_watch(name: str, terminal: Terminal) -> int:
    """Follow a run to its end."""
    folder = rundir.find_own(name)
    if (folder / rundir.EVIDENCE).is_dir():
        terminal.progress(f"{folder.name} is over and collected")
        return judge.do_judge((str(folder),), terminal, expect=())
    job = backends.load_job(folder)
    code = follow(job, folder, terminal, whole=True)
    if code not in tuple(Exit):
        # It crashed or was killed, and so formed no verdict.
        code = Exit.BROKEN_OFF
    # The verdict was shown with all the rest; what is judged, and held, is what was collected.
    ended = f"{job.attempt} ended with exit status {code}; next: accept collect {job.attempt}"
    terminal.result({"attempt": job.attempt, "exit": code}, ended)
    return code


def do_collect(name: str, terminal: Terminal) -> int:
    """Fetch a run's evidence, or that of a place in a bucket, which becomes a run here."""
    if bucket.is_url(name):
        place = _fetch(name, terminal)
    else:
        place = collect(rundir.find_own(name), terminal)
    terminal.result({"evidence": str(place)}, str(place))
    return Exit.PASS


def _fetch(url: str, terminal: Terminal) -> Path:
    attempt = url.rstrip("/").rpartition("/")[2]
    if not rundir.is_name(attempt):
        raise BadInput(f"{plain(url, 200)} names no run", hint="name one: …/runs/ATTEMPT")
    folder = rundir.create(attempt)
    target = folder / rundir.EVIDENCE
    try:
        finished = bucket.fetch(url, target)
    except BaseException:
        shutil.rmtree(folder)
        raise
    if not finished:
        terminal.progress("the upload was never finished: this is what there is of it")
    return target


def do_cancel(name: str, terminal: Terminal) -> int:
    """End a run and remove what it made; its evidence so far is collected first."""
    folder = rundir.find_own(name)
    job = backends.load_job(folder)
    outcome = cancel(job, folder, terminal)
    terminal.result(
        {"attempt": job.attempt, "outcome": outcome}, _CANCELLATIONS[outcome].format(job.attempt)
    )
    done = outcome in (Cancellation.CANCELLED, Cancellation.HAD_ENDED)
    return Exit.PASS if done else Exit.INCOMPLETE


_CANCELLATIONS = {
    Cancellation.CANCELLED: "cancelled {}",
    Cancellation.HAD_ENDED: "{} had already ended; nothing was cancelled",
    Cancellation.STILL_RUNNING: "{} is still running: it did not end when it was cancelled",
    Cancellation.NOT_COLLECTED: "{} was cancelled, but its evidence could not be fetched",
    Cancellation.NOT_FOUND: "{} was not found, so nothing was cancelled",
}


def do_run(options: Options, terminal: Terminal, *, attempt: str, dry_run: bool) -> int:
    """The whole loop; returns the verdict's exit code."""
    job = _submit(options, terminal, folder=None, attempt=attempt, dry_run=dry_run)
    if job is None:
        return Exit.PASS
    folder = rundir.find(job.attempt)
    judged = finish(job, folder, terminal)
    terminal.result(judged.verdict, judge.text(judged, terminal))
    terminal.progress(f"evidence: {folder / rundir.EVIDENCE}")
    if job.place:
        terminal.progress(f"to remove it from the cluster: accept delete {job.attempt}")
    return judged.verdict.exit


def do_delete(
    names: Sequence[str],
    terminal: Terminal,
    *,
    older_than: str | None,
    dry_run: bool,
    collects: bool,
) -> int:
    """Collect runs, then remove what they made and is still there.

    One whose evidence is there and cannot be fetched stays, unless it is not to be collected.
    """
    if bool(names) == bool(older_than):
        raise BadInput("which runs?", hint="name them, or give --older-than 24h, and not both")
    folders = [rundir.find_own(name) for name in names] or _older(older_than or "")
    removed: dict[str, list[str]] = {}
    worst: AcceptError | None = None
    for folder in folders:
        job = backends.load_job(folder)
        try:
            found = _delete(job, folder, terminal, dry_run=dry_run, collects=collects)
            removed[job.attempt] = list(found)
        except AcceptError as error:
            # One that cannot be removed is no reason to leave the others.
            if len(folders) == 1:
                raise
            terminal.progress(f"{job.attempt}: {error}")
            worst = error
    word = "would remove" if dry_run else "removed"
    lines = [f"{word} {what}" for found in removed.values() for what in found]
    terminal.result({"dryRun": dry_run, "removed": removed}, "\n".join(lines) or "nothing is left")
    return Exit.PASS if worst is None else worst.code


def _delete(
    job: Job, folder: Path, terminal: Terminal, *, dry_run: bool, collects: bool
) -> tuple[str, ...]:
    backend = backends.load(job.backend)
    found = backend.delete(job, dry_run=True, say=terminal.progress)
    if dry_run or not found:
        return found
    try:
        if collects:
            collect(folder, terminal)
    except NoEvidence as error:
        terminal.progress(f"{job.attempt}: nothing to collect: {error.message}")
    except AcceptError:
        why = "its evidence cannot be fetched; --no-collect removes it without"
        terminal.progress(f"{job.attempt} is not removed: {why}")
        raise
    return backend.delete(job, dry_run=False, say=terminal.progress)


def _older(text: str) -> list[Path]:
    """Return the folders of submitted runs that were started at least that long ago."""
    try:
        limit = datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except ValueError as error:
        message = str(error).partition(";")[0]
        raise BadInput(f"--older-than: {message}", hint="such as 24h, 90m") from None
    found = []
    for folder in filter(rundir.is_own, rundir.listed()):
        try:
            job = backends.load_job(folder)
            old = datetime.fromisoformat(job.submitted) < limit
        except (AcceptError, ValueError, TypeError):
            continue
        if old:
            found.append(folder)
    return found
