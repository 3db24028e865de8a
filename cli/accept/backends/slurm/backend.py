"""Run in a Slurm job: each node gets the run's own sshd, the first also the coordinator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote

from accept.backends.host_survey import (
    IMAGE,
    RESULTS,
    HostSurvey,
    find,
    host_script,
    scalar,
)
from accept.backends.job import Job
from accept.backends.protocol import FreeNodes, Question
from accept.backends.protocol import attempt_name as attempt_name
from accept.backends.protocol import check_job as check_job
from accept.backends.remote import Reach
from accept.backends.requirements import tools_here
from accept.backends.slurm import nodes
from accept.backends.slurm.client import query
from accept.backends.slurm.doctor import doctor as doctor
from accept.backends.slurm.follow import cancel as cancel
from accept.backends.slurm.follow import collect as collect
from accept.backends.slurm.follow import delete as delete
from accept.backends.slurm.follow import progress as progress
from accept.backends.slurm.follow import watch as watch
from accept.backends.slurm.nodes import allocated_nodes as allocated_nodes
from accept.backends.slurm.submit import allocation_options
from accept.backends.slurm.submit import rehearse as rehearse
from accept.backends.slurm.submit import submit as submit
from accept.config import Site
from accept.core.error_codes import Code
from accept.core.text import count, plain
from accept.plan.resolve import ClusterPlace, Options, Resolved, site_of

#: Maximum length of the reason of a drained node, because `sinfo -R` shows little more.
_REASON = 64

#: The type and the number of GPUs in the generic resources of a node, such as gpu:h100:8(S:0-1).
_GRES = re.compile(r"gpu:([A-Za-z][^:,()]*):([0-9]+)")


def detect(hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
    """Return the machine: `gpu` if Slurm knows GPUs of the hosts, or else of the partition."""
    known = nodes.nodes_of(nodes.partition_of(site.slurm))
    return "gpu" if any(n.gpus for n in known if not hosts or n.name in hosts) else "cpu"


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


def survey(options: Options) -> HostSurvey:
    """Ask the controller, and look at the tools of this machine. Raises BadInput or NotStarted."""
    partition = nodes.partition_of(options.slurm)
    known = nodes.nodes_of(partition)
    here = find({"this login node": tools_here(host_script())})
    types = {match.groups() for node in known if (match := _GRES.search(node.gres))}
    gpu, number = next(iter(types)) if len(types) == 1 else ("", "0")
    fewest = min((node.gpus for node in known if node.gpus), default=0)
    found = replace(here, interface="", gpu=gpu, gpus=int(number) or fewest)
    idle = sum(node.idle for node in known)
    gpus = sum(node.gpus for node in known)
    text = (
        f"partition {partition or '(default)'}: {count(len(known), 'node')}, {idle} idle, "
        f"{count(gpus, 'GPU')}"
    )
    questions = () if partition else (_partition_question(),)
    account = options.slurm.account

    def section(answers: Mapping[str, str]) -> tuple[str, ...]:
        return (
            f"partition: {scalar(answers.get('partition') or partition)}",
            f"account: {scalar(account)}" if account else "# account: infra",
            "# reservation: maintenance",
            "# What starts the ranks where mpirun is forbidden: srun-pmix or srun-pmi2.",
            "# launcher: srun-pmix",
        )

    return HostSurvey(
        name=_cluster_name(),
        backend="slurm",
        section=section,
        found=found,
        notes=(text, *found.remarks),
        questions=(*questions, IMAGE, RESULTS),
        from_nodes=False,
    )


def _partition_question() -> Question:
    names = query("sinfo", "--noheader", "--format=%P").split()
    candidates = tuple(dict.fromkeys(plain(name.rstrip("*"), 80) for name in names))
    return Question(key="partition", text="Partition", option="partition", candidates=candidates)


def _cluster_name() -> str:
    """Return the name of the cluster, or "slurm"."""
    shown = query("scontrol", "show", "config")
    match = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
    return plain(match[1], 80) if match else "slurm"
