"""`accept run --backend kubernetes` and the commands around it, on real kubelets."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import ALL_REDUCE, CONNECT, PAIRS


def test_good_nodes_are_accepted_and_delete_leaves_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    before = desk.everything()
    done = desk.run(checks=[*CONNECT, *ALL_REDUCE])
    assert done.ending == ("pass", 0), done.err
    assert set(done.result["hosts"]) == set(cluster.nodes)
    assert desk.ended() == "Completed"
    desk.evidence_holds(done)
    assert desk.do("delete", done.result["attempt"]).exit == 0
    assert desk.everything() == before


def test_a_slow_link_is_found_and_its_node_named(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    node = cluster.nodes[1]
    cluster.shape()
    try:
        cluster.slow(node)
        # Of three pairs two are slow, so it takes a bound to tell who is.
        done = desk.run("--expect", "all-reduce@1M>=0.009", checks=[*CONNECT, *PAIRS])
    finally:
        cluster.unshape()
    assert done.exit == 3, done.err
    assert done.suspects == {(node, "below-reference")}
    assert desk.ended() == "Failed"
    assert all(desk.log(index) for index in range(3))
    desk.evidence_holds(done)


def test_the_other_way_to_run_pods_is_a_plain_job(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    keys = {"controller": "job"}
    desk = Desk(cluster, namespace, tmp_path, kubernetes=keys, results={"holdSeconds": 120})
    done = desk.run(checks=CONNECT)
    assert done.ending == ("pass", 0), done.err
    assert desk.objects("jobsets") == []


def test_pods_may_use_the_network_of_their_nodes(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    keys = {"hostNetwork": True}
    desk = Desk(cluster, namespace, tmp_path, kubernetes=keys, results={"holdSeconds": 120})
    done = desk.run(checks=[*CONNECT, *ALL_REDUCE])
    assert done.ending == ("pass", 0), done.err
    assert set(done.result["hosts"]) == set(cluster.nodes)


def test_training_runs_over_pods(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    done = desk.run(checks=[*CONNECT, "check: train, timeout: 120s, params: {steps: 40}"])
    assert done.ending == ("pass", 0), done.err


def test_two_runs_in_a_namespace_do_not_touch_each_other(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    desks = []
    for place in places:
        place.mkdir()
        desks.append(Desk(cluster, namespace, place, results={"holdSeconds": 120}))
    started = [desk.start(checks=CONNECT) for desk in desks]
    done = [each.wait() for each in started]
    assert [each.ending for each in done] == [("pass", 0)] * 2, done[0].err + done[1].err
    assert len({each.result["attempt"] for each in done}) == 2


def test_a_suspended_run_waits_and_says_so_and_goes_on_when_released(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    keys = {"suspend": True}
    desk = Desk(cluster, namespace, tmp_path, kubernetes=keys, results={"holdSeconds": 120})
    started = desk.start(checks=CONNECT)
    started.says("suspended")
    # Kueue's part: its controller cannot be had here.
    name = desk.jobset()["metadata"]["name"]
    cluster.kubectl(
        "-n", namespace, "patch", "jobset", name, "--type=merge", "-p", '{"spec":{"suspend":false}}'
    )
    assert started.wait().ending == ("pass", 0)


def test_the_api_server_restarts_while_a_run_is_watched(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    started = desk.start(checks=[*CONNECT, *PAIRS])
    started.says("hosts: 3 of 3")
    cluster.stop_api()
    cluster.start_api()
    done = started.wait()
    assert done.ending == ("pass", 0), done.err
    # Nothing is said twice, and nothing is left out.
    assert done.err.count("hosts: 3 of 3") == 1
    assert done.err.count("[2/2]") == 1


def test_more_nodes_than_there_are_is_no_start(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path)
    before = desk.everything()
    done = desk.run(nodes=4, checks=CONNECT)
    assert (done.exit, done.out) == (4, "")
    assert "3 of 4" in done.err or "3" in done.err
    assert desk.everything() == before


def test_fewer_gpus_than_asked_is_no_start(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path)
    desk.machine.write_text(
        desk.machine.read_text()
        .replace("gpus: {count: 0}", "gpus: {count: 8}")
        .replace("ranksPerNode: 1", "ranksPerNode: gpus")
        + "kubernetes:\n  resources: {limits: {nvidia.com/gpu: 8}}\n"
    )
    cluster.fake_gpus(cluster.nodes[0], 8, "nvidia-b200")
    cluster.fake_gpus(cluster.nodes[1], 4, "nvidia-b200")
    try:
        done = desk.run(nodes=2, checks=CONNECT)
    finally:
        for node in cluster.nodes[:2]:
            cluster.no_gpus(node)
    assert (done.exit, done.out) == (4, "")
    assert cluster.nodes[1] in done.err


def test_a_watch_that_was_left_is_taken_up_again(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    started = desk.start(checks=[*CONNECT, *PAIRS])
    started.says("hosts: 3 of 3")
    started.kill()
    done = desk.do("watch", "last")
    assert done.exit == 0, done.err
    assert desk.do("collect", "last").exit == 0
    assert desk.do("judge", "last").exit == 0
