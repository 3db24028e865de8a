"""Faults of runs in pods, too slow for CI, or rare: `python -m tests.reliability` runs them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, Desk
from tests.cluster.runs import ALL_REDUCE, CONNECT

pytestmark = pytest.mark.reliability

HOLD = {"holdSeconds": 120}


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        pytest.param(
            "hang",
            {"rank-hung"},
            marks=pytest.mark.fault(Fault.RANK_HANGS, BackEnd.KUBERNETES),
        ),
        pytest.param(
            "wrong", {"wrong-data"}, marks=pytest.mark.fault(Fault.WRONG_DATA, BackEnd.KUBERNETES)
        ),
    ],
)
def test_the_node_of_a_bad_rank_is_named(
    cluster: Cluster,
    namespace: str,
    tmp_path: Path,
    fault_record: FaultRecord,
    fault: str,
    causes: set[str],
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    before = desk.everything()
    node = cluster.nodes[2]
    fault_record.begins(node)
    options = ("--inject", f"{fault}@{node}:0")
    done = fault_record.judged(desk.run(*options, checks=[*CONNECT, *ALL_REDUCE]), desk)
    ((name, cause),) = done.suspects
    assert (name.partition(":")[0], cause in causes) == (node, True), done.err
    assert done.ending == ("fail", 3)
    desk.evidence_holds(done)
    assert desk.do("clean", done.result["attempt"]).exit == 0
    desk.leaves(before)


@pytest.mark.fault(Fault.API_AWAY, BackEnd.KUBERNETES)
def test_an_api_server_that_is_away_for_a_minute_costs_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path, fault_record: FaultRecord
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    before = desk.everything()
    started = desk.start(checks=[*CONNECT, WAITS])
    started.wait_for("[1/2]")
    fault_record.begins("API server")
    cluster.stop_api()
    try:
        time.sleep(60)
    finally:
        cluster.start_api()
    desk.let_go_on()
    done = fault_record.judged(started.wait(), desk)
    assert done.ending == ("pass", 0), done.err
    desk.evidence_holds(done)
    assert desk.do("clean", done.result["attempt"]).exit == 0
    desk.leaves(before)


@pytest.mark.fault(Fault.SIGTERM, BackEnd.KUBERNETES)
def test_sigterm_cancels_a_run(
    cluster: Cluster, namespace: str, tmp_path: Path, fault_record: FaultRecord
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    before = desk.everything()
    run = desk.start(checks=[*CONNECT, WAITS])
    run.wait_for("[1/2]")
    fault_record.begins("workstation")
    os.kill(run.process.pid, signal.SIGTERM)
    done = run.wait()
    fault_record.judged(done, desk, desk.do("judge", "last", "--json"))
    assert done.exit == 143, done.err
    desk.leaves(before)


@pytest.mark.fault(Fault.CTRL_C_TWICE, BackEnd.KUBERNETES)
def test_a_second_ctrl_c_stops_the_clean_up_and_shows_how_to_end_the_run(
    cluster: Cluster, namespace: str, tmp_path: Path, fault_record: FaultRecord
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    before = desk.everything()
    run = desk.start(checks=[*CONNECT, WAITS])
    run.wait_for("[1/2]")
    fault_record.begins("workstation")
    run.interrupt()
    run.wait_for("cancel")
    run.interrupt()
    done = run.wait()
    fault_record.judged(done, desk, desk.do("judge", "last", "--json"))
    fault_record.leaves("the run, until `accept cancel`")
    assert done.exit == 130, done.err
    assert "Traceback" not in done.err
    assert f"accept cancel {desk.attempt()}" in done.err.partition("the run may go on")[2]
    assert desk.do("cancel", "last").exit == 0
    desk.leaves(before)


@pytest.mark.fault(Fault.WORKSTATION_KILLED, BackEnd.KUBERNETES)
def test_a_run_goes_on_without_its_command(
    cluster: Cluster, namespace: str, tmp_path: Path, fault_record: FaultRecord
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results=HOLD)
    before = desk.everything()
    run = desk.start(checks=[*CONNECT, *ALL_REDUCE])
    run.wait_for("[1/2]")
    fault_record.begins("the command")
    run.kill()
    assert desk.do("watch", "last").exit == 0
    done = fault_record.judged(desk.do("judge", "last", "--json"), desk)
    assert done.ending == ("pass", 0), done.err
    desk.evidence_holds(done)
    assert desk.do("clean", "last").exit == 0
    desk.leaves(before)
