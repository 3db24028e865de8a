"""Measure within a time limit: a run that is late ends, and what it measured is judged."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from accept.backends.job import Job
from accept.backends.protocol import FirstHostLost
from accept.commands.judge import Judged
from accept.commands.prepare import prepare
from accept.commands.run import follow, new_name, settle, start, start_again
from accept.core.error_codes import Code
from accept.core.errors import Interrupted, NoEvidence, NotStarted, Terminated
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


def measure(
    prepared: Callable[[], tuple[Resolved, Bundle]], terminal: Terminal, *, limit: float
) -> Ended:
    """Prepare a run, start it, follow it and judge it; after `limit` seconds it is cancelled."""
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
    except Interrupted as error:
        if started is None:
            raise
        interrupted = error
    if started is None:
        return Ended(is_late=True)
    job, folder = started
    try:
        judged = settle(job, folder, terminal, interrupted=interrupted)
    except NoEvidence:
        if not is_late:
            raise
        return Ended(job=job, is_late=True)
    return Ended(job=job, judged=judged, is_late=is_late)


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
