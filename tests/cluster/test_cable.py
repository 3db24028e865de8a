"""Runs continue and end without the workstation: its cable is pulled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.runs import ALL_REDUCE, CONNECT, LONG, Lab, until

Make = Callable[..., Lab]


@pytest.mark.smoke
@pytest.mark.fault(Fault.WORKSTATION_KILLED, BackEnd.SSH)
def test_a_run_ends_by_itself_and_keeps_its_evidence_and_no_port(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(3)
    run = lab.start(checks=[*CONNECT, *ALL_REDUCE])
    run.wait_for("1/2]")
    fault_record.begins("workstation")
    lab.hosts.unplug()
    run.kill()
    # All of this while nobody can reach the hosts.
    lab.nothing_is_left(["h2", "h3"], patience=300.0)
    until(lambda: lab.hosts.listening("h1") == lab.before["h1"][1])
    folder = f"/tmp/accept-{lab.attempt()}"

    def kept() -> set[str]:
        return {path.removeprefix(folder) for path in lab.hosts.tree("h1") if folder in path}

    expected = {"", "/evidence.tar", "/console.log", "/status", "/events", "/run", "/timer"}
    # For `accept clean`, should the watchdog be killed before it removes the folder.
    expected |= {"/guard.pid", "/kill.sh"}
    until(lambda: "/kept" in kept())
    assert kept() == {*expected, "/kept"}
    marked = [
        each.command
        for each in lab.hosts.processes("h1")
        if f"ACCEPT_RUN={lab.attempt()}" in each.environment
    ]
    assert marked == []
    lab.hosts.plug()
    watched = lab.do("watch", "last")
    assert watched.exit == 0, watched.err
    assert "2/2]" in watched.err
    lab.nothing_is_left()
    judged = fault_record.judged(lab.do("judge", "last", "--json"), lab)
    assert judged.ending == ("pass", 0)
    lab.evidence_holds(judged)


def test_a_connection_that_drops_while_watching_is_survived(make_lab: Make) -> None:
    lab = make_lab(2)
    run = lab.start(checks=LONG)
    run.wait_for("1/2]")
    lab.hosts.unplug()
    # ssh gives up 30 s after the last sign of life, and the next two find nobody.
    run.wait_for("no connection to h1; the run may go on there")
    lab.hosts.plug()
    done = run.wait()
    assert done.ending == ("pass", 0), done.err
    # Each line was shown once, although output was requested again.
    assert done.err.count("2/2]") == 1
    assert done.err.count("1/2]") == 1
    lab.nothing_is_left()
    lab.evidence_holds(done)
