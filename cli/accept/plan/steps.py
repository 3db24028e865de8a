"""Plan the steps of a suite: parameters, rounds, estimates and time limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accept.config import Loaded, Machine, Site, Suite
from accept.config.fields import Plain
from accept.config.suite import Rounds, SuiteCheck
from accept.config.yaml_file import Document, Keys, parse
from accept.core.catalog.tools import MPIRUN
from accept.core.causes import Cause
from accept.core.checks import load, names
from accept.core.checks.check import Check, launch_seconds
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.groups import waves
from accept.core.judge.robust_stats import DEFICIT, GROSS, MOST_REPEATS, rounds_for
from accept.core.model import GroupKind, PlannedMachine, Skipped, Step
from accept.core.serde import (
    Invalid,
    describe_value,
    dump,
    escaped,
    fields_of,
    known,
    read,
    show_path,
)
from accept.core.text import duration, format_size, parse_size

#: Parameters of a check by their keys.
Params = dict[str, bool | int | float | str]

#: Time limit of one execution if the suite has none: this many times the estimate.
_TIMEOUT_FACTOR = 5.0
#: Shortest such limit, in seconds.
_SHORTEST_TIMEOUT = 120.0


def steps_of(
    machine: Loaded[Machine],
    suite: Loaded[Suite],
    site: Loaded[Site] | None,
    *,
    nodes: int,
    gpus: int | None,
    settings: Sequence[str],
    rounds: str,
    seed: int,
) -> tuple[tuple[Step, ...], tuple[Skipped, ...], dict[str, str]]:
    """Return the steps of a suite, the checks that are skipped, and the user's scripts by step id.

    Consecutive entries with the same launch, groups and parameters become one step. `gpus` is the
    number of GPUs to use on each node (None: all). `settings` (`--set`) and `rounds` come from the
    command line. Raises BadInput.
    """
    overrides = _parse_settings(settings)
    planned = machine.value.planned()
    ranks = gpus or planned.ranks or planned.gpus or 8
    drafts: list[_Draft] = []
    skipped: list[Skipped] = []
    used = set()
    for index, entry in _ordered(suite.value.checks):
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
            site_params = site.value.parameters.get(check.name, {})
            layers.append((site_params, site.document, ("parameters", check.name)))
        params = _params(check, layers, overrides.get(check.name, {}))
        used.add(check.name)
        if entry.script:
            params["name"] = entry.name or params["name"] or Path(entry.script).name
        groups = entry.groups or check.groups[0]
        if groups not in check.groups:
            raise suite.document.bad(
                ("checks", index, "groups"),
                f"{check.name} does not work on {groups}",
                known(groups, check.groups),
                code=Code.SUITE_CONTRADICTION,
            )
        hosts = [f"n{i}" for i in range(nodes)]
        round_count = (
            _rounds(rounds or entry.rounds, planned, nodes) if groups is GroupKind.PAIRS else 1
        )
        planned_waves = waves(groups, hosts, rounds=round_count, seed=seed, ranks=ranks)
        if not planned_waves or (groups is GroupKind.RAILS and ranks == 1):
            reason = "one node" if nodes == 1 else "one rank a node"
            skipped.append(Skipped(check=check.name, reason=f"{groups}: {reason}", optional=True))
            continue
        typed = read(check.params, params)
        largest = max(len(group.hosts) for wave in planned_waves for group in wave)
        work = typed.estimate(largest, ranks) * len(planned_waves)
        wave_start = launch_seconds(largest) if (MPIRUN,) in check.needs else 0.0
        draft = _Draft(
            check=check,
            checks=(check.name,),
            groups=groups,
            params=params,
            rounds=round_count,
            timeout=entry.timeout or 0.0,
            estimate=work + wave_start * len(planned_waves),
            optional=entry.optional,
            user_script=_user_script(suite.document, index, entry.script) if entry.script else "",
        )
        if drafts and drafts[-1].can_also_run(draft):
            last = drafts[-1]
            drafts[-1] = replace(
                last, checks=(*last.checks, check.name), estimate=last.estimate + work
            )
        else:
            drafts.append(draft)
    _refuse_unused(overrides, used)
    # All numbers have the same width, so that sorting step ids gives their order.
    width = len(str(10 * len(drafts)))
    steps = tuple(draft.step(f"{10 * n:0{width}d}") for n, draft in enumerate(drafts, 1))
    pairs = zip(steps, drafts, strict=True)
    scripts = {step.id: draft.user_script for step, draft in pairs if draft.user_script}
    return steps, tuple(skipped), scripts


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """A step that has no number yet."""

    #: The first of its checks.
    check: Check
    checks: tuple[str, ...]
    groups: GroupKind
    params: Params
    rounds: int
    #: The time limit of the suite; 0: none.
    timeout: float
    estimate: float
    optional: bool
    #: Text of the user's script; empty for other checks.
    user_script: str

    def can_also_run(self, other: _Draft) -> bool:
        """Return True if the launch of this step can also run the check of `other`."""
        settings = (self.groups, self.params, self.rounds, self.timeout, self.optional)
        return (
            bool(self.check.launch)
            and self.check.launch == other.check.launch
            and settings
            == (other.groups, other.params, other.rounds, other.timeout, other.optional)
            and other.check.name not in self.checks
        )

    def step(self, number: str) -> Step:
        """Return the step with its id, script and time limit."""
        name = self.check.launch or self.check.name
        groups = "" if self.groups is GroupKind.ALL or self.check.read_only else f"-{self.groups}"
        per_wave = self.estimate / max(1, self.rounds)
        timeout = self.timeout or max(_SHORTEST_TIMEOUT, _TIMEOUT_FACTOR * per_wave)
        return Step(
            id=f"{number}-{name}{groups}",
            checks=self.checks,
            script=f"steps/{number}-{name}{groups}.sh",
            groups=self.groups,
            params=self.params,
            rounds=self.rounds,
            repeats=MOST_REPEATS if self.groups is GroupKind.PAIRS else 0,
            timeout=round(timeout, 1),
            estimate=self.estimate,
            optional=self.optional,
        )


def _rounds(requested: str | int, machine: PlannedMachine, nodes: int) -> int:
    """Return the number of rounds of pairs; for "auto", from the noise and the number of nodes."""
    if requested != "auto":
        try:
            return read(Rounds, int(requested))
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
    read_only = [(i, e) for i, e in numbered if load(e.check).read_only]
    gates = [(i, e) for i, e in numbered if load(e.check).gate]
    rest = [(i, e) for i, e in numbered if not (load(e.check).read_only or load(e.check).gate)]
    return [*read_only, *added, *gates, *rest]


def missing_gates(entries: Sequence[SuiteCheck]) -> tuple[str, ...]:
    """Return the checks that every run has and that the suite lacks."""
    listed = {entry.check for entry in entries}
    return tuple(name for name in names() if load(name).gate and name not in listed)


def _params(
    check: Check,
    layers: Sequence[tuple[Plain, Document, Keys]],
    overrides: Plain,
) -> Params:
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
    merged = {key: value for values, _, _ in layers for key, value in values.items()}
    try:
        params = read(check.params, {**merged, **overrides})
        _check_limits(params, overrides)
    except Invalid as error:
        # An error about several parameters has no path: one of the overrides caused it.
        wrong = [show_path(error.path)] if error.path else list(overrides)
        where = ", ".join(f"{check.name}.{name}" for name in wrong)
        unknown = error.code is Code.KEY_UNKNOWN
        code = Code.PARAM_UNKNOWN if unknown else Code.PARAM_INVALID
        hint = _hint(error, check)
        raise BadInput(f"--set {where}: {error.message}", code=code, hint=hint) from None
    return read(Params, dump(params))


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
    for item, key, _ in fields_of(type(params)):
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


def _user_script(document: Document, index: int, name: str) -> str:
    """Return the text of a user's script. Raises BadInput if it is unreadable or lacks `#!`."""
    path, key = Path(document.name).parent / name, ("checks", index, "script")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise document.bad(key, f"{path} cannot be read: {error}", code=Code.SUITE_SCRIPT) from None
    if not text.startswith("#!"):
        raise document.bad(
            key, f"{path} does not start with #!", "such as #!/bin/sh", code=Code.SUITE_SCRIPT
        )
    return text


def fit_budget(
    budget: float, steps: tuple[Step, ...]
) -> tuple[tuple[Step, ...], tuple[Skipped, ...]]:
    """Return the steps that fit into `budget` seconds by their estimates, and the checks left out.

    The steps with the least worth are left out first. Raises BadInput if no step fits.
    """
    kept = list(steps)
    dropped: list[Skipped] = []
    while kept and sum(step.estimate for step in kept) > budget:
        step = min(kept, key=lambda step: (max(load(c).worth for c in step.checks), -step.estimate))
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
