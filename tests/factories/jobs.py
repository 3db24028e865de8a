"""Run folders of runs that were started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accept.backends.job import Job
from accept.core.evidence import write
from accept.core.serde import dump
from accept.evidence import rundir


def job_of(folder: Path, /, **changes: Any) -> Job:
    """Return the job of a run on this machine, or with other values of its fields."""
    own: dict[str, Any] = {
        "schema": 1,
        "backend": "local",
        "attempt": folder.name,
        "hosts": ("h1",),
        "first": "",
        "folder": str(folder / "node"),
    }
    return Job(**own | changes)


def over_ssh(folder: Path, /, **changes: Any) -> Job:
    """Return the job of a run on the host h1."""
    own = {"backend": "ssh", "first": "h1", "folder": f"/tmp/accept-{folder.name}"}
    return job_of(folder, **own | changes)


def submitted(folder: Path, job: Job | None = None) -> Path:
    """Make the folder of a run that was started, by default on this machine, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / rundir.JOB, json.dumps(dump(job or job_of(folder))))
    return folder
