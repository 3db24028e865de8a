"""Convert the options of the command line for the commands. Everything here raises BadInput."""

from __future__ import annotations

import re
from dataclasses import replace

from accept.app.options import (
    ClusterOptions,
    DrillOptions,
    LaunchOptions,
    PlanOptions,
    ReleaseOptions,
)
from accept.config.expectations import parse_duration
from accept.config.kubernetes import NAME, RELEASE_NAME
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import escaped
from accept.evidence import rundir
from accept.plan.resolve import ClusterPlace, Options

#: A --nodes value with names: @FILE, or a text with a digit, dot, dash, comma or range in it.
_NODE_LIST = r"@.+|[A-Za-z][A-Za-z]*[0-9.,\[-].*"


def parse_options(
    plan: DrillOptions,
    *,
    launch: LaunchOptions | None = None,
    cluster: ClusterOptions | None = None,
) -> Options:
    """Return the options of a run as `accept.plan` takes them."""
    names, count = _parse_nodes(plan.nodes)
    if launch and launch.attempt:
        rundir.new_folder(launch.attempt)
    options = Options(
        machine=plan.machine or "",
        suite=plan.suite,
        site=plan.site,
        nodes=count,
        hosts=(*(plan.hosts or ()), *names),
        named=bool(names) and not plan.hosts,
        all_nodes=plan.nodes == "all",
        backend=plan.backend,
        settings=tuple(plan.settings or ()),
        nccl=tuple(plan.nccl or ()),
        expect=tuple(plan.expect or ()),
        gpus_per_node=plan.gpus_per_node,
        rounds=plan.rounds or "",
        seed=plan.seed,
        require_all_nodes=plan.require_all_nodes,
        busy_ok=plan.busy_ok,
        start_timeout=_seconds("start-timeout", plan.start_timeout),
        deadline=_seconds("deadline", plan.deadline),
        budget=_seconds("budget", plan.budget),
        keep=_seconds("keep", plan.keep),
        place=parse_place(cluster) if cluster else ClusterPlace(),
        attempt=(launch and launch.attempt) or "",
    )
    if isinstance(plan, PlanOptions):
        hold = _seconds("hold", plan.hold) or 0.0
        options = replace(options, hold=hold, inject=tuple(plan.inject or ()))
    return options


def parse_place(cluster: ClusterOptions) -> ClusterPlace:
    """Return the location of a run in a cluster."""
    release = cluster.release if isinstance(cluster, ReleaseOptions) else None
    if cluster.namespace is not None:
        _check_name("namespace", cluster.namespace, NAME)
    if release is not None:
        _check_name("release", release, RELEASE_NAME, ", a letter first")
    return ClusterPlace(
        kubeconfig=cluster.kubeconfig,
        context=cluster.context,
        namespace=cluster.namespace,
        release=release,
    )


def _check_name(option: str, name: str, pattern: str, more: str = "") -> None:
    if not re.fullmatch(pattern, name):
        raise BadInput(
            f"--{option} {escaped(name)!r} is not a valid name",
            code=Code.KUBE_NAME,
            hint=f"use a-z, 0-9 and '-'{more}, such as gpu-tests",
        )


def _parse_nodes(text: str | None) -> tuple[tuple[str, ...], int | None]:
    """Return the list of nodes that --nodes names, or their number."""
    if text is None or text == "all":
        return (), None
    if re.fullmatch(_NODE_LIST, text, re.DOTALL):
        return (text,), None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return (), int(text)
    raise BadInput(
        f"--nodes {escaped(text)!r} is not a number of nodes or a list of names",
        code=Code.NODES_SYNTAX,
        hint="give a number such as 16, a list a,b,c, @FILE, or all",
    )


def _seconds(option: str, text: str | None) -> float | None:
    """Parse the duration that an option gives."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        message, _, forms = str(error).partition("; ")
        raise BadInput(f"--{option}: {message}", code=Code.OPTION_DURATION, hint=forms) from None
