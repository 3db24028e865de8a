"""Run on a Kubernetes cluster: install a JobSet or a Job with helm, and follow it by the API."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from accept.backends import Job, Say
from accept.backends.kubernetes import client as kubernetes_client
from accept.backends.kubernetes import collect as kubernetes_collect
from accept.backends.kubernetes import delete as kubernetes_delete
from accept.backends.kubernetes import doctor as kubernetes_doctor
from accept.backends.kubernetes import scheduling, status
from accept.backends.kubernetes import scheduling as kubernetes_scheduling
from accept.backends.kubernetes import submit as kubernetes_submit
from accept.backends.kubernetes import watch as kubernetes_watch
from accept.backends.requirements import Need
from accept.config import Site
from accept.config.kubernetes import RESULTS
from accept.core.errors import NotStarted
from accept.evidence.rundir import VALUES
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved


def detect(hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
    """Return the machine type of the cluster's nodes."""
    with kubernetes_client.before_start():
        return kubernetes_scheduling.detect_machine(
            kubernetes_client.Api(kubernetes_scheduling.resolve_place(place, site))
        )


def named(attempt: str, place: dict[str, str]) -> str:
    """Return the full name of the run, which is also the name of its attempt."""
    return kubernetes_submit.attempt_name(attempt, place.get("release", "")).full


def submit(run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
    """Install the run. Raises NotStarted if the cluster has too few nodes for it now."""
    release = run.place.get("release", "")
    own = attempt.removeprefix(f"{release}-") if release else attempt
    name = kubernetes_submit.attempt_name(own, release)
    kubernetes_submit.check_run_name(name, run.plan.nodes or 1)
    with kubernetes_client.before_start():
        client = kubernetes_client.Api(kubernetes_scheduling.resolve_place(run.place, run.site))
        client.get("/version")
        if short := _shortage(client, run, say):
            raise NotStarted(
                short, hint="accept doctor shows every node; accept nodes the free ones"
            )
        jobset = status.makes_jobset(client, run.site.kubernetes.controller)
        kubernetes_submit.install_release(client, name, folder / VALUES, say=say)
    place = client.place
    return Job(
        schema=1,
        backend="kubernetes",
        attempt=name.full,
        hosts=run.hosts,
        # The host name of the pod.
        first=f"{name.full}-w-0-0" if jobset else f"{name.full}-0",
        folder=kubernetes_watch.FOLDER,
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
        place={
            "context": place.context,
            "kubeconfig": place.kubeconfig,
            "namespace": place.namespace,
            "release": name.release,
            "results": run.site.results.location or (RESULTS if run.site.results.volume else ""),
        },
    )


def _shortage(client: kubernetes_client.Api, run: Resolved, say: Say) -> str:
    """Return why too few nodes can take the run now.

    Empty if enough can, and also if something adds nodes later, which is then reported.
    """
    wanted = kubernetes_scheduling.request_of_run(run)
    try:
        found = kubernetes_scheduling.query_fits(client, wanted)
    except kubernetes_client.ApiError as error:
        if error.status != 403:
            raise
        say("free nodes are not counted: this user may not list nodes and pods of the cluster")
        return ""
    short = scheduling.shortage(found, run.plan.nodes or 1, wanted)
    if short and (why := kubernetes_scheduling.expected_nodes(run.site, wanted)):
        say(f"{short}; {why}")
        return ""
    return short


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Report why pods wait, then the coordinator's log; return the coordinator's exit code."""
    return kubernetes_watch.watch(job, folder=folder, say=say)


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence, the logs and the cluster's objects, and let index 0 end."""
    return kubernetes_collect.collect(job, folder=folder, say=say)


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the run; the coordinator keeps its evidence until it is collected."""
    kubernetes_delete.cancel(job, folder=folder, say=say)


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the release and everything with the run's label."""
    return kubernetes_delete.delete(job, dry_run=dry_run, say=say)


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """Return what this run needs of the cluster, and whether the cluster has it."""
    return kubernetes_doctor.doctor(run, say=say)
