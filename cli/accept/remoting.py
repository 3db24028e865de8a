"""How the workstation reaches hosts: the user's own ssh, with the user's own configuration."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from accept.core.errors import NotStarted
from accept.spec import Site

T = TypeVar("T")

#: Connections at once.
_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a command on a host left. `exit` is 255 where ssh itself failed, None past its time."""

    exit: int | None
    out: bytes
    err: str


def ssh_options(site: Site) -> tuple[str, ...]:
    """Options of every ssh call: what the site file says, over the user's own configuration."""
    options: list[str] = []
    if config := os.environ.get("ACCEPT_SSH_CONFIG"):
        options += ["-F", config]
    for option in (
        "BatchMode=yes",
        "ConnectTimeout=10",
        "ServerAliveInterval=10",
        "ServerAliveCountMax=3",
    ):
        options += ["-o", option]
    if site.ssh.user:
        options += ["-l", site.ssh.user]
    if site.ssh.port:
        options += ["-p", str(site.ssh.port)]
    if site.ssh.jump_host:
        options += ["-J", site.ssh.jump_host]
    return tuple(options)


def call(
    options: Iterable[str], host: str, command: str, *, stdin: bytes = b"", timeout: float
) -> Reply:
    """Run an sh command on a host, whatever the user's login shell there is."""
    argv = ["ssh", *options, "--", host, f"exec /bin/sh -c {_quoted(command)}"]
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, check=False)
    except FileNotFoundError:
        raise NotStarted("there is no ssh here", hint="install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        return Reply(exit=None, out=b"", err=f"no answer within {timeout:.0f} s")
    return Reply(exit=done.returncode, out=done.stdout, err=done.stderr.decode(errors="replace"))


def _quoted(command: str) -> str:
    """Single quotes, which sh, csh and fish read alike; a quote inside ends and reopens them."""
    return "'" + command.replace("'", "'\\''") + "'"


def on_all(hosts: Iterable[str], action: Callable[[str], T]) -> Mapping[str, T]:
    """`action` on all hosts at once; results by host, in the hosts' order."""
    names = list(hosts)
    if not names:
        return {}
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        return dict(zip(names, pool.map(action, names), strict=True))


def last_line(text: str) -> str:
    """What a command said last, in 300 characters, for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no answer"
