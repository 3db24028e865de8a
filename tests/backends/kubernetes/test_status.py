"""The status of a run on a cluster, from objects of the API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.factories.kubernetes import (
    INDEX,
    NOT_TOLERATED,
    container,
    event,
    job,
    jobset,
    pod,
    running,
    state_of,
    unscheduled,
)

from accept.backends.kubernetes.collect import scrubbed
from accept.backends.kubernetes.objects import Pod, PodPhase, list_at, value_at
from accept.backends.kubernetes.status import (
    End,
    has_started,
    state_lines,
    waiting_reasons,
)


@pytest.mark.parametrize("index", ["²", "9" * 5000, "-1", ""])
def test_a_pod_with_an_invalid_index_has_none(index: str) -> None:
    strange = pod()
    strange["metadata"]["annotations"][INDEX] = index
    assert Pod.read(strange).index == -1


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod(**container(waiting={"reason": reason, "message": message}))


def ended(code: int, reason: str) -> dict[str, Any]:
    return pod(phase="Failed", **container(terminated={"exitCode": code, "reason": reason}))


def disrupted(reason: str, message: str) -> dict[str, Any]:
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {"conditions": [target]}


def deleted(document: dict[str, Any]) -> dict[str, Any]:
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return document


def explained(document: dict[str, Any]) -> tuple[PodPhase, str]:
    """Return what a pod of a run does, and why."""
    state = state_of(job=job(), pods=[document])
    return state.pods[0].phase, state.why(state.pods[0])


NO_VICTIMS = "preemption: 0/3 nodes are available: 3 No preemption victims."
SHORT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
LOST = {**disrupted("DeletionByTaintManager", "taint"), **container(running={})}


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (unscheduled(f"{NOT_TOLERATED} {NO_VICTIMS}"), f"not scheduled: {SHORT}"),
        (unscheduled("", "SchedulingGated"), "held by a scheduling gate: Kueue or another"),
        (waiting("CrashLoopBackOff", "why"), "CrashLoopBackOff: why"),
        # The image, if the reason has no message.
        (waiting("ImagePullBackOff"), "ImagePullBackOff: img:1"),
        (waiting("ErrImagePull", "\x1b[31mred\x1b[0m\nnext"), "ErrImagePull: red next"),
        (waiting("ContainerCreating"), ""),
        (pod(initContainerStatuses=[{"name": "c", "state": BACK_OFF}]), "CrashLoopBack"),
    ],
)
def test_a_pod_waits_for_a_reason(document: dict[str, Any], shown: str) -> None:
    phase, why = explained(document)
    assert phase is PodPhase.WAITING
    assert why.startswith(shown)
    assert bool(why) is bool(shown)


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (
            pod(phase="Failed", **disrupted("PreemptionByScheduler", "by x")),
            "ended, preempted: by x",
        ),
        (deleted(pod(phase="Running", **LOST)), "leaving, node lost: taint"),
        (ended(3, "Error"), "ended, "),
        (ended(137, "OOMKilled"), "ended, OOMKilled"),
        (pod(phase="Failed", reason="Unexpected", message="no GPUs"), "ended, Unexpected: no GPUs"),
    ],
)
def test_a_pod_leaves_for_a_reason(document: dict[str, Any], shown: str) -> None:
    assert ", ".join(explained(document)) == shown


def test_a_pod_has_the_exit_code_of_its_main_container() -> None:
    assert [Pod.read(one).code for one in (ended(3, "Error"), pod(phase="Failed"))] == [3, None]


def test_a_pod_without_a_reason_is_explained_by_its_newest_event() -> None:
    one = waiting("ContainerCreating")
    name = one["metadata"]["name"]
    events = [
        event(name, "FailedMount", "secret x not found", "2026-01-01T00:00:05Z"),
        event(name, "FailedScheduling", "older", "2026-01-01T00:00:01Z"),
        event("another", "FailedMount", "of another", "2026-01-01T00:00:09Z"),
    ]
    state = state_of(job=job(), pods=[one], events=events)
    assert state.why(state.pods[0]) == "FailedMount: secret x not found"


FAILED = job(3, ("Failed", "x", ""))
FAILED["status"]["conditions"][0]["status"] = "False"


@pytest.mark.parametrize(
    ("document", "end", "reason"),
    [
        # The first of each comes while pods still run.
        (job(3, ("SuccessCriteriaMet", "SuccessPolicy", "")), End.COMPLETED, "SuccessPolicy"),
        (job(3, ("Complete", "SuccessPolicy", "")), End.COMPLETED, "SuccessPolicy"),
        (job(3, ("FailureTarget", "Policy", "exit 3")), End.FAILED, "Policy: exit 3"),
        (job(3, ("Failed", "Policy", "exit 3")), End.FAILED, "Policy: exit 3"),
        (job(3, ("SuccessCriteriaMet", "a", ""), ("FailureTarget", "b", "")), End.FAILED, "b"),
        (FAILED, None, ""),
    ],
)
def test_a_run_ends_as_its_job_reports(document: Any, end: End | None, reason: str) -> None:
    state = state_of(jobset=jobset(), job=document, pods=[running(1)])
    assert (state.ended, state.reason) == (end, reason)


def queued() -> dict[str, Any]:
    waits = jobset(suspend=True)
    waits["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "a4"}
    return waits


NO_QUOTA = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}


@pytest.mark.parametrize(
    ("document", "conditions", "line"),
    [
        (queued(), [NO_QUOTA], "queue a4: insufficient quota"),
        (queued(), [], "queue a4: no Workload yet"),
        (jobset(suspend=True), [], "`suspend` is set to false"),
    ],
)
def test_a_suspended_run_shows_what_it_waits_for(
    document: Any, conditions: list[Any], line: str
) -> None:
    workload = {"status": {"conditions": conditions}} if conditions else None
    state = state_of(jobset=document, pods=[], workload=workload)
    assert line in state_lines(state)[0]


class TestTheStatusText:
    def test_counts_the_pods_and_groups_their_reasons_in_any_order(self) -> None:
        pods = [running(0)]
        for index in range(1, 8):
            pods.append(unscheduled())
            pods[-1]["metadata"] = {"name": f"p{index}", "annotations": {INDEX: str(index)}}
        for listed in (pods, pods[::-1]):
            assert state_lines(state_of(jobset=jobset(), job=job(8), pods=listed)) == (
                "pods: 1 running, 7 waiting, of 8",
                f"  p1, p2, p3, p4 and 3 more: not scheduled: {NOT_TOLERATED.rstrip('.')}",
            )

    def test_shows_why_there_is_no_pod_yet(self) -> None:
        events = [event("run-w-0", "FailedCreate", "exceeded quota: gpus")]
        state = state_of(jobset=jobset(), job=job(), pods=[], events=events)
        assert state_lines(state) == ("no pods yet: FailedCreate: exceeded quota: gpus",)

    def test_is_empty_for_a_run_that_does_not_exist(self) -> None:
        assert state_lines(state_of(pods=[])) == ()

    def test_names_no_reason_for_running_pods(self) -> None:
        assert waiting_reasons(state_of(job=job(), pods=[running(0)])) == ()

    def test_counts_the_pods_of_a_jobset_before_its_job_exists(self) -> None:
        assert state_of(jobset=jobset(), pods=[]).wanted == 3


class TestTheCoordinator:
    def test_is_index_0_in_any_order_of_the_pods(self) -> None:
        state = state_of(job=job(), pods=[running(2), running(0), running(1)])
        assert state.first is not None
        assert state.first.index == 0

    def test_is_the_newest_pod_if_a_queue_admitted_the_run_again(self) -> None:
        old = replace(Pod.read(ended(5, "Error")), created="2026-01-01T00:00:00Z")
        new = replace(Pod.read(running(0)), name="Z", created="2026-01-01T00:09:00Z")
        state = state_of(job=job())
        for pods in ((old, new), (new, old)):
            assert replace(state, pods=pods).first is new

    def test_has_started_when_it_runs(self) -> None:
        found = [has_started(state_of(job=job(), pods=[running(index)])) for index in (0, 1)]
        assert found == [True, False]
        assert not has_started(state_of(job=job(), pods=[unscheduled()]))


def test_a_stored_object_has_no_values_of_variables_and_no_copies_of_itself() -> None:
    source = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    variables = [{"name": "TOKEN", "value": "hush"}, "odd", source]
    copy = {"kubectl.kubernetes.io/last-applied-configuration": "hush", "kept": "yes"}
    meta = {"managedFields": [{"x": "hush"}], "annotations": copy}
    kept = scrubbed({"metadata": meta, "spec": {"containers": [{"env": variables}]}})
    assert "hush" not in str(kept)
    assert value_at(kept, "metadata") == {"annotations": {"kept": "yes"}}
    (kept_container,) = list_at(kept, "spec", "containers")
    token, last = list_at(kept_container, "env")
    assert (token["name"], last) == ("TOKEN", source)
