"""Resolve and render a run, also to Helm values or a folder, and print its plan.

Only `prepare` asks hosts or a cluster, for what the options leave open.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from accept import backends
from accept.config.faults import parse_faults
from accept.config.hostlist import expand
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.evidence import write
from accept.core.plan import GroupKind, Plan, Skipped
from accept.core.sentences import not_run
from accept.core.serde import dump
from accept.core.text import command_line, count, duration, plain
from accept.evidence import rundir
from accept.plan.bundle import Bundle, render
from accept.plan.helm_values import helm_values, values_of
from accept.plan.resolve import Options, Resolved, choose_target, named_backend, resolve, site_of
from accept.plan.sizes import Sizes, sizes
from accept.report.console import Terminal, unwritable

#: As long as a generated name.
_SAMPLE_NAME = "20261121-045334-1a2b"
#: Maximum number of listed nodes that are left out; the report has all.
_MAX_LEFT_OUT = 16


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step of a plan; times are in seconds."""

    id: str
    checks: tuple[str, ...]
    groups: GroupKind
    rounds: int
    #: The estimate.
    seconds: float
    timeout: float
    optional: bool
    #: True if it runs only after a step that left a question.
    if_open: bool
    #: True if an earlier attempt has finished it.
    kept: bool


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The plan of a run: `--dry-run`."""

    run: str
    machine: str
    suite: str
    backend: str
    nodes: int | None
    hosts: tuple[str, ...]
    steps: tuple[PlannedStep, ...]
    not_planned: tuple[Skipped, ...]
    #: True if the run ends after the first step with a bad result that no later step can excuse.
    fail_fast: bool
    notes: tuple[str, ...]
    #: The estimate if every step passes.
    seconds: float
    #: The longest estimate if something is found: all steps, and all repetitions of pairs.
    seconds_at_most: float
    gpu_hours: float | None
    #: Estimated sizes if every step passes; None if the number of nodes is unknown.
    sizes: Sizes | None


@dataclass(frozen=True, kw_only=True)
class RenderedRun:
    """A run that was written to a folder: `accept render --out`."""

    #: The hash of the run.
    run: str
    folder: str


def do_render(options: Options, terminal: Terminal, *, out: Path | None) -> int:
    """Print the run as Helm values, or write it to the folder `out`; contact no host."""
    if options.all_nodes:
        raise BadInput(
            "--nodes all needs a connection to a cluster, and render makes none",
            code=Code.NODES_ALL_OFFLINE,
            hint="accept list nodes > FILE, then --nodes @FILE; or name them: --nodes a,b,c",
        )
    if not options.machine:
        raise BadInput(
            "no machine is given, and render contacts no hosts to detect it",
            code=Code.MACHINE_MISSING,
            hint="give --machine NAME: accept list machines",
        )
    run = resolve(replace(options, hosts=expand(options.hosts, terminal.progress)))
    bundle = render(run)
    run = replace(run, plan=bundle.plan)
    if out is None and run.backend != "kubernetes":
        raise BadInput(
            f"Helm values are only for runs on Kubernetes, and the back end is {run.backend}",
            code=Code.HELM_BACKEND,
            hint="for pods: --backend kubernetes; else --out FOLDER, then accept submit FOLDER",
        )
    for note in (*run.notes, *_size_notes(run)):
        terminal.progress(note)
    if out is None:
        if terminal.json:
            terminal.result(values_of(run, bundle), "")
        else:
            terminal.document(None, helm_values(run, bundle))
        file = command_line(terminal.file or "FILE")
        terminal.suggest(f'helm install NAME "$(accept chart)" --values {file}')
        return Exit.PASS
    try:
        is_new = not out.exists()
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadInput(
                f"{out} is not empty",
                code=Code.OUTPUT_EXISTS,
                hint="name a folder that does not exist yet",
            )
        try:
            write_run(run, bundle, out)
        except BaseException:
            # Leave no part of a run.
            for path in out.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if is_new:
                out.rmdir()
            raise
    except OSError as error:
        raise unwritable(out, error, hint="choose another folder") from None
    terminal.progress(f"rendered plan {bundle.plan.hash[:12]}")
    terminal.result(RenderedRun(run=bundle.plan.hash, folder=str(out)), str(out))
    terminal.suggest(command_line("accept", "submit", out))
    return Exit.PASS


def prepare(options: Options, terminal: Terminal) -> tuple[Resolved, Bundle]:
    """Resolve and render a run; ask for its machine and free nodes if the options need them.

    Raises BadInput for invalid options before any host is contacted, and NotStarted if no host or
    cluster shows the machine.
    """
    options = _with_allocation(replace(options, hosts=expand(options.hosts, terminal.progress)))
    if not options.machine:
        site = site_of(options)
        target = choose_target(options, site)
        machine = backends.load(target.backend).detect(target.hosts, site, options.place)
        options = replace(options, machine=machine)
        terminal.progress(f"machine: {machine} (detected; override with --machine)")
    if options.all_nodes:
        # Refuse contradictory options before the cluster is contacted.
        cluster = choose_target(options, site_of(options)).backend
        free = backends.NODE_LISTS[cluster].free_nodes(options)
        options = replace(
            options, hosts=free.names, left_out=free.left_out, all_nodes=False, backend=cluster
        )
        terminal.progress(f"nodes: all {len(free.names)} that are free and match")
        for node in free.left_out[:_MAX_LEFT_OUT]:
            terminal.progress(f"  not tested: {plain(f'{node.name} ({node.reason})', 200)}")
    run = resolve(options)
    _check_start(run, options)
    bundle = render(run)
    return replace(run, plan=bundle.plan), bundle


def prepare_on(
    hosts: tuple[str, ...], run: Resolved, options: Options, terminal: Terminal
) -> tuple[Resolved, Bundle]:
    """Prepare a run on a cluster again, for the nodes of an earlier one by name."""
    options = replace(
        options,
        machine=options.machine or run.plan.machine.name,
        backend=run.backend,
        hosts=hosts,
        named=True,
        nodes=None,
        all_nodes=False,
    )
    return prepare(options, terminal)


def _with_allocation(options: Options) -> Options:
    """Return the options with the nodes that this process's allocation has, if they name none."""
    if options.hosts or options.nodes is not None or options.all_nodes:
        return options
    nodes = backends.NODE_LISTS.get(named_backend(options, site_of(options)) or "")
    return replace(options, hosts=nodes.allocated_nodes()) if nodes else options


def _check_start(run: Resolved, options: Options) -> None:
    """Raise BadInput for options that a start would refuse, so that a dry run refuses them, too."""
    if run.backend == "local":
        # `resolve` has checked hosts over ssh and named nodes already.
        parse_faults(options.inject, (os.uname().nodename,))
    name = options.attempt or _SAMPLE_NAME
    backends.load(run.backend).attempt_name(name, run.place, run.plan.nodes or 1)


def write_run(run: Resolved, bundle: Bundle, folder: Path) -> None:
    """Write a rendered run to `folder`, which must exist."""
    data = {"schema": 1, "version": bundle.plan.version, "run": dump(run)}
    write(folder / rundir.RUN, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    write(folder / rundir.VALUES, helm_values(run, bundle))
    rendered = folder / rundir.RENDERED
    rendered.mkdir()
    bundle.write(rendered)


def planned(run: Resolved, kept: Collection[str] = ()) -> PlannedRun:
    """Return the plan with its steps, estimated seconds and GPU-hours.

    `kept` are the ids of steps that an earlier attempt has finished.
    """
    plan: Plan = run.plan
    left = [step for step in plan.steps if step.id not in kept]
    seconds = sum(step.estimate for step in left if not step.if_open)
    at_most = sum(step.at_most for step in left)
    gpus = plan.gpus_used if plan.gpus_used is not None else plan.machine.gpus
    hours = None if gpus is None else round(seconds * gpus * (plan.nodes or 1) / 3600, 2)
    return PlannedRun(
        run=plan.hash,
        machine=plan.machine.name,
        suite=plan.suite,
        backend=run.backend,
        nodes=plan.nodes,
        hosts=run.hosts,
        steps=tuple(
            PlannedStep(
                id=step.id,
                checks=step.checks,
                groups=step.groups,
                rounds=step.rounds,
                seconds=round(step.estimate, 1),
                timeout=step.timeout,
                optional=step.optional,
                if_open=step.if_open,
                kept=step.id in kept,
            )
            for step in plan.steps
        ),
        not_planned=plan.skipped,
        fail_fast=plan.fail_fast,
        notes=(*run.notes, *_size_notes(run)),
        seconds=round(seconds, 1),
        seconds_at_most=round(at_most, 1),
        gpu_hours=hours,
        sizes=sizes(plan),
    )


def tell_plan(plan: PlannedRun, terminal: Terminal) -> None:
    """Print the plan of a run that starts now; its steps only with --verbose."""
    for line in plan_text(plan, is_short=not terminal.verbose).splitlines():
        terminal.progress(line)


def plan_text(plan: PlannedRun, *, is_short: bool = False) -> str:
    """Return the plan as lines of text; the short form counts the steps."""
    nodes = "all free nodes" if plan.nodes is None else count(plan.nodes, "node")
    where = f"{nodes} over {plan.backend}"
    if plan.hosts:
        shown = ", ".join(plan.hosts[:8]) + (" …" if len(plan.hosts) > 8 else "")
        where += f" ({shown})"
    lines = [f"machine {plan.machine}, suite {plan.suite}, {where}; plan {plan.run[:12]}"]
    for step in plan.steps if not is_short else ():
        rounds = f" x {step.rounds}" if step.rounds != 1 else ""
        lines.append(
            f"  {step.id}: {', '.join(step.checks)} on {step.groups}{rounds}, "
            + ("kept" if step.kept else f"about {duration(step.seconds)}")
            + (", if earlier steps leave a question" if step.if_open else "")
        )
    lines += [
        f"  not planned: {skip.check}: {skip.reason}"
        for skip in plan.not_planned
        if skip.cause is not Cause.DESELECTED and not is_short
    ]
    lines += [f"  not run: {left_out}" for left_out in [not_run(plan.not_planned)] if left_out]
    lines += ["  ends after the first failure (--fail-fast)"] * plan.fail_fast
    lines += [f"  {note}" for note in plan.notes]
    hours = "" if not plan.gpu_hours else f", {plan.gpu_hours} GPU-hours"
    more = duration(plan.seconds_at_most)
    if_found = f"; at most {more} if something is found" if more != duration(plan.seconds) else ""
    steps = f"{count(len(plan.steps), 'step')}; " if is_short else ""
    lines.append(f"{steps}estimated: {duration(plan.seconds)}{hours}{if_found}")
    return "\n".join(lines)


def _size_notes(run: Resolved) -> Iterator[str]:
    """Yield the expected sizes, and a note if the log of the run is not enough to judge it."""
    expected = sizes(run.plan)
    if expected is None:
        return
    yield (
        f"expected evidence: about {_rounded(expected.evidence)} from "
        f"{count(expected.executions, 'execution')}; log: about {_rounded(expected.log)}"
    )
    results = run.site.results
    has_place = results.location or results.volume
    if run.backend == "kubernetes" and not has_place and not expected.fits_log:
        yield "the records are too large for the log: set results.location to keep them"


def _rounded(size: int) -> str:
    """Return a size with two significant digits."""
    unit, scale = ("MB", 1e6) if size >= 1e6 else ("kB", 1e3)
    value = float(f"{size / scale:.2g}")
    return f"{value:g} {unit}"
