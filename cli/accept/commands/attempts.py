"""One launch of a run on its way: started, followed, collected or cancelled, and judged."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from accept import backends, rundir, storage
from accept.backends import Job
from accept.commands import judging
from accept.commands.judging import Judged
from accept.commands.planning import write_run
from accept.commands.terminal import Terminal
from accept.core.errors import AcceptError, BadInput, BrokenOff, NoEvidence, NotStarted
from accept.core.evidence import write
from accept.core.typed import dump, read
from accept.render import Bundle
from accept.resolve import Resolved

#: From here on the console says what the result says once more.
_VERDICT_FOLLOWS = "verdict of the coordinator:"


def new_name() -> str:
    """A name for a launch: time and chance."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def start(
    run: Resolved, bundle: Bundle, terminal: Terminal, *, name: str, within: Path | None = None
) -> tuple[Job, Path]:
    """Start a run called `name`, as its back end calls it; returns its job and its folder.

    `within`: the drill that it is part of. Where nothing could be started nothing stays.
    """
    backend = backends.load(run.backend)
    name = backend.named(name, run.place)
    target = rundir.create(name, within=within)
    try:
        write_run(run, bundle, target)
        job = backend.submit(run, bundle, attempt=name, folder=target, say=terminal.progress)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    write(target / rundir.JOB, json.dumps(dump(job), indent=1) + "\n")
    return job, target


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


def finish(job: Job, folder: Path, terminal: Terminal, *, detach: bool = True) -> Judged:
    """Follow a run that was started to its end, fetch its evidence, judge it and write reports.

    `detach`: whether somebody who presses Ctrl-C may let it go on.
    """
    try:
        follow(job, folder, terminal, whole=False, detach=detach)
    except BrokenOff as error:
        terminal.progress(str(error))
    except NotStarted:
        cancel(job, folder, terminal)
        raise
    collect(folder, terminal)
    judged = judging.judge_path(str(folder), expect=())
    judging.report(judged, "files")
    return judged


def follow(job: Job, folder: Path, terminal: Terminal, *, whole: bool, detach: bool = True) -> int:
    """Follow the coordinator's console; Ctrl-C asks whether to detach, where it may, or cancels."""
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
        if detach and _asked_to_detach():
            terminal.progress(
                f"detached; the run goes on. accept watch {job.attempt}, "
                f"or accept cancel {job.attempt}"
            )
            raise
        cancel(job, folder, terminal)
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


def collect(folder: Path, terminal: Terminal) -> Path:
    """The evidence of a run, fetched where it is not here yet, and sent where the site says."""
    place = folder / rundir.EVIDENCE
    if place.is_dir() and not (folder / rundir.JOB).is_file():
        # Fetched from elsewhere: it was not run from here.
        return place
    job = load_job(folder)
    # The command that follows a run and one that cancels it come here at the same moment.
    with rundir.held(folder):
        if not place.is_dir() or (folder / rundir.FROM_LOG).is_file():
            backends.load(job.backend).collect(job, folder=folder, say=terminal.progress)
    location = _results(folder, job.backend)
    if location and (folder / rundir.FROM_LOG).is_file():
        # What the pods wrote there is more than this.
        terminal.progress(f"not sent to {location}: all that is here is what a log told")
    elif location:
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


def cancel(job: Job, folder: Path, terminal: Terminal) -> bool:
    """End a run, keep its evidence so far, and remove what it made.

    Returns whether that is so: evidence that cannot be fetched stays where it is.
    """
    backends.load(job.backend).cancel(job, folder=folder, say=terminal.progress)
    try:
        place = collect(folder, terminal)
    except NoEvidence as error:
        terminal.progress(f"cancelled; no evidence: {error.message}")
    except AcceptError as error:
        terminal.progress(f"cancelled; its evidence could not be fetched: {error.message}")
        if job.place:
            again = f"accept collect {job.attempt}, then accept delete {job.attempt}"
            terminal.progress(f"what the cluster has of it is left there: {again}")
        return False
    else:
        terminal.progress(f"cancelled; evidence so far: {place}")
    if job.place:
        # What a cluster was given stays there until it is removed.
        for what in backends.load(job.backend).delete(job, dry_run=False, say=terminal.progress):
            terminal.progress(f"removed {what}")
    return True
