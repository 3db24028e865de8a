"""Run the same plan several times, and report the spread: `accept run --repeat`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from accept import backends
from accept.commands import run as runs
from accept.commands.plan import plan_text, planned, prepare, prepare_on, tell_plan
from accept.core.errors import AcceptError, Exit
from accept.core.evidence import REPORT, write
from accept.core.serde import to_json
from accept.core.text import count, duration
from accept.evidence import rundir
from accept.plan.resolve import Options
from accept.report.console import Terminal
from accept.report.data import Run
from accept.report.html import render_repeated
from accept.report.repeated import Repeated, render_markdown, screen, summarize


def do_repeat(
    options: Options, terminal: Terminal, *, times: int, dry_run: bool, max_bad: int
) -> int:
    """Run `times` times on the same hosts; return the exit code of the worst verdict.

    Each repetition is a run with evidence and reports of its own, in one folder.
    """
    run, bundle = prepare(options, terminal)
    plan = planned(run)
    total = f"{count(times, 'repetition')}: about {duration(times * plan.seconds)}"
    if dry_run:
        terminal.result(plan, f"{plan_text(plan)}\n{total}")
        return Exit.PASS
    tell_plan(plan, terminal)
    terminal.progress(total)
    name = options.attempt or runs.new_name()
    folder = rundir.create(name)
    done: list[Run] = []
    try:
        for number in range(1, times + 1):
            terminal.progress(f"repetition {number} of {times}")
            judged = runs.run_to_verdict(
                run, bundle, terminal, name=f"{name}-{number}", within=folder, max_bad=max_bad
            )
            done.append(judged.run)
            terminal.progress(f"repetition {number}: {judged.verdict.headline}")
            _write(summarize(done, name=name, times=times), folder)
            if number == 1 and run.backend in backends.NODE_LISTS:
                hosts = run.hosts or tuple(sorted(judged.verdict.hosts))
                run, bundle = prepare_on(hosts, run, options, terminal)
    except (AcceptError, KeyboardInterrupt) as error:
        if not done:
            with contextlib.suppress(OSError):
                folder.rmdir()
        else:
            reason, code = "Ctrl-C", Exit.CTRL_C
            if isinstance(error, AcceptError):
                reason, code = error.message, error.exit
            result = summarize(done, name=name, times=times, interruption=reason, code=code)
            _write(result, folder)
            for line in screen(result, str(folder / rundir.REPORT)).splitlines():
                terminal.progress(line)
        raise
    result = summarize(done, name=name, times=times)
    terminal.result(result, screen(result, str(folder / rundir.REPORT)))
    return result.exit


def _write(result: Repeated, folder: Path) -> None:
    """Write the result so far beside the runs."""
    write(folder / rundir.REPEAT, to_json(result) + "\n")
    write(folder / REPORT, render_markdown(result))
    write(folder / rundir.REPORT, render_repeated(result))
