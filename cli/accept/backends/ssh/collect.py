"""Fetch the evidence of a run from its first host."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from accept.backends.job import Job
from accept.backends.protocol import Say
from accept.backends.ssh import manage
from accept.backends.ssh.client import Reply, last_line
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, Interrupted, NoEvidence
from accept.core.text import decimal
from accept.evidence.archive import Announced, download, unpack_evidence

_SHA256 = re.compile(r"[0-9a-f]{64}")


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence archive from the first host, verify it, and remove the run there."""
    target = folder / "evidence"
    options = job.ssh_access.options()
    source = f"the archive from {job.first}"
    announced = _announced(job, manage.offer(options, job.first, job.folder))
    # A download that was interrupted is resumed by the next one.
    part = folder / f".evidence-{announced.digest[:16]}.part"
    for other in folder.glob(".evidence-*.part"):
        if other != part:
            other.unlink()

    def read_from(at: int, sink: Callable[[bytes], None]) -> None:
        with closing(manage.send(options, job.first, job.folder, at)) as chunks:
            for chunk in chunks:
                sink(chunk)

    say(f"fetching {announced.size / 1e6:.1f} MB of evidence from {job.first}")
    download(read_from, part, announced, source=source, say=say)
    unpack_evidence(part, target, source=source)
    part.unlink()
    # The coordinator has ended the run on the other hosts, except on those it could not reach.
    for host, leftovers in manage.end(options, job.hosts, job.folder).items():
        say(f"  {host}: {leftovers}; to remove it: accept delete {job.attempt}")
    return target


def _announced(job: Job, reply: Reply) -> Announced:
    """Return what the first host announces. Raises an AcceptError if it has no evidence to send."""
    if reply.exit == manage.STILL_RUNNING:
        raise Interrupted(
            f"{job.attempt} is still running",
            code=Code.RUN_STILL_RUNNING,
            hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
        )
    if reply.exit == manage.NO_EVIDENCE:
        raise NoEvidence(
            f"{job.first} has no evidence of {job.attempt}",
            code=Code.RUN_GONE,
            hint="it may have been removed because its retention time is over; run again",
        )
    if reply.exit == manage.NOT_OURS:
        raise NoEvidence(
            f"{job.first}: {job.folder} belongs to another user",
            code=Code.SSH_FOREIGN_FOLDER,
            hint="the run's own folder is gone; run again",
        )
    size, _, digest = reply.out.decode(errors="replace").strip().partition(" ")
    count = decimal(size)
    if reply.exit != 0 or count is None or not _SHA256.fullmatch(digest):
        raise BadEvidence(
            f"{job.first} cannot send the evidence of {job.attempt}: {last_line(reply.err)}",
            code=Code.SSH_EVIDENCE_UNREADABLE,
            hint=f"check that the host answers: ssh {job.first}; then collect again",
        )
    return Announced(size=count, digest=digest)
