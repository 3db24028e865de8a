"""Protocols of back ends: one for all, and one more for back ends of a cluster.

A back end is a module with these functions. mypy compares it with the protocol where
`accept.backends` registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from accept.backends.job import Job
from accept.backends.requirements import Need
from accept.config import Site
from accept.plan.bundle import Bundle
from accept.plan.resolve import ClusterPlace, Options, Resolved

#: Prints one line of progress.
Say = Callable[[str], None]


class Phase(StrEnum):
    """The state of a submitted run, as far as this machine knows."""

    #: Only other machines know more.
    SUBMITTED = "submitted"
    RUNNING = "running"
    #: It used this machine, has ended, and was not collected.
    ENDED = "ended"
    #: It used this machine, and nothing of it is left.
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run, as far as this machine knows."""

    phase: Phase
    #: Such as `step 3 of 6`; empty if not known.
    step: str = ""

    @property
    def text(self) -> str:
        """Return the phase and the step for people."""
        return ", ".join(filter(None, (self.phase, self.step)))


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

    def submit(self, run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
        """Start the run. Raises NotStarted if nothing could be started; then nothing is left."""

    def watch(self, job: Job, *, folder: Path, say: Say) -> int:
        """Follow the run to its end, repeat its console, and return the coordinator's status."""

    def collect(self, job: Job, *, folder: Path, say: Say) -> Path:
        """Fetch the evidence into the run folder, release it there, and return its place.

        Called by one process at a time, and only while the folder has no evidence or
        `rundir.FROM_LOG` says that it came from a log. Raises NoEvidence if there is none.
        """

    def cancel(self, job: Job, *, folder: Path, say: Say) -> None:
        """End the run, so that its evidence so far can be collected."""

    def delete(self, job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
        """Remove what the run created and still exists, and nothing else; return what that was."""

    def doctor(self, run: Resolved, *, say: Say) -> tuple[Need, ...]:
        """Return what the hosts have for this run, and what they lack."""


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


class Survey(Protocol):
    """The properties of a cluster that a site file needs."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """Return what the user has to decide."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was seen, for people, one line each."""

    def site_text(self, answers: Mapping[str, str]) -> str:
        """Return the site file as YAML, with what is still open as comments."""


class Cluster(Protocol):
    """The functions of a cluster back end for commands that start nothing."""

    def free_nodes(self, options: Options) -> tuple[str, ...]:
        """Return every node that matches the run and has all its GPUs free. Raises NotStarted."""

    def role(self, place: ClusterPlace, site: Site) -> str:
        """Return the permissions that a run needs, in the cluster's own format."""

    def survey(self, place: ClusterPlace) -> Survey:
        """Return what the cluster shows. Raises NotStarted if it cannot be reached."""
