"""Faults, each on all back ends that can have it; tests.reliability runs those too slow for CI."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord, injects
from tests.cluster.hosts import Hosts
from tests.cluster.network import execute
from tests.cluster.pauses import interruptions
from tests.cluster.runs import ALL_REDUCE, CONNECT, ENDLESS, LONG, PAIRS, Lab, Place, Racks, until

MakePlace = Callable[..., Place]
MakeRacks = Callable[..., Racks]
MakeLab = Callable[..., Lab]

#: A step that all hosts have to leave when one of them is lost, and one for the others.
TWO_STEPS = [*LONG, ALL_REDUCE[0].replace("all,", "halves,")]
LIBFAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


# Hosts that are lost


@pytest.mark.reliability
@pytest.mark.fault(Fault.FIRST_HOST_LOST, BackEnd.SSH)
def test_a_run_without_its_first_host_starts_again_and_names_it(
    make_lab: MakeLab, fault_record: FaultRecord
) -> None:
    lab = make_lab(4)
    started = lab.start(checks=LONG)
    until(lambda: lab.measures("h1"))
    fault_record.begins("h1")
    lab.hosts.kill("h1")
    done = fault_record.judged(started.wait(1800), lab)
    assert done.suspects == {("h1", "unreachable-timeout")}, done.err
    assert done.ending == ("degraded", 3)
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.reliability
@pytest.mark.fault(Fault.HOST_ABSENT, BackEnd.SLURM)
@pytest.mark.parametrize("back_end", [BackEnd.SLURM])
def test_a_node_that_dies_before_the_job_starts_is_named(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(shared=True)
    fault_record.begins("n3")
    # Slurm does not know it yet, and puts the job on it.
    place.hosts.kill(place.host("n3"))
    done = fault_record.judged(place.run("--start-timeout", "60s", checks=CONNECT), place)
    assert done.ending == ("degraded", 3), done.err
    assert done.named == {"n3"}
    place.nothing_is_left()
    place.evidence_holds(done)


@injects(Fault.HOST_REBOOTED, BackEnd.SSH, BackEnd.SLURM)
def test_a_host_that_reboots_in_a_step_is_named(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(shared=True)
    name = place.names[2]
    started = place.start_measuring(TWO_STEPS)
    fault_record.begins(name)
    place.hosts.kill(place.host(name))
    place.boot(name)
    done = fault_record.judged(started.wait(), place)
    assert done.named == {name}, done.err
    assert done.ending == ("degraded", 3)
    place.nothing_is_left()
    place.evidence_holds(done)


@injects(Fault.HOST_LOST_COLLECTING, BackEnd.SSH, BackEnd.SLURM)
def test_a_host_lost_after_its_last_step_costs_no_evidence(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(3)
    submitted = place.do("submit", *place.plan([*CONNECT, *ALL_REDUCE]))
    assert submitted.exit == 0, submitted.err
    place.wait_for_end()
    fault_record.begins(place.names[-1])
    place.hosts.kill(place.host(place.names[-1]))
    collected = place.do("collect", "last")
    done = fault_record.judged(place.do("judge", "last", "--json"), place)
    assert collected.exit == 0, collected.err
    assert done.ending == ("pass", 0), done.err
    place.nothing_is_left()
    place.evidence_holds(done)


# Networks


@injects(Fault.PARTITION, BackEnd.SSH, BackEnd.SLURM)
def test_hosts_that_the_first_one_cannot_reach_are_named_and_the_others_not(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(5, shared=True)
    first, *_, fourth, fifth = place.names
    started = place.start_measuring(TWO_STEPS)
    fault_record.begins(f"{first} to {fourth}, {fifth}")
    place.hosts.separate(*map(place.host, (first, fourth, fifth)))
    done = fault_record.judged(started.wait(), place)
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {(fourth, "cut-off"), (fifth, "cut-off")}
    place.nothing_is_left(patience=300)
    place.evidence_holds(done)


@injects(Fault.LOSS, BackEnd.SSH, BackEnd.SLURM)
def test_a_link_that_loses_packets_accuses_nobody_else(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(6, shared=True)
    name = place.names[4]
    place.hosts.lose(place.host(name), 0.01)
    fault_record.begins(name)
    done = fault_record.judged(place.run(checks=[*CONNECT, *PAIRS]), place)
    assert all(name in hosts for hosts in done.suspected), done.err
    place.nothing_is_left()
    place.evidence_holds(done)


@injects(Fault.PAUSES, BackEnd.SSH, BackEnd.SLURM)
def test_a_link_that_is_down_for_moments_accuses_nobody_else(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(6, shared=True)
    name = place.names[4]
    with interruptions(place.hosts, place.host(name)):
        fault_record.begins(name)
        done = fault_record.judged(place.run(checks=[*CONNECT, *PAIRS]), place)
    assert all(name in hosts for hosts in done.suspected), done.err
    place.nothing_is_left()
    place.evidence_holds(done)


@pytest.mark.reliability
@pytest.mark.fault(Fault.DNS_LATE, BackEnd.SSH)
def test_a_host_whose_name_appears_during_the_run_is_named_and_the_others_are_tested(
    make_lab: MakeLab, fault_record: FaultRecord
) -> None:
    lab = make_lab(4, before=lambda hosts: hosts.unname("h3"))
    fault_record.begins("h3")
    started = lab.start(checks=[*CONNECT, *ALL_REDUCE])
    started.wait_for("[1/2]")
    lab.hosts.name("h3")
    done = fault_record.judged(started.wait(), lab)
    assert done.suspects == {("h3", "unreachable-dns")}, done.err
    assert done.ending == ("degraded", 3)
    lab.nothing_is_left()
    lab.evidence_holds(done)


# Ranks


@injects(Fault.RANK_HANGS, *BackEnd)
def test_a_rank_that_hangs_is_named(make_place: MakePlace, fault_record: FaultRecord) -> None:
    _inject("hang", "rank-hung", make_place, fault_record)


@injects(Fault.WRONG_DATA, *BackEnd)
def test_a_rank_that_sends_wrong_data_is_named(
    make_place: MakePlace, fault_record: FaultRecord
) -> None:
    _inject("wrong", "wrong-data", make_place, fault_record)


def _inject(fault: str, cause: str, make_place: MakePlace, fault_record: FaultRecord) -> None:
    place = make_place(3, shared=True)
    rank = f"{place.names[-1]}:{place.last_rank}"
    fault_record.begins(rank)
    options = ("--inject", f"{fault}@{rank}")
    done = fault_record.judged(place.run(*options, checks=[*CONNECT, *ALL_REDUCE]), place)
    ((_, found),) = done.suspects
    assert (done.named, found) == ({place.names[-1]}, cause), done.err
    assert done.ending == ("fail", 3)
    place.nothing_is_left()
    place.evidence_holds(done)


# Disks


@injects(Fault.HOST_DISK_FULL, BackEnd.SSH, BackEnd.SLURM, ci=[BackEnd.SSH])
def test_a_disk_that_fills_up_during_a_run_is_named_before_anything_is_started_there(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(4, size="64m", shared=True)
    first, full = place.host(place.names[0]), place.host(place.names[1])
    (place.folder / "wait.sh").write_text(
        "#!/bin/sh\nuntil [ -e /tmp/filled ]; do sleep 0.1; done\n"
    )
    waits = "check: script, script: wait.sh, groups: all, params: {name: wait}"
    started = place.start(checks=[*CONNECT, waits, *ALL_REDUCE])
    started.wait_for("connectivity: ping")
    fault_record.begins(place.names[1])
    place.hosts.fill(full)
    place.hosts.run(first, "touch /tmp/filled")
    done = fault_record.judged(started.wait(), place)
    assert done.ending == ("fail", 3), done.err
    assert done.suspects == {(place.names[1], "disk-full")}
    assert "did not end within" not in done.err
    place.hosts.empty(full)
    place.hosts.run(first, "rm /tmp/filled")
    place.nothing_is_left()
    place.evidence_holds(done)


@injects(Fault.FIRST_HOST_DISK_FULL, BackEnd.SSH, BackEnd.SLURM)
def test_a_full_disk_of_the_first_host_accuses_nobody_else(
    make_place: MakeRacks, fault_record: FaultRecord
) -> None:
    place = make_place(3, size="64m")
    first = place.names[0]
    started = place.start_measuring([*LONG, *ALL_REDUCE])
    fault_record.begins(first)
    place.hosts.fill(place.host(first))
    done = fault_record.judged(started.wait(), place)
    # Checksums do not fit on that disk, so the evidence of the finished steps is judged.
    assert done.suspects == {(first, "disk-full")}, done.err
    assert done.exit == 3
    place.hosts.empty(place.host(first))
    place.nothing_is_left()


@injects(Fault.WORKSTATION_DISK_FULL, BackEnd.SSH, BackEnd.SLURM, BackEnd.KUBERNETES)
def test_a_full_disk_of_the_workstation_costs_no_evidence(
    make_place: MakePlace, fault_record: FaultRecord
) -> None:
    place = make_place(3)
    with _small_disk(place.runs) as ballast:
        started = place.start(checks=LONG)
        started.wait_for("1/2]")
        fault_record.begins("workstation")
        _fill(ballast)
        ended = started.wait()
        ballast.unlink()
        collected = place.do("collect", "last")
        judged = place.do("judge", "last", "--json")
        fault_record.judged(ended, place, judged)
        assert "error[E-ARCHIVE-DISK]" in ended.err
        assert collected.exit == 0, collected.err
        assert judged.ending == ("pass", 0)
        place.nothing_is_left()
        place.evidence_holds(judged)


@injects(Fault.WORKSTATION_DISK_FULL, BackEnd.LOCAL)
def test_a_full_disk_of_this_machine_is_named(
    make_place: MakePlace, fault_record: FaultRecord
) -> None:
    place = make_place()
    with _small_disk(place.runs) as ballast:
        started = place.start(checks=[*LONG, *ALL_REDUCE])
        started.wait_for("1/3]")
        fault_record.begins("localhost")
        _fill(ballast)
        done = fault_record.judged(started.wait(), place)
        assert done.suspects == {(place.names[0], "disk-full")}, done.err
        assert done.exit == 3
        place.nothing_is_left()


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk of 8 MB on a folder, and yield the path of a file to fill it with."""
    folder.mkdir()
    execute(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)])
    try:
        yield folder / "ballast"
    finally:
        execute(["umount", "--lazy", str(folder)])


def _fill(ballast: Path) -> None:
    """Fill the file system of a file with it."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


# The workstation


@injects(Fault.WORKSTATION_KILLED, BackEnd.LOCAL, BackEnd.SLURM, BackEnd.KUBERNETES)
def test_a_run_goes_on_without_its_command(
    make_place: MakePlace, fault_record: FaultRecord
) -> None:
    place = make_place(shared=True)
    run = place.start_measuring([*CONNECT, *ALL_REDUCE])
    fault_record.begins("the command")
    run.kill()
    assert place.do("watch", "last").exit == 0
    done = fault_record.judged(place.do("judge", "last", "--json"), place)
    assert done.ending == ("pass", 0), done.err
    place.nothing_is_left()
    place.evidence_holds(done)


@injects(Fault.SIGTERM, *BackEnd)
def test_sigterm_cancels_a_run(make_place: MakePlace, fault_record: FaultRecord) -> None:
    place = make_place(3, shared=True)
    run = place.start_measuring(ENDLESS)
    fault_record.begins("workstation")
    os.kill(run.process.pid, signal.SIGTERM)
    done = run.wait()
    again = place.do("judge", "last", "--json")
    fault_record.judged(done, place, again)
    assert done.exit == 143, done.err
    assert again.exit == 5
    place.nothing_is_left()


@injects(Fault.CTRL_C_TWICE, *BackEnd)
def test_a_second_ctrl_c_stops_the_clean_up_and_shows_how_to_end_the_run(
    make_place: MakePlace, fault_record: FaultRecord
) -> None:
    place = make_place(3, shared=True)
    run = place.start_measuring(ENDLESS)
    fault_record.begins("workstation")
    run.interrupt()
    run.wait_for("cancel")
    run.interrupt()
    done = run.wait()
    judged = place.do("judge", "last", "--json")
    fault_record.judged(done, place, judged)
    fault_record.leaves("what is left of the run, until `accept cancel`")
    assert done.exit == 130, done.err
    assert "Traceback" not in done.err
    assert f"accept cancel {place.attempt()}" in done.err.partition("the run may go on")[2]
    assert place.do("cancel", "last").exit == 0
    place.nothing_is_left()


# More


@pytest.mark.reliability
@pytest.mark.fault(Fault.CLOCK_SKEW, BackEnd.SSH)
def test_a_clock_that_is_wrong_accuses_nobody(make_lab: MakeLab, fault_record: FaultRecord) -> None:
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


@injects(Fault.TWO_RUNS, *BackEnd, ci=[BackEnd.SSH])
def test_two_runs_on_the_same_hosts_do_not_touch_each_other(
    make_place: MakePlace, fault_record: FaultRecord
) -> None:
    place = make_place(3, shared=True)
    fault_record.begins("all")
    first, second = place.start(checks=CONNECT), place.start(checks=CONNECT)
    for done in (first.wait(), second.wait()):
        fault_record.judged(done, place)
        assert done.ending == ("pass", 0), done.err
        place.evidence_holds(done)
    place.nothing_is_left()
