"""Provide what every rank program needs: identity, records, progress and injected faults.

Uses the standard library only. It is in the folder of the programs, so that `import rank_io` works
in a program that is started as a file. A record is a single line `ACCEPT {json}` on standard
output, written by one call, so that the lines of different ranks do not mix. All other output is
for people.
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

#: Faults that ACCEPT_INJECT can inject; the docstring of each program describes their effects.
FAULTS = ("wrong", "nan", "hang", "die", "slow", "flip")
#: Faults that the launchers inject around the ranks.
AROUND = ("full-disk",)
#: Exit status if data or parameters were wrong, as in nccl-tests.
EXIT_WRONG = 7
#: Exit status of a rank that could not go on, and of one that was started with bad options.
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
    """The options or the environment request something impossible."""


class Ended(Exception):
    """A failure whose record is already printed."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One rank of `size`. `host` is its host's name in the run, or else the hostname.

    `local_rank` is also the number of its GPU on that host, if the host has GPUs.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    #: The launcher that started the rank: "mpirun", "torchrun" or "".
    launcher: str = ""


def host_name() -> str:
    """Return this host's name in the run (ACCEPT_HOST), or else the hostname."""
    return os.environ.get("ACCEPT_HOST") or socket.gethostname()


def identity(*launchers: str) -> Identity:
    """Return the identity that the first of `launchers` ("mpirun", "torchrun") gave this process.

    Without a launcher the process is the only rank. Raises Unusable if the launcher's variables are
    incomplete.
    """
    for launcher in launchers:
        names = _LAUNCHERS[launcher]
        if names[0] in os.environ:
            try:
                rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
            except (KeyError, ValueError) as error:
                raise Unusable(f"{launcher} set not all of {', '.join(names)}: {error}") from error
            if launcher == "mpirun":
                # In a rail group, which has some GPUs of each host, a rank has its GPU's number.
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
    """Return a file's text without surrounding white space, or "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Return the integer in a file, or None."""
    text = read(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def say(line: str) -> None:
    """Print one line without buffering."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def emit(**record: Any) -> None:
    """Print one record; keys with the value None are left out, and NaN and inf become strings."""
    kept = {key: _finite(value) for key, value in record.items() if value is not None}
    say("ACCEPT " + json.dumps(kept, separators=(",", ":"), allow_nan=False))


def metric(name: str, value: float, unit: str, **labels: Any) -> None:
    """Print a measured number."""
    emit(metric=name, value=value, unit=unit, **labels)


def fact(name: str, value: Any, **labels: Any) -> None:
    """Print a fact, which is not judged as a number."""
    emit(fact=name, value=value, **labels)


def problem(cause: str, message: str, **labels: Any) -> None:
    """Print a problem; `cause` is from the closed list of causes."""
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
    """Keep the position of this rank in the file ACCEPT_PROGRESS/<rank>: `seq op size`.

    `enter` is called just before an operation that needs other ranks. All ranks go through the same
    operations in the same order. So the others wait for the rank with the lowest `seq`: it has not
    entered their operation. `work` adds how long this rank may work alone before it enters the next
    one. The last entry is `done`. If the disk is full, the rank reports that and exits.
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
        """Record that this rank enters `op` on `size` bytes."""
        self.seq += 1
        self.op, self.size = op, size
        self._write()

    def work(self, seconds: float) -> None:
        """Record that this rank now works alone for at most `seconds`, while others may wait."""
        self._write(f"{min(seconds, 999_999):.0f}s")

    def _write(self, own: str = "") -> None:
        if self._file >= 0:
            # Fixed width, so that a line overwrites the previous one completely.
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
class Injected:
    """The faults injected on this rank in a drill: FAULT@HOST:LOCALRANK in ACCEPT_INJECT."""

    faults: frozenset[str]

    def __contains__(self, fault: str) -> bool:
        return fault in self.faults

    def strike(self) -> None:
        """Hang or die here, if that fault is injected."""
        if "die" in self.faults:
            os.kill(os.getpid(), signal.SIGKILL)
        while "hang" in self.faults:
            time.sleep(3600)

    def drag(self) -> None:
        """Lose 50 ms here, if the fault `slow` is injected."""
        if "slow" in self.faults:
            time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank at work. `device` is torch's name of its device, or "" if it has none that works."""

    me: Identity
    progress: Progress
    injected: Injected
    device: str


def injected_faults(me: Identity) -> Injected:
    """Return the faults injected on `me`, and print them.

    Raises Unusable if ACCEPT_INJECT is malformed.
    """
    faults = set()
    for item in filter(None, os.environ.get("ACCEPT_INJECT", "").split(",")):
        fault, at, where = item.strip().partition("@")
        if fault in AROUND:
            continue
        host, colon, local_rank = where.rpartition(":")
        if fault not in FAULTS or not at or not colon or not local_rank.isdigit():
            known = ", ".join(FAULTS)
            raise Unusable(f"ACCEPT_INJECT: {item!r} is not FAULT@HOST:LOCALRANK (faults: {known})")
        if host == me.host and int(local_rank) == me.local_rank:
            faults.add(fault)
            say(f"# INJECTED {fault} on {host}:{local_rank}")
            fact("injected", item.strip(), host=me.host, rank=me.rank)
    return Injected(faults=frozenset(faults))


def one_line(error: BaseException) -> str:
    """Return an error's type and first line, without its source location, cut to 300 characters."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def heard_of(error: BaseException) -> bool:
    """Return True if an error means that other ranks were unreachable or too late.

    torch has classes for that (DistError and its subclasses). gloo raises a plain RuntimeError
    whose text begins with the location in gloo's source.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"DistError", "ConnectionError", "TimeoutError"}) or "gloo" in str(error)


def cause_of(error: BaseException) -> str:
    """Return the cause of a failure: `out-of-memory`, of a GPU or of the host, or `crashed`.

    torch has a class for the memory of its own allocator. The libraries of CUDA report it in their
    texts, and Python by MemoryError.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    signs = ("out of memory", "STATUS_ALLOC_FAILED", "DefaultCPUAllocator: can't allocate memory")
    if kinds & {"OutOfMemoryError", "MemoryError"} or any(sign in text for sign in signs):
        return "out-of-memory"
    return "crashed"


def end(status: int) -> None:
    """Flush the output and exit immediately: a broken process group would block a normal exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def guarded(me: Identity, progress: Progress, work: Callable[[], int]) -> None:
    """Run `work` and exit with its status; a failure prints one record and exits nonzero.

    The record names this rank if the failure is its own (no memory, a broken GPU, no torch). It
    names no rank if other ranks were unreachable or too late, because then another rank is usually
    to blame; a fact shows that this one waited for them.
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
        if heard_of(error):
            fact("waited", str(progress), **labels)
            labels = {}
        problem(cause_of(error), seen, **labels)
        status = EXIT_CRASHED
    end(status)


def run(work: Callable[[Identity, Progress], int], *launchers: str) -> None:
    """Run `work` as the rank that the first of `launchers` made this process. Ends it."""
    me = identity(*launchers)
    progress = Progress(me.rank)
    guarded(me, progress, lambda: work(me, progress))


def median(values: Sequence[float]) -> float:
    """Return the median of at least one number."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
