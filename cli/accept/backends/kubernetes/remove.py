"""Ending a run and removing what it made: its release, and by its label what is left, only that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from accept.backends import Job, Say
from accept.backends.kubernetes.api import Api, ApiError
from accept.backends.kubernetes.execute import execute
from accept.backends.kubernetes.fetch import fetch
from accept.backends.kubernetes.follow import FOLDER, status
from accept.backends.kubernetes.install import installed_attempt, uninstall
from accept.backends.kubernetes.look import (
    CLAIMS,
    CLAIMS_VERSIONS,
    DOMAINS,
    JOBSETS,
    look,
    of_run,
    path,
    place_of,
)
from accept.backends.kubernetes.pod import MAIN
from accept.core.errors import AcceptError, NotStarted

#: What a run may make, in the order of its removal: group of the API, kind as listed, and as named.
_KINDS = (
    (JOBSETS, "jobsets", "JobSet"),
    ("apis/batch/v1", "jobs", "Job"),
    ("api/v1", "pods", "Pod"),
    ("api/v1", "services", "Service"),
    ("api/v1", "configmaps", "ConfigMap"),
    ("api/v1", "secrets", "Secret"),
    ("apis/networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    *(
        (f"{CLAIMS}/{version}", "resourceclaimtemplates", "ResourceClaimTemplate")
        for version in CLAIMS_VERSIONS
    ),
    (DOMAINS, "computedomains", "ComputeDomain"),
)
#: How long the coordinator may take to stop, and objects to be gone, in seconds.
_STOPPING = 75.0
_LEAVING = 180.0


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the run on index 0, which keeps its evidence; where it cannot be told, save what is."""
    api = Api(place_of(job))
    state = look(api, job.attempt)
    first = state.first
    if first is None or first.phase != "running" or state.ended:
        return
    say("cancel: the coordinator ends what it started")
    stop = f"cd {FOLDER} && {{ [ -e status ] || echo stop 1<>events; }}"
    try:
        told = execute(api, first.name, MAIN, ["sh", "-c", stop], timeout=20.0).exit == 0
    except ApiError as error:
        say(f"  index 0 cannot be told: {error.message}")
        told = False
    until = time.monotonic() + _STOPPING
    while told and time.monotonic() < until:
        state = look(api, job.attempt)
        if state.ended or state.first is None or state.first.phase != "running":
            return
        if status(api, state) is not None:
            return
        time.sleep(1.0)
    say("  it does not end; what there is of its evidence is collected")
    fetch(job, folder=folder, say=say, whatever=True)


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the run's release and whatever carries its label; returns what there was."""
    api = Api(place_of(job))
    release = job.place.get("release", "")
    there = _labelled(api, job.attempt)
    found = [f"{kind} {one['metadata']['name']}" for _, kind, one in there]
    # A later attempt may have the same release: that one is none of this run's.
    own = job.attempt.removeprefix(f"{release}-")
    installed = bool(release) and installed_attempt(api.place, release) == own
    if installed:
        found.insert(0, f"release {release}")
    if dry_run or not found:
        return tuple(found)
    if installed:
        uninstall(api.place, release)
    until = time.monotonic() + _LEAVING
    asked: set[str] = set()
    while there := _labelled(api, job.attempt):
        for where, _, one in there:
            place = f"{where}/{one['metadata']['name']}"
            # Pods go with their Job; one that has none is asked to go like everything else.
            if place not in asked and not one["metadata"].get("deletionTimestamp"):
                asked.add(place)
                api.delete(place)
        if time.monotonic() > until:
            names = ", ".join(f"{kind} {one['metadata']['name']}" for _, kind, one in there[:4])
            raise NotStarted(
                f"still there after {_LEAVING:.0f} s: {names}",
                hint="on a node that is lost? kubectl delete --force removes a pod's object",
            )
        time.sleep(1.0)
    return tuple(found)


def _labelled(api: Api, name: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Where each object with the run's label is, its kind, and the object."""
    found = []
    seen: set[str] = set()
    for group, plural, kind in _KINDS:
        if plural in seen:
            # Another version of the same objects.
            continue
        where = path(api, group, plural)
        try:
            items = api.items(where, labelSelector=of_run(name))
        except AcceptError as error:
            status = error.status if isinstance(error, ApiError) else 0
            # No such kind here, or not for this user to see: then it was not theirs to make.
            if status not in (403, 404):
                raise
            continue
        seen.add(plural)
        found += [(where, kind, one) for one in items]
    # The JobSet's controller makes it, labels it as its own, and lets it go with the JobSet.
    service = path(api, "api/v1", "services")
    if all((kind, one["metadata"]["name"]) != ("Service", name) for _, kind, one in found):
        one = api.find(f"{service}/{name}")
        found += [(service, "Service", one)] if one else []
    return found
