"""Hosts are unchanged after a run, however it ends and whichever machine disappears."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.cluster.hosts import Hosts
from tests.cluster.runs import CONNECT, ENDLESS, LONG, Lab, until
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


def test_a_dropped_connection_is_made_again(make_lab: Make) -> None:
    lab = make_lab(2)
    run = lab.start(checks=LONG)
    run.wait_for("1/2]")
    lab.hosts.stop_sshd("h1")
    # The connection itself goes, too: what is watched is the run's own end, from a new one.
    for process in lab.hosts.processes("h1"):
        if process.command.startswith("sshd: root@notty") and process.parent == 1:
            lab.hosts.run("h1", f"kill {process.pid}", check=False)
    lab.hosts.start_sshd("h1")
    done = run.wait()
    assert done.exit in (0, 3), done.err
    assert done.result["attempt"] == lab.attempt()
    # That sshd of its own was made anew; what is the run's is gone.
    until(lambda: not [each for each in lab.differs() if "accept-" in each], 60)


def test_delete_cleans_up_when_the_guards_were_killed(make_lab: Make) -> None:
    lab = make_lab(2)
    run = lab.start(checks=ENDLESS)
    run.wait_for("1/2]")
    for name in lab.hosts.names:
        lab.hosts.run(name, 'kill -KILL $(cut -d " " -f 1 /tmp/accept-*/guard.pid)')
    deleted = lab.do("clean", "last", "--no-collect")
    assert deleted.exit == 0, deleted.err
    lab.nothing_is_left()
    assert run.wait().exit != 0


def test_a_login_shell_that_prints_text_does_no_harm(make_lab: Make) -> None:
    def greet(hosts: Hosts) -> None:
        for name in hosts.names:
            hosts.path(name, "/root/.bashrc").write_text("echo Welcome to $(hostname)\n")

    lab = make_lab(2, before=greet)
    doctor = lab.do("doctor", "--hosts", "h1,h2", "--site", str(lab.site), "--json")
    notes = [each for each in doctor.result["needs"] if each["code"] == "R-LOGIN-SHELL"]
    assert [(each["host"], each["good"]) for each in notes] == [("h1", True), ("h2", True)]
    done = lab.run(checks=CONNECT)
    assert done.ending == ("pass", 0), done.err
    lab.evidence_holds(done)
    lab.nothing_is_left()
