"""Find the evidence of runs in untrusted folders and archives, at any depth."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.text import plain
from accept.evidence import rundir
from accept.evidence.archive import DISK_ERRORS, write_new
from accept.evidence.untrusted import Entry, Limits, Parts, is_below, walk

#: Files of evidence. A single one proves nothing, because other programs use such names, too. Only
#: runs write those in the first line; a rendered run already has the others.
_WRITTEN_BY_RUNS = (evidence.RECORDS, evidence.CHECKSUMS, evidence.RUN_END, evidence.VERDICT)
_FILES = (*_WRITTEN_BY_RUNS, evidence.PLAN, "hosts.json")
#: Raw logs of a run, below its evidence; they count as one file of it.
_LOGS = re.compile(rf"{evidence.LOGS}/\d\d+-[^/]+(?:/[^/]+\.log|\.tar)")
_FEWEST = 2
#: Names that `accept` writes beside the evidence in a run folder.
_REPORTS = (
    (rundir.REPORT,),
    *((rundir.NODES, f"{name}.txt") for name in ("good", "bad", "untested")),
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """The evidence of one run."""

    #: Name for people: PATH, or ARCHIVE:FOLDER.
    name: str
    #: The path that was searched, and the position of the evidence in it.
    source: Path
    parts: Parts
    #: The folder, or the saved log, if it is on this disk and not in an archive.
    path: Path | None
    #: True for a saved log with packed evidence.
    is_log: bool = False


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a folder or archive."""

    runs: tuple[Found, ...]
    #: Files outside of all runs, and those among them that may be logs, by their names.
    others: int
    may_be_logs: int


def search(path: Path, limits: Limits) -> Contents:
    """Find the evidence of runs in a file, folder or archive. Only names are read.

    Raises BadEvidence if an archive is damaged, or something exceeds a limit.
    """
    seen: dict[Parts, set[str]] = {}
    names: dict[Parts, Entry] = {}
    others: list[Parts] = []
    may_be_logs: set[Parts] = set()
    for entry in walk(path, limits):
        others.append(entry.parts)
        if not entry.is_hidden and not entry.is_other_kind:
            may_be_logs.add(entry.parts)
        for depth in (1, 2, 3):
            folder, inner = entry.parts[:-depth], "/".join(entry.parts[-depth:])
            mark = inner if inner in _FILES else evidence.LOGS if _LOGS.fullmatch(inner) else ""
            if mark and ".." not in folder and len(entry.parts) >= depth:
                seen.setdefault(folder, set()).add(mark)
                names.setdefault(folder, entry)
    roots = [folder for folder, marks in seen.items() if _is_evidence(folder, marks)]
    roots = [root for root in roots if not any(is_below(root, other) for other in roots)]
    runs = [_found(path, root, names[root]) for root in sorted(roots)]
    reports = {(*root[:-1], *name) for root in roots for name in _REPORTS}
    kept = [
        parts
        for parts in others
        if parts not in reports and not any(is_below(parts, root) for root in roots)
    ]
    return Contents(
        runs=tuple(runs),
        others=len(kept),
        may_be_logs=sum(parts in may_be_logs for parts in kept),
    )


def _is_evidence(folder: Parts, marks: set[str]) -> bool:
    if folder[-1:] == ("evidence",):
        return True
    return len(marks) >= _FEWEST and not marks.isdisjoint((*_WRITTEN_BY_RUNS, evidence.LOGS))


def _found(source: Path, root: Parts, entry: Entry) -> Found:
    """Return the evidence at the position `root`, which contains the file `entry`."""
    if entry.path is not None:
        folder = source.joinpath(*root)
        return Found(name=str(folder), source=source, parts=root, path=folder)
    # The name of a member ends with its position in the archive.
    name = re.sub(rf"(?:[/:\\][^/:\\]*){{{len(entry.parts) - len(root)}}}$", "", entry.name)
    return Found(name=name.rstrip(":./"), source=source, parts=root, path=None)


@contextmanager
def unpacked(found: Found, limits: Limits) -> Iterator[Path]:
    """Copy evidence from an archive into a temporary folder, and return that folder.

    Raises BadEvidence if it contains a link, a device, a path outside of it, or a file twice.
    """
    with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
        target = Path(scratch) / "evidence"
        target.mkdir()
        for entry in walk(found.source, limits, whole=(found.parts,)):
            parts = entry.parts[len(found.parts) :]
            if not is_below(entry.parts, found.parts):
                continue
            if entry.unread or ".." in parts or any("\0" in part for part in parts):
                raise BadEvidence(
                    f"{plain(found.name)} contains {plain('/'.join(parts), 100)}, "
                    f"which is {entry.unread or 'a path outside of it'}",
                    code=Code.ARCHIVE_UNSAFE,
                    hint="evidence never contains that; check that it is the right archive",
                )
            try:
                write_new(target, parts, entry.blocks)
            except (OSError, ValueError) as error:
                raise _not_written(found, error) from None
        yield target


def _not_written(found: Found, error: OSError | ValueError) -> BadEvidence:
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return BadEvidence(
            f"{plain(found.name)} cannot be unpacked: {error.strerror}",
            code=Code.ARCHIVE_DISK,
            hint=f"free space in {tempfile.gettempdir()}, or set TMPDIR to another disk",
        )
    return BadEvidence(
        f"{plain(found.name)} contains names that no run writes: {plain(error, 200)}",
        code=Code.ARCHIVE_UNSAFE,
        hint="check that it is the right archive",
    )


def packed_logs(path: Path, limits: Limits, runs: Sequence[Found]) -> Iterator[Found]:
    """Find saved logs with packed evidence outside of `runs`. This reads all text files."""
    whole = [found.parts for found in runs]
    for entry in walk(path, limits, whole=whole):
        if any(is_below(entry.parts, root) for root in whole) or entry.is_hidden:
            continue
        first = next(entry.blocks, b"")
        if b"\0" not in first[: 1 << 16] and evidence.has_packed(chain((first,), entry.blocks)):
            yield Found(
                name=entry.name, source=path, parts=entry.parts, path=entry.path, is_log=True
            )


def content(found: Found, limits: Limits) -> Iterator[bytes]:
    """Yield the content of a saved log in blocks."""
    for entry in walk(found.source, limits):
        if entry.parts == found.parts:
            yield from entry.blocks
            return
