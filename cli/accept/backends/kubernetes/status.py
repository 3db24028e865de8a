"""Where a run on a cluster is: pure functions from plain objects of the API to what to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from accept.backends.kubernetes.pod import Object, Pod, read_pod
from accept.core.text import plain

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
