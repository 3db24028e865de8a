"""Define the protocols of back ends: one for all, and more for those of a cluster.

A back end is a module with these functions. mypy compares it with the protocol where
`accept.backends` registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from accept.backends.job import Job
from accept.backends.remote import Reach
from accept.backends.requirements import Need
from accept.config import Site
from accept.core.error_codes import Code
from accept.core.errors import Interrupted
from accept.core.plan import LeftOutNode
from accept.plan.bundle import Bundle
from accept.plan.resolve import ClusterPlace, Options, Resolved

#: Prints one line of progress.
Say = Callable[[str], None]
#: Writes the job of a run.
Record = Callable[[Job], None]


class Phase(StrEnum):
    """The state of a submitted run, as far as this machine knows."""

    #: The command that starts it has not confirmed the start; it may have been killed.
    STARTING = "starting"
    #: Only other machines know more.
    SUBMITTED = "submitted"
    RUNNING = "running"
    #: The run used this machine, has ended, and was not collected.
    ENDED = "ended"
    #: The run has ended, and nothing of it is left to collect.
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run, as far as this machine knows."""

    phase: Phase
    #: The current step, such as `step 3 of 6`; empty if not known.
    step: str = ""

    @property
    def text(self) -> str:
        """Return the phase and the step for people."""
        return ", ".join(filter(None, (self.phase, self.step)))


def still_running(job: Job) -> Interrupted:
    """Return the error for evidence that is fetched too early."""
    return Interrupted(
        f"{job.attempt} is still running",
        code=Code.RUN_STILL_RUNNING,
        hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
    )


class FirstHostLost(Interrupted):
    """The host of the coordinator is gone; the run can start again on the others."""

    def __init__(
        self,
        message: str,
        *,
        code: Code,
        lost: tuple[str, ...],
        others: tuple[str, ...],
        resumes: bool = False,
        hint: str,
    ) -> None:
        """`lost`: the host of the coordinator, then others that are known to be gone, too.

        With `resumes`, the other hosts see the evidence that `collect` fetches.
        """
        super().__init__(message, code=code, hint=hint)
        self.lost = lost
        self.others = others
        self.resumes = resumes


class Backend(Protocol):
    """A back end: obtains the hosts, starts the coordinator on the first, fetches the evidence."""

    def detect(self, hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
        """Return the machine of the hosts: `gpu`, `cpu`, or the cluster's. Raises NotStarted."""

    def attempt_name(self, attempt: str, place: ClusterPlace, nodes: int) -> str:
        """Return the full name of an attempt. Raises BadInput if it cannot be a name."""

    def check_job(self, job: Job, folder: Path) -> None:
        """Raise BadInput if `job` is not what `submit` writes into the run folder `folder`."""

    def progress(self, job: Job, *, folder: Path) -> Progress:
        """Return how far a run is, without asking another machine."""

    def rehearse(self, run: Resolved) -> str:
        """Return when the run would start, if that can be known without starting it, else ""."""

    def submit(
        self,
        run: Resolved,
        bundle: Bundle,
        *,
        attempt: str,
        folder: Path,
        record: Record,
        say: Say,
    ) -> Job:
        """Start the run. Raises NotStarted if nothing could be started; then nothing is left.

        It calls `record` before anything is started, with as much of the job as `cancel` and
        `delete` need: this command may be killed at any time.
        """

    def watch(self, job: Job, *, folder: Path, say: Say, log: Say) -> int:
        """Follow the run to its end and return the coordinator's status.

        `log` gets each line of the run's console, and `say` the back end's own messages.
        Raises FirstHostLost if the host of the coordinator is gone, but others are not.
        """

    def collect(self, job: Job, *, folder: Path, say: Say) -> Path:
        """Fetch the evidence into the run folder, release it there, and return its place.

        Called by one process at a time, and only while the folder has no evidence or
        `rundir.FROM_LOG` shows that it came from a log. Raises NoEvidence if there is none.
        """

    def cancel(self, job: Job, *, folder: Path, say: Say) -> None:
        """End the run, so that its evidence so far can be collected."""

    def delete(self, job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
        """Remove what the run created and still exists, and nothing else; return what that was."""

    def doctor(self, run: Resolved) -> tuple[Need, ...]:
        """Return the line of each requirement of the run: met or missing on the hosts."""

    def reach(self, job: Job, run: Resolved, /) -> Reach:
        """Return how commands reach a node after the end of a run. Raises BadInput if none do."""

    def drain(self, hosts: Sequence[str], reason: str) -> tuple[str, ...]:
        """Return the command that takes hosts out of use, and the one that undoes it, if any."""


def attempt_name(attempt: str, place: ClusterPlace, nodes: int) -> str:
    """Return the name unmodified, for a back end that has no names of its own."""
    return attempt


def check_job(job: Job, folder: Path) -> None:
    """Accept any job, for a back end whose jobs `Job` itself checks."""


def progress(job: Job, *, folder: Path) -> Progress:
    """Return whether the start was confirmed, for a back end on other machines."""
    return Progress(phase=Phase.SUBMITTED if job.confirmed else Phase.STARTING)


def rehearse(run: Resolved) -> str:
    """Return nothing, for a back end that knows nothing beyond the plan without a start."""
    return ""


def drain(hosts: Sequence[str], reason: str) -> tuple[str, ...]:
    """Return no command, for hosts that no scheduler gives away."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """Something that only the user can decide, with what the cluster offers."""

    key: str
    text: str
    #: The option of `accept init` that answers it.
    option: str
    candidates: tuple[str, ...] = ()
    #: True if it may stay open; `default` is then its answer.
    optional: bool = False
    default: str = ""
    #: Candidates for some machines, which replace those above; the first is the default.
    by_machine: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def for_machine(self, machine: str) -> Question:
        """Return the question with the candidates for a machine."""
        candidates = self.by_machine.get(machine, ())
        if not candidates:
            return self
        return replace(self, candidates=candidates, default=candidates[0])


class Survey(Protocol):
    """The properties of hosts or of a cluster that a site file needs."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """Return the questions that the user has to answer."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes about the cluster."""

    def site_text(self, answers: Mapping[str, str]) -> str:
        """Return the site file as YAML, with open questions as comments."""


@dataclass(frozen=True, kw_only=True)
class FreeNodes:
    """The nodes of a cluster that a run on all nodes uses, and those that it leaves out."""

    names: tuple[str, ...]
    #: Nodes that are drained, cordoned or down. Nodes that other jobs use are in neither list.
    left_out: tuple[LeftOutNode, ...] = ()


class NodeList(Protocol):
    """The functions of a back end that knows the nodes of a cluster."""

    def free_nodes(self, options: Options) -> FreeNodes:
        """Return every node that matches the run and has all its GPUs free. Raises NotStarted."""

    def allocated_nodes(self) -> tuple[str, ...]:
        """Return the nodes that this process's environment already holds; empty if none."""


class Surveyor(Protocol):
    """The functions of a back end that can write a first site file."""

    def survey(self, options: Options) -> Survey:
        """Return what hosts or a cluster show. Raises BadInput, or NotStarted without answer."""


class Cluster(NodeList, Protocol):
    """The functions of a cluster back end for commands that start nothing."""

    def role(self, place: ClusterPlace, site: Site) -> str:
        """Return the permissions that a run needs, in the cluster's own format."""
