"""The flow: submit, watch, collect, judge, report, and `run`, which is all of them."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from accept import backends, rundir, storage
from accept.backends import Job
from accept.commands import judging
from accept.commands.planning import plan_text, planned, prepare, write_run
from accept.commands.terminal import Terminal
from accept.core.errors import AcceptError, BadInput, BrokenOff, Exit, NotStarted
from accept.core.evidence import write
from accept.core.plaintext import plain
from accept.core.typed import dump, read
from accept.render import Bundle, load_bundle
from accept.resolve import Options, Resolved

#: From here on the console says what the result says once more.
_VERDICT_FOLLOWS = "verdict of the coordinator:"


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
    if folder:
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
    backend = backends.load(run.backend)
    name = backend.named(attempt or _attempt(), run.place)
    target = rundir.create(name)
    try:
        write_run(run, bundle, target)
        job = backend.submit(run, bundle, attempt=name, folder=target, say=terminal.progress)
    except BaseException:
        _remove(target)
        raise
    write(target / rundir.JOB, json.dumps(dump(job), indent=1) + "\n")
    terminal.progress(f"started {name}; everything about it: {target}")
    return job


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _attempt() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def load_job(folder: Path) -> Job:
    """The job of a run folder. Raises BadInput where the run was never submitted."""
    path = folder / rundir.JOB
    try:
        return read(Job, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BadInput(
            f"{folder.name} was never started", hint=f"start it: accept submit {folder}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {error}", hint="name another run") from None


def do_watch(name: str, terminal: Terminal) -> int:
    """Follow a run to its end."""
    folder = rundir.find(name)
    if (folder / rundir.EVIDENCE).is_dir():
        terminal.progress(f"{folder.name} is over and collected")
        return do_judge((str(folder),), terminal, expect=())
    job = load_job(folder)
    code = _watch(job, folder, terminal, whole=True)
    if code not in tuple(Exit):
        # It crashed or was killed, and so formed no verdict.
        code = Exit.BROKEN_OFF
    # The verdict was shown with all the rest; what is judged, and held, is what was collected.
    ended = f"{job.attempt} ended with exit status {code}; next: accept collect {job.attempt}"
    terminal.result({"attempt": job.attempt, "exit": code}, ended)
    return code


def _watch(job: Job, folder: Path, terminal: Terminal, *, whole: bool) -> int:
    """Follow the coordinator's console; Ctrl-C asks whether to detach or to cancel."""
    muted = False

    def say(line: str) -> None:
        nonlocal muted
        if line.startswith("-----BEGIN ACCEPT") or (_VERDICT_FOLLOWS in line and not whole):
            muted = True
        if not muted:
            terminal.progress(line)
        if line.startswith("-----END ACCEPT"):
            muted = False

    backend = backends.load(job.backend)
    try:
        return backend.watch(job, folder=folder, say=say)
    except KeyboardInterrupt:
        if _asked_to_detach():
            terminal.progress(
                f"detached; the run goes on. accept watch {job.attempt}, "
                f"or accept cancel {job.attempt}"
            )
            raise
        _cancel(job, folder, terminal)
        raise


def _asked_to_detach() -> bool:
    """Ask on a terminal; elsewhere nobody can answer, and what was started must not stay behind."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(
        "\nCtrl-C: [d]etach and let the run go on, or [c]ancel it and clean up? [d/c] "
    )
    sys.stderr.flush()
    try:
        return not sys.stdin.readline().strip().lower().startswith("c")
    except KeyboardInterrupt:
        return False


def do_collect(name: str, terminal: Terminal) -> int:
    """Fetch a run's evidence, or that of a place in a bucket, which becomes a run here."""
    place = _fetch(name, terminal) if storage.is_url(name) else collect(rundir.find(name), terminal)
    terminal.result({"evidence": str(place)}, str(place))
    return Exit.PASS


def _fetch(url: str, terminal: Terminal) -> Path:
    attempt = url.rstrip("/").rpartition("/")[2]
    if not rundir.is_name(attempt):
        raise BadInput(f"{plain(url, 200)} names no run", hint="name one: …/runs/ATTEMPT")
    folder = rundir.create(attempt)
    target = folder / rundir.EVIDENCE
    try:
        finished = storage.fetch(url, target)
    except BaseException:
        shutil.rmtree(folder)
        raise
    if not finished:
        terminal.progress("the upload was never finished: this is what there is of it")
    return target


def collect(folder: Path, terminal: Terminal) -> Path:
    """The evidence of a run, fetched where it is not here yet, and sent where the site says."""
    place = folder / rundir.EVIDENCE
    if place.is_dir() and not (folder / rundir.JOB).is_file():
        # Fetched from elsewhere: it was not run from here.
        return place
    job = load_job(folder)
    # The command that follows a run and one that cancels it come here at the same moment.
    with rundir.held(folder):
        if not place.is_dir():
            backends.load(job.backend).collect(job, folder=folder, say=terminal.progress)
    if location := _results(folder, job.backend):
        failed = storage.send(place, location, attempt=job.attempt)
        where = f"{location.rstrip('/')}/runs/{job.attempt}"
        terminal.progress(f"not sent to {where}: {failed}" if failed else f"sent to {where}")
        if failed:
            terminal.progress(f"the evidence is here; again: accept collect {job.attempt}")
    return place


def _results(folder: Path, backend: str) -> str:
    """The bucket or folder of a run, where its site names one that can be reached from here."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        run = json.loads((folder / rundir.RUN).read_text(encoding="utf-8"))["run"]
        location = run["site"]["results"]["location"]
        # A folder of a cluster's is one in its pods.
        here = backend != "kubernetes" and str(location).startswith("/")
        if isinstance(location, str) and (here or storage.is_url(location)):
            return location
    return ""


def do_cancel(name: str, terminal: Terminal) -> int:
    """End a run and remove what it made; its evidence so far is collected first."""
    folder = rundir.find(name)
    job = load_job(folder)
    _cancel(job, folder, terminal)
    terminal.result({"cancelled": job.attempt}, f"cancelled {job.attempt}")
    return Exit.PASS


def _cancel(job: Job, folder: Path, terminal: Terminal) -> None:
    backends.load(job.backend).cancel(job, folder=folder, say=terminal.progress)
    try:
        place = collect(folder, terminal)
    except AcceptError as error:
        terminal.progress(f"cancelled; no evidence: {error.message}")
    else:
        terminal.progress(f"cancelled; evidence so far: {place}")
    if job.place:
        # What a cluster was given stays there until it is removed.
        for what in backends.load(job.backend).delete(job, dry_run=False, say=terminal.progress):
            terminal.progress(f"removed {what}")


def do_judge(
    paths: tuple[str, ...],
    terminal: Terminal,
    *,
    expect: tuple[str, ...],
    machine: str | None = None,
) -> int:
    """Judge evidence anew, or logs that no run of ours left."""
    found = judging.judge_paths(paths or ("last",), expect=expect, machine=machine)
    if terminal.json:
        # One verdict for each path, or for all paths where they are logs.
        several = [judging.as_json(judged) for judged in found]
        terminal.result(several if len(found) > 1 else several[0], "")
    else:
        for judged in found:
            terminal.result(judged.verdict, judging.text(judged, terminal))
    return max((judged.verdict.exit for judged in found), key=_WORST.index)


#: From good to bad, for several paths at once.
_WORST = (0, 7, 6, 5, 3)


def do_report(name: str, terminal: Terminal, *, form: str) -> int:
    """Write report.md and junit.xml beside the evidence, or print one of them."""
    judged = judging.judge_path(name, expect=())
    text = judging.report(judged, form)
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
    try:
        _watch(job, folder, terminal, whole=False)
    except BrokenOff as error:
        terminal.progress(str(error))
    except NotStarted:
        _cancel(job, folder, terminal)
        raise
    place = collect(folder, terminal)
    judged = judging.judge_path(str(folder), expect=())
    judging.report(judged, "files")
    terminal.result(judged.verdict, judging.text(judged, terminal))
    terminal.progress(f"evidence: {place}")
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
