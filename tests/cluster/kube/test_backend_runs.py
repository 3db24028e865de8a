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
    assert done.suspects == {(node, "slow-outlier")}
    assert desk.ended() == "Failed"
    assert all(desk.log(index) for index in range(3))
    desk.evidence_holds(done)


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
