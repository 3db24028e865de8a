"""Print the error counters of this host: GPUs, NVLink, PCIe, NICs and memory.

Prints facts `health` as records: first the kernel's counters, then those of each GPU as soon as
they are read, so that a driver that hangs, or one that is killed, affects only the rest. The keys:

    boot       an identifier of the host's current boot
    uptime     seconds on a monotonic clock
    read       kind of device -> the counters that at least one of its kind has
    devices    list of {kind, name, pci, counters, levels, missing, errors}: counters that are zero
               are left out, and of those its kind has `missing` names the ones that it lacks; a
               counter of one link of a device is called NAME.LINK; `errors` lists {code, words,
               readings} for the errors of the driver that are a fault of a GPU
    log        {first, last, events} of the kernel log, if it can be read
    watch      {last, events, blind} of the watcher of Xids (`xid_watch`), if it worked; `blind`
               lists what it does not watch
    unread     list of {reason, devices}: a thing that could not be read, with the reason, and the
               devices without any reading because of it: "all", "gpus" or "none"
    others     the addresses of GPUs that this job was not given, by CUDA_VISIBLE_DEVICES
    whole      true in the last fact

Uses the standard library, and pynvml (package nvidia-ml-py): see `nvml`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rank_io
import xid_watch
from health_gpus import gpus, has_driver
from health_host import Device, gap, host, interfaces, kernel_log, memory, pci_devices, rdma_ports

#: Maximum number of devices of one fact, because the length of a record is limited.
_DEVICES = 16
#: Seconds after which this program ends itself; longer than the time limit of nvidia-smi
#: (`gpu_inventory.SECONDS`).
SECONDS = 100


def compact(devices: Sequence[Device]) -> dict[str, Any]:
    """Return the keys `read` and `devices` of the fact, from devices with all their counters."""
    has = [
        {n.partition(".")[0] for n, v in d["counters"].items() if v is not None} for d in devices
    ]
    read: dict[str, set[str]] = {}
    for device, names in zip(devices, has, strict=True):
        read.setdefault(device["kind"], set()).update(names)
    found = []
    for device, names in zip(devices, has, strict=True):
        grown = {name: value for name, value in device["counters"].items() if value}
        one = {**device, "counters": grown}
        if missing := read[device["kind"]] - names:
            one["missing"] = sorted(missing)
        found.append(one)
    return {"read": {kind: sorted(names) for kind, names in read.items()}, "devices": found}


def lines(device: Device) -> Iterator[str]:
    """Yield a description of a device for people."""
    where = f" {device['pci']}" if "pci" in device else ""
    figures = [f"{name} {value:g}" for name, value in device["levels"].items()]
    grown = [f"{name} {value}" for name, value in device["counters"].items() if value]
    yield f"{device['kind']} {device['name']}{where}: {', '.join(figures) or 'no levels'}"
    yield f"    counted: {', '.join(grown) or 'nothing'}"
    for error in device.get("errors", ()):
        yield f"    error {error['code']} ({error['words']}): {', '.join(error['readings'])}"


def say(devices: Sequence[Device], *, words: bool, **more: Any) -> None:
    """Print devices as a fact; with `words`, print a description for people before it."""
    for line in (line for device in devices if words for line in lines(device)):
        rank_io.say(line)
    whole = compact(devices)
    last = max(0, len(devices) - 1) // _DEVICES * _DEVICES
    for start in range(0, last + 1, _DEVICES):
        value = {**whole, "devices": whole["devices"][start : start + _DEVICES]}
        value |= more if start == last else {}
        kept = {key: item for key, item in value.items() if item not in (None, [], {})}
        rank_io.fact("health", kept, check="health", host=rank_io.host_name())


def read_host(root: Path, of_the_run: tuple[str, ...], *, words: bool) -> None:
    """Print the counters of the kernel."""
    log, unread = kernel_log(root)
    devices = [*rdma_ports(root), *interfaces(root, of_the_run), *memory(root), host(root)]
    devices += pci_devices(root)
    boot = rank_io.read(root / "proc/sys/kernel/random/boot_id")[:8]
    if not any(device["kind"] == "memory" for device in devices):
        unread.append(gap("memory errors (no EDAC)"))
    say(devices, words=words, boot=boot, uptime=time.monotonic(), log=log, unread=unread)


def read_gpus(root: Path, watch: Path | None, *, words: bool) -> None:
    """Print the counters of the GPUs, and the Xids that the watcher has seen so far."""
    watched = None
    watching = watch is not None and has_driver(root)
    started = xid_watch.start(watch) if watch is not None and watching else None
    devices, unread, others = gpus(root, lambda gpu: say([gpu], words=words))
    if watch is not None and watching:
        watched, why = xid_watch.state(watch, started)
        if why:
            unread.append(gap(f"Xids by NVML ({why})"))
    say(devices, words=words, unread=unread, watch=watched, others=others, whole=True)


def main(arguments: Sequence[str]) -> None:
    """Print the facts."""
    # Do not stay behind if a driver hangs. A signal without a handler also interrupts C code.
    signal.alarm(SECONDS)
    import argparse

    parser = argparse.ArgumentParser(
        description="Print the error counters and link states of the GPUs, links, NICs and memory "
        "of this host. Run it before and after a test, and compare."
    )
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="folder that contains sys, proc and dev"
    )
    parser.add_argument(
        "--interface", default="", help="interfaces that carry the run, separated by commas"
    )
    parser.add_argument(
        "--watch",
        type=Path,
        help="start a watcher that writes Xids to this new file until it is removed; "
        "if the file exists, read it",
    )
    parser.add_argument("--quiet", action="store_true", help="print only the records")
    options = parser.parse_args(arguments)
    read_host(options.root, tuple(options.interface.split(",")), words=not options.quiet)
    read_gpus(options.root, options.watch, words=not options.quiet)
    sys.stdout.flush()
    # Exit without unloading the driver's library, which takes time.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
