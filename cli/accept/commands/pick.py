"""Choose the best of some nodes and start a command on them: `accept pick`.

A pick is a run of the suite `pick` with a time limit. What was measured until then decides.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from accept import backends
from accept.commands.judge import Judged
from accept.commands.plan import plan_text, planned
from accept.commands.run import show_removal
from accept.commands.timed import measure, prepare_with_gpus
from accept.core.checks import REGISTRY
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit, NotStarted
from accept.core.evidence import write
from accept.core.judge.ranking import Choice, LeftOut, choose, doubts
from accept.core.model import State
from accept.core.text import count, duration, folded, plain
from accept.plan.bundle import Bundle
from accept.plan.resolve import Options, Resolved, site_of
from accept.report.console import Terminal

#: Standard output, as the place of a list.
_STDOUT = "-"
#: The port of torchrun's rendezvous on the first host: its own default.
_RENDEZVOUS_PORT = 29400


@dataclass(frozen=True, kw_only=True)
class Picked:
    """The chosen hosts: `accept pick`."""

    need: int
    #: Empty if too few are good; then nothing starts.
    chosen: tuple[str, ...] = ()
    #: The others, worst first.
    left_out: tuple[LeftOut, ...] = ()
    #: Why nothing starts; empty: the hosts are chosen.
    refused: str = ""
    #: Whether the time limit ended the measurement.
    is_late: bool = False
    #: The time limit and the time taken, in seconds.
    limit: float
    seconds: float = 0.0
    #: Name of the run, for `accept explain`; empty: nothing was started.
    attempt: str = ""


def do_pick(
    options: Options,
    terminal: Terminal,
    *,
    need: int,
    limit: float,
    hostfile: str | None,
    nodelist: str | None,
    command: Sequence[str],
    dry_run: bool,
) -> int:
    """Choose `need` hosts, write and print them, and run the command on them.

    Return the status of the command; without one 0, and 3 if too few hosts are good. Raises
    BadInput, also if there are fewer hosts than needed.
    """
    began = time.monotonic()
    options = _on_hosts(options)
    prepare = partial(_prepared, options, terminal, need)
    if dry_run:
        plan = planned(prepare()[0])
        terminal.result(plan, plan_text(plan))
        return Exit.PASS
    ended = measure(prepare, terminal, limit=limit)
    picked = Picked(need=need, limit=limit, is_late=ended.is_late)
    if ended.job:
        picked = replace(picked, attempt=ended.job.attempt)
        show_removal(ended.job, ended.job.attempt, terminal)
    slots = 1
    if ended.judged:
        choice = chosen_of(ended.judged, need)
        slots = ended.judged.plan.gpus_used or ended.judged.plan.machine.ranks or 1
        picked = replace(
            picked, chosen=choice.chosen, left_out=choice.left_out, refused=choice.refused
        )
    elif ended.is_late:
        picked = replace(picked, refused=f"nothing was measured within {duration(limit)}")
    picked = replace(picked, seconds=round(time.monotonic() - began, 2))
    _report(picked, terminal)
    if picked.refused:
        if terminal.json:
            terminal.result(picked)
        return Exit.REJECTED
    texts = {
        hostfile: "".join(f"{host} slots={slots}\n" for host in picked.chosen),
        nodelist: "".join(f"{host}\n" for host in picked.chosen),
    }
    for place, text in texts.items():
        if place not in (None, _STDOUT):
            write(Path(place), text)
    if terminal.json or (not command and hostfile != _STDOUT):
        terminal.result(picked, *picked.chosen)
    elif _STDOUT in texts:
        terminal.result(picked, texts[_STDOUT].rstrip("\n"))
    if not command:
        return Exit.PASS
    return _start(command, picked, slots)


def _on_hosts(options: Options) -> Options:
    """Return the options with a back end whose hosts can be chosen. Raises BadInput."""
    named = options.backend or site_of(options).backend
    if not (named or options.hosts) and backends.NODE_LISTS["slurm"].allocated_nodes():
        return replace(options, backend="slurm")
    if named in (None, "ssh", "slurm") and (options.hosts or named):
        return options
    raise BadInput(
        f"accept pick cannot choose hosts on back end {named}"
        if named
        else "accept pick has no hosts to choose from",
        code=Code.OPTION_BACKEND if named else Code.NODES_UNKNOWN,
        hint="start it inside salloc, or give --hosts a,b,c",
    )


def _prepared(options: Options, terminal: Terminal, need: int) -> tuple[Resolved, Bundle]:
    run, bundle = prepare_with_gpus(options, terminal)
    hosts = run.nodes
    if need > hosts:
        raise BadInput(
            f"--need {need}, but there are {count(hosts, 'host')} to choose from",
            code=Code.NODES_MISMATCH,
            hint="need fewer, or allocate spare nodes: two for 64",
        )
    if need == hosts:
        terminal.progress("0 spares: nothing starts if one host is bad")
    return run, bundle


def chosen_of(judged: Judged, need: int) -> Choice:
    """Return the choice that follows from a judged run."""
    verdict, records = judged.verdict, judged.records
    of_pairs = {step.id for step in judged.plan.steps if step.groups.of_pairs}
    measured = {
        host
        for record in records
        if record.exit == 0 and (record.step in of_pairs or not of_pairs)
        for host in record.hosts
    }
    in_doubt = doubts(judged.plan, records, checks=REGISTRY)
    choice = choose(verdict, need, measured=measured, in_doubt=in_doubt)
    if choice.refused:
        return choice
    if verdict.unexplained_wrong_data or (verdict.state is State.FAIL and not verdict.suspects):
        return replace(choice, chosen=(), refused=verdict.headline)
    if len(choice.chosen) < need:
        good = count(len(choice.chosen), "host")
        return replace(choice, chosen=(), refused=f"only {good} of {need} needed are good")
    return choice


def _report(picked: Picked, terminal: Terminal) -> None:
    """Print who is left out, one line each, and the result; stdout belongs to the command."""
    for one in picked.left_out:
        terminal.progress(f"left out {plain(one.host, 80)}: {plain(one.reason, 300)}")
    if picked.is_late:
        terminal.progress(f"stopped after {duration(picked.limit)}: what was measured decides")
    took = f"{duration(picked.seconds)}, run {picked.attempt or 'not started'}"
    if picked.refused:
        terminal.notice(f"PICK none: {plain(picked.refused, 300)} · {took}")
    else:
        terminal.notice(f"PICK {folded(picked.chosen)} · {took}")


def environment_of(hosts: Sequence[str], hostfile: Path, slots: int) -> Mapping[str, str]:
    """Return the variables by which srun, mpirun and torchrun find the chosen hosts."""
    number = str(len(hosts))
    return {
        "ACCEPT_NODELIST": ",".join(hosts),
        "ACCEPT_HOSTFILE": str(hostfile),
        "SLURM_NODELIST": folded(hosts),
        "SLURM_JOB_NODELIST": folded(hosts),
        "SLURM_NNODES": number,
        "SLURM_JOB_NUM_NODES": number,
        "SLURM_TASKS_PER_NODE": f"{slots}(x{number})",
        # Open MPI 4 and 5.
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "PRTE_MCA_prte_default_hostfile": str(hostfile),
        "MASTER_ADDR": hosts[0],
        "PET_NNODES": number,
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{hosts[0]}:{_RENDEZVOUS_PORT}",
    }


def _start(command: Sequence[str], picked: Picked, slots: int) -> int:
    """Run the command with the variables of the chosen hosts, and return its status."""
    with tempfile.TemporaryDirectory(prefix="accept-pick-") as folder:
        hostfile = Path(folder) / "hostfile"
        write(hostfile, "".join(f"{host} slots={slots}\n" for host in picked.chosen))
        environment = {**os.environ, **environment_of(picked.chosen, hostfile, slots)}
        try:
            status = subprocess.run(command, env=environment, check=False).returncode
        except OSError as error:
            raise NotStarted(
                f"cannot start {plain(command[0], 80)}: {error.strerror}", code=Code.USAGE
            ) from None
    # As a shell does for a command that a signal ended.
    return status if status >= 0 else 128 - status
