"""Remove the folders of old runs on this machine; nothing on hosts, clusters or in buckets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from accept import backends
from accept.backends.protocol import Phase
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.text import count
from accept.evidence import rundir
from accept.report.console import Terminal


@dataclass(frozen=True, kw_only=True)
class PrunedRun:
    """A run or drill whose folder was removed, or would be."""

    name: str
    #: Of all its files.
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """The folders of old runs that were removed, or would be: `accept clean --folders`."""

    dry_run: bool
    removed: tuple[PrunedRun, ...]
    #: Old runs that stay, with the reason.
    kept: dict[str, str]


def do_prune(terminal: Terminal, *, older_than: float, dry_run: bool) -> int:
    """Remove the folders of runs that started at least `older_than` seconds ago.

    A run whose evidence is not here stays, because its folder alone shows where it is.
    """
    limit = datetime.now(UTC).timestamp() - older_than
    removed: list[PrunedRun] = []
    kept: dict[str, str] = {}
    for folder in filter(rundir.is_own, rundir.listed()):
        if _started(folder) > limit:
            continue
        if reason := next(_reasons(folder), ""):
            kept[folder.name] = reason
            continue
        size = sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir())
        try:
            if not dry_run:
                shutil.rmtree(folder)
        except OSError as error:
            raise BadInput(
                f"{folder} cannot be removed: {error.strerror}",
                code=Code.OUTPUT_WRITE,
                hint="check its owner and permissions",
            ) from None
        removed.append(PrunedRun(name=folder.name, bytes=size))
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {run.name} ({_megabytes(run.bytes)})" for run in removed]
    lines += [f"kept {name}: {reason}" for name, reason in kept.items()]
    total = _megabytes(sum(run.bytes for run in removed))
    lines.append(f"{verb} {count(len(removed), 'run')}, {total}")
    terminal.result(Pruned(dry_run=dry_run, removed=tuple(removed), kept=kept), *lines)
    return Exit.PASS


def _started(folder: Path) -> float:
    """Return the time at which a run was submitted, else of its folder, in seconds since 1970."""
    try:
        return datetime.fromisoformat(backends.load_job(folder).submitted).timestamp()
    except (BadInput, ValueError, TypeError):
        return folder.stat().st_mtime


def _reasons(folder: Path) -> Iterator[str]:
    """Yield why the folder of a run, or of a run of a drill, must stay."""
    for job in (folder / rundir.JOB, *sorted(folder.glob(f"*/{rundir.JOB}"))):
        run = job.parent
        if not job.is_file():
            continue
        progress = backends.progress_of(run)
        if progress.phase is Phase.RUNNING:
            yield f"it is {progress.text}"
        is_collected = (run / rundir.EVIDENCE).is_dir() and not (run / rundir.FROM_LOG).is_file()
        if not is_collected and progress.phase is not Phase.GONE:
            yield f"its evidence was not collected: accept collect {run.name}, or accept clean"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB"
