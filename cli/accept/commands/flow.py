"""The flow: submit, watch, collect, judge, report, and `run`, which is all of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from accept import backends
from accept.backends import Job
from accept.commands import judge
from accept.commands import run as commands_run
from accept.commands.plan import plan_text, planned, prepare
from accept.commands.run import Cancellation
from accept.core.errors import BadInput, Exit
from accept.core.model import worst_exit
from accept.core.text import plain
from accept.core.typed import dump, read
from accept.evidence import bucket, rundir
from accept.plan.bundle import Bundle, load_bundle
from accept.plan.resolve import Options, Resolved
from accept.report.console import Terminal


def _read(folder: Path) -> tuple[Resolved, Bundle]:
    path = folder / rundir.RUN
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        run = read(Resolved, data["run"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {error}", hint="render the run again") from None
    return run, load_bundle(folder / rundir.RENDERED, run.plan)


def do_submit(
    options: Options, terminal: Terminal, *, folder: str | None, attempt: str, dry_run: bool
) -> int:
    """Render and start a run, or start one that was rendered before."""
    job = _submit(options, terminal, folder=folder, attempt=attempt, dry_run=dry_run)
    if job is not None:
        terminal.result(job, job.attempt)
        terminal.progress(f"next: accept watch {job.attempt}")
    return Exit.PASS


def _submit(
    options: Options, terminal: Terminal, *, folder: str | None, attempt: str, dry_run: bool
) -> Job | None:
    if folder is not None:
        run, bundle = _read(rundir.find(folder))
        run = replace(run, place={**run.place, **options.place})
    else:
        run, bundle = prepare(options, terminal, probe=True)
    plan = planned(run)
    for step in run.plan.steps:
        shown = ", ".join(f"{key} {value}" for key, value in step.params.items())
        terminal.detail(f"{step.id}: {shown or 'no parameters'}; at most {step.timeout:.0f} s")
    if dry_run:
        terminal.result(plan, plan_text(plan))
        return None
    for line in plan_text(plan).splitlines():
        terminal.progress(line)
    job, target = commands_run.start(run, bundle, terminal, name=attempt or commands_run.new_name())
    terminal.progress(f"started {job.attempt}; everything about it: {target}")
    return job


def do_watch(name: str, terminal: Terminal) -> int:
    """Follow a run to its end."""
    folder = rundir.find_own(name)
    if (folder / rundir.EVIDENCE).is_dir():
        terminal.progress(f"{folder.name} is over and collected")
        return do_judge((str(folder),), terminal, expect=())
    job = commands_run.load_job(folder)
    code = commands_run.follow(job, folder, terminal, whole=True)
    if code not in tuple(Exit):
        # It crashed or was killed, and so formed no verdict.
        code = Exit.BROKEN_OFF
    # The verdict was shown with all the rest; what is judged, and held, is what was collected.
    ended = f"{job.attempt} ended with exit status {code}; next: accept collect {job.attempt}"
    terminal.result({"attempt": job.attempt, "exit": code}, ended)
    return code


def do_collect(name: str, terminal: Terminal) -> int:
    """Fetch a run's evidence, or that of a place in a bucket, which becomes a run here."""
    if bucket.is_url(name):
        place = _fetch(name, terminal)
    else:
        place = commands_run.collect(rundir.find_own(name), terminal)
    terminal.result({"evidence": str(place)}, str(place))
    return Exit.PASS


def _fetch(url: str, terminal: Terminal) -> Path:
    attempt = url.rstrip("/").rpartition("/")[2]
    if not rundir.is_name(attempt):
        raise BadInput(f"{plain(url, 200)} names no run", hint="name one: …/runs/ATTEMPT")
    folder = rundir.create(attempt)
    target = folder / rundir.EVIDENCE
    try:
        finished = bucket.fetch(url, target)
    except BaseException:
        shutil.rmtree(folder)
        raise
    if not finished:
        terminal.progress("the upload was never finished: this is what there is of it")
    return target


def do_cancel(name: str, terminal: Terminal) -> int:
    """End a run and remove what it made; its evidence so far is collected first."""
    folder = rundir.find_own(name)
    job = commands_run.load_job(folder)
    outcome = commands_run.cancel(job, folder, terminal)
    terminal.result(
        {"attempt": job.attempt, "outcome": outcome}, _CANCELLATIONS[outcome].format(job.attempt)
    )
    done = outcome in (Cancellation.CANCELLED, Cancellation.HAD_ENDED)
    return Exit.PASS if done else Exit.INCOMPLETE


_CANCELLATIONS = {
    Cancellation.CANCELLED: "cancelled {}",
    Cancellation.HAD_ENDED: "{} had already ended; nothing was cancelled",
    Cancellation.STILL_RUNNING: "{} is still running: it did not end when it was cancelled",
    Cancellation.NOT_COLLECTED: "{} was cancelled, but its evidence could not be fetched",
    Cancellation.NOT_FOUND: "{} was not found, so nothing was cancelled",
}


def do_judge(
    paths: tuple[str, ...],
    terminal: Terminal,
    *,
    expect: tuple[str, ...],
    machine: str | None = None,
) -> int:
    """Judge evidence anew, or logs that no run of ours left."""
    found = judge.judge_paths(paths or ("last",), expect=expect, machine=machine)
    if terminal.json:
        # One verdict for each path, or for all paths where they are logs.
        several = [judge.as_json(judged) for judged in found]
        terminal.result(several if len(found) > 1 else several[0], "")
    else:
        for judged in found:
            terminal.result(judged.verdict, judge.text(judged, terminal))
    return worst_exit(judged.verdict.exit for judged in found)


def do_report(name: str, terminal: Terminal, *, form: str) -> int:
    """Write report.md and junit.xml beside the evidence, or print one of them."""
    judged = judge.judge_path(name, expect=())
    text = judge.report(judged, form)
    if form == "files":
        terminal.result({"files": text.splitlines()}, text)
    else:
        terminal.result({form: text}, text)
    return Exit.PASS


def do_run(options: Options, terminal: Terminal, *, attempt: str, dry_run: bool) -> int:
    """The whole loop; returns the verdict's exit code."""
    job = _submit(options, terminal, folder=None, attempt=attempt, dry_run=dry_run)
    if job is None:
        return Exit.PASS
    folder = rundir.find(job.attempt)
    judged = commands_run.finish(job, folder, terminal)
    terminal.result(judged.verdict, judge.text(judged, terminal))
    terminal.progress(f"evidence: {folder / rundir.EVIDENCE}")
    if job.place:
        terminal.progress(f"to remove it from the cluster: accept delete {job.attempt}")
    return judged.verdict.exit


def do_doctor(options: Options, terminal: Terminal) -> int:
    """What the hosts have and lack, host by host, and which checks will run."""
    run, _ = prepare(options, terminal, probe=True)
    needs = backends.load(run.backend).doctor(run, say=terminal.progress)
    lines = []
    for need in needs:
        mark = "ok     " if need.good else "missing"
        checks = f"  (for {', '.join(need.checks)})" if need.checks else ""
        lines.append(f"{mark}  {need.host}: {need.what}: {need.found}{checks}")
        if need.advice:
            lines.append(f"         {need.advice}")
    lacking = {c for need in needs if not need.good for c in need.checks}
    names = tuple(dict.fromkeys(c for step in run.plan.steps for c in step.checks))
    lines.append("will run: " + (", ".join(c for c in names if c not in lacking) or "nothing"))
    if lacking:
        lines.append("will not: " + ", ".join(c for c in names if c in lacking))
    terminal.result({"needs": [dump(n) for n in needs]}, "\n".join(lines))
    return Exit.PASS if all(need.good for need in needs) else Exit.NOT_STARTED
