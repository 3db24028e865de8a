"""Calls of launchers/manage.sh: what the workstation does with a run's folder after the start."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import lru_cache
from shlex import quote

from accept.backends.ssh.client import Reply, call, last_line, on_all, stream
from accept.config import resources
from accept.core.text import plain

#: Exit codes of manage.sh.
STILL_RUNNING, NO_EVIDENCE, LEFT, NOT_OURS = 3, 4, 5, 6
#: For one call, in seconds. A guard may need a minute, and ending a run without one as long again.
_SECONDS = 180.0
#: The evidence may be packed first, and is read once for its digest.
_OFFER_SECONDS = 900.0
#: A connection over which nothing comes for so long is made again, in seconds.
_STALL_SECONDS = 60.0


@lru_cache(maxsize=1)
def _script() -> bytes:
    return (resources.launchers() / "manage.sh").read_bytes()


def _command(verb: str, folder: str, at: int = 0) -> str:
    return f"exec /bin/sh -s -- {verb} {quote(folder)} {at}"


def offer(options: Iterable[str], host: str, folder: str) -> Reply:
    """Ask a host for size and SHA-256 of the evidence archive."""
    command = _command("offer", folder)
    return call(options, host, command, stdin=_script(), timeout=_OFFER_SECONDS)


def send(options: Iterable[str], host: str, folder: str, at: int) -> Generator[bytes, None, None]:
    """Yield the evidence archive from byte `at` on. Raises ConnectionError."""
    command = _command("send", folder, at)
    return stream(options, host, command, stdin=_script(), stall_seconds=_STALL_SECONDS)


def follow(options: Iterable[str], host: str, folder: str, at: int) -> Generator[bytes, None, None]:
    """Yield the console from byte `at` on, then how the run ended. Raises ConnectionError."""
    return stream(options, host, _command("follow", folder, at), stdin=_script())


def end(
    options: Iterable[str], hosts: Iterable[str], folder: str, *, keep_evidence: bool = False
) -> Mapping[str, str]:
    """End a run on hosts and remove its folder there, or keep its evidence.

    Returns what is left, or may be left, by host; empty if all hosts confirmed that nothing is.
    """
    options = tuple(options)
    command = _command("stop" if keep_evidence else "remove", folder)
    replies = on_all(hosts, lambda h: call(options, h, command, stdin=_script(), timeout=_SECONDS))
    return {host: _left(reply) for host, reply in replies.items() if reply.exit != 0}


def _left(reply: Reply) -> str:
    if reply.exit in (LEFT, NOT_OURS):
        lines = reply.out.decode(errors="replace").splitlines()
        left = [
            plain(line.removeprefix("left "), 200) for line in lines if line.startswith("left ")
        ]
        return f"left: {', '.join(left[:4])}"
    return f"no answer: {last_line(reply.err)}"
