"""Unusable hosts: each is named with its reason, and the others are tested."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.faults import BackEnd, Fault, FaultRecord
from tests.cluster.hosts import Hosts
from tests.cluster.runs import ALL_REDUCE, CONNECT, Lab

Make = Callable[..., Lab]

#: The fault of h3, the expected cause, and how long a run waits for hosts. It does not wait for h3
#: in the last four cases, because waiting cannot help there.
ABSENCES: dict[str, tuple[Callable[[Hosts], None], str, str]] = {
    "stopped": (lambda hosts: hosts.stop("h3"), "unreachable-timeout", "12s"),
    "no sshd": (lambda hosts: hosts.stop_sshd("h3"), "unreachable-refused", "12s"),
    "no name": (lambda hosts: hosts.unname("h3"), "unreachable-dns", "60s"),
    "key refused": (lambda hosts: hosts.refuse_key("h3"), "key-refused", "60s"),
    "another host key": (lambda hosts: hosts.change_host_key("h3"), "host-key-mismatch", "60s"),
    "full disk": (lambda hosts: hosts.fill("h3"), "disk-full", "60s"),
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("stopped", marks=pytest.mark.fault(Fault.HOST_ABSENT, BackEnd.SSH)),
        *(what for what in ABSENCES if what != "stopped"),
    ],
)
def test_an_absent_host_is_named_with_its_reason(
    make_lab: Make, fault_record: FaultRecord, what: str
) -> None:
    absent, cause, wait = ABSENCES[what]
    lab = make_lab(4, before=absent)
    fault_record.begins("h3")
    done = fault_record.judged(lab.run("--start-timeout", wait, checks=CONNECT), lab)
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {("h3", cause)}
    assert done.result["missing"] == ["h3"]
    # The others were tested all the same.
    states = {each["check"]: each["state"] for each in done.result["checks"]}
    assert states["connectivity"] == "pass"
    assert done.result["hosts"] == [name for name in lab.hosts.names if name != "h3"]
    lists = lab.do("show", "nodes", "last", "--json").result
    assert lists == {"good": done.result["hosts"], "bad": ["h3"], "untested": []}
    assert lab.do("judge", "last", "--max-bad", "1").exit == 0
    lab.nothing_is_left()
    lab.evidence_holds(done)
    # After a timeout, files may be left on the host. Otherwise nothing was created there.
    assert lab.do("clean", "last").exit == (5 if cause == "unreachable-timeout" else 0)


def test_a_run_is_accepted_with_the_retest_of_a_repaired_host(make_lab: Make) -> None:
    lab = make_lab(4, before=lambda hosts: hosts.stop_sshd("h3"))
    done = lab.run("--start-timeout", "12s", checks=[*CONNECT, *ALL_REDUCE])
    assert done.ending == ("degraded", 3), done.err
    run = done.result["attempt"]
    assert lab.do("ticket", run, "h3").exit == 0
    assert lab.do("explain", run, "h3", "--json").result["state"] == "bad"
    lab.hosts.start_sshd("h3")
    again = lab.do("retest", run, "--json")
    assert [s["outcome"] for s in again.result["suspects"]] == ["closed"], again.err
    assert (again.exit, again.result["accepted"]) == (0, True), again.err
    lab.nothing_is_left([name for name in lab.hosts.names if name != "h3"])


def test_all_nodes_required_means_that_nothing_starts(make_lab: Make) -> None:
    lab = make_lab(3, before=lambda hosts: hosts.refuse_key("h3"))
    done = lab.run("--require-all-nodes", "--start-timeout", "60s", checks=CONNECT)
    assert done.exit == 4
    assert "h3" in done.err
    assert "key-refused" in done.err
    assert not list(lab.runs.glob("*"))
    lab.nothing_is_left()


def test_a_host_whose_sshd_comes_late_is_waited_for(make_lab: Make) -> None:
    lab = make_lab(4, late=["h2"])
    run = lab.start("--start-timeout", "120s", checks=CONNECT)
    run.wait_for("waiting for h2")
    lab.hosts.start_sshd("h2")
    done = run.wait()
    assert done.ending == ("pass", 0), done.err
    assert done.result["hosts"] == list(lab.hosts.names)
    # The sshd of h2, which did not run before, stays.
    lab.nothing_is_left([name for name in lab.hosts.names if name != "h2"])
    assert not [each for each in lab.differs(["h2"]) if "accept-" in each]
    lab.evidence_holds(done)
