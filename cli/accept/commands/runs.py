"""List and show the runs on this workstation, and those in a bucket or shared folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from accept import backends
from accept.backends.protocol import Phase
from accept.commands import order, plan
from accept.commands.drill_faults import Drill
from accept.core import evidence
from accept.core.errors import AcceptError, BadInput, Exit
from accept.core.safe_read import read_whole
from accept.core.serde import read
from accept.core.text import duration, plain
from accept.evidence import bucket, rundir
from accept.report.console import Table, Terminal
from accept.report.repeated import Repeated, headline


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """A run on this workstation."""

    name: str
    #: Its verdict or state, in one line.
    about: str
    folder: str
    machine: str = ""
    suite: str = ""
    #: Number of its hosts.
    hosts: int = 0
    #: Seconds since 1970 at which it started; 0: unknown, or not started.
    start: float = 0.0
    #: Seconds that it measured; 0: unknown, or not ended.
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ListedRuns:
    """The runs on this workstation, newest first: `accept list runs`."""

    runs: tuple[RunEntry, ...]


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """A run on this workstation and its plan: `accept show run`."""

    run: RunEntry
    #: None if its folder has no plan, such as that of a run from a bucket.
    plan: plan.PlannedRun | None


def do_list_runs(terminal: Terminal, url: str | None) -> int:
    """Print one line for each run on this machine, or in the bucket or folder `url`."""
    runs = _runs() if url is None else _runs_at(url)
    table = _table_of_runs(runs, terminal) if runs else "no runs"
    if url is not None and not runs:
        searched = f"{plain(bucket.results_of(url), 200)}/runs"
        table = f"no runs in {searched}; give results.location of the site file"
    terminal.result(ListedRuns(runs=runs), table)
    return Exit.PASS


def do_show_run(name: str, terminal: Terminal) -> int:
    """Print what this machine knows of a run, and its plan."""
    page = _run_page(name)
    terminal.result(page, *_run_text(page))
    return Exit.PASS


def _runs() -> tuple[RunEntry, ...]:
    return tuple(_run_entry(folder) for folder in rundir.listed()[::-1])


def is_place(url: str) -> bool:
    """Return True for a URL in a bucket or an absolute path, which may have runs of others."""
    return bucket.is_url(url) or Path(url).is_absolute()


def _runs_at(url: str) -> tuple[RunEntry, ...]:
    """Return the runs in a bucket or shared folder, newest first.

    The URL may also be that of its folder `runs`, or of a run in it.
    """
    entries: list[RunEntry] = []
    for place in dict.fromkeys((url.rstrip("/"), bucket.results_of(url))):
        entries = entries or [_stored_entry(run, place) for run in bucket.runs_at(place)]
    return tuple(sorted(entries, key=lambda entry: (entry.start, entry.name), reverse=True))


def _stored_entry(run: bucket.StoredRun, url: str) -> RunEntry:
    entry = RunEntry(name=plain(run.name, 80), about="", folder=f"{url}/runs/{run.name}")
    if run.verdict is None:
        about = "no verdict" if run.finished else "not finished"
        return replace(entry, about=about)
    return _with_verdict(entry, run.verdict, "" if run.finished else "not finished: ")


def _with_verdict(entry: RunEntry, verdict: evidence.StoredVerdict, before: str = "") -> RunEntry:
    """Add what a stored verdict shows of a run to its entry."""
    return replace(
        entry,
        about=f"{before}{plain(verdict.headline)}",
        machine=plain(verdict.machine, 40),
        suite=plain(verdict.suite, 40),
        hosts=len(verdict.hosts),
        start=verdict.start,
        seconds=max(0.0, verdict.end - verdict.start),
    )


def _table_of_runs(runs: Sequence[RunEntry], terminal: Terminal) -> Table:
    """Return a line for each run; on a narrow terminal, without what `accept show run` shows."""
    header = ("RUN", "STARTED (UTC)", "NODES", "MACHINE", "SUITE", "TOOK", "RESULT")
    rows = [
        (
            run.name,
            f"{datetime.fromtimestamp(run.start, UTC):%Y-%m-%d %H:%M}" if run.start else "-",
            str(run.hosts) if run.hosts else "-",
            run.machine or "-",
            run.suite or "-",
            duration(run.seconds) if run.seconds else "-",
            run.about,
        )
        for run in runs
    ]
    if terminal.is_narrow:
        return Table(header=(*header[:3], header[-1]), rows=[(*row[:3], row[-1]) for row in rows])
    return Table(header=header, rows=rows)


def _run_entry(folder: Path) -> RunEntry:
    """Return what this machine knows of a run, drill or repeated run."""
    entry = RunEntry(name=folder.name, about="", folder=str(folder))
    for path in (folder / rundir.DRILL, folder / rundir.REPEAT):
        if path.is_file():
            return replace(entry, about=_stored_headline(path))
    inner = folder / rundir.EVIDENCE
    if not inner.is_dir() and (folder / evidence.PLAN).is_file():
        # Evidence that was copied without its run folder.
        inner = folder
    if inner.is_dir():
        # Until this machine has judged its run, the verdict is that of the first host.
        was_judged = (folder / rundir.NODES).is_dir()
        if (folder / rundir.JOB).is_file() and not was_judged:
            return replace(_planned(entry, folder), about="collected, not judged")
        try:
            verdict = evidence.read_verdict(inner)
        except AcceptError:
            return replace(_planned(entry, folder), about="collected, no verdict")
        return _with_verdict(entry, verdict)
    entry = _planned(entry, folder)
    job = folder / rundir.JOB
    if not job.is_file():
        is_rendered = (folder / rundir.RENDERED / evidence.PLAN).is_file()
        otherwise = "killed while it was rendered" if rundir.is_own(folder) else "not a run"
        return replace(entry, about="rendered" if is_rendered else otherwise)
    progress = backends.progress_of(folder)
    about = {
        Phase.ENDED: "ended, not collected",
        Phase.GONE: "ended, and nothing is left to collect",
    }.get(progress.phase, progress.text)
    return replace(entry, about=about, start=job.stat().st_mtime)


def _planned(entry: RunEntry, folder: Path) -> RunEntry:
    """Add the plan of a run to its entry, if the plan can be read."""
    try:
        plan = evidence.read_plan(folder / rundir.RENDERED)
    except AcceptError:
        return entry
    return replace(
        entry,
        machine=plain(plan.machine.name, 40),
        suite=plain(plan.suite, 40),
        hosts=plan.nodes or 0,
    )


def _stored_headline(path: Path) -> str:
    """Return the result of a drill or repeated run from its file."""
    is_drill = path.name == rundir.DRILL
    try:
        data = json.loads(read_whole(path))
        return read(Drill, data).headline if is_drill else headline(read(Repeated, data))
    except (OSError, ValueError, RecursionError):
        return f"{'drill' if is_drill else 'repeated run'}: the result cannot be read"


def _run_page(name: str) -> RunPage:
    """Return what this machine knows of a run. Raises BadInput."""
    folder = rundir.find(name)
    try:
        planned = plan.planned(order.read_run(folder)) if (folder / rundir.RUN).is_file() else None
    except BadInput:
        planned = None
    return RunPage(run=_run_entry(folder), plan=planned)


def _run_text(page: RunPage) -> Iterator[str | Table]:
    """Yield the page of a run."""
    entry = page.run
    start = f"{datetime.fromtimestamp(entry.start, UTC):%Y-%m-%d %H:%M} UTC" if entry.start else ""
    rows = [
        ("run", entry.name),
        ("result", entry.about),
        ("machine", entry.machine),
        ("suite", entry.suite),
        ("nodes", str(entry.hosts or "")),
        ("started", start),
        ("took", duration(entry.seconds) if entry.seconds else ""),
        ("folder", entry.folder),
    ]
    yield Table(rows=[row for row in rows if row[1]])
    if page.plan is not None:
        yield f"\n{plan.plan_text(page.plan)}"
