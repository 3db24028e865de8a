"""Every function and constant of NVML that the programs use exists in the real bindings.

Each function is called on them, above the stand-in for NVIDIA's library, with the arguments that
the programs give. A new call fails here until the stand-in has the function.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.factories import nvml
from tests.factories.paths import PROGRAMS

import gpu_inventory
import sampler
import xid_watch

_NAME = re.compile(r"nvml[A-Z]\w+|NVML_\w+|NVMLError\w*|c_nvml\w+")
_FUNCTION = re.compile(r"nvml[A-Z]\w+")


def used() -> set[str]:
    """Return the names of the bindings that the programs use, as attributes or as texts."""
    found: set[str] = set()
    for path in PROGRAMS.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                name = node.attr
            elif isinstance(node, ast.Constant):
                name = str(node.value)
            else:
                continue
            if _NAME.fullmatch(name):
                found.add(name)
    return found


FUNCTIONS = sorted(
    name for name in used() if _FUNCTION.fullmatch(name) and callable(getattr(pynvml, name, None))
)


def test_every_name_exists_in_the_bindings() -> None:
    assert {"nvmlInit", "NVMLError_Timeout", "c_nvmlGpuFabricInfoV_t"} < used()
    members = {name for name, _ in pynvml.c_nvmlFieldValue_t._fields_}
    assert sorted(name for name in used() - members if not hasattr(pynvml, name)) == []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the functions of the bindings that were called, each with arguments that it takes."""
    seen: set[str] = set()

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            inspect.signature(function).bind(*arguments)
            seen.add(name)
            return function(*arguments)

        return call

    for name in FUNCTIONS:
        monkeypatch.setattr(pynvml, name, recorded(name, getattr(pynvml, name)))
    return seen


def start_all(folder: Path, *faults: str) -> None:
    """Run all code of the programs that calls NVML, in this process."""
    scenario = nvml.Scenario(folder / "scenario", "h100", 2)
    scenario.change(
        "nvmlDeviceGetComputeRunningProcesses * : 0 77 1000",
        "nvmlSystemGetProcessName * : 0 python",
        *faults,
    )
    scenario.load()
    nvml.host(folder / "root", range(2))
    nvml.read(folder / "root")
    gpu_inventory.by_nvml()
    sampled = sampler.Sampler(nvml.uuid(0))
    sampled._look(*sampler._open(nvml.uuid(0)))
    link = sampler.Link(nvml.uuid(0))
    link.look()
    link.address()
    watched = xid_watch._Watched(pynvml)
    watched.lost()
    watched.restart([])
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(watched.events, 0)


OLDER = (
    "nvmlDeviceGetGpuFabricInfoV * : 3",
    "nvmlDeviceGetCurrentClocksEventReasons * : 3",
)


def test_every_function_is_called_above_the_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: set[str]
) -> None:
    missing: set[str] = set()
    find = pynvml._nvmlGetFunctionPointer

    def finding(symbol: str) -> Any:
        try:
            return find(symbol)
        except pynvml.NVMLError_FunctionNotFound:
            # The programs would take it for a function that the driver does not have.
            missing.add(symbol)
            raise

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", finding)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    start_all(tmp_path)
    start_all(tmp_path, *OLDER)
    assert sorted(calls) == FUNCTIONS
    assert missing == set()
