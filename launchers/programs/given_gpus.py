"""Read from CUDA_VISIBLE_DEVICES which GPUs of the host this job was given.

NVML and nvidia-smi ignore the variable, and show the GPUs of other jobs, too. CUDA takes indexes,
UUIDs and beginnings of UUIDs; here the order of GPUs is that of the PCI bus, as in nvidia-smi:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def entries() -> list[str] | None:
    """Return the GPUs that the job was given, as listed; None: all that it can open.

    A MIG device does not name its GPU, except in the form of old drivers, "MIG-GPU-UUID/1/0".
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    found = []
    for entry in filter(None, map(str.strip, listed)):
        parent = entry[4:].partition("/")[0] if entry.startswith("MIG-GPU-") else entry
        if parent.startswith("MIG-"):
            return None
        found.append(parent)
    return found or None


def places(uuids: Sequence[str | None]) -> list[int | None]:
    """Return the place in `uuids` of each GPU that the job was given, in CUDA's order.

    None stands for a GPU that is not among them. `uuids` are those of all GPUs that can be opened,
    in the order of their indexes. A lost GPU has none: if no more GPUs lack one than UUIDs of the
    job were not found, these are the job's.
    """
    listed = entries()
    if listed is None:
        return list(range(len(uuids)))
    found = [_place(entry, uuids) for entry in listed]
    shown = tuple(filter(None, uuids))
    missing = [
        n
        for n, entry in enumerate(listed)
        if entry.startswith("GPU-") and not any(uuid.startswith(entry) for uuid in shown)
    ]
    silent = [n for n, uuid in enumerate(uuids) if not uuid and n not in found]
    if len(silent) <= len(missing):
        for n, place in zip(missing, silent, strict=False):
            found[n] = place
    return found


def given(uuids: Sequence[str | None]) -> list[bool | None]:
    """Return for each GPU whether the job was given it; None: its UUID would tell."""
    found = places(uuids)
    unknown = None if None in found else False
    return [n in found or (False if uuid else unknown) for n, uuid in enumerate(uuids)]


def _place(entry: str, uuids: Sequence[str | None]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    fitting = [n for n, uuid in enumerate(uuids) if uuid and uuid.startswith(entry)]
    return fitting[0] if entry.startswith("GPU-") and len(fitting) == 1 else None
