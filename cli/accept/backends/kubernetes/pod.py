"""One pod of a run, from its plain object: what it does, and why it waits or left."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
