"""Run in a Slurm job: each node gets the run's own sshd, the first also the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from accept.backends.job import Job
from accept.backends.protocol import FreeNodes, Phase, Progress
from accept.backends.remote import Reach
from accept.backends.slurm import nodes
from accept.backends.slurm.doctor import doctor
from accept.backends.slurm.follow import cancel, collect, delete, watch
from accept.backends.slurm.submit import allocation_options, rehearse, submit
from accept.config import Site
from accept.core.error_codes import Code
from accept.plan.resolve import ClusterPlace, Options, Resolved, site_of

__all__ = [
    "allocated_nodes",
    "attempt_name",
    "cancel",
    "check_job",
    "collect",
    "delete",
    "detect",
    "doctor",
    "drain",
    "free_nodes",
    "progress",
    "reach",
    "rehearse",
    "submit",
    "watch",
]

#: Maximum length of the reason of a drained node, because `sinfo -R` shows little more.
_REASON = 64

allocated_nodes = nodes.allocated_nodes


def detect(hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
    """Return the machine: `gpu` if Slurm knows GPUs of the hosts, or else of the partition."""
    known = nodes.nodes_of(nodes.partition_of(site.slurm))
    return "gpu" if any(n.gpus for n in known if not hosts or n.name in hosts) else "cpu"


def attempt_name(attempt: str, place: ClusterPlace, nodes: int) -> str:
    """Return the name unmodified."""
    return attempt


def check_job(job: Job, folder: Path) -> None:
    """Accept any job: `Job` itself refuses values that `submit` would not have written."""


def progress(job: Job, *, folder: Path) -> Progress:
    """Return whether the job has a number: only Slurm knows more."""
    is_known = job.slurm is not None and job.slurm.id > 0
    return Progress(phase=Phase.SUBMITTED if is_known else Phase.STARTING)


def reach(_job: Job, run: Resolved) -> Reach:
    """Return how commands reach a node of a run after its end: as a job of its own."""
    options = allocation_options(run.site.slurm)
    where = [f"--{name}={value}" for name, value in options.items() if value]

    def arguments(host: str, command: str) -> list[str]:
        how = ("--nodes=1", "--ntasks=1", "--immediate=60", "--mpi=none", "--chdir=/", "--quiet")
        return ["srun", *where, f"--nodelist={host}", *how, "/bin/sh", "-c", command]

    return Reach(
        arguments=arguments,
        missing=Code.SLURM_MISSING,
        hint="load Slurm's commands",
        refusal="Slurm starts nothing on a drained or busy node: resume it for the collectors, or "
        "run them before you drain it",
    )


def drain(hosts: Sequence[str], reason: str) -> tuple[str, ...]:
    """Return the commands that drain and resume nodes; `accept` runs neither."""
    update = f"scontrol update nodename={quote(','.join(hosts))}"
    text = quote(f"accept: {reason}"[:_REASON])
    return (f"{update} state=drain reason={text}", f"{update} state=resume")


def free_nodes(options: Options) -> FreeNodes:
    """Return the nodes of this shell's allocation, or else every idle node of the partition."""
    allocated = nodes.allocated_nodes()
    return FreeNodes(names=allocated) if allocated else nodes.idle_nodes(site_of(options))
