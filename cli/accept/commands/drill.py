"""Inject faults one at a time, and report whether the suite catches them."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from accept.commands import run as commands_run
from accept.commands.drill_faults import (
    SCHEMA,
    Choice,
    Drill,
    Drilled,
    DrillReason,
    Reason,
    Result,
    choose,
    outcome,
)
from accept.commands.judged import Judged
from accept.commands.plan import planned as planned_run
from accept.commands.plan import prepare, prepare_on
from accept.commands.report import screen
from accept.core.catalog.faults import FAULTS, Detection
from accept.core.checks import checks_of
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadInput, Exit, Terminated
from accept.core.evidence import write
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.plan import Step
from accept.core.records import Record
from accept.core.serde import dump, escaped, known
from accept.core.text import count, duration, plain
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.resolve import Options, Resolved, with_faults
from accept.report.console import Table, Terminal

#: A step or start that a fault blocks is ended after this multiple of its time in the clean run, …
_TIMEOUT_FACTOR = 3.0
#: … but after no fewer seconds than this.
_MIN_TIMEOUT = 45.0


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """One fault of a drill's plan; it is left out if it has a `code` and a `reason`."""

    fault: str
    about: str
    injected: str
    steps: tuple[str, ...]
    reason: str
    code: DrillReason | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PlannedDrill:
    """The plan of a drill, as `accept drill --dry-run` shows it."""

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


def planned(run: Resolved, choices: Sequence[Choice], *, only_needed: bool) -> PlannedDrill:
    """Return the plan of a drill; all times are estimates in seconds."""
    clean = planned_run(run)
    faults = tuple(
        PlannedFault(
            fault=choice.fault.name,
            about=choice.fault.about,
            injected=choice.injected,
            steps=choice.steps,
            reason=choice.reason.text if choice.reason else "",
            code=choice.reason.code if choice.reason else None,
            seconds=round(_estimate(run, choice, only_needed=only_needed), 1),
        )
        for choice in choices
    )
    seconds = round(clean.seconds + sum(fault.seconds for fault in faults), 1)
    hours = clean.gpu_hours
    return PlannedDrill(
        machine=clean.machine,
        suite=clean.suite,
        backend=clean.backend,
        nodes=clean.nodes,
        hosts=clean.hosts,
        seed=run.plan.seed,
        clean_seconds=clean.seconds,
        faults=faults,
        seconds=seconds,
        gpu_hours=None if hours is None else round(hours * seconds / max(clean.seconds, 1.0), 2),
    )


def _estimate(run: Resolved, choice: Choice, *, only_needed: bool) -> float:
    """Return the estimated seconds of the run with one fault; 0 if the fault is left out.

    A hanging rank makes every round of its steps take until the timeout.
    """
    if choice.reason:
        return 0.0
    total = 0.0
    for step in _steps(run, choice, only_needed=only_needed):
        hangs = choice.fault.hangs and step.id in choice.steps
        round_seconds = step.estimate / max(1, step.rounds)
        total += step.rounds * _timeout(round_seconds) if hangs else step.estimate
    return total + (_MIN_TIMEOUT if choice.fault.detection is Detection.START else 0.0)


def _timeout(clean_seconds: float) -> float:
    return max(_MIN_TIMEOUT, _TIMEOUT_FACTOR * clean_seconds)


def _steps(run: Resolved, choice: Choice, *, only_needed: bool) -> tuple[Step, ...]:
    """Return all steps, or with `only_needed` the cheapest that detects the fault.

    Steps that show the GPUs of the hosts are always included.
    """
    steps = run.plan.steps
    if not only_needed:
        return steps
    # A step that waits for a question of another one would never run alone.
    detecting = [step for step in steps if step.id in choice.steps and not step.if_open]
    # Estimates are not accurate to a second, so equal ones keep their order.
    cheapest = min(detecting, key=lambda step: round(step.estimate), default=None)
    return tuple(s for s in steps if s is cheapest or any(c.shows_gpus for c in checks_of(s)))


def with_fault_timeouts(
    run: Resolved, choice: Choice, clean: Sequence[Record], *, only_needed: bool
) -> Resolved:
    """Return the run for one fault: its steps, with timeouts derived from the clean run.

    A rank that hangs blocks its step until the timeout, and a missing host blocks the start.
    """
    plan = run.plan
    steps = _steps(run, choice, only_needed=only_needed)
    clean_seconds: dict[str, float] = {}
    for record in clean:
        duration = record.end - record.start
        clean_seconds[record.step] = max(clean_seconds.get(record.step, 0.0), duration)
    if choice.fault.hangs:
        steps = tuple(
            replace(step, timeout=min(step.timeout, round(_timeout(clean_seconds[step.id]), 1)))
            if step.id in clean_seconds
            else step
            for step in steps
        )
    start = plan.start_seconds
    if choice.fault.detection is Detection.START:
        start = min(start, _timeout(clean_seconds.get(HOSTS_STEP, start)))
    return replace(run, plan=replace(plan, steps=steps, start_seconds=start))


def plan_text(plan: PlannedDrill) -> str:
    """Return the plan of a drill as lines of text."""
    nodes = "all free nodes" if plan.nodes is None else count(plan.nodes, "node")
    lines = [
        (
            f"drill of suite {plan.suite} on machine {plan.machine}, {nodes} over {plan.backend}, "
            f"seed {plan.seed}"
        ),
        f"  clean: about {duration(plan.clean_seconds)}",
    ]
    for fault in plan.faults:
        if fault.reason:
            lines.append(f"  left out: {fault.fault}: {fault.reason}")
            continue
        steps = ", ".join(fault.steps) or "the search for hosts"
        lines.append(
            f"  {plain(fault.injected)}: {fault.about}; should be detected by {steps}; "
            f"about {duration(fault.seconds)}"
        )
    lines.append("each fault ends with its run and leaves nothing behind")
    hours = f", {plan.gpu_hours} GPU-hours" if plan.gpu_hours else ""
    lines.append(f"estimated: {duration(plan.seconds)}{hours}")
    return "\n".join(lines)


def summary(drill: Drill) -> str:
    """Return the headline of a drill's result, and where it ran."""
    about = (
        f"machine {drill.machine}, suite {drill.suite}, "
        f"{count(len(drill.hosts), 'host')} over {drill.backend}, seed {drill.seed}, "
        f"drill {drill.drill}, exit {drill.exit}"
    )
    return f"{drill.headline}\n{about}"


def result_table(drill: Drill) -> Table:
    """Return the result of each fault of a drill."""
    rows = []
    for fault in drill.faults:
        after = "-" if fault.after is None else duration(fault.after)
        target = plain(fault.target or "-")
        rows.append((fault.fault, target, fault.result, after, plain(fault.why)))
    return Table(header=("FAULT", "ON", "RESULT", "AFTER", "DETAILS"), rows=rows)


@dataclass(kw_only=True)
class _Drilling:
    """The state of a drill: the request, and the results so far."""

    name: str
    folder: Path
    terminal: Terminal
    options: Options
    run: Resolved
    hosts: tuple[str, ...]
    #: Faults that --faults names; empty: all.
    named: tuple[str, ...]
    only_needed: bool
    clean: Judged | None = None
    drilled: list[Drilled] = field(default_factory=list)

    def result(self, interruption: str = "", code: int | None = None) -> Drill:
        """Write the result so far to the drill's folder, and return it.

        `code` is the exit code of a drill that ended early.
        """
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
            interruption=interruption,
            exit=int(_exit(self.drilled, self.named) if code is None else code),
        )
        text = json.dumps(dump(result), indent=1, ensure_ascii=False) + "\n"
        write(self.folder / rundir.DRILL, text)
        return result


def _exit(drilled: Sequence[Drilled], named: Sequence[str]) -> Exit:
    """Return 3 if a fault was missed, 6 if none was caught or a requested fault has no result."""
    results = {fault.result for fault in drilled}
    if Result.MISSED in results:
        return Exit.REJECTED
    named_left_out = any(f.result is Result.LEFT_OUT and f.fault in named for f in drilled)
    if Result.UNKNOWN in results or Result.CAUGHT not in results or named_left_out:
        return Exit.INCOMPLETE
    return Exit.PASS


def do_drill(
    options: Options,
    terminal: Terminal,
    *,
    faults: Sequence[str],
    only_needed: bool,
    dry_run: bool,
) -> int:
    """Run the suite without faults, then with each fault.

    Return 0 if every injected fault was caught, else see `_exit`. A clean run that does not pass
    ends the drill with its own exit code.
    """
    named = _named(faults)
    run, _ = prepare(options, terminal)
    plan = planned(run, _choices(run, options, named, _hosts(run)), only_needed=only_needed)
    if dry_run:
        terminal.result(plan, plan_text(plan))
        return Exit.PASS
    for line in plan_text(plan).splitlines():
        terminal.progress(line)
    if not any(fault.injected for fault in plan.faults):
        reasons = "; ".join(f"{fault.fault}: {fault.reason}" for fault in plan.faults[:4])
        raise BadInput(
            f"none of these faults can be injected here: {reasons}",
            code=Code.DRILL_NOTHING,
            hint="the possible faults: accept drill --dry-run",
        )
    name = options.attempt or commands_run.new_name()
    folder = rundir.create(name)
    drilling = _Drilling(
        name=name, folder=folder, terminal=terminal, options=options, run=run,
        hosts=_hosts(run), named=named, only_needed=only_needed,
    )  # fmt: skip
    try:
        return _drill(drilling)
    except KeyboardInterrupt as interrupt:
        code = Exit.TERMINATED if isinstance(interrupt, Terminated) else Exit.CTRL_C
        result = drilling.result("interrupted", code)
        terminal.progress("the drill was interrupted; results so far:")
        for line in (*summary(result).splitlines(), *result_table(result).plain().splitlines()):
            terminal.progress(line)
        raise
    finally:
        if not any(folder.glob(f"*/{rundir.RUN}")):
            shutil.rmtree(folder, ignore_errors=True)


def _drill(drilling: _Drilling) -> int:
    terminal = drilling.terminal
    drilling.result()
    terminal.progress(f"clean: the suite without a fault; all files: {drilling.folder}")
    drilling.clean = clean = _run_to_verdict(drilling, drilling.run, "clean")
    if clean.verdict.exit != Exit.PASS:
        reason = f"the clean run did not pass: {clean.verdict.headline}"
        terminal.result(
            drilling.result(reason, clean.verdict.exit),
            f"{screen(clean, terminal)}\n\n{reason}\n"
            "no fault was injected: on hosts that fail without one, a drill proves nothing",
        )
        return clean.verdict.exit
    _pin_hosts(drilling, clean)
    choices = _choices(drilling.run, drilling.options, drilling.named, drilling.hosts)
    for number, choice in enumerate(choices, 1):
        if choice.reason:
            drilling.drilled.append(choice.ended(Result.LEFT_OUT, choice.reason))
            continue
        label = f"[{number}/{len(choices)}] {choice.injected}"
        terminal.progress(f"{label}: {choice.fault.about}")
        drilled = _drill_fault(drilling, choice, clean)
        drilling.drilled.append(drilled)
        terminal.progress(f"{label}: {drilled.result}: {drilled.why}")
        drilling.result()
    result = drilling.result()
    terminal.result(result, summary(result), "", result_table(result))
    return result.exit


def _named(faults: Sequence[str]) -> tuple[str, ...]:
    """Return the faults that --faults names, each once. Raises BadInput."""
    names = [name.strip() for text in faults for name in text.split(",") if name.strip()]
    for name in names:
        if name not in FAULTS:
            raise BadInput(
                f"--faults: fault {escaped(name)!r} does not exist",
                code=Code.FAULT_UNKNOWN,
                hint=known(name, FAULTS, "faults"),
            )
    if faults and not names:
        raise BadInput(
            "--faults is empty",
            code=Code.FAULT_UNKNOWN,
            hint=f"name at least one of: {', '.join(FAULTS)}",
        )
    return tuple(dict.fromkeys(names))


def _hosts(run: Resolved) -> tuple[str, ...]:
    """Return the hosts by name, or by number if the cluster has yet to choose them."""
    if run.backend == "local":
        return (os.uname().nodename,)
    return run.hosts or tuple(f"#{number}" for number in range(run.plan.nodes or 1))


def _choices(
    run: Resolved, options: Options, named: Sequence[str], hosts: tuple[str, ...]
) -> list[Choice]:
    # The node of a pod is unknown until the pod answers, which an unreachable one never does. So
    # its number is used.
    numbers = tuple(f"#{number}" for number in range(len(hosts)))
    is_cluster = run.backend == "kubernetes"
    return [
        choose(
            run.plan,
            fault,
            numbers if is_cluster and fault.detection is Detection.START else hosts,
            options.seed,
        )
        for fault in FAULTS.values()
        if not named or fault.name in named
    ]


def _pin_hosts(drilling: _Drilling, clean: Judged) -> None:
    """Plan the next runs on a cluster for the nodes of the clean run, by name."""
    if drilling.run.backend == "kubernetes":
        drilling.hosts = drilling.run.hosts or tuple(sorted(clean.verdict.hosts))
        drilling.run, _ = prepare_on(
            drilling.hosts, drilling.run, drilling.options, drilling.terminal
        )


def _run_to_verdict(drilling: _Drilling, run: Resolved, suffix: str) -> Judged:
    """Do one run of the drill, judge it, and remove it from the hosts or the cluster."""
    bundle = render(run)
    run = replace(run, plan=bundle.plan)
    return commands_run.run_to_verdict(
        run, bundle, drilling.terminal, name=f"{drilling.name}-{suffix}", within=drilling.folder
    )


def _drill_fault(drilling: _Drilling, choice: Choice, clean: Judged) -> Drilled:
    """Run the suite with one fault, and report whether the fault was caught."""
    began = time.monotonic()
    assert choice.injection is not None
    run = with_fault_timeouts(drilling.run, choice, clean.records, only_needed=drilling.only_needed)
    try:
        judged = _run_to_verdict(drilling, with_faults(run, (choice.injection,)), choice.fault.name)
    except AcceptError as error:
        reason = Reason(DrillReason.NO_VERDICT, f"no verdict: {error.message}")
        return choice.ended(Result.UNKNOWN, reason)
    drilled = outcome(choice, judged.plan, judged.records, judged.verdict)
    return replace(drilled, seconds=round(time.monotonic() - began, 1))
