"""Find the CPUs near a PCI device, and run a thread on them while it allocates memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SYS = Path(os.environ.get("ACCEPT_SYS", "/sys"))


def near(address: str, root: Path = SYS) -> set[int]:
    """Return the CPUs of the NUMA node of a PCI device; empty if the kernel does not list them.

    `address` is the device's PCI address, such as 0000:18:00.0; NVML writes the domain with eight
    digits.
    """
    domain, _, rest = address.lower().partition(":")
    path = root / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "local_cpulist"
    try:
        return parse(path.read_text())
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
