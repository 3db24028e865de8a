"""Load back ends by name, and the job of a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from accept.backends import local
from accept.backends.job import Job
from accept.backends.kubernetes import backend as kubernetes_backend
from accept.backends.kubernetes import cluster as kubernetes_cluster
from accept.backends.protocol import Backend, Cluster, NodeList, Phase, Progress, Surveyor
from accept.backends.slurm import backend as slurm_backend
from accept.backends.ssh import backend as ssh_backend
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.safe_read import read_whole
from accept.core.serde import escaped, known, read
from accept.evidence import rundir

T = TypeVar("T")

BACKENDS: Final[Mapping[str, Backend]] = {
    "kubernetes": kubernetes_backend,
    "local": local,
    "slurm": slurm_backend,
    "ssh": ssh_backend,
}

#: The back ends that can list nodes: for `--nodes all`, and the user's own allocation.
NODE_LISTS: Final[Mapping[str, NodeList]] = {
    "kubernetes": kubernetes_cluster,
    "slurm": slurm_backend,
}

#: The back ends that can write a first site file.
SURVEYORS: Final[Mapping[str, Surveyor]] = {
    "kubernetes": kubernetes_cluster,
    "slurm": slurm_backend,
    "ssh": ssh_backend,
}

#: The back end that can also print permissions.
CLUSTER: Final[Cluster] = kubernetes_cluster


def load(name: str) -> Backend:
    """Return the back end called `name`. Raises BadInput."""
    return _find(name, BACKENDS)


def load_surveyor(name: str) -> Surveyor:
    """Return the back end called `name` if it can write a site file. Raises BadInput."""
    return _find(name, SURVEYORS)


def _find(name: str, among: Mapping[str, T]) -> T:
    if name not in among:
        shown = escaped(name)
        absent = f"there is no back end {shown!r}"
        raise BadInput(
            f"back end {shown!r} needs no site file" if name in BACKENDS else absent,
            code=Code.OPTION_BACKEND,
            hint=known(name, among),
        )
    return among[name]


def load_job(folder: Path) -> Job:
    """Return the job of a run folder.

    Raises BadInput if the run was never submitted, or if the job uses another folder here.
    """
    path = folder / rundir.JOB
    try:
        job = read(Job, json.loads(read_whole(path)))
    except FileNotFoundError:
        raise rundir.not_started(folder) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}", code=Code.RUN_UNREADABLE, hint="name another run"
        ) from None
    load(job.backend).check_job(job, folder)
    return job


def known_job(folder: Path) -> Job | None:
    """Return the job of a run folder; None if the folder has none that can be used."""
    try:
        return load_job(folder)
    except BadInput:
        return None


def progress_of(folder: Path) -> Progress:
    """Return how far the run of a run folder is, without contacting another machine."""
    job = known_job(folder)
    if job is None:
        return Progress(phase=Phase.SUBMITTED)
    return load(job.backend).progress(job, folder=folder)
