"""Cancel a run, and remove what it made: its release, and then only objects with its label."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.backends.job import Job
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.collect import save_before_removal
from accept.backends.kubernetes.exec import execute
from accept.backends.kubernetes.objects import (
    CLAIM_TEMPLATES,
    COMPUTE_DOMAIN,
    CONFIG_MAP,
    JOB,
    JOBSET,
    NETWORK_POLICY,
    POD,
    SECRET,
    SERVICE,
    Kind,
    Object,
    Pod,
    PodPhase,
)
from accept.backends.kubernetes.status import place_of, query_state, run_selector
from accept.backends.kubernetes.submit import installed_attempt, uninstall
from accept.backends.kubernetes.watch import FOLDER, written_exit_code
from accept.backends.protocol import Say
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadEvidence, Interrupted
from accept.core.text import duration, plain
from accept.evidence import rundir

#: An object of the run, and its kind.
_Found = tuple[Kind[Object], Object]


def _shown(found: _Found) -> str:
    kind, item = found
    return f"{kind.name} {item.name}"


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """The objects of a run, as far as this user may list them."""

    objects: tuple[_Found, ...]
    #: Kinds that this user may not list although the run made objects of them.
    hidden: tuple[str, ...]


#: Kinds that make pods, and pods themselves.
_RUNNING_KINDS: tuple[Kind[Object], ...] = (JOBSET, JOB, POD)
#: Everything that a run may make, in the order of removal.
_KINDS: tuple[Kind[Object], ...] = (
    *_RUNNING_KINDS,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    NETWORK_POLICY,
    *CLAIM_TEMPLATES,
    COMPUTE_DOMAIN,
)
#: Kinds that every run makes objects of.
_ALWAYS = (JOB, POD, SERVICE, CONFIG_MAP, SECRET)
#: Seconds that the command in the pod that asks the coordinator to stop may take.
_STOP_REQUEST = 20.0
#: Seconds that commands in the pod may take to save evidence before the Job is deleted.
_SAVING = 20.0
#: Seconds that the coordinator may take to stop.
_STOPPING = 75.0
#: Objects are stuck if none disappeared for this many seconds after the grace period of the pods.
_LEAVING = 60.0
#: Seconds between two checks of the remaining objects.
_PAUSE = 1.0


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """Let the coordinator end the run; it keeps its evidence until that is collected.

    If the coordinator does not run or does not obey, save within a short time what only the pods
    hold. Then always delete the Job, so that nothing of the run continues or starts later. Raises
    Interrupted if pods stay, and BadEvidence if the run ended but nothing of it could be saved.
    """
    api = Api(place_of(job))
    state = query_state(api, job.attempt)
    first = state.first
    if not state.exists or state.ended or (first is not None and first.phase == PodPhase.ENDED):
        return
    if first is not None and first.phase == PodPhase.RUNNING:
        say("cancel: the coordinator ends what it started")
        if _stop_coordinator(api, job.attempt, first.name, say=say):
            return
        say("  it does not end; its evidence so far is collected")
    unsaved: AcceptError | OSError | None = None
    try:
        with rundir.held(folder):
            save_before_removal(job, folder=folder, say=say, seconds=_SAVING)
    except (AcceptError, OSError) as error:
        unsaved = error
        say(f"the evidence could not be saved: {_reason(error)}")
    finally:
        # Do this after Ctrl-C, too.
        _remove(api, job, _RUNNING_KINDS)
    # Evidence in a results location can still be collected.
    if unsaved and not (folder / rundir.EVIDENCE).is_dir() and not place_of(job).results:
        raise BadEvidence(
            f"{job.attempt} was ended, but its evidence could not be saved: {_reason(unsaved)}",
            code=Code.KUBE_EVIDENCE_UNSAVED,
            hint=f"remove the rest of the run: accept clean {job.attempt}",
        ) from unsaved


def _reason(error: AcceptError | OSError) -> str:
    return error.message if isinstance(error, AcceptError) else plain(error)


def _stop_coordinator(api: Api, name: str, pod: str, *, say: Say) -> bool:
    """Ask the coordinator to stop; return whether it ended in time."""
    stop = f"cd {FOLDER} && {{ [ -e status ] || echo stop 1<>events; }}"
    try:
        if execute(api, pod, ["sh", "-c", stop], timeout=_STOP_REQUEST).exit != 0:
            return False
    except ApiError as error:
        say(f"  cannot reach index 0: {error.message}")
        return False
    until = time.monotonic() + _STOPPING
    while time.monotonic() < until:
        try:
            state = query_state(api, name)
        except ApiError as error:
            if not error.passing:
                return False
            time.sleep(1.0)
            continue
        if state.ended or state.first is None or state.first.phase != PodPhase.RUNNING:
            return True
        if written_exit_code(api, state) is not None:
            return True
        time.sleep(1.0)
    return False


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the run's release and all objects with its label; return those found.

    Raises Interrupted if something is left, or if this user may not list what is left.
    """
    api = Api(place_of(job))
    release = place_of(job).release
    listing = _list(api, job, _KINDS)
    found = [_shown(object_) for object_ in listing.objects]
    # A later attempt may have the same release, which then does not belong to this run.
    own = job.attempt.removeprefix(f"{release}-")
    installed = bool(release) and installed_attempt(api.place, release) == own
    if installed:
        found.insert(0, f"release {release}")
    if dry_run and found:
        return tuple(found)
    if installed:
        uninstall(api.place, release)
    if not dry_run:
        listing = _remove(api, job, _KINDS)
    if listing.hidden:
        raise Interrupted(
            f"cannot check whether {job.attempt} left any {', '.join(listing.hidden)} in "
            f"namespace {api.place.namespace}: this user may not list them",
            code=Code.KUBE_OBJECTS_HIDDEN,
            hint="the Role that is needed: accept doctor --backend kubernetes --rbac",
        )
    return tuple(found)


def _remove(api: Api, job: Job, kinds: Sequence[Kind[Object]]) -> _Listing:
    """Delete the run's objects of some kinds, and wait until they are gone.

    Returns the last listing, which has no objects. Raises Interrupted if some stay.
    """
    requested: set[str] = set()
    left, since = 0, time.monotonic()
    while True:
        listing = _list(api, job, kinds)
        if not listing.objects:
            return listing
        if not requested or len(listing.objects) < left:
            left, since = len(listing.objects), time.monotonic()
        graces = (item.grace for _, item in listing.objects if isinstance(item, Pod))
        patience = _LEAVING + max(graces, default=0)
        if time.monotonic() - since > patience:
            names = ", ".join(map(_shown, listing.objects[:4]))
            raise Interrupted(
                f"not deleted within {duration(patience)}: {names}",
                code=Code.KUBE_OBJECTS_LEFT,
                hint="if its node is lost, kubectl delete pod --force removes the pod's object",
            )
        for kind, item in listing.objects:
            # Pods go with their Job; a pod that has none is deleted like everything else.
            if _shown((kind, item)) not in requested and not item.deleted:
                api.delete(kind, item.name)
            requested.add(_shown((kind, item)))
        time.sleep(_PAUSE)


def _list(api: Api, job: Job, kinds: Sequence[Kind[Object]]) -> _Listing:
    """List the run's objects of some kinds."""
    found: list[_Found] = []
    hidden: list[str] = []
    listed: set[str] = set()
    for kind in kinds:
        if kind.name in listed:
            # Another version of the same objects.
            continue
        try:
            objects = api.find_all(kind, labels=run_selector(job.attempt))
        except ApiError as error:
            # The API also refuses to list kinds that the cluster does not have.
            # The name of the first pod's host shows whether the run is a JobSet.
            made = kind in _ALWAYS or (kind is JOBSET and job.first == f"{job.attempt}-w-0-0")
            if error.status == 403 and made:
                hidden.append(kind.name)
            elif error.status not in (403, 404):
                raise
            continue
        listed.add(kind.name)
        found += ((kind, item) for item in objects)
    return _Listing(objects=tuple(found), hidden=tuple(hidden))
