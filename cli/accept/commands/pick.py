"""Choose the best of some nodes and start a command on them: `accept pick`.

A pick is a run of the suite `pick` with a time limit. What was measured until then decides.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accept import backends
from accept.commands.judged import Judged
from accept.commands.plan import plan_text, planned
from accept.commands.ranking import Choice, LeftOut, choose, doubts
from accept.commands.timed import measure, prepare_with_gpus
from accept.config.hostlist import expand
from accept.core.checks import REGISTRY
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit, NotStarted
from accept.core.evidence import write
from accept.core.text import count, duration, folded, plain
from accept.core.verdict import State
from accept.evidence import rundir
from accept.plan.bundle import Bundle
from accept.plan.resolve import Options, Resolved, choose_target, named_backend, site_of
from accept.report.console import Terminal, unwritable

#: File in the run folder with the chosen nodes, for mpirun.
_HOSTFILE = "hostfile"
#: Torchrun's default port of the rendezvous on the first node.
_RENDEZVOUS_PORT = 29400
_SRUN = "srun"
_TASKS = "SLURM_TASKS_PER_NODE"
#: Variables of Slurm with a number for each node.
_OF_EACH_NODE = (_TASKS, "SLURM_JOB_CPUS_PER_NODE")


@dataclass(frozen=True, kw_only=True)
class Picked:
    """The chosen nodes: `accept pick`."""

    need: int
    #: Exactly `need` nodes; none if fewer are good, and then nothing starts.
    chosen: tuple[str, ...] = ()
    #: The others, worst first.
    left_out: tuple[LeftOut, ...] = ()
    #: What is bad, but not avoided by leaving nodes out, one text each.
    notes: tuple[str, ...] = ()
    #: The reason why nothing starts; empty: nodes are chosen.
    refused: str = ""
    #: True if the time limit ended the measurement.
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
    hostfile: Path | None,
    command: Sequence[str],
    dry_run: bool,
) -> int:
    """Choose `need` nodes, print them, and replace this process by the command on them.

    Without a command, return exit code 0; 3 if too few nodes are good. Raises BadInput, also if
    there are fewer nodes than needed.
    """
    began = time.monotonic()
    if command and terminal.json and terminal.file is None:
        raise BadInput(
            "--json and the command would both write to standard output",
            code=Code.USAGE,
            hint="write the result to a file: --json --out pick.json",
        )
    if command and not shutil.which(command[0]):
        raise BadInput(
            f"there is no command {plain(command[0], 80)}",
            code=Code.USAGE,
            hint="accept pick --need 64 -- srun --nodes 64 train.sh",
        )
    options = _candidates(options, terminal, need=need, limit=limit)

    def prepare() -> tuple[Resolved, Bundle]:
        run, bundle = prepare_with_gpus(options, terminal)
        _check_need(need, run.nodes)
        if need == run.nodes:
            terminal.notice("no spare nodes: nothing starts if one is bad")
        return run, bundle

    if dry_run:
        plan = planned(prepare()[0])
        terminal.result(plan, plan_text(plan))
        return Exit.PASS
    _write_hostfile(hostfile, None)
    ended = measure(prepare, terminal, limit=limit)
    picked = Picked(
        need=need,
        limit=limit,
        is_late=ended.is_late,
        refused=f"nothing was measured within {duration(limit)}",
        attempt=ended.job.attempt if ended.job else "",
    )
    slots = 1
    if judged := ended.judged:
        choice, refused = chosen_of(judged, need)
        notes = (*choice.shared, *_unexplained(judged))
        chosen = () if refused else choice.chosen
        picked = replace(
            picked, chosen=chosen, left_out=choice.left_out, notes=notes, refused=refused
        )
        slots = judged.plan.gpus_used or judged.plan.machine.ranks or 1
    picked = replace(picked, seconds=round(time.monotonic() - began, 2))
    _report(picked, terminal)
    if terminal.json or terminal.file or not command:
        terminal.result(picked, *picked.chosen)
    if picked.refused:
        return Exit.REJECTED
    _write_hostfile(hostfile, _lines(picked.chosen, slots))
    if command:
        folder = rundir.find_own(picked.attempt)
        _become(command, picked.chosen, folder, slots, by_ssh=not ended.on_cluster)
    return Exit.PASS


def _lines(nodes: Sequence[str], slots: int) -> str:
    """Return the lines of a hostfile."""
    return "".join(f"{name} slots={slots}\n" for name in nodes)


def _candidates(options: Options, terminal: Terminal, *, need: int, limit: float) -> Options:
    """Return the options with the nodes to choose from, and what follows from their back end.

    Raises BadInput if there is no list of nodes, or if it is known to be too short.
    """
    site = site_of(options)
    named = named_backend(options, site)
    allocated: tuple[str, ...] = ()
    if not (options.hosts or options.all_nodes or named == "kubernetes"):
        allocated = backends.NODE_LISTS["slurm"].allocated_nodes()
    if allocated:
        options = replace(options, backend="slurm")
    elif not (options.hosts or options.nodes or options.all_nodes or site.ssh.hosts):
        raise _no_nodes(named, need)
    options = replace(options, hosts=expand(options.hosts, terminal.progress))
    target = choose_target(replace(options, hosts=options.hosts or allocated), site)
    if allocated:
        # All of them, which `prepare` finds.
        options = replace(options, nodes=None)
    if target.backend == "kubernetes":
        if options.start_timeout is None and site.start_timeout is None:
            # A pod that does not start must not use up the time of the others.
            options = replace(options, start_timeout=limit / 2)
    elif target.backend != "ssh" and not allocated:
        raise _no_nodes(target.backend, need)
    if target.nodes is not None:
        _check_need(need, target.nodes)
    return replace(options, backend=target.backend)


def _no_nodes(backend: str | None, need: int) -> BadInput:
    of = f" of the back end {backend}" if backend else ""
    return BadInput(
        f"there is no list{of} with nodes to choose from",
        code=Code.NODES_UNKNOWN,
        hint=f"start it inside salloc, give --hosts with more than {need} names, such as "
        f"'node[01-{need + 2:02}]', or on Kubernetes --nodes {need + 2}",
    )


def _check_need(need: int, nodes: int) -> None:
    if need > nodes:
        raise BadInput(
            f"--need {need}, but there are {count(nodes, 'node')} to choose from",
            code=Code.NODES_MISMATCH,
            hint="need fewer, or give spare nodes: two for 64",
        )


def chosen_of(judged: Judged, need: int) -> tuple[Choice, str]:
    """Return the choice that follows from a judged run, and why it must not be used; "": it may."""
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
    if verdict.unexplained_wrong_data:
        return choice, verdict.headline
    if len(choice.chosen) < need:
        return choice, f"only {len(choice.chosen)} of the {count(need, 'node')} needed are good"
    return choice, ""


def _unexplained(judged: Judged) -> tuple[str, ...]:
    """Return what fails although no part is blamed, such as a bound that all nodes miss."""
    verdict = judged.verdict
    if verdict.state is State.FAIL and not verdict.suspects:
        return (verdict.headline,)
    return ()


def _report(picked: Picked, terminal: Terminal) -> None:
    """Print the nodes left out, one line each, and the answer; stdout belongs to the command."""
    if picked.is_late:
        terminal.notice(f"stopped after {duration(picked.limit)}: what was measured decides")
    for one in picked.left_out:
        terminal.notice(f"left out {plain(one.host, 80)}: {plain(one.reason, 300)}")
    for note in picked.notes:
        terminal.notice(f"not avoided: {plain(note, 300)}")
    answer = f"none: {plain(picked.refused, 300)}" if picked.refused else folded(picked.chosen)
    run = f"run {picked.attempt}" if picked.attempt else "not started"
    terminal.notice(f"PICK {answer} · {duration(picked.seconds)}, {run}")


def _write_hostfile(path: Path | None, lines: str | None) -> None:
    """Write the user's hostfile; None: remove it, so that no job starts on an earlier choice."""
    if path is None:
        return
    try:
        write(path, lines or "")
        if lines is None:
            path.unlink()
    except OSError as error:
        raise unwritable(path, error, hint="give another file: --hostfile good.txt") from None


def _become(
    command: Sequence[str], nodes: Sequence[str], folder: Path, slots: int, *, by_ssh: bool
) -> None:
    """Replace this process by the command, with variables that launchers know.

    So its signals, terminal and status are the command's own. With `by_ssh`, mpirun and torchrun
    reach the nodes by their names. Raises NotStarted.
    """
    hostfile = folder / _HOSTFILE
    environment = {
        **os.environ,
        "ACCEPT_NODELIST": ",".join(nodes),
        "ACCEPT_HOSTFILE": str(hostfile),
    }
    try:
        write(hostfile, _lines(nodes, slots))
        allocated = backends.NODE_LISTS["slurm"].allocated_nodes()
        if by_ssh:
            environment |= {
                "MASTER_ADDR": nodes[0],
                # torchrun
                "PET_NNODES": str(len(nodes)),
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"{nodes[0]}:{_RENDEZVOUS_PORT}",
            }
        if {*nodes} <= {*allocated}:
            environment.update(slurm_variables(os.environ, allocated, nodes))
            command = _with_srun(command, nodes, folder, environment)
        elif by_ssh:
            # Open MPI 4 and 5. In an allocation it asks Slurm.
            environment["OMPI_MCA_orte_default_hostfile"] = str(hostfile)
            environment["PRTE_MCA_prte_default_hostfile"] = str(hostfile)
        sys.stdout.flush()
        # Python ignores it, and the command would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(command[0], [*command], environment)
    except OSError as error:
        raise NotStarted(
            f"cannot start {plain(command[0], 80)}: {plain(str(error), 200)}", code=Code.USAGE
        ) from None


def slurm_variables(
    environment: Mapping[str, str], allocated: Sequence[str], nodes: Sequence[str]
) -> dict[str, str]:
    """Return the variables of an allocation as they would be if it had only some of its nodes."""
    names = ",".join(nodes)
    number = str(len(nodes))
    variables = {
        "SLURM_NODELIST": names,
        "SLURM_JOB_NODELIST": names,
        "SLURM_NNODES": number,
        "SLURM_JOB_NUM_NODES": number,
    }
    for name in _OF_EACH_NODE:
        # 8(x64),4(x2): the numbers of consecutive nodes.
        parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get(name, ""))
        numbers = [each for each, times in parts for _ in range(int(times or 1))]
        if len(numbers) != len(allocated):
            continue
        kept = [each for node, each in zip(allocated, numbers, strict=True) if node in nodes]
        runs = [(each, len([*same])) for each, same in itertools.groupby(kept)]
        variables[name] = ",".join(f"{n}(x{times})" if times > 1 else n for n, times in runs)
        if name == _TASKS and "SLURM_NTASKS" in environment:
            tasks = str(sum(map(int, kept)))
            variables |= {"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks}
    return variables


def _with_srun(
    command: Sequence[str], nodes: Sequence[str], folder: Path, environment: dict[str, str]
) -> list[str]:
    """Return the command so that srun uses these nodes, and add an srun to PATH that does.

    No variable does that: srun takes the first nodes of the allocation, whatever SLURM_NODELIST is,
    and with SLURM_HOSTFILE, one task for each line. An option of the caller overrides this one.
    """
    option = f"--nodelist={','.join(nodes)}"
    program, *words = command
    if Path(program).name == _SRUN:
        words = [option, *words]
    if real := shutil.which(_SRUN):
        script = folder / "bin" / _SRUN
        script.parent.mkdir(exist_ok=True)
        write(script, f'#!/bin/sh\nexec {shlex.quote(real)} {option} "$@"\n')
        script.chmod(0o700)
        environment["PATH"] = f"{script.parent}{os.pathsep}{environment.get('PATH', '')}"
    return [program, *words]
