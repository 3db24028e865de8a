"""Report what a Slurm cluster has and lacks for a run, without submitting a job."""

from __future__ import annotations

from functools import partial

from accept.backends.requirements import Need, Requirement, need_of
from accept.backends.slurm import nodes
from accept.backends.slurm.client import call
from accept.backends.slurm.submit import find_pyxis, rehearse
from accept.core.errors import AcceptError
from accept.core.text import count
from accept.plan.resolve import Resolved


def doctor(run: Resolved) -> tuple[Need, ...]:
    """Return what the controller shows: the partition, its nodes, their GPUs, the launch."""
    wanted = run.plan.nodes or 1
    partition = nodes.partition_of(run.site.slurm)
    known = nodes.nodes_of(partition)
    chosen = [node for node in known if not run.hosts or node.name in run.hosts]
    idle = [node for node in chosen if node.idle]
    shown = f"{partition or 'the default one'}: {count(len(known), 'node')}"
    free = f"{len(idle)} of {len(chosen)}, and the run needs {wanted}"
    enough = len(idle) >= wanted
    advice = "" if enough else "the job will wait for nodes"
    needs = [
        _need(Requirement.SLURM_CONTROLLER, _first_line("scontrol", "ping")),
        _need(Requirement.SLURM_PARTITION, shown, good=bool(known)),
        _need(Requirement.NODES_FREE, free, advice, what="idle nodes", good=enough),
    ]
    needs += [
        need_of(
            Requirement.NODE_LEFT_OUT,
            node.why,
            "Slurm gives it to no job, so it is not tested",
            host=node.name,
            what="state",
        )
        for node in known
        if not node.usable
    ]
    gpus = run.plan.machine.gpus
    if gpus != 0:
        fewest = min((node.gpus for node in chosen), default=0)
        enough = fewest >= (gpus or 1)
        found = f"Slurm lists {count(fewest, 'GPU')} on the node with the fewest"
        advice = "" if enough else "ask for GresTypes=gpu in slurm.conf, or set slurm.gres: none"
        needs.append(_need(Requirement.GPUS, found, advice, good=enough))
    needs.append(_container(run) if run.site.container.image else _tools())
    needs.append(_results(run))
    needs.append(_start(run))
    return tuple(needs)


_need = partial(need_of, host="slurm")


def _first_line(*words: str) -> str:
    lines = call(*words).text.splitlines()
    return lines[0].strip() if lines else "no answer"


def _container(run: Resolved) -> Need:
    """Return what runs the container; only a job could show the runtimes of the nodes."""
    row = Requirement.CONTAINER_RUNTIME
    try:
        pyxis = find_pyxis(run)
    except AcceptError as error:
        return _need(row, error.message, error.hint, good=False)
    if pyxis:
        return _need(row, f"Pyxis, with the image {pyxis.image}")
    names = " or ".join(run.site.container.runtimes(in_job=True))
    found = f"every node needs {names}, and {run.site.container.image}"
    return _need(row, found, checked=False)


def _tools() -> Need:
    """Return what the nodes need; only a job could look at them."""
    found = "every node needs Open MPI; checks need torch or nccl-tests (tools: in the site file)"
    return _need(Requirement.TOOL, found, what="tools of the nodes", checked=False)


def _results(run: Resolved) -> Need:
    try:
        nodes.check_results(run.site)
    except AcceptError as error:
        return _need(Requirement.RESULTS, error.message, error.hint, good=False)
    found = run.site.results.location or "only the folder of the run"
    return _need(Requirement.RESULTS, found)


def _start(run: Resolved) -> Need:
    """Return whether Slurm would accept the job."""
    try:
        return _need(Requirement.SLURM_JOB, rehearse(run))
    except AcceptError as error:
        return _need(Requirement.SLURM_JOB, error.message, error.hint, good=False)
