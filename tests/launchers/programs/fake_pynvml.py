# ruff: noqa: N802 - the names are pynvml's own.
"""A fake of pynvml, for machines without a GPU: its answers come from the file FAKE_NVML.

The file is JSON: {"init": error or "", "gpus": [{function: answer, …}]}. An answer is returned as
it is; {"error": TEXT} is raised as NVMLError; a function that is missing is "Not Supported". For
functions with arguments the key is "FUNCTION ARGUMENT ARGUMENT", tried before the bare name.
"""

from __future__ import annotations

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
NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS = 214

_STATE = json.loads(Path(os.environ["FAKE_NVML"]).read_text())


class NVMLError(Exception):
    """The error that every function raises."""


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
    if isinstance(answer, dict):
        raise NVMLError(answer["error"])
    return answer


def nvmlDeviceGetPciInfo(gpu: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(busId=_answer("nvmlDeviceGetPciInfo", gpu))


def nvmlDeviceGetUtilizationRates(gpu: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(gpu=_answer("nvmlDeviceGetUtilizationRates", gpu))


def nvmlDeviceGetViolationStatus(gpu: dict[str, Any], policy: int) -> SimpleNamespace:
    return SimpleNamespace(violationTime=_answer("nvmlDeviceGetViolationStatus", gpu, policy))


def nvmlDeviceGetFieldValues(gpu: dict[str, Any], pairs: list[tuple[int, int]]) -> list[Any]:
    values = [_answer("nvmlDeviceGetFieldValues", gpu, *pair) for pair in pairs]
    return [
        SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=value))
        for value in values
    ]


def __getattr__(name: str) -> Any:
    if not name.startswith("nvmlDevice"):
        raise AttributeError(name)
    return lambda gpu, *arguments: _answer(name, gpu, *arguments)
