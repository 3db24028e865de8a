"""The status of a run on a cluster, from objects of the API."""

from __future__ import annotations

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
    pod_of,
    running,
    state_of,
    unscheduled,
)

from accept.backends.kubernetes.collect import scrubbed
from accept.backends.kubernetes.objects import list_at, value_at
from accept.backends.kubernetes.status import (
    End,
    Pod,
    PodPhase,
    PodReason,
    State,
    Suspension,
    has_started,
    state_lines,
    waiting_reasons,
)


@pytest.mark.parametrize("index", ["²", "9" * 5000, "-1", ""])
def test_a_pod_with_an_invalid_index_has_none(index: str) -> None:
    strange = pod()
    strange["metadata"]["annotations"][INDEX] = index
    assert pod_of(strange).index == -1


class TestAPodThatDoesNotStart:
    def test_is_explained_by_the_resource_that_is_short(self) -> None:
        message = f"{NOT_TOLERATED} preemption: 0/3 nodes are available: 3 No preemption victims."
        found = pod_of(unscheduled(message))
        assert (found.phase, found.reason) == (PodPhase.WAITING, PodReason.NOT_SCHEDULED)
        assert found.why.endswith("0/3 nodes are available: 3 Insufficient nvidia.com/gpu")

    def test_is_gated_if_it_has_a_scheduling_gate(self) -> None:
        assert pod_of(unscheduled("", "SchedulingGated")).reason is PodReason.GATED

    @pytest.mark.parametrize(
        "reason",
        ["ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff",
         "CreateContainerConfigError"],
    )  # fmt: skip
    def test_is_explained_by_the_reason_of_its_container(self, reason: str) -> None:
        found = pod_of(pod(**container(waiting={"reason": reason, "message": "because"})))
        assert (found.phase, found.reason) == (PodPhase.WAITING, PodReason.CONTAINER)
        assert found.why == f"{reason}: because"

    def test_names_the_image_if_the_reason_has_no_message(self) -> None:
        found = pod_of(pod(**container(waiting={"reason": "ImagePullBackOff"})))
        assert found.why == "ImagePullBackOff: img:1"

    def test_is_starting_while_its_containers_are_created(self) -> None:
        found = pod_of(pod(**container(waiting={"reason": "ContainerCreating"})))
        assert (found.phase, found.reason, found.why) == (PodPhase.WAITING, None, "")

    def test_is_explained_by_its_newest_event_if_its_status_has_no_reason(self) -> None:
        one = pod(**container(waiting={"reason": "ContainerCreating"}))
        name = one["metadata"]["name"]
        events = [
            event(name, "FailedMount", "secret x not found", "2026-01-01T00:00:05Z"),
            event(name, "FailedScheduling", "older", "2026-01-01T00:00:01Z"),
            event("another", "FailedMount", "of another", "2026-01-01T00:00:09Z"),
        ]
        state = state_of(job=job(), pods=[one], events=events)
        assert state.pods[0].reason is PodReason.EVENT
        assert state.pods[0].why == "FailedMount: secret x not found"

    def test_is_explained_by_an_init_container_that_fails(self) -> None:
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
        one = pod(initContainerStatuses=[{"name": "copy", "state": {"waiting": waiting}}])
        assert pod_of(one).why == "CrashLoopBackOff: back-off"

    def test_shows_no_control_characters(self) -> None:
        waiting = {"reason": "ErrImagePull", "message": "\x1b[31mred\x1b[0m\nnext"}
        assert pod_of(pod(**container(waiting=waiting))).why == "ErrImagePull: red next"


class TestAPodThatLeft:
    def test_shows_who_preempted_it(self) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "by pod x",
        }
        found = pod_of(pod(phase="Failed", conditions=[condition]))
        assert (found.phase, found.reason) == (PodPhase.ENDED, PodReason.PREEMPTED)
        assert ("by pod x" in found.why, found.code) == (True, None)

    def test_shows_that_its_node_is_lost(self) -> None:
        one = pod(phase="Running", conditions=[
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
             "message": "taint"},
        ], **container(running={}))  # fmt: skip
        one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        found = pod_of(one)
        assert (found.phase, found.reason) == (PodPhase.LEAVING, PodReason.NODE_LOST)

    def test_has_the_exit_code_of_its_main_container(self) -> None:
        ended = {"exitCode": 3, "reason": "Error"}
        found = pod_of(pod(phase="Failed", **container(terminated=ended)))
        assert (found.phase, found.reason, found.code) == (PodPhase.ENDED, None, 3)

    def test_shows_that_it_ran_out_of_memory(self) -> None:
        ended = {"exitCode": 137, "reason": "OOMKilled"}
        found = pod_of(pod(phase="Failed", **container(terminated=ended)))
        assert (found.reason, found.why) == (PodReason.CONTAINER, "OOMKilled")

    def test_shows_why_the_kubelet_refused_it(self) -> None:
        one = pod(phase="Failed", reason="UnexpectedAdmissionError", message="no GPUs")
        found = pod_of(one)
        assert found.reason is PodReason.KUBELET
        assert found.why == "UnexpectedAdmissionError: no GPUs"


class TestTheEnd:
    @pytest.mark.parametrize("kind", ["SuccessCriteriaMet", "Complete"])
    def test_of_a_job_that_succeeds_comes_before_its_pods_are_gone(self, kind: str) -> None:
        state = state_of(job=job(3, (kind, "SuccessPolicy", "")), pods=[running(1)])
        assert (state.ended, state.reason) == (End.COMPLETED, "SuccessPolicy")

    @pytest.mark.parametrize("kind", ["FailureTarget", "Failed"])
    def test_of_a_job_that_fails_comes_before_a_lost_pod_is_gone(self, kind: str) -> None:
        ended = job(3, (kind, "PodFailurePolicy", "exit code 3"))
        state = state_of(jobset=jobset(), job=ended, pods=[])
        assert (state.ended, state.reason) == (End.FAILED, "PodFailurePolicy: exit code 3")

    def test_is_failure_if_both_are_reported(self) -> None:
        both = job(3, ("SuccessCriteriaMet", "a", ""), ("FailureTarget", "b", ""))
        assert state_of(job=both, pods=[]).ended is End.FAILED

    def test_needs_a_condition_that_is_true(self) -> None:
        one = job(3, ("Failed", "x", ""))
        one["status"]["conditions"][0]["status"] = "False"
        assert state_of(job=one, pods=[]).ended is None


class TestSuspension:
    def test_names_the_queue_and_what_it_lacks(self) -> None:
        waiting = jobset(suspend=True)
        waiting["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "a4"}
        reserved = {
            "type": "QuotaReserved",
            "status": "False",
            "message": "insufficient quota for nvidia.com/gpu",
        }
        state = state_of(jobset=waiting, pods=[], workload={"status": {"conditions": [reserved]}})
        assert state.suspension is Suspension.QUOTA
        (line,) = state_lines(state)
        assert "queue a4: insufficient quota for nvidia.com/gpu" in line

    def test_without_a_workload_waits_for_kueue(self) -> None:
        waiting = jobset(suspend=True)
        waiting["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "a4"}
        assert state_of(jobset=waiting, pods=[]).suspension is Suspension.NO_WORKLOAD

    def test_without_a_queue_waits_for_somebody(self) -> None:
        assert state_of(job=job(3, suspend=True), pods=[]).suspension is Suspension.BY_HAND


class TestTheStatusText:
    def test_counts_the_pods_and_groups_their_reasons(self) -> None:
        pods = [running(0)]
        for index in range(1, 8):
            pods.append(unscheduled())
            pods[-1]["metadata"] = {"name": f"p{index}", "annotations": {INDEX: str(index)}}
        state = state_of(jobset=jobset(), job=job(8), pods=pods)
        assert state_lines(state) == (
            "pods: 1 running, 7 waiting, of 8",
            f"  p1, p2, p3, p4 and 3 more: not scheduled: {NOT_TOLERATED.rstrip('.')}",
        )

    def test_is_the_same_for_the_same_state(self) -> None:
        def state() -> Any:
            return state_of(jobset=jobset(), job=job(), pods=[running(1), running(0)])

        assert state_lines(state()) == state_lines(state())

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

    def test_has_started_when_it_runs(self) -> None:
        assert has_started(state_of(job=job(), pods=[running(0)]))
        assert not has_started(state_of(job=job(), pods=[running(1)]))
        assert not has_started(state_of(job=job(), pods=[unscheduled()]))


class TestAStoredObject:
    def test_omits_values_of_variables_and_copies_of_the_object(self) -> None:
        spec = {"containers": [{"env": [{"name": "TOKEN", "value": "hush"}, "odd"]}]}
        meta = {
            "managedFields": [{"x": "hush"}],
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "hush",
                "kept": "yes",
            },
        }
        kept = scrubbed({"metadata": meta, "spec": spec})
        assert "hush" not in str(kept)
        assert value_at(kept, "metadata") == {"annotations": {"kept": "yes"}}
        (kept_container,) = list_at(kept, "spec", "containers")
        assert list_at(kept_container, "env")[0]["name"] == "TOKEN"

    def test_still_has_the_source_of_a_variable(self) -> None:
        source = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        assert scrubbed({"env": [source]}) == {"env": [source]}


def test_index_0_is_the_newest_pod_if_a_queue_admitted_the_run_again() -> None:
    old = Pod(
        name="a",
        index=0,
        coordinates=True,
        phase=PodPhase.ENDED,
        code=5,
        created="2026-01-01T00:00:00Z",
    )
    new = Pod(
        name="Z", index=0, coordinates=True, phase=PodPhase.RUNNING, created="2026-01-01T00:09:00Z"
    )
    assert State(exists=True, pods=(old, new)).first is new
    assert State(exists=True, pods=(new, old)).first is new
