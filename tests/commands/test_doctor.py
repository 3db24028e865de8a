"""`accept doctor`: hosts with the same result are one line, and the last line is the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest
from tests.factories.command_line import Done, accept

from accept import backends
from accept.backends.requirements import Need, Requirement
from accept.core.errors import Exit

pytestmark = pytest.mark.usefixtures("runs")

HOSTS = tuple(f"node{number:02}" for number in range(1, 65))


def need(host: str, found: str = "/usr/sbin/sshd", *, good: bool = True, advice: str = "") -> Need:
    """Return one line about one host."""
    return Need(
        code=Requirement.TOOL, host=host, what="sshd", good=good, found=found, advice=advice
    )


def doctor(needs: Sequence[Need], *words: str) -> Done:
    """Call `accept doctor` on hosts with these results."""
    with mock.patch.object(backends.BACKENDS["ssh"], "doctor", return_value=tuple(needs)):
        return accept("doctor", "--hosts", "node[01-64]", "-m", "cpu", *words)


def missing(host: str) -> Need:
    text = f"ssh: Could not resolve hostname {host}: Name or service not known"
    return need(host, text, good=False, advice=f"try: ssh {host}")


def test_hosts_that_have_everything_are_one_line_and_lead_to_the_run() -> None:
    needs = [need(host) for host in HOSTS]
    with mock.patch("sys.argv", ["accept", "doctor", "--hosts", "node[01-64]", "-v"]):
        done = doctor(needs, "--suite", "standard")
    assert "next: accept run --hosts 'node[01-64]' -m cpu --suite standard\n" in done.err
    lines = done.out.splitlines()
    assert done.code == Exit.PASS
    (line,) = [line for line in lines if "sshd" in line]
    assert line.startswith("ok ")
    assert "64 hosts: node[01-64]: " in line
    assert lines[-1].startswith("ready ")
    found = json.loads(doctor(needs, "--json").out)
    assert (found["ready"], len(found["needs"])) == (True, 64)


def test_rows_that_cannot_be_checked_are_unknown_and_named_in_the_last_line() -> None:
    done = doctor([need("node01"), replace(need("node01"), what="image", checked=False)])
    lines = done.out.splitlines()
    assert done.code == Exit.PASS
    assert [line.split()[0] for line in lines if "node01: " in line] == ["ok", "unknown"]
    assert lines[-1].startswith("ready ")
    assert lines[-1].endswith("; not checked: image")


def test_hosts_that_lack_the_same_are_one_line_although_messages_name_them() -> None:
    needs = [*map(need, HOSTS[:60]), *map(missing, HOSTS[60:])]
    done = doctor(needs)
    lines = done.out.splitlines()
    (line,) = [line for line in lines if line.startswith("missing")]
    assert "4 hosts: node[61-64]" in line
    assert done.code == Exit.NOT_STARTED
    assert lines[-1].startswith("not ready ")
    assert "node[61-64]" in lines[-1]
    assert json.loads(doctor(needs, "--json").out)["ready"] is False


def test_a_run_that_leaves_out_an_unusable_host_is_what_will_run() -> None:
    needs = [*map(need, HOSTS[1:]), missing("node01")]
    (line,) = [line for line in doctor(needs).out.splitlines() if line.startswith("will run")]
    assert line.endswith(" on 63 of 64 hosts: node[02-64]")
    strict = doctor(needs, "--require-all-nodes").out
    assert "will run   nothing\n" in strict


def test_a_host_whose_name_is_a_part_of_anothers_keeps_its_own_line() -> None:
    done = doctor([missing("node1"), need("node10", "node1 is its alias", good=False)])
    assert len([line for line in done.out.splitlines() if line.startswith("missing")]) == 2
