"""List AMD GPUs and read their counters with amd-smi. It never ran on AMD.

The keys are those of ROCm 6.3 and newer (ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py). ROCm 7 puts
the list of GPUs into an object. Values that a GPU does not have are "N/A". All GPUs count: the
variables that hide some of them from HIP are not read.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator

import commands
import pci
from health_host import Device, Gap, gap

#: What amd-smi reports about a GPU: place, such as "ecc/total_correctable_count", -> value.
Gpu = dict[str, str | float]

#: Time limit of amd-smi in seconds.
SECONDS = 60
#: Counter or level -> its place in the output of `amd-smi metric`.
_COUNTERS = {
    "ecc-corrected": "ecc/total_correctable_count",
    "ecc-uncorrected": "ecc/total_uncorrectable_count",
    "pcie-replay": "pcie/replay_count",
}
_LEVELS = {
    "temperature": "temperature/hotspot",
    "memory-temperature": "temperature/mem",
    "power": "power/socket_power",
    "utilization": "usage/gfx_activity",
    "pcie-width": "pcie/width",
}
#: What slows a GPU because of heat, and NVML's bit for that, which the rules know.
_HOT = ("prochot", "socket_thermal", "vr_thermal", "hbm_thermal")
_SLOWED_BY_HEAT = 0x40


class Unread(Exception):
    """The reason why amd-smi reports nothing."""


def is_installed() -> bool:
    """Return True if this host has amd-smi."""
    return shutil.which("amd-smi") is not None


def listed() -> list[dict[str, object]]:
    """Return the GPUs in the form of `gpu_inventory`. Raises Unread."""
    uuids = {gpu.get("gpu"): _text(gpu, "uuid") for gpu in _read("list")}
    return [
        {
            "index": gpu.get("gpu"),
            "uuid": uuids.get(gpu.get("gpu")),
            "name": _text(gpu, "asic/market_name"),
            "memoryMiB": _number(gpu, "vram/size"),
            "memoryUsedMiB": None,
            "driver": _text(gpu, "driver/version"),
            "eccUncorrected": None,
            "pci": _text(gpu, "bus/bdf"),
            "serial": _text(gpu, "asic/asic_serial"),
            "vbios": None,
            "processes": [],
        }
        for gpu in _read("static", "--asic", "--bus", "--driver", "--vram")
    ]


def health() -> tuple[list[Device], list[Gap]]:
    """Return the GPUs as devices of `health`, and what could not be read."""
    try:
        places = {gpu.get("gpu"): _text(gpu, "bdf") or "" for gpu in _read("list")}
        return [_device(gpu, places.get(gpu.get("gpu"), "")) for gpu in _read("metric")], []
    except Unread as error:
        return [], [gap(f"AMD GPUs ({error})", "gpus")]


def _device(gpu: Gpu, place: str) -> Device:
    levels = {name: _number(gpu, at) for name, at in _LEVELS.items()}
    states = [_text(gpu, f"throttle/{name}_violation_status") for name in _HOT]
    if any(states):
        levels["reasons"] = _SLOWED_BY_HEAT if "ACTIVE" in states else 0
    return {
        "kind": "gpu",
        "name": str(gpu.get("gpu")),
        "pci": pci.short_name(place),
        "counters": {name: _number(gpu, at) for name, at in _COUNTERS.items()},
        "levels": {name: value for name, value in levels.items() if value is not None},
    }


def _read(*command: str) -> list[Gpu]:
    """Return what amd-smi reports about each GPU. Raises Unread."""
    ran = commands.run(SECONDS, "amd-smi", *command, "--json")
    try:
        found: object = json.loads(ran.out)
    except ValueError:
        raise Unread(f"amd-smi {command[0]}: {(ran.err or ran.out).strip()[-200:]}") from None
    found = found.get("gpu_data", found) if isinstance(found, dict) else found
    rows = found if isinstance(found, list) else []
    gpus = [Gpu(_values(gpu)) for gpu in rows if isinstance(gpu, dict)]
    if not gpus:
        raise Unread(f"amd-smi {command[0]}: no GPU")
    return gpus


def _values(value: object, at: str = "") -> Iterator[tuple[str, str | float]]:
    """Yield each value with its place. A number with its unit is {"value": 71, "unit": "C"}."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _values(inner, at if key == "value" else f"{at}/{key}".lstrip("/"))
    elif isinstance(value, str):
        if value != "N/A":
            yield at, value
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
        yield at, value


def _text(gpu: Gpu, place: str) -> str | None:
    value = gpu.get(place)
    return value if isinstance(value, str) else None


def _number(gpu: Gpu, place: str) -> int | None:
    value = gpu.get(place)
    return None if value is None or isinstance(value, str) else int(value)
