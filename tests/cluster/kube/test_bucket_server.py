"""Evidence in a bucket that pods write to: a stand-in for Google's (tests/factories/buckets.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.control import BUCKET_PORT
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import CONNECT, until
from tests.factories import buckets
from tests.factories.buckets import Proxy

from accept.core.evidence import PACKED_BEGIN


@pytest.fixture
def server(cluster: Cluster, namespace: str) -> Iterator[Proxy]:
    """Start the server of a bucket with the name of the namespace."""
    host = cluster.bucket_server.removeprefix("http://").partition(":")[0]
    buckets.make(cluster.bucket_server, namespace)
    with buckets.proxy(BUCKET_PORT, google=True, server=host, listener=cluster.listener()) as found:
        yield found


def desk_of(
    cluster: Cluster, namespace: str, folder: Path, server: Proxy, **environment: str
) -> Desk:
    """Return a desk that reads the bucket to which its pods write, as the environment defines."""
    google = server.environment()
    literals = [f"--from-literal={name}={value}" for name, value in google.items()]
    cluster.kubectl("-n", namespace, "create", "secret", "generic", "storage", *literals)
    keys = {"extraEnv": environment, "extraEnvFrom": [{"secretRef": {"name": "storage"}}]}
    results = {"location": f"gs://{namespace}/tests", "holdSeconds": 120}
    desk = Desk(cluster, namespace, folder, kubernetes=keys, results=results)
    desk.environment |= google
    return desk


def names(server: Proxy, attempt: str) -> list[str]:
    """Return the names of a run's objects in the bucket, in the order of writing."""
    return [name.partition(f"/runs/{attempt}/")[2] for name in server.written]


def test_pods_write_their_evidence_to_a_bucket(
    cluster: Cluster, namespace: str, tmp_path: Path, server: Proxy
) -> None:
    desk = desk_of(cluster, namespace, tmp_path, server)
    desk.install(desk.render(checks=CONNECT))
    assert desk.ended() == "Completed"
    assert PACKED_BEGIN not in desk.log()
    attempt = desk.jobset()["metadata"]["name"]
    written = names(server, attempt)
    assert written[-1] == "MANIFEST.json"
    assert {"records.jsonl", "verdict.json", "pods/0.log", "pods/1.log", "pods/2.log"} < {*written}
    place = f"gs://{namespace}/tests/runs/{attempt}"
    judged = desk.do("judge", place, "--json")
    assert judged.ending == ("pass", 0), judged.err
    assert set(judged.result["hosts"]) == set(cluster.nodes)
    assert desk.do("collect", place).exit == 0
    assert desk.do("judge", attempt, "--json").result == judged.result


@pytest.mark.fault(Fault.BUCKET_DOWN_AT_END, BackEnd.KUBERNETES)
def test_a_bucket_that_refuses_at_the_end_costs_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path, server: Proxy, fault_record: FaultRecord
) -> None:
    desk = desk_of(cluster, namespace, tmp_path, server, ACCEPT_SEND_SECONDS="2")
    server.until = "/verdict.json"
    fault_record.begins("bucket")
    assert desk.command("submit", *desk.options(3, CONNECT)).wait().exit == 0
    attempt = desk.attempt()
    desk.wait_for_log("evidence is kept here for 120 s")
    assert PACKED_BEGIN in desk.log()
    before = names(server, attempt)
    assert "records.jsonl" in before
    assert "MANIFEST.json" not in before

    # While the bucket still refuses.
    collect = desk.command("collect", attempt)
    until((desk.runs / attempt / "evidence").is_dir)
    refused = server.refused
    until(lambda: server.refused > refused)
    judged = fault_record.judged(desk.do("judge", attempt, "--json"), desk)
    assert judged.ending == ("pass", 0), judged.err
    assert set(judged.result["hosts"]) == set(cluster.nodes)
    assert desk.ended() == "Completed"

    server.down = False
    place = f"gs://{namespace}/tests/runs/{attempt}"
    done = collect.wait()
    assert (done.exit, f"sent to {place}" in done.err) == (0, True), done.err
    after = names(server, attempt)[len(before) :]
    assert after[-1] == "MANIFEST.json"
    assert not {"plan.json", "hosts.json"} & {*after}
    assert desk.do("judge", place, "--json").result == judged.result


@pytest.mark.reliability
@pytest.mark.fault(Fault.BUCKET_DOWN, BackEnd.KUBERNETES)
def test_a_bucket_that_is_down_for_the_whole_run_costs_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path, server: Proxy, fault_record: FaultRecord
) -> None:
    desk = desk_of(cluster, namespace, tmp_path, server, ACCEPT_SEND_SECONDS="2")
    server.down = True
    fault_record.begins("bucket")
    done = fault_record.judged(desk.run(checks=CONNECT), desk)
    assert done.ending == ("pass", 0), done.err
    assert names(server, done.result["attempt"]) == []
    desk.evidence_holds(done, bucket=True)


@pytest.mark.reliability
@pytest.mark.fault(Fault.BUCKET_SLOW, BackEnd.KUBERNETES)
def test_a_slow_bucket_gets_the_evidence(
    cluster: Cluster, namespace: str, tmp_path: Path, server: Proxy, fault_record: FaultRecord
) -> None:
    desk = desk_of(cluster, namespace, tmp_path, server)
    server.delay = 1.0
    fault_record.begins("bucket, 1 s for each request")
    done = fault_record.judged(desk.run(checks=CONNECT), desk)
    assert done.ending == ("pass", 0), done.err
    assert "MANIFEST.json" in names(server, done.result["attempt"])
    desk.evidence_holds(done, bucket=True)
