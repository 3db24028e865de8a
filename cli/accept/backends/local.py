"""Run on this machine, without ssh: the coordinator is a local process without a terminal."""

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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from accept.backends import containers
from accept.backends.job import Job
from accept.backends.protocol import Phase, Progress, Record, Say, still_running
from accept.backends.protocol import attempt_name as attempt_name
from accept.backends.protocol import drain as drain
from accept.backends.protocol import rehearse as rehearse
from accept.backends.remote import Reach
from accept.backends.requirements import (
    WITHOUT_GPUS,
    Need,
    Requirement,
    lacks_gpus,
    machine_of,
    needs_of,
    survey_script,
    tool_lines,
    tools_here,
)
from accept.config import Site, resources
from accept.config.extras import Extra, install_hint
from accept.core import evidence
from accept.core.bounded import wait_until
from accept.core.catalog.tools import MPIRUN
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit, Interrupted, NoEvidence, NotStarted
from accept.core.runner.discovery import Candidate
from accept.core.runner.keys import new_keys
from accept.core.runner.launch import Launch
from accept.core.runner.resume import EARLIER, copy_finished
from accept.core.runner.ssh import KEY
from accept.core.serde import dump
from accept.core.text import decimal, plain
from accept.evidence.rundir import JOB
from accept.plan.bundle import Bundle
from accept.plan.resolve import ClusterPlace, Resolved

_NODE = "node"
#: Shell commands that start the coordinator in the folder $0, with the Python $1, and return.
_HERE = '/bin/sh "$0/coordinate.sh" "$1" &'
_IN_CONTAINER = """
. "$0/container.env" && . "$0/container.sh" && find_runtime &&
    { in_container "$0" /bin/sh "$0/coordinate.sh" "$1" > "$0/container.log" 2>&1 & }
"""
_PID = "coordinator.pid"
#: Seconds between two checks of the files of a run.
_LOOK = 0.1
#: Seconds from the end of the coordinator to its file `status`, or from its start to its pid file.
_GRACE = 5.0
#: Maximum seconds between the creation of the folder and the pid file, on a busy machine.
_BEGINNING = 30.0
#: Maximum seconds for a cancelled coordinator to end.
_ENDING = 60.0


def detect(hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
    """Return the machine type of this host."""
    return machine_of(tools_here(survey_script()))


def reach(_job: Job, _run: Resolved) -> Reach:
    """Return how commands reach a node of a run after its end: they run here."""

    def arguments(host: str, command: str) -> list[str]:
        return ["/bin/sh", "-c", command]

    return Reach(arguments=arguments, missing=Code.SYSTEM, hint="install a shell")


def submit(
    run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, record: Record, say: Say
) -> Job:
    """Start the coordinator in its own session, so that it continues when this process ends."""
    if run.plan.nodes != 1:
        raise NotStarted(
            f"the run needs {run.plan.nodes} nodes, and this machine is one",
            code=Code.LOCAL_HOSTS,
            hint="give all hosts: --hosts a,b,c",
        )
    tools = _tools(run, pull=True)
    if run.site.container.image:
        _check_container(run, tools, folder)
    if not run.plan.busy_ok and (busy := tools.get("busy")):
        raise NotStarted(
            f"GPUs here are in use: {'; '.join(busy[:4])}",
            code=Code.GPUS_IN_USE,
            hint="wait until they are idle, or give --busy-ok",
        )
    if lacks_gpus(tools, run):
        raise NotStarted(
            f"machine {run.plan.machine.name} has GPUs, and this host shows no NVIDIA GPU",
            code=Code.LOCAL_NO_GPU,
            hint=WITHOUT_GPUS,
        )
    _report_missing(needs_of("here", tools, run, advice=_advice()), say)
    node, name = folder / _NODE, os.uname().nodename
    job = Job(
        schema=1,
        backend="local",
        attempt=attempt,
        hosts=(name,),
        first="",
        folder=str(node),
    )
    record(job)
    node.mkdir(mode=0o700)
    bundle.write(node)
    (node / "tmp").mkdir(mode=0o700)
    (node / "run").write_text(f"{attempt}\n", encoding="utf-8")
    (node / "host").write_text(f"{name}\n", encoding="utf-8")
    (node / "host.env").write_text(_host_env(run), encoding="utf-8")
    if run.earlier:
        copy_finished(Path(run.earlier), node / EARLIER, run.plan)
    launch = Launch(
        attempt=attempt,
        hosts=(Candidate(name=name, local=True),),
        start_seconds=run.plan.start_seconds,
        earlier=str(node / EARLIER) if run.earlier else "",
    )
    evidence.write(node / evidence.HOSTS, json.dumps(dump(launch)) + "\n")
    job = replace(job, signer=_add_key(node))
    record(job)
    # The shell ends at once, so this process is not the parent and need not reap the coordinator.
    subprocess.run(
        ["/bin/sh", "-c", _IN_CONTAINER if run.site.container.image else _HERE, node, _python(run)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )
    return job


def _add_key(node: Path) -> str:
    """Make the key that signs the evidence, and return its public half; "" without ssh-keygen."""
    try:
        keys = new_keys("accept")
    except NotStarted:
        # Nothing else needs it here.
        return ""
    (node / KEY).touch(mode=0o600)
    (node / KEY).write_bytes(keys.private)
    return keys.public.strip()


def _tools(run: Resolved, *, pull: bool = False) -> dict[str, list[str]]:
    """Return the values of the survey, in the run's container if it has one."""
    if run.site.container.image:
        seconds = run.plan.start_seconds if pull else None
        return tools_here(containers.survey(run, pull=pull), seconds)
    return tools_here(_host_env(run) + tool_lines(run.site.tools) + survey_script())


def _python(run: Resolved) -> str:
    """Return the Python that runs the coordinator."""
    tools = run.site.tools
    if not run.site.container.image:
        return tools.python or sys.executable
    return tools.python or (f"{tools.venv}/bin/python" if tools.venv else "python3")


def _check_container(run: Resolved, tools: Mapping[str, list[str]], folder: Path) -> None:
    """Raise an AcceptError if the run cannot be in its container."""
    if re.search(r"[\s:,]", str(folder)):
        raise BadInput(
            f"{plain(str(folder), 200)} cannot be mounted into a container",
            code=Code.CONTAINER_FOLDER,
            hint="set ACCEPT_RUNS to a folder without colon, comma and blank in its path",
        )
    for need in containers.needs("here", tools, run):
        if not need.good:
            is_runtime = need.code is Requirement.CONTAINER_RUNTIME
            raise NotStarted(
                f"{need.what}: {need.found}",
                code=Code.CONTAINER_RUNTIME_MISSING if is_runtime else Code.CONTAINER_IMAGE,
                hint=need.advice,
            )
    python = (tools.get("python") or [""])[0].split(".")
    if [decimal(part) or 0 for part in python[:2]] < [3, 10]:
        raise NotStarted(
            "the image has no Python 3.10 or newer, which the coordinator needs",
            code=Code.CONTAINER_IMAGE_LACKS,
            hint="docker/README.md builds an image with everything; or set tools.python",
        )


def _report_missing(needs: Sequence[Need], say: Say) -> None:
    """Print which checks lack a tool. Raises NotStarted if mpirun is missing."""
    for need in needs:
        if need.good or not need.checks:
            continue
        checks = ", ".join(need.checks)
        if need.what == MPIRUN.name:
            raise NotStarted(
                f"no mpirun of Open MPI here; required by {checks}",
                code=Code.LOCAL_NO_MPIRUN,
                hint=need.advice,
            )
        say(f"no {need.what} here: cannot fully test {checks}; {need.advice}")


def _host_env(run: Resolved) -> str:
    """Return sh lines that select the tools of this Python's environment, unless the site does."""
    if run.site.tools.python or run.site.tools.venv or run.site.container.image:
        return ""
    scripts = shlex.quote(sysconfig.get_path("scripts"))
    return f"PATH={scripts}:$PATH\nACCEPT_PYTHON={shlex.quote(sys.executable)}\n"


def check_job(job: Job, folder: Path) -> None:
    """Raise BadInput if `job` uses another folder than the one in the run folder `folder`.

    Scripts in the job's folder are executed and the folder is removed, so it must be the one that
    `submit` made. A folder that no longer exists is harmless.
    """
    node = Path(job.folder)
    try:
        is_foreign = node.exists() and node.resolve() != folder.resolve() / _NODE
    except (OSError, RuntimeError):
        # Too long, or a link to itself.
        is_foreign = True
    if is_foreign:
        raise BadInput(
            f"{folder / JOB} contains another folder than {folder / _NODE}: "
            f"{plain(job.folder, 200)}",
            code=Code.RUN_FOREIGN_FOLDER,
            hint="if the run folder was renamed or copied, use the original one",
        )


def progress(job: Job, *, folder: Path) -> Progress:
    """Return whether the run uses this machine now, and its current step."""
    node = folder / _NODE
    if not node.is_dir():
        return Progress(phase=Phase.GONE)
    if (node / "status").exists() or not _coordinator_lives(node):
        return Progress(phase=Phase.ENDED)
    return Progress(phase=Phase.RUNNING, step=_step_text(node))


def _step_text(node: Path) -> str:
    """Return the step of a running run, such as `step 3 of 6`; empty if it is not known."""
    current = evidence.read_step(node / "evidence")
    return f"step {current.number} of {current.steps}" if current else ""


def watch(job: Job, *, folder: Path, say: Say, log: Say) -> int:
    """Print console.log until the coordinator has ended, and return its exit status."""
    node = Path(job.folder)
    console, status = node / evidence.CONSOLE, node / "status"
    position, rest = 0, ""
    while True:
        ended = status.exists()
        if console.exists():
            with console.open(encoding="utf-8", errors="replace") as file:
                file.seek(position)
                text = rest + file.read()
                position = file.tell()
            *lines, rest = text.split("\n")
            for line in lines:
                log(line)
        if ended:
            return int(status.read_text(encoding="utf-8") or 5)
        if _is_gone(node):
            raise Interrupted(
                f"the coordinator of {job.attempt} ended without an exit status",
                code=Code.RUN_COORDINATOR_DIED,
                hint=f"its evidence so far: accept collect {job.attempt}; see {console}",
            )
        time.sleep(_LOOK)


def _coordinator_lives(node: Path) -> bool:
    """Return True if the coordinator runs, is about to start, or left its exit status."""
    if not node.is_dir():
        return False
    if not (node / _PID).exists():
        return time.time() - node.stat().st_mtime < _BEGINNING
    return _coordinator(node) is not None or (node / "status").exists()


def _is_gone(node: Path) -> bool:
    """Return True if the coordinator ended without an exit status.

    The exit status is written a moment after its end, so this waits for it.
    """
    return not wait_until(lambda: _coordinator_lives(node), _GRACE)


def _end_all(node: Path) -> None:
    """End all processes of the run, such as those of a coordinator that was killed."""
    # The folder identifies the run; another user's run may have the same name.
    mark = f"ACCEPT_DIR={node}"
    # That of the installation: programs of the run can change the one in its folder.
    script = str(resources.launchers() / "kill.sh")
    subprocess.run(["/bin/sh", script, mark], stdout=subprocess.DEVNULL, check=False)


def _coordinator(node: Path) -> int | None:
    """Return the process id of the coordinator; None if it has ended or was not started yet.

    The kernel reuses process ids, so a process counts only if it started when the coordinator did:
    `coordinator.start` contains field 22 of /proc/PID/stat, which `coordinate.sh` has read.
    """
    try:
        pid = int((node / _PID).read_text(encoding="utf-8"))
        started = (node / "coordinator.start").read_text(encoding="utf-8").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    # The second field is the name in parentheses, which may contain spaces; the third is the state.
    state, *more = stat.rpartition(") ")[2].split()
    return pid if started == more[18] and state not in "ZX" else None


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Move the evidence out of the node's folder, and remove the rest of that folder."""
    node, target = Path(job.folder), folder / "evidence"
    if node.is_dir() and not _is_gone(node) and not (node / "status").exists():
        raise still_running(job)
    if not (node / "evidence").is_dir():
        raise NoEvidence(
            f"{job.attempt} left no evidence", code=Code.EVIDENCE_GONE, hint=f"see {node}"
        )
    _end_all(node)
    with contextlib.suppress(OSError):
        shutil.copy2(node / evidence.CONSOLE, node / "evidence" / evidence.CONSOLE)
    # Before the evidence is moved: no later command looks into the rest of the folder.
    (node / KEY).unlink(missing_ok=True)
    (node / "evidence").rename(target)
    shutil.rmtree(node)
    return target


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the coordinator, which ends its processes and writes a verdict on what was measured."""
    node = Path(job.folder)
    status = node / "status"
    if not node.is_dir() or status.exists():
        return
    _wait_for_start(node)
    pid = _coordinator(node)
    if pid is not None:
        say("cancel: the coordinator ends what it started")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: status.exists() or (not _coordinator(node) and _is_gone(node)), _ENDING)
    _end_all(node)
    if not (node / _PID).exists():
        # Its command was killed before it started a coordinator: there is no end to wait for.
        evidence.write(status, f"{int(Exit.INTERRUPTED)}\n")


def _wait_for_start(node: Path) -> None:
    """Wait for a coordinator that was started a moment ago: before that, nothing marks it."""
    wait_until((node / _PID).exists, _GRACE)


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """End all processes of the run and remove its folder."""
    node = Path(job.folder)
    if not node.is_dir():
        return ()
    if not dry_run:
        _wait_for_start(node)
        _end_all(node)
        # The shell of a coordinator that was ended writes its last file.
        wait_until(lambda: not (node / _PID).exists() or (node / "status").exists(), _GRACE)
        shutil.rmtree(node)
    return (str(node),)


def _advice() -> str:
    return f"{install_hint(Extra.RUN)}; or name your own under tools: in the site file"


def doctor(run: Resolved) -> tuple[Need, ...]:
    """Return the line of each requirement of the run's checks on this machine."""
    host, tools = os.uname().nodename, _tools(run)
    if not run.site.container.image:
        return needs_of(host, tools, run, advice=_advice())
    rows = containers.needs(host, tools, run)
    return (*rows, *needs_of(host, tools, run)) if containers.is_surveyed(tools) else rows
