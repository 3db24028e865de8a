"""`accept drill`: the suite once clean, and then with faults planted one by one."""

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
from accept.commands.caught import blamed, outcome
from accept.commands.drill_faults import FAULTS, Choice, choose
from accept.commands.drillplan import patient, planned, shown, text_of
from accept.commands.judge import Judged
from accept.commands.plan import prepare
from accept.config.drill import SCHEMA, Drill, Drilled
from accept.core.errors import AcceptError, BadInput, Exit
from accept.core.evidence import write
from accept.core.shape import known, plain
from accept.core.typed import dump
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.resolve import Options, Resolved, plant
from accept.report.console import Terminal


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
            raise BadInput(f"there is no fault {plain(name)!r}", hint=known(name, FAULTS, "faults"))
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
