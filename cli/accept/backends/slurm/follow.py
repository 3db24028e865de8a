"""Follow a Slurm job to its end, fetch its evidence, and end it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from accept.backends import manage, protocol
from accept.backends.job import Job, SlurmJob
from accept.backends.protocol import FirstHostLost, Phase, Progress, Say, still_running
from accept.backends.slurm.client import JobState, call, expand_nodes, job_state, reach_of
from accept.backends.slurm.submit import SHARED, step_name
from accept.core import evidence
from accept.core.bounded import wait_until
from accept.core.error_codes import Code
from accept.core.errors import Interrupted, NoEvidence, NotStarted
from accept.core.runner.slurm import ARCHIVE, JOB_LOG, NODE, STATUS
from accept.core.runner.slurm_step import Failure
from accept.core.text import decimal
from accept.evidence import bucket
from accept.evidence.archive import unpack_evidence
from accept.evidence.rundir import EVIDENCE

#: A file in the shared folder of a job that has ended without evidence.
GONE = "gone"
#: Seconds between two queries of a waiting job, and of one that runs or ends.
_WAIT_LOOK, _LOOK = 3.0, 1.0
#: A connection that lasts at least this many seconds was not refused.
_BROKEN_SECONDS = 10.0
#: Number of successive failures before they are reported. The last connection may fail because the
#: job ends.
_FAILURES = 4
#: Seconds for which the controller may not answer.
_SILENT_SECONDS = 600.0
#: Seconds for a job that was cancelled to end: the coordinator judges and packs first.
_END_SECONDS = 150.0
#: Seconds after a job's end for its files to appear here: file servers keep old lists of files.
_APPEAR_SECONDS = 30.0
#: Reasons to wait that do not go away by themselves (the list of job reason codes, man squeue).
_NEVER: Final = (
    *("JobHeldAdmin", "JobHeldUser", "PartitionDown", "PartitionInactive", "BadConstraints"),
    *("PartitionNodeLimit", "PartitionTimeLimit", "AccountNotAllowed", "QOSNotAllowed"),
    *("InvalidAccount", "InvalidQOS", "DependencyNeverSatisfied", "ReservationDeleted"),
)
#: How Slurm ends jobs: state -> error and what happened.
_ENDINGS: Final = {
    "TIMEOUT": (Code.SLURM_TIME_LIMIT, "reached its time limit"),
    "DEADLINE": (Code.SLURM_TIME_LIMIT, "reached its deadline"),
    "CANCELLED": (Code.SLURM_CANCELLED, "was cancelled"),
    "PREEMPTED": (Code.SLURM_PREEMPTED, "was preempted"),
    "NODE_FAIL": (Code.SLURM_NODE_LOST, "lost a node"),
    "BOOT_FAIL": (Code.SLURM_NODE_LOST, "lost a node, which did not boot"),
    "OUT_OF_MEMORY": (Code.SLURM_OUT_OF_MEMORY, "ran out of memory"),
}


def _slurm(job: Job) -> SlurmJob:
    assert job.slurm is not None
    return job.slurm


def _numbered(job: Job) -> Job:
    """Return the job with the number that Slurm knows by its name, if its start was interrupted."""
    if _slurm(job).id:
        return job
    words = ("--me", f"--name=accept-{job.attempt}", "--noheader", "--format=%i")
    found = decimal(call("squeue", *words).text.strip())
    return replace(job, slurm=SlurmJob(id=found)) if found else job


def _look(job: Job, say: Say) -> JobState:
    """Return the state of the job; wait if the controller does not answer.

    Raises Interrupted if it does not answer for minutes, and NotStarted if it cannot be asked.
    """
    until = time.monotonic() + _SILENT_SECONDS
    was_silent = False
    while True:
        try:
            return _state(job)
        except NotStarted as error:
            if error.code is not Code.SLURM_CONTROLLER:
                raise
            if time.monotonic() > until:
                raise Interrupted(
                    f"{error.message}; the run goes on without it",
                    code=error.code,
                    hint=f"later: accept watch {job.attempt}",
                ) from None
            if not was_silent:
                say("the controller of Slurm does not answer; the run goes on")
            was_silent = True
            time.sleep(_LOOK)


def _state(job: Job) -> JobState:
    """Return the state of the job, or of the run's step in the user's own allocation."""
    state = job_state(_slurm(job).id)
    has_ended = state.runs and _slurm(job).allocation and not _step_number(job)
    return JobState() if has_ended else state


def _first(job: Job, state: JobState) -> str:
    """Return the node of the coordinator."""
    return job.hosts[0] if _slurm(job).allocation else state.first


def watch(job: Job, *, folder: Path, say: Say, log: Say) -> int:
    """Print why the job waits, then its console until the run has ended; return its status."""
    job = _numbered(job)
    console, shown = manage.Console(log), ""
    runs, failures = False, 0
    shared = folder / SHARED
    while True:
        state = _look(job, say)
        if state.waits:
            before, shown = shown, _say_why_it_waits(job, state, shown, say)
            time.sleep(_LOOK if shown != before else _WAIT_LOOK)
            continue
        if state.ended:
            return _ended(job, state, shared, console)
        if state.state == "RUNNING" and _has_lost_first(job, state):
            _end_without_first(job, say)
            first, left = _first(job, state), expand_nodes(state.nodes)
            raise FirstHostLost(
                f"job {_slurm(job).id} lost {first}, on which the coordinator was",
                code=Code.SLURM_NODE_LOST,
                lost=(first, *(n for n in job.hosts if n not in left and n != first)),
                others=tuple(name for name in job.hosts or left if name in left),
                resumes=(shared / NODE).exists(),
                hint=f"run again without it: --exclude {first}",
            )
        first = _first(job, state)
        if not runs:
            say(f"job {_slurm(job).id} runs on {state.nodes}, the coordinator on {first}")
            runs = True
        began = time.monotonic()
        how = console.follow(reach_of(job), first, job.folder)
        # Before the start, and after the end, the folder of the run is missing.
        status = decimal(how) if how else None
        if status is not None:
            return status
        is_broken = how is None and time.monotonic() - began < _BROKEN_SECONDS
        failures = failures + 1 if is_broken else 0
        if failures == _FAILURES:
            say(f"no connection to {first}; the run goes on; reconnecting")
        time.sleep(_LOOK)


def _has_lost_first(job: Job, state: JobState) -> bool:
    """Return True if the job goes on without the node of its coordinator.

    Slurm then takes the node out of the job, which then has no batch script. It also takes out
    the nodes of a job that is completing, one by one.
    """
    return bool(state.nodes) and _first(job, state) not in expand_nodes(state.nodes)


def _end_without_first(job: Job, say: Say) -> None:
    """End the rest of a job that has lost the node of its coordinator."""
    say("the job has lost its first node, so the rest of it is ended")
    _end(job, say)


def _say_why_it_waits(job: Job, state: JobState, shown: str, say: Say) -> str:
    """Print why the job waits if that has changed. Raises NotStarted if it will never start."""
    number = _slurm(job).id
    if any(state.reason.startswith(reason) for reason in _NEVER):
        raise NotStarted(
            f"job {number} will not start: {state.reason}",
            code=Code.SLURM_NEVER_STARTS,
            hint=f"scontrol show job {number} shows the request",
        )
    if state.restarts or state.state.startswith("REQUEUE"):
        text = f"job {number} was requeued; its first attempt was interrupted"
    else:
        start = f", estimated start {state.start}" if state.start else ""
        text = f"job {number} waits: {state.reason or 'not scheduled yet'}{start}"
    if text != shown:
        say(text)
    return text


def _ended(job: Job, state: JobState, shared: Path, console: manage.Console) -> int:
    """Return the status of a run whose job has ended. Raises an error if it has none."""
    number = _slurm(job).id
    if (shared / NODE).exists():
        wait_until((shared / STATUS).exists, _APPEAR_SECONDS, _LOOK)
    console.show(_read(shared / evidence.CONSOLE))
    failure = _failure(shared, state)
    status = decimal(_read(shared / STATUS).decode(errors="replace").strip())
    code, text = _ENDINGS.get(state.state.split(" ")[0], (None, ""))
    # Slurm also uses this state if one task of many ran out of memory, which the verdict names.
    if code and not (code is Code.SLURM_OUT_OF_MEMORY and status is not None):
        raise Interrupted(
            f"job {number} {text}{f': {failure.message}' if failure else ''}",
            code=code,
            hint=_what_is_left(job, state, shared),
        )
    if status is None:
        status = state.exit if state.state in ("COMPLETED", "FAILED") else None
    if failure and not (shared / ARCHIVE).exists():
        raise NotStarted(
            f"job {number}: {failure.message}",
            code=failure.code,
            hint=f"the reason: accept show error {failure.code}",
        )
    if status is None:
        reason = state.state or "Slurm no longer knows it"
        raise Interrupted(
            f"job {number} has ended: {reason}",
            code=Code.SLURM_JOB_ENDED,
            hint=_what_is_left(job, state, shared),
        )
    return status


def _what_is_left(job: Job, state: JobState, shared: Path) -> str:
    """Return the advice on the evidence of a job that Slurm has ended."""
    if (shared / ARCHIVE).exists() or _finished(job, shared).is_dir():
        return f"what was measured: accept collect {job.attempt}"
    if state.first and not (shared / NODE).exists():
        return (
            "nothing of it is left, because its nodes did not see the folder of the run: set "
            "ACCEPT_RUNS to a folder that they see, and run again"
        )
    return "nothing was measured: run again"


def _finished(job: Job, shared: Path) -> Path:
    """Return the folder to which the coordinator sends each finished step."""
    return shared / "runs" / job.attempt


def progress(job: Job, *, folder: Path) -> Progress:
    """Return whether the start was confirmed, or the job has ended without evidence."""
    if (folder / SHARED / GONE).exists():
        return Progress(phase=Phase.GONE)
    return protocol.progress(job, folder=folder)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _failure(shared: Path, state: JobState) -> Failure | None:
    """Return why the run could not start, as the job has written it; None if it did."""
    lines = _read(shared / JOB_LOG).decode(errors="replace").splitlines()
    problems = [line.removeprefix("problem ") for line in lines if line.startswith("problem ")]
    line = problems[-1] if problems else state.comment.removeprefix("accept: ")
    return Failure.parse(line) if line else None


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence from the shared folder, or from the first node, and end the job there."""
    job = _numbered(job)
    shared, target = folder / SHARED, folder / EVIDENCE
    state = _look(job, say)
    if state.state == "RUNNING" and _has_lost_first(job, state):
        _end_without_first(job, say)
        state = _look(job, say)
    until = time.monotonic() + _END_SECONDS
    while not (shared / STATUS).exists() and state.runs and time.monotonic() < until:
        # Nodes that see the folder have written to it at the start.
        if not (shared / NODE).exists():
            reach = reach_of(job)
            first = _first(job, state)
            manage.fetch(reach, job, first, folder=folder, say=say)
            for host, left in manage.end(reach, (first,), job.folder).items():
                say(f"  {host}: {left}; to remove it: accept clean {job.attempt}")
            return target
        if not _ending(job, state):
            raise still_running(job)
        time.sleep(_LOOK)
        state = _look(job, say)
    if state.waits:
        raise NoEvidence(
            f"job {_slurm(job).id} has not started",
            code=Code.RUN_STILL_RUNNING,
            hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
        )
    if (shared / NODE).exists() and not _has_lost_first(job, state):
        wait_until((shared / STATUS).exists, _APPEAR_SECONDS, _LOOK)
    if (shared / ARCHIVE).exists():
        unpack_evidence(shared / ARCHIVE, target, source="the archive of the job")
    elif (sent := _finished(job, shared)).is_dir():
        # The evidence is complete if the job was lost during a hold.
        if not bucket.fetch(str(sent), target):
            say("the job ended before its evidence was complete: only finished steps were kept")
    else:
        failure = _failure(shared, state)
        if state.ended and shared.is_dir():
            evidence.write(shared / GONE, "")
        raise NoEvidence(
            f"job {_slurm(job).id} left no evidence{f': {failure.message}' if failure else ''}",
            code=Code.EVIDENCE_GONE,
            hint=f"see {shared / JOB_LOG}" if (shared / JOB_LOG).exists() else "run again",
        )
    return target


def _ending(job: Job, state: JobState) -> bool:
    """Return True if the coordinator has ended, so that the job soon ends, too."""
    reply = manage.offer(reach_of(job), _first(job, state), job.folder)
    return reply.exit != manage.STILL_RUNNING


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the run: the coordinator judges what was measured, and the job ends."""
    job = _numbered(job)
    state = _look(job, say)
    if state.ended:
        return
    if state.waits:
        say(f"cancel: job {_slurm(job).id} leaves the queue")
        _scancel(job)
    else:
        say("cancel: the coordinator ends what it started")
        _terminate(job)
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        time.sleep(_LOOK)
        state = _look(job, say)
        if state.ended or (folder / SHARED / STATUS).exists():
            return
        # Without a shared folder the job stays until its evidence is fetched.
        if state.runs and not (folder / SHARED / NODE).exists() and _ending(job, state):
            return
    _scancel(job)
    raise _stays(job, f"job {_slurm(job).id} does not end")


def _terminate(job: Job) -> None:
    """Send TERM to the program that runs the coordinator."""
    slurm = _slurm(job)
    if not slurm.allocation:
        call("scancel", "--batch", "--signal=TERM", str(slurm.id))
    elif number := _step_number(job):
        call("scancel", "--signal=TERM", number)


def _step_number(job: Job) -> str:
    """Return the number of the step of a run in an allocation, such as 7.2; empty if it ended."""
    answer = call("squeue", "--steps", f"--jobs={_slurm(job).id}", "--noheader", "--format=%i %j")
    lines = (line.split() for line in answer.text.splitlines())
    return next((words[0] for words in lines if words[1:] == [step_name(job.attempt)]), "")


def _scancel(job: Job) -> None:
    """End the job, or only the step of a run in the user's own allocation."""
    number = _step_number(job) if _slurm(job).allocation else str(_slurm(job).id)
    if number:
        call("scancel", number)


def _end(job: Job, say: Say) -> JobState:
    """End the job, and return its state when it has ended, or does not end."""
    _scancel(job)
    until = time.monotonic() + _END_SECONDS
    while not (state := _look(job, say)).ended and time.monotonic() < until:
        time.sleep(_LOOK)
    return state


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """End the job if it still exists, and wait until it is gone. Raises Interrupted if it stays."""
    job = _numbered(job)
    state = _look(job, say)
    if state.ended:
        return ()
    what = f"{'the step in ' if _slurm(job).allocation else ''}Slurm job {_slurm(job).id}"
    if dry_run:
        return (what,)
    state = _end(job, say)
    if not state.ended:
        raise _stays(job, f"{what} does not end on {', '.join(expand_nodes(state.nodes)[:8])}")
    return (what,)


def _stays(job: Job, message: str) -> Interrupted:
    hint = f"squeue -j {_slurm(job).id} shows its state"
    return Interrupted(message, code=Code.SLURM_JOB_ENDED, hint=hint)
