"""Plan the steps of a suite: parameters, rounds, estimates and time limits."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.config import Loaded, Machine, Site, Suite, site_tools
from accept.config.fields import Plain
from accept.config.floors import bounds
from accept.config.suite import Rounds, SuiteCheck
from accept.config.tool_file import WORTH, GpuMaker
from accept.config.tools import LoadedTool, tool_of
from accept.config.yaml_file import Document, Keys, parse
from accept.core.catalog.metrics import BUSBW
from accept.core.catalog.tools import MPIRUN
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.checks.check import Check, CheckParams, launch_seconds
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.groups import MAX_BLOCK, MAX_CONCURRENT, round_count, waves
from accept.core.judge.bounds import covers_nodes
from accept.core.judge.rounds import DEFICIT, GROSS, MOST_REPEATS, rounds_for
from accept.core.plan import GroupKind, PlannedMachine, Reference, Skipped, Step, Tool
from accept.core.safe_read import open_regular
from accept.core.serde import (
    Invalid,
    describe_value,
    dump,
    escaped,
    keys_of,
    known,
    read,
    show_path,
    to_json,
)
from accept.core.text import count, duration, format_size, parse_size
from accept.plan.selection import EVERYTHING, Part, Selection, select

#: Parameters of a check by their keys.
Params = dict[str, bool | int | float | str]

#: Time limit of one execution if the suite has none: a multiple of a slow machine's estimate.
#: A network that fell back to plain sockets must not hit it before the logs show the reason.
_TIMEOUT_FACTOR = 10.0
#: Shortest such limit, in seconds.
_SHORTEST_TIMEOUT = 120.0
#: Seconds to start a tool, to look at its version, and to remove what it left.
_TOOL_SECONDS = 60.0
#: Assumed seconds until the first output of a group; the coordinator starts many at the same time.
_GROUP_SECONDS = 0.5 / MAX_CONCURRENT


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The machine, suite, options and expectations that steps are planned from."""

    machine: Loaded[Machine]
    suite: Loaded[Suite]
    site: Loaded[Site] | None
    nodes: int
    #: The NCCL profile of the run.
    profile: str
    #: GPUs to use on each node; None: all.
    gpus: int | None
    #: `--set`, `--rounds`, and `--only` and `--skip`.
    settings: Sequence[str] = ()
    rounds: str = ""
    seed: int = 1
    selection: Selection = EVERYTHING
    #: The user's expectations.
    expectations: Sequence[Reference] = ()


def steps_of(inputs: Inputs) -> tuple[tuple[Step, ...], tuple[Skipped, ...], dict[str, str]]:
    """Return the steps of a suite, the checks that are skipped, and the user's scripts by step id.

    Consecutive entries with the same launch, groups and parameters become one step.
    Raises BadInput.
    """
    overrides = _parse_settings(inputs.settings)
    launches: list[list[_Draft]] = []
    skipped: list[Skipped] = []
    used = set()
    own = site_tools(inputs.site)
    for index, entry in _ordered(inputs.suite.value.checks):
        tool = tool_of(entry.check, inputs.suite.document.name, own)
        check = tool.value.check() if tool else REGISTRY[entry.check]
        typed = _params_of(inputs, index, entry, check, overrides.get(check.name, {}))
        used.add(check.name)
        draft = _drafted(inputs, index, entry, check, typed, tool)
        if isinstance(draft, Skipped):
            skipped.append(draft)
        elif launches and _can_share(launches[-1], draft):
            launches[-1].append(draft)
        else:
            launches.append([draft])
    _refuse_unused(overrides, used)
    # All numbers have the same width, so that sorting step ids gives their order.
    width = len(str(10 * len(launches)))
    numbered = [(f"{10 * n:0{width}d}", drafts) for n, drafts in enumerate(launches, 1)]
    parts = [
        Part(
            step=f"{number}-{draft.name}",
            names=(draft.name, *([str(draft.params["name"])] if draft.user_script else [])),
            check=draft.check.name,
            required=draft.check.gate,
        )
        for number, drafts in numbered
        for draft in drafts
    ]
    suite_checks = dict.fromkeys(used)
    kept, left_out = select(parts, inputs.selection, suite_checks)
    steps, scripts = [], {}
    for number, drafts in numbered:
        step_id = f"{number}-{drafts[0].name}"
        kept_drafts = [draft for draft in drafts if (step_id, draft.check.name) in kept]
        if kept_drafts:
            steps.append(_step(number, kept_drafts))
            if steps[-1].tool:
                scripts[step_id] = f"{to_json(steps[-1].tool)}\n"
            elif drafts[0].user_script:
                scripts[step_id] = drafts[0].user_script
    # A check that the user left out needs no other reason.
    gone = {skip.check for skip in left_out if not skip.step}
    others = [skip for skip in skipped if skip.check not in gone]
    return tuple(steps), (*others, *left_out), scripts


def _params_of(
    inputs: Inputs, index: int, entry: SuiteCheck, check: Check, overrides: Plain
) -> CheckParams:
    """Return the parameters of an entry of the suite; `overrides` come from `--set`."""
    machine, suite, site = inputs.machine, inputs.suite, inputs.site
    of_check = ("parameters", check.name)
    of_entry = (suite.document, ("checks", index, "params"))
    layers: list[tuple[Plain, Document, Keys]] = [
        (machine.value.parameters.get(check.name, {}), machine.document, of_check),
        (entry.params, *of_entry),
    ]
    if site:
        layers.append((site.value.parameters.get(check.name, {}), site.document, of_check))
    typed = _params(check, layers, overrides)
    sizes = [e.size for e in inputs.expectations if e.check == check.name and e.size]
    if all(typed.measures(size) for size in sizes):
        return typed
    # The suite leaves out sizes for which the user has expectations.
    layers[1] = (_with_all_sizes(entry.params), *of_entry)
    return _params(check, layers, overrides)


def _drafted(
    inputs: Inputs,
    index: int,
    entry: SuiteCheck,
    check: Check,
    typed: CheckParams,
    tool: LoadedTool | None,
) -> _Draft | Skipped:
    """Return the check of an entry of the suite with its costs, or why it is skipped."""
    machine, document = inputs.machine.value, inputs.suite.document
    nodes, planned = inputs.nodes, machine.planned()
    ranks = inputs.gpus or planned.ranks or planned.gpus or 8
    params = read(Params, dump(typed))
    if entry.script:
        params["name"] = entry.name or params["name"] or Path(entry.script).name
    groups = entry.groups or check.groups[0]
    if groups not in check.groups:
        raise document.bad(
            ("checks", index, "groups"),
            f"{check.name} does not work on {groups}",
            known(groups, check.groups),
            code=Code.SUITE_CONTRADICTION,
        )
    if groups is GroupKind.BLOCKS and nodes <= MAX_BLOCK:
        groups = GroupKind.ALL
    rounds = _rounds(inputs.rounds or entry.rounds, planned, nodes) if groups.of_pairs else 1
    reason = _unsuited(entry, check, machine, nodes)
    hosts = [f"n{i}" for i in range(nodes)]
    schedule = () if reason else waves(groups, hosts, rounds=rounds, seed=inputs.seed, ranks=ranks)
    if not schedule or (groups.of_rails and ranks == 1):
        reason = reason or ("one node" if nodes == 1 else "one rank per node")
        return Skipped(check=check.name, reason=f"{groups}: {reason}", optional=True)
    largest = max(len(group.hosts) for wave in schedule for group in wave)
    profile = entry.profile or inputs.profile
    busbw = _required_busbw(
        machine, check, params, profile, inputs.gpus, nodes=largest, of_rails=groups.of_rails
    )
    per_host = 1 if groups.of_rails else ranks
    planned_tool = _planned(tool, params, entry.timeout) if tool else None
    nics = planned.rdma_devices or ranks
    runs = nics if planned_tool and planned_tool.per_nic else 1
    limit = typed.estimate(largest, per_host) * len(schedule) * runs
    work = limit
    if planned.gpus != 0:
        algbw = busbw and busbw / check.bus_factor
        work = typed.healthy_seconds(largest, per_host, algbw) * len(schedule) * runs
    launch = launch_seconds(largest) if (MPIRUN,) in check.needs else 0.0
    wave_starts = launch * len(schedule)
    group_starts = sum(len(wave) - 1 for wave in schedule) * _GROUP_SECONDS
    return _Draft(
        check=check,
        groups=groups,
        params=params,
        rounds=rounds,
        profile="" if entry.profile == inputs.profile else entry.profile,
        timeout=entry.timeout or 0.0,
        work=work,
        limit=limit,
        start=wave_starts + group_starts,
        restart=wave_starts if check.starts_ranks and planned.gpus != 0 else 0.0,
        optional=entry.optional,
        if_open=entry.if_open,
        user_script=_user_script(document, index, entry.script) if entry.script else "",
        tool=planned_tool,
        runs=runs,
    )


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """A check in a launch, which it may share with others."""

    check: Check
    groups: GroupKind
    params: Params
    rounds: int
    profile: str
    #: The time limit of the suite; 0: none.
    timeout: float
    #: Seconds of its work on a healthy machine, and on a slow one.
    work: float
    limit: float
    #: Seconds to start its ranks as the first check of a launch, and as a later one.
    start: float
    restart: float
    optional: bool
    if_open: bool
    #: Text of the user's script; empty for other checks.
    user_script: str
    #: The program of others that it runs; None: a check of `accept`.
    tool: Tool | None
    #: How often that program runs in a group: once, or for each NIC.
    runs: int

    @property
    def name(self) -> str:
        """Return the name of its step: the launch, groups and profile."""
        name = self.check.launch or self.check.name
        groups = "" if self.groups is GroupKind.ALL or self.check.read_only else f"-{self.groups}"
        return name + groups + (f"-{self.profile}" if self.profile else "")


def _can_share(launch: Sequence[_Draft], other: _Draft) -> bool:
    """Return True if a launch can also run the check of `other`."""
    first = launch[0]
    return (
        bool(first.check.launch)
        and first.check.launch == other.check.launch
        and _launch_settings(first) == _launch_settings(other)
        and all(other.check.name != draft.check.name for draft in launch)
    )


def _step(number: str, launch: Sequence[_Draft]) -> Step:
    """Return the step of a launch with its id, script and time limit."""
    first, *others = launch
    start = first.start + sum(draft.restart for draft in others)
    per_wave = (sum(draft.limit for draft in launch) + start) / max(1, first.rounds)
    timeout = first.timeout or max(_SHORTEST_TIMEOUT, _TIMEOUT_FACTOR * per_wave)
    if first.tool:
        # Its program ends the tool, reports that, and removes what it left.
        timeout = first.tool.timeout * first.runs + _TOOL_SECONDS
    return Step(
        id=f"{number}-{first.name}",
        checks=tuple(draft.check.name for draft in launch),
        script=f"steps/{number}-{first.name}.sh",
        groups=first.groups,
        params=first.params,
        rounds=first.rounds,
        profile=first.profile,
        repeats=MOST_REPEATS if first.groups.of_pairs and first.check.measure else 0,
        timeout=round(timeout, 1),
        estimate=sum(draft.work for draft in launch) + start,
        optional=first.optional,
        if_open=first.if_open,
        tool=first.tool,
    )


def _planned(tool: LoadedTool, params: Params, timeout: float | None) -> Tool:
    """Return the tool with the parameters of the run. Raises BadInput."""
    try:
        return tool.value.planned(params, timeout)
    except Invalid as error:
        raise tool.bad(error) from None


def _launch_settings(draft: _Draft) -> tuple[object, ...]:
    """Return the settings that checks of one launch have in common."""
    return (
        draft.groups,
        draft.params,
        draft.rounds,
        draft.profile,
        draft.timeout,
        draft.optional,
        draft.if_open,
    )


def _required_busbw(
    machine: Machine,
    check: Check,
    params: Params,
    profile: str,
    gpus: int | None,
    *,
    nodes: int,
    of_rails: bool,
) -> float | None:
    """Return the bus bandwidth that a healthy machine reaches at least; None: it is unknown.

    If a bound states what good settings reach, it is that.
    """
    largest = str(params.get("max", ""))
    required = [
        bound.lower if bound.expected is None else bound.expected
        for bound in bounds(machine, profile, gpus)
        if bound.check in (check.name, check.runs.replace("_", "-"))
        and bound.metric == BUSBW.name
        and bound.lower is not None
        and covers_nodes(bound, nodes)
        and bound.per_rail is of_rails
        and (check.runs or bound.size in (None, parse_size(largest)))
    ]
    return max(required, default=None)


def _unsuited(entry: SuiteCheck, check: Check, machine: Machine, nodes: int) -> str:
    """Return why an entry of a suite does not apply to this run; empty: it does."""
    if entry.profile and entry.profile not in machine.nccl.profiles:
        return f"{machine.name} has no NCCL profile {entry.profile}"
    if check.needs_rdma and not machine.may_have_rdma:
        return f"{machine.name} has no RDMA NICs"
    maker = check.needs_gpus_of
    of_another = any((machine.gpus.device or "").startswith(m) for m in GpuMaker if m != maker)
    if maker and (machine.gpus.count == 0 or of_another):
        return f"{machine.name} has no GPUs of {maker}"
    if entry.max_nodes is not None and nodes > entry.max_nodes:
        return f"{count(nodes, 'node')}: only for {entry.max_nodes} or fewer"
    return ""


def _rounds(requested: str | int, machine: PlannedMachine, nodes: int) -> int:
    """Return the number of rounds of pairs; for "auto", from the noise and the number of nodes.

    Few nodes have fewer rounds than requested, because no pair meets twice.
    """
    if requested != "auto":
        try:
            return round_count(nodes, read(Rounds, int(requested)))
        except (ValueError, Invalid):
            raise BadInput(
                f"--rounds {escaped(str(requested))!r} is not a valid number of rounds",
                code=Code.OPTION_ROUNDS,
                hint="write a number from 1 to 64, or auto",
            ) from None
    # Without a speed target only a node that is much slower than its peers is an outlier.
    deficit = DEFICIT if machine.speed_promised else GROSS
    return rounds_for(nodes, machine.noise, deficit)


def _ordered(entries: Sequence[SuiteCheck]) -> list[tuple[int, SuiteCheck]]:
    """Return the entries with their indices in the suite: read-only checks, gates, then the others.

    A gate that the suite lacks is added: all planned ranks must answer before measurements.
    """
    added = [(0, SuiteCheck(check=name)) for name in missing_gates(entries)]
    numbered = list(enumerate(entries))
    read_only = [(i, e) for i, e in numbered if e.check in REGISTRY and REGISTRY[e.check].read_only]
    gates = [(i, e) for i, e in numbered if e.check in REGISTRY and REGISTRY[e.check].gate]
    rest = [one for one in numbered if one not in (*read_only, *gates)]
    return [*read_only, *added, *gates, *rest]


def missing_gates(entries: Sequence[SuiteCheck]) -> tuple[str, ...]:
    """Return the checks that every run has and that the suite lacks."""
    listed = {entry.check for entry in entries}
    return tuple(name for name in REGISTRY if REGISTRY[name].gate and name not in listed)


def _params(
    check: Check,
    layers: Sequence[tuple[Plain, Document, Keys]],
    overrides: Plain,
) -> CheckParams:
    """Return the parameters of a check, merged in the documented order and validated.

    Each layer holds parameters, their file, and their path in it; `overrides` come from `--set`.
    """
    for values, document, path in layers:
        try:
            _check_limits(read(check.params, values), values)
        except Invalid as error:
            raise document.bad(
                (*path, *error.path), error.message, _hint(error, check), code=error.code
            ) from None
    merged: Plain = {}
    for values, _, _ in layers:
        merged = check.params.merged(merged, values)
    merged = check.params.merged(merged, overrides)
    try:
        params = read(check.params, merged)
        _check_limits(params, overrides)
        _check_planned(params)
    except Invalid as error:
        # An error about several parameters has no path: one of the overrides caused it, if any.
        wrong = [show_path(error.path)] if error.path else list(overrides)
        where = ", ".join(f"{check.name}.{name}" for name in wrong)
        source = f"--set {where}" if wrong else f"parameters of {check.name}"
        unknown = error.code is Code.KEY_UNKNOWN
        code = Code.PARAM_UNKNOWN if unknown else Code.PARAM_INVALID
        hint = _hint(error, check)
        raise BadInput(f"{source}: {error.message}", code=code, hint=hint) from None
    return params


def _check_planned(params: CheckParams) -> None:
    """Raise Invalid for parameters that no planned run may have."""
    try:
        params.check_planned()
    except ValueError as error:
        raise Invalid((), str(error)) from None


def _with_all_sizes(params: Plain) -> Plain:
    return {key: value for key, value in params.items() if key not in ("sizes", "factor")}


def _hint(error: Invalid, check: Check) -> str:
    """Return the hint of an error; for an unknown parameter, also the command that explains all."""
    if error.code is not Code.KEY_UNKNOWN:
        return error.hint
    return f"{error.hint}; more about them: accept show check {check.name}"


#: Largest value of a parameter: of sizes, integers, other numbers, and times in their unit.
#: A larger value is a typing error, and its run would never end.
_MAX_BYTES = 16 << 40
_MAX_COUNT, _MAX_NUMBER = 1e7, 1e9
_MAX_TIME = {"seconds": 30 * 86400.0, "minutes": 30 * 1440.0}
#: Parameters of any check that are sizes in bytes.
_SIZE_PARAMETERS = ("min", "max", "most")


def _check_limits(params: object, given: Plain) -> None:
    """Raise Invalid if a parameter in `given` is above the limit of its kind."""
    for item, key in keys_of(type(params)):
        value = getattr(params, item.name)
        limit, shown = 0.0, ""
        if key not in given or isinstance(value, bool):
            continue
        if item.name in _SIZE_PARAMETERS and isinstance(value, str):
            value, limit, shown = parse_size(value), _MAX_BYTES, format_size(_MAX_BYTES)
        elif isinstance(value, (int, float)):
            default = _MAX_COUNT if isinstance(value, int) else _MAX_NUMBER
            limit = _MAX_TIME.get(item.name, default)
            shown = f"{limit:.0f}"
        if limit and value > limit:
            raise Invalid((key,), f"{describe_value(given[key])} is too large", f"at most {shown}")


def _parse_settings(texts: Sequence[str]) -> dict[str, Plain]:
    """Parse `--set CHECK.PARAM=VALUE`, with the value as YAML; return parameters by check."""
    result: dict[str, Plain] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        check, dot, param = left.strip().partition(".")
        if not equals or not dot or not param:
            raise BadInput(
                f"--set {escaped(text)!r} is not a valid setting",
                code=Code.PARAM_SYNTAX,
                hint="write --set CHECK.PARAM=VALUE, such as all-reduce.max=1G",
            )
        result.setdefault(check, {})[param] = parse(f"value: {value}", name="--set").data["value"]
    return result


def _refuse_unused(overrides: dict[str, Plain], used: set[str]) -> None:
    """Raise BadInput if `--set` names a check that no step runs."""
    for check in overrides:
        if check not in used:
            raise BadInput(
                f"--set {escaped(check)}…: the suite has no such check",
                code=Code.PARAM_CHECK,
                hint=known(check, sorted(used)),
            )


#: Maximum size of a user's script in bytes: it travels to every host.
_MAX_SCRIPT = 256 << 10


def _user_script(document: Document, index: int, name: str) -> str:
    """Return the text of a user's script. Raises BadInput if it is unreadable or lacks `#!`."""
    path, key = Path(document.name).parent / name, ("checks", index, "script")
    try:
        with open_regular(path, follow=True) as file:
            content = file.read(_MAX_SCRIPT + 1)
        if len(content) > _MAX_SCRIPT:
            raise OSError(errno.EFBIG, f"it has more than {_MAX_SCRIPT >> 10} KiB")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise document.bad(key, f"{path} cannot be read: {error}", code=Code.SUITE_SCRIPT) from None
    if not text.startswith("#!"):
        raise document.bad(
            key, f"{path} does not start with #!", "such as #!/bin/sh", code=Code.SUITE_SCRIPT
        )
    return text


def fit_budget(
    budget: float | None, steps: tuple[Step, ...]
) -> tuple[tuple[Step, ...], tuple[Skipped, ...]]:
    """Return the steps that fit into `budget` seconds by their estimates, and the checks left out.

    The steps with the least worth are left out first; with None, none. Raises BadInput if no step
    fits.
    """
    if budget is None:
        return steps, ()
    kept = list(steps)
    dropped: list[Skipped] = []
    while kept and sum(step.estimate for step in kept) > budget:
        step = min(kept, key=lambda step: (max(_worth(c) for c in step.checks), -step.estimate))
        kept.remove(step)
        total = sum(step.estimate for step in kept)
        rest = duration(total)
        reason = f"over the budget of {duration(budget)} (the rest is estimated at {rest})"
        dropped += [
            Skipped(check=check, reason=reason, cause=Cause.OVER_BUDGET, optional=step.optional)
            for check in step.checks
        ]
    if not kept:
        raise BadInput(
            f"no step fits into a budget of {duration(budget)}",
            code=Code.OPTION_BUDGET,
            hint="give a longer --budget",
        )
    return tuple(kept), tuple(dropped)


def _worth(check: str) -> int:
    return REGISTRY[check].worth if check in REGISTRY else WORTH
