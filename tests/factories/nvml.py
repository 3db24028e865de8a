"""A stand-in for NVIDIA's library below the real bindings, and scenarios of GPUs for it.

`nvml.c` describes the lines of a scenario. Of several lines that fit a call, the last one counts,
so a fault is a healthy machine and a few more lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import io
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
from tests.factories import programs  # noqa: F401 - makes the programs importable
from tests.factories.paths import ROOT

from accept.core import record_protocol
from accept.core.health_readings import Reading, reading_of

import health  # isort: skip

_SOURCE = Path(__file__).with_name("nvml.c")
_DATA = ROOT / "tests/data/nvml"
_RECORDED = ROOT / "tests/data/gpu/h100-80gb-hbm3/nvml.json"
NAME = "libnvidia-ml.so.1"


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A kind of GPU."""

    #: The files with its answers. The last one counts.
    files: tuple[str, ...]
    links: int = 0
    #: True if an NVLink has the counters of NVLink 1 to 4, which NVLink 5 does not have.
    replays: bool = True


CHIPS = {
    # One GPU of a virtual machine, exactly as recorded.
    "recorded": Chip(files=()),
    "h100": Chip(files=("h100",), links=18),
    "b200": Chip(files=("h100", "b200"), links=18, replays=False),
    "gb200": Chip(files=("h100", "b200", "gb200"), links=18, replays=False),
    "a100": Chip(files=("h100", "a100"), links=12),
    "l4": Chip(files=("h100", "l4")),
}


def address(gpu: int) -> str:
    """Return the PCI address of a GPU in the form of the kernel, "0000:1b:00"."""
    return f"{gpu // 16:04x}:{0x1B + gpu % 16 * 8:02x}:00"


def uuid(gpu: int, host: int = 0) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{gpu:08x}-0000-0000-0000-{host:012x}"


def serial(gpu: int, host: int = 0) -> str:
    """Return the serial number of a GPU."""
    return f"165{host:08d}{gpu:02d}"


#: The members of a structure that a line lists, if not all of them in their order.
_MEMBERS = {
    "c_nvmlViolationTime_t": ("violationTime",),
    "c_nvmlMemory_t": ("total", "used"),
    "c_nvmlGpuFabricInfo_t": ("state", "status", "healthMask", "cliqueId"),
    "c_nvmlGpuFabricInfoV_t": ("state", "status", "healthMask", "cliqueId"),
    "c_nvmlEccSramErrorStatus_v1_t": ("bThresholdExceeded", "aggregateCor"),
}


@functools.cache
def _recorded() -> tuple[str, ...]:
    """Return the lines of the recorded H100, with its values and error codes."""
    recorded = json.loads(_RECORDED.read_text())
    (gpu,) = recorded["gpus"]
    found = ["nvmlDeviceGetFieldValues * : 0", "nvmlDeviceGetHandleByIndex * : 0"]
    for call, answer in {**recorded["system"], **gpu["calls"]}.items():
        function, _, arguments = call.rstrip(")").partition("(")
        numbers = " ".join(word for word in arguments.split(",") if word.strip().isdigit())
        if answer.get("code") or "value" in answer:
            found.append(f"{function} * {numbers} : {_answer(answer, arguments)}")
    for name, field in gpu["fields"].items():
        number, value = getattr(pynvml, name), field["value"]
        answer = f"{field['return']} {field['valueType']} {int(value)}"
        found.append(f"nvmlDeviceGetFieldValues * {number} : {answer}")
    return tuple(found)


def _answer(answer: Mapping[str, Any], structure: str) -> str:
    """Return the code and the values of a recorded call."""
    if answer.get("code"):
        return str(answer["code"])
    value = answer.get("filled", answer["value"])
    if isinstance(value, dict):
        names = _MEMBERS.get(structure if "filled" in answer else answer["type"], tuple(value))
        value = [value.get(name, 0) for name in names]
    values = value if isinstance(value, list) else [value]
    return " ".join(["0", *(str(v) for v in values if isinstance(v, int | str))])


def lines(chip: str, gpus: int, host: int = 0) -> list[str]:
    """Return the scenario of a healthy host. GPUs of hosts with other numbers are others."""
    kind = CHIPS[chip]
    found = [*_recorded(), f"nvmlInit * : 0\nnvmlDeviceGetCount * : 0 {gpus}"]
    for name in kind.files:
        found += (_DATA / f"{name}.txt").read_text().splitlines()
    for link in range(kind.links):
        found.append(f"nvmlDeviceGetNvLinkState * {link} : 0 1")
        if kind.replays:
            found.append(f"nvmlDeviceGetNvLinkErrorCounter * {link} : 0 0")
    for gpu in range(gpus):
        found += [
            *opened(gpu),
            f"nvmlDeviceGetUUID {gpu} : 0 {uuid(gpu, host)}",
            f"nvmlDeviceGetSerial {gpu} : 0 {serial(gpu, host)}",
        ]
    return found


@functools.cache
def library() -> Path:
    """Return the folder with the compiled library, which is made at most once per content."""
    content = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    folder = ROOT / "build" / "nvml" / content
    if not (folder / NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{os.getpid()}.so"
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{NAME}"]
        subprocess.run(["cc", *options, "-o", made, _SOURCE], check=True)
        # Test processes that run at the same time make the same file.
        made.replace(folder / NAME)
    return folder


class Scenario:
    """A scenario in a file; programs with `env` see its GPUs."""

    def __init__(self, file: Path, chip: str, gpus: int = 8, *, host: int = 0) -> None:
        self.file = file
        self.gpus = gpus
        self.lines = lines(chip, gpus, host)
        self.change()

    def change(self, *more: str) -> None:
        """Add lines to the scenario, also for processes that already run."""
        self.lines += more
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in self.lines))
        new.replace(self.file)

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of a program that sees the GPUs."""
        folder = str(library())
        path = os.environ.get("LD_LIBRARY_PATH", "")
        return {
            "LD_LIBRARY_PATH": f"{folder}:{path}" if path else folder,
            "NVML_SCENARIO": str(self.file),
        }

    def load(self) -> None:
        """Load the library into this process, which then sees the GPUs."""
        os.environ["NVML_SCENARIO"] = str(self.file)
        _load()


@functools.cache
def _load() -> ctypes.CDLL:
    """Load the library before the bindings do: a library is found by its name if it is loaded."""
    assert pynvml.nvmlLib is None
    return ctypes.CDLL(str(library() / NAME), mode=ctypes.RTLD_GLOBAL)


def read(root: Path) -> Reading:
    """Return what `health.py` reads in this process; `Scenario.load` chooses the GPUs."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        health.read_host(root, (), words=False)
        health.read_gpus(root, None, words=False)
    parsed = record_protocol.parse([printed.getvalue().encode()], "health")
    assert parsed.problems == ()
    return reading_of(parsed.facts)


def opened(gpu: int) -> tuple[str, ...]:
    """Return the lines by which a GPU can be opened and has an address."""
    return (
        f"nvmlDeviceGetHandleByIndex {gpu} : 0",
        f"nvmlDeviceGetPciInfo {gpu} : 0 0000{address(gpu).upper()}.0",
    )


def failed(gpu: int, code: int = 15, *, handle: bool = True) -> tuple[str, ...]:
    """Return the lines of a GPU whose calls fail, such as a lost one; with `handle`, it opens."""
    return (f"* {gpu} : {code}", *(opened(gpu) if handle else ()))


def xid(gpu: int, code: int) -> str:
    """Return the line of an Xid."""
    return f"event {gpu} : 0 8 {code}"


def host(root: Path, gpus: Iterable[int]) -> None:
    """Create the files by which a program sees NVIDIA's driver and its GPUs below `root`."""
    (root / "dev").mkdir(parents=True, exist_ok=True)
    (root / "dev/nvidiactl").touch()
    for gpu in gpus:
        device = root / "sys/bus/pci/devices" / f"{address(gpu)}.0"
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        (root / "proc/driver/nvidia/gpus" / f"{address(gpu)}.0").mkdir(parents=True, exist_ok=True)
