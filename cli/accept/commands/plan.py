"""Resolve and render a run, and print its plan."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from accept import backends
from accept.config import Site, load_site
from accept.config.faults import parse_faults
from accept.config.hostlist import expand
from accept.core.errors import BadInput, Exit
from accept.core.evidence import write
from accept.core.model import Plan
from accept.core.serde import dump
from accept.core.text import count, duration
from accept.evidence import rundir
from accept.plan.bundle import Bundle, render
from accept.plan.helm_values import helm_values, values_of
from accept.plan.resolve import Options, Resolved, choose_target, resolve
from accept.report.console import Terminal


def detect(options: Options) -> str:
    """Return the name of the machine that the back end detects on its hosts.

    Raises BadInput for invalid options before it contacts any host, and NotStarted if no host or
    cluster shows the machine.
    """
    site = load_site(options.site).value if options.site else Site()
    target = choose_target(options, site)
    return backends.load(target.backend).detect(target.hosts, site, options.place)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan of a run, as `--dry-run` shows it."""

    run: str
    machine: str
    suite: str
    backend: str
    nodes: int | None
    hosts: tuple[str, ...]
    steps: tuple[dict[str, object], ...]
    not_planned: tuple[dict[str, object], ...]
    notes: tuple[str, ...]
    seconds: float
    gpu_hours: float | None


def prepare(options: Options, terminal: Terminal, *, probe: bool) -> tuple[Resolved, Bundle]:
    """Resolve and render a run.

    With `probe`, hosts or a cluster are asked for the machine and for free nodes, if the options
    need them. Without it, nothing is contacted, and such options are refused with BadInput.
    """
    options = replace(options, hosts=expand(options.hosts))
    if options.all_nodes and not probe:
        raise BadInput(
            "--nodes all needs a connection to a cluster, and render makes none",
            hint="accept nodes > FILE, then --nodes @FILE; or name them: --nodes a,b,c",
        )
    if not options.machine:
        if not probe:
            raise BadInput("which machine?", hint="give --machine NAME: accept list machines")
        options = replace(options, machine=detect(options))
        terminal.progress(f"machine: {options.machine} (detected; override with --machine)")
    if options.all_nodes:
        # Refuse contradictory options before the cluster is contacted.
        choose_target(options, load_site(options.site).value if options.site else Site())
        names = backends.CLUSTERS["kubernetes"].free_nodes(options)
        options = replace(options, hosts=names, all_nodes=False, backend="kubernetes")
        terminal.progress(f"nodes: all {len(names)} that are free and match")
    run = resolve(options)
    if probe:
        _check_start(run, options)
    bundle = render(run)
    return replace(run, plan=bundle.plan), bundle


#: As long as a generated name.
_SAMPLE_NAME = "20261121-045334-1a2b"


def _check_start(run: Resolved, options: Options) -> None:
    """Raise BadInput for options that a start would refuse, so that a dry run refuses them, too."""
    if run.backend == "local":
        # `resolve` has checked hosts over ssh and named nodes already.
        parse_faults(options.inject, (os.uname().nodename,))
    name = options.attempt or _SAMPLE_NAME
    backends.load(run.backend).attempt_name(name, run.place, run.plan.nodes or 1)


def do_render(options: Options, terminal: Terminal, *, out: Path | None) -> int:
    """Print the run as Helm values, or write it to the folder `out`."""
    run, bundle = prepare(options, terminal, probe=False)
    if out is None and run.backend != "kubernetes":
        raise BadInput(
            f"Helm values are only for runs on Kubernetes, and the back end is {run.backend}",
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
            raise BadInput(f"{out} is not empty", hint="name a folder that does not exist yet")
        write_run(run, bundle, out)
    except OSError as error:
        raise BadInput(
            f"{out} cannot be written: {error.strerror}", hint="choose another folder"
        ) from None
    terminal.progress(f"rendered run {bundle.plan.hash[:12]}; next: accept submit {out}")
    terminal.result({"run": bundle.plan.hash, "folder": str(out)}, str(out))
    return Exit.PASS


def write_run(run: Resolved, bundle: Bundle, folder: Path) -> None:
    """Write a rendered run to `folder`, which must exist."""
    data = {"schema": 1, "version": bundle.plan.version, "run": dump(run)}
    write(folder / rundir.RUN, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    write(folder / rundir.VALUES, helm_values(run, bundle))
    rendered = folder / rundir.RENDERED
    rendered.mkdir()
    bundle.write(rendered)


def planned(run: Resolved) -> Planned:
    """Return the plan with its steps, estimated seconds and GPU-hours."""
    plan: Plan = run.plan
    seconds = sum(step.estimate for step in plan.steps)
    gpus = plan.gpus_used if plan.gpus_used is not None else plan.machine.gpus
    hours = None if gpus is None else round(seconds * gpus * (plan.nodes or 1) / 3600, 2)
    return Planned(
        run=plan.hash,
        machine=plan.machine.name,
        suite=plan.suite,
        backend=run.backend,
        nodes=plan.nodes,
        hosts=run.hosts,
        steps=tuple(
            {
                "id": s.id,
                "checks": list(s.checks),
                "groups": s.groups,
                "rounds": s.rounds,
                "seconds": round(s.estimate, 1),
                "timeout": s.timeout,
                "optional": s.optional,
            }
            for s in plan.steps
        ),
        not_planned=tuple({"check": s.check, "reason": s.reason} for s in plan.skipped),
        notes=run.notes,
        seconds=round(seconds, 1),
        gpu_hours=hours,
    )


def plan_text(plan: Planned) -> str:
    """Return the plan as lines of text."""
    nodes = "all free nodes" if plan.nodes is None else count(plan.nodes, "node")
    where = f"{nodes} over {plan.backend}"
    if plan.hosts:
        shown = ", ".join(plan.hosts[:8]) + (" …" if len(plan.hosts) > 8 else "")
        where += f" ({shown})"
    lines = [f"machine {plan.machine}, suite {plan.suite}, {where}; run {plan.run[:12]}"]
    for step in plan.steps:
        checks = step["checks"]
        assert isinstance(checks, list)
        rounds = f" x {step['rounds']}" if step["rounds"] != 1 else ""
        lines.append(
            f"  {step['id']}: {', '.join(checks)} on {step['groups']}{rounds}, "
            f"about {step['seconds']} s"
        )
    lines += [f"  not planned: {s['check']}: {s['reason']}" for s in plan.not_planned]
    lines += [f"  {note}" for note in plan.notes]
    hours = "" if not plan.gpu_hours else f", {plan.gpu_hours} GPU-hours"
    lines.append(f"estimated: {duration(plan.seconds)}{hours}")
    return "\n".join(lines)
