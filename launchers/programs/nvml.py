"""Import NVIDIA's bindings of NVML (package nvidia-ml-py).

A host's own package comes first. Otherwise the copy that travels with this code is used: one file
of pure Python, BSD license, in the folder `bindings`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import given_gpus

T = TypeVar("T")

_BINDINGS = str(Path(__file__).with_name("bindings"))
#: Return codes that only mean that this GPU, driver or user has no such reading: invalid argument,
#: not supported, no permission, function not found, no data, other version of an argument,
#: deprecated, not ready (nvml.h, nvmlReturn_t). All others are faults, such as "GPU is lost".
_NO_READING = frozenset({2, 3, 4, 13, 21, 25, 26, 27})


#: Seconds that the reading of one GPU may take. The time for two such GPUs must fit into the limits
#: of the programs, `health.SECONDS` and `gpu_inventory.SECONDS`.
GPU_SECONDS = 20.0
_MOST_HANGS = 2


class Hang(Exception):
    """The driver does not answer a call for one GPU."""

    #: NVML's code of a timeout (nvml.h, NVML_ERROR_TIMEOUT).
    value = 10


class Patience:
    """Read GPUs one after the other, and leave behind a call that hangs.

    Nothing interrupts such a call: it keeps its thread until the process ends. After two of them,
    the other GPUs are not read, because the driver as a whole may hang.
    """

    def __init__(self) -> None:
        #: The GPUs that hung, by their numbers in NVML's list.
        self.hung: list[int] = []

    def call(self, gpu: int, function: Callable[[], T]) -> T:
        """Return the result of a function that reads a GPU. Raises Hang, and what it raises."""
        if len(self.hung) >= _MOST_HANGS:
            raise Hang(f"not read because GPU {self.hung[0]} and GPU {self.hung[1]} hang")
        results: list[T] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(GPU_SECONDS)
        if errors:
            raise errors[0]
        if not results:
            self.hung.append(gpu)
            raise Hang(f"no answer in {GPU_SECONDS:g} s")
        return results[0]


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
    #: What reads the GPUs; it knows those that hang.
    patience: Patience


def gpus(bindings: Any) -> Gpus:
    """Return all GPUs of NVML's list."""
    patience = Patience()
    found = []
    for index in range(bindings.nvmlDeviceGetCount()):
        try:
            found.append(patience.call(index, partial(_listed, bindings, index)))
        except Hang as error:
            found.append(Listed(index, None, error, None, given=True))
    if not given_gpus.is_listed():
        return Gpus(found, None, patience)
    # CUDA numbers only those that it may open.
    open_ = [gpu for gpu in found if gpu.error is None or fault(gpu.error) is not None]
    uuids = [gpu.uuid for gpu in open_]
    of_job = given_gpus.read(uuids)
    given = {gpu.number: own for gpu, own in zip(open_, of_job.shares(uuids), strict=True)}
    listed = [gpu._replace(given=given.get(gpu.number, False)) for gpu in found]
    return Gpus(listed, of_job.as_fact(len(uuids)), patience)


def _listed(bindings: Any, index: int) -> Listed:
    handle, error, own = None, None, None
    try:
        handle = bindings.nvmlDeviceGetHandleByIndex(index)
        own = text(bindings.nvmlDeviceGetUUID(handle))
    except bindings.NVMLError as failed:
        error = failed if handle is None else None
    return Listed(index, handle, error, own, given=True)


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
