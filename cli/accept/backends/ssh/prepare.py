"""Prepare the hosts of a run: copy its files to each, and start its own sshd there."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from accept.backends.job import Job
from accept.backends.keys import new_keys
from accept.backends.protocol import Say
from accept.backends.requirements import SECONDS
from accept.backends.ssh.client import Reply, call, last_line, on_all
from accept.core import causes
from accept.core.causes import Cause
from accept.core.model import Problem
from accept.core.runner.discovery import ssh_cause
from accept.core.runner.ssh import HOST_KEY_ALIAS
from accept.core.text import count
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved

#: A port, or a part of a version.
_NUMBER = re.compile(r"\d{1,5}", re.ASCII)
#: Seconds that a guard waits after all planned times, while the coordinator judges and packs.
_SLACK = 300.0


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A host on which the run's own sshd listens."""

    name: str
    port: int
    addresses: tuple[str, ...]
    #: Version of Python; empty if there is none.
    python: tuple[int, ...]
    #: Programs that use GPUs.
    busy: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A host that cannot take part."""

    problem: Problem
    #: True if a try may have created files there.
    has_files: bool


def make_ready(
    run: Resolved, bundle: Bundle, job: Job, *, until: float, say: Say
) -> Mapping[str, Ready | Absent]:
    """Prepare all hosts in parallel, and retry until `until` (a time of time.monotonic).

    Return a result for each host. Raises NotStarted if this machine cannot make a key.
    """
    keys = new_keys("ed25519", HOST_KEY_ALIAS)
    secrets = {
        "key": keys.private,
        "authorized_keys": f"restrict,pty {keys.public}".encode(),
        "known_hosts": f"{HOST_KEY_ALIAS} {keys.public}".encode(),
        "run": f"{job.attempt}\n".encode(),
    }
    options = job.ssh_access.options()
    plan = run.plan
    life = int(plan.start_seconds + plan.deadline_seconds + plan.hold_seconds + _SLACK)
    command = set_up(job.folder, life, int(plan.keep_seconds), gpus=plan.machine.gpus != 0)
    say(f"preparing {count(len(run.hosts), 'host')}")

    def prepare(host: str) -> Ready | Absent:
        archive = bundle.archive({**secrets, "host": f"{host}\n".encode()})
        is_announced = has_files = False
        while True:
            reply = call(
                options,
                host,
                command.replace("@HOST@", quote(host)),
                stdin=archive,
                timeout=SECONDS,
            )
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

    return on_all(run.hosts, prepare)


def set_up(folder: str, life: int, keep: int, *, gpus: bool = False) -> str:
    """Return the sh line that unpacks its stdin and prepares the host.

    With `gpus`, a host that shows no NVIDIA GPU is refused. The caller replaces @HOST@ with the
    host's name.

    If the folder exists and is this host's, it is from an earlier try whose connection failed, and
    is removed. If it is another host's, the two share a file system and would overwrite each other.
    """
    d = quote(folder)
    return (
        f'umask 077; if [ -e {d} ]; then if [ "$(cat {d}/host 2>/dev/null)" = @HOST@ ]; then '
        f"[ ! -p {d}/events ] || echo remove 1<>{d}/events; n=200; "
        f"while [ -e {d} ] && [ $n -gt 0 ]; do n=$((n - 1)); sleep 0.1; done; rm -rf {d}; else "
        f"echo problem launch-failed {d} exists already: do hosts share it'?' "
        "Set tools.scratch to a local disk; "
        f"exit 1; fi; fi; mkdir {d} && cd {d} || exit 1; "
        f"tar xf - || {{ cd /; rm -rf {d}; exit 1; }}; "
        f"exec /bin/sh ./bootstrap_host.sh {life} {keep}{' gpus' * gpus}"
    )


def understood(host: str, reply: Reply) -> Ready | Problem:
    """Parse the reply to `set_up`, which is untrusted text."""
    values: dict[str, list[str]] = {}
    for line in reply.out.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    port = _NUMBER.fullmatch(values.get("port", [""])[0])
    if reply.exit == 0 and "ready" in values and port and 0 < int(port[0]) < 1 << 16:
        python = values.get("python", [""])[0].split(".")
        return Ready(
            name=host,
            port=int(port[0]),
            addresses=tuple(dict.fromkeys(values.get("address", ()))),
            python=tuple(int(p) for p in python if _NUMBER.fullmatch(p)),
            busy=tuple(values.get("busy", ())),
        )
    if "problem" in values:
        text, _, message = values["problem"][0].partition(" ")
        cause, message = causes.reported(text, message)
    elif "no space left" in reply.err.lower():
        cause, message = Cause.DISK_FULL, last_line(reply.err)
    elif reply.exit in (255, None):
        cause, message = ssh_cause(reply.err), last_line(reply.err)
    else:
        cause, message = (
            Cause.LAUNCH_FAILED,
            last_line(reply.err) or f"it could not be prepared: exit {reply.exit}",
        )
    return Problem(cause=cause, message=f"{host}: {message}", check="hosts", host=host)
