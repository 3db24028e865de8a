"""Read the state of a run from its Jobs, JobSets and pods: what runs, waits or ended, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from accept.backends.job import Job, RunPlace
from accept.backends.kubernetes import objects
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.objects import (
    JOB,
    JOBSET,
    NAMESPACE,
    POD,
    WORKLOADS,
    Container,
    Controller,
    Event,
    Object,
    Pod,
    PodPhase,
)
from accept.core.text import plain, shortened

#: Reasons of waiting containers that are about to start.
_STARTING_REASONS = ("ContainerCreating", "PodInitializing", "")


def _why(pod: Pod, event: str) -> str:
    """Return why a pod waits or ended; `event` is the newest event that explains a wait."""
    if pod.phase == PodPhase.RUNNING:
        return ""
    if pod.phase == PodPhase.WAITING:
        return _why_waiting(pod, event)
    if disruption := _disruption(pod):
        return disruption
    if pod.phase == PodPhase.LEAVING:
        return "being deleted"
    if pod.main is None or not pod.main.ended:
        return f"{pod.reason or pod.reported}: {pod.message}"
    is_plain = pod.main.reason in ("Completed", "Error")
    return "" if is_plain else f"{pod.main.reason} {pod.main.message}"


def _why_waiting(pod: Pod, event: str) -> str:
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and not scheduled.holds:
        if scheduled.reason == "SchedulingGated":
            return "held by a scheduling gate: Kueue or another controller has not released it"
        return f"not scheduled: {_scheduler_reason(scheduled.message)}"
    for container in (*pod.init_containers, *pod.containers):
        if why := _container_problem(container):
            return why
    # Only events report a mount or a sandbox that fails.
    return event


def _container_problem(container: Container) -> str:
    """Return why a container keeps its pod from starting; empty if it does not."""
    if container.ended:
        return f"container {container.name} ended with {container.code}" if container.code else ""
    if container.reason in _STARTING_REASONS:
        return ""
    return f"{container.reason}: {container.message or container.image}"


def _scheduler_reason(message: str) -> str:
    """Return the scheduler's message about the nodes, without its part about preemption."""
    first = re.split(r"\bpreemption:", message)[0].strip().rstrip(".")
    return first or "the scheduler has not looked at it yet"


def _disruption(pod: Pod) -> str:
    """Return why Kubernetes ended the pod; empty if it did not."""
    target = pod.condition("DisruptionTarget")
    if target is None or not target.holds:
        return ""
    if target.reason == "PreemptionByScheduler":
        return f"preempted: {target.message}"
    if target.reason == "DeletionByTaintManager":
        return f"node lost: {target.message}"
    return f"{target.reason or 'disrupted'}: {target.message}"


_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class End(StrEnum):
    """The end of a run, as its Job or JobSet states it."""

    COMPLETED = "Completed"
    FAILED = "Failed"


#: Conditions of a Job or JobSet that mean its end. The first of each comes while pods still run.
_ENDS = {
    End.FAILED: ("FailureTarget", "Failed"),
    End.COMPLETED: ("SuccessCriteriaMet", "Completed", "Complete"),
}
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
    exists: bool
    pods: tuple[Pod, ...] = ()
    wanted: int = 0
    #: Why the run is suspended; empty if it is not.
    suspended: str = ""
    #: Why there are no pods; empty if there are, or if the reason is unknown.
    stuck: str = ""
    #: None until that is decided.
    ended: End | None = None
    reason: str = ""
    #: The newest event that explains a wait, as text, by the name of its object.
    events: Mapping[str, str] = field(default_factory=dict)

    def why(self, pod: Pod) -> str:
        """Return why a pod waits or ended, for people; empty if nothing is wrong so far."""
        return plain(_why(pod, self.events.get(pod.name, "")), 300)

    @property
    def first(self) -> Pod | None:
        """Return the pod of the coordinator; the newest if a queue admitted the run again."""
        found = (p for p in self.pods if p.coordinates)
        return max(found, key=lambda p: (p.created, p.phase != PodPhase.LEAVING), default=None)


def read_state(
    *,
    jobset: Controller | None,
    job: Controller | None,
    pods: Iterable[Pod],
    events: Iterable[Event] = (),
    workload: Object | None = None,
) -> State:
    """Return the state of a run. Either of `jobset` and `job` may be missing."""
    event_texts = _newest_events(events)
    sorted_pods = tuple(sorted(pods, key=lambda pod: (pod.index, pod.name)))
    controllers = [c for c in (jobset, job) if c is not None]
    if not controllers:
        return State(exists=False, pods=sorted_pods, events=event_texts)
    ended, reason = next(filter(None, map(_end, controllers)), (None, ""))
    stuck = ""
    if not sorted_pods and ended is None:
        stuck = next((event_texts[c.name] for c in controllers if c.name in event_texts), "")
    suspended = ""
    if ended is None and any(c.suspended for c in controllers):
        suspended = _suspended(controllers[0], workload)
    return State(
        exists=True,
        pods=sorted_pods,
        wanted=max(controller.pods for controller in controllers),
        suspended=suspended,
        stuck=stuck,
        ended=ended,
        reason=reason,
        events=event_texts,
    )


def _end(controller: Controller) -> tuple[End, str] | None:
    """Return how a Job or JobSet ended, and why; None if it has not ended."""
    for end, kinds in _ENDS.items():
        for kind in kinds:
            condition = controller.condition(kind)
            if condition is not None and condition.holds:
                return end, plain(condition.text, 300)
    return None


def _suspended(owner: Controller, workload: Object | None) -> str:
    queue = owner.labels.get(_QUEUE_LABEL)
    if not queue:
        return "suspended: it starts when its `suspend` is set to false"
    where = f"suspended in queue {plain(queue, 80)}"
    if workload is None:
        return f"{where}: no Workload yet, so Kueue has not looked at it"
    for kind in ("QuotaReserved", "Admitted"):
        condition = workload.condition(kind)
        if condition is not None and not condition.holds and condition.message:
            return f"{where}: {plain(condition.message, 300)}"
    evicted = workload.condition("Evicted")
    if evicted is not None and evicted.holds:
        return f"{where}: evicted: {plain(evicted.message, 300)}"
    return f"{where}: waiting for its turn"


def _newest_events(events: Iterable[Event]) -> dict[str, str]:
    """Return the newest event that explains a wait, as text, by the name of its object."""
    explaining = (e for e in events if e.warning and e.reason in _EVENT_REASONS)
    return {
        event.about: plain(f"{event.reason}: {event.message}", 300)
        for event in sorted(explaining, key=lambda event: event.when)
    }


def state_lines(state: State) -> tuple[str, ...]:
    """Describe a state in lines; the same state gives the same lines."""
    if not state.exists:
        return ()
    shown_lines = []
    if state.suspended:
        shown_lines.append(state.suspended)
    if state.stuck:
        shown_lines.append(f"no pods yet: {state.stuck}")
    if state.pods:
        counted = {phase: sum(p.phase == phase for p in state.pods) for phase in PodPhase}
        shown = ", ".join(f"{n} {phase}" for phase, n in counted.items() if n)
        shown_lines.append(
            f"pods: {shown}, of {state.wanted}" if state.wanted else f"pods: {shown}"
        )
    shown_lines += waiting_reasons(state)
    if state.ended is not None:
        end = state.ended.lower()
        shown_lines.append(f"{end}: {state.reason}" if state.reason else end)
    return tuple(shown_lines)


def waiting_reasons(state: State) -> tuple[str, ...]:
    """Return why pods wait or ended: one line for each reason, with its pods."""
    grouped: dict[str, list[str]] = {}
    for pod in state.pods:
        if why := state.why(pod):
            on = f" on {pod.node}" if pod.node else ""
            # The same reason may differ only in the name of the pod.
            grouped.setdefault(why.replace(pod.name, "it"), []).append(f"{pod.name}{on}")
    return tuple(f"  {shortened(names, _NAMES_SHOWN)}: {why}" for why, names in grouped.items())


def has_started(state: State) -> bool:
    """Return whether the coordinator's container has ever run."""
    first = state.first
    return first is not None and (first.ran or first.phase == PodPhase.ENDED) and bool(first.node)


#: The label of everything that belongs to a run.
RUN_LABEL = "accept-run"
#: Events are requested for this many pods; the others usually wait for the same reasons.
_MAX_PODS_WITH_EVENTS = 6


def place_of(job: Job) -> RunPlace:
    """Return where a submitted run is in its cluster."""
    assert job.place is not None
    return job.place


def run_selector(name: str) -> str:
    """Return the label selector of everything that belongs to a run."""
    return f"{RUN_LABEL}={name}"


def has_namespace(api: Api) -> bool | None:
    """Return whether the namespace exists; None if this user may not read it."""
    try:
        return api.find(NAMESPACE, api.place.namespace) is not None
    except ApiError:
        return None


def find_controllers(api: Api, name: str) -> tuple[Controller | None, Controller | None]:
    """Return the JobSet of a run, if any, and the Job that runs the pod of its coordinator."""
    try:
        jobset = api.find(JOBSET, name)
    except ApiError as error:
        # A user who may not read JobSets could not have made one. The cluster may have none at all.
        if error.status != 403:
            raise
        jobset = None
    # The Jobs of a JobSet have names of their own, and the same label.
    jobs = api.find_all(JOB, labels=run_selector(name))
    return jobset, next((job for job in jobs if job.coordinates), None)


def query_state(api: Api, name: str) -> State:
    """Return the state of the run called `name`. Raises ApiError."""
    jobset, job = find_controllers(api, name)
    pods = api.find_all(POD, labels=run_selector(name))
    state = read_state(jobset=jobset, job=job, pods=pods)
    owner = jobset or job
    if state.ended or owner is None:
        return state
    workload = _workload(api, owner) if state.suspended else None
    waiting = [p.name for p in state.pods if p.phase == PodPhase.WAITING][:_MAX_PODS_WITH_EVENTS]
    if not state.pods and not state.suspended:
        waiting = [controller.name for controller in (jobset, job) if controller]
    if not waiting and workload is None:
        return state
    events = [event for object_name in waiting for event in _events(api, object_name)]
    return read_state(jobset=jobset, job=job, pods=pods, events=events, workload=workload)


def _events(api: Api, name: str) -> tuple[Event, ...]:
    """Return the events of an object; none if the user may not see them."""
    try:
        return api.find_all(objects.EVENT, fields=f"involvedObject.name={name}")
    except ApiError as error:
        if error.passing:
            raise
        return ()


def _workload(api: Api, owner: Controller) -> Object | None:
    """Return Kueue's Workload of a Job or JobSet."""
    try:
        workloads = api.find_served(WORKLOADS)
    except ApiError as error:
        if error.passing:
            raise
        return None
    return next((w for w in workloads if any(o.uid == owner.uid for o in w.owners)), None)
