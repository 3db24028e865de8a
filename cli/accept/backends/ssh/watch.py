"""Follow a run on its first host, over connections that may fail."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from accept.backends import manage
from accept.backends.job import Job
from accept.backends.protocol import FirstHostLost, Say
from accept.backends.remote import Reach, call
from accept.backends.requirements import SECONDS
from accept.backends.ssh.client import reach_of
from accept.core.error_codes import Code
from accept.core.errors import Interrupted
from accept.core.text import decimal, duration

#: Seconds without an answer of the first host until the others are asked if they have lost the
#: coordinator, and between two such questions. They notice its loss within a minute (sshd.sh), and
#: a network may be away for a minute without the run being lost.
_ASK_OTHERS_SECONDS, _ASK_AGAIN_SECONDS = 80.0, 30.0
#: Seconds without an answer of the first host until the run is no longer followed.
_GIVE_UP_SECONDS = 600.0
#: Prints the age of the host's first process, which a container has, too: the seconds since the
#: machine was started, when the process was started after that, in ticks, and ticks per second.
_AGE = """sed 's/ .*//' /proc/uptime; sed 's/.*) //' /proc/1/stat | cut -d ' ' -f 20
getconf CLK_TCK"""


def watch(job: Job, *, folder: Path, say: Say, log: Say) -> int:
    """Print the console until the run has ended, and return its exit status.

    Raises FirstHostLost if the first host does not answer or was restarted, and the others have
    lost the coordinator; Interrupted if it may run on, or if the run was removed.
    """
    if not job.first:
        raise Interrupted(
            f"the start of {job.attempt} was not confirmed: it goes on, or was interrupted",
            code=Code.RUN_GONE,
            hint=f"remove what it left on the hosts: accept cancel {job.attempt}",
        )
    reach = reach_of(job.ssh_access)
    console, failures, ask_after = manage.Console(log), 0, _ASK_OTHERS_SECONDS
    while True:
        answered = console.answered
        how = console.follow(reach, job.first, job.folder)
        if how is not None:
            if how in ("dead", "gone") and _has_restarted(reach, job):
                _raise_if_lost(reach, job, f"{job.first}, which ran the coordinator, restarted")
            return _status(job, how)
        if console.answered > answered:
            failures, ask_after = 0, _ASK_OTHERS_SECONDS
        failures += 1
        silent = round(time.monotonic() - console.answered)
        if silent > ask_after:
            ask_after = silent + _ASK_AGAIN_SECONDS
            _raise_if_lost(
                reach,
                job,
                f"{job.first}, on which the coordinator was, has not answered for "
                f"{duration(silent)}",
            )
        if silent > _GIVE_UP_SECONDS:
            raise Interrupted(
                f"{job.first} has not answered for {duration(silent)}; the run may go on there",
                code=Code.SSH_NO_ANSWER,
                hint=f"try later: accept watch {job.attempt}",
            )
        if failures == 2:
            say(f"no connection to {job.first}; the run may go on there; reconnecting")
        time.sleep(min(5.0, failures))


def _has_restarted(reach: Reach, job: Job) -> bool:
    """Return True if the first host was started after the run was submitted."""
    reply = call(reach, job.first, _AGE, timeout=SECONDS)
    try:
        uptime, ticks, per_second = map(float, reply.out.split())
        since = datetime.now(UTC) - datetime.fromisoformat(job.submitted)
    except (ValueError, TypeError):
        return False
    return per_second > 0 and uptime - ticks / per_second < since.total_seconds()


def _raise_if_lost(reach: Reach, job: Job, message: str) -> None:
    """Raise FirstHostLost if the other hosts have lost the coordinator, too."""
    hosts = [host for host in job.hosts if host != job.first]
    if others := manage.without_coordinator(reach, hosts, job.folder):
        raise FirstHostLost(
            message,
            code=Code.SSH_FIRST_HOST_LOST,
            lost=(job.first,),
            others=others,
            hint="run again without it",
        )


def _status(job: Job, how: str) -> int:
    """Return the exit status of a run that ended. Raises Interrupted if it has none."""
    status = decimal(how)
    if status is not None:
        return status
    if how == "dead":
        raise Interrupted(
            f"the coordinator of {job.attempt} was killed, or {job.first} was restarted",
            code=Code.RUN_COORDINATOR_DIED,
            hint=f"what was measured: accept collect {job.attempt}",
        )
    if how == "foreign":
        raise Interrupted(
            f"{job.first}: {job.folder} belongs to another user",
            code=Code.SSH_FOREIGN_FOLDER,
            hint="the run's own folder is gone; run again",
        )
    raise Interrupted(
        f"{job.attempt} is no longer on {job.first}",
        code=Code.RUN_GONE,
        hint="it was removed by a command, or after its retention time",
    )
