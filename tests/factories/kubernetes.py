"""Objects as the Kubernetes API returns them: nodes, pods, Jobs, JobSets and events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accept.backends.job import Job, RunPlace
from accept.backends.kubernetes import objects, status

GPU = "nvidia.com/gpu"
GPU_TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
INDEX = "batch.kubernetes.io/job-completion-index"
NOT_TOLERATED = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def node(name: str, *, gpus: int = 8, ready: str = "True", **spec: Any) -> dict[str, Any]:
    """Return a node of the kind b200 with the taint of GPU nodes; `spec` overrides its spec."""
    return {
        "metadata": {"name": name, "labels": {"kind": "b200", "kubernetes.io/hostname": name}},
        "spec": {"taints": [GPU_TAINT], **spec},
        "status": {
            "allocatable": {GPU: str(gpus)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod_on(node_name: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    """Return a pod of somebody else that holds GPUs of a node."""
    container = {"resources": {"limits": {GPU: gpus}}}
    return {"spec": {"nodeName": node_name, "containers": [container]}, "status": {"phase": phase}}


def pod(index: int = 0, *, node: str = "node-a", **status: Any) -> dict[str, Any]:
    """Return a pod of a run, pending unless `status` overrides that."""
    return {
        "metadata": {"name": f"run-w-0-{index}-abcde", "annotations": {INDEX: str(index)}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Pending", **status},
    }


def container(**state: Any) -> dict[str, Any]:
    """Return the part of a pod's status that describes its one container."""
    return {"containerStatuses": [{"name": "accept", "image": "img:1", "state": state}]}


def running(index: int) -> dict[str, Any]:
    """Return a running pod of a run."""
    return pod(index, phase="Running", **container(running={"startedAt": "x"}))


def unscheduled(message: str = NOT_TOLERATED, reason: str = "Unschedulable") -> dict[str, Any]:
    """Return a pod of a run that has no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(node="", conditions=[condition])


def event(
    name: str, reason: str, message: str, when: str = "2026-01-01T00:00:00Z"
) -> dict[str, Any]:
    """Return a warning about the object `name`."""
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": when,
        "involvedObject": {"name": name},
    }


def job(count: int = 3, *conditions: tuple[str, str, str], **spec: Any) -> dict[str, Any]:
    """Return the Job of a run; each condition is a type, a reason and a message."""
    return {
        "metadata": {"name": "run-w-0", "labels": {}},
        "spec": {"parallelism": count, **spec},
        "status": {
            "conditions": [
                {"type": t, "status": "True", "reason": r, "message": m} for t, r, m in conditions
            ]
        },
    }


def jobset(**spec: Any) -> dict[str, Any]:
    """Return the JobSet of a run with three pods."""
    template = {"spec": {"parallelism": 3}}
    replicated = [{"name": "w", "replicas": 1, "template": template}]
    return {
        "metadata": {"name": "run", "labels": {}},
        "spec": {"replicatedJobs": replicated, **spec},
    }


def listed(*documents: dict[str, Any]) -> dict[str, Any]:
    """Return a list of objects, as the API returns it."""
    return {"items": list(documents)}


def state_of(
    *,
    jobset: dict[str, Any] | None = None,
    job: dict[str, Any] | None = None,
    pods: Iterable[dict[str, Any]] = (),
    events: Iterable[dict[str, Any]] = (),
    workload: dict[str, Any] | None = None,
) -> status.State:
    """Return the state of a run whose objects the API returns as these documents."""
    return status.read_state(
        jobset=objects.Controller.read(jobset) if jobset else None,
        job=objects.Controller.read(job) if job else None,
        pods=map(objects.Pod.read, pods),
        events=map(objects.Event.read, events),
        workload=objects.Object.read(workload) if workload else None,
    )


def stored_job(**place: str) -> Job:
    """Return the job that a run folder stores about a run on the stand-in cluster, at `place`."""
    return Job(
        schema=1, backend="kubernetes", attempt="run", hosts=(), first="", folder="",
        place=RunPlace(**{"namespace": "lab", "context": "standin", "release": "run", **place}),
    )  # fmt: skip
