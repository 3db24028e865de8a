"""End a run on its hosts, and remove its remains there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from accept.backends import manage
from accept.backends.job import Job
from accept.backends.protocol import Say
from accept.backends.remote import call
from accept.backends.requirements import SECONDS
from accept.backends.ssh.client import reach_of
from accept.core.bounded import on_all
from accept.core.error_codes import Code
from accept.core.errors import Interrupted
from accept.core.text import count, shortened


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
