"""Call launchers/manage.sh on hosts: follow a run, fetch its evidence, end and remove it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import lru_cache
from shlex import quote

from accept.backends.ssh.client import Reply, call, last_line, on_all, stream
from accept.config import resources
from accept.core.text import plain

#: Exit codes of manage.sh.
STILL_RUNNING, NO_EVIDENCE, LEFT, NOT_OURS = 3, 4, 5, 6
#: Timeout of one call. A guard may need a minute, and ending a run without a guard another minute.
_SECONDS = 180.0
#: Timeout of `offer`, which may have to pack the evidence, and reads the archive for its digest.
_OFFER_SECONDS = 900.0
#: A connection without data for this many seconds is closed and made again.
_STALL_SECONDS = 60.0


@lru_cache(maxsize=1)
def _script() -> bytes:
    return (resources.launchers() / "manage.sh").read_bytes()


def _command(verb: str, folder: str, at: int = 0) -> str:
    return f"exec /bin/sh -s -- {verb} {quote(folder)} {at}"


def offer(options: Iterable[str], host: str, folder: str) -> Reply:
    """Ask a host for the size and the SHA-256 of the evidence archive."""
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

    Return what is left, or may be left, by host; empty if all hosts confirmed the removal.
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
