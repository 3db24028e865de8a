"""Call launchers/manage.sh on hosts: follow a run, fetch its evidence, end and remove it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from shlex import quote

from accept.backends.job import Job
from accept.backends.protocol import Say, still_running
from accept.backends.remote import Reach, Reply, call, last_line, stream
from accept.config import resources
from accept.core.bounded import on_all
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, NoEvidence
from accept.core.text import byte_count, decimal, plain
from accept.evidence.archive import Announced, download, unpack_evidence
from accept.evidence.rundir import EVIDENCE

#: Exit codes of manage.sh.
STILL_RUNNING, NO_EVIDENCE, LEFT, NOT_OURS = 3, 4, 5, 6
#: Timeout of one call. A guard may take a minute, and ending a run without a guard another minute.
_SECONDS = 180.0
#: Timeout of `offer`, which may have to pack the evidence, and reads the archive for its digest.
_OFFER_SECONDS = 900.0
#: A connection without data for this many seconds is closed and made again.
_STALL_SECONDS = 60.0
_ENDED = b"\x1eended "
#: Mark that `follow` prints every 5 s, even in the middle of a line.
_HEARTBEAT = b"\x1e\n"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@lru_cache(maxsize=1)
def _script() -> bytes:
    return (resources.launchers() / "manage.sh").read_bytes()


def _command(verb: str, folder: str, at: int = 0) -> str:
    return f"exec /bin/sh -s -- {verb} {quote(folder)} {at}"


def offer(reach: Reach, host: str, folder: str) -> Reply:
    """Ask a host for the size and the SHA-256 of the evidence archive."""
    command = _command("offer", folder)
    return call(reach, host, command, stdin=_script(), timeout=_OFFER_SECONDS)


def send(reach: Reach, host: str, folder: str, at: int) -> Generator[bytes, None, None]:
    """Yield the evidence archive from byte `at` on. Raises ConnectionError."""
    command = _command("send", folder, at)
    return stream(reach, host, command, stdin=_script(), stall_seconds=_STALL_SECONDS)


def _follow(reach: Reach, host: str, folder: str, at: int) -> Generator[bytes, None, None]:
    """Yield the console from byte `at` on, then how the run ended. Raises ConnectionError."""
    command = _command("follow", folder, at)
    return stream(reach, host, command, stdin=_script(), stall_seconds=reach.silent_seconds)


#: Maximum length of a line of the console, and of the mark of its end, in bytes.
_MAX_LINE, _MAX_END = 64 << 10, 256


class Console:
    """The console of a run, which is printed over connections that may fail."""

    def __init__(self, log: Say) -> None:
        self._log = log
        #: Number of bytes that were printed.
        self.seen = 0
        #: When the host sent something last, also a heartbeat, on the monotonic clock.
        self.answered = time.monotonic()

    def follow(self, reach: Reach, host: str, folder: str) -> str | None:
        """Print the rest; return how the run ended, or None if the connection failed."""
        rest = b""
        with (
            suppress(ConnectionError),
            closing(_follow(reach, host, folder, self.seen)) as chunks,
        ):
            for chunk in chunks:
                self.answered = time.monotonic()
                *lines, rest = (rest + chunk).replace(_HEARTBEAT, b"").split(b"\n")
                for line in lines:
                    text, ended, how = line.partition(_ENDED)
                    if text or not ended:
                        self._log(text.decode(errors="replace"))
                    if ended:
                        return how.decode(errors="replace")
                    self.seen += len(line) + 1
                if len(rest) > _MAX_LINE:
                    # Without an end in sight, the line is printed in parts.
                    part, rest = rest[:-_MAX_END], rest[-_MAX_END:]
                    self._log(part.decode(errors="replace"))
                    self.seen += len(part)
        return None

    def show(self, content: bytes) -> None:
        """Print the rest of the console, whose full content was fetched."""
        for line in content[self.seen :].splitlines():
            self._log(line.decode(errors="replace"))
        self.seen = max(self.seen, len(content))


def without_coordinator(reach: Reach, hosts: Sequence[str], folder: str) -> tuple[str, ...]:
    """Return the reachable hosts if at least half of them have lost the coordinator, else none.

    Ranks of a step connect hosts to each other, so some hosts may seem to have a coordinator.
    """
    command = _command("abandoned", folder)
    replies = on_all(hosts, lambda h: call(reach, h, command, stdin=_script(), timeout=_SECONDS))
    answered = [host for host, reply in replies.items() if reply.exit in (0, STILL_RUNNING)]
    abandoned = [host for host in answered if replies[host].exit == 0]
    return tuple(answered) if abandoned and 2 * len(abandoned) >= len(answered) else ()


def end(
    reach: Reach, hosts: Iterable[str], folder: str, *, keep_evidence: bool = False
) -> Mapping[str, str]:
    """End a run on hosts and remove its folder there, or keep its evidence.

    Return what is left, or may be left, by host; empty if all hosts confirmed the removal.
    """
    command = _command("stop" if keep_evidence else "remove", folder)
    replies = on_all(hosts, lambda h: call(reach, h, command, stdin=_script(), timeout=_SECONDS))
    return {host: _left(reply) for host, reply in replies.items() if reply.exit != 0}


def _left(reply: Reply) -> str:
    if reply.exit in (LEFT, NOT_OURS):
        lines = reply.text.splitlines()
        left = [
            plain(line.removeprefix("left "), 200) for line in lines if line.startswith("left ")
        ]
        return f"left: {', '.join(left[:4])}"
    return f"no answer: {last_line(reply.errors)}"


def fetch(reach: Reach, job: Job, host: str, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence archive from a host, verify and unpack it, and return its folder."""
    target = folder / EVIDENCE
    source = f"the archive from {host}"
    announced = _announced(job, host, offer(reach, host, job.folder))
    # A download that was interrupted is resumed by the next one.
    part = folder / f".evidence-{announced.digest[:16]}.part"
    for other in folder.glob(".evidence-*.part"):
        if other != part:
            other.unlink()

    def read_from(at: int, sink: Callable[[bytes], None]) -> None:
        with closing(send(reach, host, job.folder, at)) as chunks:
            for chunk in chunks:
                sink(chunk)

    say(f"fetching {byte_count(announced.size)} of evidence from {host}")
    download(read_from, part, announced, source=source, say=say)
    unpack_evidence(part, target, source=source)
    part.unlink()
    return target


def _announced(job: Job, host: str, reply: Reply) -> Announced:
    """Parse a host's announcement. Raises an AcceptError if it has no evidence to send."""
    if reply.exit == STILL_RUNNING:
        raise still_running(job)
    if reply.exit == NO_EVIDENCE:
        raise NoEvidence(
            f"{host} has no evidence of {job.attempt}",
            code=Code.RUN_GONE,
            hint="it may have been removed because its retention time is over; run again",
        )
    if reply.exit == NOT_OURS:
        raise NoEvidence(
            f"{host}: {job.folder} belongs to another user",
            code=Code.SSH_FOREIGN_FOLDER,
            hint="the run's own folder is gone; run again",
        )
    size, _, digest = reply.text.strip().partition(" ")
    count = decimal(size)
    if reply.exit != 0 or count is None or not _SHA256.fullmatch(digest):
        raise BadEvidence(
            f"{host} cannot send the evidence of {job.attempt}: {last_line(reply.errors)}",
            code=Code.SSH_EVIDENCE_UNREADABLE,
            hint=f"check that the host answers: ssh {host}; then collect again",
        )
    return Announced(size=count, digest=digest)
