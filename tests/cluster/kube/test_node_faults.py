"""Faults of nodes with pods, their links and disks: `python -m tests.reliability` runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.kube import nodes
from tests.cluster.kube.cluster import Cluster, why_not
from tests.cluster.kube.desk import WAITS, Desk, Pods
from tests.cluster.network import execute, inside
from tests.cluster.pauses import interruptions
from tests.cluster.runs import ALL_REDUCE, CONNECT, PAIRS, Done, until

pytestmark = pytest.mark.reliability

NODES = 4
RATE = "100mbit"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a cluster that is large enough to find a slow node without a bound."""
    if reason := why_not():
        pytest.skip(reason)
    with Cluster(NODES) as made:
        yield made


@pytest.fixture
def desk(cluster: Cluster, namespace: str, tmp_path: Path) -> Pods:
    return Pods(cluster, namespace, tmp_path)


@contextmanager
def limited(cluster: Cluster) -> Iterator[None]:
    """Give the links of all nodes the same rate."""
    with ExitStack() as undo:
        for node in cluster.nodes:
            undo.callback(cluster.hosts.shape, node)
            cluster.hosts.shape(node, RATE)
        yield


@contextmanager
def rules(cluster: Cluster, node: str, *parts: str) -> Iterator[None]:
    """Add rules of iptables to a node, for the packets of its pods."""
    command = [*inside(cluster.hosts.init(node)), "iptables"]
    with ExitStack() as undo:
        for part in parts:
            execute([*command, "-I", "FORWARD", *part.split()])
            undo.callback(execute, [*command, "-D", "FORWARD", *part.split()])
        yield


def finished(desk: Desk, record: FaultRecord, done: Done) -> Done:
    """Record the verdict, check that the evidence holds, and return `done`."""
    record.judged(done, desk)
    desk.evidence_holds(done)
    return done


def named(done: Done) -> set[str]:
    """Return the hosts of all suspects."""
    return {host for suspect in done.result["suspects"] for host in suspect["hosts"]}


@pytest.mark.fault(Fault.SLOW_LINK, BackEnd.KUBERNETES)
def test_a_node_with_a_slow_link_is_named(
    cluster: Cluster, desk: Desk, fault_record: FaultRecord
) -> None:
    bad = cluster.nodes[2]
    with limited(cluster):
        cluster.hosts.shape(bad, "50mbit")
        fault_record.begins(bad)
        done = desk.run(nodes=NODES, checks=[*CONNECT, *PAIRS])
    finished(desk, fault_record, done)
    assert done.suspects == {(bad, "slow-outlier")}, done.err
    assert done.ending == ("degraded", 3)


def losing(cluster: Cluster, node: str) -> AbstractContextManager[None]:
    """Let the link of a node lose 1 % of the packets of its pods."""
    lose = "-m statistic --mode random --probability 0.01 -j DROP"
    return rules(cluster, node, f"-i eth0 {lose}", f"-o eth0 {lose}")


def interrupted(cluster: Cluster, node: str) -> AbstractContextManager[None]:
    """Take the link of a node down for a moment, again and again."""
    return interruptions(cluster.hosts, node)


@pytest.mark.parametrize(
    "disturbed",
    [
        pytest.param(losing, marks=pytest.mark.fault(Fault.LOSS, BackEnd.KUBERNETES)),
        pytest.param(interrupted, marks=pytest.mark.fault(Fault.PAUSES, BackEnd.KUBERNETES)),
    ],
)
def test_a_link_that_is_disturbed_accuses_nobody_else(
    cluster: Cluster,
    desk: Desk,
    fault_record: FaultRecord,
    disturbed: Callable[[Cluster, str], AbstractContextManager[None]],
) -> None:
    bad = cluster.nodes[2]
    with limited(cluster), disturbed(cluster, bad):
        fault_record.begins(bad)
        done = desk.run(nodes=NODES, checks=[*CONNECT, *PAIRS])
    finished(desk, fault_record, done)
    assert named(done) <= {bad}, done.err


@pytest.mark.fault(Fault.PARTITION, BackEnd.KUBERNETES)
def test_nodes_that_the_first_one_cannot_reach_are_named_and_the_others_not(
    cluster: Cluster, desk: Desk, fault_record: FaultRecord
) -> None:
    started = desk.start(nodes=NODES, checks=[*CONNECT, WAITS, *ALL_REDUCE])
    started.wait_for("[1/3]")
    placed = {index: pod["spec"]["nodeName"] for index, pod in desk.pods().items()}
    first, others = placed[0], [placed[2], placed[3]]
    fault_record.begins(f"{first} to {', '.join(others)}")
    cut = [nodes.pods(cluster.nodes.index(other)) for other in others]
    with rules(cluster, first, *(f"-{way} {net} -j DROP" for net in cut for way in "sd")):
        desk.let_go_on()
        done = started.wait()
        fault_record.judged(done, desk)
        assert done.ending == ("degraded", 3), done.err
        assert named(done) <= {first, *others}
        desk.evidence_holds(done)


@pytest.mark.fault(Fault.HOST_ABSENT, BackEnd.KUBERNETES)
def test_a_node_that_is_lost_before_the_start_is_named(
    cluster: Cluster, desk: Desk, fault_record: FaultRecord
) -> None:
    bad = cluster.nodes[2]
    cluster.stop_kubelet(bad)
    cluster.wait_ready(bad, ready=False)
    fault_record.begins(bad)
    try:
        done = fault_record.judged(desk.run(nodes=NODES, checks=CONNECT), desk)
        assert (done.exit, "error[E-KUBE-NODES-TOO-FEW]" in done.err) == (4, True), done.err
        assert f"{bad}: it is not Ready" in done.err
    finally:
        cluster.start_kubelet(bad)
        cluster.wait_ready(bad)


@pytest.mark.fault(Fault.HOST_LOST_COLLECTING, BackEnd.KUBERNETES)
def test_a_node_lost_after_its_last_step_costs_no_evidence(
    cluster: Cluster, desk: Desk, fault_record: FaultRecord
) -> None:
    assert desk.submit(nodes=NODES, checks=CONNECT).exit == 0
    desk.wait_for_end()
    bad = desk.pods()[2]["spec"]["nodeName"]
    fault_record.begins(bad)
    cluster.cut(bad)
    try:
        collected = desk.do("collect", "last")
        assert collected.exit == 0, collected.err
        done = finished(desk, fault_record, desk.do("judge", "last", "--json"))
        assert done.ending == ("pass", 0), done.err
    finally:
        cluster.join(bad)
        cluster.wait_ready(bad)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(2, marks=pytest.mark.fault(Fault.HOST_DISK_FULL, BackEnd.KUBERNETES)),
        pytest.param(0, marks=pytest.mark.fault(Fault.FIRST_HOST_DISK_FULL, BackEnd.KUBERNETES)),
    ],
)
def test_a_full_disk_of_a_node_accuses_nobody_else(
    cluster: Cluster, desk: Desk, fault_record: FaultRecord, index: int
) -> None:
    started = desk.start(nodes=NODES, checks=[*CONNECT, WAITS, *ALL_REDUCE])
    started.wait_for("[1/3]")
    bad = desk.pods()[index]["spec"]["nodeName"]
    fault_record.begins(bad)
    cluster.hosts.fill(bad, "/run")
    try:
        desk.let_go_on()
        done = fault_record.judged(started.wait(), desk)
        assert done.exit in (3, 5), done.err
        assert named(done) <= {bad}
    finally:
        cluster.hosts.empty(bad, "/run")


@pytest.mark.fault(Fault.DNS_LATE, BackEnd.KUBERNETES)
def test_pods_that_start_before_there_is_dns_find_the_coordinator_later(
    cluster: Cluster, desk: Desk, fault_record: FaultRecord
) -> None:
    cluster.stop_dns()
    fault_record.begins("DNS server")
    try:
        started = desk.start(nodes=NODES, checks=CONNECT)
        until(lambda: register_failed(desk))
    finally:
        cluster.start_dns()
    done = finished(desk, fault_record, started.wait())
    assert done.ending == ("pass", 0), done.err


@pytest.mark.fault(Fault.API_AWAY, BackEnd.KUBERNETES)
def test_an_api_server_that_is_away_for_a_minute_costs_nothing(
    cluster: Cluster, desk: Pods, fault_record: FaultRecord
) -> None:
    started = desk.start(nodes=NODES, checks=[*CONNECT, WAITS])
    started.wait_for("[1/2]")
    fault_record.begins("API server")
    cluster.stop_api()
    try:
        time.sleep(60)
    finally:
        cluster.start_api()
    desk.let_go_on()
    done = finished(desk, fault_record, started.wait())
    assert done.ending == ("pass", 0), done.err
    desk.nothing_is_left()


def register_failed(desk: Desk) -> bool:
    """Return whether a pod has tried in vain to register with the coordinator."""
    pod = desk.pods().get(1, {}).get("metadata", {}).get("name", "none")
    words = ("exec", pod, "-c", "accept", "--", "test", "-s", "/opt/accept/register.log")
    return desk.cluster.kubectl("-n", desk.namespace, *words, check=False).returncode == 0
