"""Prepare a host for a run, over ssh or in a Slurm job, and parse what it prints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from shlex import quote

from accept.core import causes
from accept.core.by_key import by_key
from accept.core.causes import Cause
from accept.core.facts import POSITION
from accept.core.records import Problem
from accept.core.runner.discovery import Candidate
from accept.core.runner.ssh import HOST_KEY_ALIAS
from accept.core.text import plain

#: Format of a port, or of a part of a version.
_NUMBER = re.compile(r"\d{1,5}", re.ASCII)
#: Seconds that a watchdog waits after all planned times, while the coordinator judges and packs.
SLACK = 300.0


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
    #: The switches above it, from the outermost; empty if unknown.
    place: str = ""


def set_up(
    folder: str, life: int, keep: int, *, gpus: bool = False, script: str = "bootstrap_host.sh"
) -> str:
    """Return the sh line that unpacks its stdin and prepares the host with `script`.

    With `gpus`, a host that shows no NVIDIA GPU is refused. The caller replaces @HOST@ with the
    host's name.

    An existing folder of this host is left from an earlier try whose connection failed, so it is
    removed. A folder of another host is an error, because both hosts share a file system and would
    overwrite each other's files. A folder of another user is an error, too.
    """
    d = quote(folder)
    return (
        f"umask 077; if [ -e {d} ] || [ -L {d} ]; then if ! {{ {is_own(folder)}; }}; then "
        f"echo problem launch-failed {d} belongs to another user: give another --attempt; "
        f'exit 1; elif [ "$(cat {d}/host 2>/dev/null)" = @HOST@ ]; then '
        f"{remove(folder)}; else "
        f"echo problem launch-failed {d} exists already: do hosts share it'?' "
        "Set tools.scratch to a local disk; "
        f"exit 1; fi; fi; mkdir {d} && cd {d} || exit 1; "
        f"tar xf - || {{ cd /; rm -rf {d}; exit 1; }}; "
        f"exec /bin/sh ./{script} {life} {keep}{' gpus' * gpus}"
    )


def files_of(attempt: str, public: str, hosts: int) -> dict[str, bytes]:
    """Return the files, besides the private key, by which `hosts` hosts let in their own run.

    `public` is the run's public key. `logins` has how many clients may log in at the same time.
    """
    texts = {
        "authorized_keys": f"restrict,pty {public}",
        "known_hosts": f"{HOST_KEY_ALIAS} {public}",
        "run": f"{attempt}\n",
        "logins": f"{hosts + 16}\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def remove(folder: str) -> str:
    """Return the sh commands that end the run in `folder`, for at most 20 s, and remove it.

    The folder of another user is left alone.
    """
    d = quote(folder)
    return (
        f"if {is_own(folder)}; then [ ! -p {d}/events ] || echo remove 1<>{d}/events; n=200; "
        f"while [ -p {d}/events ] && [ $n -gt 0 ]; do n=$((n - 1)); sleep 0.1; done; rm -rf {d}; fi"
    )


def is_own(folder: str) -> str:
    """Return the sh condition that `folder` is a folder of this user, and not a link."""
    d = quote(folder)
    return f"[ -O {d} ] && [ -d {d} ] && [ ! -L {d} ]"


def understood(host: str, lines: Iterable[str]) -> Ready | Problem | None:
    """Parse the lines that `set_up` printed, which are untrusted.

    Return None if they show neither that the host is ready nor why it is not.
    """
    values = by_key((key, value) for key, _, value in (line.partition(" ") for line in lines))
    port = _NUMBER.fullmatch(values.get("port", [""])[0])
    place = POSITION.fullmatch(values.get("place", [""])[0])
    if "ready" in values and port and 0 < int(port[0]) < 1 << 16:
        python = values.get("python", [""])[0].split(".")
        return Ready(
            name=host,
            port=int(port[0]),
            addresses=tuple(dict.fromkeys(values.get("address", ()))),
            python=tuple(int(p) for p in python if _NUMBER.fullmatch(p)),
            busy=tuple(values.get("busy", ())),
            place=place[0] if place else "",
        )
    if "problem" in values:
        text, _, message = values["problem"][0].partition(" ")
        cause, message = causes.reported(text, message)
        return Problem(cause=cause, message=f"{host}: {message}", check="hosts", host=host)
    return None


def busy_gpus(results: Iterable[Ready | Problem]) -> str:
    """Return which GPUs of ready hosts are in use, and by what; empty if none is."""
    ready = [result for result in results if isinstance(result, Ready)]
    busy = [f"{host.name}: {text}" for host in ready for text in host.busy]
    return f"GPUs are in use: {plain('; '.join(busy[:4]), 400)}" if busy else ""


def candidate(name: str, result: Ready | Problem, own: str) -> Candidate:
    """Return a host as the coordinator on the host `own` looks for it."""
    if isinstance(result, Problem):
        return Candidate(name=name, problem=result)
    return Candidate(
        name=name,
        addresses=tuple(dict.fromkeys((name, *result.addresses))),
        port=result.port,
        local=name == own,
        place=result.place,
    )


def ended(host: str, errors: Iterable[str]) -> Problem:
    """Return why `set_up` has ended without a result, by its untrusted errors."""
    lines = [line for line in errors if line.strip()] or ["it could not be prepared"]
    full = next((line for line in lines if "no space left" in line.lower()), "")
    cause = Cause.DISK_FULL if full else Cause.LAUNCH_FAILED
    message = f"{host}: {plain(full or lines[-1], 300)}"
    return Problem(cause=cause, message=message, check="hosts", host=host)
