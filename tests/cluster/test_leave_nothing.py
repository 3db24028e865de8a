"""Hosts are unchanged after a run, however it ends and whichever machine disappears."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.cluster.runs import CONNECT, ENDLESS, LONG, Lab
from tests.factories.paths import ROOT

Make = Callable[..., Lab]


def test_ctrl_c_cancels_cleans_up_and_the_run_can_be_resumed(make_lab: Make) -> None:
    lab = make_lab(3)
    run = lab.start(checks=LONG)
    run.wait_for("1/2]")
    run.interrupt()
    done = run.wait()
    assert done.exit == 130, done.err
    assert "Traceback" not in done.err
    lab.nothing_is_left()
    again = lab.do("judge", "last", "--json")
    assert again.exit == 5
    assert "cancelled" in again.result["interruption"]
    states = {each["check"]: each["state"] for each in again.result["checks"]}
    assert states["connectivity"] == "pass"
    assert states["all-reduce"] == "not-tested"
    first = again.result["attempt"]
    resumed = lab.do("run", "--resume", "last", "--json")
    assert resumed.ending == ("pass", 0), resumed.err
    assert resumed.result["kept"] == [{"attempt": first, "steps": ["10-connectivity"]}]
    lab.nothing_is_left()
    lab.evidence_holds(resumed)


def test_a_run_is_ended_on_its_first_host_with_the_command_of_the_documentation(
    make_lab: Make,
) -> None:
    (command,) = re.findall("`(echo stop .*?)`", (ROOT / "SECURITY.md").read_text())
    lab = make_lab(2)
    run = lab.start(checks=ENDLESS)
    run.wait_for("1/2]")
    lab.hosts.run("h1", command.replace("ATTEMPT", lab.attempt()))
    done = run.wait()
    assert done.exit == 5, done.err
    states = {each["check"]: each["state"] for each in done.result["checks"]}
    assert states["connectivity"] == "pass"
    lab.nothing_is_left()


def test_evidence_that_nobody_collects_expires(make_lab: Make) -> None:
    lab = make_lab(2)
    submitted = lab.command(
        *("submit", "--hosts", "h1,h2", "--machine", str(lab.machine), "--site", str(lab.site)),
        *("--suite", str(lab.suite(CONNECT)), "--keep", "2s"),
    ).wait()
    assert submitted.exit == 0, submitted.err
    lab.nothing_is_left()
    gone = lab.do("collect", "last")
    assert gone.exit == 6, gone.err
    assert "Traceback" not in gone.err
