"""A Kubernetes cluster: a JobSet or a plain Job, installed by helm and followed by its API."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from accept.backends import Job, Say
from accept.backends.kubernetes import (
    api,
    capacity,
    fetch,
    follow,
    install,
    look,
    needs,
    nodes,
    remove,
)
from accept.core.errors import NotStarted
from accept.probe import Need
from accept.render import Bundle
from accept.resolve import Resolved
from accept.rundir import VALUES
from accept.spec import Site
from accept.spec.kubernetes import RESULTS


def detect(hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
    """The machine whose nodes the cluster has."""
    with api.before_start():
        return nodes.machine_of(api.Api(nodes.place_of(place, site)))


def named(attempt: str, place: dict[str, str]) -> str:
    """The run's full name, which is also its attempt's."""
    return install.named(attempt, place.get("release", "")).full


def submit(run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
    """Install the run; refused where the cluster has too few nodes for it now."""
    release = run.place.get("release", "")
    own = attempt.removeprefix(f"{release}-") if release else attempt
    name = install.named(own, release)
    install.check_name(name, run.plan.nodes or 1)
    with api.before_start():
        client = api.Api(nodes.place_of(run.place, run.site))
        client.get("/version")
        if short := _shortage(client, run, say):
            raise NotStarted(
                short, hint="accept doctor shows every node; accept nodes the free ones"
            )
        jobset = look.makes_jobset(client, run.site.kubernetes.controller)
        install.install(client, name, folder / VALUES, say=say)
    place = client.place
    return Job(
        schema=1,
        backend="kubernetes",
        attempt=name.full,
        hosts=run.hosts,
        # The host name of its pod.
        first=f"{name.full}-w-0-0" if jobset else f"{name.full}-0",
        folder=follow.FOLDER,
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
        place={
            "context": place.context,
            "kubeconfig": place.kubeconfig,
            "namespace": place.namespace,
            "release": name.release,
            "results": run.site.results.location or (RESULTS if run.site.results.volume else ""),
        },
    )


def _shortage(client: api.Api, run: Resolved, say: Say) -> str:
    """Why too few nodes can take the run now; empty: enough can, or it is said who brings them."""
    wanted = nodes.wanted_of(run)
    try:
        found = nodes.fits_of(client, wanted)
    except api.ApiError as error:
        if error.status != 403:
            raise
        say("free nodes are not counted: this user may not list nodes and pods of the cluster")
        return ""
    short = capacity.shortage(found, run.plan.nodes or 1, wanted)
    if short and (why := nodes.to_come(run.site, wanted)):
        say(f"{short}; {why}")
        return ""
    return short


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Follow the run: why pods wait, then what the coordinator says; returns its exit code."""
    return follow.follow(job, folder=folder, say=say)


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch evidence, logs and what the cluster says, and release index 0."""
    return fetch.fetch(job, folder=folder, say=say)


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the run; the coordinator keeps its evidence until it is collected."""
    remove.cancel(job, folder=folder, say=say)


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the release and what carries the run's label."""
    return remove.delete(job, dry_run=dry_run, say=say)


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """What the cluster has for this run, and what it lacks."""
    return needs.needs(run, say=say)
