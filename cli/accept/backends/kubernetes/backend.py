"""Run on a Kubernetes cluster: install a JobSet or a Job with helm, and follow it by the API."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from accept.backends.job import Job, RunPlace
from accept.backends.kubernetes import nodes as cluster_nodes
from accept.backends.kubernetes.client import Api, ApiError, before_start, resolve_place
from accept.backends.kubernetes.collect import collect
from accept.backends.kubernetes.delete import cancel, delete
from accept.backends.kubernetes.doctor import doctor
from accept.backends.kubernetes.submit import check_run_name, install_release, run_name
from accept.backends.kubernetes.watch import FOLDER, watch
from accept.backends.protocol import Phase, Progress, Say
from accept.config import Site
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.evidence.rundir import VALUES
from accept.plan.bundle import Bundle
from accept.plan.resolve import ClusterPlace, Resolved

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


def detect(hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
    """Return the machine of the cluster's nodes, from their labels. Raises NotStarted."""
    with before_start():
        return cluster_nodes.detect_machine(Api(resolve_place(place, site)))


def attempt_name(attempt: str, place: ClusterPlace, nodes: int) -> str:
    """Return the full name of the run, which is also that of its attempt. Raises BadInput."""
    name = run_name(attempt, place.release or "")
    check_run_name(name, nodes)
    return name.full


def check_job(job: Job, folder: Path) -> None:
    """Accept any job: its values name objects of a cluster, and are checked when they are used."""


def progress(job: Job, *, folder: Path) -> Progress:
    """Return that the run was submitted: only the cluster knows more."""
    return Progress(phase=Phase.SUBMITTED)


def submit(run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
    """Install the run. Raises NotStarted if the cluster certainly has too few free nodes."""
    release = run.place.release or ""
    own = attempt.removeprefix(f"{release}-") if release else attempt
    name = run_name(own, release)
    check_run_name(name, run.plan.nodes or 1)
    with before_start():
        api = Api(resolve_place(run.place, run.site))
        api.version()
        if short := _shortage(api, run, say):
            raise NotStarted(
                short,
                code=Code.KUBE_NODES_TOO_FEW,
                hint="accept doctor shows every node; accept nodes lists the free ones",
            )
        controller = install_release(api, name, folder / VALUES, say=say)
    place = api.place
    return Job(
        schema=1,
        backend="kubernetes",
        attempt=name.full,
        hosts=run.hosts,
        # The host name of the pod of index 0.
        first=f"{controller.environment.get('ACCEPT_HOST_PREFIX', '')}0",
        folder=FOLDER,
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
        place=RunPlace(
            kubeconfig=place.kubeconfig,
            context=place.context,
            namespace=place.namespace,
            release=name.release,
            results=controller.environment.get("ACCEPT_RESULTS", ""),
        ),
    )


def _shortage(api: Api, run: Resolved, say: Say) -> str:
    """Return why too few nodes are free for the run.

    Return an empty text if enough are free, or if that is not certain.
    """
    wanted = cluster_nodes.pod_request(run.pod, run.site.kubernetes)
    try:
        found = cluster_nodes.query_fits(api, wanted)
    except ApiError as error:
        if error.status != 403:
            raise
        say("free nodes are not counted: this user may not list nodes and pods of the cluster")
        return ""
    short = cluster_nodes.shortage(found, run.plan.nodes or 1, wanted)
    if short and (why := cluster_nodes.expected_nodes(run.site)):
        say(f"{short}; {why}")
        return ""
    return short
