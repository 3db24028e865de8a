"""Start, follow, collect, cancel and delete runs. `accept run` starts, collects and judges one."""

from __future__ import annotations

import errno
import json
import secrets
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from accept import backends
from accept.backends.job import Job
from accept.backends.protocol import FirstHostLost, Phase
from accept.commands.judge import do_judge
from accept.commands.judged import Judged, judge_path, with_max_bad
from accept.commands.order import claims_of, matches_order, read_run
from accept.commands.plan import plan_text, planned, tell_plan, write_run
from accept.commands.prepare import prepare
from accept.commands.report import screen, write_page
from accept.commands.resume import prepare_resumed
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import (
    AcceptError,
    BadEvidence,
    BadInput,
    Exit,
    Interrupted,
    NoEvidence,
    NotStarted,
    Terminated,
    warning,
)
from accept.core.evidence import (
    PACKED_BEGIN,
    PACKED_END,
    read_verdict,
    write,
)
from accept.core.model import Problem
from accept.core.report import text as reports
from accept.core.runner import resume
from accept.core.runner.events import EventKind, parse_event
from accept.core.runner.launch import CANCELLED
from accept.core.serde import dump
from accept.core.text import count, duration, plain
from accept.evidence import bucket, rundir
from accept.plan.bundle import Bundle, load_bundle
from accept.plan.resolve import Options, Resolved
from accept.report.console import Terminal
from accept.report.live import RunView


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

    def record(job: Job) -> None:
        # Before anything is started: without job.json no later command would find the run.
        _write_job(job, target)

    try:
        write_run(run, bundle, target)
        job = backend.submit(
            run, bundle, attempt=name, folder=target, record=record, say=terminal.progress
        )
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        if error.errno not in _DISK_FULL:
            raise
        raise _not_recorded(NotStarted, target, error, "nothing was started") from None
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    try:
        _write_job(job, target)
    except OSError as error:
        failure: type[AcceptError] = NotStarted
        outcome = "the run was ended"
        try:
            backend.delete(job, dry_run=False, say=terminal.progress)
        except AcceptError as unconfirmed:
            failure, outcome = Interrupted, f"the run may go on: {unconfirmed.message}"
        shutil.rmtree(target, ignore_errors=True)
        raise _not_recorded(failure, target, error, outcome) from None
    return job, target


#: Errors of a disk without space, also for one user.
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def _not_recorded(
    failure: type[AcceptError], folder: Path, error: OSError, outcome: str
) -> AcceptError:
    return failure(
        f"cannot write to {folder}: {error.strerror}; {outcome}",
        code=Code.RUN_NOT_RECORDED,
        hint="free space on that disk, or set ACCEPT_RUNS to another folder",
    )


def _write_job(job: Job, folder: Path) -> None:
    write(folder / rundir.JOB, json.dumps(dump(job), indent=1) + "\n")


def finish(
    job: Job,
    folder: Path,
    terminal: Terminal,
    *,
    detach: bool = True,
    max_bad: int = 0,
    restart: bool = False,
) -> Judged:
    """Follow a started run to its end, fetch its evidence, judge it and write the reports.

    With `detach`, the user may let the run continue after Ctrl-C. `max_bad` is the number of bad
    nodes with which the user accepts the run. With `restart`, a run that loses the host of its
    coordinator starts again once on the others.
    """
    interrupted: Interrupted | None = None
    try:
        follow(job, folder, terminal, detach=detach)
    except FirstHostLost as error:
        interrupted = error
        terminal.progress(str(error))
        if restart and (again := start_again(job, folder, error, terminal)):
            return finish(*again, terminal, detach=detach, max_bad=max_bad)
    except Interrupted as error:
        terminal.progress(str(error))
        interrupted = error
    except NotStarted:
        cancel(job, folder, terminal)
        raise
    judged = settle(job, folder, terminal, interrupted=interrupted, max_bad=max_bad)
    write_page(judged, terminal)
    return judged


def settle(
    job: Job, folder: Path, terminal: Terminal, *, interrupted: Interrupted | None, max_bad: int = 0
) -> Judged:
    """Fetch the evidence of a run that has ended, and judge it.

    Without evidence, it raises `interrupted`, the reason why the run ended early, if it is given.
    """
    try:
        _fetch_evidence(job, folder, terminal)
    except NoEvidence as error:
        raise interrupted or error from None
    return with_max_bad(judge_path(str(folder), expect=()), max_bad)


def send_results(judged: Judged, terminal: Terminal) -> None:
    """Send evidence and report.html of a run to the site's results.

    Call it after the verdict was shown: a place that does not answer takes minutes.
    """
    if judged.folder is None:
        return
    folder = judged.folder.parent
    job = backends.load_job(folder)
    report = folder / rundir.REPORT
    location = _send_evidence(job, folder, terminal)
    if not location or not report.is_file():
        return
    if error := bucket.send(report, location, attempt=job.attempt, partial=True):
        terminal.progress(f"report.html was not sent to {location}: {error}")


def run_to_verdict(
    run: Resolved,
    bundle: Bundle,
    terminal: Terminal,
    *,
    name: str,
    within: Path,
    max_bad: int = 0,
) -> Judged:
    """Do one run of several in the folder `within`, judge it, and remove it from the cluster."""
    job, folder = start(run, bundle, terminal, name=name, within=within)
    try:
        judged = finish(job, folder, terminal, detach=False, max_bad=max_bad)
        send_results(judged, terminal)
    except AcceptError:
        with suppress(AcceptError):
            cancel(job, folder, terminal)
        raise
    if job.on_cluster:
        backends.load(job.backend).delete(job, dry_run=False, say=terminal.progress)
    return judged


def start_again(
    job: Job, folder: Path, lost: FirstHostLost, terminal: Terminal
) -> tuple[Job, Path] | None:
    """Start a run again on the hosts that are left; return as `start`, or None if it may not.

    It continues after the finished steps if the hosts see their evidence, else from the first step.
    """
    run = read_run(folder)
    if not lost.others or run.plan.require_all_nodes:
        return None
    earlier = ""
    finished = 0
    try:
        evidence = collect(folder, terminal)
        records = resume.finished(evidence, run.plan)
        finished = len(resume.finished_steps(records, run.plan, resume.begun(evidence)))
        earlier = str(evidence.resolve()) if finished and lost.resumes else ""
    except AcceptError as error:
        terminal.progress(f"nothing of {job.attempt} was kept: {error.message}")
    try:
        backends.load(job.backend).delete(job, dry_run=False, say=terminal.progress)
    except AcceptError as error:
        # Hosts that do not answer, such as the lost one.
        terminal.progress(error.message)
    first, *more = lost.lost
    if earlier:
        where = f"and kept {count(finished, 'finished step')} of {len(run.plan.steps)}"
    else:
        repeated = f"; {count(finished, 'finished step')} repeated" if finished else ""
        where = f"from step 1 of {len(run.plan.steps)}{repeated}"
    message = (
        f"{first} was lost while it ran the coordinator of {job.attempt}, so the run started "
        f"again without it, {where}"
    )
    terminal.progress(message)
    messages = {first: message, **{host: f"{host} was lost in {job.attempt}" for host in more}}
    problems = tuple(
        Problem(cause=Cause.UNREACHABLE_TIMEOUT, message=text, check="hosts", host=host)
        for host, text in messages.items()
    )
    hosts = tuple(host for host in run.hosts or lost.others if host not in messages)
    run = replace(run, hosts=hosts, lost=problems, earlier=earlier)
    bundle = load_bundle(folder / rundir.RENDERED, run.plan)
    return start(run, bundle, terminal, name=new_name())


def follow(job: Job, folder: Path, terminal: Terminal, *, detach: bool = True) -> None:
    """Show the progress of a run until it ends, without its verdict.

    On a terminal that is a view that stays in place, elsewhere or with -v the run's log. Ctrl-C
    cancels the run, or asks to with `detach`. SIGTERM cancels it.
    """
    view = _view(folder, detach=detach) if terminal.is_live else None
    shows_log = view is None or terminal.verbose
    hidden = False
    backend = backends.load(job.backend)
    try:
        with terminal.showing(view) as end_view:

            def log(line: str) -> None:
                nonlocal hidden, shows_log
                if event := parse_event(line):
                    if view is not None:
                        view.update(event)
                    if event.event is EventKind.VERDICT:
                        end_view()
                        hidden, shows_log = True, True
                    return
                hidden = hidden or line.startswith(PACKED_BEGIN)
                if shows_log and not hidden:
                    terminal.log(line)
                if line.startswith((PACKED_END, reports.VERDICT_LINE)):
                    hidden = False

            backend.watch(job, folder=folder, say=terminal.progress, log=log)
    except KeyboardInterrupt as interrupt:
        if detach and not isinstance(interrupt, Terminated) and _wants_to_detach():
            terminal.progress(
                f"detached; the run continues: accept watch {job.attempt}, "
                f"or accept cancel {job.attempt}"
            )
            raise
        _cancel_interrupted(job, folder, terminal)
        raise


def _cancel_interrupted(job: Job, folder: Path, terminal: Terminal) -> None:
    """Cancel a run after Ctrl-C or SIGTERM. Only another Ctrl-C stops that."""
    # CI systems send SIGTERM a few seconds after SIGINT.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        cancel(job, folder, terminal)
    except KeyboardInterrupt:
        terminal.progress(f"the run may go on; to end it: accept cancel {job.attempt}")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _view(folder: Path, *, detach: bool) -> RunView | None:
    """Return the view of a run; None if its folder has no plan."""
    try:
        run = read_run(folder)
    except BadInput:
        return None
    plan = planned(run)
    nodes = [] if plan.nodes is None else [count(plan.nodes, "node")]
    hours = f", {plan.gpu_hours:.3g} GPU-h" if plan.gpu_hours else ""
    title = ["accept", plan.machine, plan.suite, *nodes, f"about {duration(plan.seconds)}{hours}"]
    title += ["Ctrl-C detaches or cancels"] if detach else []
    return RunView(title=[plain(part, 60) for part in title], steps=run.plan.steps)


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
    _fetch_evidence(job, folder, terminal)
    _send_evidence(job, folder, terminal)
    return target


def _fetch_evidence(job: Job, folder: Path, terminal: Terminal) -> None:
    """Fetch the evidence of a run, unless it is here and complete."""
    # A command that follows the run and one that cancels it may collect at the same time.
    with rundir.held(folder):
        is_here = _is_collected(folder)
        if is_here and backends.load_job(folder).evidence:
            return
        try:
            if not is_here:
                backends.load(job.backend).collect(job, folder=folder, say=terminal.progress)
            # Also if the command that fetched it was ended before this.
            _keep_hash(job, folder, terminal)
        except OSError as failed:
            if failed.errno not in _DISK_FULL:
                raise
            raise BadEvidence(
                f"cannot write to {folder}: {failed.strerror}",
                code=Code.ARCHIVE_DISK,
                hint=f"free space on that disk, then: accept collect {job.attempt}",
            ) from None


def _send_evidence(job: Job, folder: Path, terminal: Terminal) -> str:
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
        _write_job(replace(job, evidence=verified.hash), folder)


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


def _is_collected(folder: Path) -> bool:
    """Return True if the run folder holds all evidence, and not only what a log showed."""
    return (folder / rundir.EVIDENCE).is_dir() and not (folder / rundir.FROM_LOG).is_file()


def _ended_by_itself(evidence: Path) -> bool:
    """Return True if the coordinator formed a verdict, and the run was not cancelled."""
    try:
        return read_verdict(evidence).interruption != CANCELLED
    except AcceptError:
        return False


def do_submit(options: Options, terminal: Terminal, *, folder: str | None, dry_run: bool) -> int:
    """Render and start a run, or start the rendered run in `folder`."""
    job = _submit(options, terminal, folder=folder, dry_run=dry_run)
    if job is not None:
        terminal.result(job, job.attempt)
        terminal.suggest(f"accept watch {job.attempt}")
    return Exit.PASS


def _submit(
    options: Options,
    terminal: Terminal,
    *,
    folder: str | None,
    dry_run: bool,
    resumed: str | None = None,
) -> Job | None:
    kept: tuple[str, ...] = ()
    if resumed is not None:
        earlier = rundir.find_own(resumed)
        collect(earlier, terminal)
        run, bundle, kept = prepare_resumed(
            options, terminal, folder=earlier, before=read_run(earlier)
        )
    elif folder is not None:
        rendered = rundir.find(folder)
        run = read_run(rendered)
        bundle = load_bundle(rendered / rundir.RENDERED, run.plan)
        run = replace(run, place=run.place.override(options.place))
    else:
        run, bundle = prepare(options, terminal)
    plan = planned(run, kept)
    for step in run.plan.steps:
        shown = ", ".join(f"{key} {value}" for key, value in step.params.items())
        terminal.detail(f"{step.id}: {shown or 'no parameters'}; at most {duration(step.timeout)}")
    if dry_run:
        if rehearsal := backends.load(run.backend).rehearse(run):
            terminal.progress(rehearsal)
        terminal.result(plan, plan_text(plan))
        return None
    tell_plan(plan, terminal)
    job, target = start(run, bundle, terminal, name=options.attempt or new_name())
    terminal.progress(f"started {job.attempt}; all files: {target}")
    return job


def do_watch(name: str, terminal: Terminal) -> int:
    """Follow a run to its end, then collect and judge it, as `run` does."""
    folder = rundir.find_own(name)
    if (folder / rundir.EVIDENCE).is_dir():
        terminal.progress(f"{folder.name} has ended and was collected")
        return do_judge((str(folder),), terminal)
    job = backends.load_job(folder)
    return _show_end(job, finish(job, folder, terminal), terminal)


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
    if _is_collected(folder):
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


def do_run(
    options: Options,
    terminal: Terminal,
    *,
    dry_run: bool,
    max_bad: int = 0,
    resumed: str | None = None,
) -> int:
    """Render, start, follow, collect and judge a run; return the verdict's exit code.

    `resumed` names an earlier run whose finished steps count.
    """
    job = _submit(options, terminal, folder=None, dry_run=dry_run, resumed=resumed)
    if job is None:
        return Exit.PASS
    folder = rundir.find(job.attempt)
    judged = finish(job, folder, terminal, max_bad=max_bad, restart=True)
    return _show_end(job, judged, terminal)


def _show_end(job: Job, judged: Judged, terminal: Terminal) -> int:
    """Show the verdict of a run that has ended, and send its results; return the exit code."""
    terminal.result(judged.verdict, screen(judged, terminal))
    terminal.progress(f"evidence: {judged.folder}")
    send_results(judged, terminal)
    show_removal(job, judged.verdict.attempt, terminal)
    return judged.verdict.exit


def show_removal(job: Job, attempt: str, terminal: Terminal) -> None:
    """Show how to remove a run that has ended from its cluster, which keeps its objects."""
    if job.on_cluster:
        terminal.progress(f"to remove it from the cluster: accept clean {attempt}")


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
            "name the runs to remove, or give their age, but not both",
            code=Code.RUN_WHICH,
            hint="accept clean NAME …, or accept clean --older-than 24h",
        )
    folders = [rundir.find_own(name) for name in names] or _older(older_than or 0.0)
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
    limit = datetime.now(UTC) - timedelta(seconds=seconds)
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
