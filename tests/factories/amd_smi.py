"""A stand-in for amd-smi of ROCm 6.3 to 7, in the form of ROCm/amdsmi, amdsmi_commands.py.

Nothing was recorded on an AMD GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.factories.shell import write_program

#: Of the public log tests/data/foreign/rccl-tests.
PLACES = tuple(f"0000:{bus}:00.0" for bus in ("05", "25", "45", "65", "85", "a5", "c5", "e5"))


def _number(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def metric(number: int, *, uncorrected: int = 0, hot: bool = False) -> dict[str, Any]:
    """Return what `amd-smi metric --json` prints about a GPU."""
    return {
        "gpu": number,
        "usage": {"gfx_activity": _number(99, "%"), "mm_activity": "N/A"},
        "power": {"socket_power": _number(600, "W"), "throttle_status": "N/A"},
        "temperature": {"edge": "N/A", "hotspot": _number(71, "C"), "mem": _number(60, "C")},
        "pcie": {"width": 16, "replay_count": 0},
        "ecc": {
            "total_correctable_count": 2,
            "total_uncorrectable_count": uncorrected,
            "cache_correctable_count": "N/A",
        },
        "throttle": {
            "prochot_violation_status": "NOT ACTIVE",
            "ppt_violation_status": "ACTIVE",
            "socket_thermal_violation_status": "ACTIVE" if hot else "NOT ACTIVE",
        },
    }


def write(folder: Path, metrics: list[dict[str, Any]], *, rocm: int = 6) -> Path:
    """Write a stand-in for these GPUs into a folder, and return that."""
    static, listed = [], []
    for one in metrics:
        number = one["gpu"]
        place = {"bdf": PLACES[number]}
        listed.append({"gpu": number, **place, "uuid": f"{number:02x}ff74a1-0000-1000-80aa"})
        static.append(
            {
                "gpu": number,
                "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": f"0x{number}"},
                "bus": place,
                "driver": {"name": "amdgpu", "version": "6.10.5"},
                "vram": {"type": "HBM3", "size": _number(196592, "MB")},
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"GPU: {one['gpu']}\n    BDF: {one['bdf']}\n    UUID: {one['uuid']}" for one in listed]
    (folder / "amd-list.txt").write_text("\n".join([*lines, ""]))
    for name, gpus in {"list": listed, "static": static, "metric": metrics}.items():
        shown = gpus if rocm < 7 else {"gpu_data": gpus}
        (folder / f"amd-{name}.json").write_text(json.dumps(shown))
    form = 'case " $* " in *" --json "*) form=json ;; *) form=txt ;; esac'
    write_program(folder / "amd-smi", f"{form}\ncat {folder}/amd-$1.$form")
    return folder
