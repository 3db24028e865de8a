"""Faults of pods and nodes: each is named, judged and ended, and the logs are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import CONNECT, ENDLESS, LONG, until

HOLD = {"holdSeconds": 120}


def is_measuring(cluster: Cluster, node: str) -> bool:
    """Return True if ranks of a collective run on the node.

    A host that is lost before that is left out of the step, and the others run it to its end.
    """
    return any("collective.py" in process.command for process in cluster.hosts.processes(node))


def kill_second_pod(cluster: Cluster, namespace: str, desk: Desk) -> str:
    """Kill the second pod of a run as soon as its node measures, and return the node's name."""
    victim = desk.pods()[1]
    node, name = str(victim["spec"]["nodeName"]), victim["metadata"]["name"]
    until(lambda: is_measuring(cluster, node))
    cluster.kubectl("-n", namespace, "delete", "pod", name, "--grace-period=0", "--force")
    return node


def test_a_pod_that_is_killed_in_the_middle_is_named(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    started = desk.start(checks=LONG)
    desk.wait_for_log("[1/2]")
    node = kill_second_pod(cluster, namespace, desk)
    done = started.wait()
    assert done.exit == 3, done.err
    assert (node, "host-died") in done.suspects
    assert desk.ended() == "Failed"


def test_a_separate_coordinator_judges_the_loss_of_a_host(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Without the pod that stays, the Job of the hosts fails, and ends the coordinator."""
    volumes, mounts = cluster.checkout_volumes()
    keys = {
        "coordinator": "separate",
        "coordinatorPod": {"volumes": volumes, "volumeMounts": mounts},
    }
    desk = Desk(cluster, namespace, tmp_path, results=HOLD, kubernetes=keys)
    started = desk.start(nodes=2, checks=LONG)
    until(lambda: "[1/2]" in desk.log())
    # The first of the tested nodes is a host like the others.
    node = kill_second_pod(cluster, namespace, desk)
    done = started.wait()
    assert done.exit == 3, done.err
    assert (node, "host-died") in done.suspects
    assert desk.ended() == "Failed"
    assert desk.log().splitlines()[-1].startswith("verdict: fail")


def test_a_pod_that_never_started_blames_no_node_and_the_others_are_good(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, startTimeout="45s")
    desk.install(desk.render(nodes=4, checks=CONNECT))
    desk.wait_for_log("-----END ACCEPT")
    assert desk.ended(60) == "Failed"
    assert "hosts: 3 of 4 answered" in desk.log()
    (line,) = (line for line in desk.log().splitlines() if line.startswith("VERDICT "))
    assert line.split()[1:5] == ["degraded", "good=3", "bad=none", "untested=1"]
    codes = ended(desk)
    # The first is the verdict's. Of the other pods, those that had ended stay, with their logs.
    assert codes.pop(0) == 3
    for index, code in codes.items():
        assert (code, "the run is over" in desk.log(index)) == (0, True)


def ended(desk: Desk) -> dict[int, int]:
    """Return the exit codes of pods that ended by themselves; they still have their logs."""
    codes = {}
    for index, pod in desk.pods().items():
        state = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
        if "terminated" in state and "deletionTimestamp" not in pod["metadata"]:
            codes[index] = state["terminated"]["exitCode"]
    return codes


@pytest.mark.fault(Fault.HOST_LOST, BackEnd.KUBERNETES)
def test_a_lost_node_is_named(
    cluster: Cluster, namespace: str, tmp_path: Path, fault_record: FaultRecord
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    started = desk.start(checks=LONG)
    desk.wait_for_log("[1/2]")
    pods = desk.pods()
    node = pods[2]["spec"]["nodeName"]
    until(lambda: is_measuring(cluster, node))
    fault_record.begins(node)
    cluster.stop_kubelet(node)
    cluster.cut(node)
    try:
        done = fault_record.judged(started.wait(), desk)
        assert done.exit == 3, done.err
        assert (node, "host-died") in done.suspects
        # It is decided at once, by the code of index 0; the Job ends when the lost pod's object is
        # gone, and not before.
        until(lambda: "exit code 3" in decided(desk))
        assert desk.state() == ""
        name = pods[2]["metadata"]["name"]
        cluster.kubectl("-n", namespace, "delete", "pod", name, "--grace-period=0", "--force")
        assert desk.ended() == "Failed"
    finally:
        cluster.join(node)
        cluster.start_kubelet(node)
        cluster.wait_ready(node)


def decided(desk: Desk) -> str:
    """Return why the Job is going to fail, or ""."""
    (job,) = desk.objects("jobs")
    conditions = job.get("status", {}).get("conditions") or ()
    true = (c for c in conditions if c["type"] == "FailureTarget" and c["status"] == "True")
    return next((c.get("message", "") for c in true), "")


@pytest.mark.parametrize(
    ("orderly", "reason"),
    [
        pytest.param(
            False,
            "the pod of the coordinator was lost",
            marks=pytest.mark.fault(Fault.FIRST_HOST_LOST, BackEnd.KUBERNETES),
        ),
        # As a drain or an eviction does it.
        (True, "the pod of the coordinator was deleted"),
    ],
    ids=["lost", "deleted"],
)
def test_without_index_0_the_finished_steps_are_judged(
    cluster: Cluster,
    namespace: str,
    tmp_path: Path,
    fault_record: FaultRecord,
    reason: str,
    *,
    orderly: bool,
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    before = desk.everything()
    started = desk.start(checks=ENDLESS)
    desk.wait_for_log("step 2/2")
    pod = desk.pods()[0]
    name = pod["metadata"]["name"]
    fault_record.begins(f"its pod on {pod['spec']['nodeName']}")
    if orderly:
        cluster.kubectl("-n", namespace, "delete", "pod", name)
    else:
        # A lost host ends nothing in an orderly way: stopped processes do not react.
        stop = ("exec", name, "-c", "accept", "--", "sh", "-c", "kill -STOP -1")
        cluster.kubectl("-n", namespace, *stop)
        delete = ("delete", "pod", name, "--grace-period=0", "--force")
        cluster.kubectl("-n", namespace, *delete)
    done = fault_record.judged(started.wait(), desk)
    assert (done.ending, done.result["interruption"]) == (("not-tested", 5), reason), done.err
    checks = {one["check"]: one["state"] for one in done.result["checks"]}
    assert checks["connectivity"] == "pass", done.err
    assert desk.do("clean", done.result["attempt"]).exit == 0
    desk.leaves(before)


def test_a_pod_without_its_sshd_is_named(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    started = desk.start(checks=LONG)
    desk.wait_for_log("[1/2]")
    victim = desk.pods()[1]
    node, name = victim["spec"]["nodeName"], victim["metadata"]["name"]
    cluster.kubectl("-n", namespace, "exec", name, "-c", "accept", "--", "pkill", "-KILL", "sshd")
    done = started.wait()
    assert done.exit == 3, done.err
    assert node in {who for who, _ in done.suspects}


def test_a_run_that_is_on_its_way_is_not_upgraded(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path)
    values = desk.render(checks=ENDLESS)
    desk.install(values)
    until(lambda: len(desk.pods()) == 3)
    again = desk.install(values, check=False, verb="upgrade")
    assert again.returncode != 0
    assert "[E-HELM-RUNNING]" in again.stderr
    assert desk.state() == ""
