"""Run on a Kubernetes cluster: install a JobSet or Job with helm, follow it through the API."""

from __future__ import annotations

import bz2
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from accept.backends.job import Job, RunPlace
from accept.backends.kubernetes import nodes as cluster_nodes
from accept.backends.kubernetes.client import Api, ApiError, before_start, resolve_place
from accept.backends.kubernetes.collect import collect as collect
from accept.backends.kubernetes.delete import cancel as cancel
from accept.backends.kubernetes.delete import delete as delete
from accept.backends.kubernetes.doctor import doctor as doctor
from accept.backends.kubernetes.nodes import Fit, Misfit, PodRequest
from accept.backends.kubernetes.objects import NODE, Node
from accept.backends.kubernetes.submit import check_run_name, install_release, run_name
from accept.backends.kubernetes.watch import FINISHED, FOLDER
from accept.backends.kubernetes.watch import watch as watch
from accept.backends.protocol import Record, Say
from accept.backends.protocol import check_job as check_job
from accept.backends.protocol import progress as progress
from accept.backends.protocol import rehearse as rehearse
from accept.backends.remote import Reach
from accept.config import Site
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.facts import position_of
from accept.core.runner.resume import pack_finished
from accept.core.text import command_line
from accept.evidence.rundir import VALUES
from accept.plan.bundle import Bundle
from accept.plan.helm_values import pack_positions
from accept.plan.resolve import ClusterPlace, Resolved

Listed = TypeVar("Listed")

#: Maximum size of the compressed positions of nodes: in base64, a ConfigMap has at most 1 MiB.
_MAX_POSITIONS = 750_000


def detect(hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
    """Return the machine of the cluster's nodes, from their labels. Raises NotStarted."""
    with before_start():
        return cluster_nodes.detect_machine(Api(resolve_place(place, site)))


def attempt_name(attempt: str, place: ClusterPlace, nodes: int) -> str:
    """Return the full name of the run, which is also that of its attempt. Raises BadInput."""
    name = run_name(attempt, place.release or "")
    check_run_name(name, nodes)
    return name.full


def reach(_job: Job, _run: Resolved) -> Reach:
    """Raise BadInput: the pods of a run are gone after its end."""
    raise BadInput(
        "a run on Kubernetes has no connection to its nodes after its end",
        code=Code.NODE_UNREACHABLE,
        hint="name collectors in the site file for the next run, or run them by hand: "
        "kubectl debug node/NAME -it --image=ubuntu --profile=sysadmin",
    )


def drain(hosts: Sequence[str], reason: str) -> tuple[str, ...]:
    """Return the command that keeps new pods away from nodes, and the one that undoes it."""
    return tuple(command_line("kubectl", verb, *hosts) for verb in ("cordon", "uncordon"))


def submit(
    run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, record: Record, say: Say
) -> Job:
    """Install the run. Raises NotStarted if the cluster certainly has too few free nodes."""
    release = run.place.release or ""
    own = attempt.removeprefix(f"{release}-") if release else attempt
    name = run_name(own, release)
    check_run_name(name, run.plan.nodes or 1)
    with before_start():
        api = Api(resolve_place(run.place, run.site))
        api.version()
        nodes = _listed(lambda: api.find_all(NODE), "nodes", say)
        found = None
        if nodes is not None:
            wanted = _wanted(run)
            found = _listed(lambda: cluster_nodes.query_fits(api, wanted, nodes), "pods", say)
        if found is not None and (short := _shortage(found, run, say)):
            machine = ("--machine", run.machine.name)
            listed = command_line("accept", "list", "nodes", *machine)
            doctor = command_line("accept", "doctor", "--backend", "kubernetes", *machine)
            raise NotStarted(
                short,
                code=Code.KUBE_NODES_TOO_FEW,
                hint=f"the free ones: {listed}; every node: {doctor}, with the other options",
            )
        due = [fit for fit in found or () if fit.misfit is Misfit.MAINTENANCE]
        for fit in due[:_DUE_SHOWN]:
            say(f"{fit.node} is left out: {fit.why}")
        exclude = [*run.site.kubernetes.exclude_nodes, *(fit.node for fit in due)] if due else []
        positions = _known_positions(run, nodes, say)
        if run.earlier:
            finished = bz2.compress(pack_finished(Path(run.earlier), run.plan))
            (folder / FINISHED).write_bytes(finished)
        place = RunPlace(**vars(api.place), release=name.release)
        job = Job(
            schema=1,
            backend="kubernetes",
            attempt=name.full,
            hosts=run.hosts,
            first="",
            folder=FOLDER,
            place=place,
        )
        controller, signer = install_release(
            api,
            name,
            folder / VALUES,
            positions=positions,
            exclude=exclude,
            record=lambda: record(job),
            say=say,
        )
    return replace(
        job,
        # The host name of the pod of index 0.
        first=f"{controller.environment.get('ACCEPT_HOST_PREFIX', '')}0",
        signer=signer,
        place=replace(
            place,
            results=controller.environment.get("ACCEPT_BUCKET")
            or controller.environment.get("ACCEPT_RESULTS", ""),
        ),
    )


#: Maximum number of lines about nodes with scheduled maintenance.
_DUE_SHOWN = 8


def _listed(ask: Callable[[], Listed], what: str, say: Say) -> Listed | None:
    """Return what `ask` lists of the cluster; None, and say it, if this user may not list that."""
    try:
        return ask()
    except ApiError as error:
        if error.status != 403:
            raise
    say(f"free nodes are not counted: this user may not list {what} of the cluster")
    return None


def _known_positions(run: Resolved, nodes: Sequence[Node] | None, say: Say) -> Mapping[str, str]:
    """Return the positions of the nodes that a pod of the run can go to, from their labels.

    Nodes that are busy now are included, because they may be free when the pods are scheduled.
    Positions in the site file take precedence, and with `readNodes` index 0 reads the labels.
    """
    of_site = run.site.kubernetes
    if of_site.positions or of_site.read_nodes or nodes is None:
        return {}
    fits = {fit.node: fit for fit in cluster_nodes.node_fits(nodes, (), _wanted(run))}
    found = {
        node.name: position_of(node.labels, of_site.position_labels)
        for node in nodes
        if fits[node.name].matches
        and fits[node.name].misfit not in (Misfit.TAINT, Misfit.MAINTENANCE)
    }
    known = {name: position for name, position in sorted(found.items()) if position}
    if len(pack_positions(known)) > _MAX_POSITIONS:
        say(f"the positions of {len(known)} nodes are too many for a ConfigMap: set readNodes")
        return {}
    return known


def _wanted(run: Resolved) -> PodRequest:
    seconds = run.plan.start_seconds + run.plan.deadline_seconds
    return cluster_nodes.pod_request(run.pod, run.site.kubernetes, seconds=seconds)


def _shortage(found: Sequence[Fit], run: Resolved, say: Say) -> str:
    """Return why too few nodes are free for the run.

    Return an empty text if enough are free, or if that is not certain.
    """
    short = cluster_nodes.shortage(found, run.plan.nodes or 1, _wanted(run))
    if short and (why := cluster_nodes.expected_nodes(run.site)):
        say(f"{short}; {why}")
        return ""
    return short
