"""What every rank program needs around its measurement: who it is, what it says, where it is.

Standard library only. It lies beside the programs, so that `import rank_io` finds it when one of
them is started as a file. Records are
single lines `ACCEPT {json}` on standard output, each written by one call so that lines of different
ranks do not mix. Everything else that is printed is for people.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Faults that can be planted with ACCEPT_PLANT; what each does is said by the program it is for.
FAULTS = ("wrong", "nan", "hang", "die", "slow", "flip")
#: Those around the ranks, which the launchers plant.
AROUND = ("full-disk",)
#: Exit status when the data or the parameters were wrong, as nccl-tests' own.
EXIT_WRONG = 7
#: Exit status of a rank that could not go on, and of one that was asked for something impossible.
EXIT_CRASHED = 1
EXIT_USAGE = 2

_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}


class Unusable(Exception):
    """Something asked for that cannot be done: a bad option or environment."""


class Ended(Exception):
    """A failure whose record has been printed already."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One rank among `size`. `host` is the name that the run uses, else the machine's own.

    `local_rank` is the number of its GPU on that host, where there are any.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    #: Who started it: "mpirun", "torchrun", or "" where nobody did.
    launcher: str = ""


def host_name() -> str:
    """The name of this host as the run knows it (ACCEPT_HOST), else its own."""
    return os.environ.get("ACCEPT_HOST") or socket.gethostname()


def identity(*launchers: str) -> Identity:
    """Who this process is, from the first of `launchers` ("mpirun", "torchrun") that set it up.

    Without any it is the only rank. Raises Unusable where a launcher's variables are incomplete.
    """
    for launcher in launchers:
        names = _LAUNCHERS[launcher]
        if names[0] in os.environ:
            try:
                rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
            except (KeyError, ValueError) as error:
                raise Unusable(f"{launcher} set not all of {', '.join(names)}: {error}") from error
            if launcher == "mpirun":
                # In a group of some of a host's GPUs ("rails") the ranks keep the GPUs' numbers.
                local_rank = int(os.environ.get("ACCEPT_LOCAL_RANK") or local_rank)
            return Identity(
                rank=rank,
                size=size,
                local_rank=local_rank,
                local_size=local_size,
                host=host_name(),
                launcher=launcher,
            )
    return Identity(rank=0, size=1, local_rank=0, local_size=1, host=host_name())


def read(path: Path) -> str:
    """A file's text without the white space around it, or nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The whole number in a file, or None."""
    text = read(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def emit(**record: Any) -> None:
    """Print one record, without the keys whose value is None, numbers not finite as strings."""
    kept = {key: _finite(value) for key, value in record.items() if value is not None}
    say("ACCEPT " + json.dumps(kept, separators=(",", ":"), allow_nan=False))


def metric(name: str, value: float, unit: str, **labels: Any) -> None:
    """Print one measured number."""
    emit(metric=name, value=value, unit=unit, **labels)


def fact(name: str, value: Any, **labels: Any) -> None:
    """Print something that is no number to judge."""
    emit(fact=name, value=value, **labels)


def problem(cause: str, message: str, **labels: Any) -> None:
    """Print that something went wrong, with a cause out of the closed list."""
    emit(problem=cause, message=message, **labels)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


class Progress:
    """Where this rank is, in ACCEPT_PROGRESS/<rank>: `seq op size`, rewritten in place.

    `enter` is called just before an operation that needs other ranks. All ranks go through the same
    operations in the same order, so a rank whose `seq` is lower than the others' is the one that
    they wait for: it never entered what they are in. `work` adds for how long this rank may work by
    itself before it enters the next. The last entry is `done`. A rank that finds the disk full says
    so, and ends there.
    """

    def __init__(self, rank: int, folder: str | None = None) -> None:
        folder = os.environ.get("ACCEPT_PROGRESS", "") if folder is None else folder
        self._file = -1
        self.seq = 0
        self.op = "start"
        self.size = 0
        self.rank = rank
        if folder:
            with self._room():
                Path(folder).mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                self._file = os.open(Path(folder) / str(rank), flags, 0o600)
        self._write()

    def enter(self, op: str, size: int = 0) -> None:
        """Say that this rank enters `op` on `size` bytes."""
        self.seq += 1
        self.op, self.size = op, size
        self._write()

    def work(self, seconds: float) -> None:
        """Say that this rank works by itself now, for at most so long, and others may wait."""
        self._write(f"{min(seconds, 999_999):.0f}s")

    def _write(self, own: str = "") -> None:
        if self._file >= 0:
            # Fixed width: a shorter line must not leave the tail of a longer one behind.
            line = f"{self.seq:>9d} {self.op[:24]:<24s} {self.size:>14d} {own:>7s}\n"
            with self._room():
                os.pwrite(self._file, line.encode(), 0)

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            host = host_name()
            message = f"rank {self.rank} on {host} cannot write its progress: {error.strerror}"
            problem("disk-full", message, host=host, rank=self.rank)
            end(EXIT_CRASHED)

    def __str__(self) -> str:
        return f"{self.op} of {self.size} B (operation {self.seq})"


@dataclass(frozen=True, kw_only=True)
class Plant:
    """The faults planted on this rank, for drills: FAULT@HOST:LOCALRANK in ACCEPT_PLANT."""

    faults: frozenset[str]

    def __contains__(self, fault: str) -> bool:
        return fault in self.faults

    def strike(self) -> None:
        """Hang or die here, if that is planted."""
        if "die" in self.faults:
            os.kill(os.getpid(), signal.SIGKILL)
        while "hang" in self.faults:
            time.sleep(3600)

    def drag(self) -> None:
        """Lose 50 ms here, if `slow` is planted."""
        if "slow" in self.faults:
            time.sleep(0.05)


def planted(me: Identity) -> Plant:
    """The faults planted on `me`; says so, loudly. Raises Unusable on a malformed ACCEPT_PLANT."""
    faults = set()
    for item in filter(None, os.environ.get("ACCEPT_PLANT", "").split(",")):
        fault, at, where = item.strip().partition("@")
        if fault in AROUND:
            continue
        host, colon, local_rank = where.rpartition(":")
        if fault not in FAULTS or not at or not colon or not local_rank.isdigit():
            known = ", ".join(FAULTS)
            raise Unusable(f"ACCEPT_PLANT: {item!r} is not FAULT@HOST:LOCALRANK (faults: {known})")
        if host == me.host and int(local_rank) == me.local_rank:
            faults.add(fault)
            say(f"# PLANTED {fault} on {host}:{local_rank}")
            fact("planted", item.strip(), host=me.host, rank=me.rank)
    return Plant(faults=frozenset(faults))


def one_line(error: BaseException) -> str:
    """The type and first line of an error, without its place in the source, in 300 characters."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def heard_of(error: BaseException) -> bool:
    """Whether an error says that other ranks could not be reached, or came too late.

    torch has classes for that (DistError and its kind); gloo's are plain RuntimeErrors that begin
    with their place in its source.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"DistError", "ConnectionError", "TimeoutError"}) or "gloo" in str(error)


def end(status: int) -> None:
    """Leave at once, output written: a broken process group would block an ordinary exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def guarded(me: Identity, progress: Progress, work: Callable[[], int]) -> None:
    """Run `work` and leave with its exit status; a failure is one record and a nonzero exit.

    The record names this rank where the failure is its own (no memory, a broken GPU, no torch), and
    nobody where it only heard of it: who lost a connection is mostly not the one to blame.
    """
    labels: dict[str, Any] = {"host": me.host, "rank": me.rank}
    try:
        status = work()
    except Unusable as error:
        if me.rank == 0:
            say(f"error: {error}")
        status = EXIT_USAGE
    except Ended:
        status = EXIT_CRASHED
    except KeyboardInterrupt:
        status = 130
    except ImportError as error:
        problem("tool-missing", f"rank {me.rank} on {me.host}: {one_line(error)}", **labels)
        status = EXIT_CRASHED
    except Exception as error:
        seen = f"rank {me.rank} on {me.host} failed in {progress}: {one_line(error)}"
        problem("crashed", seen, **({} if heard_of(error) else labels))
        status = EXIT_CRASHED
    end(status)


def median(values: Sequence[float]) -> float:
    """The median of at least one number."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
