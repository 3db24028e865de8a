"""Wait for Xids on all GPUs of this host with NVML, which needs no access to the kernel log.

`xid_watch.py FILE` runs until FILE is removed. Each line of FILE is a JSON object: first {"since",
"gpus"} as soon as all GPUs are watched, or {"error"}; then {"at", "pci", "code"} for each Xid. All
times are seconds on the monotonic clock. A lock on FILE shows that the watcher still runs.

Sources: nvmlEventSetCreate, nvmlDeviceRegisterEvents and nvmlEventSetWait_v2 of the NVML API
Reference Guide. NVIDIA's device plugin for Kubernetes watches in the same way, also in a container.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import nvml
from health_host import pci_name

#: Time in ms after which a watcher without an event checks that its file still exists.
_WAIT_MS = 5000
#: Seconds to wait for a new watcher. The reading of the GPUs, which comes first, starts the driver.
_START_SECONDS = 20.0
#: Xids that are kept; the rest of the file would only repeat them.
_MAX_EVENTS = 1024


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
    """Return {"last", "events"} as of the kernel log, or None and the reason.

    Waits until a watcher that was just `started` watches.
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
    if errors := [line["error"] for line in lines if "error" in line]:
        return None, str(errors[0])
    if not is_alive(file):
        return None, "it ended"
    events = [{"kind": "xid", **line} for line in lines[1:]]
    last = max((event["at"] for event in events), default=lines[0]["since"])
    return {"last": last, "events": events}, ""


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
        events = bindings.nvmlEventSetCreate()
        count = bindings.nvmlDeviceGetCount()
        for index in range(count):
            handle = bindings.nvmlDeviceGetHandleByIndex(index)
            bindings.nvmlDeviceRegisterEvents(
                handle, bindings.nvmlEventTypeXidCriticalError, events
            )
    except Exception as error:
        write(error=str(error)[:200] or type(error).__name__)
        return
    write(since=round(time.monotonic(), 3), gpus=count)
    kept = 0
    while file.exists():
        try:
            event = bindings.nvmlEventSetWait_v2(events, _WAIT_MS)
        except bindings.NVMLError_Timeout:
            continue
        except bindings.NVMLError as error:
            # Without an answer of the driver nothing is watched any more.
            write(error=str(error)[:200])
            return
        if event.eventType == bindings.nvmlEventTypeXidCriticalError and kept < _MAX_EVENTS:
            kept += 1
            at = round(time.monotonic(), 6)
            write(at=at, pci=_pci(bindings, event.device), code=int(event.eventData))


def _pci(bindings: Any, handle: Any) -> str:
    """Return the address of a GPU; empty if the driver has lost it."""
    try:
        return pci_name(nvml.text(bindings.nvmlDeviceGetPciInfo(handle).busId))
    except bindings.NVMLError:
        return ""


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
