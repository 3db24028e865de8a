"""Bad hosts that take part in a run: exactly the one to blame is named.

Ranks that hang, die or send wrong data are injected by a drill: test_drill.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.runs import ALL_REDUCE, CONNECT, LONG, PAIRS, Lab, until

Make = Callable[..., Lab]


def digest(folder: Path) -> str:
    """Return a digest of all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(bytes(f) + f.read_bytes() for f in files)).hexdigest()


@pytest.mark.fault(Fault.SLOW_LINK, BackEnd.SSH)
def test_a_slow_link_is_named_by_the_pairs_and_bad_until_it_is_repaired(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(4)
    lab.hosts.slow("h4")
    fault_record.begins("h4")
    done = fault_record.judged(lab.run(checks=[*CONNECT, *PAIRS]), lab)
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {("h4", "slow-outlier")}
    lab.nothing_is_left()
    lab.evidence_holds(done)
    run = done.result["attempt"]
    before = digest(lab.evidence(run))
    again = lab.do("retest", run, "--json")
    assert (again.exit, again.result["accepted"]) == (3, False), again.err
    assert [s["outcome"] for s in again.result["suspects"]] == ["still-bad"], again.err
    lab.hosts.shape("h4")
    repaired = lab.do("retest", run, "h4", "--json")
    assert [s["outcome"] for s in repaired.result["suspects"]] == ["closed"], repaired.err
    assert (repaired.exit, repaired.result["accepted"]) == (0, True)
    assert digest(lab.evidence(run)) == before
    lab.nothing_is_left()
    lab.hosts.stop("h4")
    gone = lab.do("retest", run)
    assert (gone.exit, "E-SSH-HOSTS-UNUSABLE" in gone.err) == (4, True), gone.err


@pytest.mark.fault(Fault.HOST_LOST, BackEnd.SSH)
def test_a_host_that_dies_in_the_middle_of_a_step_is_named(
    make_lab: Make, fault_record: FaultRecord
) -> None:
    lab = make_lab(5)
    checks = [*LONG, ALL_REDUCE[0].replace("all,", "halves,")]
    started = lab.start(checks=checks)
    started.wait_for("connectivity: ping")
    until(lambda: lab.measures("h4"))
    fault_record.begins("h4")
    lab.hosts.kill("h4")
    done = fault_record.judged(started.wait(), lab)
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {("h4", "host-died")}
    # Long before the step's own time is over; and the others went on without it.
    assert "did not end within" not in done.err
    assert "30-collectives-halves (all-reduce) halves, 2 groups: 2 good" in done.err
    lab.nothing_is_left()
    lab.evidence_holds(done)
