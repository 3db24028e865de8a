"""Render a run to Helm values or a folder, and print its plan."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from accept.config.hostlist import expand
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.evidence import write
from accept.core.model import GroupKind, Plan, Skipped
from accept.core.serde import dump
from accept.core.text import count, duration
from accept.evidence import rundir
from accept.plan.bundle import Bundle, render
from accept.plan.helm_values import helm_values, values_of
from accept.plan.resolve import Options, Resolved, resolve
from accept.report.console import Terminal


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
    notes: tuple[str, ...]
    seconds: float
    gpu_hours: float | None


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
            hint="accept nodes > FILE, then --nodes @FILE; or name them: --nodes a,b,c",
        )
    if not options.machine:
        raise BadInput(
            "no machine is given, and render contacts no hosts to detect it",
            code=Code.MACHINE_MISSING,
            hint="give --machine NAME: accept list machines",
        )
    run = resolve(replace(options, hosts=expand(options.hosts)))
    bundle = render(run)
    run = replace(run, plan=bundle.plan)
    if out is None and run.backend != "kubernetes":
        raise BadInput(
            f"Helm values are only for runs on Kubernetes, and the back end is {run.backend}",
            code=Code.HELM_BACKEND,
            hint="give --out FOLDER, then accept submit FOLDER",
        )
    for note in run.notes:
        terminal.progress(note)
    if out is None:
        if terminal.json:
            terminal.result(values_of(run, bundle), "")
        else:
            terminal.result(None, helm_values(run, bundle))
        return Exit.PASS
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadInput(
                f"{out} is not empty",
                code=Code.OUTPUT_EXISTS,
                hint="name a folder that does not exist yet",
            )
        write_run(run, bundle, out)
    except OSError as error:
        raise BadInput(
            f"{out} cannot be written: {error.strerror}",
            code=Code.OUTPUT_WRITE,
            hint="choose another folder",
        ) from None
    terminal.progress(f"rendered run {bundle.plan.hash[:12]}; next: accept submit {out}")
    terminal.result(RenderedRun(run=bundle.plan.hash, folder=str(out)), str(out))
    return Exit.PASS


def write_run(run: Resolved, bundle: Bundle, folder: Path) -> None:
    """Write a rendered run to `folder`, which must exist."""
    data = {"schema": 1, "version": bundle.plan.version, "run": dump(run)}
    write(folder / rundir.RUN, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    write(folder / rundir.VALUES, helm_values(run, bundle))
    rendered = folder / rundir.RENDERED
    rendered.mkdir()
    bundle.write(rendered)


def planned(run: Resolved) -> PlannedRun:
    """Return the plan with its steps, estimated seconds and GPU-hours."""
    plan: Plan = run.plan
    seconds = sum(step.estimate for step in plan.steps)
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
            )
            for step in plan.steps
        ),
        not_planned=plan.skipped,
        notes=run.notes,
        seconds=round(seconds, 1),
        gpu_hours=hours,
    )


def plan_text(plan: PlannedRun) -> str:
    """Return the plan as lines of text."""
    nodes = "all free nodes" if plan.nodes is None else count(plan.nodes, "node")
    where = f"{nodes} over {plan.backend}"
    if plan.hosts:
        shown = ", ".join(plan.hosts[:8]) + (" …" if len(plan.hosts) > 8 else "")
        where += f" ({shown})"
    lines = [f"machine {plan.machine}, suite {plan.suite}, {where}; run {plan.run[:12]}"]
    for step in plan.steps:
        rounds = f" x {step.rounds}" if step.rounds != 1 else ""
        lines.append(
            f"  {step.id}: {', '.join(step.checks)} on {step.groups}{rounds}, "
            f"about {duration(step.seconds)}"
        )
    lines += [f"  not planned: {skip.check}: {skip.reason}" for skip in plan.not_planned]
    lines += [f"  {note}" for note in plan.notes]
    hours = "" if not plan.gpu_hours else f", {plan.gpu_hours} GPU-hours"
    lines.append(f"estimated: {duration(plan.seconds)}{hours}")
    return "\n".join(lines)
