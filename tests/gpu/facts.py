"""Record what NVIDIA's tools and bindings print here, as fixtures for tests without GPUs.

`python -m tests.gpu.facts FOLDER` writes the outputs of nvidia-smi, the type and value of each
pynvml call that takes one handle, field values, and what `/proc` and `/dev` show. It changes
nothing. Serial numbers and UUIDs are replaced, because fixtures are public.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

#: Seconds that one command may take.
_SECONDS = 60
_COMMANDS = {
    "nvidia-smi.txt": ("nvidia-smi",),
    "nvidia-smi-L.txt": ("nvidia-smi", "-L"),
    "nvidia-smi-q.xml": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-nvlink.txt": ("nvidia-smi", "nvlink", "-s"),
    "nvidia-smi-help-query-gpu.txt": ("nvidia-smi", "--help-query-gpu"),
    "kernel-log.txt": ("dmesg",),
    "kernel-modules.txt": ("lsmod",),
}
#: Functions that change the GPU or need more than a handle are not called.
_READS = re.compile(r"nvmlDevice(Get|Is|Validate)\w+")
#: Functions whose values identify a GPU.
_IDENTITIES = frozenset({"nvmlDeviceGetPdi", "nvmlDeviceGetSerial", "nvmlDeviceGetUUID"})
_PRIVATE = re.compile(r"GPU-[0-9a-f-]{36}|(?<=<serial>)[^<]+|(?<=<uuid>)[^<]+|\b\d{13}\b")
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _public(text: str) -> str:
    return _PRIVATE.sub("REMOVED", text)


def _shown(value: object) -> object:
    """Return a value as JSON: members of structures, elements of arrays, else its text."""
    if isinstance(value, int | float | str) or value is None:
        return value
    if isinstance(value, bytes):
        return {"bytes": value.hex() if b"\0" in value else value.decode(errors="replace")}
    if isinstance(value, ctypes.Structure):
        return {name: _shown(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, list | tuple | ctypes.Array):
        return [_shown(item) for item in value[:64]]
    if hasattr(value, "__dict__"):
        return {name: _shown(item) for name, item in vars(value).items()}
    return repr(value)[:200]


def _called(function: object, *arguments: object) -> dict[str, object]:
    """Call a function; return its type and value, or its error, and the seconds that it took."""
    assert callable(function)
    began = time.monotonic()
    try:
        value = function(*arguments)
        answer: dict[str, object] = {"type": type(value).__name__, "value": _shown(value)}
    except Exception as error:
        answer = {
            "error": type(error).__name__,
            "text": str(error),
            "code": getattr(error, "value", None),
        }
    return {**answer, "seconds": round(time.monotonic() - began, 4)}


def _calls(bindings: ModuleType, index: int) -> dict[str, object]:
    """Call each function that reads a GPU and takes its handle alone, and those of the programs."""
    handle = bindings.nvmlDeviceGetHandleByIndex(index)
    found: dict[str, object] = {}
    for name, function in inspect.getmembers(bindings, callable):
        if (
            _READS.fullmatch(name)
            and name not in _IDENTITIES
            and len(inspect.signature(function).parameters) == 1
        ):
            found[name] = _called(function, handle)
    several: dict[str, tuple[tuple[object, ...], ...]] = {
        "nvmlDeviceGetTotalEccErrors": tuple((e, c) for e in (0, 1) for c in (0, 1)),
        "nvmlDeviceGetRetiredPages": ((0,), (1,)),
        "nvmlDeviceGetViolationStatus": tuple((policy,) for policy in range(12)),
        "nvmlDeviceGetTemperature": ((bindings.NVML_TEMPERATURE_GPU,),),
        "nvmlDeviceGetTemperatureThreshold": tuple((which,) for which in range(8)),
        "nvmlDeviceGetClockInfo": tuple((clock,) for clock in range(4)),
        "nvmlDeviceGetMaxClockInfo": tuple((clock,) for clock in range(4)),
        "nvmlDeviceGetApplicationsClock": tuple((clock,) for clock in range(4)),
        "nvmlDeviceGetDefaultApplicationsClock": tuple((clock,) for clock in range(4)),
        "nvmlDeviceGetInforomVersion": tuple((which,) for which in range(4)),
        "nvmlDeviceGetNvLinkState": tuple(
            (link,) for link in range(bindings.NVML_NVLINK_MAX_LINKS)
        ),
        "nvmlDeviceGetNvLinkErrorCounter": tuple((0, counter) for counter in range(5)),
        "nvmlDeviceGetMemoryErrorCounter": tuple(
            (e, 1, place) for e in (0, 1) for place in range(9)
        ),
    }
    for name, choices in several.items():
        for arguments in choices:
            found[f"{name}{arguments}"] = _called(getattr(bindings, name), handle, *arguments)
    for reader, structure in (
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        ("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t"),
        ("nvmlDeviceGetPlatformInfo", "c_nvmlPlatformInfo_v2_t"),
    ):
        if hasattr(bindings, reader) and hasattr(bindings, structure):
            filled = getattr(bindings, structure)()
            answer = _called(getattr(bindings, reader), handle, ctypes.byref(filled))
            found[f"{reader}({structure})"] = {**answer, "filled": _shown(filled)}
    return found


def _fields(bindings: ModuleType, index: int) -> dict[str, object]:
    """Return the value of each field of NVML that this GPU reports, by the name of its constant."""
    handle = bindings.nvmlDeviceGetHandleByIndex(index)
    names = [
        name for name in dir(bindings) if name.startswith("NVML_FI_") and name != "NVML_FI_MAX"
    ]
    found: dict[str, object] = {}
    for name in names:
        try:
            (field,) = bindings.nvmlDeviceGetFieldValues(handle, [getattr(bindings, name)])
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        kind = field.valueType
        value: object = getattr(field.value, _MEMBERS[kind]) if kind < len(_MEMBERS) else None
        found[name] = {"return": field.nvmlReturn, "valueType": kind, "value": value}
    return found


def nvml() -> dict[str, object]:
    """Return what NVML reports of the system and of each GPU, or its error."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    system = {
        name: _called(getattr(pynvml, name))
        for name in dir(pynvml)
        if name.startswith("nvmlSystemGet")
        and not inspect.signature(getattr(pynvml, name)).parameters
    }
    count = pynvml.nvmlDeviceGetCount()
    gpus = [{"calls": _calls(pynvml, i), "fields": _fields(pynvml, i)} for i in range(count)]
    return {"bindings": getattr(pynvml, "__version__", None), "system": system, "gpus": gpus}


def _seen() -> dict[str, object]:
    """Return what the kernel shows of the driver: /proc, /dev and the GPUs' folders in /sys."""
    proc = Path("/proc/driver/nvidia")
    texts = {
        str(p): p.read_text(errors="replace")[:2000]
        for p in proc.rglob("*")
        if p.is_file() and os.access(p, os.R_OK)
    }
    pci: dict[str, object] = {}
    for device in Path("/sys/bus/pci/devices").glob("*"):
        vendor = device / "vendor"
        if vendor.is_file() and vendor.read_text().strip() == "0x10de":
            files = [
                f
                for f in sorted(device.iterdir())
                if f.is_file() and f.stat().st_size <= 4096 and os.access(f, os.R_OK)
            ]
            pci[device.name] = {f.name: _read(f) for f in files if f.name not in ("config", "rom")}
    readable = {
        path: os.access(path, os.R_OK)
        for path in ("/dev/kmsg", "/dev/nvidiactl", "/dev/nvidia0", "/dev/infiniband")
    }
    return {
        "proc": texts,
        "dev": sorted(str(p) for p in Path("/dev").glob("nvidia*")),
        "pci": pci,
        "readable": readable,
    }


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes()[:500].decode(errors="replace").strip()
    except OSError as error:
        return f"error {error.errno}"


def main(folder: Path) -> None:
    """Write the facts into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in _COMMANDS.items():
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
            text = f"{done.stdout}{done.stderr}\n# exit {done.returncode}\n"
        except (OSError, subprocess.TimeoutExpired) as error:
            text = f"# {type(error).__name__}: {error}\n"
        (folder / name).write_text(_public(text))
    for name, value in (("nvml.json", nvml()), ("seen.json", _seen())):
        (folder / name).write_text(_public(json.dumps(value, indent=1)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
