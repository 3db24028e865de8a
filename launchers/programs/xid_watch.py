"""Wait for Xids on all GPUs of this host with NVML, which needs no access to the kernel log.

`xid_watch.py FILE` runs until FILE is removed. Each line of FILE is a JSON object: first {"since",
"gpus"} when the GPUs are watched, or {"error"} if none can be; then {"at", "pci", "code"} for each
Xid, the same with {"kind": "lost"} and NVML's code for a GPU that the driver has lost, and
{"error"} for what is not watched. An Xid that a GPU repeats has at most one line per second. All
times are seconds on the monotonic clock. A lock on FILE shows that the watcher still runs.

Sources: nvmlEventSetCreate, nvmlDeviceRegisterEvents and nvmlEventSetWait_v2 of the NVML API
Reference Guide. NVIDIA's device plugin for Kubernetes watches in the same way, also in a container.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import nvml
import pci
from health_host import EVENTS

#: Time in ms after which a watcher without an event checks that its file still exists.
_WAIT_MS = 5000
#: Seconds to wait for a new watcher. The reading of the GPUs, which comes first, starts the driver.
_START_SECONDS = 20.0
#: Seconds between two lines of an Xid that a GPU repeats. A faulty program causes thousands.
_REPEAT_SECONDS = 1.0
#: Errors in a row, without a GPU that is lost, after which nothing is watched any more.
_MAX_FAILURES = 3
#: Functions that fail on a GPU that the driver has lost.
_PROBES = ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates")


def start(file: Path) -> subprocess.Popen[bytes] | None:
    """Start a watcher that writes to `file`; None if the file exists already.

    A watcher that ended is not started again, because the time in between was not watched.
    """
    if file.exists():
        return None
    # A watcher outlives the step that starts it, so it must not have that step's mark.
    env = {name: value for name, value in os.environ.items() if name != "ACCEPT_EXEC"}
    null = subprocess.DEVNULL
    command = [sys.executable, __file__, str(file)]
    return subprocess.Popen(
        command, env=env, stdin=null, stdout=null, stderr=null, start_new_session=True
    )


def is_alive(file: Path) -> bool:
    """Return True if a watcher holds the lock of `file`."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def state(
    file: Path, started: subprocess.Popen[bytes] | None = None
) -> tuple[dict[str, Any] | None, str]:
    """Return {"last", "events"} as of the kernel log, and what is not watched, or "".

    If some GPUs are not watched, or no longer, {"blind"} lists the reasons. If none ever was, the
    first is None. Waits until a watcher that was just `started` watches.
    """
    until = time.monotonic() + _START_SECONDS
    while (
        not (lines := _lines(file))
        and started is not None
        and started.poll() is None
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    if not lines:
        return None, "it did not start"
    first, *rest = lines
    if "since" not in first:
        return None, str(first.get("error"))
    kept: dict[tuple[str, str, int], dict[str, Any]] = {}
    for event in ({"kind": "xid", **line} for line in rest if "at" in line):
        key = (event["kind"], event["pci"], event["code"])
        kept.pop(key, None)
        kept[key] = event
    events = list(kept.values())[-EVENTS:]
    blind = [str(line["error"]) for line in rest if "error" in line]
    if len(kept) > EVENTS:
        blind.append(f"only {EVENTS} of {len(kept)} kinds of events are kept")
    if not blind and not is_alive(file):
        blind = ["it ended"]
    watch = {"last": max([first["since"], *(event["at"] for event in events)]), "events": events}
    return watch | ({"blind": blind} if blind else {}), "; ".join(blind)


def _lines(file: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the file; none if it does not exist."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return []
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def _watch(file: Path, opened: BinaryIO) -> None:
    def write(**line: Any) -> None:
        opened.write(json.dumps(line).encode() + b"\n")
        opened.flush()

    try:
        bindings = nvml.load()
        bindings.nvmlInit()
        watched = _Watched(bindings)
    except Exception as error:
        write(error=str(error)[:200] or type(error).__name__)
        return
    if not watched.handles:
        write(error=next(iter(watched.failed), "no GPU"))
        return
    write(since=round(time.monotonic(), 3), gpus=len(watched.handles))
    failures = 0
    #: (address, Xid) -> times of its last line, and of its last event without one.
    written: dict[tuple[str, int], float] = {}
    waiting: dict[tuple[str, int], float] = {}
    while file.exists():
        while watched.failed:
            write(error=watched.failed.pop(0))
        for key, at in list(waiting.items()):
            if time.monotonic() - written.get(key, -math.inf) >= _REPEAT_SECONDS:
                written[key] = waiting.pop(key)
                write(at=at, pci=key[0], code=key[1])
        try:
            wait_ms = int(_REPEAT_SECONDS * 1000) if waiting else _WAIT_MS
            event = bindings.nvmlEventSetWait_v2(watched.events, wait_ms)
        except bindings.NVMLError_Timeout:
            failures = 0
            continue
        except bindings.NVMLError as error:
            # A lost GPU ends the waiting for all, so it is reported, and the others are watched.
            lost = watched.lost()
            for handle, code in lost.items():
                at = round(time.monotonic(), 6)
                write(at=at, pci=watched.handles[handle].pci, code=code, kind="lost")
            failures = 0 if lost else failures + 1
            if failures == _MAX_FAILURES or len(lost) == len(watched.handles):
                write(error=str(error)[:200])
                return
            watched.restart(lost)
            continue
        if event.eventType == bindings.nvmlEventTypeXidCriticalError:
            key = (watched.pci(event.device), int(event.eventData))
            waiting[key] = round(time.monotonic(), 6)


class _Gpu(NamedTuple):
    number: int
    handle: Any
    pci: str


class _Watched:
    """The GPUs whose events are in one event set, by the address of their handles."""

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings
        self.handles: dict[int, _Gpu] = {}
        #: The GPUs that are not watched, with the reasons.
        self.failed: list[str] = []
        for index, handle, error, _, given in nvml.gpus(bindings).gpus:
            if not given:
                continue
            try:
                if error is not None:
                    raise error
                place = pci.short_name(nvml.text(bindings.nvmlDeviceGetPciInfo(handle).busId))
            except (bindings.NVMLError, nvml.Hang) as failed:
                self.failed.append(f"GPU {index}: {str(failed)[:100]}")
            else:
                self.handles[_address(handle)] = _Gpu(index, handle, place)
        self.events = self._new_set()

    def _new_set(self) -> Any:
        """Return a new event set with the GPUs; remove those that cannot be watched."""
        events = self.bindings.nvmlEventSetCreate()
        xid = self.bindings.nvmlEventTypeXidCriticalError
        for address, gpu in list(self.handles.items()):
            try:
                self.bindings.nvmlDeviceRegisterEvents(gpu.handle, xid, events)
            except self.bindings.NVMLError as error:
                self.failed.append(f"GPU {gpu.number}: {str(error)[:100]}")
                del self.handles[address]
        return events

    def restart(self, lost: Collection[int]) -> None:
        """Watch all GPUs except the `lost` ones."""
        old = self.events
        for address in lost:
            del self.handles[address]
        self.events = self._new_set()
        # Only now, so that no event falls between the two sets.
        self.bindings.nvmlEventSetFree(old)

    def lost(self) -> dict[int, int]:
        """Return the GPUs that the driver has lost, with its codes."""
        found = {}
        for address, gpu in self.handles.items():
            for function in _PROBES:
                try:
                    getattr(self.bindings, function)(gpu.handle)
                except self.bindings.NVMLError as error:
                    if (code := nvml.fault(error)) is not None:
                        found[address] = code
                        break
        return found

    def pci(self, handle: Any) -> str:
        """Return the address of a GPU on the PCI bus; empty if it is unknown."""
        gpu = self.handles.get(_address(handle))
        return gpu.pci if gpu else ""


def _address(handle: Any) -> int:
    """Return the address of a handle. Each call of the bindings returns a new object for it."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def main(path: str) -> None:
    """Watch until the file is removed."""
    file = Path(path)
    with file.open("ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        opened.truncate(0)
        _watch(file, opened)


if __name__ == "__main__":
    main(sys.argv[1])
