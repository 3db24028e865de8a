"""Follow a run on hosts over connections that may fail, fetch its evidence, end and remove it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from shlex import quote

from accept.backends import manage
from accept.backends.job import Job
from accept.backends.protocol import FirstHostLost, Say
from accept.backends.remote import Reach, call
from accept.backends.requirements import SECONDS
from accept.backends.ssh.client import reach_of
from accept.core.bounded import on_all
from accept.core.error_codes import Code
from accept.core.errors import Interrupted, NoEvidence
from accept.core.text import count, decimal, duration, shortened

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
    except ValueError:
        return False
    since = time.time() - (job.began or inf)
    return per_second > 0 and uptime - ticks / per_second < since


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


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence archive from the first host, verify it, and remove the run there."""
    if not job.first:
        raise NoEvidence(
            f"the start of {job.attempt} was interrupted, so nothing was measured",
            code=Code.EVIDENCE_GONE,
            hint=f"remove what it left on the hosts: accept clean {job.attempt}",
        )
    reach = reach_of(job.ssh_access)
    target = manage.fetch(reach, job, job.first, folder=folder, say=say)
    # The coordinator has ended the run on the other hosts, except on those it could not reach.
    for host, leftovers in manage.end(reach, job.hosts, job.folder).items():
        say(f"  {host}: {leftovers}; to remove it: accept clean {job.attempt}")
    return target


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the run on the first host, keep its evidence there, and remove it from all others.

    Raises Interrupted if a host did not confirm it. If that is the first host, the others are not
    changed: a coordinator that still runs would record that they died.
    """
    if not job.first:
        # Nothing was measured: the command that started the run did not name a first host.
        delete(job, dry_run=False, say=say)
        return
    reach = reach_of(job.ssh_access)
    say("cancel: the coordinator ends what it started")
    for host, leftover in manage.end(reach, (job.first,), job.folder, keep_evidence=True).items():
        raise Interrupted(
            f"{host} did not confirm that {job.attempt} ended: {leftover}",
            code=Code.SSH_END_UNCONFIRMED,
            hint="the other hosts were not changed, and clean up by themselves; "
            f"to remove everything: accept clean {job.attempt}",
        )
    leftovers = manage.end(reach, (h for h in job.hosts if h != job.first), job.folder)
    _refuse_leftovers(
        job,
        leftovers,
        f"what was measured: accept collect {job.attempt}; then: accept clean {job.attempt}",
    )


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the run's folder from every host that still has it, and end its processes there.

    Raises Interrupted after that if a host did not confirm it.
    """
    reach = reach_of(job.ssh_access)
    d = quote(job.folder)
    replies = on_all(
        job.hosts, lambda h: call(reach, h, f"[ -e {d} ] || [ -L {d} ]", timeout=SECONDS)
    )
    # A host that does not answer may have the folder.
    hosts = [host for host, reply in replies.items() if reply.exit != 1]
    if silent := [host for host, reply in replies.items() if reply.exit not in (0, 1)]:
        say(f"no answer from {', '.join(silent)}; the watchdogs there remove the run later")
    if not dry_run:
        leftovers = manage.end(reach, hosts, job.folder)
        for host in hosts:
            if leftovers and host not in leftovers:
                say(f"removed {host}:{job.folder}")
        _refuse_leftovers(job, leftovers, f"accept clean {job.attempt} tries again")
    return tuple(f"{host}:{job.folder}{' (no answer)' if host in silent else ''}" for host in hosts)


def _refuse_leftovers(job: Job, leftovers: Mapping[str, str], hint: str) -> None:
    """Raise Interrupted if parts of a run are left on hosts, or may be. `leftovers` is by host."""
    if leftovers:
        shown = shortened([f"{host}: {text}" for host, text in leftovers.items()], 4, "; ")
        raise Interrupted(
            f"{job.attempt} is not removed from {len(leftovers)} of "
            f"{count(len(job.hosts), 'host')}: {shown}",
            code=Code.SSH_NOT_REMOVED,
            hint=hint,
        )
