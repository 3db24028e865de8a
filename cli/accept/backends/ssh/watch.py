"""Follow a run on its first host, over connections that may fail."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from pathlib import Path

from accept.backends.job import Job
from accept.backends.protocol import Say
from accept.backends.ssh import manage
from accept.core.error_codes import Code
from accept.core.errors import Interrupted
from accept.core.text import decimal

_ENDED = b"\x1eended "
#: Maximum number of successive connections without output.
_MAX_FAILURES = 60


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Print the console until the run has ended, and return its exit status.

    Raises Interrupted if the run was removed, or if its host has not answered for minutes.
    """
    options = job.ssh_access.options()
    seen, failures = 0, 0
    while True:
        rest = b""
        with (
            suppress(ConnectionError),
            closing(manage.follow(options, job.first, job.folder, seen)) as chunks,
        ):
            for chunk in chunks:
                failures = 0
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    text, ended, how = line.partition(_ENDED)
                    if text or not ended:
                        say(text.decode(errors="replace"))
                    if ended:
                        return _status(job, how.decode(errors="replace"))
                    seen += len(line) + 1
        failures += 1
        if failures > _MAX_FAILURES:
            raise Interrupted(
                f"{job.first} has not answered for several minutes; the run goes on there",
                code=Code.SSH_NO_ANSWER,
                hint=f"try later: accept watch {job.attempt}",
            )
        if failures == 2:
            say(f"no connection to {job.first}; the run goes on there; reconnecting")
        time.sleep(min(5.0, failures))


def _status(job: Job, how: str) -> int:
    """Return the exit status of a run that ended. Raises Interrupted if it has none."""
    status = decimal(how)
    if status is not None:
        return status
    if how == "dead":
        raise Interrupted(
            f"the coordinator of {job.attempt} was killed, or {job.first} was restarted",
            code=Code.RUN_COORDINATOR_DIED,
            hint=f"accept collect {job.attempt} fetches what was measured",
        )
    if how == "foreign":
        raise Interrupted(
            f"{job.first}: {job.folder} belongs to another user",
            code=Code.SSH_FOREIGN_FOLDER,
            hint="the run's own folder is gone; run again",
        )
    raise Interrupted(
        f"{job.attempt} is no longer on {job.first}",
        code=Code.RUN_GONE,
        hint="it was removed by a command, or after its retention time",
    )
