"""Resolve options, machine, site and suite to a run that has no open settings.

This reads files and nothing else (no clock, no host, no random number), so that the same inputs
give the same run everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from accept.config import (
    Loaded,
    Machine,
    Site,
    Suite,
    load_machine,
    load_site,
    load_suite,
    site_expectations,
    site_tools,
)
from accept.config.collectors import planned_collectors
from accept.config.container import Container
from accept.config.expectations import parse_expectation
from accept.config.faults import parse_faults
from accept.config.floors import bounds
from accept.config.hostlist import expand
from accept.config.kubernetes import Kubernetes, PodSettings
from accept.config.machine import check_gpus_per_node
from accept.config.nccl_settings import remarks, without
from accept.config.slurm import Slurm
from accept.config.tool_file import ToolFile
from accept.config.tools import tool_of
from accept.config.versions import supported
from accept.core.catalog.faults import FAULTS, Injector
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.limits import MOST_HOSTS, VARIABLES
from accept.core.plan import (
    Injection,
    Launcher,
    LeftOutNode,
    Plan,
    PlannedMachine,
    Reference,
    Skipped,
    Step,
)
from accept.core.records import Problem
from accept.core.serde import Invalid, escaped, known, read
from accept.core.table import planned_sizes
from accept.core.text import count, duration, format_size
from accept.plan.nccl_env import (
    ProfileChanges,
    Setting,
    changes_of,
    env_of,
    profile_of,
    settings_of,
    user_env_of,
    without_ranks_env,
)
from accept.plan.placement import (
    check_container,
    check_image,
    check_results,
    gpus_of_pod,
    include_nodes,
    pod_notes,
    pod_settings,
)
from accept.plan.selection import EVERYTHING, Selection
from accept.plan.steps import Inputs, fit_budget, missing_gates, steps_of

#: Buffers of the largest message in the memory of a GPU: sent, received, and expected.
_BUFFERS = 3
#: A run's deadline is at least this multiple of its estimate, which leaves time for slow nodes, for
#: starts that take longer than assumed, and for measuring outliers again.
_DEADLINE_FACTOR = 2.0
#: Longest wait for hosts, in seconds, by back end, and with an image, which hosts may first pull.
_START_SECONDS = {"local": 60.0, "ssh": 60.0, "slurm": 120.0, "kubernetes": 900.0}
_START_SECONDS_IMAGE = 900.0
#: The same if a cluster creates nodes for the run: capacity may take hours.
_CAPACITY_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True)
class ClusterPlace:
    """Location of a run in a cluster, from options; None: as in the site file or kubeconfig."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    #: The Helm release; None: one that is named after the attempt.
    release: str | None = None

    def override(self, other: ClusterPlace) -> ClusterPlace:
        """Return this location, with the fields that `other` sets replaced."""
        pairs = ((item.name, getattr(other, item.name)) for item in fields(other))
        return replace(self, **{name: value for name, value in pairs if value is not None})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command line that plans a run."""

    machine: str
    suite: str = "quick"
    #: The path of a site file, or one that was read: a pipe, or a file that is trusted as it was.
    site: str | Loaded[Site] | None = None
    #: Number of nodes; if `hosts` are given, it must be their number.
    nodes: int | None = None
    hosts: tuple[str, ...] = ()
    #: True if `hosts` come from --nodes, so that they are nodes of the site's cluster if it has
    #: one.
    named: bool = False
    backend: str | None = None
    settings: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    #: Name of an NCCL profile of the machine; empty: that of the site.
    nccl_profile: str = ""
    expect: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    seed: int = 1
    #: None: nccl-tests.
    launcher: Launcher | None = None
    #: Rounds of pairs, a number or "auto", instead of the suite's; empty: the suite's.
    rounds: str = ""
    require_all_nodes: bool = False
    busy_ok: bool = False
    start_timeout: float | None = None
    deadline: float | None = None
    budget: float | None = None
    #: The checks or steps that run, and those that do not.
    selection: Selection = EVERYTHING
    #: True if the run ends after the first step with a bad result that no later step can change.
    fail_fast: bool = False
    #: Seconds for which the hosts stay after a failed run.
    hold: float = 0.0
    #: True if the hosts stay after every run.
    hold_always: bool = False
    keep: float | None = None
    inject: tuple[str, ...] = ()
    #: Location of the run in a cluster. It does not change what runs.
    place: ClusterPlace = ClusterPlace()
    #: Settings of the job of Slurm, which replace those of the site file.
    slurm: Slurm = field(default_factory=Slurm)
    #: Image of the run, on any back end; None: as in the site file.
    image: str | None = None
    #: Use every node that matches and is free; the back end of the cluster finds their names.
    all_nodes: bool = False
    #: The nodes that are not free for it, because they are drained, cordoned or down.
    left_out: tuple[LeftOutNode, ...] = ()
    #: Name of the launch; empty: made from the time and a random number. It does not change what
    #: runs.
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A run: the plan, everything that it was made from, and the user's scripts by step id."""

    machine: Machine
    suite: Suite
    site: Site
    backend: str
    hosts: tuple[str, ...]
    #: Environment variables of all ranks by name, most of them settings of NCCL.
    env: Annotated[dict[str, Setting], VARIABLES]
    #: The environment script of the NCCL plugin, sourced before the settings.
    script: str
    #: The NCCL profiles that steps use instead of the run's profile.
    profiles: dict[str, ProfileChanges]
    #: The plan without version and hash, which rendering fills in.
    plan: Plan
    user_scripts: dict[str, str]
    #: GPUs that a pod requests; None: all of a node's.
    gpus_per_pod: int | None = None
    #: Remarks for the user about this combination of settings, one line each.
    notes: tuple[str, ...] = ()
    #: Location of the run in a cluster, as in `Options`.
    place: ClusterPlace = ClusterPlace()
    #: Hosts that were lost in an earlier attempt, with reasons. The plan counts them; `hosts` does
    #: not contain them.
    lost: tuple[Problem, ...] = ()
    #: Folder with the evidence of that attempt, whose finished steps count; empty: none.
    earlier: str = ""

    @property
    def nodes(self) -> int:
        """Return the number of nodes that the run can use."""
        return len(self.hosts) or self.plan.nodes or 1

    @property
    def pod(self) -> PodSettings:
        """Return the settings of the run's pods."""
        return pod_settings(self.machine.kubernetes, self.site.kubernetes, self.gpus_per_pod)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The back end and the hosts of a run."""

    backend: str
    #: Hosts over ssh, or nodes of a cluster; empty if their names are not known.
    hosts: tuple[str, ...]
    #: Number of nodes; None for every free node of a cluster.
    nodes: int | None


def named_backend(options: Options, site: Site) -> str | None:
    """Return the back end that the options or the site file name; a partition is one of Slurm."""
    return options.backend or site.backend or ("slurm" if site.slurm.partition else None)


def choose_target(options: Options, site: Site) -> Target:
    """Choose back end, hosts and number of nodes from the options, then from the site file.

    Makes no connections. Raises BadInput if the back end does not exist, if options contradict it,
    or if a cluster has no image.
    """
    named = named_backend(options, site)
    if named is not None and named not in _START_SECONDS:
        raise BadInput(
            f"back end {escaped(named)!r} does not exist",
            code=Code.OPTION_BACKEND,
            hint=known(named, _START_SECONDS),
        )
    if options.all_nodes and named not in (None, "kubernetes", "slurm"):
        raise BadInput(
            f"--nodes all and back end {named}: only a cluster can list its free nodes",
            code=Code.NODES_ALL,
            hint="name the hosts: --hosts a,b,c",
        )
    if options.all_nodes and options.hosts:
        raise BadInput(
            "--nodes all and --hosts exclude each other",
            code=Code.NODES_ALL,
            hint="leave one out: --hosts names the nodes, --nodes all takes every free one",
        )
    hosts = options.hosts or expand(site.ssh.hosts, of_file=True)
    backend = named or _infer_backend(options, site, hosts)
    if backend != "ssh":
        # The hosts of the site file are for ssh only.
        hosts = options.hosts
    if backend == "local" and hosts:
        raise BadInput(
            "back end local tests only this machine, "
            f"but --hosts names {count(len(hosts), 'host')}",
            code=Code.LOCAL_HOSTS,
            hint="leave the hosts out, or give --backend ssh",
        )
    if backend == "ssh" and not hosts:
        raise BadInput(
            "--backend ssh needs hosts" if options.backend else "back end ssh needs hosts",
            code=Code.SSH_NO_HOSTS,
            hint="give --hosts a,b,c, or ssh.hosts in the site file",
        )
    _check_slurm_options(options, backend)
    if backend == "ssh":
        hosts = _without(hosts, options.slurm.exclude)
    if backend == "slurm" and hosts and options.slurm.exclude:
        # The job excludes them as well, so the back end looks at names of other nodes.
        excluded = expand(options.slurm.exclude)
        hosts = _without(hosts, [host for host in hosts if host in excluded])
    nodes = _count_nodes(options, site, hosts, backend)
    if backend == "kubernetes":
        check_image(options.image or site.kubernetes.image)
        if options.launcher is Launcher.RESIDENT:
            raise BadInput(
                "--launcher resident: the program does not run in pods",
                code=Code.OPTION_BACKEND,
                hint="leave the option out, or test the hosts with --backend ssh or slurm",
            )
    else:
        check_container(site.container, backend)
    return Target(backend=backend, hosts=tuple(hosts), nodes=nodes)


def _infer_backend(options: Options, site: Site, hosts: Sequence[str]) -> str:
    """Return the back end if neither the options nor the site file name one."""
    if options.all_nodes:
        return "kubernetes"
    if hosts and not (options.named and site.kubernetes.image):
        return "ssh"
    # Only a cluster can choose nodes if their number alone is given.
    only_this_machine = options.nodes in (None, 1) and not site.kubernetes.image
    return "local" if only_this_machine else "kubernetes"


def _check_slurm_options(options: Options, backend: str) -> None:
    """Raise BadInput if an option chooses nodes or a job, and this back end would ignore it."""
    ignored = set() if backend == "slurm" else set(_set_options(options.slurm))
    if backend != "local":
        ignored.discard("exclude")
    if ignored:
        raise BadInput(
            f"--{sorted(ignored)[0]} has no effect on back end {backend}",
            code=Code.OPTION_BACKEND,
            hint="leave it out, or give --backend slurm",
        )


def _set_options(slurm: Slurm) -> Iterator[str]:
    """Return the options of the command line that gave these settings."""
    for item in fields(slurm):
        if getattr(slurm, item.name):
            yield "sbatch-arg" if item.name == "sbatch_args" else item.name


def _without(hosts: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts that are not excluded. Raise BadInput if one is unknown, or none is left."""
    names = expand(excluded)
    if unknown := [name for name in names if name not in hosts]:
        raise BadInput(
            f"--exclude: {escaped(unknown[0])!r} is none of the {count(len(hosts), 'host')}",
            code=Code.NODES_MISMATCH,
            hint=known(unknown[0], hosts),
        )
    left = tuple(host for host in hosts if host not in names)
    if not left:
        raise BadInput(
            f"--exclude leaves none of the {count(len(hosts), 'host')}",
            code=Code.SSH_NO_HOSTS,
            hint="exclude fewer hosts",
        )
    return left


def _count_nodes(options: Options, site: Site, hosts: Sequence[str], backend: str) -> int | None:
    """Return the number of nodes; None for every free node of a cluster. Raises BadInput."""
    if options.all_nodes:
        return None
    nodes = len(hosts) or options.nodes
    if nodes is None and backend == "kubernetes":
        nodes = len(site.kubernetes.include_nodes) or None
    if nodes is None and backend == "local":
        nodes = 1
    if nodes is None:
        raise BadInput(
            "the number of nodes is unknown",
            code=Code.NODES_UNKNOWN,
            hint="give --nodes NUMBER, or --hosts a,b,c",
        )
    if not 1 <= nodes <= MOST_HOSTS:
        raise BadInput(
            count(nodes, "node"),
            code=Code.NODES_NUMBER,
            hint=f"from 1 to {MOST_HOSTS} are possible",
        )
    if hosts and options.nodes not in (None, len(hosts)):
        raise BadInput(
            f"--nodes {options.nodes}, but {count(len(hosts), 'host')} named",
            code=Code.NODES_MISMATCH,
            hint="leave --nodes out",
        )
    if backend == "local" and nodes != 1:
        raise BadInput(
            f"{count(nodes, 'node')}, but back end local tests only this machine",
            code=Code.LOCAL_HOSTS,
            hint="name the others: --hosts a,b,c",
        )
    return nodes


def site_of(options: Options) -> Site:
    """Return the site that the options name, with the options applied. Raises BadInput."""
    return _with_options(load_site(options.site).value if options.site else Site(), options)


def _with_options(site: Site, options: Options) -> Site:
    site = replace(site, slurm=site.slurm.override(options.slurm))
    # Slurm reads its own notation.
    if options.slurm.exclude and named_backend(options, site) != "slurm":
        names = (*site.kubernetes.exclude_nodes, *expand(options.slurm.exclude))
        nodes = replace(site.kubernetes, exclude_nodes=tuple(dict.fromkeys(names)))
        site = replace(site, kubernetes=nodes)
    if options.nccl_profile:
        site = replace(site, nccl=replace(site.nccl, profile=options.nccl_profile))
    if not options.image:
        return site
    container = replace(site.container, image=_image(Container, options.image))
    return replace(site, container=container)


def _image(reader: type[Container | Kubernetes], image: str) -> str | None:
    """Return an image of the options, as a site file may name it. Raises BadInput."""
    try:
        return read(reader, {"image": image}).image
    except Invalid as error:
        raise BadInput(
            f"--image: {error.message}",
            code=Code.CONTAINER_IMAGE_NAME,
            hint=error.hint or "example: --image registry.example/accept:1.0",
        ) from None


def _for_pods(
    options: Options, site: Site, machine: Machine, hosts: Sequence[str], nodes: int
) -> Site:
    """Return the site with the image of the options and the nodes of the pods. Raises BadInput."""
    settings = site.kubernetes
    if options.image:
        settings = replace(settings, image=_image(Kubernetes, options.image))
    check_results(site.results, pod_settings(machine.kubernetes, settings))
    return replace(site, kubernetes=include_nodes(settings, names=hosts, nodes=nodes))


def _planned(
    machine: Machine, profile: str, site: Site, used: int | None, nodes: int
) -> PlannedMachine:
    """Return the machine; if a run uses one GPU of each node, without the links that it lacks.

    The nodes may then be virtual machines with one GPU, which have no NVLink and no such NICs.
    """
    planned = machine.planned(profile)
    planned = replace(planned, interface=site.interface or planned.interface)
    if used != 1 or planned.gpus == 1:
        return planned
    devices = min(1, planned.rdma_devices) if nodes != 1 else 0
    return replace(planned, nvlinks=0, rdma_devices=devices)


def _bounds(
    machine: Machine, profile: str, gpus: int | None, steps: Sequence[Step]
) -> Iterator[Reference]:
    """Yield the bounds of the run's profile, and of those that steps use instead."""
    yield from bounds(machine, profile, gpus)
    for name in dict.fromkeys(step.profile for step in steps if step.profile):
        measured = {check for step in steps if step.profile == name for check in step.checks}
        for bound in bounds(machine, name, gpus, of_steps=True):
            if bound.check in measured:
                yield bound


def _tools(suite: Loaded[Suite], site: Loaded[Site] | None) -> dict[str, ToolFile | None]:
    """Return the checks of a suite by name, each with its tool. Raises BadInput."""
    own = site_tools(site)
    tools: dict[str, ToolFile | None] = {}
    for check in dict.fromkeys(entry.check for entry in suite.value.checks):
        tool = tool_of(check, suite.document.name, own)
        tools[tool.value.name if tool else check] = tool.value if tool else None
    return tools


def _bounds_of_tools(
    tools: Mapping[str, ToolFile | None], machine: Machine, steps: Sequence[Step]
) -> Iterator[Reference]:
    """Yield the bounds that the files of tools have for this machine."""
    planned = {step.tool.name for step in steps if step.tool}
    for name, tool in tools.items():
        if tool and name in planned:
            yield from tool.bounds(machine.name)


def _start_seconds(options: Options, site: Site, backend: str) -> float:
    """Return the longest wait for hosts, in seconds."""
    waits = backend == "kubernetes" and site.kubernetes.waits_for_capacity
    return (
        options.start_timeout
        or site.start_timeout
        or (_CAPACITY_SECONDS if waits else 0.0)
        or (_START_SECONDS_IMAGE if site.container.image else _START_SECONDS[backend])
    )


def resolve(options: Options) -> Resolved:
    """Read the files that the options name and plan the run. Raises BadInput."""
    machine = load_machine(options.machine)
    site = load_site(options.site) if options.site else None
    suite = load_suite(options.suite, site_tools(site))
    tools = _tools(suite, site)
    settings = _with_options(site.value if site else Site(), options)
    target = choose_target(options, settings)
    backend, hosts, nodes = target.backend, target.hosts, target.nodes
    if nodes is None:
        raise BadInput(
            "--nodes all: the nodes are unknown",
            code=Code.NODES_UNKNOWN,
            hint="name them: --nodes a,b,c",
        )
    on_pods = backend == "kubernetes"
    if on_pods:
        settings = _for_pods(options, settings, machine.value, hosts, nodes)
    gpus, per_pod = gpus_to_use(machine.value, settings, options), None
    if on_pods:
        check_gpus_per_node(machine.value, settings.kubernetes.gpus_per_pod)
        per_pod, gpus = gpus_of_pod(machine.value, settings.kubernetes, nodes=nodes, used=gpus)
    profile = profile_of(machine.value, settings)
    user_env = user_env_of(settings, options.nccl, machine.value.nccl.profiles, on_pods=on_pods)
    env, script = env_of(machine.value, user_env, profile)
    if on_pods:
        settings = without_ranks_env(settings, machine.value, env)
    expectations, ignored_notes = _expectations(options, site, suite.value.name, tools)
    steps, skipped, scripts = steps_of(
        Inputs(
            machine=machine,
            suite=suite,
            site=site,
            nodes=nodes,
            profile=profile,
            gpus=gpus,
            settings=options.settings,
            rounds=options.rounds,
            seed=options.seed,
            selection=options.selection,
            expectations=expectations,
        )
    )
    ignored_notes += tuple(_unmeasured(expectations, skipped))
    steps, dropped = fit_budget(options.budget, steps)
    collectors = planned_collectors(settings.collectors)
    longest, longer = _deadline(options, settings, suite.value, steps)
    profiles = tuple(dict.fromkeys(step.profile for step in steps if step.profile))
    plan = Plan(
        schema=1,
        version="",
        hash="",
        machine=_planned(machine.value, profile, settings, gpus, nodes),
        profiles={name: machine.value.planned(name) for name in profiles},
        suite=suite.value.name,
        nodes=nodes,
        left_out=options.left_out,
        steps=steps,
        skipped=(*skipped, *dropped),
        references=(
            *expectations,
            *_bounds(machine.value, profile, gpus, steps),
            *_bounds_of_tools(tools, machine.value, steps),
        ),
        supported=supported(machine.value),
        seed=options.seed,
        launcher=Launcher.NCCL_TESTS if on_pods else options.launcher or suite.value.launcher,
        require_all_nodes=options.require_all_nodes or settings.require_all_nodes,
        gpus_used=gpus,
        gpus_given=per_pod,
        busy_ok=options.busy_ok,
        start_seconds=_start_seconds(options, settings, backend),
        deadline_seconds=longest,
        fail_fast=options.fail_fast,
        hold_seconds=options.hold,
        hold_always=options.hold_always,
        keep_seconds=options.keep or settings.keep,
        collectors=collectors,
        collect_seconds=float(sum(one.timeout for one in collectors)),
    )
    limit, enough = settings.slurm.time, plan.enough_minutes
    if backend == "slurm" and limit and limit < 60 * enough:
        text = f"the job's time limit of {duration(limit)} may end this run early"
        longer = (*longer, f"{text}; enough: --time {enough}m")
    run = Resolved(
        machine=machine.value,
        suite=suite.value,
        site=settings,
        backend=backend,
        hosts=hosts,
        env=env,
        script=script,
        profiles={n: changes_of(env, env_of(machine.value, user_env, n)[0]) for n in profiles},
        plan=plan,
        user_scripts=scripts,
        gpus_per_pod=per_pod,
        notes=(
            *filter(None, (machine.value.caveat,)),
            *_gate_notes(suite.value),
            *_memory_notes(machine.value, steps),
            *longer,
            *ignored_notes,
            *remarks(
                {name: setting.value for name, setting in user_env.items()}, machine.value, profile
            ),
            *(pod_notes(machine.value, settings, nodes) if on_pods else ()),
        ),
        place=options.place,
    )
    return with_faults(run, parse_faults(options.inject, hosts, plan.ranks))


def _deadline(
    options: Options, site: Site, suite: Suite, steps: Sequence[Step]
) -> tuple[float, tuple[str, ...]]:
    """Return the longest run in seconds, and a note if it is longer than the suite's.

    Raises BadInput if the user's own deadline is shorter than the estimate.
    """
    estimate = sum(step.estimate for step in steps)
    given = options.deadline or site.deadline
    deadline = given or suite.deadline
    if given is not None and given < estimate:
        raise BadInput(
            f"the run takes about {duration(estimate)}, and the deadline is {duration(given)}",
            code=Code.OPTION_DEADLINE,
            hint="give a longer --deadline (deadline in the site file), or --budget "
            f"{math.ceil(given)}s to leave steps out",
        )
    longest = options.budget or math.inf
    needed = min(math.ceil(estimate * _DEADLINE_FACTOR / 60) * 60.0, longest)
    if given is not None or needed <= deadline:
        return min(deadline, longest), ()
    note = (
        f"the run takes about {duration(estimate)}, so its deadline is {duration(needed)} "
        f"instead of {duration(deadline)} of suite {suite.name}"
    )
    return needed, (note,)


def with_faults(run: Resolved, injected: tuple[Injection, ...]) -> Resolved:
    """Return the run with faults to inject: in its plan, and if they need it in its settings."""
    env, profiles = run.env, run.profiles
    if any(FAULTS[planned.fault].injector is Injector.SETTINGS for planned in injected):
        fault = without("nics")
        env = {**env, **settings_of(fault, "an injected fault")}
        profiles = {name: profile.keeping(fault) for name, profile in profiles.items()}
    return replace(run, env=env, profiles=profiles, plan=replace(run.plan, injected=injected))


def gpus_to_use(machine: Machine, site: Site, options: Options) -> int | None:
    """Return how many GPUs of each node to use, from the option or else the site file; None: all.

    Raises BadInput if the machine cannot run with that number.
    """
    count = site.gpus_per_node if options.gpus_per_node is None else options.gpus_per_node
    check_gpus_per_node(machine, count)
    return count


def _gate_notes(suite: Suite) -> Iterator[str]:
    """Yield a note for each check that is added to the suite."""
    for name in missing_gates(suite.checks):
        reason = "all planned ranks must answer before anything is measured"
        yield f"{name} was added to suite {suite.name}: {reason}"


def _memory_notes(machine: Machine, steps: Iterable[Step]) -> Iterator[str]:
    """Yield the steps whose largest messages do not fit into the memory of a GPU.

    nccl-tests then measures smaller ones only (`src/common.cu`).
    """
    memory = machine.gpus.memory_gb or math.inf
    for step in steps:
        size = max(planned_sizes(step), default=0)
        if _BUFFERS * size > memory * 1e9:
            yield (
                f"{step.id}: {_BUFFERS} buffers of {format_size(size)} do not fit into a GPU of "
                f"{memory} GB, so nccl-tests measures smaller messages only"
            )


def _expectations(
    options: Options,
    site: Loaded[Site] | None,
    suite: str,
    suite_checks: Mapping[str, ToolFile | None],
) -> tuple[tuple[Reference, ...], tuple[str, ...]]:
    """Return the user's expectations for checks of the suite, and a note for each other one.

    A site file serves several suites, so its other expectations are ignored. Raises BadInput if
    `--expect` names a check that the suite does not run.
    """
    tools = (*filter(None, suite_checks.values()), *(site.value.tools.checks if site else ()))
    own = [tool.check() for tool in tools]
    try:
        from_options = [
            parse_expectation(text, source="--expect", own=own) for text in options.expect
        ]
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", code=error.code, hint=error.hint) from None
    # The command line replaces the same side of the same metric in the site file.
    replaced = {_subject(expectation) for expectation in from_options}
    from_site = [
        expectation
        for expectation in (site_expectations(site) if site else ())
        if _subject(expectation) not in replaced
    ]
    kept: list[Reference] = []
    notes: list[str] = []
    for expectation in (*from_options, *from_site):
        check = expectation.check
        if check in suite_checks:
            kept.append(expectation)
            continue
        note = f"{expectation.source}: {check} is expected, but suite {suite} does not run it"
        if expectation in from_options:
            hint = f"it runs {', '.join(suite_checks)}; use a suite that has {check}"
            raise BadInput(note, code=Code.EXPECT_CHECK, hint=hint)
        notes.append(note)
    return tuple(kept), tuple(notes)


def _unmeasured(expectations: Sequence[Reference], skipped: Sequence[Skipped]) -> Iterator[str]:
    """Yield a note for each expectation whose check `--only` or `--skip` leaves out.

    Raises BadInput if it is one of `--expect`.
    """
    options = {s.check: s.reason for s in skipped if s.cause is Cause.DESELECTED and not s.step}
    for check, source in ((e.check, e.source) for e in expectations if e.check in options):
        note = f"{source}: {check} is expected, but {options[check]} leaves it out"
        if source == "--expect":
            hint = f"let {check} run, or leave the expectation out"
            raise BadInput(note, code=Code.EXPECT_CHECK, hint=hint)
        yield note


def _subject(
    expectation: Reference,
) -> tuple[str, str, int | None, int | None, int | None, bool]:
    """Return check, metric, size and nodes of an expectation, and True for a lower bound."""
    return (
        expectation.check,
        expectation.metric,
        expectation.size,
        expectation.min_nodes,
        expectation.max_nodes,
        expectation.lower is not None,
    )
