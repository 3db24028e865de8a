"""Call the commands of Slurm, and parse their output as text.

The text formats have not changed from Slurm 22.05 on; JSON and accounting are often missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from accept.backends.job import Job
from accept.backends.remote import Reach
from accept.core import bounded
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.runner.ssh import outer_environment
from accept.core.text import decimal, plain

_HINT = "run accept on a login node of the cluster"
_SECONDS = 60.0
#: Maximum output of a command, in bytes; `scontrol show node` prints about 2 kB per node.
_MOST_OUTPUT = 64 << 20
#: srun never notices that the node of its step is gone. `manage.sh follow` prints every 5 s.
_SILENT_SECONDS = 20.0
#: Number of tries if the controller does not answer, and seconds between them.
_TRIES, _PAUSE = 3, 2.0
#: Messages of Slurm if the controller is busy or restarts.
_TRANSIENT = re.compile(
    r"Socket timed out|Unable to contact slurm controller|Connection refused|"
    r"Communication connection failure|temporarily unable|Connection timed out",
    re.IGNORECASE,
)
_MUNGE = re.compile(r"munge|authentication|Invalid auth", re.IGNORECASE)
_FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z:/]*)=")


@dataclass(frozen=True, kw_only=True)
class Answer(bounded.Output):
    """The result of a command of Slurm."""

    @property
    def reason(self) -> str:
        """Return the last line of errors, without the name of the program."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        # The line before names the option that is wrong.
        lines = [line for line in lines if not line.startswith("Try ")] or lines
        text = lines[-1] if lines else f"exit status {self.exit}"
        return plain(re.sub(r"^\w+: (error: )?", "", text), 300)


def call(*words: str, stdin: str = "", tries: int = _TRIES) -> Answer:
    """Run a command of Slurm, and try again if the controller does not answer.

    Raises NotStarted if the command is missing or prints without end, the controller never answers,
    or munge fails.
    """
    for tries_left in reversed(range(tries)):
        try:
            done = bounded.run(
                words,
                stdin=stdin.encode(),
                env=outer_environment(),
                timeout=_SECONDS,
                most=_MOST_OUTPUT,
            )
        except FileNotFoundError:
            raise NotStarted(
                f"{words[0]} is not installed here",
                code=Code.SLURM_MISSING,
                hint=f"{_HINT}; for nodes without Slurm: accept run --hosts node1,node2",
            ) from None
        if done.exit is None:
            answer = Answer(exit=1, err=f"{words[0]}: Socket timed out".encode())
        else:
            answer = Answer(**vars(done))
        is_transient = answer.exit != 0 and _TRANSIENT.search(answer.errors)
        if not is_transient:
            break
        if tries_left:
            time.sleep(_PAUSE)
    if answer.exit != 0 and _MUNGE.search(answer.errors):
        raise NotStarted(
            f"Slurm cannot authenticate here: {answer.reason}",
            code=Code.SLURM_MUNGE,
            hint="try: munge -n | unmunge",
        )
    if is_transient:
        raise NotStarted(
            f"the controller of Slurm does not answer: {answer.reason}",
            code=Code.SLURM_CONTROLLER,
            hint="try: scontrol ping",
        )
    return answer


def query(*words: str) -> str:
    """Return what a command prints about the cluster.

    Raises NotStarted if it fails: nothing is known then, which is different from an empty cluster.
    """
    answer = call(*words)
    if answer.exit != 0:
        raise NotStarted(
            f"{words[0]} fails: {answer.reason}",
            code=Code.SLURM_CONTROLLER,
            hint=f"{_HINT}; try: scontrol ping",
        )
    return answer.text


@dataclass(frozen=True, kw_only=True)
class JobState:
    """A job as `scontrol show job` describes it; empty texts if Slurm has forgotten it."""

    #: The state, such as `PENDING`.
    state: str = ""
    reason: str = ""
    #: The node of the coordinator; empty before the start.
    first: str = ""
    #: The nodes, in Slurm's notation.
    nodes: str = ""
    #: Exit status of the batch script.
    exit: int | None = None
    #: Estimated start of a job that waits.
    start: str = ""
    restarts: int = 0
    comment: str = ""

    @property
    def waits(self) -> bool:
        """Return True if the job has no nodes yet."""
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")

    @property
    def runs(self) -> bool:
        """Return True if the job has nodes, or is giving them back."""
        return self.state in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING")

    @property
    def ended(self) -> bool:
        """Return True if no process of the job is left."""
        return not self.waits and not self.runs


def job_state(job: int) -> JobState:
    """Return the state of a job. Raises NotStarted if the controller does not answer."""
    answer = call("scontrol", "show", "job", "--oneliner", str(job))
    if answer.exit != 0:
        # Slurm forgets jobs that ended MinJobAge ago, by default 5 minutes.
        return JobState()
    return parse_job(answer.text)


def parse_job(text: str) -> JobState:
    """Parse the line that `scontrol show job --oneliner` prints."""
    parts = _FIELD.split(text.strip().splitlines()[-1] if text.strip() else "")
    values = {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}

    def given(key: str) -> str:
        value = plain(values.get(key, ""), 300)
        return "" if value in ("(null)", "Unknown", "None", "N/A") else value

    return JobState(
        state=given("JobState"),
        reason=given("Reason"),
        first=given("BatchHost"),
        nodes=given("NodeList"),
        exit=decimal(given("ExitCode").partition(":")[0]),
        start=given("StartTime"),
        restarts=decimal(given("Restarts")) or 0,
        comment=given("Comment"),
    )


def expand_nodes(pattern: str) -> tuple[str, ...]:
    """Return the names in a list in Slurm's notation, such as n[1-4]."""
    answer = call("scontrol", "show", "hostnames", pattern) if pattern else None
    return tuple(answer.text.split()) if answer and answer.exit == 0 else ()


def reach_of(job: Job) -> Reach:
    """Return how commands reach the nodes of a running job: as additional steps."""
    assert job.slurm is not None
    number = job.slurm.id

    def arguments(host: str, command: str) -> Sequence[str]:
        where = (f"--jobid={number}", f"--nodelist={host}", "--nodes=1", "--ntasks=1")
        how = ("--overlap", "--mem=0", "--mpi=none", "--cpu-bind=none", "--chdir=/", "--quiet")
        return ["srun", *where, *how, "/bin/sh", "-c", command]

    return Reach(
        arguments=arguments,
        missing=Code.SLURM_MISSING,
        hint=_HINT,
        silent_seconds=_SILENT_SECONDS,
    )
