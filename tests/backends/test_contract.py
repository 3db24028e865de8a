"""The promises of every back end, with stand-ins at its lowest boundary."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.factories.clock import PATIENCE, Clock
from tests.factories.command_line import Done, accept, killed_when, refused
from tests.factories.places import Place, place

from accept.commands import run
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import Exit, Terminated
from accept.evidence import rundir

HAD_ENDED = "{} had already ended; nothing was cancelled\n"
pytestmark = pytest.mark.sampled
BACK_ENDS = ("local", "ssh", "slurm", "kubernetes")


@pytest.fixture(params=BACK_ENDS)
def here(
    request: pytest.FixtureRequest, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    with place(request.param, tmp_path, monkeypatch) as made:
        yield made


def suggested(done: Done) -> Done:
    """Do what a command suggests as the next one."""
    (command,) = re.findall("^next: accept (.*)$", done.err, re.MULTILINE)
    return accept(*shlex.split(command))


def verdict_of(here: Place) -> Any:
    return json.loads(accept("judge", here.run, "--json").out)


def listed() -> list[str]:
    """Return the runs and their states, as `accept list runs` shows them."""
    runs = json.loads(accept("list", "runs", "--json").out)["runs"]
    return [f"{run['name']}: {run['about']}" for run in runs]


def test_a_dry_run_shows_the_plan_and_starts_nothing(here: Place) -> None:
    done = accept(*here.words("run", "--dry-run"))
    assert done.code == 0, done.err
    assert re.search(r"^estimated: [\d.]+ (s|min)\b", done.out, re.MULTILINE)
    plan = json.loads(accept(*here.words("run", "--dry-run", "--json")).out)
    assert (plan["backend"], plan["nodes"]) == (here.backend, 1)
    assert rundir.listed() == ()
    assert here.left() == []


def test_a_run_ends_with_a_verdict_and_leaves_nothing_but_its_evidence(here: Place) -> None:
    done = here.start()
    assert done.code == 0, done.err
    assert done.out.startswith("✔ ACCEPTED (no GPU tested)")
    last = f"VERDICT pass good=1 bad=none untested=0 verified={here.verified} run={here.run}"
    assert done.out.splitlines()[-1] == last
    assert "[2/2] 20-connectivity" in done.err
    assert evidence.check_checksums(here.evidence) == ()
    names = {path.relative_to(here.evidence).as_posix() for path in here.evidence.rglob("*")}
    assert names >= {
        "plan.json", "hosts.json", "records.jsonl", "console.log", "SHA256SUMS", "verdict.json",
        "report.md", "junit.xml", "logs/INDEX.md",
    }  # fmt: skip
    assert (here.evidence.parent / rundir.REPORT).is_file()
    (shown,) = listed()
    assert shown.startswith(f"{here.run}: pass")
    # A cluster keeps the objects of a run.
    removal = f"accept clean {here.run}"
    assert (removal in done.err) is (here.backend == "kubernetes")
    if removal in done.err:
        assert accept("clean", here.run).code == 0
    assert here.left() == []
    for command, shows in {
        "judge": done.out,
        "watch": done.out,
        "collect": f"{here.evidence}\n",
        "cancel": HAD_ENDED.format(here.run),
        "clean": "nothing is left\n",
    }.items():
        again = accept(command, here.run)
        assert (again.code, again.out) == (0, shows), command


def test_a_run_can_be_followed_in_stages_that_suggest_each_other(here: Place) -> None:
    here.hold()
    rendered = here.folder / "rendered"
    assert accept(*here.words("render", "-o", str(rendered))).code == 0
    done = accept("submit", rendered, "--attempt", here.attempt)
    assert (done.code, done.out) == (0, f"{here.run}\n"), done.err
    here.begun()
    (shown,) = listed()
    assert re.fullmatch(f"{here.run}: (submitted|running, step 2 of 2)", shown)
    for command in ("collect", "clean"):
        refused(command, here.run, code=Exit.INTERRUPTED, error=Code.RUN_STILL_RUNNING)
    refused("judge", here.run, code=Exit.INCOMPLETE)
    would = accept("clean", here.run, "--dry-run")
    assert (would.code, would.out.startswith("would remove ")) == (0, True)
    assert here.processes() != []
    here.release()
    watched = suggested(done)
    assert (watched.code, "[2/2] 20-connectivity" in watched.err) == (0, True), watched.err
    collected = accept("collect", here.run)
    assert suggested(collected).out == watched.out
    verdict = verdict_of(here)
    assert verdict["state"] == "pass"
    saved = json.loads(accept("judge", here.evidence / evidence.CONSOLE, "--json").out)
    assert {**saved, "verified": here.verified} == verdict


def test_a_cancelled_run_keeps_what_was_measured(here: Place) -> None:
    here.held()
    done = accept("cancel", here.run)
    assert (done.code, done.out) == (0, f"cancelled {here.run}\n"), done.err
    assert here.left() == []
    verdict = verdict_of(here)
    assert (verdict["interruption"], verdict["state"]) == ("the run was cancelled", "not-tested")
    states = {one["check"]: one["state"] for one in verdict["checks"]}
    assert states["inventory"] == "pass"
    assert suggested(done).code == Exit.INTERRUPTED
    assert accept("cancel", here.run).code == 0, "again does no harm"


def test_a_run_that_is_removed_leaves_nothing(here: Place) -> None:
    here.held()
    done = accept("clean", here.run, "--no-collect")
    assert (done.code, done.out.startswith("removed ")) == (0, True), done.err
    assert here.left() == []
    assert accept("clean", here.run).out == "nothing is left\n"


def program(here: Place) -> subprocess.Popen[str]:
    """Start `accept run` as a program; its run is held."""
    here.hold()
    words = [sys.executable, "-m", "accept", *here.words("run", "--attempt", here.attempt)]
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def followed(here: Place) -> subprocess.Popen[str]:
    """Start `accept run` as a program, and wait until its run is held."""
    process = program(here)
    here.begun()
    return process


@pytest.mark.parametrize("here", BACK_ENDS[1:], indirect=True)
def test_a_start_that_is_interrupted_leaves_nothing(here: Place) -> None:
    here.mark("block")
    process = program(here)
    here.wait_for(here.control / "blocked")
    here.mark("block", is_set=False)
    # As a terminal does.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (Exit.CTRL_C, ""), err
    assert "Traceback" not in err
    assert rundir.listed() == ()
    assert here.left() == []


def test_ctrl_c_cancels_the_run(here: Place) -> None:
    process = followed(here)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (Exit.CTRL_C, ""), err
    assert "cancel" in err
    assert "Traceback" not in err
    assert here.left() == []
    assert verdict_of(here)["interruption"] == "the run was cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_whose_exception_is_lost_interrupts_again(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer(io.RawIOBase):
        def close(self) -> None:
            if not self.closed:
                os.kill(os.getpid(), number)
            super().close()

    def terminate(*_: object) -> None:
        raise Terminated

    def followed_run() -> None:
        # Its exception is discarded, as it comes while the answer is finalized.
        Answer()
        threading.Event().wait(PATIENCE)

    monkeypatch.setattr(run, "_INSIST_SECONDS", 0.05)
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(KeyboardInterrupt), run._interruptible():
            followed_run()
        assert signal.getsignal(signal.SIGTERM) is terminate
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.rare
def test_a_second_ctrl_c_ends_the_command_and_shows_how_to_end_the_run(here: Place) -> None:
    here.mark("stubborn")
    process = followed(here)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    for line in process.stderr:
        if "cancel: " in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (Exit.CTRL_C, ""), err
    assert re.search(f"the run may go on; to end it: .* cancel {here.run}\n", err)
    assert "Traceback" not in err
    assert accept("cancel", here.run).code == 0
    assert here.left() == []


def test_a_run_continues_if_its_command_is_killed(here: Place) -> None:
    process = followed(here)
    process.kill()
    process.communicate()
    here.release()
    watched = accept("watch", "last", "--json")
    assert watched.code == 0, watched.err
    assert json.loads(watched.out).items() <= verdict_of(here).items()


@pytest.mark.parametrize("command", ["cancel", "clean --no-collect"])
def test_a_start_that_is_killed_can_be_ended(here: Place, command: str) -> None:
    here.hold()
    here.mark("block")
    killed_when(here.is_starting, *here.words("submit", "--attempt", here.attempt))
    here.mark("block", is_set=False)
    (shown,) = listed()
    assert shown == f"{here.run}: {'running' if here.backend == 'local' else 'starting'}"
    done = accept(*command.split(), here.run)
    # What is not found was not cancelled.
    assert done.code in (0, Exit.INCOMPLETE), done.err
    assert here.left() == []


@pytest.mark.parametrize("ended", ["coordinator", "everything"])
def test_a_run_whose_processes_are_killed_is_interrupted(here: Place, ended: str) -> None:
    here.held()
    if ended == "coordinator":
        os.kill(int((here.node / "coordinator.pid").read_text()), signal.SIGKILL)
    else:
        here.crash()
    done = accept("watch", here.run)
    assert (done.code, "never finished" in done.out) == (Exit.INTERRUPTED, True), done
    assert accept("judge", here.run).code == Exit.INTERRUPTED
    assert accept("clean", here.run).code == 0
    assert here.left() == []


def test_a_run_that_cannot_start_leaves_nothing(here: Place) -> None:
    here.refuse()
    done = here.start()
    assert (done.code, done.out) == (Exit.NOT_STARTED, ""), done.err
    assert done.error != ""
    assert rundir.listed() == ()
    assert here.left() == []


@pytest.mark.parametrize("here", BACK_ENDS[2:], indirect=True)
def test_a_run_that_gets_no_node_is_removed(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    here.starve()
    Clock(monkeypatch)
    done = here.start("run", "--start-timeout", "60s")
    assert (done.code, done.out) == (Exit.NOT_STARTED, ""), done.err
    assert here.left() == []


def test_a_name_that_exists_is_refused(here: Place) -> None:
    (here.evidence.parent).mkdir(parents=True)
    done = here.start()
    assert (done.code, done.out, done.error) == (Exit.USAGE, "", Code.ATTEMPT_EXISTS)
    assert here.left() == []


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("write", ["first", "last"])
def test_a_run_that_cannot_be_recorded_is_ended(
    here: Place, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without job.json, no later command would find the run."""
    writes = itertools.count(1)
    here.hold()

    def fail(path: Path, text: str) -> None:
        number = next(writes)
        if write == "first":
            raise full_disk()
        if number == here.records:
            here.begun()
            raise full_disk()
        evidence.write(path, text)

    monkeypatch.setattr("accept.commands.collect.write", fail)
    done = here.start("submit")
    assert (done.code, done.error) == (Exit.NOT_STARTED, Code.RUN_NOT_RECORDED), done.err
    assert rundir.listed() == ()
    assert here.left() == []


def test_evidence_that_cannot_be_written_can_be_collected_later(here: Place) -> None:
    with pytest.MonkeyPatch.context() as patch:
        rename = Path.rename

        def fail(path: Path, target: Path) -> Path:
            if target == here.evidence:
                raise full_disk()
            return rename(path, target)

        patch.setattr(Path, "rename", fail)
        done = here.start()
        # Neither removes the evidence.
        cleaned, cancelled = (accept(command, here.run) for command in ("clean", "cancel"))
    assert (done.code, done.out, done.error) == (Exit.INCOMPLETE, "", Code.ARCHIVE_DISK), done.err
    assert f"accept collect {here.run}" in done.err
    # A job that has ended leaves nothing but what it wrote to the run folder.
    assert "--no-collect" in cleaned.err or here.backend == "slurm", cleaned.err
    assert cancelled.code == Exit.INCOMPLETE, cancelled.err
    # It has ended, so this only collects it.
    done = accept("cancel", here.run)
    assert (done.code, done.out) == (0, HAD_ENDED.format(here.run)), done.err
    assert verdict_of(here)["state"] == "pass"


def test_evidence_that_was_changed_is_not_used(here: Place) -> None:
    here.held()
    here.release()
    stored = here.stored()
    stored.write_bytes(stored.read_bytes().replace(b'"10-inventory"', b'"10-inventorY"'))
    done = accept("watch", here.run)
    assert (done.code, done.out, done.error) == (Exit.INCOMPLETE, "", Code.EVIDENCE_CHANGED)
    assert not here.evidence.exists()


@pytest.mark.parametrize("here", BACK_ENDS[1:], indirect=True)
def test_a_back_end_that_does_not_answer_for_a_minute_does_not_end_the_command(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.held()
    here.silence()
    clock = Clock(monkeypatch)
    until = clock.now + 60

    def answer() -> None:
        if clock.now > until:
            here.silence(ends=True)
            here.release()

    clock.on_sleep(answer)
    done = accept("watch", here.run)
    assert (done.code, done.err.count("[2/2] 20-connectivity")) == (0, 1), done.err


@pytest.mark.rare
@pytest.mark.parametrize("here", BACK_ENDS[1:], indirect=True)
def test_a_back_end_that_does_not_answer_for_minutes_does_not_end_the_run(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.held()
    here.silence()
    with monkeypatch.context() as patch:
        clock = Clock(patch)
        began = clock.now
        done = accept("watch", here.run)
    assert clock.now - began > 60
    assert (done.code, done.out) == (Exit.INTERRUPTED, ""), done.err
    assert f"accept watch {here.run}" in done.err
    assert here.processes() != []
    here.silence(ends=True)
    here.release()
    assert accept("watch", here.run).code == 0
