"""`accept run --backend kubernetes` and the commands around it, on real kubelets."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import ALL_REDUCE, CONNECT

from accept.core.evidence import read_records
from accept.core.facts import PLACE


def test_good_nodes_are_accepted_and_delete_leaves_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    keys = {"positionLabels": ["kubernetes.io/hostname"]}
    desk = Desk(cluster, namespace, tmp_path, kubernetes=keys, results={"holdSeconds": 120})
    before = desk.everything()
    train = "check: train, timeout: 6m, params: {steps: 40}"
    done = desk.run(checks=[*CONNECT, *ALL_REDUCE, train])
    assert done.ending == ("pass", 0), done.err
    assert set(done.result["hosts"]) == set(cluster.nodes)
    assert desk.ended() == "Completed"
    assert f"ConfigMap {done.result['attempt']}-positions" in desk.made()
    desk.evidence_holds(done)
    records = read_records(desk.evidence(done.result["attempt"]))
    places = {fact.host: place for fact, place in PLACE.of(*records)}
    assert places == {node: node for node in cluster.nodes}
    assert desk.do("clean", done.result["attempt"]).exit == 0
    desk.leaves(before)


def test_pods_may_use_the_network_of_their_nodes(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    keys = {"hostNetwork": True}
    desk = Desk(cluster, namespace, tmp_path, kubernetes=keys, results={"holdSeconds": 120})
    done = desk.run(checks=[*CONNECT, *ALL_REDUCE])
    assert done.ending == ("pass", 0), done.err
    assert set(done.result["hosts"]) == set(cluster.nodes)


def test_pods_may_be_anybodys_but_root_and_have_no_rights(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """As by default, in spite of the node's folders, which provide Open MPI here."""
    # The tests' image knows nobody but root who may log in.
    users = "root:x:0:0::/root:/bin/sh\nrunner:x:1000:1000::/tmp:/bin/sh\n"
    named = f"--from-literal=passwd={users}"
    cluster.kubectl("-n", namespace, "create", "configmap", "users", named)
    volumes, mounts = cluster.checkout_volumes()
    keys = {
        "podSecurityContext": {"runAsNonRoot": True},
        "extraVolumes": [
            *volumes,
            {"name": "users", "configMap": {"name": "users"}},
            {"name": "root", "emptyDir": {}},
        ],
        "extraVolumeMounts": [
            # Mounts may be below /root, which only root may enter in the image.
            {"name": "root", "mountPath": "/root"},
            *mounts,
            {"name": "users", "mountPath": "/etc/passwd", "subPath": "passwd"},
        ],
    }
    desk = Desk(cluster, namespace, tmp_path, kubernetes=keys, results={"holdSeconds": 120})
    done = desk.run(checks=[*CONNECT, *ALL_REDUCE])
    assert done.ending == ("pass", 0), done.err
    desk.evidence_holds(done)
