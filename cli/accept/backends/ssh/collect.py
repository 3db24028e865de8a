"""Fetch the evidence of a run from its first host."""

from __future__ import annotations

from pathlib import Path

from accept.backends import manage
from accept.backends.job import Job
from accept.backends.protocol import Say
from accept.backends.ssh.client import reach_of
from accept.core.error_codes import Code
from accept.core.errors import NoEvidence


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
