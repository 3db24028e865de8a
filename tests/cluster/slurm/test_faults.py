"""Faults of jobs that are too slow for CI, or rare: `make reliability` runs them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.runs import ALL_REDUCE, CONNECT, ENDLESS
from tests.cluster.slurm.login import Login

Make = Callable[..., Login]

pytestmark = pytest.mark.reliability


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        pytest.param(
            "hang",
            {"rank-hung", "crashed"},
            marks=pytest.mark.fault(Fault.RANK_HANGS, BackEnd.SLURM),
        ),
        pytest.param(
            "wrong", {"wrong-data"}, marks=pytest.mark.fault(Fault.WRONG_DATA, BackEnd.SLURM)
        ),
    ],
)
def test_the_node_of_a_bad_rank_is_named(
    make_login: Make, fault_record: FaultRecord, fault: str, causes: set[str]
) -> None:
    login = make_login(shared=True)
    fault_record.begins("n3")
    options = ("--inject", f"{fault}@n3:0")
    done = fault_record.judged(login.run(*options, checks=[*CONNECT, *ALL_REDUCE]), login)
    ((name, cause),) = done.suspects
    assert (name.partition(":")[0], cause in causes) == ("n3", True), done.err
    assert done.ending == ("fail", 3)
    login.nothing_is_left()
    login.evidence_holds(done)


@pytest.mark.fault(Fault.SIGTERM, BackEnd.SLURM)
def test_sigterm_cancels_a_job(make_login: Make, fault_record: FaultRecord) -> None:
    login = make_login(shared=True)
    run = login.start_measuring(ENDLESS)
    fault_record.begins("workstation")
    os.kill(run.process.pid, signal.SIGTERM)
    done = run.wait()
    fault_record.judged(done, login, login.do("judge", "last", "--json"))
    assert done.exit == 143, done.err
    login.nothing_is_left()


@pytest.mark.fault(Fault.CTRL_C_TWICE, BackEnd.SLURM)
def test_a_second_ctrl_c_leaves_nothing_behind(make_login: Make, fault_record: FaultRecord) -> None:
    login = make_login(shared=True)
    run = login.start_measuring(ENDLESS)
    fault_record.begins("workstation")
    run.interrupt()
    run.wait_for("cancel")
    run.interrupt()
    done = run.wait()
    fault_record.judged(done, login, login.do("judge", "last", "--json"))
    assert done.exit == 130, done.err
    assert "Traceback" not in done.err
    login.nothing_is_left()


@pytest.mark.fault(Fault.WORKSTATION_KILLED, BackEnd.SLURM)
def test_a_job_goes_on_without_its_command(make_login: Make, fault_record: FaultRecord) -> None:
    login = make_login(shared=True)
    run = login.start_measuring(ALL_REDUCE)
    fault_record.begins("the command")
    run.kill()
    assert login.do("watch", "last").exit == 0
    assert login.do("collect", "last").exit == 0
    done = fault_record.judged(login.do("judge", "last", "--json"), login)
    assert done.ending == ("pass", 0), done.err
    login.nothing_is_left()
    login.evidence_holds(done)


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
