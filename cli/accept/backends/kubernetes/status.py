"""Read the state of a run from its Jobs, JobSets and pods: what runs, waits or ended, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accept.backends.job import Job
from accept.backends.kubernetes.client import Api, ApiError, Place
from accept.core.text import decimal, plain

Object = Mapping[str, Any]

#: The container that runs the suite.
MAIN = "accept"
_INDEX = "batch.kubernetes.io/job-completion-index"
#: A container that waits for one of these is on its way.
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing", "")


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of the run."""

    name: str
    #: Its place in the Job; -1 where it is not known.
    index: int
    #: `waiting`, `running`, `ended` or `leaving` (being deleted while it runs).
    phase: str
    node: str = ""
    #: Why it waits or left, for people; empty: nothing is wrong so far.
    why: str = ""
    #: Exit code of the main container, once it ended.
    code: int | None = None
    #: Whether its main container ever ran.
    ran: bool = False
    #: When it was made, as the API writes times, which sort as texts.
    created: str = ""


def read_pod(pod: Object, told: Mapping[str, str] = {}) -> Pod:
    """One pod; `told` is the last telling event by object name."""
    meta = pod.get("metadata", {})
    name = str(meta.get("name", ""))
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    index = decimal(str(marks.get(_INDEX, "")))
    phase, why, code = _phase(pod, told.get(name, ""))
    return Pod(
        name=name,
        index=-1 if index is None else index,
        phase=phase,
        node=str(pod.get("spec", {}).get("nodeName") or ""),
        why=plain(why, 300),
        code=code,
        ran=not {"running", "terminated"}.isdisjoint(_main(pod)),
        created=str(meta.get("creationTimestamp") or ""),
    )


def _main(pod: Object) -> Object:
    """The state of the main container, as far as it is known."""
    containers = pod.get("status", {}).get("containerStatuses") or []
    return next((c.get("state") or {} for c in containers if c.get("name") == MAIN), {})


def _phase(pod: Object, told: str) -> tuple[str, str, int | None]:
    status = pod.get("status", {})
    containers = status.get("containerStatuses") or []
    main = _main(pod)
    if "terminated" in main:
        ended = main["terminated"]
        code = ended.get("exitCode")
        why = ended.get("reason") or ""
        why = "" if why in ("Completed", "Error") else f"{why} {ended.get('message') or ''}"
        return "ended", _disrupted(status) or why, code
    if status.get("phase") in ("Failed", "Succeeded"):
        # The kubelet refused or evicted it, or its node is lost: no container says anything.
        reason = f"{status.get('reason') or status['phase']}: {status.get('message') or ''}"
        return "ended", _disrupted(status) or reason, None
    leaving = bool(pod.get("metadata", {}).get("deletionTimestamp"))
    if leaving:
        return "leaving", _disrupted(status) or "being deleted", None
    if "running" in main:
        return "running", "", None
    return "waiting", _why_waiting(status, [*_init(status), *containers], told), None


def _init(status: Object) -> list[Any]:
    return list(status.get("initContainerStatuses") or [])


def _why_waiting(status: Object, containers: Sequence[Object], told: str) -> str:
    conditions: dict[Any, Object] = {c.get("type"): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        if scheduled.get("reason") == "SchedulingGated":
            return "held by a scheduling gate: Kueue or another controller has not released it"
        return f"not scheduled: {_shortage(scheduled.get('message') or '')}"
    for one in containers:
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason not in _ON_ITS_WAY:
            return f"{reason}: {waiting.get('message') or one.get('image') or ''}"
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"container {one.get('name')} ended with {ended['exitCode']}"
    # A mount or a sandbox that fails is told by events alone.
    return told


def _shortage(message: str) -> str:
    """The scheduler's message without what it says of preemption: which nodes lack what."""
    first = re.split(r"\bpreemption:", message)[0].strip().rstrip(".")
    return first or "the scheduler has not looked at it yet"


def _disrupted(status: Object) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            reason = one.get("reason") or "disrupted"
            word = {"PreemptionByScheduler": "preempted", "DeletionByTaintManager": "node lost"}
            return f"{word.get(reason, reason)}: {one.get('message') or ''}"
    return ""


_QUEUE = "kueue.x-k8s.io/queue-name"
#: Conditions of a Job or JobSet that mean its end; the first two come before all pods are gone.
_SUCCESS = ("SuccessCriteriaMet", "Completed", "Complete")
_FAILURE = ("FailureTarget", "Failed")
#: Events that say why a pod does not start.
_TELLING = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedMapVolume",
    "FailedCreatePodSandBox",
    "NetworkNotReady",
    "FailedPrepareDynamicResources",
    "Failed",
    "BackOff",
    "FailedScheduling",
    "NotTriggerScaleUp",
    "FailedCreate",
    "JobCreationFailed",
)
_NAMES_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class State:
    """The whole run at one moment."""

    #: Whether there is a JobSet or Job at all.
    there: bool
    pods: tuple[Pod, ...] = ()
    wanted: int = 0
    #: Why it is suspended; empty: it is not.
    suspended: str = ""
    #: Why no pods come, where none do.
    stuck: str = ""
    #: `Completed` or `Failed`, once it is decided.
    ended: str = ""
    reason: str = ""

    @property
    def first(self) -> Pod | None:
        """Index 0, the coordinator; the newest, where a queue let the run in once more."""
        found = (p for p in self.pods if p.index == 0)
        return max(found, key=lambda p: (p.created, p.phase != "leaving"), default=None)


def read_state(
    *,
    jobset: Object | None,
    job: Object | None,
    pods: Iterable[Object],
    events: Iterable[Object] = (),
    workload: Object | None = None,
) -> State:
    """The state out of what the API shows; either of `jobset` and `job` may be missing."""
    told = _by_object(events)
    owner = jobset or job
    if owner is None:
        return State(there=False, pods=_pods(pods, told))
    ended, reason = "", ""
    for one in filter(None, (jobset, job)):
        if not ended:
            ended, reason = _end(one)
    found = _pods(pods, told)
    stuck = ""
    if not found and not ended:
        names = [str(o.get("metadata", {}).get("name")) for o in (jobset, job) if o]
        stuck = next((told[n] for n in names if n in told), "")
    suspended = any((o or {}).get("spec", {}).get("suspend") for o in (jobset, job))
    return State(
        there=True,
        pods=found,
        wanted=_wanted(jobset, job),
        suspended=_suspended(owner, workload) if suspended and not ended else "",
        stuck=stuck,
        ended=ended,
        reason=reason,
    )


def _wanted(jobset: Object | None, job: Object | None) -> int:
    if job is not None:
        return int(job.get("spec", {}).get("parallelism") or 0)
    total = 0
    for one in (jobset or {}).get("spec", {}).get("replicatedJobs") or ():
        spec = one.get("template", {}).get("spec", {})
        total += int(one.get("replicas") or 1) * int(spec.get("parallelism") or 0)
    return total


def _end(owner: Object) -> tuple[str, str]:
    """How a Job or JobSet ended, and why; empty while it has not."""
    conditions = owner.get("status", {}).get("conditions") or ()
    true = {c["type"]: c for c in conditions if c.get("status") == "True"}
    for kinds, name in ((_FAILURE, "Failed"), (_SUCCESS, "Completed")):
        for kind in kinds:
            if kind in true:
                reason, message = true[kind].get("reason") or "", true[kind].get("message") or ""
                return name, plain(f"{reason}: {message}" if message else reason, 300)
    return "", ""


def _suspended(owner: Object, workload: Object | None) -> str:
    queue = (owner.get("metadata", {}).get("labels") or {}).get(_QUEUE)
    if not queue:
        return "suspended: it starts when somebody sets its `suspend` to false"
    where = f"suspended in queue {plain(queue, 80)}"
    if workload is None:
        return f"{where}: no Workload yet, so Kueue has not looked at it"
    conditions = workload.get("status", {}).get("conditions") or ()
    by_kind: dict[Any, Object] = {c.get("type"): c for c in conditions}
    for kind in ("QuotaReserved", "Admitted"):
        one = by_kind.get(kind)
        if one is not None and one.get("status") != "True" and one.get("message"):
            return f"{where}: {plain(one['message'], 300)}"
    evicted = by_kind.get("Evicted", {})
    if evicted.get("status") == "True":
        return f"{where}: evicted: {plain(evicted.get('message'), 300)}"
    return f"{where}: waiting for its turn"


def _pods(pods: Iterable[Object], told: Mapping[str, str]) -> tuple[Pod, ...]:
    return tuple(sorted((read_pod(p, told) for p in pods), key=lambda p: (p.index, p.name)))


def _by_object(events: Iterable[Object]) -> dict[str, str]:
    """The newest telling event of each object, as text."""
    newest: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.get("type") != "Warning" or event.get("reason") not in _TELLING:
            continue
        about = event.get("involvedObject") or event.get("regarding") or {}
        when = str(
            event.get("lastTimestamp")
            or (event.get("series") or {}).get("lastObservedTime")
            or event.get("eventTime")
            or event.get("metadata", {}).get("creationTimestamp")
            or ""
        )
        text = f"{event.get('reason')}: {event.get('message') or event.get('note') or ''}"
        name = str(about.get("name", ""))
        if when >= newest.get(name, ("", ""))[0]:
            newest[name] = (when, plain(text, 300))
    return {name: text for name, (_, text) in newest.items()}


def lines(state: State) -> tuple[str, ...]:
    """What there is to say of it: one line each, the same for the same state."""
    if not state.there:
        return ()
    said = []
    if state.suspended:
        said.append(state.suspended)
    if state.stuck:
        said.append(f"no pods yet: {state.stuck}")
    if state.pods:
        count = {"running": 0, "waiting": 0, "ended": 0, "leaving": 0}
        for pod in state.pods:
            count[pod.phase] += 1
        shown = ", ".join(f"{n} {phase}" for phase, n in count.items() if n)
        said.append(f"pods: {shown}, of {state.wanted}" if state.wanted else f"pods: {shown}")
    said += reasons(state)
    if state.ended:
        said.append(f"{state.ended.lower()}: {state.reason}" if state.reason else state.ended)
    return tuple(said)


def reasons(state: State) -> tuple[str, ...]:
    """Why pods wait or left, one line for each reason with the pods it is about."""
    grouped: dict[str, list[str]] = {}
    for pod in state.pods:
        if pod.why and pod.phase != "running":
            on = f" on {pod.node}" if pod.node else ""
            # Its own name and its address differ from pod to pod where the reason does not.
            grouped.setdefault(pod.why.replace(pod.name, "it"), []).append(f"{pod.name}{on}")
    said = []
    for why, names in grouped.items():
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        said.append(f"  {', '.join(names[:_NAMES_SHOWN])}{more}: {why}")
    return tuple(said)


def started(state: State) -> bool:
    """Whether the coordinator's container ever ran."""
    first = state.first
    return first is not None and (first.ran or first.phase == "ended") and bool(first.node)


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
