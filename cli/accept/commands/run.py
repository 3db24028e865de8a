"""Start runs, follow them to their end, and judge them: `accept run`, `submit` and `watch`."""

from __future__ import annotations

import secrets
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from accept import backends
from accept.backends.job import Job
from accept.backends.protocol import FirstHostLost
from accept.commands.collect import (
    cancel,
    collect,
    fetch_evidence,
    send_evidence,
    write_job,
)
from accept.commands.judge import do_judge
from accept.commands.judged import Judged, judge_path, with_max_bad
from accept.commands.order import read_run
from accept.commands.plan import plan_text, planned, prepare, tell_plan, write_run
from accept.commands.report import screen, write_page
from accept.commands.resume import prepare_resumed
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import (
    AcceptError,
    BadInput,
    Exit,
    Interrupted,
    NoEvidence,
    NotStarted,
    Terminated,
)
from accept.core.evidence import PACKED_BEGIN, PACKED_END
from accept.core.records import Problem
from accept.core.report import text as reports
from accept.core.runner import resume
from accept.core.runner.events import EventKind, parse_event
from accept.core.text import count, duration, plain
from accept.evidence import bucket, rundir
from accept.evidence.archive import DISK_ERRORS
from accept.plan.bundle import Bundle, load_bundle
from accept.plan.resolve import Options, Resolved
from accept.report.console import Terminal
from accept.report.live import RunView


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
    submitted = datetime.now(UTC).isoformat(timespec="seconds")

    def record(job: Job) -> None:
        # Before anything is started: without job.json no later command would find the run.
        write_job(replace(job, submitted=submitted), target)

    try:
        write_run(run, bundle, target)
        job = backend.submit(
            run, bundle, attempt=name, folder=target, record=record, say=terminal.progress
        )
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        if error.errno not in DISK_ERRORS:
            raise
        raise _not_recorded(NotStarted, target, error, "nothing was started") from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            terminal.progress(f"interrupted: {name} was not started")
        shutil.rmtree(target, ignore_errors=True)
        raise
    job = replace(job, submitted=submitted)
    try:
        write_job(job, target)
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


def _not_recorded(
    failure: type[AcceptError], folder: Path, error: OSError, outcome: str
) -> AcceptError:
    return failure(
        f"cannot write to {folder}: {error.strerror}; {outcome}",
        code=Code.RUN_NOT_RECORDED,
        hint="free space on that disk, or set ACCEPT_RUNS to another folder",
    )


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
    except Interrupted as error:
        interrupted = error
        terminal.progress(error.message)
        lost = error if restart and isinstance(error, FirstHostLost) else None
        if lost and (again := start_again(job, folder, lost, terminal)):
            return finish(*again, terminal, detach=detach, max_bad=max_bad)
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
        fetch_evidence(job, folder, terminal)
    except AcceptError as error:
        if interrupted is None:
            raise
        if not isinstance(error, NoEvidence):
            terminal.progress(f"no evidence was fetched: {error}")
        raise interrupted from None
    return with_max_bad(judge_path(str(folder)), max_bad)


def send_results(judged: Judged, terminal: Terminal) -> None:
    """Send evidence and report.html of a run to the site's results.

    Call it after the verdict was shown: a place that does not answer takes minutes.
    """
    if judged.folder is None:
        return
    folder = judged.folder.parent
    job = backends.load_job(folder)
    report = folder / rundir.REPORT
    location = send_evidence(job, folder, terminal)
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
        with _interruptible(), terminal.showing(view) as end_view:

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


#: Seconds after which a signal interrupts again.
_INSIST_SECONDS = 1.0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block, also if their exception is lost.

    Python discards an exception that a signal raises while it finalizes a file, such as the answer
    of an API. So it is raised again until the block ends.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        def insist(*_: object) -> None:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

        signal.signal(signal.SIGALRM, insist)
        signal.setitimer(signal.ITIMER_REAL, _INSIST_SECONDS, _INSIST_SECONDS)
        if callable(handler := before[signal.Signals(number)]):
            handler(number, frame)

    before = {
        number: signal.signal(number, handle)
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            # After SIGTERM it stays the one that ignores another.
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


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
