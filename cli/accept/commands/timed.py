"""Measure within a time limit: a run that is late ends, and what it measured is judged."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from accept import backends
from accept.backends.job import Job
from accept.backends.protocol import FirstHostLost
from accept.commands.collect import cancel
from accept.commands.judged import Judged
from accept.commands.plan import prepare
from accept.commands.report import not_written, write_verdict
from accept.commands.run import follow, new_name, settle, show_removal, start, start_again
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, Interrupted, NoEvidence, NotStarted, Terminated
from accept.plan.bundle import Bundle
from accept.plan.resolve import Options, Resolved
from accept.report.console import Terminal


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a run with a time limit."""

    #: None: it was late before it was started.
    job: Job | None = None
    #: None: it was late, and measured nothing.
    judged: Judged | None = None
    is_late: bool = False

    @property
    def on_cluster(self) -> bool:
        """Return True if the nodes were those of a cluster, with pods on them."""
        return self.job is not None and self.job.on_cluster


def measure(
    prepared: Callable[[], tuple[Resolved, Bundle]], terminal: Terminal, *, limit: float
) -> Ended:
    """Prepare a run, start it, follow it and judge it; after `limit` seconds it is cancelled.

    Nothing of it stays on a cluster, unless its evidence could not be fetched from there.
    """
    started: tuple[Job, Path] | None = None
    is_late = False
    interrupted: Interrupted | None = None
    try:
        with _time_limit(limit):
            started = start(*prepared(), terminal, name=new_name())
            try:
                follow(*started, terminal, detach=False)
            except FirstHostLost as error:
                terminal.progress(str(error))
                again = start_again(*started, error, terminal)
                if again is None:
                    raise
                started = again
                follow(*started, terminal, detach=False)
    except _TimeUp:
        is_late = True
    except NotStarted:
        if started is not None:
            cancel(*started, terminal)
        raise
    except Interrupted as error:
        if started is None:
            raise
        interrupted = error
    if started is None:
        return Ended(is_late=True)
    job, folder = started
    judged: Judged | None = None
    try:
        judged = settle(job, folder, terminal, interrupted=interrupted)
        _write(judged, terminal)
    except NoEvidence:
        _remove(job, terminal)
        if not is_late:
            raise
    except AcceptError:
        show_removal(job, job.attempt, terminal)
        raise
    _remove(job, terminal)
    return Ended(job=job, judged=judged, is_late=is_late)


def _write(judged: Judged, terminal: Terminal) -> None:
    """Write the verdict, which counts also if it cannot be written."""
    try:
        if judged.folder is not None:
            write_verdict(judged, judged.folder)
    except OSError as error:
        failure = not_written(error, judged.folder).message
        terminal.progress(f"the verdict was not written: {failure}")


def _remove(job: Job, terminal: Terminal) -> None:
    """Remove the objects of a run from its cluster, so that the nodes are free for a job."""
    if not job.on_cluster:
        return
    try:
        backends.load(job.backend).delete(job, dry_run=False, say=terminal.progress)
    except AcceptError as error:
        terminal.notice(f"not removed: {error.message}")
        show_removal(job, job.attempt, terminal)


def prepare_with_gpus(options: Options, terminal: Terminal) -> tuple[Resolved, Bundle]:
    """Return the run. Raises NotStarted without GPUs, unless the user names a machine."""
    run, bundle = prepare(options, terminal)
    if not options.machine and run.plan.machine.gpus == 0:
        raise NotStarted(
            "no NVIDIA GPU was found; to test without GPUs, give --machine cpu",
            code=Code.LOCAL_NO_GPU,
        )
    return run, bundle


class _TimeUp(Terminated):
    """Raised when the time limit has passed; the run is cancelled as after SIGTERM."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TimeUp in the body after some seconds."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
