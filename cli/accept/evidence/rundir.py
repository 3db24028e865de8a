"""Find and make the folders of runs on the workstation; all names of their files are here."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.evidence import PLAN, write_below
from accept.core.safe_read import is_file, is_folder
from accept.core.serde import did_you_mean, escaped
from accept.core.text import command_line, plain

RUN = "run.json"
JOB = "job.json"
RENDERED = "rendered"
VALUES = "values.yaml"
EVIDENCE = "evidence"
#: Beside the evidence: the report, and the folder with the lists of nodes.
REPORT = "report.html"
NODES = "nodes"
#: Beside the evidence: texts and archives for the provider.
TICKETS = "tickets"
#: Result of a retest: its findings about the suspects of the earlier run.
RETEST = "retest.json"
#: Marks evidence that was made from a log only: it is not sent, and `collect` fetches it again.
FROM_LOG = "evidence-from-log"
#: Results of a drill; the folders of its runs are beside this file.
DRILL = "drill.json"
#: Results of a repeated run; the folders of its repetitions are beside this file.
REPEAT = "repeat.json"
_SERIES = {DRILL: "a drill", REPEAT: "a repeated run"}

_ATTEMPT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def runs() -> Path:
    """Return the folder of all runs: $ACCEPT_RUNS, else one in the user's state folder.

    The path is absolute and without links, because `job.json` keeps it for commands that are
    started in other folders. Raises BadInput if it cannot be determined.
    """
    named, state = os.environ.get("ACCEPT_RUNS"), os.environ.get("XDG_STATE_HOME")
    try:
        if named:
            return Path(named).resolve()
        base = Path(state) if state else Path.home() / ".local" / "state"
        return (base / "accept" / "runs").resolve()
    except RuntimeError as error:
        raise BadInput(
            f"the runs folder is unknown: {error}",
            code=Code.RUNS_FOLDER,
            hint="set ACCEPT_RUNS to a folder for your runs",
        ) from None


def listed() -> tuple[Path, ...]:
    """Return all run folders, oldest first."""
    folder = runs()
    folders = (p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else ()
    return tuple(sorted(folders, key=lambda p: (p.stat().st_mtime_ns, p.name)))


def is_own_evidence(folder: Path) -> bool:
    """Return True for the evidence of a run in the folder of runs of this workstation."""
    return folder.name == EVIDENCE and is_own(folder.parent)


def write_about(evidence: Path, name: str, content: str | bytes) -> Path:
    """Write a file about evidence, through no link, and return its path.

    It is beside the evidence of an own run. Folders of others stay as they are: what is about them
    is in a folder of the working folder, named after theirs. An own folder keeps its time, so that
    a new report does not make an old run the newest.
    """
    if not is_own_evidence(evidence):
        resolved = evidence.resolve()
        stem = resolved.parent.name if resolved.name == EVIDENCE else resolved.name
        return write_below(Path(), str(PurePosixPath(f"{stem or EVIDENCE}-report", name)), content)
    folder = evidence.parent
    before = folder.lstat()
    # The user may have named the folder by a link.
    write_below(folder.resolve(), name, content)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns), follow_symlinks=False)
    return folder / name


def names_file(name: str) -> bool:
    """Return True if `name` is a path of a file, and of no run: own runs precede what is here."""
    return name != "last" and not by_attempt(name) and is_file(Path(name))


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a submitted run's evidence: wait for other commands that use it, and keep them out."""
    with (folder / JOB).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_name(attempt: str) -> bool:
    """Return True if `attempt` is a valid name of a run."""
    return _ATTEMPT.fullmatch(attempt) is not None and attempt != "last"


def new_folder(attempt: str, *, within: Path | None = None) -> Path:
    """Return the folder for a new attempt. Raises BadInput if the name is taken or invalid."""
    if not is_name(attempt):
        raise BadInput(
            f"--attempt {escaped(attempt)!r} is not a valid name",
            code=Code.ATTEMPT_NAME,
            hint="use at most 63 of a-z, 0-9 and '-', such as monday-1; not `last`",
        )
    folder = (within or runs()) / attempt
    # Commands find a run by its name alone, also one in a series.
    if folder.exists() or by_attempt(attempt):
        raise _exists(attempt)
    return folder


def _exists(attempt: str) -> BadInput:
    return BadInput(
        f"the attempt {attempt} exists already",
        code=Code.ATTEMPT_EXISTS,
        hint="choose another --attempt",
    )


def create(attempt: str, *, within: Path | None = None) -> Path:
    """Make the folder of a new attempt, in the folder `within` if it is part of a series.

    Raises BadInput if the name is taken or invalid.
    """
    folder = new_folder(attempt, within=within)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise _exists(attempt) from None
    except OSError as error:
        raise BadInput(
            f"cannot make {folder}: {error.strerror}",
            code=Code.RUNS_FOLDER,
            hint="set ACCEPT_RUNS to a folder that you can write to",
        ) from None
    return folder


def find(name: str) -> Path:
    """Return the folder of a run by attempt, by path, or the newest for `last`.

    The folder may be anywhere, so only read it. Raises BadInput if there is none, or if it is a
    drill or a repeated run, which consist of several runs.
    """
    if name == "last":
        marks = (JOB, EVIDENCE, *_SERIES)
        # A command that was killed early leaves a folder without a started run.
        folders = [f for f in listed() if any((f / mark).exists() for mark in marks)]
        if not folders:
            raise BadInput(
                f"no run was started in {runs()}", code=Code.RUN_NONE, hint="start one: accept run"
            )
        return _refuse_series(folders[-1])
    for folder in (*by_attempt(name), Path(name)):
        if name and is_folder(folder):
            return _refuse_series(folder)
    raise _unknown(name, "run, file or folder")


def find_own(name: str) -> Path:
    """Return the folder of a run in `runs()`, by attempt, by path, or the newest for `last`.

    Commands that act on a run use this, because a run folder names programs to execute, hosts to
    reach and folders to remove. Raises BadInput for a folder that is anywhere else.
    """
    if name != "last" and os.sep not in name and not by_attempt(name):
        # The working folder is not searched, but a folder there shows what the user meant.
        if is_folder(Path(name)):
            raise _not_own(Path(name))
        raise _unknown(name, "run")
    folder = find(name)
    if not is_own(folder):
        raise _not_own(folder)
    return folder.resolve()


def is_own(folder: Path) -> bool:
    """Return True if `folder` is the folder of a run in `runs()`, itself or in one of its series.

    Folders inside a run do not count: evidence from a bucket can contain any file. Nor do those of
    other users, or that others can write to: several may share a folder of runs.
    """
    try:
        parts = folder.resolve().relative_to(runs()).parts
    except (ValueError, BadInput):
        return False
    is_place = len(parts) == 1 or (len(parts) == 2 and not _is_run(runs() / parts[0]))
    return is_place and _is_mine(folder)


def _is_run(folder: Path) -> bool:
    """Return True for the folder of a run. A series has none of its files, also before its end."""
    return any((folder / name).exists() for name in (RUN, JOB, EVIDENCE))


def _is_mine(folder: Path) -> bool:
    """Return True if only this user can change a folder of a run and its job."""
    try:
        users = {path.stat().st_uid for path in (folder, folder / JOB) if path.exists()}
        return users <= {os.geteuid()} and not folder.stat().st_mode & 0o022
    except OSError:
        return not folder.exists()


def by_attempt(name: str) -> list[Path]:
    """Return the folders of an attempt: of a run, then of runs in series."""
    if not _ATTEMPT.fullmatch(name):
        return []
    marked = (path.parent for path in runs().glob(f"*/{name}/{RUN}"))
    in_series = sorted(folder for folder in marked if not _is_run(folder.parent))
    return [folder for folder in (runs() / name, *in_series) if is_folder(folder)]


def is_unfinished(folder: Path) -> bool:
    """Return True for an own folder that a command left which was killed while it rendered."""
    if not (os.access(folder, os.R_OK) and is_own(folder)):
        return False
    names = {path.name for path in folder.iterdir() if path.suffix != ".new"}
    # The plan is written last.
    return names <= {RUN, VALUES, RENDERED} and not (folder / RENDERED / PLAN).exists()


def not_started(folder: Path) -> BadInput:
    """Return the error for the folder of a run that this workstation did not start."""
    shown, old = plain(str(folder), 200), "accept clean --folders --older-than 30d --dry-run"
    if (folder / EVIDENCE).exists():
        return BadInput(
            f"{shown} holds only evidence: the run was not started here",
            code=Code.RUN_NOT_STARTED,
            hint=f"judge it: {command_line('accept', 'judge', folder)}; remove old folders: {old}",
        )
    if is_unfinished(folder):
        return BadInput(
            f"{shown} is incomplete: the command that wrote it was killed",
            code=Code.RUN_NOT_STARTED,
            hint=f"remove it: accept clean {folder.name}",
        )
    return BadInput(
        f"{shown} was never started",
        code=Code.RUN_NOT_STARTED,
        hint=f"start it: {command_line('accept', 'submit', folder)}"
        if (folder / RUN).is_file()
        else f"remove old folders: {old}",
    )


def _not_own(folder: Path) -> BadInput:
    if (folder / RUN).is_file() and not any((folder / name).exists() for name in (JOB, EVIDENCE)):
        return not_started(folder)
    return BadInput(
        f"{plain(str(folder), 200)} is not in your runs folder {runs()}, and a run folder can "
        "start any program",
        code=Code.RUN_NOT_OWN,
        hint=f"read it: {command_line('accept', 'judge', folder)}; "
        "run this command where the run was started",
    )


def _unknown(name: str, what: str) -> BadInput:
    names = [folder.name for folder in listed()[::-1]]
    return BadInput(
        f"there is no {what} {name[:200]!r}",
        code=Code.RUN_UNKNOWN,
        hint=f"{did_you_mean(name, names)}newest runs: {', '.join(names[:3]) or 'none'}; "
        "all: accept list runs",
    )


def _series(folder: Path) -> str:
    """Return which series of runs a folder has, such as "a drill"; empty: none."""
    return next((about for name, about in _SERIES.items() if (folder / name).is_file()), "")


def _refuse_series(folder: Path) -> Path:
    """Return the folder of a run. Raises BadInput for that of a series of runs."""
    if not (series := _series(folder)):
        return folder
    names = ", ".join(sorted(p.parent.name for p in folder.glob(f"*/{RUN}"))) or "none"
    raise BadInput(
        f"{folder.name} is {series}, not a run",
        code=Code.RUN_IS_DRILL,
        hint=f"its runs: {names}",
    )
