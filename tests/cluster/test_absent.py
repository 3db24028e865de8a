"""Hosts that cannot be had: each is named with its reason, and the others are tested."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.hosts import Hosts
from tests.cluster.runs import CONNECT, Lab

Make = Callable[..., Lab]

#: What is done to h3, and the cause that has to be named.
ABSENCES: dict[str, tuple[Callable[[Hosts], None], str]] = {
    "stopped": (lambda hosts: hosts.stop("h3"), "unreachable-timeout"),
    "no sshd": (lambda hosts: hosts.stop_sshd("h3"), "unreachable-refused"),
    "no name": (lambda hosts: hosts.unname("h3"), "unreachable-dns"),
    "key refused": (lambda hosts: hosts.refuse_key("h3"), "key-refused"),
    "another host key": (lambda hosts: hosts.change_host_key("h3"), "host-key-mismatch"),
    "full disk": (lambda hosts: hosts.fill("h3"), "disk-full"),
}


@pytest.mark.parametrize("what", ABSENCES)
def test_an_absent_host_is_named_with_its_reason(make_lab: Make, what: str) -> None:
    absent, cause = ABSENCES[what]
    lab = make_lab(8, before=absent)
    done = lab.run("--start-timeout", "5s", "--deadline", "60s", checks=CONNECT)
    assert done.ending == ("fail", 3), done.err
    assert done.suspects == {("h3", cause)}
    assert done.result["missing"] == ["h3"]
    # The others were tested all the same.
    states = {each["check"]: each["state"] for each in done.result["checks"]}
    assert states["connectivity"] == "pass"
    assert done.result["hosts"] == [name for name in lab.hosts.names if name != "h3"]
    lab.nothing_is_left()
    lab.evidence_holds(done)


def test_all_nodes_required_means_that_nothing_starts(make_lab: Make) -> None:
    lab = make_lab(3, before=lambda hosts: hosts.refuse_key("h3"))
    done = lab.run("--require-all-nodes", "--start-timeout", "5s", checks=CONNECT)
    assert done.exit == 4
    assert "h3" in done.err
    assert "key-refused" in done.err
    assert not list(lab.runs.glob("*"))
    lab.nothing_is_left()


def test_no_host_at_all_means_that_nothing_starts(make_lab: Make) -> None:
    lab = make_lab(2, before=lambda hosts: hosts.stop_sshd("h1", "h2"))
    done = lab.run("--start-timeout", "3s", checks=CONNECT)
    assert done.exit == 4
    assert "unreachable-refused" in done.err


def test_a_host_whose_sshd_comes_late_is_waited_for(make_lab: Make) -> None:
    lab = make_lab(8, late=["h5"])
    lab.hosts.start_sshd("h5", after=20)
    done = lab.run("--start-timeout", "60s", "--deadline", "60s", checks=CONNECT)
    assert done.ending == ("pass", 0), done.err
    assert "waiting for h5" in done.err
    assert done.result["hosts"] == list(lab.hosts.names)
    # That sshd of its own, which was not there before, stays.
    lab.nothing_is_left([name for name in lab.hosts.names if name != "h5"])
    assert not [each for each in lab.differs(["h5"]) if "accept-" in each]
    lab.evidence_holds(done)
