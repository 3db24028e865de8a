# ruff: noqa: N802, N816 - the names are pynvml's own.
"""A fake of pynvml, for machines without a GPU: its answers come from the file FAKE_NVML.

The file is JSON: {"init": error or "", "gpus": [{function: answer, …}]}. An answer is returned as
it is; {"error": TEXT} is raised as NVMLError; a function that is missing is "Not Supported". For
functions with arguments the key is "FUNCTION ARGUMENT ARGUMENT", tried before the bare name. For
functions that fill a structure the answer is {MEMBER: value}.

Xids come from the file FAKE_XIDS, one line "GPU XID" each, as soon as it is written; the line
"lost" is an error of the driver.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
NVML_PERF_POLICY_BOARD_LIMIT, NVML_PERF_POLICY_RELIABILITY = 3, 5
NVML_NVLINK_MAX_LINKS = 36
NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY = 0, 1
NVML_NVLINK_ERROR_DL_CRC_FLIT, NVML_NVLINK_ERROR_DL_CRC_DATA = 2, 3
NVML_FI_DEV_MEMORY_TEMP = 82
NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS = 214
NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS = 221
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
nvmlEventTypeXidCriticalError = 8

_STATE = json.loads(Path(os.environ["FAKE_NVML"]).read_text())


class NVMLError(Exception):
    """The error that every function raises."""


class NVMLError_Timeout(NVMLError):  # noqa: N801
    """The error for a wait without an event."""


class c_nvmlGpuFabricInfoV_t(ctypes.Structure):  # noqa: N801
    """The members that a reading uses."""

    _fields_ = (
        ("status", ctypes.c_uint),
        ("state", ctypes.c_uint),
        ("healthMask", ctypes.c_uint),
    )


class c_nvmlEccSramErrorStatus_v1_t(ctypes.Structure):  # noqa: N801
    """The member that a reading uses."""

    _fields_ = (("bThresholdExceeded", ctypes.c_uint),)


def nvmlInit() -> None:
    if _STATE["init"] == "hang":
        while True:
            time.sleep(3600)
    if _STATE["init"]:
        raise NVMLError(_STATE["init"])


def nvmlDeviceGetCount() -> int:
    return len(_STATE["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = _STATE["gpus"][index]
    if "lost" in gpu:
        raise NVMLError("GPU is lost")
    return gpu


def _answer(name: str, gpu: dict[str, Any], *arguments: Any) -> Any:
    answer = gpu.get(
        " ".join([name, *map(str, arguments)]), gpu.get(name, {"error": "Not Supported"})
    )
    if isinstance(answer, dict) and "error" in answer:
        raise NVMLError(answer["error"])
    return answer


def _fill(name: str, gpu: dict[str, Any], reference: Any) -> None:
    for member, value in _answer(name, gpu).items():
        setattr(reference._obj, member, value)


def nvmlDeviceGetGpuFabricInfoV(gpu: dict[str, Any], reference: Any) -> None:
    _fill("nvmlDeviceGetGpuFabricInfoV", gpu, reference)


def nvmlDeviceGetSramEccErrorStatus(gpu: dict[str, Any], reference: Any) -> None:
    _fill("nvmlDeviceGetSramEccErrorStatus", gpu, reference)


def nvmlEventSetCreate() -> dict[str, int]:
    return {"read": 0}


def nvmlEventSetWait_v2(events: dict[str, int], milliseconds: int) -> SimpleNamespace:
    """Return the next line of FAKE_XIDS; a short wait without one is a timeout."""
    lines = Path(os.environ["FAKE_XIDS"]).read_text().splitlines()[events["read"] :]
    if not lines:
        time.sleep(min(milliseconds / 1000, 0.02))
        raise NVMLError_Timeout("Timeout")
    events["read"] += 1
    if lines[0] == "lost":
        raise NVMLError("GPU is lost")
    index, code = lines[0].split()
    return SimpleNamespace(device=_STATE["gpus"][int(index)], eventType=8, eventData=int(code))


def nvmlDeviceGetPciInfo(gpu: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(busId=_answer("nvmlDeviceGetPciInfo", gpu))


def nvmlDeviceGetUtilizationRates(gpu: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(gpu=_answer("nvmlDeviceGetUtilizationRates", gpu))


def nvmlDeviceGetViolationStatus(gpu: dict[str, Any], policy: int) -> SimpleNamespace:
    return SimpleNamespace(violationTime=_answer("nvmlDeviceGetViolationStatus", gpu, policy))


def nvmlDeviceGetFieldValues(gpu: dict[str, Any], pairs: list[tuple[int, int]]) -> list[Any]:
    def value(pair: tuple[int, int]) -> SimpleNamespace:
        try:
            answer = _answer("nvmlDeviceGetFieldValues", gpu, *pair)
        except NVMLError:
            return SimpleNamespace(nvmlReturn=3)
        return SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=answer))

    return [value(pair) for pair in pairs]


def __getattr__(name: str) -> Any:
    if not name.startswith("nvmlDevice"):
        raise AttributeError(name)
    return lambda gpu, *arguments: _answer(name, gpu, *arguments)
