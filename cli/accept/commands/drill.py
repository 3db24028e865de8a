"""Inject faults one at a time, and report whether the suite catches them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from accept import backends
from accept.commands import judge
from accept.commands import run as commands_run
from accept.commands.drill_faults import FAULTS, Choice, blamed, choose, outcome
from accept.commands.judge import Judged
from accept.commands.plan import planned as planned_run
from accept.commands.plan import prepare
from accept.config.faults import SCHEMA, Drill, Drilled
from accept.core.errors import AcceptError, BadInput, Exit
from accept.core.evidence import write
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.model import Record, Step
from accept.core.serde import dump, escaped, known
from accept.core.text import plain
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.resolve import Options, Resolved, plant
from accept.report.console import Terminal

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


@dataclass(kw_only=True)
class _Drilling:
    """A drill on its way: what was asked for, and what has come of it so far."""

    name: str
    folder: Path
    terminal: Terminal
    options: Options
    run: Resolved
    hosts: tuple[str, ...]
    #: Faults that the user named.
    named: tuple[str, ...]
    clean: Judged | None = None
    drilled: list[Drilled] = field(default_factory=list)

    def result(self, broken_off: str = "", code: int | None = None) -> Drill:
        """What there is to say by now, which is kept at once; `code` where it ended early."""
        clean = self.clean.verdict if self.clean else None
        result = Drill(
            schema=SCHEMA,
            drill=self.name,
            machine=self.run.plan.machine.name,
            suite=self.run.plan.suite,
            backend=self.run.backend,
            seed=self.options.seed,
            hosts=self.hosts,
            clean=clean.headline if clean else "",
            clean_attempt=clean.attempt if clean else "",
            faults=tuple(self.drilled),
            broken_off=broken_off,
            exit=int(_exit(self.drilled, self.named) if code is None else code),
        )
        text = json.dumps(dump(result), indent=1, ensure_ascii=False) + "\n"
        write(self.folder / rundir.DRILL, text)
        return result


def _exit(drilled: Sequence[Drilled], named: Sequence[str]) -> Exit:
    """3: something was missed. 6: nothing was shown, or not all that was asked for by name."""
    results = {one.result for one in drilled}
    if "missed" in results:
        return Exit.REJECTED
    unshown = any(one.result == "left-out" and one.fault in named for one in drilled)
    if "unknown" in results or "caught" not in results or unshown:
        return Exit.INCOMPLETE
    return Exit.PASS


def do_drill(
    options: Options,
    terminal: Terminal,
    *,
    name: str,
    faults: Sequence[str],
    only_needed: bool,
    dry_run: bool,
) -> int:
    """Run the suite clean, then with each fault; 0 where all that were planted were caught."""
    named = _named(faults)
    run, _ = prepare(options, terminal, probe=True)
    plan = planned(run, _choices(run, options, named, _hosts(run)), only_needed=only_needed)
    if dry_run:
        terminal.result(plan, text_of(plan))
        return Exit.PASS
    for line in text_of(plan).splitlines():
        terminal.progress(line)
    if not any(one.planted for one in plan.faults):
        reasons = "; ".join(f"{one.fault}: {one.reason}" for one in plan.faults[:4])
        raise BadInput(
            f"none of these faults can be planted here: {reasons}",
            hint="accept drill --dry-run says what can be",
        )
    name = name or commands_run.new_name()
    folder = rundir.create(name)
    work = _Drilling(
        name=name, folder=folder, terminal=terminal, options=options, run=run,
        hosts=_hosts(run), named=named,
    )  # fmt: skip
    try:
        return _drill(work, only_needed=only_needed)
    except KeyboardInterrupt:
        told = work.result("interrupted", Exit.INTERRUPTED)
        terminal.progress(f"the drill was interrupted; what was done so far:\n{shown(told)}")
        raise
    finally:
        if not any(folder.glob(f"*/{rundir.RUN}")):
            shutil.rmtree(folder, ignore_errors=True)


def _drill(work: _Drilling, *, only_needed: bool) -> int:
    terminal = work.terminal
    work.result()
    terminal.progress(f"clean: the suite without a fault; everything about it: {work.folder}")
    work.clean = clean = _one(work, work.run, "clean")
    if clean.verdict.exit != Exit.PASS:
        reason = f"the clean run did not pass: {clean.verdict.headline}"
        terminal.result(
            work.result(reason, clean.verdict.exit),
            f"{judge.text(clean, terminal)}\n\n{reason}\n"
            "no fault was planted: on hosts that fail without one it would prove nothing",
        )
        return clean.verdict.exit
    _pin(work, clean)
    choices = _choices(work.run, work.options, work.named, work.hosts)
    for number, choice in enumerate(choices, 1):
        if choice.reason:
            left = Drilled(fault=choice.fault, result="left-out", why=choice.reason)
            work.drilled.append(left)
            continue
        at = f"[{number}/{len(choices)}] {choice.planted}"
        terminal.progress(f"{at}: {FAULTS[choice.fault].about}")
        done = _drilled(work, choice, clean, only_needed=only_needed)
        work.drilled.append(done)
        terminal.progress(f"{at}: {done.result}: {done.why}")
        work.result()
    result = work.result()
    terminal.result(result, shown(result))
    return result.exit


def _named(faults: Sequence[str]) -> tuple[str, ...]:
    """The faults that --faults names, each once. Raises BadInput."""
    names = [name.strip() for text in faults for name in text.split(",") if name.strip()]
    for name in names:
        if name not in FAULTS:
            raise BadInput(
                f"there is no fault {escaped(name)!r}", hint=known(name, FAULTS, "faults")
            )
    if faults and not names:
        raise BadInput("--faults names none", hint=f"there are: {', '.join(FAULTS)}")
    return tuple(dict.fromkeys(names))


def _hosts(run: Resolved) -> tuple[str, ...]:
    """The hosts by name, or by number where a cluster is yet to say which they are."""
    if run.backend == "local":
        return (os.uname().nodename,)
    return run.hosts or tuple(f"#{number}" for number in range(run.plan.nodes or 1))


def _choices(
    run: Resolved, options: Options, named: Sequence[str], hosts: tuple[str, ...]
) -> list[Choice]:
    # Which node a pod is on is known once it answers: one that is not to is counted.
    numbers = tuple(f"#{number}" for number in range(len(hosts)))
    counted = run.backend == "kubernetes"
    return [
        choose(
            run.plan,
            fault,
            numbers if counted and fault == "unreachable" else hosts,
            options.seed,
        )
        for fault in FAULTS
        if not named or fault in named
    ]


def _pin(work: _Drilling, clean: Judged) -> None:
    """On a cluster: the faults are for the nodes that passed, by name."""
    if work.run.backend != "kubernetes":
        return
    work.hosts = work.run.hosts or tuple(sorted(clean.verdict.hosts))
    machine = work.options.machine or work.run.plan.machine.name
    options = replace(
        work.options, machine=machine, backend="kubernetes", hosts=work.hosts, named=True,
        nodes=None, all_nodes=False,
    )  # fmt: skip
    work.run, _ = prepare(options, work.terminal, probe=True)


def _one(work: _Drilling, run: Resolved, word: str) -> Judged:
    """One run of the drill to its verdict, with nothing left of it where it was."""
    bundle = render(run)
    run = replace(run, plan=bundle.plan)
    job, place = commands_run.start(
        run, bundle, work.terminal, name=f"{work.name}-{word}", within=work.folder
    )
    try:
        judged = commands_run.finish(job, place, work.terminal, detach=False)
    except AcceptError:
        with contextlib.suppress(AcceptError):
            commands_run.cancel(job, place, work.terminal)
        raise
    if job.place:
        backends.load(job.backend).delete(job, dry_run=False, say=work.terminal.progress)
    return judged


def _drilled(work: _Drilling, choice: Choice, clean: Judged, *, only_needed: bool) -> Drilled:
    began = time.monotonic()
    run = patient(work.run, choice, clean.records, only_needed=only_needed)
    drilled = Drilled(
        fault=choice.fault, planted=choice.planted, steps=choice.steps, result="unknown", why=""
    )
    try:
        judged = _one(work, plant(run, (choice.planted,)), choice.fault)
    except AcceptError as error:
        return replace(drilled, why=f"no verdict: {error.message}")
    found = outcome(choice, judged.plan, judged.records, judged.verdict)
    return replace(
        drilled,
        result=found.result,
        why=found.why,
        blamed=blamed(judged.verdict),
        after=found.after,
        seconds=round(time.monotonic() - began, 1),
        attempt=judged.verdict.attempt,
    )
