"""Ask Slurm for what a first site file can contain, without a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from accept.backends.host_survey import IMAGE, RESULTS, Finding, SiteText, find, host_script, scalar
from accept.backends.protocol import Note, Question, Remark
from accept.backends.requirements import tools_here
from accept.backends.slurm import nodes
from accept.backends.slurm.client import query
from accept.core.text import count, plain
from accept.plan.resolve import Options

#: The type and the number of GPUs in the generic resources of a node, such as gpu:h100:8(S:0-1).
_GRES = re.compile(r"gpu:([A-Za-z][^:,()]*):([0-9]+)")


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The findings in a cluster of Slurm that a site file needs."""

    cluster: str
    partition: str
    account: str
    found: Finding
    notes: tuple[Note, ...]
    questions: tuple[Question, ...]

    def site_text(self, answers: Mapping[str, str]) -> str:
        """Return the site file as YAML, with comments on what is still open."""
        partition = answers.get("partition") or self.partition
        return SiteText(
            name=self.cluster,
            backend="slurm",
            section=(
                f"partition: {scalar(partition)}",
                f"account: {scalar(self.account)}" if self.account else "# account: infra",
                "# reservation: maintenance",
                "# What starts the ranks where mpirun is forbidden: srun-pmix or srun-pmi2.",
                "# launcher: srun-pmix",
            ),
            found=self.found,
            from_nodes=False,
        ).text(answers)


def survey(options: Options) -> Survey:
    """Ask the controller, and look at the tools of this machine. Raises BadInput or NotStarted."""
    partition = nodes.partition_of(options.slurm)
    known = nodes.nodes_of(partition)
    here = find({"this login node": tools_here(host_script())})
    types = {match.groups() for node in known if (match := _GRES.search(node.gres))}
    gpu, number = next(iter(types)) if len(types) == 1 else ("", "0")
    fewest = min((node.gpus for node in known if node.gpus), default=0)
    found = Finding(
        mpirun=here.mpirun,
        scratch=here.scratch,
        gpu=gpu,
        gpus=int(number) or fewest,
        remarks=here.remarks,
    )
    idle = sum(node.idle for node in known)
    gpus = sum(node.gpus for node in known)
    text = (
        f"partition {partition or '(default)'}: {count(len(known), 'node')}, {idle} idle, "
        f"{count(gpus, 'GPU')}"
    )
    questions = () if partition else (_partition_question(),)
    return Survey(
        cluster=_cluster_name(),
        partition=partition,
        account=options.slurm.account or "",
        found=found,
        notes=(Note(Remark.NODES, text), *(Note(Remark.HOSTS, r) for r in found.remarks)),
        questions=(*questions, IMAGE, RESULTS),
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
