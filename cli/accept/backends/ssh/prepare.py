"""Prepare the hosts of a run: copy its files to each, and start its own sshd there."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from shlex import quote

from accept.backends.job import Job
from accept.backends.protocol import Say
from accept.backends.remote import Reply, call, last_line
from accept.backends.requirements import SECONDS, answers
from accept.backends.ssh.client import reach_of
from accept.core.bounded import on_all
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.records import Problem
from accept.core.runner import host_setup
from accept.core.runner.discovery import ssh_cause
from accept.core.runner.host_setup import SLACK, Ready, files_of, set_up
from accept.core.runner.keys import KeyPair
from accept.core.text import count
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved

#: Output of `print_machine`: boot ID, device and inode.
_MACHINE = re.compile(r"[0-9a-f-]{36} \d+:\d+", re.ASCII)
#: Advice about two hosts that are one machine.
NAME_ONCE = "name each machine once; containers of one machine need their own tools.scratch"


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A host that cannot take part."""

    problem: Problem
    #: True if an attempt may have created files there.
    has_files: bool


def print_machine(scratch: str) -> str:
    """Return the sh command that prints the kernel of this host and the identity of `scratch`.

    Hosts that print the same are one machine, or containers of one that share `scratch`; hosts that
    share it over a network have different kernels.
    """
    return (
        'echo machine "$(cat /proc/sys/kernel/random/boot_id)" '
        f'"$(stat -L -c %d:%i {quote(scratch)})" 2>/dev/null; '
    )


def same_machine(host: str, out: str, machines: dict[str, str]) -> str:
    """Return the other host that is the same machine, or "".

    `out` is what `print_machine` printed there, and `machines` has the first host of each machine.
    """
    machine = answers(out).get("machine", [""])[0]
    known = _MACHINE.fullmatch(machine)
    other = machines.setdefault(machine, host) if known else host
    return "" if other == host else other


def make_ready(
    run: Resolved, bundle: Bundle, job: Job, keys: KeyPair, *, until: float, say: Say
) -> Mapping[str, Ready | Absent]:
    """Prepare all hosts in parallel, and retry until `until` (a time of time.monotonic).

    Return a result for each host. `keys` are those of the run. Raises BadInput for two hosts that
    are one machine.
    """
    secrets = {"key": keys.private, **files_of(job.attempt, keys.public, len(run.hosts))}
    reach = reach_of(job.ssh_access)
    plan = run.plan
    life = int(plan.longest_seconds + SLACK)
    command = print_machine(run.site.tools.scratch)
    command += set_up(job.folder, life, int(plan.keep_seconds), gpus=plan.machine.gpus != 0)
    machines: dict[str, str] = {}
    say(f"preparing {count(len(run.hosts), 'host')}")

    def stop() -> None:
        nonlocal until
        until = 0.0

    def prepare(host: str) -> Ready | Absent:
        archive = bundle.archive({**secrets, "host": f"{host}\n".encode()})
        is_announced = has_files = False
        while True:
            reply = call(
                reach,
                host,
                command.replace("@HOST@", quote(host)),
                stdin=archive,
                timeout=max(SECONDS, plan.start_seconds) if run.site.container.image else SECONDS,
            )
            if other := same_machine(host, reply.text, machines):
                stop()
                names = " and ".join(sorted((host, other), key=run.hosts.index))
                message = f"{names} are the same machine"
                raise BadInput(message, code=Code.HOSTLIST_DUPLICATE, hint=NAME_ONCE)
            result = understood(host, reply)
            if isinstance(result, Ready):
                return result
            has_files = has_files or reply.began or not result.cause.row.no_login
            if result.cause.row.permanent or time.monotonic() > until:
                return Absent(problem=result, has_files=has_files)
            if not is_announced:
                say(f"  waiting for {result.message} ({result.cause})")
                is_announced = True
            time.sleep(1.0)

    return on_all(run.hosts, prepare, stop=stop)


def understood(host: str, reply: Reply) -> Ready | Problem:
    """Parse the reply to `set_up`, which is untrusted text."""
    result = host_setup.understood(host, reply.text.splitlines())
    if isinstance(result, Problem) or (result and reply.exit == 0):
        return result
    problem = host_setup.ended(host, reply.errors.splitlines())
    if problem.cause is Cause.DISK_FULL or reply.exit not in (255, None):
        return problem
    return replace(
        problem, cause=ssh_cause(reply.errors), message=f"{host}: {last_line(reply.errors)}"
    )
