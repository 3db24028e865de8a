"""Describe what a back end and the coordinator tell each other: a launch, files and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

from accept.core.checks.collectives import CollectiveChanges
from accept.core.groups import MAX_CONCURRENT
from accept.core.runner.discovery import Candidate

#: File in the folder of another pod with the records so far, as text. The pod prints it if the
#: coordinator is gone.
RECORDS_COPY = "packed-so-far"
#: The reason for an early end in that copy.
LOST = "the pod of the coordinator was lost"
#: File in the run's folder with the reason for a signal that ends the run; none: it was cancelled.
INTERRUPTION = "interruption"
#: The verdict's reason for an early end, if a user or a scheduler ended the run.
CANCELLED, PREEMPTED = "the run was cancelled", "Slurm preempted the job"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The input of a run besides its plan, which a back end writes to `hosts.json`."""

    attempt: str
    hosts: tuple[Candidate, ...]
    #: Time that is left to find hosts.
    start_seconds: float
    #: True if hosts without an address register with the coordinator.
    register: bool = False
    #: Bucket or folder to which the evidence is copied after each step; empty: none.
    results: str = ""
    #: URL of the bucket that `results` is a mounted folder of; empty: it is not.
    bucket: str = ""
    #: How long a pod keeps the evidence after the run; None: a host keeps it.
    kept_seconds: float | None = None
    #: Copy of the evidence of an earlier attempt, whose finished steps count; empty: none.
    earlier: str = ""
    #: Number of the Slurm job in which the coordinator runs; empty if there is none.
    job: str = ""
    #: Maximum number of executions that start at the same time.
    starts: int = MAX_CONCURRENT
    #: Component -> the version that the first pod loads: those that its files show.
    versions: dict[str, str] = field(default_factory=dict)
    #: What a user changed in the Helm values after they were rendered, one text each.
    edited: tuple[str, ...] = ()
    #: The hold in the Helm values, which a user may change; None: that of the plan.
    hold_seconds: float | None = None
    hold_always: bool | None = None
    #: The deadline in the Helm values, which may be longer than that of the plan; None: that one.
    deadline_seconds: float | None = None
    #: Sizes and repetitions of collectives in the Helm values; None: those of the plan.
    collectives: CollectiveChanges | None = None

    @property
    def is_separate(self) -> bool:
        """Return True if the coordinator runs in a pod of its own, which is not tested."""
        return self.register and not any(host.local for host in self.hosts)

    @property
    def has_bucket(self) -> bool:
        """Return True if the evidence goes to a place that the workstation may also reach."""
        place = self.bucket or self.results
        return bool(place) and not place.startswith(("/", "file://"))
