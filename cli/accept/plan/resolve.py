"""From options, machine, site and suite to a run in which nothing is left to default.

Reads files and touches nothing else: no clock, no host, no random number, so that the same inputs
resolve to the same run everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from accept.config import (
    Loaded,
    Machine,
    Site,
    Suite,
    load_machine,
    load_site,
    load_suite,
    site_expectations,
)
from accept.config.expectations import parse_expectation
from accept.config.faults import read_plants
from accept.config.fields import check_env
from accept.config.floors import bounds
from accept.config.hostlist import MOST_HOSTS, expand
from accept.config.machine import check_gpus_per_node
from accept.config.nccl_settings import remarks, without
from accept.core.errors import BadInput
from accept.core.model import Plan, Reference
from accept.core.serde import Invalid, escaped, known
from accept.plan.placement import check_image, check_results, gpus_of_pod, placed
from accept.plan.steps import steps_of, within

#: Longest wait for hosts, in seconds, by back end. Nodes of a cluster pull an image first.
_START = {"local": 60.0, "ssh": 60.0, "kubernetes": 900.0}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for, as the command line takes it."""

    machine: str
    suite: str = "quick"
    site: str | None = None
    #: Number of nodes; with `hosts` it is their number.
    nodes: int | None = None
    hosts: tuple[str, ...] = ()
    #: Whether `hosts` came as --nodes: nodes of a cluster, where the site file has one.
    named: bool = False
    backend: str | None = None
    settings: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    seed: int = 1
    #: Of pairs, whatever the suite says: a number or "auto".
    rounds: str = ""
    require_all_nodes: bool = False
    busy_ok: bool = False
    start_timeout: float | None = None
    deadline: float | None = None
    budget: float | None = None
    hold: float = 0.0
    keep: float | None = None
    plant: tuple[str, ...] = ()
    #: Where a cluster is to run it: kubeconfig, context, namespace, release; not what is run.
    place: dict[str, str] = field(default_factory=dict)
    #: Every node that matches and is free: a cluster's back end names them.
    all_nodes: bool = False
    #: Name of the launch; empty: made from time and chance. It is no part of the run.
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A run: everything that decides what is done, and the scripts of the user's own by step."""

    machine: Machine
    suite: Suite
    site: Site
    backend: str
    hosts: tuple[str, ...]
    #: NCCL settings, in the order they apply; the later win.
    env: dict[str, str]
    #: The plugin's own environment script, sourced before the settings.
    script: str
    #: All but version and hash, which rendering fills in.
    plan: Plan
    user_scripts: dict[str, str]
    #: GPUs that a pod asks for, where it is not to have all of a node's.
    gpus_per_pod: int | None = None
    #: What the user should know of what was put together, one line each.
    notes: tuple[str, ...] = ()
    #: Where a cluster is to run it, as the options say.
    place: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a run goes."""

    backend: str
    #: Hosts over ssh, or nodes of a cluster; empty if they are not known by name.
    hosts: tuple[str, ...]
    #: Number of nodes; None for every free node of a cluster.
    nodes: int | None


def choose_target(options: Options, site: Site) -> Target:
    """Choose back end, hosts and number of nodes from the options, then from the site file.

    Contacts nothing. Raises BadInput if the back end does not exist, if options contradict it, and
    if a cluster has no image.
    """
    named = options.backend or site.backend
    if named is not None and named not in _START:
        raise BadInput(f"there is no back end {escaped(named)!r}", hint=known(named, _START))
    if options.all_nodes and named not in (None, "kubernetes"):
        raise BadInput(
            f"--nodes all and back end {named}: only a cluster can list its free nodes",
            hint="name the hosts: --hosts a,b,c",
        )
    hosts = options.hosts or expand(site.ssh.hosts)
    backend = named or _infer_backend(options, site, hosts)
    if backend != "ssh":
        # The hosts of the site file are reached over ssh.
        hosts = options.hosts
    if backend == "local" and hosts:
        raise BadInput(
            f"back end local tests this machine alone, and {len(hosts)} "
            f"host{'s' * (len(hosts) != 1)} {'are' if len(hosts) != 1 else 'is'} named",
            hint="leave the hosts out, or give --backend ssh",
        )
    if backend == "ssh" and not hosts:
        raise BadInput(
            "--backend ssh needs hosts" if options.backend else "back end ssh needs hosts",
            hint="give --hosts a,b,c, or ssh.hosts in the site file",
        )
    nodes = _count_nodes(options, site, hosts, backend)
    if backend == "kubernetes":
        check_image(site.kubernetes)
    return Target(backend=backend, hosts=tuple(hosts), nodes=nodes)


def _infer_backend(options: Options, site: Site, hosts: Sequence[str]) -> str:
    """Return the back end of a run for which neither the options nor the site file name one."""
    if options.all_nodes:
        return "kubernetes"
    if hosts and not (options.named and site.kubernetes.image):
        return "ssh"
    # Only a cluster can choose nodes by their number.
    alone = options.nodes in (None, 1) and not site.kubernetes.image
    return "local" if alone else "kubernetes"


def _count_nodes(options: Options, site: Site, hosts: Sequence[str], backend: str) -> int | None:
    """Return the number of nodes; None for every free node of a cluster. Raises BadInput."""
    if options.all_nodes:
        return None
    count = len(hosts) or options.nodes
    if count is None and backend == "kubernetes":
        count = len(site.kubernetes.include_nodes) or None
    if count is None and backend == "local":
        count = 1
    if count is None:
        raise BadInput(
            "the number of nodes is not known", hint="give --nodes NUMBER, or --hosts a,b,c"
        )
    if not 1 <= count <= MOST_HOSTS:
        raise BadInput(f"{count} nodes", hint=f"from 1 to {MOST_HOSTS} are possible")
    if hosts and options.nodes not in (None, len(hosts)):
        raise BadInput(f"--nodes {options.nodes} and {len(hosts)} hosts", hint="leave --nodes out")
    if backend == "local" and count != 1:
        raise BadInput(
            f"{count} nodes, and back end local tests this machine alone",
            hint="name the others: --hosts a,b,c",
        )
    return count


def resolve(options: Options) -> Resolved:
    """Read what the options name and put it together. Raises BadInput."""
    machine = load_machine(options.machine)
    suite = load_suite(options.suite)
    site = load_site(options.site) if options.site else None
    settings = site.value if site else Site()
    target = choose_target(options, settings)
    backend, hosts, count = target.backend, target.hosts, target.nodes
    if count is None:
        raise BadInput("--nodes all: the nodes are not known yet", hint="name them: --nodes a,b,c")
    on_pods = backend == "kubernetes"
    per_pod = None
    if on_pods:
        check_results(settings.results, machine.value.kubernetes, settings.kubernetes)
        pods = placed(settings.kubernetes, names=hosts, nodes=count)
        settings = replace(settings, kubernetes=pods)
    gpus = gpus_asked(machine.value, settings, options)
    if on_pods:
        _check_gpus(machine.value, settings.kubernetes.gpus_per_pod)
        per_pod, gpus = gpus_of_pod(machine.value, settings.kubernetes, nodes=count, used=gpus)
    profile = _profile(machine.value, settings)
    env, script = _nccl(machine.value, settings, options)
    steps, skipped, scripts = steps_of(
        machine,
        suite,
        site,
        nodes=count,
        gpus=gpus,
        settings=options.settings,
        rounds=options.rounds,
        seed=options.seed,
    )
    deadline = options.deadline or settings.deadline or suite.value.deadline
    if options.budget is not None:
        steps, dropped = within(options.budget, steps)
        skipped += dropped
        deadline = min(deadline, options.budget)
    planned = machine.value.planned(profile)
    expected, unrun = _expectations(options, site, suite.value)
    plan = Plan(
        schema=1,
        version="",
        hash="",
        machine=replace(planned, interface=settings.interface or planned.interface),
        suite=suite.value.name,
        nodes=count,
        steps=steps,
        skipped=skipped,
        references=(
            *expected,
            *bounds(machine.value, profile, gpus),
        ),
        seed=options.seed,
        require_all_nodes=options.require_all_nodes or settings.require_all_nodes,
        gpus_used=gpus,
        gpus_given=per_pod,
        busy_ok=options.busy_ok,
        start_seconds=options.start_timeout or settings.start_timeout or _START[backend],
        deadline_seconds=deadline,
        hold_seconds=options.hold,
        keep_seconds=options.keep or settings.keep,
    )
    run = Resolved(
        machine=machine.value,
        suite=suite.value,
        site=settings,
        backend=backend,
        hosts=hosts,
        env=env,
        script=script,
        plan=plan,
        user_scripts=scripts,
        gpus_per_pod=per_pod,
        notes=(
            *_notes(suite.value),
            *unrun,
            *remarks(_asked(settings, options), machine.value, profile),
            *(_unplaced(settings) if on_pods else ()),
            *(_scattered(machine.value, settings, count) if on_pods else ()),
            *((machine.value.note,) if on_pods and machine.value.note else ()),
        ),
        place=options.place,
    )
    return plant(run, read_plants(options.plant, hosts))


def plant(run: Resolved, planted: tuple[str, ...]) -> Resolved:
    """The run with faults planted on purpose: by its plan, and by its settings."""
    env = run.env
    if any(text.startswith("sockets@") for text in planted):
        env = {**env, **without("nics")}
    return replace(run, env=env, plan=replace(run.plan, planted=planted))


def gpus_asked(machine: Machine, site: Site, options: Options) -> int | None:
    """GPUs of each node that are used, by the option, else by the site file. Raises BadInput."""
    asked = site.gpus_per_node if options.gpus_per_node is None else options.gpus_per_node
    _check_gpus(machine, asked)
    return asked


def _check_gpus(machine: Machine, count: int | None) -> None:
    if count is not None:
        try:
            check_gpus_per_node(machine, count)
        except Invalid as error:
            raise BadInput(error.message, hint=error.hint) from None


def _notes(suite: Suite) -> tuple[str, ...]:
    if any(entry.check == "connectivity" for entry in suite.checks):
        return ()
    reason = "nothing is measured before all planned ranks have answered"
    return (f"connectivity was added to suite {suite.name}: {reason}",)


def _unplaced(site: Site) -> tuple[str, ...]:
    if site.results.location or site.results.volume:
        return ()
    held = f"{site.results.hold_seconds:.0f} s after the verdict"
    return (f"no results.location: the evidence stays in the pod of index 0 for {held}",)


def _scattered(machine: Machine, site: Site, nodes: int) -> tuple[str, ...]:
    """Where NVLink spans nodes, and nothing keeps the pods in one domain."""
    link, topology = machine.nvlink, site.kubernetes.topology
    if link is None or not 1 < nodes <= link.nodes or (topology and topology.required):
        return ()
    said = "pods may be in several NVLink domains: its bounds hold for groups that are in one"
    return (f"{said}; kubernetes.topology.required keeps all of them in one rack",)


def _profile(machine: Machine, site: Site) -> str:
    """Name of the NCCL profile that the site picks. Raises BadInput."""
    name, profiles = site.nccl.profile, machine.nccl.profiles
    if name not in profiles:
        raise BadInput(
            f"{machine.name} has no NCCL profile {escaped(name)!r}", hint=known(name, profiles)
        )
    return name


def _asked(site: Site, options: Options) -> dict[str, str]:
    """The user's own settings: those of the site file, then --nccl."""
    filed = {key: str(value) for key, value in site.nccl.env.items()}
    return {**filed, **_given(options.nccl)}


def _given(texts: Sequence[str]) -> dict[str, str]:
    """--nccl KEY=VALUE. Raises BadInput."""
    given: dict[str, str | int] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"--nccl {escaped(text)!r} is no setting", hint="write --nccl KEY=VALUE")
        given[key] = value
    try:
        check_env(given, ())
    except Invalid as error:
        raise BadInput(f"--nccl {error}", hint="write --nccl KEY=VALUE") from None
    return {key: str(value) for key, value in given.items()}


def _nccl(machine: Machine, site: Site, options: Options) -> tuple[dict[str, str], str]:
    """Settings and script: the machine's profile, then the site's, then --nccl."""
    profile = machine.nccl.profiles[site.nccl.profile]
    # Which network NCCL chose is part of the verdict, and it says so at this level only.
    told = (
        {}
        if machine.gpus.count == 0
        else {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
    )
    merged = {**profile.env, **told, **_asked(site, options)}
    script = machine.nccl.script if profile.script is None else profile.script
    return {key: str(value) for key, value in merged.items()}, script


def _expectations(
    options: Options, site: Loaded[Site] | None, suite: Suite
) -> tuple[tuple[Reference, ...], tuple[str, ...]]:
    """What the user expects of checks that the suite has, and a note on each other of the site's.

    A site file serves several suites. Raises BadInput for another on the command line.
    """
    try:
        given = [parse_expectation(text, source="--expect") for text in options.expect]
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", hint=error.hint) from None
    # The command line replaces the same side of the same metric in the file.
    taken = {_subject(reference) for reference in given}
    filed = site_expectations(site) if site else ()
    kept = [reference for reference in filed if _subject(reference) not in taken]
    there = dict.fromkeys(item.check for item in suite.checks)
    unrun = {
        one: f"{one.source}: {one.check} is expected, and suite {suite.name} does not run it"
        for one in (*given, *kept)
        if one.check not in there
    }
    if refused := next((one for one in given if one in unrun), None):
        hint = f"it runs {', '.join(there)}; take a suite that has {refused.check}"
        raise BadInput(unrun[refused], hint=hint)
    return tuple(one for one in (*given, *kept) if one not in unrun), tuple(unrun.values())


def _subject(one: Reference) -> tuple[str, str, int | None, int | None, int | None, bool]:
    """Return what an expectation is about; its last part tells a lower bound from an upper one."""
    return one.check, one.metric, one.size, one.min_nodes, one.max_nodes, one.lower is not None
