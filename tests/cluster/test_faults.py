"""Faults on hosts over ssh that are too slow for CI, or rare: `make reliability` runs them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.hosts import Hosts
from tests.cluster.network import execute
from tests.cluster.pauses import interruptions
from tests.cluster.runs import ALL_REDUCE, CONNECT, ENDLESS, LONG, PAIRS, Lab, until

Make = Callable[..., Lab]

pytestmark = pytest.mark.reliability

#: A step that all hosts have to leave when one of them is lost, and one for the others.
TWO_STEPS = [*ENDLESS, ALL_REDUCE[0].replace("all,", "halves,")]


@pytest.mark.fault(Fault.FIRST_HOST_LOST, BackEnd.SSH)
def test_a_run_without_its_first_host_starts_again_and_names_it(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(4)
    started = lab.start(checks=LONG)
    until(lambda: lab.measures("h1"))
    fault_record.begins("h1")
    lab.hosts.kill("h1")
    done = fault_record.judged(started.wait(1800), lab)
    assert done.suspects == {("h1", "unreachable-timeout")}, done.err
    assert done.ending == ("fail", 3)
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.fault(Fault.HOST_REBOOTED, BackEnd.SSH)
def test_a_host_that_reboots_in_a_step_is_named(make_lab: Make, fault_record: FaultRecord) -> None:
    lab = make_lab(4)
    started = lab.start(checks=TWO_STEPS)
    until(lambda: lab.measures("h3"))
    fault_record.begins("h3")
    lab.hosts.kill("h3")
    lab.hosts.start("h3")
    done = fault_record.judged(started.wait(), lab)
    assert {name for name, _ in done.suspects} == {"h3"}, done.err
    assert done.ending == ("fail", 3)
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.fault(Fault.HOST_LOST_COLLECTING, BackEnd.SSH)
def test_a_host_lost_after_its_last_step_costs_no_evidence(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(3)
    words = ("--machine", str(lab.machine), "--site", str(lab.site), "--keep", "10m")
    suite = str(lab.suite([*CONNECT, *ALL_REDUCE]))
    submitted = lab.do("submit", "--hosts", ",".join(lab.hosts.names), *words, "--suite", suite)
    assert submitted.exit == 0, submitted.err
    assert lab.do("watch", "last").exit == 0
    fault_record.begins("h3")
    lab.hosts.kill("h3")
    collected = lab.do("collect", "last")
    done = fault_record.judged(lab.do("judge", "last", "--json"), lab)
    assert collected.exit == 0, collected.err
    assert done.ending == ("pass", 0), done.err
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.fault(Fault.PARTITION, BackEnd.SSH)
def test_hosts_that_the_first_one_cannot_reach_are_named_and_the_others_not(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(5)
    started = lab.start(checks=TWO_STEPS)
    until(lambda: lab.measures("h4"))
    fault_record.begins("h1 to h4, h5")
    lab.hosts.separate("h1", "h4", "h5")
    done = fault_record.judged(started.wait(), lab)
    named = {host for suspect in done.result["suspects"] for host in suspect["hosts"]}
    assert done.ending == ("fail", 3), done.err
    assert named <= {"h1", "h4", "h5"}
    lab.nothing_is_left(patience=300)
    lab.evidence_holds(done)


@pytest.mark.fault(Fault.LOSS, BackEnd.SSH)
def test_a_link_that_loses_packets_accuses_nobody_else(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(6)
    lab.hosts.lose("h5", 0.01)
    fault_record.begins("h5")
    done = fault_record.judged(lab.run(checks=[*CONNECT, *PAIRS]), lab)
    assert {name for name, _ in done.suspects} <= {"h5"}, done.err
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.fault(Fault.PAUSES, BackEnd.SSH)
def test_a_link_that_is_down_for_moments_accuses_nobody_else(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(6)
    with interruptions(lab.hosts, "h5"):
        fault_record.begins("h5")
        done = fault_record.judged(lab.run(checks=[*CONNECT, *PAIRS]), lab)
    assert {name for name, _ in done.suspects} <= {"h5"}, done.err
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        pytest.param(
            "hang",
            # The time limit of torch may end the other ranks before that of the step does.
            {"rank-hung", "crashed"},
            marks=pytest.mark.fault(Fault.RANK_HANGS, BackEnd.SSH),
        ),
        pytest.param(
            "wrong", {"wrong-data"}, marks=pytest.mark.fault(Fault.WRONG_DATA, BackEnd.SSH)
        ),
    ],
)
def test_the_host_of_a_bad_rank_is_named(
    make_lab: Make, fault_record: FaultRecord, fault: str, causes: set[str]
) -> None:
    lab = make_lab(3)
    fault_record.begins("h3")
    options = ("--inject", f"{fault}@h3:0")
    done = fault_record.judged(lab.run(*options, checks=[*CONNECT, *ALL_REDUCE]), lab)
    ((name, cause),) = done.suspects
    assert (name.partition(":")[0], cause in causes) == ("h3", True), done.err
    assert done.ending == ("fail", 3)
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.fault(Fault.FIRST_HOST_DISK_FULL, BackEnd.SSH)
def test_a_full_disk_of_the_first_host_accuses_nobody_else(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(3, size="64m")
    started = lab.start(checks=[*LONG, *ALL_REDUCE])
    until(lambda: lab.measures("h1"))
    fault_record.begins("h1")
    lab.hosts.fill("h1")
    done = fault_record.judged(started.wait(), lab)
    # Checksums do not fit on that disk, so the evidence of the finished steps is judged.
    assert done.suspects == {("h1", "disk-full")}, done.err
    assert done.exit == 3
    lab.hosts.empty("h1")
    lab.nothing_is_left()


@pytest.mark.fault(Fault.WORKSTATION_DISK_FULL, BackEnd.SSH)
def test_a_full_disk_of_the_workstation_costs_no_evidence(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(2)
    lab.runs.mkdir()
    execute(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(lab.runs)])
    try:
        started = lab.start(checks=LONG)
        started.wait_for("1/2]")
        fault_record.begins("workstation")
        ballast = lab.runs / "ballast"
        fill(ballast)
        ended = started.wait()
        ballast.unlink()
        collected = lab.do("collect", "last")
        judged = lab.do("judge", "last", "--json")
        fault_record.judged(ended, lab, judged)
        assert "error[E-ARCHIVE-DISK]" in ended.err
        assert collected.exit == 0, collected.err
        assert judged.ending == ("pass", 0)
        lab.nothing_is_left()
        lab.evidence_holds(judged)
    finally:
        execute(["umount", "--lazy", str(lab.runs)])


def fill(ballast: Path) -> None:
    """Fill the file system of a file with it."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


@pytest.mark.fault(Fault.SIGTERM, BackEnd.SSH)
def test_sigterm_cancels_a_run(make_lab: Make, fault_record: FaultRecord) -> None:
    lab = make_lab(3)
    run = lab.start(checks=ENDLESS)
    until(lambda: lab.measures("h3"))
    fault_record.begins("workstation")
    os.kill(run.process.pid, signal.SIGTERM)
    done = run.wait()
    again = lab.do("judge", "last", "--json")
    fault_record.judged(done, lab, again)
    assert done.exit == 143, done.err
    assert again.exit == 5
    lab.nothing_is_left()


@pytest.mark.fault(Fault.CTRL_C_TWICE, BackEnd.SSH)
def test_a_second_ctrl_c_stops_the_clean_up_and_shows_how_to_end_the_run(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(3)
    run = lab.start(checks=ENDLESS)
    until(lambda: lab.measures("h3"))
    fault_record.begins("workstation")
    run.interrupt()
    run.wait_for("cancel")
    run.interrupt()
    done = run.wait()
    fault_record.judged(done, lab, lab.do("judge", "last", "--json"))
    fault_record.leaves("the run, until `accept cancel`")
    assert done.exit == 130, done.err
    assert "Traceback" not in done.err
    assert f"the run may go on; to end it: accept cancel {lab.attempt()}" in done.err
    assert lab.do("cancel", "last").exit == 0
    lab.nothing_is_left()


LIBFAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@pytest.mark.fault(Fault.CLOCK_SKEW, BackEnd.SSH)
def test_a_clock_that_is_wrong_accuses_nobody(make_lab: Make, fault_record: FaultRecord) -> None:
    if not LIBFAKETIME.exists():
        pytest.skip("needs libfaketime: see tests/debian-packages.txt")

    def skew(hosts: Hosts) -> None:
        # The monotonic clock is shifted, too: with FAKETIME_DONT_FAKE_MONOTONIC, sleeps fail.
        text = f"export LD_PRELOAD={LIBFAKETIME} FAKETIME=+3600s\n"
        hosts.path("h3", "/root/.bashrc").write_text(text)

    lab = make_lab(4, before=skew)
    fault_record.begins("h3")
    done = fault_record.judged(lab.run(checks=[*CONNECT, *ALL_REDUCE, *PAIRS]), lab)
    assert done.suspects <= {("h3", "clock-skew")}, done.err
    assert "crashed" not in done.causes()
    lab.nothing_is_left(["h1", "h2", "h4"])
    lab.hosts.run("h3", "rm -f /dev/shm/*faketime*")
    lab.nothing_is_left()
    lab.evidence_holds(done)
