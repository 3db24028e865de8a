"""Read the state of a run from its Jobs, JobSets and pods: what runs, waits or ended, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from accept.backends.job import Job
from accept.backends.kubernetes.client import Api, ApiError, Place
from accept.core.text import decimal, plain

Object = Mapping[str, Any]

#: The container that runs the suite.
MAIN_CONTAINER = "accept"
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
#: Reasons of waiting containers that are about to start.
_STARTING_REASONS = ("ContainerCreating", "PodInitializing", "")


class PodPhase(StrEnum):
    """The phase of a pod of a run."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"
    #: It is being deleted while it runs.
    LEAVING = "leaving"


class End(StrEnum):
    """The end of a Job or JobSet, in the words of its conditions."""

    COMPLETED = "Completed"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of the run."""

    name: str
    #: Its index in the Job; -1 if unknown.
    index: int
    phase: PodPhase
    node: str = ""
    #: Why it waits or ended, for people; empty if nothing is wrong so far.
    why: str = ""
    #: Exit code of the main container; None until it ends.
    code: int | None = None
    #: Whether its main container has ever run.
    ran: bool = False
    #: When it was created, in the API's format, which sorts as text.
    created: str = ""


def read_pod(pod: Object, event_texts: Mapping[str, str] = {}) -> Pod:
    """Read one pod; `event_texts` has the newest event by object name."""
    meta = pod.get("metadata", {})
    name = str(meta.get("name", ""))
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    index = decimal(str(marks.get(_INDEX_LABEL, "")))
    phase, why, code = _phase(pod, event_texts.get(name, ""))
    return Pod(
        name=name,
        index=-1 if index is None else index,
        phase=phase,
        node=str(pod.get("spec", {}).get("nodeName") or ""),
        why=plain(why, 300),
        code=code,
        ran=not {"running", "terminated"}.isdisjoint(_main_state(pod)),
        created=str(meta.get("creationTimestamp") or ""),
    )


def _main_state(pod: Object) -> Object:
    """Return the state of the main container; empty if there is none yet."""
    containers = pod.get("status", {}).get("containerStatuses") or []
    return next((c.get("state") or {} for c in containers if c.get("name") == MAIN_CONTAINER), {})


def _phase(pod: Object, event_text: str) -> tuple[PodPhase, str, int | None]:
    status = pod.get("status", {})
    containers = status.get("containerStatuses") or []
    main = _main_state(pod)
    if "terminated" in main:
        ended = main["terminated"]
        code = ended.get("exitCode")
        why = ended.get("reason") or ""
        why = "" if why in ("Completed", "Error") else f"{why} {ended.get('message') or ''}"
        return PodPhase.ENDED, _disruption(status) or why, code
    if status.get("phase") in ("Failed", "Succeeded"):
        # The kubelet refused or evicted it, or its node is lost: no container has a state.
        reason = f"{status.get('reason') or status['phase']}: {status.get('message') or ''}"
        return PodPhase.ENDED, _disruption(status) or reason, None
    leaving = bool(pod.get("metadata", {}).get("deletionTimestamp"))
    if leaving:
        return PodPhase.LEAVING, _disruption(status) or "being deleted", None
    if "running" in main:
        return PodPhase.RUNNING, "", None
    why = _why_waiting(status, [*_init_statuses(status), *containers], event_text)
    return PodPhase.WAITING, why, None


def _init_statuses(status: Object) -> list[Any]:
    return list(status.get("initContainerStatuses") or [])


def _why_waiting(status: Object, containers: Sequence[Object], event_text: str) -> str:
    conditions: dict[Any, Object] = {c.get("type"): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        if scheduled.get("reason") == "SchedulingGated":
            return "held by a scheduling gate: Kueue or another controller has not released it"
        return f"not scheduled: {_scheduler_reason(scheduled.get('message') or '')}"
    for container in containers:
        container_state = container.get("state") or {}
        waiting = container_state.get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason not in _STARTING_REASONS:
            return f"{reason}: {waiting.get('message') or container.get('image') or ''}"
        ended = container_state.get("terminated") or {}
        if ended.get("exitCode"):
            return f"container {container.get('name')} ended with {ended['exitCode']}"
    # Only events report a mount or a sandbox that fails.
    return event_text


def _scheduler_reason(message: str) -> str:
    """Return which nodes lack what: the scheduler's message without its part about preemption."""
    first = re.split(r"\bpreemption:", message)[0].strip().rstrip(".")
    return first or "the scheduler has not looked at it yet"


def _disruption(status: Object) -> str:
    """Return why Kubernetes ended the pod; empty if it did not."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = condition.get("reason") or "disrupted"
            word = {"PreemptionByScheduler": "preempted", "DeletionByTaintManager": "node lost"}
            return f"{word.get(reason, reason)}: {condition.get('message') or ''}"
    return ""


_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Conditions of a Job or JobSet that mean its end. The first of each comes while pods still run.
_SUCCESS = ("SuccessCriteriaMet", "Completed", "Complete")
_FAILURE = ("FailureTarget", "Failed")
#: Reasons of events that explain why a pod does not start.
_EVENT_REASONS = (
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
    """The state of a whole run at one moment."""

    #: Whether the JobSet or Job exists.
    there: bool
    pods: tuple[Pod, ...] = ()
    wanted: int = 0
    #: Why the run is suspended; empty if it is not.
    suspended: str = ""
    #: Why there are no pods; empty if there are, or if the reason is unknown.
    stuck: str = ""
    #: None until that is decided.
    ended: End | None = None
    reason: str = ""

    @property
    def first(self) -> Pod | None:
        """The pod of index 0, the coordinator; the newest if a queue admitted the run again."""
        found = (p for p in self.pods if p.index == 0)
        return max(found, key=lambda p: (p.created, p.phase is not PodPhase.LEAVING), default=None)


def read_state(
    *,
    jobset: Object | None,
    job: Object | None,
    pods: Iterable[Object],
    events: Iterable[Object] = (),
    workload: Object | None = None,
) -> State:
    """Return the state of a run. Either of `jobset` and `job` may be missing."""
    event_texts = _newest_events(events)
    owner = jobset or job
    if owner is None:
        return State(there=False, pods=_pods(pods, event_texts))
    ended: End | None = None
    reason = ""
    for workload_object in filter(None, (jobset, job)):
        if not ended:
            ended, reason = _end(workload_object)
    read_pods = _pods(pods, event_texts)
    stuck = ""
    if not read_pods and not ended:
        names = [str(o.get("metadata", {}).get("name")) for o in (jobset, job) if o]
        stuck = next((event_texts[n] for n in names if n in event_texts), "")
    suspended = any((o or {}).get("spec", {}).get("suspend") for o in (jobset, job))
    return State(
        there=True,
        pods=read_pods,
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
    for replicated in (jobset or {}).get("spec", {}).get("replicatedJobs") or ():
        spec = replicated.get("template", {}).get("spec", {})
        total += int(replicated.get("replicas") or 1) * int(spec.get("parallelism") or 0)
    return total


def _end(owner: Object) -> tuple[End | None, str]:
    """Return how a Job or JobSet ended, and why; None and "" if it has not ended."""
    conditions = owner.get("status", {}).get("conditions") or ()
    true = {c["type"]: c for c in conditions if c.get("status") == "True"}
    for kinds, end in ((_FAILURE, End.FAILED), (_SUCCESS, End.COMPLETED)):
        for kind in kinds:
            if kind in true:
                reason, message = true[kind].get("reason") or "", true[kind].get("message") or ""
                return end, plain(f"{reason}: {message}" if message else reason, 300)
    return None, ""


def _suspended(owner: Object, workload: Object | None) -> str:
    queue = (owner.get("metadata", {}).get("labels") or {}).get(_QUEUE_LABEL)
    if not queue:
        return "suspended: it starts when somebody sets its `suspend` to false"
    where = f"suspended in queue {plain(queue, 80)}"
    if workload is None:
        return f"{where}: no Workload yet, so Kueue has not looked at it"
    conditions = workload.get("status", {}).get("conditions") or ()
    by_kind: dict[Any, Object] = {c.get("type"): c for c in conditions}
    for kind in ("QuotaReserved", "Admitted"):
        condition = by_kind.get(kind)
        if condition and condition.get("status") != "True" and condition.get("message"):
            return f"{where}: {plain(condition['message'], 300)}"
    evicted = by_kind.get("Evicted", {})
    if evicted.get("status") == "True":
        return f"{where}: evicted: {plain(evicted.get('message'), 300)}"
    return f"{where}: waiting for its turn"


def _pods(pods: Iterable[Object], event_texts: Mapping[str, str]) -> tuple[Pod, ...]:
    return tuple(sorted((read_pod(p, event_texts) for p in pods), key=lambda p: (p.index, p.name)))


def _newest_events(events: Iterable[Object]) -> dict[str, str]:
    """Return the newest event that explains a wait, as text, by the name of its object."""
    newest: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.get("type") != "Warning" or event.get("reason") not in _EVENT_REASONS:
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


def state_lines(state: State) -> tuple[str, ...]:
    """Describe a state in lines; the same state gives the same lines."""
    if not state.there:
        return ()
    shown_lines = []
    if state.suspended:
        shown_lines.append(state.suspended)
    if state.stuck:
        shown_lines.append(f"no pods yet: {state.stuck}")
    if state.pods:
        count = Counter(pod.phase for pod in state.pods)
        shown = ", ".join(f"{count[phase]} {phase}" for phase in PodPhase if count[phase])
        shown_lines.append(
            f"pods: {shown}, of {state.wanted}" if state.wanted else f"pods: {shown}"
        )
    shown_lines += waiting_reasons(state)
    if state.ended:
        shown_lines.append(
            f"{state.ended.lower()}: {state.reason}" if state.reason else state.ended
        )
    return tuple(shown_lines)


def waiting_reasons(state: State) -> tuple[str, ...]:
    """Return why pods wait or ended: one line for each reason, with its pods."""
    grouped: dict[str, list[str]] = {}
    for pod in state.pods:
        if pod.why and pod.phase is not PodPhase.RUNNING:
            on = f" on {pod.node}" if pod.node else ""
            # The same reason may differ only in the name of the pod.
            grouped.setdefault(pod.why.replace(pod.name, "it"), []).append(f"{pod.name}{on}")
    shown_lines = []
    for why, names in grouped.items():
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        shown_lines.append(f"  {', '.join(names[:_NAMES_SHOWN])}{more}: {why}")
    return tuple(shown_lines)


def has_started(state: State) -> bool:
    """Return whether the coordinator's container has ever run."""
    first = state.first
    return first is not None and (first.ran or first.phase is PodPhase.ENDED) and bool(first.node)


#: The label of everything that belongs to a run.
RUN_LABEL = "accept-run"
#: Events are requested for this many pods; the others usually wait for the same reasons.
_MAX_PODS_WITH_EVENTS = 6
#: Groups of kinds that not every cluster has, newest version first.
JOBSET_GROUP = "apis/jobset.x-k8s.io/v1alpha2"
KUEUE_GROUPS = ("apis/kueue.x-k8s.io/v1beta2", "apis/kueue.x-k8s.io/v1beta1")
#: The versions that accept.claimsVersion in chart/templates/_pod.tpl takes, in its order.
CLAIMS_GROUP, CLAIMS_VERSIONS = "apis/resource.k8s.io", ("v1", "v1beta2", "v1beta1")
DOMAINS_GROUP = "apis/resource.nvidia.com/v1beta1"


def place_of_job(job: Job) -> Place:
    """Return where a submitted run is."""
    keys = ("kubeconfig", "context", "namespace")
    return Place(**{key: job.place.get(key, "") for key in keys})


def object_path(api: Api, group: str, kind: str, name: str = "") -> str:
    """Return the API's path of a kind or object in the namespace; `group` is like `api/v1`."""
    return f"/{group}/namespaces/{api.place.namespace}/{kind}" + (f"/{name}" if name else "")


def run_selector(name: str) -> str:
    """Return the label selector of everything that belongs to a run."""
    return f"{RUN_LABEL}={name}"


def has_namespace(api: Api) -> bool | None:
    """Return whether the namespace exists; None if this user may not read it."""
    try:
        return api.find(f"/api/v1/namespaces/{api.place.namespace}") is not None
    except ApiError:
        return None


def makes_jobset(api: Api, controller: str) -> bool:
    """Return whether a run makes a JobSet.

    That is so if the site's `controller` requests it, or leaves it open and the cluster has the
    kind. This is the rule of accept.jobset in chart/templates/_helpers.tpl.
    """
    return controller == "jobset" or (
        controller == "auto" and api.find(f"/{JOBSET_GROUP}") is not None
    )


def find_workload(api: Api, name: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the JobSet of a run, if any, and the Job that runs its pods."""
    try:
        jobset = api.find(object_path(api, JOBSET_GROUP, "jobsets", name))
    except ApiError as error:
        # A user who may not read JobSets could not have made one. The cluster may have none at all.
        if error.status != 403:
            raise
        jobset = None
    child = f"{name}-w-0" if jobset else name
    return jobset, api.find(object_path(api, "apis/batch/v1", "jobs", child))


def query_state(api: Api, name: str) -> State:
    """Return the state of the run called `name`. Raises ApiError."""
    jobset, job = find_workload(api, name)
    pods = api.items(object_path(api, "api/v1", "pods"), labelSelector=run_selector(name))
    state = read_state(jobset=jobset, job=job, pods=pods)
    if state.ended or not state.there:
        return state
    workload = _workload(api, jobset or job or {}) if state.suspended else None
    waiting = [p.name for p in state.pods if p.phase is PodPhase.WAITING][:_MAX_PODS_WITH_EVENTS]
    if not state.pods and not state.suspended:
        waiting = [str(o["metadata"]["name"]) for o in (jobset, job) if o]
    if not waiting and workload is None:
        return state
    events = [event for object_name in waiting for event in _events(api, object_name)]
    return read_state(jobset=jobset, job=job, pods=pods, events=events, workload=workload)


def _events(api: Api, name: str) -> list[dict[str, Any]]:
    """Return the events of an object; none if the user may not see them."""
    try:
        return api.items(
            object_path(api, "api/v1", "events"), fieldSelector=f"involvedObject.name={name}"
        )
    except ApiError as error:
        if error.passing:
            raise
        return []


def _workload(api: Api, owner: dict[str, Any]) -> dict[str, Any] | None:
    """Return Kueue's Workload of a Job or JobSet."""
    uid = owner.get("metadata", {}).get("uid")
    for group in KUEUE_GROUPS:
        try:
            workloads = api.items(object_path(api, group, "workloads"))
        except ApiError as error:
            if error.passing:
                raise
            continue
        for workload in workloads:
            owners = workload.get("metadata", {}).get("ownerReferences") or ()
            if any(o.get("uid") == uid for o in owners):
                return workload
        return None
    return None
