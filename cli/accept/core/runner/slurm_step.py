"""Prepare the nodes of a job of Slurm: one step starts the run's own sshd on each of them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.records import Problem
from accept.core.runner.host_setup import Ready, ended, set_up, understood
from accept.core.runner.ssh import outer_environment
from accept.core.text import folded, plain

#: The archive that every node gets, and errors of the step, beside the program of the job.
PAYLOAD, _STEP_LOG = "payload.tar", "step.log"
#: Seconds for tasks to clean up, and for a step to end.
_END_SECONDS = 30.0
#: Prefix of each line that a task prints. Other lines come from the site's scripts.
_MARK = "accept-node"
#: The first word of the line with the number of a node in the step, and the last line of a task.
_NUMBER, _ENDED = "number", "ended"
_LINE = re.compile(rf"{_MARK} (\S+) (.*)")
#: What srun prints when it ends a step on all nodes, in spite of `--no-kill`: a node restarted, so
#: its connection was reset, and its daemon does not know the step. The number is SLURM_NODEID.
_RESTARTED = re.compile(r"srun: error: Aborting, .{0,60} on node (\d{1,5})\s*")
#: Maximum number of lines of one node, and of characters in a line.
_MAX_LINES, _MAX_LINE = 200, 1000
#: Maximum length of a part of a line that is read at once, and size of srun's log, in characters.
_MAX_READ, _MAX_LOG = 64 << 10, 1 << 20
#: The first variable shows launchers/bootstrap_host.sh that it runs in the container. The others
#: make Enroot add the devices and the driver of the node.
PYXIS_ENV = {
    "ACCEPT_IN_CONTAINER": "yes",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "MELLANOX_VISIBLE_DEVICES": "all",
}
#: Codes of failures that only a job can detect.
_OWN_CODES = (
    Code.SLURM_JOB_FAILED,
    Code.SLURM_LAUNCHER,
    Code.SLURM_RANKS,
    Code.RESUME_NOT_SENT,
    Code.OUTPUT_TOO_LONG,
)
#: An error of srun, or of the step of a node; warnings explain no failure.
_ERROR = re.compile(r": (?:error|fatal): ")
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
    #: The shortest time limit of the job that is enough.
    enough_minutes: int
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
        first, _, _ = self.message.partition(" ")
        usual = self.code is Code.SLURM_JOB_FAILED and first not in _OWN_CODES
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
            f'printf \'{_MARK} %s %s\\n\' "$SLURMD_NODENAME" "$line"; done; '
            f"printf '{_MARK} %s {_ENDED}\\n' \"$SLURMD_NODENAME\""
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
                srun(
                    run,
                    nodes,
                    job=job,
                    command=marked,
                    options=run.pyxis.words if run.pyxis else (),
                ),
                # srun sends it to all tasks.
                stdin=payload,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=outer_environment() | (PYXIS_ENV if run.pyxis else {}),
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
        if result is None and text == _ENDED:
            result = ended(name, lines[:-1])
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
        errors = [line for line in self._errors().splitlines() if _ERROR.search(line)]
        late = "the job's step did not start on it, or did not prepare it, in time"
        if errors:
            # The messages of srun after an error of Pyxis are less precise.
            shown = next((line for line in reversed(errors) if " pyxis: " in line), errors[-1])
            late += f"; {plain(shown, 200)}"
        return {name: self.results.get(name) or _problem(name, late) for name in self._nodes}

    def _ended(self) -> bool:
        """Return True if the step has ended, or ends because a launch failed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if not self._reader.is_alive() and self.process.wait(_END_SECONDS) != 0:
                self._error_reader.join(_END_SECONDS)
                return True
        return False

    def _errors(self) -> str:
        return text_of(self._log)

    def end(self) -> None:
        """Wait for the end of all tasks, which clean up by themselves; then end the step."""
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._error_reader.join(_END_SECONDS)


def node_list(names: Sequence[str]) -> str:
    """Return node names in Slurm's notation, with ranges only at the end of a name.

    Without ranges, thousands of names would exceed the maximum length of an argument.
    """
    ending_in_number = [name for name in names if name[-1:].isdigit()]
    others = [name for name in names if not name[-1:].isdigit()]
    return ",".join(filter(None, (folded(ending_in_number), *others)))


def srun(
    run: SlurmRun, nodes: Sequence[str], *, job: str, command: str, options: Sequence[str] = ()
) -> list[str]:
    """Return the arguments of a step with one task on each node, that survives lost nodes."""
    return [
        *("srun", f"--jobid={job}", f"--nodelist={node_list(nodes)}"),
        *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"),
        *("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--overlap", "--mem=0"),
        *("--mpi=none", "--cpu-bind=none", "--chdir=/", f"--job-name=accept-{run.attempt}"),
        *(*options, "/bin/sh", "-c", command),
    ]


def text_of(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
