"""The folders of the runs on the workstation: the one place that names them and their files."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accept.core.errors import BadInput

RUN = "run.json"
JOB = "job.json"
RENDERED = "rendered"
VALUES = "values.yaml"
EVIDENCE = "evidence"
#: Is there where the evidence is only what a log told: it is not sent, and asked for again.
FROM_LOG = "evidence-from-log"
#: What a drill came to; the runs of a drill lie beside it.
DRILL = "drill.json"

_ATTEMPT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def runs() -> Path:
    """The folder of all runs: $ACCEPT_RUNS, else in the user's state folder."""
    named = os.environ.get("ACCEPT_RUNS")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "accept" / "runs"


def listed() -> tuple[Path, ...]:
    """The run folders there are, oldest first."""
    folder = runs()
    found = (p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else ()
    return tuple(sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name)))


def kind(path: Path) -> str:
    """`file`, `folder`, or nothing: also for what is no path at all, such as a name too long."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return "file" if stat.S_ISREG(mode) else "folder" * stat.S_ISDIR(mode)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Wait until no other command works on a submitted run's evidence, and keep others out."""
    with (folder / JOB).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_name(attempt: str) -> bool:
    """Whether a run may be called that."""
    return _ATTEMPT.fullmatch(attempt) is not None and attempt != "last"


def create(attempt: str, *, within: Path | None = None) -> Path:
    """Make the folder of a new attempt, or of one that is part of the drill `within`.

    Raises BadInput where the name is taken or is none.
    """
    if not is_name(attempt):
        raise BadInput(
            f"--attempt {attempt[:80]!r} is no name", hint="use up to 63 of a-z, 0-9 and '-'"
        )
    folder = (within or runs()) / attempt
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise BadInput(
            f"the attempt {attempt} exists already", hint="choose another --attempt"
        ) from None
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be made: {error.strerror}",
            hint="set ACCEPT_RUNS to a folder of yours",
        ) from None
    return folder


def find(name: str) -> Path:
    """The folder of a run by attempt, by path, or the newest for `last`.

    Raises BadInput where there is none, and where it is a drill, which is many.
    """
    if name == "last":
        there = listed()
        if not there:
            raise BadInput(f"there are no runs in {runs()}", hint="start one: accept run")
        return _one(there[-1])
    drilled = sorted(runs().glob(f"*/{name}/{RUN}")) if _ATTEMPT.fullmatch(name) else []
    places = (runs() / name if _ATTEMPT.fullmatch(name) else None, *(p.parent for p in drilled))
    for folder in (*places, Path(name)):
        if name and folder is not None and kind(folder) == "folder":
            return _one(folder)
    newest = ", ".join(p.name for p in listed()[-3:][::-1]) or "none"
    raise BadInput(
        f"there is no run {name[:200]!r}", hint=f"newest runs: {newest}; or name a folder"
    )


def _one(folder: Path) -> Path:
    if not (folder / DRILL).is_file():
        return folder
    inside = ", ".join(sorted(p.parent.name for p in folder.glob(f"*/{RUN}"))) or "none"
    raise BadInput(f"{folder.name} is a drill and no run", hint=f"its runs: {inside}")
