"""What a drill is to do, before it does it, and what it did, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accept.commands.drill_faults import FAULTS, Choice
from accept.commands.plan import planned as planned_run
from accept.config.drill import Drill
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.model import Record, Step
from accept.core.text import plain
from accept.plan.resolve import Resolved

#: Of a run that waits for what never comes: this many times what the clean run took, and no less.
_PATIENCE = 3.0
_LEAST = 45.0
#: What every run has, whichever of its steps are to see the fault.
_ALWAYS = ("inventory", "connectivity")


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """One fault of the plan; with a `reason` it is left out."""

    fault: str
    about: str
    planted: str
    steps: tuple[str, ...]
    reason: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What `accept drill --dry-run` shows."""

    machine: str
    suite: str
    backend: str
    nodes: int | None
    hosts: tuple[str, ...]
    seed: int
    clean_seconds: float
    faults: tuple[PlannedFault, ...]
    seconds: float
    gpu_hours: float | None


def planned(run: Resolved, choices: Sequence[Choice], *, only_needed: bool) -> Planned:
    """The plan of a drill; `seconds` are estimates."""
    whole = planned_run(run)
    faults = tuple(
        PlannedFault(
            fault=one.fault,
            about=FAULTS[one.fault].about,
            planted=one.planted,
            steps=one.steps,
            reason=one.reason,
            seconds=0.0 if one.reason else round(_estimate(run, one, only_needed=only_needed), 1),
        )
        for one in choices
    )
    seconds = round(whole.seconds + sum(one.seconds for one in faults), 1)
    hours = whole.gpu_hours
    return Planned(
        machine=whole.machine,
        suite=whole.suite,
        backend=whole.backend,
        nodes=whole.nodes,
        hosts=whole.hosts,
        seed=run.plan.seed,
        clean_seconds=whole.seconds,
        faults=faults,
        seconds=seconds,
        gpu_hours=None if hours is None else round(hours * seconds / max(whole.seconds, 1.0), 2),
    )


def _estimate(run: Resolved, choice: Choice, *, only_needed: bool) -> float:
    """Seconds of one drilled run. What waits for a rank that hangs waits for all of its time."""
    total = 0.0
    for step in _steps(run, choice, only_needed=only_needed):
        waits = choice.fault == "hang" and step.id in choice.steps
        each = step.estimate / max(1, step.rounds)
        total += step.rounds * _patient(each) if waits else step.estimate
    return total + (_LEAST if choice.fault == "unreachable" else 0.0)


def _patient(seconds: float) -> float:
    return max(_LEAST, _PATIENCE * seconds)


def _steps(run: Resolved, choice: Choice, *, only_needed: bool) -> tuple[Step, ...]:
    """The whole suite, or what every run has and the cheapest step that is to see the fault."""
    steps = run.plan.steps
    if not only_needed:
        return steps
    seeing = [step for step in steps if step.id in choice.steps]
    # No estimate is good to less than a second; of equals the first.
    cheapest = min(seeing, key=lambda step: round(step.estimate), default=None)
    return tuple(s for s in steps if s is cheapest or set(s.checks) & set(_ALWAYS))


def patient(
    run: Resolved, choice: Choice, clean: Sequence[Record], *, only_needed: bool
) -> Resolved:
    """The run as it is drilled: the steps that are wanted, and waits as the clean run needs them.

    A rank that hangs costs its step's whole time, and a host that is away that of the start.
    """
    plan = run.plan
    steps = _steps(run, choice, only_needed=only_needed)
    took: dict[str, float] = {}
    for record in clean:
        took[record.step] = max(took.get(record.step, 0.0), record.end - record.start)
    if choice.fault == "hang":
        steps = tuple(
            replace(step, timeout=min(step.timeout, round(_patient(took[step.id]), 1)))
            if step.id in took
            else step
            for step in steps
        )
    start = plan.start_seconds
    if choice.fault == "unreachable":
        start = min(start, _patient(took.get(HOSTS_STEP, start)))
    return replace(run, plan=replace(plan, steps=steps, start_seconds=start))


def text_of(plan: Planned) -> str:
    """The plan of a drill as lines."""
    where = f"{plan.nodes} node{'s' * (plan.nodes != 1)} over {plan.backend}"
    lines = [
        f"drill of suite {plan.suite} on machine {plan.machine}, {where}, seed {plan.seed}",
        f"  clean: about {plan.clean_seconds:.0f} s",
    ]
    for one in plan.faults:
        if one.reason:
            lines.append(f"  left out: {one.fault}: {one.reason}")
            continue
        steps = ", ".join(one.steps) or "finding the hosts"
        lines.append(
            f"  {plain(one.planted)}: {one.about}; to be seen by {steps}; about {one.seconds:.0f} s"
        )
    lines.append("each fault ends with its run, and nothing of it stays")
    hours = f", {plan.gpu_hours} GPU-hours" if plan.gpu_hours else ""
    lines.append(f"estimated: {plan.seconds:.0f} s{hours}")
    return "\n".join(lines)


def headline(drill: Drill) -> str:
    """What a drill came to, in one line."""
    results = [one.result for one in drill.faults]
    tried = len(results) - results.count("left-out")
    parts = [f"{results.count('caught')} of {tried} caught"]
    missed = [one.fault for one in drill.faults if one.result == "missed"]
    parts += [f"missed: {', '.join(missed)}"] if missed else []
    unknown = results.count("unknown")
    parts += [f"{unknown} not known"] if unknown else []
    left = results.count("left-out")
    parts += [f"{left} left out"] if left else []
    parts += [drill.broken_off] if drill.broken_off else []
    return f"drill: {'; '.join(parts)}"


def shown(drill: Drill) -> str:
    """What a drill came to, as a table."""
    rows = [("FAULT", "ON", "RESULT", "AFTER", "WHAT WAS SEEN")]
    for one in drill.faults:
        on = one.planted.partition("@")[2] or "-"
        after = "-" if one.after is None else f"{one.after:.1f} s"
        rows.append((one.fault, plain(on), one.result, after, plain(one.why)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]
    about = (
        f"machine {drill.machine}, suite {drill.suite}, {len(drill.hosts)} "
        f"host{'s' * (len(drill.hosts) != 1)} over {drill.backend}, seed {drill.seed}, "
        f"drill {drill.drill}, exit {drill.exit}"
    )
    return "\n".join((headline(drill), about, "", *lines))
