"""From the entries of a suite to the steps of a plan: parameters, rounds, estimates and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accept.config import Loaded, Machine, Site, Suite, merge_parameters
from accept.config.suite import Rounds, SuiteCheck
from accept.config.yaml_file import Document, parse
from accept.core.checks import load
from accept.core.checks.check import Check, launch_seconds
from accept.core.errors import BadInput
from accept.core.groups import waves
from accept.core.judge.robust_stats import DEFICIT, GROSS, rounds_for
from accept.core.model import PlannedMachine, Skipped, Step
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
from accept.core.text import format_size, parse_size

#: Longest time of one execution, where the suite says none: this many times the estimate.
_PATIENCE, _SHORTEST = 5.0, 120.0
#: Checks that only read what is there, on every host at once.
_QUIET = ("inventory", "health")


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
    """The suite's entries as steps, what is left out, and the user's own scripts by step.

    Neighbours that share launch, groups and parameters are one step. `gpus` are those used of each
    node (None: all); `settings` and `rounds` are those of the command line. Raises BadInput.
    """
    changed = _settings(settings)
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
        turns = _rounds(rounds or entry.rounds, planned, nodes) if groups == "pairs" else 1
        planned_waves = waves(groups, names, rounds=turns, seed=seed, ranks=ranks)
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
            rounds=turns,
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


def _rounds(asked: str | int, machine: PlannedMachine, nodes: int) -> int:
    """As asked for, else as the machine's noise and the number of nodes need."""
    if asked != "auto":
        try:
            return read(Rounds, int(asked))
        except (ValueError, Invalid):
            raise BadInput(
                f"--rounds {escaped(str(asked))!r} is no number of rounds",
                hint="write a number from 1 to 64, or auto",
            ) from None
    # Where no speed is promised, what a slow node could lack is more than noise.
    deficit = DEFICIT if machine.speed_promised else GROSS
    return rounds_for(nodes, machine.noise, deficit)


def _probed_first(entries: Sequence[SuiteCheck]) -> list[tuple[int, SuiteCheck]]:
    """Before anything is measured all planned ranks must have answered: `connectivity` leads.

    Only inventory and health, which launch nothing, may come before it.
    """
    numbered = list(enumerate(entries))
    quiet = [(i, e) for i, e in numbered if e.check in _QUIET]
    probe = [(i, e) for i, e in numbered if e.check == "connectivity"]
    rest = [(i, e) for i, e in numbered if e.check not in (*_QUIET, "connectivity")]
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
    groups = "" if step.groups == "all" or step.checks[0] in _QUIET else f"-{step.groups}"
    step_id = f"{number}-{name}{groups}"
    per_wave = step.estimate / max(1, step.rounds)
    timeout = step.timeout or max(_SHORTEST, _PATIENCE * per_wave)
    return replace(step, id=step_id, script=f"steps/{step_id}.sh", timeout=round(timeout, 1))


def _params(
    check: Check,
    layers: Sequence[tuple[dict[str, Any], Document, tuple[Any, ...]]],
    changed: dict[str, Any],
) -> dict[str, Any]:
    """Return the check's parameters, merged in the documented order and read strictly."""
    for values, document, path in layers:
        try:
            _check_limits(read(check.params, values), values)
        except Invalid as error:
            raise document.bad((*path, *error.path), error.message, error.hint) from None
    merged, _ = merge_parameters(*((values, "") for values, _, _ in layers), (changed, "--set"))
    try:
        params = read(check.params, merged)
        _check_limits(params, changed)
    except Invalid as error:
        # An error about several parameters has no path: one of those that were set caused it.
        names = [show_path(error.path)] if error.path else list(changed)
        where = ", ".join(f"{check.name}.{name}" for name in names)
        raise BadInput(f"--set {where}: {error.message}", hint=error.hint) from None
    data: dict[str, Any] = dump(params)
    return data


#: Largest value of a parameter by its kind: bytes, count, time in its unit, anything else.
#: Each is far above what a run can use: a larger value is a slip, and its run would never end.
_MOST_BYTES = 16 << 40
_MOST_COUNT, _MOST_OTHER = 1e7, 1e9
_MOST_TIME = {"seconds": 30 * 86400.0, "minutes": 30 * 1440.0}
#: Parameters of any check that are sizes in bytes.
_SIZES = ("min", "max", "most")


def _check_limits(params: Any, given: Mapping[str, Any]) -> None:
    """Raise Invalid for a parameter in `given` that is absurdly large."""
    for item, key, _ in fields_of(type(params)):
        value = getattr(params, item.name)
        limit, shown = 0.0, ""
        if key not in given or isinstance(value, bool):
            continue
        if item.name in _SIZES and isinstance(value, str):
            value, limit, shown = parse_size(value), _MOST_BYTES, format_size(_MOST_BYTES)
        elif isinstance(value, (int, float)):
            most = _MOST_COUNT if isinstance(value, int) else _MOST_OTHER
            limit = _MOST_TIME.get(item.name, most)
            shown = f"{limit:.0f}"
        if limit and value > limit:
            raise Invalid((key,), f"{describe_value(given[key])} is too large", f"at most {shown}")


def _settings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """--set CHECK.PARAM=VALUE, the value read as YAML would read it."""
    result: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        check, dot, param = left.strip().partition(".")
        if not equals or not dot or not param:
            raise BadInput(
                f"--set {escaped(text)!r} is no setting",
                hint="write --set CHECK.PARAM=VALUE, such as all-reduce.max=1G",
            )
        result.setdefault(check, {})[param] = parse(f"value: {value}", name="--set").data["value"]
    return result


def _refuse_unused(changed: dict[str, dict[str, Any]], used: set[str]) -> None:
    for check in changed:
        if check not in used:
            raise BadInput(
                f"--set {escaped(check)}…: the suite has no such check",
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


def within(budget: float, steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Skipped, ...]]:
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
