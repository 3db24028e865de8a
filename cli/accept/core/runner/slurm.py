"""Run the plan in a job of Slurm: one step prepares all nodes, then the coordinator runs here.

The batch script starts this program on the first node. The step starts the run's own sshd on every
node, so the coordinator no longer needs Slurm. At the end the evidence goes to the folder of the
run on the login node if the nodes see it; otherwise the job stays until the evidence is fetched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from accept.core import bounded, evidence
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import Exit, NotStarted
from accept.core.groups import MAX_CONCURRENT
from accept.core.records import Problem
from accept.core.runner.discovery import HOSTNAME, Candidate
from accept.core.runner.host_setup import Ready, max_logins, remove, set_up, understood
from accept.core.runner.launch import CANCELLED, INTERRUPTION, Launch
from accept.core.runner.resume import EARLIER
from accept.core.runner.ssh import HOST_KEY_ALIAS, KEY_TYPE, environment, outer_environment
from accept.core.serde import dump, read
from accept.core.text import count, decimal, folded, plain

#: Files beside this program: its input, what every node gets, and errors of the step.
RUN, PAYLOAD = "slurm.json", "payload.tar"
_STEP_LOG = "step.log"
#: Files in the shared folder. `ATTEMPT` is written on the login node. `NODE` shows there that the
#: nodes see the folder, and `STATUS` that the evidence is complete.
ATTEMPT, NODE, ARCHIVE, STATUS, JOB_LOG = "attempt", "node", "evidence.tar", "status", "job.log"
#: The image of the run in that folder, while the nodes import it.
IMAGE = "image.sqsh"
#: Prefix of each line that a task prints. Other lines come from the site's scripts.
_MARK = "accept-node"
#: The first word of the line with the number of a node in the step.
_NUMBER = "number"
_LINE = re.compile(rf"{_MARK} (\S+) (.*)")
#: What srun prints when it ends a step on all nodes, in spite of `--no-kill`: a node restarted, so
#: its connection was reset, and its daemon does not know the step. The number is SLURM_NODEID.
_RESTARTED = re.compile(r"srun: error: Aborting, .{0,60} on node (\d{1,5})\s*")
#: Maximum number of lines of one node, and of characters in a line.
_MAX_LINES, _MAX_LINE = 200, 1000
#: Maximum length of a part of a line that is read at once, and size of srun's log, in characters.
_MAX_READ, _MAX_LOG = 64 << 10, 1 << 20
#: Seconds for the coordinator to connect: the nodes are ready by then.
_CONNECT_SECONDS = 30.0
#: Timeout of a command that asks Slurm, or that makes the key.
_CALL_SECONDS = 60.0
#: Seconds for the watchdog to pack the evidence, and to remove the run's folder.
_PACK_SECONDS, _REMOVE_SECONDS = 60.0, 30.0
#: Twice the polling interval of `manage.sh follow`.
_FOLLOW_SECONDS = 1.0
#: The first variable shows launchers/bootstrap_host.sh that it runs in the container. The others
#: make Enroot add the devices and the driver of the node.
_PYXIS_ENV = {
    "ACCEPT_IN_CONTAINER": "yes",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "MELLANOX_VISIBLE_DEVICES": "all",
}
#: Oldest Python for the coordinator. Outside of a container, the batch script checks this.
_OLDEST_PYTHON = (3, 10)
#: Maximum time to import an image.
_IMPORT_SECONDS = 1800.0
#: Codes of failures that only a job can detect.
_OWN_CODES = (Code.SLURM_LAUNCHER, Code.SLURM_RANKS, Code.RESUME_NOT_SENT, Code.OUTPUT_TOO_LONG)
#: Maximum time of the probe of srun as the launcher.
_PROBE_SECONDS = 120.0
#: Maximum number of steps that are created at the same time: each one costs the controller work.
_STEP_STARTS = 32
#: The probe of srun as the launcher; its group is its standard input.
_PROBE = """\
exec 2>&1
ACCEPT_GROUP=-
. ./lib.sh
read_group
launch "$1" "$ACCEPT_PYTHON" "$ACCEPT_DIR/programs/mpi_ranks.py"
"""
#: A line of launchers/programs/mpi_ranks.py, and its exit status if it finds no MPI.
_RANK, _NO_LIBRARY = re.compile(r"rank (\d+) of (\d+)", re.ASCII), 3
#: Message of srun if it cannot reach the daemon of a node.
_NOT_LAUNCHED = re.compile(r"Task launch for \S+ failed on node ([\w.-]+): ([^\n]*)")


@dataclass(frozen=True, kw_only=True)
class Pyxis:
    """The container of a step, by the plugin Pyxis of Slurm."""

    #: In the notation of Enroot, or the path of a file that nodes see.
    image: str
    #: As SOURCE:TARGET or SOURCE:TARGET:ro.
    mounts: tuple[str, ...]
    #: Other options of srun, which not every version of Pyxis has.
    options: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options of srun."""
        mounts = f"--container-mounts={','.join(self.mounts)}"
        return (f"--container-image={self.image}", mounts, *self.options)


@dataclass(frozen=True, kw_only=True)
class SlurmRun:
    """The input of a run in a job of Slurm, besides its plan."""

    attempt: str
    #: The run's folder on each node.
    folder: str
    #: Folder on the login node for the evidence; used if the nodes see it.
    shared: str
    #: The nodes of the job to use; empty: all.
    nodes: tuple[str, ...] = ()
    #: Why other nodes were lost in an earlier attempt.
    lost: tuple[Problem, ...] = ()
    #: Folder on the login node with its finished steps. If the nodes do not see it, the job brings
    #: them along.
    earlier: str = ""
    #: Maximum time for the nodes to become ready.
    start_seconds: float
    #: Maximum life of the watchdogs, and the time for which they keep evidence.
    life_seconds: float
    keep_seconds: float
    #: Time for which the job stays for `accept collect` if the nodes do not see `shared`.
    hold_seconds: float
    #: True if a node without an NVIDIA GPU cannot take part.
    gpus: bool
    #: True if other processes may use the GPUs.
    busy_ok: bool
    #: True if the coordinator and its ranks are in a container, which the step starts.
    in_container: bool = False
    #: Set if that is a container of Pyxis.
    pyxis: Pyxis | None = None
    #: The program that starts the ranks if it is not mpirun, such as `srun-pmix`.
    launcher: str = ""


def _problem(name: str, text: str) -> Problem:
    message = f"{name}: {text}"
    return Problem(cause=Cause.UNREACHABLE_TIMEOUT, message=message, check="hosts", host=name)


class Failure(NotStarted):
    """The job could not start the run; the message is the reason."""

    def __init__(self, message: str, code: Code = Code.SLURM_JOB_FAILED) -> None:
        super().__init__(message, code=code)

    @property
    def line(self) -> str:
        """Return it as one line for the login node: the code, unless usual, and the message."""
        usual = self.code is Code.SLURM_JOB_FAILED
        return self.message if usual else f"{self.code} {self.message}"

    @staticmethod
    def parse(line: str) -> Failure:
        """Parse the failure in an untrusted line that a job wrote."""
        first, _, rest = line.partition(" ")
        code = next((code for code in _OWN_CODES if first == code), None)
        return Failure(plain(rest if code else line, 400), code or Code.SLURM_JOB_FAILED)


class Step:
    """The step of the job that prepares the nodes, and holds their sshds until the run's end."""

    def __init__(
        self,
        run: SlurmRun,
        nodes: Sequence[str],
        *,
        job: str,
        folder: Path,
        restarted: Callable[[str], object],
    ) -> None:
        """Start the step; `restarted` gets the node that ended it on all nodes by its restart."""
        command = set_up(
            run.folder,
            int(run.life_seconds),
            int(run.keep_seconds),
            gpus=run.gpus,
            script="slurm_host.sh",
        ).replace("@HOST@", '"$SLURMD_NODENAME"')
        # The loop marks the lines and ends with the task; the trap lets it wait for its end.
        marked = (
            f"trap : TERM; printf '{_MARK} %s {_NUMBER} %s\\n' "
            f'"$SLURMD_NODENAME" "$SLURM_NODEID"; ( {command} ) 2>&1 | while IFS= read -r line; do '
            f'printf \'{_MARK} %s %s\\n\' "$SLURMD_NODENAME" "$line"; done'
        )
        self._nodes = tuple(nodes)
        self._log = folder / _STEP_LOG
        self._lines: dict[str, list[str]] = {}
        self._numbers: dict[str, str] = {}
        #: The number of the node that ended the step by its restart.
        self._ended_by = ""
        self._restarted = restarted
        self.results: dict[str, Ready | Problem] = {}
        self.changed = threading.Condition()
        with (folder / PAYLOAD).open("rb") as payload:
            self.process = subprocess.Popen(
                _srun(
                    nodes,
                    job=job,
                    name=f"accept-{run.attempt}",
                    command=marked,
                    options=run.pyxis.words if run.pyxis else (),
                ),
                # srun sends it to all tasks.
                stdin=payload,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=outer_environment() | (_PYXIS_ENV if run.pyxis else {}),
                text=True,
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._error_reader = threading.Thread(target=self._read_errors, daemon=True)
        self._error_reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            while text := output.readline(_MAX_READ):
                match = _LINE.search(text.rstrip("\n"))
                if match and match[1] in self._nodes:
                    self._add(match[1], match[2])
        with self.changed:
            self.changed.notify()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as output, self._log.open("w", encoding="utf-8") as log:
            while line := output.readline(_MAX_READ):
                if log.tell() < _MAX_LOG:
                    log.write(line)
                    log.flush()
                if match := _RESTARTED.fullmatch(line):
                    self._ended_by = match[1]
                    self._report_restart()

    def _report_restart(self) -> None:
        if name := self._numbers.get(self._ended_by):
            self._restarted(name)

    def _add(self, name: str, text: str) -> None:
        """Add a line that a node has printed."""
        if text.startswith(f"{_NUMBER} "):
            self._numbers[text.partition(" ")[2]] = name
            # srun prints its errors on another pipe than the lines of the nodes.
            self._report_restart()
            return
        lines = self._lines.setdefault(name, [])
        if len(lines) < _MAX_LINES:
            lines.append(text[:_MAX_LINE])
        result = understood(name, lines)
        if result is not None and name not in self.results:
            with self.changed:
                self.results[name] = result
                self.changed.notify()

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until all nodes have reported, the step has ended, or the time is over."""
        until = time.monotonic() + seconds
        with self.changed:
            while (
                len(self.results) < len(self._nodes)
                and self._reader.is_alive()
                and not is_over()
                and time.monotonic() < until
            ):
                self.changed.wait(0.5)

    def unreachable(self) -> dict[str, Ready | Problem]:
        """Return the nodes on which the step could not start, so that it failed on all of them."""
        if not self._ended():
            return {}
        found = _NOT_LAUNCHED.findall(self._errors())
        return {
            name: _problem(name, f"Slurm cannot start a step on it: {plain(reason, 200)}")
            for name, reason in found
            if name in self._nodes
        }

    def outcome(self) -> dict[str, Ready | Problem]:
        """Return the current result of each node."""
        errors = self._errors().splitlines()
        late = "the job's step did not start on it in time"
        if errors:
            # The messages of srun after an error of Pyxis are less precise.
            shown = next((line for line in reversed(errors) if " pyxis: " in line), errors[-1])
            late += f"; {plain(shown, 200)}"
        return {name: self.results.get(name) or _problem(name, late) for name in self._nodes}

    def _ended(self) -> bool:
        """Return True if the step has ended, or ends because a launch failed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if not self._reader.is_alive() and self.process.wait(_REMOVE_SECONDS) != 0:
                self._error_reader.join(_REMOVE_SECONDS)
                return True
        return False

    def _errors(self) -> str:
        return _text(self._log)

    def end(self) -> None:
        """Wait for the end of all tasks, which clean up by themselves; then end the step."""
        try:
            self.process.wait(_REMOVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(_REMOVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._error_reader.join(_REMOVE_SECONDS)


def node_list(names: Sequence[str]) -> str:
    """Return node names in Slurm's notation, with ranges only at the end of a name.

    Without ranges, thousands of names would exceed the maximum length of an argument.
    """
    ending_in_number = [name for name in names if name[-1:].isdigit()]
    others = [name for name in names if not name[-1:].isdigit()]
    return ",".join(filter(None, (folded(ending_in_number), *others)))


def _srun(
    nodes: Sequence[str], *, job: str, name: str, command: str, options: Sequence[str] = ()
) -> list[str]:
    """Return the arguments of a step with one task on each node, that survives lost nodes."""
    return [
        *("srun", f"--jobid={job}", f"--nodelist={node_list(nodes)}"),
        *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"),
        *("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--overlap", "--mem=0"),
        *("--mpi=none", "--cpu-bind=none", "--chdir=/", f"--job-name={name}"),
        *(*options, "/bin/sh", "-c", command),
    ]


class _Driver:
    """A run in its job: the signals that Slurm sends, and the coordinator that they end."""

    def __init__(self, run: SlurmRun) -> None:
        self.folder = Path(run.folder)
        self.reason = ""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
            signal.signal(number, self._signalled)

    def is_over(self) -> bool:
        """Return True if Slurm or a user wants the run to end."""
        return bool(self.reason)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            limit = "the job's time limit is over"
            self.reason = self.reason or (limit if number == signal.SIGUSR1 else CANCELLED)
        if (self.folder / "status").exists():
            return
        try:
            pid = int((self.folder / "coordinator.pid").read_text(encoding="utf-8"))
            self._explain(self.reason)
            os.kill(pid, signal.SIGTERM)
        except FileNotFoundError:
            # It may be about to start.
            signal.alarm(1)
        except (OSError, ValueError):
            pass

    def end_for_restart(self, name: str) -> None:
        """Tell the coordinator, which Slurm ends now, that a node has restarted."""
        with contextlib.suppress(OSError):
            self._explain(f"Slurm ended the run, because {name} restarted", name)

    def _explain(self, reason: str, *lost: str) -> None:
        """Write for the coordinator why it is ended, and the nodes that were lost by that."""
        evidence.write(self.folder / INTERRUPTION, "\n".join((reason, *lost)))

    def coordinate(self, *, in_container: bool) -> int:
        """Run the coordinator on the prepared nodes, and return its exit status."""
        if in_container:
            self._coordinate_in_container()
        else:
            self._coordinate_here()
        signal.alarm(0)
        status = decimal(_text(self.folder / "status"))
        # Any other status means that the coordinator was killed or has failed.
        allowed = (Exit.PASS, Exit.REJECTED, Exit.INTERRUPTED, Exit.INCOMPLETE, Exit.INCONCLUSIVE)
        return status if status is not None and status in allowed else Exit.INTERRUPTED

    def _coordinate_in_container(self) -> None:
        """Make the watchdog, which is in the container, run the coordinator; wait for its end."""
        _send(self.folder, "coordinate")
        while not (self.folder / "status").exists() and _watchdog_lives(self.folder):
            time.sleep(0.5)

    def _coordinate_here(self) -> None:
        # Slurm sends TERM to all processes of a job. The shell must ignore it, because it waits for
        # the coordinator, which handles the signal.
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'trap "" TERM; exec /bin/sh ./coordinate.sh "$0"', sys.executable],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            env=outer_environment(),
        )
        process.wait()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def drive(work: Path) -> int:
    """Run what the folder `work` describes to its end, and return the exit status of the job."""
    run = read(SlurmRun, json.loads((work / RUN).read_text(encoding="utf-8")))
    driver = _Driver(run)
    shared = _visible(run)
    job, own = os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]
    step: Step | None = None
    nodes: Sequence[str] = ()
    try:
        nodes = run.nodes or _nodes_of_job()
        if restarts := decimal(os.environ.get("SLURM_RESTART_COUNT", "0")):
            _clean(run, nodes, job)
            raise Failure(f"Slurm has requeued the job ({count(restarts, 'restart')})")
        _add_keys(run, work, shared, logins=max_logins(len(nodes)))
        if run.pyxis:
            run = replace(run, pyxis=_imported(run, run.pyxis, nodes, own, job, shared))
        results: dict[str, Ready | Problem] = {}
        until = time.monotonic() + run.start_seconds
        while remaining := [name for name in nodes if name not in results]:
            print(f"preparing {count(len(remaining), 'node')}", flush=True)
            step = Step(run, remaining, job=job, folder=work, restarted=driver.end_for_restart)
            step.wait(until - time.monotonic(), driver.is_over)
            unreachable = step.unreachable()
            # If the step could not start on some nodes, Slurm has ended it on all others.
            results |= unreachable or step.outcome()
            if unreachable:
                step.end()
                _clean(run, [name for name in nodes if name not in results], job)
        in_order = {name: results[name] for name in nodes}
        in_order |= {problem.host: problem for problem in run.lost if problem.host}
        run = replace(run, earlier=_earlier(run, work))
        _write_hosts(run, in_order, own=own, shared=shared)
        if driver.reason:
            raise Failure(driver.reason)
        if run.launcher:
            _probe_launcher(run, in_order, own)
        status = driver.coordinate(in_container=run.in_container)
        _deliver(run, driver, shared, status, job)
    except NotStarted as failure:
        status = Exit.INTERRUPTED if driver.reason else Exit.NOT_STARTED
        line = Failure(failure.message, failure.code).line
        print(f"problem {line}", flush=True)
        _comment(job, line)
        if shared:
            evidence.write(shared / STATUS, f"{status}\n")
        if step:
            step.process.terminate()
            step.end()
            _clean(run, nodes, job)
    finally:
        _remove(run)
        if shared:
            (shared / IMAGE).unlink(missing_ok=True)
        if step:
            step.end()
        os.chdir("/")
        shutil.rmtree(work, ignore_errors=True)
    return status


def _imported(
    run: SlurmRun, pyxis: Pyxis, nodes: Sequence[str], own: str, job: str, shared: Path | None
) -> Pyxis:
    """Return the container with all its mounts, and with an image that was imported once.

    Without a shared folder, or if that fails, each node imports the image itself.
    """
    if shared is None:
        return pyxis
    pyxis = replace(pyxis, mounts=(*pyxis.mounts, f"{shared}:{shared}"))
    if len(nodes) == 1 or pyxis.image.startswith("/"):
        return pyxis
    file = shared / IMAGE
    print(f"importing {pyxis.image}", flush=True)
    words = _srun(
        [own],
        job=job,
        name=f"accept-{run.attempt}",
        command="exit",
        options=(*pyxis.words, f"--container-save={file}"),
    )
    try:
        done = bounded.run(words, env=outer_environment() | _PYXIS_ENV, timeout=_IMPORT_SECONDS)
    except bounded.TooLong as error:
        failure = error.message
    else:
        if done.exit == 0 and file.exists():
            return replace(pyxis, image=str(file))
        failure = plain(done.errors[-300:] or f"exit {done.exit}", 300)
        if done.exit is None:
            failure = "it took too long"
    file.unlink(missing_ok=True)
    print(f"every node imports the image itself: {failure}", flush=True)
    return pyxis


def _visible(run: SlurmRun) -> Path | None:
    """Return the shared folder if this node sees it and can write to it."""
    shared = Path(run.shared)
    if _text(shared / ATTEMPT) != run.attempt:
        return None
    try:
        evidence.write(shared / NODE, os.environ["SLURMD_NODENAME"] + "\n")
    except OSError:
        return None
    return shared


def _nodes_of_job() -> tuple[str, ...]:
    """Return the names of the job's nodes, in Slurm's order."""
    words = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    done = bounded.run(words, timeout=_CALL_SECONDS)
    names = tuple(dict.fromkeys(done.text.split()))
    if done.exit != 0 or not names or not all(map(HOSTNAME.fullmatch, names)):
        raise Failure(f"{' '.join(words)}: {plain(done.errors or done.text, 200)}")
    return names


def _add_keys(run: SlurmRun, work: Path, shared: Path | None, *, logins: int) -> None:
    """Make the key pair of the run, and add it to the archive that every node gets."""
    words = ["ssh-keygen", "-q", "-t", KEY_TYPE, "-N", "", "-C", HOST_KEY_ALIAS, "-f", "key"]
    try:
        done = bounded.run(words, cwd=work, timeout=_CALL_SECONDS)
    except OSError as error:
        raise Failure(f"ssh-keygen failed: {error}") from None
    if done.exit != 0:
        raise Failure(f"ssh-keygen failed: {plain(done.errors, 200)}")
    public = (work / "key.pub").read_text(encoding="utf-8")
    files = {
        "authorized_keys": f"restrict,pty {public}",
        "known_hosts": f"{HOST_KEY_ALIAS} {public}",
        "run": f"{run.attempt}\n",
        "logins": f"{logins}\n",
        # Containers mount it.
        "shared": f"{shared or ''}\n",
    }
    for name, text in files.items():
        (work / name).write_text(text, encoding="utf-8")
        (work / name).chmod(0o600)
    with tarfile.open(work / PAYLOAD, "a") as archive:
        for name in ("key", *files):
            archive.add(work / name, name, filter=_without_owner)


def _without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _write_hosts(
    run: SlurmRun, results: Mapping[str, Ready | Problem], *, own: str, shared: Path | None
) -> None:
    """Write what the coordinator needs to find the nodes. Raises Failure if it cannot run here."""
    first = results.get(own)
    if isinstance(first, Problem) or first is None:
        raise Failure(first.message if first else f"{own} is not one of the run's nodes")
    if run.in_container and first.python < _OLDEST_PYTHON:
        raise Failure("the image has no Python 3.10 or newer, which the coordinator needs")
    busy = [
        f"{name}: {text}"
        for name, result in results.items()
        if isinstance(result, Ready)
        for text in result.busy
    ]
    if busy and not run.busy_ok:
        raise Failure(f"GPUs are in use: {plain('; '.join(busy[:4]), 400)}")
    launch = Launch(
        attempt=run.attempt,
        hosts=tuple(_candidate(name, result, own) for name, result in results.items()),
        start_seconds=min(_CONNECT_SECONDS, run.start_seconds),
        results=str(shared or ""),
        earlier=run.earlier,
        job=os.environ["SLURM_JOB_ID"],
        starts=_STEP_STARTS if run.launcher else MAX_CONCURRENT,
    )
    folder = Path(run.folder)
    try:
        (folder / "first").touch()
        evidence.write(folder / evidence.HOSTS, json.dumps(dump(launch)) + "\n")
    except OSError as error:
        raise Failure(f"{own}: cannot write to {folder}: {error.strerror}") from None


def _earlier(run: SlurmRun, work: Path) -> str:
    """Return the folder with the finished steps of an earlier attempt, as the coordinator sees it.

    Raises Failure if they cannot be copied to the run's folder.
    """
    sent = work / EARLIER
    if not sent.is_dir() or Path(run.earlier).is_dir():
        return run.earlier
    try:
        # A container has only the run's folder.
        return str(shutil.copytree(sent, Path(run.folder) / EARLIER))
    except OSError as error:
        raise Failure(f"cannot write to {run.folder}: {error}", Code.RESUME_NOT_SENT) from None


def _candidate(name: str, result: Ready | Problem, own: str) -> Candidate:
    """Return a node as the coordinator on the node `own` looks for it."""
    if isinstance(result, Problem):
        return Candidate(name=name, problem=result)
    return Candidate(
        name=name,
        addresses=tuple(dict.fromkeys((name, *result.addresses))),
        port=result.port,
        local=name == own,
        place=result.place,
    )


def _probe_launcher(run: SlurmRun, results: Mapping[str, Ready | Problem], own: str) -> None:
    """Start two ranks by srun. Raises Failure unless MPI sees them as ranks 0 and 1 of 2."""
    names = [own, *(name for name in results if name != own)]
    ready = [result for name in names if isinstance(result := results[name], Ready)][:2]
    group = "".join(f"{r.name} {r.name} {(*r.addresses, r.name)[0]} {r.port} 1\n" for r in ready)
    folder = Path(run.folder)
    done = bounded.run(
        ["/bin/sh", "-c", _PROBE, "probe", str(2 // len(ready))],
        cwd=folder,
        env=environment(folder, run.attempt) | {"ACCEPT_EXEC": f"{run.attempt}/probe"},
        stdin=group.encode(),
        timeout=_PROBE_SECONDS,
    )
    if done.exit is None:
        raise Failure(
            f"{run.launcher}: two ranks did not end within {_PROBE_SECONDS:.0f} s",
            Code.SLURM_LAUNCHER,
        )
    ranks = sorted((int(rank), int(size)) for rank, size in _RANK.findall(done.text))
    if ranks == [(0, 2), (1, 2)]:
        return
    if ranks:
        seen = ", ".join(f"rank {rank} of {size}" for rank, size in ranks[:4])
        raise Failure(f"{run.launcher}: MPI sees two ranks as {seen}", Code.SLURM_RANKS)
    lines = [line for line in done.text.splitlines() if line.strip() and line[:1] != "#"]
    errors = [line for line in lines if "srun: error" in line]
    reason = (*errors, *lines, f"exit {done.exit}")[0]
    if done.exit == _NO_LIBRARY:
        reason = "no MPI library: libmpi.so is neither beside mpirun nor on LD_LIBRARY_PATH"
    raise Failure(f"{run.launcher}: {plain(reason, 300)}", Code.SLURM_LAUNCHER)


def _deliver(run: SlurmRun, driver: _Driver, shared: Path | None, status: int, job: str) -> None:
    """Copy the evidence to the shared folder; without one, wait until it is fetched."""
    folder = driver.folder
    archive = _packed(folder)
    if archive and shared:
        try:
            shutil.copy(folder / evidence.CONSOLE, shared / evidence.CONSOLE)
            shutil.copy(archive, shared / f"{ARCHIVE}.new")
            (shared / f"{ARCHIVE}.new").replace(shared / ARCHIVE)
            evidence.write(shared / STATUS, f"{status}\n")
        except OSError as error:
            print(f"problem cannot copy the evidence to {shared}: {error}", flush=True)
        else:
            # Leave time to read the exit status in the folder before the folder is removed.
            time.sleep(_FOLLOW_SECONDS)
            return
    if driver.is_over() and _is_cancelled(job):
        # Slurm soon kills this program, which has to remove the run before.
        return
    print(f"the evidence is kept for {run.hold_seconds:.0f} s: accept collect", flush=True)
    driver.reason = ""
    until = time.monotonic() + run.hold_seconds
    while folder.exists() and time.monotonic() < until and not driver.is_over():
        time.sleep(0.5)


def _is_cancelled(job: str) -> bool:
    """Return True if Slurm ends the job. `accept cancel` only signals its batch script."""
    words = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    try:
        done = bounded.run(words, env=outer_environment(), timeout=_CALL_SECONDS)
    except bounded.TooLong:
        return False
    return done.exit == 0 and done.out.strip() != b"RUNNING"


def _packed(folder: Path) -> Path | None:
    """Return the archive of the evidence after the watchdog has packed it, or pack it here."""
    until = time.monotonic() + _PACK_SECONDS
    archive = folder / ARCHIVE
    while not archive.exists() and time.monotonic() < until and _watchdog_lives(folder):
        time.sleep(0.1)
    if archive.exists():
        return archive
    try:
        with tarfile.open(folder / f"{ARCHIVE}.own", "w") as packed:
            packed.add(folder / "evidence", "evidence")
        return (folder / f"{ARCHIVE}.own").replace(archive)
    except OSError as error:
        print(f"problem cannot pack the evidence: {error}", flush=True)
        return None


def _watchdog_lives(folder: Path) -> bool:
    pid = decimal(_text(folder / "guard.pid").partition(" ")[0])
    return pid is not None and Path(f"/proc/{pid}").exists()


def _remove(run: SlurmRun) -> None:
    """Make the watchdogs remove the run; those of other nodes do so at the run's end."""
    folder = Path(run.folder)
    _send(folder, "remove")
    until = time.monotonic() + _REMOVE_SECONDS
    while folder.exists() and time.monotonic() < until and _watchdog_lives(folder):
        time.sleep(0.1)
    if _text(folder / "run") == run.attempt:
        words = ("/bin/sh", "./kill.sh", f"ACCEPT_RUN={run.attempt}", f"ACCEPT_DIR={folder}")
        subprocess.run(words, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _send(folder: Path, event: str) -> None:
    """Send an event to the watchdog of this node, if there is one."""
    with contextlib.suppress(OSError):
        pipe = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
        os.write(pipe, f"{event}\n".encode())
        os.close(pipe)


def _clean(run: SlurmRun, nodes: Sequence[str], job: str) -> None:
    """Remove what an earlier start of the job left on the nodes: Slurm killed it."""
    words = _srun(nodes, job=job, name=f"accept-{run.attempt}", command=remove(run.folder))
    subprocess.run(words, env=outer_environment(), stdin=subprocess.DEVNULL, check=False)


def _comment(job: str, text: str) -> None:
    """Show the reason in the job's description, which the login node reads without a shared folder.

    Users may always change the comment of their own jobs.
    """
    words = ["scontrol", "update", f"JobId={job}", f"Comment=accept: {plain(text, 300)}"]
    null = subprocess.DEVNULL
    subprocess.run(words, stdout=null, stderr=null, check=False)


if __name__ == "__main__":
    sys.exit(drive(Path(sys.argv[1])))
