"""Faults of runs on this machine itself; `make reliability` runs them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.here import HOST, Here

#: A rank hangs, so that the run lasts until something happens to it.
HANGS = ("--inject", f"hang@{HOST}:0")

pytestmark = pytest.mark.reliability


@pytest.fixture
def here(run_extra: None, tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        pytest.param(
            "hang",
            # The time limit of torch may end the other ranks before that of the step does.
            {"rank-hung", "crashed"},
            marks=pytest.mark.fault(Fault.RANK_HANGS, BackEnd.LOCAL),
        ),
        pytest.param(
            "wrong", {"wrong-data"}, marks=pytest.mark.fault(Fault.WRONG_DATA, BackEnd.LOCAL)
        ),
    ],
)
def test_a_bad_rank_is_caught(
    here: Here, fault_record: FaultRecord, fault: str, causes: set[str]
) -> None:
    fault_record.begins("localhost:1")
    done = fault_record.judged(here.run("--inject", f"{fault}@{HOST}:1"), here)
    ((name, cause),) = done.suspects
    assert (name.partition(":")[0], cause in causes) == (HOST, True), done.err
    assert done.ending == ("fail", 3)
    here.nothing_is_left()
    here.evidence_holds(done)


@pytest.mark.fault(Fault.SIGTERM, BackEnd.LOCAL)
def test_sigterm_cancels_a_run(here: Here, fault_record: FaultRecord) -> None:
    run = here.start(*HANGS)
    run.wait_for("20-connectivity (")
    fault_record.begins("workstation")
    os.kill(run.process.pid, signal.SIGTERM)
    done = run.wait()
    fault_record.judged(done, here, here.do("judge", "last", "--json"))
    assert done.exit == 143, done.err
    here.nothing_is_left()


@pytest.mark.fault(Fault.CTRL_C_TWICE, BackEnd.LOCAL)
def test_a_second_ctrl_c_leaves_nothing_behind(here: Here, fault_record: FaultRecord) -> None:
    run = here.start(*HANGS)
    run.wait_for("20-connectivity (")
    fault_record.begins("workstation")
    run.interrupt()
    run.wait_for("cancel")
    run.interrupt()
    done = run.wait()
    fault_record.judged(done, here, here.do("judge", "last", "--json"))
    assert done.exit == 130, done.err
    assert "Traceback" not in done.err
    here.nothing_is_left()


@pytest.mark.fault(Fault.WORKSTATION_KILLED, BackEnd.LOCAL)
def test_a_run_goes_on_without_its_command(here: Here, fault_record: FaultRecord) -> None:
    run = here.start()
    run.wait_for("10-inventory (")
    fault_record.begins("the command")
    run.kill()
    assert here.do("watch", "last").exit == 0
    assert here.do("collect", "last").exit == 0
    done = fault_record.judged(here.do("judge", "last", "--json"), here)
    assert done.ending == ("pass", 0), done.err
    here.nothing_is_left()
    here.evidence_holds(done)


@pytest.mark.fault(Fault.TWO_RUNS, BackEnd.LOCAL)
def test_two_runs_do_not_touch_each_other(here: Here, fault_record: FaultRecord) -> None:
    fault_record.begins("localhost")
    first, second = here.start(), here.start()
    for done in (first.wait(), second.wait()):
        fault_record.judged(done, here)
        assert done.ending == ("pass", 0), done.err
    here.nothing_is_left()
    here.evidence_holds(done)
