"""A stand-in for nvidia-smi that prints recorded outputs.

Cells without a fault are those of the recorded H100, and a column exists if the recorded
`nvidia-smi --help-query-gpu` lists it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.factories import nvml
from tests.factories.paths import ROOT

_RECORDED = ROOT / "tests/data/gpu/h100-80gb-hbm3"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The output of nvidia-smi for a query, and its exit status."""

    #: Index of a GPU -> what all its cells of state show.
    cells: dict[int, str] = field(default_factory=dict)
    #: GPUs without a row.
    missing: tuple[int, ...] = ()
    out: str = ""
    err: str = ""
    exit: int = 0
    #: True if it prints no rows.
    rows: bool = True
    #: Cells that all GPUs have.
    settings: dict[str, str] = field(default_factory=dict)


#: The address of GPU 3 as nvidia-smi writes it.
_PCI = f"{nvml.address(3).upper()}.0"
#: Name -> recording. The addresses are those of the stand-in's GPUs.
RECORDINGS = {
    "healthy": Recording(),
    # NVIDIA/k8s-device-plugin issue 231 (with rows of the others); 15: `man nvidia-smi`
    "lost": Recording(
        missing=(3,),
        err=f"Unable to determine the device handle for GPU3: {_PCI}: GPU is lost.  Reboot the "
        "system to recover this GPU",
        exit=15,
    ),
    # NVIDIA/open-gpu-kernel-modules issue 387, meta-llama/llama-models issue 200 (no index)
    "unknown": Recording(
        missing=(3,),
        out=f"Unable to determine the device handle for GPU{_PCI}: Unknown Error",
        exit=255,
    ),
    # It may exit with 0 as well, with the line on stderr.
    "unknown, exit 0": Recording(
        missing=(3,),
        err=f"Unable to determine the device handle for GPU3: {_PCI}: Unknown Error",
    ),
    # leptonai/gpud pull request 1133; a job log on an H100: "0, [GPU requires reset], …, 0 MiB"
    "reset": Recording(cells={3: "[GPU requires reset]"}),
    # enkore/i3pystatus pull request 850
    "unknown cells": Recording(cells={3: "[Unknown Error]"}),
    # NVIDIA/nvidia-docker issue 1671
    "unknown, no GPU": Recording(
        rows=False, out="Failed to initialize NVML: Unknown Error", exit=255
    ),
    # 18: NVML_ERROR_LIB_RM_VERSION_MISMATCH, the exit status of nvidia-smi
    "mismatch": Recording(
        rows=False,
        out="Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 535.183",
        exit=18,
    ),
    "no driver": Recording(
        rows=False,
        out="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
        "sure that the latest NVIDIA driver is installed and running.",
        exit=9,
    ),
    "no permission": Recording(
        rows=False, out="Failed to initialize NVML: Insufficient Permissions", exit=4
    ),
    # The line for a handle, with the words of NVML_ERROR_NO_PERMISSION.
    "no permission for one": Recording(
        missing=(3,),
        err=f"Unable to determine the device handle for GPU3: {_PCI}: Insufficient Permissions",
        exit=4,
    ),
    "no devices": Recording(rows=False, out="No devices were found", exit=6),
    "MIG": Recording(settings={"mig.mode.current": "Enabled", "utilization.gpu": "[N/A]"}),
}
#: Cells of the recorded GPU; others are "[N/A]".
_CELLS = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory.total": "81559",
    "memory.used": "0",
    "driver_version": "580.159.04",
    "vbios_version": "96.00.CF.00.01",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.corrected.aggregate.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "remapped_rows.correctable": "0",
    "remapped_rows.uncorrectable": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "temperature.gpu": "32",
    "temperature.memory": "39",
    "power.draw": "75.40",
    "enforced.power.limit": "700.00",
    "power.default_limit": "700.00",
    "clocks.sm": "345",
    "clocks.mem": "2619",
    "utilization.gpu": "0",
    "clocks_event_reasons.active": "0x0000000000000001",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "ecc.mode.current": "Enabled",
    "mig.mode.current": "Disabled",
    "compute_mode": "Default",
}
#: Columns that a GPU with a fault still shows.
_IDENTITY = ("index", "uuid", "name", "pci.bus_id", "serial", "driver_version")
_PROGRAM = """
import json, sys
data = json.loads({data!r})
chosen = [option.partition("=")[2] for option in sys.argv if option.startswith("--id=")]
rows = [row for row in data["rows"] if not chosen or row["index"] in chosen]
for option in sys.argv[1:]:
    if option == "-L":
        for row in rows:
            print("GPU %s: %s (UUID: %s)" % (row["index"], row["name"], row["uuid"]))
        break
    if option.startswith("--query-gpu="):
        columns = option.partition("=")[2].split(",")
        bad = [column for column in columns if column not in data["columns"]]
        if bad:
            print('Field "' + bad[0] + '" is not a valid field to query.')
            sys.exit(2)
        for row in rows:
            print(", ".join(row.get(column, "[N/A]") for column in columns))
        break
    if option.startswith("--query-"):
        break
else:
    print(data["table"] if data["rows"] else "")
print(data["out"], end="" if not data["out"] else "\\n")
print(data["err"], end="" if not data["err"] else "\\n", file=sys.stderr)
sys.exit(data["exit"])
"""


def columns() -> set[str]:
    """Return the columns that the recorded nvidia-smi has."""
    text = (_RECORDED / "nvidia-smi-help-query-gpu.txt").read_text()
    lines = (line for line in text.splitlines() if line.startswith('"'))
    return {name for line in lines for name in re.findall(r'"([\w.]+)"', line)}


def write(folder: Path, name: str, gpus: int = 8, *, host: int = 0) -> dict[str, str]:
    """Write the stand-in, and return the environment in which programs find it."""
    recording = RECORDINGS[name]
    rows = []
    for gpu in range(gpus) if recording.rows else ():
        if gpu in recording.missing:
            continue
        row = _CELLS | {
            "index": str(gpu),
            "uuid": nvml.uuid(gpu, host),
            "pci.bus_id": f"0000{nvml.address(gpu).upper()}.0",
            "serial": nvml.serial(gpu, host),
        }
        if text := recording.cells.get(gpu):
            row |= {column: text for column in row if column not in _IDENTITY}
        rows.append(row | recording.settings)
    data = json.dumps(
        {
            "columns": sorted(columns()),
            "rows": rows,
            "table": (_RECORDED / "nvidia-smi.txt").read_text(),
            "out": recording.out,
            "err": recording.err,
            "exit": recording.exit,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\n{_PROGRAM.format(data=data)}")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}
