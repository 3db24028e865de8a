"""Runs in jobs of a real Slurm: how they end, what they name, and that nothing is left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.runs import ALL_REDUCE, CONNECT, ENDLESS, LONG, PAIRS, until
from tests.cluster.slurm.login import Login

from accept.core.runner.slurm import TIME_LIMIT

Make = Callable[..., Login]


@pytest.mark.smoke
def test_good_nodes_are_accepted_with_ranks_that_srun_starts(make_login: Make) -> None:
    login = make_login(shared=True)
    login.launch_by("srun-pmix")
    done = login.run(checks=[*CONNECT, *ALL_REDUCE])
    assert done.ending == ("pass", 0), done.err
    assert done.result["hosts"] == list(login.cluster.names)
    logs = login.evidence(done.result["attempt"]) / "logs"
    assert all("# srun: " in log.read_text() for log in logs.rglob("*.log"))
    login.nothing_is_left()
    login.evidence_holds(done)


def test_ranks_that_all_believe_they_are_rank_0_measure_nothing(make_login: Make) -> None:
    login = make_login()
    # Open MPI 5 has no PMI-2, so it starts as if each rank were alone.
    login.launch_by("srun-pmi2")
    done = login.run(nodes=2, checks=CONNECT)
    assert done.exit == 4, done.err
    assert "E-SLURM-RANKS" in done.err
    login.nothing_is_left()


@pytest.mark.fault(Fault.SLOW_LINK, BackEnd.SLURM)
def test_a_slow_link_is_named_in_an_allocation_without_a_shared_folder(
    make_login: Make, fault_record: FaultRecord
) -> None:
    login = make_login()
    cluster = login.cluster
    cluster.call("salloc", "--no-shell", "--nodes=4", "--exclusive", "--mem=0")
    (job,) = cluster.jobs()
    login.environment |= {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": cluster.call("squeue", "-h", "-j", job, "-o", "%N").strip(),
    }
    hosts, slow = cluster.hosts, cluster.host("n3")
    login.site.write_text(f"{login.site.read_text()}collectors: {{name: {{command: hostname}}}}\n")
    hosts.slow(slow)
    fault_record.begins("n3")
    try:
        done = fault_record.judged(login.run(checks=PAIRS), login)
    finally:
        hosts.shape(slow)
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {("n3", "slow-outlier")}
    judged = login.do("judge", done.result["attempt"])
    shown = " ".join(judged.out.split())
    assert "scontrol update nodename=n3 state=drain reason='accept: slow-outlier" in shown
    assert cluster.jobs() == [job]
    until(lambda: not cluster.call("squeue", "-h", "--steps", "-o", "%j").split())
    assert login.collected("n3") == {"name": f"{slow}\n"}
    cluster.stop_jobs()
    # Without the allocation, it is a job of its own.
    login.environment = {k: v for k, v in login.environment.items() if "SLURM_JOB" not in k}
    assert login.collected("n3") == {"name": f"{slow}\n"}
    login.nothing_is_left()
    login.evidence_holds(done)


def test_a_drained_node_is_not_tested_in_any_output(make_login: Make) -> None:
    login = make_login(shared=True)
    node = ("scontrol", "update", "nodename=n4")
    login.cluster.call(*node, "state=drain", "reason=alice: fan")
    try:
        done = login.run(nodes="all", checks=[*CONNECT, *ALL_REDUCE])
    finally:
        login.cluster.call(*node, "state=resume")
    assert done.ending == ("pass", 0), done.err
    assert done.result["hosts"] == ["n1", "n2", "n3"]
    (left_out,) = done.result["leftOut"]
    assert left_out["name"] == "n4"
    assert left_out["reason"].endswith("alice: fan")
    run = done.result["attempt"]
    again = login.do("judge", run)
    assert "VERDICT pass good=3 bad=none untested=1 " in again.out
    assert login.do("show", "nodes", run, "--untested").out.split() == ["n4"]
    evidence = login.evidence(run)
    html = evidence.parent / "report.html"
    for page in (html, evidence / "report.md", evidence / "junit.xml", evidence / "verdict.json"):
        assert "alice: fan" in page.read_text(), page
    assert "alice: fan" in again.out
    login.nothing_is_left()
    login.evidence_holds(done)


@pytest.mark.fault(Fault.HOST_LOST, BackEnd.SLURM)
def test_a_node_that_dies_in_a_step_is_named_and_the_others_go_on(
    make_login: Make, fault_record: FaultRecord
) -> None:
    login = make_login(shared=True)
    cluster = login.cluster
    started = login.start_measuring([*LONG, *ALL_REDUCE])
    fault_record.begins("n3")
    cluster.stop("n3")
    try:
        done = fault_record.judged(started.wait(), login)
        assert done.ending == ("degraded", 3), done.err
        assert done.suspects == {("n3", "host-died")}
        assert "[3/3] 30-collectives (all-reduce) all, 1 group: 1 good" in done.err
    finally:
        cluster.revive("n3")
    login.nothing_is_left()
    login.evidence_holds(done)


def test_the_time_limit_ends_a_run_with_its_evidence(make_login: Make) -> None:
    login = make_login(shared=True)
    done = login.run("--time", "3m", nodes=2, checks=ENDLESS)
    assert done.exit == 5, done.err
    assert done.result["interruption"].startswith(TIME_LIMIT)
    login.nothing_is_left()


def test_runs_side_by_side_keep_what_they_measured_however_they_are_ended(
    make_login: Make,
) -> None:
    first, second, third = make_login(), make_login(shared=True), make_login(shared=True)
    cluster = first.cluster
    started = {
        run: run.start(nodes=nodes, checks=ENDLESS)
        for run, nodes in ((first, "n1,n2"), (second, "n3"), (third, "n4"))
    }
    until(
        lambda: (
            all(map(first.measures, cluster.names))
            or any(each.process.poll() is not None for each in started.values())
        )
    )
    # A user ends the own run, somebody else the second one, and Slurm the third one.
    assert first.do("cancel", "last").exit == 0
    cluster.call("scancel", f"--name=accept-{second.attempt()}")
    cluster.call(
        "sbatch",
        "--partition=urgent",
        "--nodelist=n4",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=true",
    )
    for run, reason in (
        (first, "the run was cancelled"),
        (second, "the run was cancelled"),
        (third, "Slurm preempted the job"),
    ):
        done = started[run].wait()
        assert done.exit == 5, done.err
        assert "Event loop is closed" not in done.err
        end = json.loads((run.evidence(run.attempt()) / "run-end.json").read_text())
        assert end["interruption"] == reason
    first.nothing_is_left()


def test_a_run_goes_on_while_the_controller_restarts(make_login: Make) -> None:
    login = make_login(shared=True)
    started = login.start_measuring(ALL_REDUCE)
    login.cluster.restart_controller()
    done = started.wait()
    assert done.ending == ("pass", 0), done.err
    login.nothing_is_left()


@pytest.mark.reliability
@pytest.mark.fault(Fault.API_AWAY, BackEnd.SLURM)
def test_a_controller_that_is_away_for_a_minute_costs_nothing(
    make_login: Make, fault_record: FaultRecord
) -> None:
    login = make_login(shared=True)
    started = login.start_measuring([*CONNECT, *ALL_REDUCE])
    fault_record.begins("slurmctld")
    login.cluster.stop_controller()
    time.sleep(60)
    login.cluster.start_controller()
    done = fault_record.judged(started.wait(), login)
    assert done.ending == ("pass", 0), done.err
    login.nothing_is_left()
    login.evidence_holds(done)


@pytest.mark.fault(Fault.FIRST_HOST_LOST, BackEnd.SLURM)
def test_a_run_that_loses_its_first_node_goes_on_after_its_finished_steps(
    make_login: Make, fault_record: FaultRecord
) -> None:
    login = make_login(shared=True)
    started = login.start_measuring([*CONNECT, *ALL_REDUCE])
    fault_record.begins("n1")
    login.cluster.stop("n1")
    try:
        done = fault_record.judged(started.wait(), login)
    finally:
        login.cluster.revive("n1")
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {("n1", "host-died")}
    login.nothing_is_left()
    login.evidence_holds(done)
    text = (login.evidence(done.result["attempt"]) / "records.jsonl").read_text()
    records = map(json.loads, text.splitlines())
    measured = {tuple(each["checks"]): each["hosts"] for each in records}
    assert measured["connectivity",] == ["n1", "n2", "n3", "n4"]
    assert measured["all-reduce",] == ["n2", "n3", "n4"]
