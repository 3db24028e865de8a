"""Import NVIDIA's bindings of NVML (package nvidia-ml-py).

A host's own package comes first. Otherwise the copy that travels with this code is used: one file
of pure Python, BSD license, in the folder `bindings`.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import given_gpus

_BINDINGS = str(Path(__file__).with_name("bindings"))
#: Return codes that only mean that this GPU, driver or user has no such reading: invalid argument,
#: not supported, no permission, function not found, no data, other version of an argument,
#: deprecated, not ready (nvml.h, nvmlReturn_t). All others are faults, such as "GPU is lost".
_NO_READING = frozenset({2, 3, 4, 13, 21, 25, 26, 27})


def load() -> Any:
    """Return the module `pynvml`. Raises ImportError if there is none."""
    if _BINDINGS not in sys.path:
        sys.path.append(_BINDINGS)
    import pynvml

    return pynvml


def fault(error: Exception) -> int | None:
    """Return the code of an NVML error that is a fault of the GPU; None for other errors."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) and code not in _NO_READING else None


class Listed(NamedTuple):
    """A GPU of NVML's list; `handle` is None if it cannot be opened, because of `error`."""

    number: int
    handle: Any
    error: Exception | None
    uuid: str | None
    #: False: this job was not given it; None: unknown.
    given: bool | None


class Gpus(NamedTuple):
    """The GPUs of NVML's list."""

    gpus: list[Listed]
    #: Those that the job was given, and None without a list; see `given_gpus.Given.as_fact`.
    given: dict[str, Any] | None


def gpus(bindings: Any) -> Gpus:
    """Return all GPUs of NVML's list."""
    found = []
    for index in range(bindings.nvmlDeviceGetCount()):
        handle, error, own = None, None, None
        try:
            handle = bindings.nvmlDeviceGetHandleByIndex(index)
            own = text(bindings.nvmlDeviceGetUUID(handle))
        except bindings.NVMLError as failed:
            error = failed if handle is None else None
        found.append(Listed(index, handle, error, own, given=True))
    if not given_gpus.is_listed():
        return Gpus(found, None)
    # CUDA numbers only those that it may open.
    open_ = [gpu for gpu in found if gpu.error is None or fault(gpu.error) is not None]
    uuids = [gpu.uuid for gpu in open_]
    of_job = given_gpus.read(uuids)
    given = {gpu.number: own for gpu, own in zip(open_, of_job.shares(uuids), strict=True)}
    listed = [gpu._replace(given=given.get(gpu.number, False)) for gpu in found]
    return Gpus(listed, of_job.as_fact(len(uuids)))


def fabric(bindings: Any, handle: Any) -> tuple[str, str] | None:
    """Return the NVLink cluster and clique of a GPU; None if it reports none."""
    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        try:
            info = getattr(bindings, structure)()
            getattr(bindings, function)(handle, ctypes.byref(info))
        except Exception:
            continue
        return str(uuid.UUID(bytes=bytes(info.clusterUuid))), str(info.cliqueId)
    return None


def text(value: str | bytes) -> str:
    """Return a text of NVML; old bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
