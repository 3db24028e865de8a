"""What every rank program needs around its measurement: who it is, what it says, where it is.

It lies beside the programs, so that `import rank_io` finds it when one of them is started as a
file; torch is imported only by the functions that need it. Records are
single lines `ACCEPT {json}` on standard output, each written by one call so that lines of different
ranks do not mix. Everything else that is printed is for people.
"""

from __future__ import annotations

import datetime
import glob
import json
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Faults that can be planted with ACCEPT_PLANT; what each does is said by the program it is for.
FAULTS = ("wrong", "nan", "hang", "die", "slow")
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
                raise Unusable(f"{launcher}: {names[0]} is set, not all of {names}: {error}") from error
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


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def emit(**record: Any) -> None:
    """Print one record. Keys whose value is None are left out; non-finite numbers become strings."""
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
    return value


class Progress:
    """Where this rank is, in ACCEPT_PROGRESS/<rank>: `seq op size`, rewritten in place.

    `enter` is called just before an operation that needs other ranks. All ranks go through the same
    operations in the same order, so a rank whose `seq` is lower than the others' is the one that
    they wait for: it never entered what they are in. The last entry is `done`.
    """

    def __init__(self, rank: int, folder: str | None = None) -> None:
        folder = os.environ.get("ACCEPT_PROGRESS", "") if folder is None else folder
        self._file = -1
        self.seq = 0
        self.op = "start"
        self.size = 0
        if folder:
            os.makedirs(folder, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._file = os.open(os.path.join(folder, str(rank)), flags, 0o600)
        self._write()

    def enter(self, op: str, size: int = 0) -> None:
        """Say that this rank enters `op` on `size` bytes."""
        self.seq += 1
        self.op, self.size = op, size
        self._write()

    def _write(self) -> None:
        if self._file >= 0:
            # Fixed width: a shorter line must not leave the tail of a longer one behind.
            line = f"{self.seq:>9d} {self.op:<15s} {self.size:>14d}\n"
            os.pwrite(self._file, line.encode(), 0)

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
        host, colon, local_rank = where.rpartition(":")
        if fault not in FAULTS or not at or not colon or not local_rank.isdigit():
            known = ", ".join(FAULTS)
            raise Unusable(f"ACCEPT_PLANT: {item!r} is not FAULT@HOST:LOCALRANK (faults: {known})")
        if host == me.host and int(local_rank) == me.local_rank:
            faults.add(fault)
            say(f"# PLANTED {fault} on {host}:{local_rank}")
            fact("planted", item.strip(), host=me.host, rank=me.rank)
    return Plant(faults=frozenset(faults))


def rendezvous(me: Identity) -> str:
    """Where torch's processes meet, as an init_method URL.

    torchrun's own place under torchrun; else ACCEPT_MASTER_ADDR and ACCEPT_MASTER_PORT, else, when
    all ranks are on this host, its loopback. Raises Unusable where none of these applies.
    """
    own = "" if me.launcher == "torchrun" else "ACCEPT_"
    address = os.environ.get(f"{own}MASTER_ADDR", "")
    port = os.environ.get(f"{own}MASTER_PORT", "")
    if not address or not port:
        if me.local_size != me.size:
            raise Unusable(f"several hosts: set {own}MASTER_ADDR and {own}MASTER_PORT (of rank 0)")
        address, port = "127.0.0.1", "29511"
    if address in ("127.0.0.1", "localhost") and "lo" in (name for _, name in socket.if_nameindex()):
        # Else gloo resolves this host's own name, which may not be known or take a DNS timeout.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if me.launcher == "torchrun":
        # Its agent listens there already, and only this form uses what it serves.
        return "env://"
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def pick_device(me: Identity, wanted: str) -> str:
    """The device of this rank as torch names it: `wanted` is "cpu", "cuda" or "auto".

    "auto" takes the GPU where this host has an NVIDIA one, else the CPU. A GPU that is there and
    cannot be used is never replaced by the CPU: that is a problem record, and Ended.
    """
    import torch

    there = glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/proc/driver/nvidia/version")
    if wanted == "cpu" or (wanted == "auto" and not there and not torch.cuda.is_available()):
        return "cpu"
    labels = {"host": me.host, "rank": me.rank}
    if not torch.cuda.is_available():
        problem("gpu-unusable", "torch cannot use the GPU of this host", **labels)
        raise Ended
    count = torch.cuda.device_count()
    # A launcher may show each process only its own GPU; then that is number 0 for all of them.
    own = 0 if count == 1 and os.environ.get("CUDA_VISIBLE_DEVICES") else me.local_rank
    if own >= count:
        problem("gpu-missing", f"local rank {me.local_rank} and only {count} GPUs", **labels)
        raise Ended
    torch.cuda.set_device(own)
    return f"cuda:{own}"


def join(me: Identity, device: str, timeout: float) -> None:
    """Make the process group of all ranks: gloo, and NCCL beside it for tensors on a GPU.

    Every wait in it ends after `timeout` seconds with an error.
    """
    import torch
    import torch.distributed

    # One thread a rank: several would fight for the cores with the other ranks of this host.
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=rendezvous(me),
        rank=me.rank,
        world_size=me.size,
        timeout=datetime.timedelta(seconds=timeout),
    )


def gather_text(text: str, width: int) -> list[str]:
    """`text` of every rank, on every rank, cut to `width` bytes; over the process group, on CPU."""
    import torch
    import torch.distributed

    cut = text.encode()[:width]
    mine = torch.tensor(list(cut.ljust(width, b"\0")), dtype=torch.uint8)
    every = torch.empty(torch.distributed.get_world_size() * width, dtype=torch.uint8)
    torch.distributed.all_gather_into_tensor(every, mine)
    rows = every.view(-1, width).tolist()
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]


def one_line(error: BaseException) -> str:
    """The type and the first line of an error without its source position, at most 300 characters."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def end(status: int) -> None:
    """Leave at once, output written: a broken process group would block an ordinary exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def guarded(me: Identity, progress: Progress, work: Callable[[], int]) -> None:
    """Run `work` and leave with its exit status; a failure is one record and a nonzero exit.

    The record carries no host: a rank that reports a failure is mostly not the one to blame.
    """
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
    except Exception as error:
        seen = f"rank {me.rank} on {me.host} failed in {progress}: {one_line(error)}"
        problem("crashed", seen)
        status = EXIT_CRASHED
    end(status)


def median(values: Sequence[float]) -> float:
    """The median of at least one number."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
