"""Start, follow, collect, cancel and delete runs. `accept run` starts, collects and judges one."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from accept import backends
from accept.backends.job import Job
from accept.backends.protocol import Phase
from accept.commands import judge
from accept.commands.judge import Judged
from accept.commands.plan import plan_text, planned, write_run
from accept.commands.prepare import prepare
from accept.config.expectations import parse_duration
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadInput, Exit, Interrupted, NoEvidence, NotStarted
from accept.core.evidence import PACKED_BEGIN, PACKED_END, read_verdict, write
from accept.core.runner.coordinator import CANCELLED, VERDICT_FOLLOWS
from accept.core.serde import dump, read
from accept.core.text import duration, plain
from accept.evidence import bucket, rundir
from accept.plan.bundle import Bundle, load_bundle
from accept.plan.resolve import Options, Resolved
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
class Watched:
    """The end of a run: `accept watch`."""

    attempt: str
    #: Exit code of the coordinator; 5 if it crashed or was killed.
    exit: int


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
class Deleted:
    """The objects and folders that `accept delete` removed, or would remove, by attempt."""

    dry_run: bool
    removed: dict[str, tuple[str, ...]]


def new_name() -> str:
    """Return a name for a launch, from the time and a random number."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def start(
    run: Resolved, bundle: Bundle, terminal: Terminal, *, name: str, within: Path | None = None
) -> tuple[Job, Path]:
    """Start a run called `name`, and return its job and its folder.

    The back end may change the name. `within` is the folder of the drill that the run belongs to.
    If the run cannot be started, its folder is removed.
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
    try:
        write(target / rundir.JOB, json.dumps(dump(job), indent=1) + "\n")
    except OSError as error:
        # Without job.json no later command would find the run.
        failure: type[AcceptError] = NotStarted
        outcome = "the run was ended"
        try:
            backend.delete(job, dry_run=False, say=terminal.progress)
        except AcceptError as unconfirmed:
            failure, outcome = Interrupted, f"the run may go on: {unconfirmed.message}"
        shutil.rmtree(target, ignore_errors=True)
        raise failure(
            f"cannot write {target / rundir.JOB}: {error.strerror}; {outcome}",
            code=Code.RUN_NOT_RECORDED,
            hint="free space on that disk, or set ACCEPT_RUNS to another folder",
        ) from None
    return job, target


def finish(job: Job, folder: Path, terminal: Terminal, *, detach: bool = True) -> Judged:
    """Follow a started run to its end, fetch its evidence, judge it and write the reports.

    With `detach`, the user may let the run continue after Ctrl-C.
    """
    try:
        follow(job, folder, terminal, whole=False, detach=detach)
    except Interrupted as error:
        terminal.progress(str(error))
    except NotStarted:
        cancel(job, folder, terminal)
        raise
    collect(folder, terminal)
    judged = judge.judge_path(str(folder), expect=())
    judge.write_reports(judged)
    return judged


def follow(job: Job, folder: Path, terminal: Terminal, *, whole: bool, detach: bool = True) -> int:
    """Print the coordinator's console until the run ends, and return its exit status.

    Without `whole`, the verdict is left out. Ctrl-C cancels the run, or asks to with `detach`.
    """
    muted = False

    def say(line: str) -> None:
        nonlocal muted
        if line.startswith(PACKED_BEGIN) or (VERDICT_FOLLOWS in line and not whole):
            muted = True
        if not muted:
            terminal.progress(line)
        if line.startswith(PACKED_END):
            muted = False

    backend = backends.load(job.backend)
    try:
        return backend.watch(job, folder=folder, say=say)
    except KeyboardInterrupt:
        if detach and _wants_to_detach():
            terminal.progress(
                f"detached; the run continues: accept watch {job.attempt}, "
                f"or accept cancel {job.attempt}"
            )
            raise
        cancel(job, folder, terminal)
        raise


def _wants_to_detach() -> bool:
    """Ask the user to detach or cancel; return True to detach.

    Without a terminal, at the end of input and at a second Ctrl-C the run is cancelled, because a
    run must not continue unattended unless the user chose that.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write("\nCtrl-C: [d]etach and let the run continue, or [c]ancel it and clean up?")
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
    """Fetch the evidence of a run if needed, send it to the site's results, and return its folder.

    Evidence that was only reconstructed from a log is fetched again, and never sent.
    """
    target = folder / rundir.EVIDENCE
    if target.is_dir() and not (folder / rundir.JOB).is_file():
        # The run was started elsewhere.
        return target
    job = backends.load_job(folder)
    # A command that follows the run and one that cancels it may collect at the same time.
    with rundir.held(folder):
        if not target.is_dir() or (folder / rundir.FROM_LOG).is_file():
            backends.load(job.backend).collect(job, folder=folder, say=terminal.progress)
    location = _results(folder, job, terminal)
    if location and (folder / rundir.FROM_LOG).is_file():
        # The pods have written more than this there.
        terminal.progress(f"not sent to {location}: only the log of the run was fetched")
    elif location:
        error = bucket.send(target, location, attempt=job.attempt)
        destination = f"{location.rstrip('/')}/runs/{job.attempt}"
        if error:
            terminal.progress(f"not sent to {destination}: {error}")
            terminal.progress(
                f"the evidence is in {target}; to send it again: accept collect {job.attempt}"
            )
        else:
            terminal.progress(f"sent to {destination}")
    return target


def _results(folder: Path, job: Job, terminal: Terminal) -> str:
    """Return the results location of the run's site if this machine can write to it, else ""."""
    if not (folder / rundir.RUN).is_file():
        return ""
    try:
        location = _read_run(folder).site.results.location or ""
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
    ended = _is_collected(folder) or phase is Phase.ENDED
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
    except AcceptError as error:
        terminal.progress(f"the evidence could not be fetched: {error.message}")
        if job.on_cluster:
            again = f"accept collect {job.attempt}, then accept delete {job.attempt}"
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


def _is_collected(folder: Path) -> bool:
    """Return True if the run folder holds all evidence, and not only what a log showed."""
    return (folder / rundir.EVIDENCE).is_dir() and not (folder / rundir.FROM_LOG).is_file()


def _ended_by_itself(evidence: Path) -> bool:
    """Return True if the coordinator formed a verdict, and the run was not cancelled."""
    try:
        return read_verdict(evidence).interruption != CANCELLED
    except AcceptError:
        return False


def _read_run(folder: Path) -> Resolved:
    """Return the run of a run folder. Raises BadInput."""
    path = folder / rundir.RUN
    try:
        return read(Resolved, json.loads(path.read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}",
            code=Code.RUN_UNREADABLE,
            hint="render the run again",
        ) from None


def do_submit(options: Options, terminal: Terminal, *, folder: str | None, dry_run: bool) -> int:
    """Render and start a run, or start the rendered run in `folder`."""
    job = _submit(options, terminal, folder=folder, dry_run=dry_run)
    if job is not None:
        terminal.result(job, job.attempt)
        terminal.progress(f"next: accept watch {job.attempt}")
    return Exit.PASS


def _submit(
    options: Options, terminal: Terminal, *, folder: str | None, dry_run: bool
) -> Job | None:
    if folder is not None:
        rendered = rundir.find(folder)
        run = _read_run(rendered)
        bundle = load_bundle(rendered / rundir.RENDERED, run.plan)
        run = replace(run, place=run.place.override(options.place))
    else:
        run, bundle = prepare(options, terminal)
    plan = planned(run)
    for step in run.plan.steps:
        shown = ", ".join(f"{key} {value}" for key, value in step.params.items())
        terminal.detail(f"{step.id}: {shown or 'no parameters'}; at most {duration(step.timeout)}")
    if dry_run:
        terminal.result(plan, plan_text(plan))
        return None
    for line in plan_text(plan).splitlines():
        terminal.progress(line)
    job, target = start(run, bundle, terminal, name=options.attempt or new_name())
    terminal.progress(f"started {job.attempt}; all files: {target}")
    return job


def do_watch(name: str, terminal: Terminal) -> int:
    """Follow a run to its end, and return its exit code."""
    folder = rundir.find_own(name)
    if (folder / rundir.EVIDENCE).is_dir():
        terminal.progress(f"{folder.name} has ended and was collected")
        return judge.do_judge((str(folder),), terminal, expect=())
    job = backends.load_job(folder)
    code = follow(job, folder, terminal, whole=True)
    if code not in tuple(Exit):
        # The coordinator crashed or was killed, and formed no verdict.
        code = Exit.INTERRUPTED
    # The console has shown the coordinator's verdict already.
    ended = f"{job.attempt} ended with exit status {code}; next: accept collect {job.attempt}"
    terminal.result(Watched(attempt=job.attempt, exit=code), ended)
    return code


def do_collect(name: str, terminal: Terminal) -> int:
    """Fetch the evidence of a run, or of a bucket URL, which gets a run folder of its own."""
    if bucket.is_url(name):
        evidence = _fetch(name, terminal)
    else:
        evidence = collect(rundir.find_own(name), terminal)
    terminal.result(Collected(evidence=str(evidence)), str(evidence))
    return Exit.PASS


def _fetch(url: str, terminal: Terminal) -> Path:
    attempt = url.rstrip("/").rpartition("/")[2]
    if not rundir.is_name(attempt):
        raise BadInput(
            f"{plain(url, 200)} does not end in a run name",
            code=Code.BUCKET_RUN,
            hint="give a URL like …/runs/ATTEMPT",
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
    done = outcome in (Cancellation.CANCELLED, Cancellation.HAD_ENDED)
    return Exit.PASS if done else Exit.INCOMPLETE


_CANCELLATIONS = {
    Cancellation.CANCELLED: "cancelled {}",
    Cancellation.HAD_ENDED: "{} had already ended; nothing was cancelled",
    Cancellation.STILL_RUNNING: "{} is still running: it did not end when it was cancelled",
    Cancellation.NOT_COLLECTED: "{} was cancelled, but its evidence could not be fetched",
    Cancellation.NOT_FOUND: "{} was not found, so nothing was cancelled",
}


def do_run(options: Options, terminal: Terminal, *, dry_run: bool) -> int:
    """Render, start, follow, collect and judge a run; return the verdict's exit code."""
    job = _submit(options, terminal, folder=None, dry_run=dry_run)
    if job is None:
        return Exit.PASS
    folder = rundir.find(job.attempt)
    judged = finish(job, folder, terminal)
    terminal.result(judged.verdict, judge.text(judged, terminal))
    terminal.progress(f"evidence: {folder / rundir.EVIDENCE}")
    if job.on_cluster:
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
    """Collect runs, then remove what is left of them.

    With `collects`, a run whose evidence exists but cannot be fetched is not removed.
    """
    if bool(names) == bool(older_than):
        raise BadInput(
            "name the runs to delete, or give their age, but not both",
            code=Code.RUN_WHICH,
            hint="accept delete NAME …, or accept delete --older-than 24h",
        )
    folders = [rundir.find_own(name) for name in names] or _older(older_than or "")
    removed: dict[str, tuple[str, ...]] = {}
    last_error: AcceptError | None = None
    for folder in folders:
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
    result = Deleted(dry_run=dry_run, removed=removed)
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


def _older(text: str) -> list[Path]:
    """Return the folders of submitted runs that are at least as old as `text`, such as 24h."""
    try:
        limit = datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except ValueError as error:
        message = str(error).partition(";")[0]
        raise BadInput(
            f"--older-than: {message}", code=Code.OPTION_DURATION, hint="such as 24h, 90m"
        ) from None
    folders = []
    for folder in filter(rundir.is_own, rundir.listed()):
        try:
            job = backends.load_job(folder)
            is_old = datetime.fromisoformat(job.submitted) < limit
        except (AcceptError, ValueError, TypeError):
            continue
        if is_old:
            folders.append(folder)
    return folders
