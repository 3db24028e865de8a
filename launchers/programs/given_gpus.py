"""Read from CUDA_VISIBLE_DEVICES which GPUs of the host this job was given.

NVML and nvidia-smi ignore the variable, and show the GPUs of other jobs, too. The rules are those
of a real driver (tests/data/gpu/cuda-visible-devices.tsv): the first entry decides if the list has
indexes or UUIDs, the list ends at the first entry that is not a GPU, and CUDA uses none if one GPU
is listed twice. Here the order of GPUs is that of the PCI bus, as in nvidia-smi:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables

NVIDIA_VISIBLE_DEVICES is for container runtimes, which then show only its GPUs. It may be "void" in
a container that has GPUs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: An index is what C's strtol reads: the text after the digits does not count.
_INDEX = re.compile(r"[ \t-\r]*([+-]?[0-9]{1,25})")
_PREFIXES = ("GPU-", "MIG-")
#: The list of a job of Slurm that requested no GPU.
_OF_SLURM = "NoDevFiles"
#: Length of a UUID without its prefix, after which CUDA reads nothing.
_UUID_LENGTH = 36
#: A line of `nvidia-smi -L`.
_LINE = re.compile(r"GPU (\d{1,3}):.*\(UUID: (GPU-[\w-]+)?")


class Fault(str, Enum):
    """Why a list does not give the job all GPUs that it names."""

    #: The list is empty, or begins with an entry that ends it.
    NONE = "none"
    #: The entry is not a GPU of the host.
    MISSING = "missing"
    #: The entry is the beginning of several UUIDs.
    AMBIGUOUS = "ambiguous"
    #: The entry is the second one of a GPU.
    TWICE = "twice"
    #: The entry is a part of a GPU.
    MIG = "mig"


class Given(NamedTuple):
    """The GPUs that the job was given."""

    #: The place of each GPU among those that can be opened, in CUDA's order; None: it is one of
    #: several that have no UUID.
    places: list[int | None]
    fault: Fault | None = None
    #: The entry with the fault.
    entry: str = ""

    def shares(self, uuids: Sequence[str | None]) -> list[bool | None]:
        """Return for each GPU whether the job was given it; None: its UUID would tell."""
        unknown = None if None in self.places else False
        return [n in self.places or (False if uuid else unknown) for n, uuid in enumerate(uuids)]

    def as_fact(self, shown: int) -> dict[str, Any] | None:
        """Return the value in the inventory; None: no list. `shown`: number of GPUs to choose from.

        `count` is the number of GPUs that the list gives, or names up to the fault.
        """
        if not is_listed():
            return None
        fault = self.fault and self.fault.value
        listed, entry = os.environ[VARIABLE][:200], self.entry[:80]
        return {
            "list": listed,
            "count": len(self.places),
            "shown": shown,
            "fault": fault,
            "entry": entry,
        }


def is_listed() -> bool:
    """Return True if the job has a list of GPUs; else it was given all that it can open."""
    return VARIABLE in os.environ


def has_uuids() -> bool:
    """Return True if the list has UUIDs, and not indexes."""
    return os.environ.get(VARIABLE, "").startswith(_PREFIXES)


def read(uuids: Sequence[str | None]) -> Given:
    """Return the GPUs that the job was given.

    `uuids` are those of all GPUs that can be opened, in the order of their indexes. A lost GPU has
    none: if no more GPUs lack one than UUIDs of the job were not found, these are the job's.
    Without any GPU the driver does not work, so an index or UUID may be correct.
    """
    if not is_listed():
        return Given([*range(len(uuids))])
    entries = os.environ[VARIABLE].split(",")
    by_uuid = has_uuids()
    places: list[int | None] = []
    fault, last = None, ""
    for number, entry in enumerate(entries):
        found: int | Fault = Fault.NONE
        if any(map(str.strip, entries[number:])) and entry != _OF_SLURM:
            found = _of_uuid(entry, uuids) if by_uuid else _of_index(entry, len(uuids))
        if found is Fault.NONE and places:
            break
        if found in places:
            return Given([], Fault.TWICE, entry)
        if found is Fault.MISSING and (not uuids or (by_uuid and _lost(uuids, places))):
            places.append(None)
        elif isinstance(found, Fault):
            fault, last = found, entry
            break
        else:
            places.append(found)
    lost, missing = _lost(uuids, places), [n for n, place in enumerate(places) if place is None]
    if len(lost) <= len(missing):
        for n, place in zip(missing, lost, strict=False):
            places[n] = place
    return Given(places, fault, last)


def _lost(uuids: Sequence[str | None], places: Sequence[int | None]) -> list[int]:
    """Return the GPUs without a UUID that are not in `places`."""
    return [n for n, uuid in enumerate(uuids) if not uuid and n not in places]


def _of_index(entry: str, count: int) -> int | Fault:
    """Return the GPU of an index. CUDA takes the lowest 32 bits of at most 64."""
    match = _INDEX.match(entry)
    if match is None:
        return Fault.MISSING
    index = max(-(1 << 63), min(int(match[1]), (1 << 63) - 1))
    index = (index + (1 << 31)) % (1 << 32) - (1 << 31)
    if index < 0:
        return Fault.NONE
    return index if index < count else Fault.MISSING


def _of_uuid(entry: str, uuids: Sequence[str | None]) -> int | Fault:
    """Return the GPU of a UUID, or of the beginning of one."""
    start = entry[4:].lower()[:_UUID_LENGTH]
    if not entry.startswith(_PREFIXES) or not start:
        return Fault.MISSING
    fitting = [n for n, uuid in enumerate(uuids) if uuid and uuid[4:].lower().startswith(start)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        return Fault.AMBIGUOUS
    return Fault.MISSING if entry.startswith("GPU-") else Fault.MIG


def uuids_of(lines: Iterable[str]) -> list[str | None]:
    """Return the UUIDs in the lines of `nvidia-smi -L` by index; a GPU without a line has none."""
    rows = {int(match[1]): match[2] for line in lines if (match := _LINE.match(line))}
    return [rows.get(n) for n in range(max(rows, default=-1) + 1)]


def main() -> None:
    """Print those of the lines of `nvidia-smi -L` on stdin whose GPUs the job was given.

    A GPU without a line has an empty one.
    """
    lines = sys.stdin.read().splitlines()
    by_index = {int(match[1]): line for line in lines if (match := _LINE.match(line))}
    for place in read(uuids_of(lines)).places:
        print(by_index.get(-1 if place is None else place, ""))


if __name__ == "__main__":
    main()
