"""From options, machine, site and suite to a run in which nothing is left to default.

Reads files and touches nothing else: no clock, no host, no random number, so that the same inputs
resolve to the same run everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accept.core.checks import Check, launch_seconds, load
from accept.core.errors import BadInput
from accept.core.likelihood import DEFICIT, GROSS, rounds_for
from accept.core.model import Plan, PlannedMachine, Reference, Skipped, Step
from accept.core.schedule import waves
from accept.core.shape import Invalid, known, plain
from accept.core.typed import dump, read
from accept.hostnames import MOST_HOSTS, expand
from accept.spec import (
    Loaded,
    Machine,
    Site,
    Suite,
    load_machine,
    load_site,
    load_suite,
    merge_parameters,
    site_expectations,
)
from accept.spec.fields import check_env
from accept.spec.floors import bounds
from accept.spec.machine import check_gpus_per_node
from accept.spec.placement import check_results, gpus_of_pod, placed
from accept.spec.plant import read_plants
from accept.spec.settings import remarks
from accept.spec.suite import Rounds, SuiteCheck
from accept.spec.units import parse_expectation
from accept.yamlfile import Document, parse

#: Longest time of one execution, where the suite says none: this many times the estimate.
_PATIENCE, _SHORTEST = 5.0, 120.0
#: Longest wait for hosts, in seconds: those of a cluster pull an image first.
_START = {"local": 60.0, "ssh": 60.0, "kubernetes": 900.0}
#: Those a run can be rendered for.
_BACKENDS = ("local", "ssh", "slurm", "kubernetes")


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


def resolve(options: Options) -> Resolved:
    """Read what the options name and put it together. Raises BadInput."""
    machine = load_machine(options.machine)
    suite = load_suite(options.suite)
    site = load_site(options.site) if options.site else None
    settings = site.value if site else Site()
    hosts = options.hosts or expand(settings.ssh.hosts)
    backend = _backend(options, settings, hosts)
    on_pods = backend == "kubernetes"
    if on_pods:
        # Those of the site file are hosts over ssh.
        hosts = options.hosts
    count = len(hosts) or options.nodes
    if count is None and on_pods:
        count = len(settings.kubernetes.include_nodes) or None
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
    gpus = settings.gpus_per_node if options.gpus_per_node is None else options.gpus_per_node
    per_pod = None
    if on_pods:
        check_results(settings.results, machine.value.kubernetes, settings.kubernetes)
        pods = placed(settings.kubernetes, names=hosts, nodes=count)
        settings = replace(settings, kubernetes=pods)
    for wanted in (gpus, settings.kubernetes.gpus_per_pod if on_pods else None):
        if wanted is not None:
            try:
                check_gpus_per_node(machine.value, wanted)
            except Invalid as error:
                raise BadInput(error.message, hint=error.hint) from None
    if on_pods:
        per_pod, gpus = gpus_of_pod(machine.value, settings.kubernetes, nodes=count, used=gpus)
    profile = _profile(machine.value, settings)
    env, script = _nccl(machine.value, settings, options)
    steps, skipped, scripts = _steps(options, machine, suite, site, nodes=count, gpus=gpus)
    deadline = options.deadline or settings.deadline or suite.value.deadline
    if options.budget is not None:
        steps, dropped = _within(options.budget, steps)
        skipped += dropped
        deadline = min(deadline, options.budget)
    planned = machine.value.planned(profile)
    plan = Plan(
        schema=1,
        version="",
        hash="",
        machine=replace(planned, interface=settings.interface or planned.interface),
        suite=suite.value.name,
        nodes=count,
        steps=steps,
        skipped=skipped,
        references=(*_expectations(options, site), *bounds(machine.value, profile, gpus)),
        seed=options.seed,
        require_all_nodes=options.require_all_nodes or settings.require_all_nodes,
        gpus_used=gpus,
        gpus_given=per_pod,
        busy_ok=options.busy_ok,
        start_seconds=options.start_timeout or settings.start_timeout or _START.get(backend, 300.0),
        deadline_seconds=deadline,
        hold_seconds=options.hold,
        keep_seconds=options.keep or settings.keep,
        planted=read_plants(options.plant, hosts),
    )
    return Resolved(
        machine=machine.value,
        suite=suite.value,
        site=settings,
        backend=backend,
        hosts=tuple(hosts),
        env=env,
        script=script,
        plan=plan,
        user_scripts=scripts,
        gpus_per_pod=per_pod,
        notes=(
            *_notes(suite.value),
            *remarks(_asked(settings, options), machine.value, profile),
            *(_unplaced(settings) if on_pods else ()),
        ),
        place=options.place,
    )


def _backend(options: Options, site: Site, hosts: Sequence[str]) -> str:
    """What obtains the hosts: as named, else what the hosts and the site file speak for."""
    backend = options.backend or site.backend
    if backend is None and hosts and not (options.named and site.kubernetes.image):
        backend = "ssh"
    if backend is None:
        # Nodes without names are a cluster's to give.
        alone = options.nodes in (None, 1) and not site.kubernetes.image
        backend = "local" if alone else "kubernetes"
    if backend not in _BACKENDS:
        raise BadInput(f"there is no back end {plain(backend)!r}", hint=known(backend, _BACKENDS))
    return backend


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


def _profile(machine: Machine, site: Site) -> str:
    """Name of the NCCL profile that the site picks. Raises BadInput."""
    name, profiles = site.nccl.profile, machine.nccl.profiles
    if name not in profiles:
        raise BadInput(
            f"{machine.name} has no NCCL profile {plain(name)!r}", hint=known(name, profiles)
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
            raise BadInput(f"--nccl {plain(text)!r} is no setting", hint="write --nccl KEY=VALUE")
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


def _expectations(options: Options, site: Loaded[Site] | None) -> tuple[Reference, ...]:
    try:
        given = [parse_expectation(text, source="--expect") for text in options.expect]
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", hint=error.hint) from None
    # The command line goes first: what it says replaces what the file says of the same metric.
    taken = {(r.check, r.metric, r.size, r.min_nodes, r.max_nodes) for r in given}
    filed = site_expectations(site) if site else ()
    kept = [r for r in filed if (r.check, r.metric, r.size, r.min_nodes, r.max_nodes) not in taken]
    return (*given, *kept)


def _steps(
    options: Options,
    machine: Loaded[Machine],
    suite: Loaded[Suite],
    site: Loaded[Site] | None,
    *,
    nodes: int,
    gpus: int | None,
) -> tuple[tuple[Step, ...], tuple[Skipped, ...], dict[str, str]]:
    """The suite's entries as steps; neighbours that share launch, groups and parameters are one."""
    changed = _settings(options.settings)
    planned = machine.value.planned()
    ranks = gpus or planned.ranks or planned.gpus or 8
    steps: list[Step] = []
    skipped: list[Skipped] = []
    scripts: dict[str, str] = {}
    entries = _probed_first(suite.value.checks)
    used = set()
    for index, entry in entries:
        check = load(entry.check)
        layers = [
            (
                machine.value.parameters.get(check.name, {}),
                machine.document,
                ("parameters", check.name),
            ),
            (entry.params, suite.document, ("checks", index, "params")),
        ]
        if site:
            of_site = site.value.parameters.get(check.name, {})
            layers.append((of_site, site.document, ("parameters", check.name)))
        params = _params(check, layers, changed.get(check.name, {}))
        used.add(check.name)
        if entry.script:
            params["name"] = entry.name or params["name"] or Path(entry.script).name
        groups = entry.groups or check.groups[0]
        if groups not in check.groups:
            raise suite.document.bad(
                ("checks", index, "groups"),
                f"{check.name} does not work on {groups}",
                known(groups, check.groups),
            )
        names = [f"n{i}" for i in range(nodes)]
        rounds = _rounds(options, entry, planned, nodes) if groups == "pairs" else 1
        planned_waves = waves(groups, names, rounds=rounds, seed=options.seed, ranks=ranks)
        if not planned_waves or (groups == "rails" and ranks == 1):
            few = "one node" if nodes == 1 else "one rank a node"
            skipped.append(Skipped(check=check.name, reason=f"{groups}: {few}", optional=True))
            continue
        typed = read(check.params, params)
        largest = max(len(group.hosts) for wave in planned_waves for group in wave)
        work = check.estimate(typed, largest, ranks) * len(planned_waves)
        launching = launch_seconds(largest) * len(planned_waves) if "mpirun" in check.needs else 0.0
        step = Step(
            id="",
            checks=(check.name,),
            script=check.template,
            groups=groups,
            params=params,
            rounds=rounds,
            timeout=entry.timeout or 0.0,
            estimate=work + launching,
            optional=entry.optional,
        )
        if steps and check.launch and _joins(steps[-1], step, check.launch):
            last = steps[-1]
            steps[-1] = replace(
                last, checks=(*last.checks, check.name), estimate=last.estimate + work
            )
            continue
        steps.append(step)
        if entry.script:
            scripts[str(len(steps) - 1)] = _user_script(suite.document, index, entry.script)
    _refuse_unused(changed, used)
    # As wide as the last one, so that their order is that of their names.
    width = len(str(10 * len(steps)))
    named = tuple(_named(step, f"{10 * n:0{width}d}") for n, step in enumerate(steps, 1))
    return named, tuple(skipped), {named[int(i)].id: text for i, text in scripts.items()}


def _rounds(options: Options, entry: SuiteCheck, machine: PlannedMachine, nodes: int) -> int:
    """As asked for, else as the machine's noise and the number of nodes need."""
    asked: str | int = options.rounds or entry.rounds
    if asked != "auto":
        try:
            return read(Rounds, int(asked))
        except (ValueError, Invalid):
            raise BadInput(
                f"--rounds {plain(str(asked))!r} is no number of rounds",
                hint="write a number from 1 to 64, or auto",
            ) from None
    # Where no speed is promised, what a slow node could lack is more than noise.
    deficit = DEFICIT if machine.speed_promised else GROSS
    return rounds_for(nodes, machine.noise, deficit)


def _probed_first(entries: Sequence[SuiteCheck]) -> list[tuple[int, SuiteCheck]]:
    """Before anything is measured all planned ranks must have answered: `connectivity` leads.

    Only the inventory, which launches nothing, may come before it.
    """
    numbered = list(enumerate(entries))
    quiet = [(i, e) for i, e in numbered if e.check == "inventory"]
    probe = [(i, e) for i, e in numbered if e.check == "connectivity"]
    rest = [(i, e) for i, e in numbered if e.check not in ("inventory", "connectivity")]
    return [*quiet, *(probe or [(0, SuiteCheck(check="connectivity"))]), *rest]


def _joins(last: Step, step: Step, launch: str) -> bool:
    same = (last.groups, last.params, last.rounds, last.timeout, last.optional) == (
        step.groups,
        step.params,
        step.rounds,
        step.timeout,
        step.optional,
    )
    return same and load(last.checks[0]).launch == launch and step.checks[0] not in last.checks


def _named(step: Step, number: str) -> Step:
    name = load(step.checks[0]).launch or step.checks[0]
    groups = "" if step.groups == "all" or step.checks == ("inventory",) else f"-{step.groups}"
    step_id = f"{number}-{name}{groups}"
    per_wave = step.estimate / max(1, step.rounds)
    timeout = step.timeout or max(_SHORTEST, _PATIENCE * per_wave)
    return replace(step, id=step_id, script=f"steps/{step_id}.sh", timeout=round(timeout, 1))


def _params(
    check: Check,
    layers: Sequence[tuple[dict[str, Any], Document, tuple[Any, ...]]],
    changed: dict[str, Any],
) -> dict[str, Any]:
    """The check's parameters, merged in the documented order and read strictly."""
    for values, document, path in layers:
        try:
            read(check.params, values)
        except Invalid as error:
            raise document.bad((*path, *error.path), error.message, error.hint) from None
    merged, _ = merge_parameters(*((values, "") for values, _, _ in layers), (changed, "--set"))
    try:
        data: dict[str, Any] = dump(read(check.params, merged))
        return data
    except Invalid as error:
        raise BadInput(f"--set {check.name}.{error}", hint=error.hint) from None


def _settings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """--set CHECK.PARAM=VALUE, the value read as YAML would read it."""
    result: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        check, dot, param = left.strip().partition(".")
        if not equals or not dot or not param:
            raise BadInput(
                f"--set {plain(text)!r} is no setting",
                hint="write --set CHECK.PARAM=VALUE, such as all-reduce.max=1G",
            )
        result.setdefault(check, {})[param] = parse(f"value: {value}", name="--set").data["value"]
    return result


def _refuse_unused(changed: dict[str, dict[str, Any]], used: set[str]) -> None:
    for check in changed:
        if check not in used:
            raise BadInput(
                f"--set {plain(check)}…: the suite has no such check",
                hint=known(check, sorted(used)),
            )


def _user_script(document: Document, index: int, name: str) -> str:
    path = Path(document.name).parent / name
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise document.bad(("checks", index, "script"), f"{path} cannot be read: {error}") from None
    if not text.startswith("#!"):
        raise document.bad(
            ("checks", index, "script"), f"{path} does not begin with #!", "such as #!/bin/sh"
        )
    return text


def _within(budget: float, steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Skipped, ...]]:
    """The steps whose estimates fit into `budget` seconds; those that add least are left out."""
    kept = list(steps)
    dropped: list[Skipped] = []
    while kept and sum(step.estimate for step in kept) > budget:
        least = min(
            kept, key=lambda step: (max(load(c).worth for c in step.checks), -step.estimate)
        )
        kept.remove(least)
        total = sum(step.estimate for step in kept)
        reason = f"over the budget of {budget:.0f} s (the rest is estimated at {total:.0f} s)"
        dropped += [Skipped(check=c, reason=reason, optional=least.optional) for c in least.checks]
    if not kept:
        raise BadInput(
            f"nothing fits into a budget of {budget:.0f} s", hint="give a longer --budget"
        )
    return tuple(kept), tuple(dropped)
