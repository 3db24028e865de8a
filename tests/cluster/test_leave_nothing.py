"""Hosts are unchanged after a run, however it ends and whichever machine disappears."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from tests.cluster.faults import BackEnd
from tests.cluster.runs import CONNECT, ENDLESS, LONG, Lab, Place
from tests.factories.paths import ROOT

Make = Callable[..., Lab]


@pytest.mark.parametrize(
    ("back_end", "shared"),
    [
        (BackEnd.SSH, False),
        # Its nodes see the folder of the workstation, or not.
        (BackEnd.SLURM, True),
        (BackEnd.SLURM, False),
        (BackEnd.KUBERNETES, False),
    ],
)
def test_ctrl_c_cancels_cleans_up_and_the_run_is_resumed_on_the_same_nodes(
    make_place: Callable[..., Place], *, shared: bool
) -> None:
    place = make_place(3, shared=shared)
    place.names = place.names[:2]
    run = place.start(checks=LONG)
    run.wait_for("1/2]")
    run.interrupt()
    done = run.wait()
    assert done.exit == 130, done.err
    assert "Traceback" not in done.err
    place.nothing_runs()
    judged = place.do("judge", "last", "--json")
    first = judged.result
    assert (judged.exit, first["interruption"]) == (5, "the run was cancelled")
    states = {each["check"]: each["state"] for each in first["checks"]}
    assert (states["connectivity"], states["all-reduce"]) == ("pass", "not-tested")
    resumed = place.do("run", "--resume", "last", "--json")
    assert resumed.ending == ("pass", 0), resumed.err
    assert resumed.result["kept"] == [{"attempt": first["attempt"], "steps": ["10-connectivity"]}]
    assert set(resumed.result["hosts"]) == set(first["hosts"])
    text = (place.evidence(resumed.result["attempt"]) / "records.jsonl").read_text()
    attempts = {each["step"]: each["attempt"] for each in map(json.loads, text.splitlines())}
    assert attempts["10-connectivity"] == first["attempt"]
    assert not attempts["20-collectives"]
    place.nothing_is_left()
    place.evidence_holds(resumed)


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
