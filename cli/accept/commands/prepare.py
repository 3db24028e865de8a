"""Resolve and render a run, after asking hosts or a cluster for what the options leave open."""

from __future__ import annotations

import os
from dataclasses import replace

from accept import backends
from accept.config.faults import parse_faults
from accept.config.hostlist import expand
from accept.core.text import plain
from accept.plan.bundle import Bundle, render
from accept.plan.resolve import Options, Resolved, choose_target, named_backend, resolve, site_of
from accept.report.console import Terminal

#: As long as a generated name.
_SAMPLE_NAME = "20261121-045334-1a2b"
#: Maximum number of listed nodes that are left out; the report has all.
_MAX_LEFT_OUT = 16


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
