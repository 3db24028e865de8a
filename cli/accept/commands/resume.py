"""Prepare a run that goes on after the finished steps of an earlier attempt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from accept import backends
from accept.commands.judged import load
from accept.commands.plan import prepare
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.judge.evidence import Found
from accept.core.judge.hosts import find
from accept.core.plan import Plan
from accept.core.records import Problem
from accept.core.runner.resume import begun, finished_steps
from accept.core.text import count, plain, shortened
from accept.evidence import rundir
from accept.evidence.untrusted import Limits
from accept.plan.bundle import Bundle, load_bundle
from accept.plan.placement import include_nodes
from accept.plan.resolve import ClusterPlace, Options, Resolved
from accept.report.console import Terminal

#: Fields of a plan that follow from others, or that `differences` names in its own way.
_SHOWN = ("hash", "files_hash", "machine", "profiles", "suite", "nodes", "env", "steps")


def prepare_resumed(
    options: Options, terminal: Terminal, *, folder: Path, before: Resolved
) -> tuple[Resolved, Bundle, tuple[str, ...]]:
    """Return the run that continues the one in `folder`, and the ids of its finished steps.

    Its evidence must be collected. Without other options it is the same run; with others, they must
    give the same. Raises BadInput if they do not, or if there is nothing to continue.
    """
    if replace(options, attempt="", place=ClusterPlace()) == Options(machine=""):
        place = replace(before.place, release=None).override(options.place)
        run = replace(before, place=place)
        bundle = load_bundle(folder / rundir.RENDERED, before.plan)
    else:
        run, bundle = prepare(options, terminal)
    if different := [*differences(before, run, backends.load_job(folder).hosts)]:
        raise BadInput(
            f"{folder.name} cannot be resumed: {shortened(different, 4)}",
            code=Code.RESUME_DIFFERENT,
            hint="give no other options than --resume, or start without it",
        )
    loaded = next(load(str(folder / rundir.EVIDENCE), Limits(), terminal.progress))
    steps = finished_steps(loaded.records, run.plan, begun(folder / rundir.EVIDENCE))
    is_over = not loaded.end.interruption and loaded.folder is not None
    if not steps or is_over:
        raise BadInput(
            f"{folder.name} has finished {'all steps' if is_over else 'no step'}",
            code=Code.RESUME_NOTHING,
            hint=f"accept judge {folder.name}" if is_over else "start the run without --resume",
        )
    if (folder / rundir.FROM_LOG).is_file():
        raise BadInput(
            f"the logs of the finished steps of {folder.name} are lost",
            code=Code.RESUME_NOTHING,
            hint="start the run without --resume",
        )
    run = replace(run, earlier=str((folder / rundir.EVIDENCE).resolve()), lost=before.lost)
    return _on_same_nodes(run, find(loaded.records), folder.name), bundle, steps


def _on_same_nodes(run: Resolved, found: Found, attempt: str) -> Resolved:
    """Return the run with the nodes of an earlier attempt by name: a cluster could choose others.

    Raises BadInput if their names are not known.
    """
    if run.backend == "slurm":
        # Slurm would wait for a node that is down.
        problems = {p.host: p for p in found.problems if p.host in found.missing}
        for host in found.lost:
            message = f"{host} was lost in {attempt}"
            problems[host] = Problem(
                cause=Cause.UNREACHABLE_TIMEOUT, message=message, check="hosts", host=host
            )
        hosts = tuple(host for host in found.present if host not in problems)
        return replace(run, hosts=hosts, lost=tuple(problems.values()))
    if run.backend == "kubernetes":
        wanted = run.plan.nodes or 1
        names = run.site.kubernetes.include_nodes
        if len(names) != wanted:
            names = found.present
        if len(names) != wanted:
            raise BadInput(
                f"{attempt} found {len(names)} of {count(wanted, 'node')}, so the names of the "
                "others are not known",
                code=Code.RESUME_NODES,
                hint="start the run again without --resume",
            )
        pods = include_nodes(run.site.kubernetes, names=names, nodes=wanted)
        return replace(run, site=replace(run.site, kubernetes=pods))
    return run


def differences(before: Resolved, run: Resolved, hosts: tuple[str, ...]) -> Iterator[str]:
    """Yield how a run differs from an earlier one, which was on `hosts`, for people."""
    if before.backend != run.backend:
        yield f"the back end was {before.backend}, and is {run.backend}"
    now = (os.uname().nodename,) if run.backend == "local" else run.hosts
    was = hosts if before.backend == "local" else before.hosts
    # A cluster chooses the nodes if the options only count them.
    if was != now and (now or run.backend in ("local", "ssh")):
        yield f"the hosts were {plain(shortened(was, 4))}, and are {plain(shortened(now, 4))}"
    for kind, old, new in (
        ("machine", before.machine, run.machine),
        ("suite", before.suite, run.suite),
    ):
        if old.name != new.name:
            yield f"the {kind} was {plain(old.name, 60)}, and is {plain(new.name, 60)}"
        elif old != new:
            yield f"the file of {kind} {plain(new.name, 60)} has changed"
    if before.plan.hash == run.plan.hash:
        return
    changed = [*_changed_settings(before.plan, run.plan)] or ["scripts or settings of the ranks"]
    yield f"other settings: {plain(shortened(changed, 6))}"


def _changed_settings(before: Plan, now: Plan) -> Iterator[str]:
    """Yield the variables, parameters and other parts of a plan that differ."""
    for name in sorted(before.env.keys() | now.env.keys()):
        if before.env.get(name) != now.env.get(name):
            yield name
    if [step.id for step in before.steps] != [step.id for step in now.steps]:
        yield "the list of steps"
    else:
        for old, new in zip(before.steps, now.steps, strict=True):
            names = [n for n in new.params if old.params.get(n) != new.params[n]]
            yield from (f"{new.checks[0]}.{name}" for name in names)
            if not names and old != new:
                yield new.id
    for item in fields(Plan):
        if item.name not in _SHOWN and getattr(before, item.name) != getattr(now, item.name):
            yield item.name.replace("_", " ")
