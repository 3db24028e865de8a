"""This machine, and no ssh: the coordinator is a process here, detached from the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from accept.backends.job import Job
from accept.backends.protocol import Phase, Progress, Say
from accept.backends.requirements import (
    WITHOUT_GPUS,
    Need,
    lacks_gpus,
    machine_of,
    needs_of,
    tool_lines,
    tools_here,
)
from accept.config import Site
from accept.config.extras import Extra, install_hint
from accept.core import evidence
from accept.core.errors import BadInput, BrokenOff, NoEvidence, NotStarted
from accept.core.runner.coordinator import HOSTS, Launch
from accept.core.runner.discovery import Candidate
from accept.core.serde import dump
from accept.core.text import plain
from accept.evidence.rundir import JOB
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved

_NODE = "node"
_PID = "coordinator.pid"
_STEP = re.compile(r"^\[(\d{1,4})/(\d{1,4})\] ", re.MULTILINE)
_LOOK = 0.1
_GRACE = 5.0
#: Seconds from the making of the folder to the coordinator's process id, on a busy machine.
_BEGINNING = 30.0
_ENDING = 60.0
_ADVICE = f"{install_hint(Extra.RUN)}; or name your own under tools: in the site file"


def detect(hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
    """The machine that this one is."""
    return machine_of(tools_here(""))


def attempt_name(attempt: str, place: dict[str, str], nodes: int) -> str:
    """Return the name as it was chosen."""
    return attempt


def submit(run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
    """Start the coordinator in a session of its own; it goes on when this process ends."""
    if run.plan.nodes != 1:
        raise NotStarted(
            f"{run.plan.nodes} nodes are wanted, and this machine is one",
            hint="name the others: --hosts a,b,c",
        )
    found = _tools(run)
    if not run.plan.busy_ok and (busy := found.get("busy")):
        raise NotStarted(
            f"GPUs here are in use: {'; '.join(busy[:4])}", hint="wait for them, or give --busy-ok"
        )
    if lacks_gpus(found, run):
        raise NotStarted(
            f"machine {run.plan.machine.name} has GPUs, and this host shows no NVIDIA GPU",
            hint=WITHOUT_GPUS,
        )
    _say_what_is_missing(needs_of("here", found, run, advice=_ADVICE), say)
    node = folder / _NODE
    node.mkdir(mode=0o700)
    bundle.write(node)
    (node / "tmp").mkdir(mode=0o700)
    name = os.uname().nodename
    (node / "run").write_text(f"{attempt}\n", encoding="utf-8")
    (node / "host").write_text(f"{name}\n", encoding="utf-8")
    (node / "host.env").write_text(_host_env(run), encoding="utf-8")
    launch = Launch(
        attempt=attempt,
        hosts=(Candidate(name=name, local=True),),
        start_seconds=run.plan.start_seconds,
    )
    evidence.write(node / HOSTS, json.dumps(dump(launch)) + "\n")
    # Through a shell that ends at once: whoever starts the run is no parent that must reap it.
    subprocess.run(
        [
            "/bin/sh",
            "-c",
            '/bin/sh "$0" "$1" &',
            str(node / "coordinate.sh"),
            run.site.tools.python or sys.executable,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )
    return Job(
        schema=1,
        backend="local",
        attempt=attempt,
        hosts=(name,),
        first="",
        folder=str(node),
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _tools(run: Resolved) -> dict[str, list[str]]:
    return tools_here(_host_env(run) + tool_lines(run.site.tools))


def _say_what_is_missing(needs: Sequence[Need], say: Say) -> None:
    """Raise NotStarted where nothing can be launched; a check that lacks a tool is not tested."""
    for need in needs:
        if need.good or not need.checks:
            continue
        if need.what == "mpirun":
            raise NotStarted(
                f"no mpirun of Open MPI here, which {', '.join(need.checks)} need", hint=need.advice
            )
        say(
            f"no {need.what} here: {', '.join(need.checks)} cannot be tested in full; {need.advice}"
        )


def _host_env(run: Resolved) -> str:
    """Tools of this Python's own environment, where the site names none."""
    if run.site.tools.python or run.site.tools.venv:
        return ""
    scripts = shlex.quote(sysconfig.get_path("scripts"))
    return f"PATH={scripts}:$PATH\nACCEPT_PYTHON={shlex.quote(sys.executable)}\n"


def check_job(job: Job, folder: Path) -> None:
    """Raise BadInput if `job` uses another folder than the one in the run folder `folder`.

    Scripts in the job's folder are executed and the folder is removed, so only the folder that
    `submit` made counts. A folder that is gone harms nobody.
    """
    node = Path(job.folder)
    if node.exists() and node.resolve() != folder.resolve() / _NODE:
        raise BadInput(
            f"{folder / JOB} names another folder than {folder / _NODE}: {plain(job.folder, 200)}",
            hint="was the run folder renamed or copied? use it where the run was started",
        )


def progress(job: Job, *, folder: Path) -> Progress:
    """Return whether the run uses this machine now, and the step it is at."""
    node = folder / _NODE
    if not node.is_dir():
        return Progress(phase=Phase.GONE)
    if (node / "status").exists() or not _coordinator_lives(node):
        return Progress(phase=Phase.ENDED)
    return Progress(phase=Phase.RUNNING, step=_step_text(node))


def _step_text(node: Path) -> str:
    """Return the step of a running run, such as `step 3 of 6`; empty if it is not known."""
    try:
        console = (node / evidence.CONSOLE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The coordinator prints this when a step has ended.
    ended = _STEP.findall(console)
    done, steps = map(int, ended[-1]) if ended else (0, 0)
    return f"step {done + 1} of {steps}" if done < steps else ""


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Follow console.log until the coordinator's exit status is there."""
    node = Path(job.folder)
    console, status = node / evidence.CONSOLE, node / "status"
    seen, ended, rest = 0, False, ""
    while True:
        ended = status.exists()
        if console.exists():
            with console.open(encoding="utf-8", errors="replace") as file:
                file.seek(seen)
                text = rest + file.read()
                seen = file.tell()
            *lines, rest = text.split("\n")
            for line in lines:
                say(line)
        if ended:
            return int(status.read_text(encoding="utf-8") or 5)
        if _gone(node):
            raise BrokenOff(
                f"the coordinator of {job.attempt} is gone without a word",
                hint=f"accept collect {job.attempt} fetches what there is; see {console}",
            )
        time.sleep(_LOOK)


def _coordinator_lives(node: Path) -> bool:
    """Return True if the coordinator runs, is about to start, or left its exit status."""
    if not node.is_dir():
        return False
    if not (node / _PID).exists():
        return time.time() - node.stat().st_mtime < _BEGINNING
    return _coordinator(node) is not None or (node / "status").exists()


def _gone(node: Path) -> bool:
    """Return True if it ended without an exit status, which it leaves a moment after its end."""
    until = time.monotonic() + _GRACE
    while not _coordinator_lives(node):
        if time.monotonic() > until:
            return True
        time.sleep(_LOOK)
    return False


def _end_all(node: Path) -> None:
    """End whatever of the run still lives here, such as what a coordinator left that was killed."""
    # Its folder, and not its name: nobody keeps others here from calling a run of theirs the same.
    mark = f"ACCEPT_DIR={node}"
    subprocess.run(["/bin/sh", str(node / "kill.sh"), mark], stdout=subprocess.DEVNULL, check=False)


def _coordinator(node: Path) -> int | None:
    """Return the process id of the coordinator; None if it has ended or was not started yet.

    The kernel gives process ids again, so a process counts only if it started when the coordinator
    did: `coordinator.start` has field 22 of /proc/PID/stat, as `coordinate.sh` read it.
    """
    try:
        pid = int((node / _PID).read_text(encoding="utf-8"))
        started = (node / "coordinator.start").read_text(encoding="utf-8").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    # The second field is the name in parentheses, which may hold spaces; the third is the state.
    state, *more = stat.rpartition(") ")[2].split()
    return pid if started == more[18] and state not in "ZX" else None


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Move the evidence out of the node's folder, and remove the rest of that folder."""
    node, target = Path(job.folder), folder / "evidence"
    if node.is_dir() and not _gone(node) and not (node / "status").exists():
        raise BrokenOff(
            f"{job.attempt} is still running",
            hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
        )
    if not (node / "evidence").is_dir():
        raise NoEvidence(f"{job.attempt} left no evidence", hint=f"see {node}")
    _end_all(node)
    with contextlib.suppress(OSError):
        shutil.copy2(node / evidence.CONSOLE, node / "evidence" / evidence.CONSOLE)
    (node / "evidence").rename(target)
    shutil.rmtree(node)
    return target


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the coordinator, which ends what it started and writes what it has."""
    node = Path(job.folder)
    if not node.is_dir() or (node / "status").exists():
        return
    until = time.monotonic() + _GRACE
    while not (node / _PID).exists() and time.monotonic() < until:
        # It was started a moment ago.
        time.sleep(_LOOK)
    pid = _coordinator(node)
    if pid is not None:
        say("cancel: the coordinator ends what it started")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + _ENDING
        while not (node / "status").exists() and time.monotonic() < until:
            if _coordinator(node) is None and _gone(node):
                break
            time.sleep(_LOOK)
    _end_all(node)


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the run's folder here, with what still lives of it."""
    node = Path(job.folder)
    if not node.is_dir():
        return ()
    if not dry_run:
        _end_all(node)
        shutil.rmtree(node)
    return (str(node),)


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """What this machine has for the run's checks."""
    return needs_of(os.uname().nodename, _tools(run), run, advice=_ADVICE)
