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
from accept.commands.trust import require_trust
from accept.config import Loaded, Site, load_site, site_file
from accept.config.chart_rules import chart_rules
from accept.config.expectations import parse_duration
from accept.config.kubernetes import NAME
from accept.config.slurm import Slurm
from accept.core.error_codes import Code
from accept.core.errors import BadInput, warning
from accept.core.plan import Launcher
from accept.core.serde import Invalid, escaped, read
from accept.core.text import plain
from accept.evidence import rundir
from accept.plan.resolve import ClusterPlace, Options
from accept.plan.selection import Selection
from accept.report.console import Terminal

#: A --nodes value with names: @FILE, or a text with a digit, dot, dash, comma, range or _ in it.
_NODE_LIST = r"@.+|[A-Za-z][A-Za-z]*[0-9.,\[_-].*"


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
        nccl_profile=plan.nccl_profile or "",
        expect=tuple(plan.expect or ()),
        gpus_per_node=plan.gpus_per_node,
        rounds=plan.rounds or "",
        seed=plan.seed,
        launcher=Launcher(plan.launcher) if plan.launcher else None,
        require_all_nodes=plan.require_all_nodes,
        busy_ok=plan.busy_ok,
        start_timeout=seconds("start-timeout", plan.start_timeout),
        deadline=seconds("deadline", plan.deadline),
        budget=seconds("budget", plan.budget),
        keep=seconds("keep", plan.keep),
        place=parse_place(cluster) if cluster else ClusterPlace(),
        slurm=parse_slurm(plan),
        image=plan.image,
        attempt=(launch and launch.attempt) or "",
    )
    if isinstance(plan, PlanOptions):
        hold, always = _parse_hold(plan.hold)
        inject = tuple(plan.inject or ())
        options = replace(
            options,
            hold=hold,
            hold_always=always,
            inject=inject,
            selection=Selection(only=_parse_names(plan.only), skip=_parse_names(plan.skip)),
            fail_fast=plan.fail_fast,
        )
    return options


def with_site(options: Options, terminal: Terminal) -> Options:
    """Return the options with the site file that is found if they name none; none for `none`.

    The user sees its path even with --quiet, because it decides what runs where. One in the working
    folder must be trusted. Without a machine, it is that of the site file.
    """
    if options.site is None and (named := site_file.named_site()):
        terminal.notice(f"site file: {plain(named)} ({site_file.VARIABLE})")
        options = replace(options, site=named)
    if options.site == site_file.NONE:
        return replace(options, site=None)
    if options.site is not None:
        return _with_machine(options, load_site(options.site))
    if foreign := site_file.foreign_site():
        text = f"{foreign} is not used, because another user could have written it"
        terminal.notice(warning(Code.SITE_IGNORED, f"{text}; to use it: --site {foreign}"))
    found = site_file.find_site()
    if found is None:
        return options
    site = load_site(str(found))
    require_trust(found, site.document, terminal)
    terminal.notice(f"site file: {found} (found; --site {site_file.NONE} ignores it)")
    return _with_machine(options, site)


def _with_machine(options: Options, site: Loaded[Site]) -> Options:
    """Return the options with this site file and, if they name no machine, with its machine."""
    return replace(options, site=site, machine=options.machine or site.value.machine or "")


def _parse_names(texts: list[str] | None) -> tuple[str, ...]:
    """Return the names that an option lists, separated by commas."""
    return tuple(name.strip() for text in texts or () for name in text.split(",") if name.strip())


def _parse_hold(text: str | None) -> tuple[float, bool]:
    """Return the seconds of a hold, and whether it also follows a run that was accepted."""
    if text is None:
        return 0.0, False
    when, _, time = text.rpartition(":")
    try:
        if when not in ("", "failed", "always"):
            raise Invalid((), f"{escaped(text)!r} is not a hold", "")
        return parse_duration(time), when == "always"
    except Invalid as error:
        hint = "after a failed run: --hold 30m; after every run: --hold always:30m"
        raise BadInput(f"--hold: {error.message}", code=Code.OPTION_HOLD, hint=hint) from None


def parse_slurm(plan: DrillOptions) -> Slurm:
    """Return the settings of a job of Slurm. Raises BadInput."""
    given = {
        "partition": plan.partition,
        "exclude": list(plan.exclude or ()),
        "reservation": plan.reservation,
        "account": plan.account,
        "qos": plan.qos,
        "constraint": plan.constraint,
        "time": seconds("time", plan.time),
        "sbatchArgs": list(plan.sbatch_arg or ()),
    }
    try:
        return read(Slurm, given)
    except Invalid as error:
        option = str(error.path[0]) if error.path else ""
        option = "sbatch-arg" if option == "sbatchArgs" else option
        raise BadInput(
            f"--{option}: {error.message}", code=Code.SLURM_OPTION, hint=error.hint
        ) from None


def parse_place(cluster: ClusterOptions) -> ClusterPlace:
    """Return the location of a run in a cluster."""
    release = cluster.release if isinstance(cluster, ReleaseOptions) else None
    if cluster.namespace is not None:
        _check_name("namespace", cluster.namespace, NAME)
    if release is not None:
        _check_name("release", release, chart_rules().name_pattern, ", a letter first")
    return ClusterPlace(**vars(cluster))


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


def seconds(option: str, text: str | None) -> float | None:
    """Parse the duration that an option gives."""
    try:
        return None if text is None else parse_duration(text)
    except Invalid as error:
        message = f"--{option}: {error.message}"
        raise BadInput(message, code=Code.OPTION_DURATION, hint=error.hint) from None
