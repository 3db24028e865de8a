"""A Kubernetes cluster: a JobSet or a plain Job, installed by helm and followed by its API."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from accept.backends.job import Job
from accept.backends.kubernetes import scheduling, status
from accept.backends.kubernetes.client import Api, ApiError, before_start
from accept.backends.kubernetes.collect import collect
from accept.backends.kubernetes.delete import cancel, delete
from accept.backends.kubernetes.doctor import doctor
from accept.backends.kubernetes.submit import check_name, install_release, release_names
from accept.backends.kubernetes.watch import FOLDER, watch
from accept.backends.protocol import Phase, Progress, Say
from accept.config import Site
from accept.config.kubernetes import RESULTS
from accept.core.errors import NotStarted
from accept.evidence.rundir import VALUES
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved

__all__ = [
    "attempt_name",
    "cancel",
    "check_job",
    "collect",
    "delete",
    "detect",
    "doctor",
    "progress",
    "submit",
    "watch",
]


def detect(hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
    """Return the machine of the cluster's nodes, from their labels. Raises NotStarted."""
    with before_start():
        return scheduling.machine_of(Api(scheduling.place_of(place, site)))


def attempt_name(attempt: str, place: dict[str, str], nodes: int) -> str:
    """Return the full name of the run, which is also that of its attempt. Raises BadInput."""
    name = release_names(attempt, place.get("release", ""))
    check_name(name, nodes)
    return name.full


def check_job(job: Job, folder: Path) -> None:
    """Accept any job: its values name objects of a cluster, and are checked when they are used."""


def progress(job: Job, *, folder: Path) -> Progress:
    """Return that the run was submitted: only the cluster knows more."""
    return Progress(phase=Phase.SUBMITTED)


def submit(run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
    """Install the run. Raises NotStarted if the cluster has too few nodes for it now."""
    release = run.place.get("release", "")
    own = attempt.removeprefix(f"{release}-") if release else attempt
    name = release_names(own, release)
    check_name(name, run.plan.nodes or 1)
    with before_start():
        api = Api(scheduling.place_of(run.place, run.site))
        api.get("/version")
        if short := _shortage(api, run, say):
            raise NotStarted(
                short, hint="accept doctor shows every node; accept nodes the free ones"
            )
        jobset = status.makes_jobset(api, run.site.kubernetes.controller)
        install_release(api, name, folder / VALUES, say=say)
    place = api.place
    return Job(
        schema=1,
        backend="kubernetes",
        attempt=name.full,
        hosts=run.hosts,
        # The host name of its pod.
        first=f"{name.full}-w-0-0" if jobset else f"{name.full}-0",
        folder=FOLDER,
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
        place={
            "context": place.context,
            "kubeconfig": place.kubeconfig,
            "namespace": place.namespace,
            "release": name.release,
            "results": run.site.results.location or (RESULTS if run.site.results.volume else ""),
        },
    )


def _shortage(api: Api, run: Resolved, say: Say) -> str:
    """Return why too few nodes can take the run now.

    Return an empty text if enough can, or if something will bring more nodes.
    """
    wanted = scheduling.wanted_of(run)
    try:
        found = scheduling.fits_of(api, wanted)
    except ApiError as error:
        if error.status != 403:
            raise
        say("free nodes are not counted: this user may not list nodes and pods of the cluster")
        return ""
    short = scheduling.shortage(found, run.plan.nodes or 1, wanted)
    if short and (why := scheduling.to_come(run.site, wanted)):
        say(f"{short}; {why}")
        return ""
    return short
