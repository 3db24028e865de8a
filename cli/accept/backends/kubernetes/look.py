"""One look at a run: asks the API for what `state` reads, and for no more than that."""

from __future__ import annotations

from typing import Any

from accept.backends import Job
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.place import Place
from accept.backends.kubernetes.status import State, read_state

#: What finds everything of a run.
LABEL = "accept-run"
#: Pods whose events are looked at; the others have the same reasons.
_ASKED = 6
#: Kinds that are none of Kubernetes' own, or not everywhere: where they are, newest version first.
JOBSETS = "apis/jobset.x-k8s.io/v1alpha2"
KUEUE = ("apis/kueue.x-k8s.io/v1beta2", "apis/kueue.x-k8s.io/v1beta1")
#: Of claims those that accept.claimsVersion in chart/templates/_pod.tpl takes, in its order.
CLAIMS, CLAIMS_VERSIONS = "apis/resource.k8s.io", ("v1", "v1beta2", "v1beta1")
DOMAINS = "apis/resource.nvidia.com/v1beta1"


def place_of(job: Job) -> Place:
    """Where a submitted run is."""
    keys = ("kubeconfig", "context", "namespace")
    return Place(**{key: job.place.get(key, "") for key in keys})


def path(api: Api, group: str, kind: str, name: str = "") -> str:
    """The API's path of a kind in the place's namespace, `group` such as `api/v1`."""
    return f"/{group}/namespaces/{api.place.namespace}/{kind}" + (f"/{name}" if name else "")


def of_run(name: str) -> str:
    """The label selector of everything that belongs to a run."""
    return f"{LABEL}={name}"


def has_namespace(api: Api) -> bool | None:
    """Whether the place's namespace is there; None: this user may not look at it."""
    try:
        return api.find(f"/api/v1/namespaces/{api.place.namespace}") is not None
    except ApiError:
        return None


def makes_jobset(api: Api, controller: str) -> bool:
    """Whether a run makes a JobSet: it is asked for, or the cluster has that kind, as helm sees it.

    `controller` is the site's, as accept.jobset in chart/templates/_helpers.tpl reads it.
    """
    return controller == "jobset" or (controller == "auto" and api.find(f"/{JOBSETS}") is not None)


def jobs(api: Api, name: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The JobSet of a run and the Job that runs its pods; a plain Job has no JobSet."""
    try:
        jobset = api.find(path(api, JOBSETS, "jobsets", name))
    except ApiError as error:
        # Who may not read JobSets, where there may be none at all, could not have made one.
        if error.status != 403:
            raise
        jobset = None
    child = f"{name}-w-0" if jobset else name
    return jobset, api.find(path(api, "apis/batch/v1", "jobs", child))


def look(api: Api, name: str) -> State:
    """The state of the run called `name`. Raises ApiError."""
    jobset, job = jobs(api, name)
    pods = api.items(path(api, "api/v1", "pods"), labelSelector=of_run(name))
    state = read_state(jobset=jobset, job=job, pods=pods)
    if state.ended or not state.there:
        return state
    workload = _workload(api, jobset or job or {}) if state.suspended else None
    asked = [p.name for p in state.pods if p.phase == "waiting"][:_ASKED]
    if not state.pods and not state.suspended:
        asked = [str(o["metadata"]["name"]) for o in (jobset, job) if o]
    if not asked and workload is None:
        return state
    events = [e for one in asked for e in _events(api, one)]
    return read_state(jobset=jobset, job=job, pods=pods, events=events, workload=workload)


def _events(api: Api, name: str) -> list[dict[str, Any]]:
    """An object's events; none where the user may not see them."""
    try:
        return api.items(path(api, "api/v1", "events"), fieldSelector=f"involvedObject.name={name}")
    except ApiError as error:
        if error.passing:
            raise
        return []


def _workload(api: Api, owner: dict[str, Any]) -> dict[str, Any] | None:
    """Kueue's Workload of a Job or JobSet."""
    uid = owner.get("metadata", {}).get("uid")
    for group in KUEUE:
        try:
            found = api.items(path(api, group, "workloads"))
        except ApiError as error:
            if error.passing:
                raise
            continue
        for one in found:
            owners = one.get("metadata", {}).get("ownerReferences") or ()
            if any(o.get("uid") == uid for o in owners):
                return one
        return None
    return None
