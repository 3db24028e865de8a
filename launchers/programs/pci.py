"""Find PCI devices of this host in sysfs, the bridges above them, and the CPUs near them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rank_io import read

#: The folder of sysfs, which tests can replace.
SYS = Path(os.environ.get("ACCEPT_SYS", "/sys"))
#: The name of a device or bridge in sysfs.
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: Devices of these classes are GPUs: display and 3D controllers.
_GPU_CLASSES = ("0x03",)


def gpus(sys: Path = SYS) -> list[Path]:
    """Return the NVIDIA GPUs on the bus, also without a driver."""
    devices = sorted((sys / "bus/pci/devices").glob("*"))
    of_nvidia = (device for device in devices if read(device / "vendor") == "0x10de")
    return [device for device in of_nvidia if read(device / "class").startswith(_GPU_CLASSES)]


def device(address: str, sys: Path = SYS) -> Path:
    """Return the folder of a device, such as 0000:18:00.0; NVML writes eight digits first."""
    domain, _, rest = address.lower().partition(":")
    return sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}"


def above(device: Path) -> list[Path]:
    """Return the bridges above a device, the root port first."""
    return [path for path in reversed(device.parents) if ADDRESS.fullmatch(path.name)]


def short_name(text: str) -> str:
    """Return an address in the format of the kernel's log, "0000:1b:00", from any format."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest.partition('.')[0]}"


def near(address: str, sys: Path = SYS) -> set[int]:
    """Return the CPUs of a device's NUMA node; empty if the kernel does not list them."""
    try:
        return parse((device(address, sys) / "local_cpulist").read_text())
    except (OSError, ValueError):
        return set()


def parse(text: str) -> set[int]:
    """Return the CPUs of a list such as 0-3,8. Raises ValueError."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


@contextmanager
def on(cpus: set[int]) -> Iterator[bool]:
    """Run this thread on `cpus` while the context is entered; yield False if none is allowed.

    The kernel takes memory from the NUMA node of the CPU that requests it.
    """
    before = os.sched_getaffinity(0)
    allowed = cpus & before
    if not allowed:
        yield False
        return
    os.sched_setaffinity(0, allowed)
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)
