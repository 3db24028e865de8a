"""List the GPUs of this host with NVML (pynvml), or else with nvidia-smi; AMD GPUs with amd-smi.

As a program, print what NVML reports as JSON. `gpus` starts it as one, because a call of a driver
that hangs never returns.

A GPU is {index, uuid, name, memoryMiB, memoryUsedMiB, driver, eccUncorrected, pci, serial,
vbios, inforom, part, processes: list of "PID NAME", error, errorCode}; unknown values are None, and
nvidia-smi does not report the InfoROM and the part number in all releases. A GPU for which
the driver reports an error has `error` and NVML's `errorCode`, and may lack all other values.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import amd_gpus
import commands
import given_gpus
import nvml
import pci

#: Time limit of a program in seconds. Without persistence mode the driver first starts all GPUs of
#: the host, which takes half a minute or more.
SECONDS = 90
#: Column of `nvidia-smi --query-gpu` -> key.
_COLUMNS = {
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "memory.total": "memoryMiB",
    "memory.used": "memoryUsedMiB",
    "driver_version": "driver",
    "ecc.errors.uncorrected.volatile.total": "eccUncorrected",
    "pci.bus_id": "pci",
    "serial": "serial",
    "vbios_version": "vbios",
}
_NUMBERS = {"index", "memoryMiB", "memoryUsedMiB", "eccUncorrected"}
#: What nvidia-smi prints for a value that it could not read because of a fault -> NVML's code.
_FAULTS = {"[GPU requires reset]": 16, "[GPU is lost]": 15, "[Unknown Error]": 999}
#: The line of nvidia-smi for a GPU that it cannot open, in the forms of several releases.
_UNOPENED = re.compile(
    r"Unable to determine the device handle for GPU ?(?:(?P<index>\d{1,3}):)? ?"
    r"(?P<pci>[0-9A-Fa-f]{3,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)?:? ?(?P<error>.+)"
)
#: What nvidia-smi prints if NVML does not start, or for a GPU that it may not open -> NVML's code.
_START_FAULTS = {"Insufficient Permissions": 4, "Driver/library version mismatch": 18}
_NO_PERMISSION = 4
_MIB = 1 << 20
#: The argument with which the program also lists the GPUs of other jobs.
OTHERS = "--of-others"


class Found(NamedTuple):
    """The GPUs of a host. `gpus` is None if the driver did not answer in time."""

    gpus: list[dict[str, Any]] | None
    #: NVLink fabric of each GPU, as (cluster, clique); None: unknown.
    fabrics: list[tuple[str, str]] | None = None
    #: Newest CUDA that the driver supports, such as "13.0"; "": unknown.
    cuda: str = ""
    #: Why the driver shows no GPU, or not all; "" if it does.
    words: str = ""
    #: NVML's code if the driver shows no GPU; None: it does, or the reason is another one.
    code: int | None = None
    #: The GPUs that this user may not open, as indexes or addresses.
    forbidden: Sequence[int | str] = ()
    #: The list of the job's GPUs, as by `given_gpus.Given.as_fact`.
    given: dict[str, Any] | None = None


class Silent(Exception):
    """A program does not answer."""


class Shares(NamedTuple):
    """All GPUs, and whether this job was given each; None: unknown."""

    gpus: list[tuple[dict[str, Any], bool | None]]
    #: The list of the job's GPUs, as by `given_gpus.Given.as_fact`.
    given: dict[str, Any] | None


def gpus(*, of_others: bool = False) -> Found:
    """Return the driver's GPUs, from NVML if it works; `of_others`: also those of other jobs."""
    try:
        ran = _asked("NVML", sys.executable, __file__, *[OTHERS] * of_others)
        listed: dict[str, Any] = {"words": f"NVML: {last(ran.err)}"}
        if ran.exit == 0:
            listed = json.loads(ran.out)
        if "gpus" in listed:
            fabrics = [(cluster, clique) for cluster, clique in listed["fabrics"]]
            more = {key: listed[key] for key in ("words", "forbidden", "given")}
            return Found(listed["gpus"], fabrics, listed["cuda"], **more)
        found = _by_smi(listed["words"], listed.get("code"), of_others=of_others)
        return found if found.gpus or not amd_gpus.is_installed() else Found(amd_gpus.listed())
    except (amd_gpus.Unread, Silent, ValueError) as error:
        return Found(None, words=str(error))


def _asked(name: str, *command: str) -> commands.Ran:
    """Return the output of a program that is called `name`. Raises Silent."""
    ran = commands.run(SECONDS, *command)
    if ran.is_late:
        raise Silent(f"{name} does not answer in {SECONDS} s")
    return ran


def last(text: str) -> str:
    """Return the last line of a text."""
    return text.strip().rpartition("\n")[2][:200]


# nvidia-smi


def smi(query: str, columns: Sequence[str]) -> tuple[list[list[str]], str]:
    """Return the rows of an nvidia-smi query, and its other lines, whatever its exit status.

    With one lost GPU it prints rows for the others. Raises Silent.
    """
    options = (f"--query-{query}={','.join(columns)}", "--format=csv,noheader,nounits")
    ran = _asked("nvidia-smi", "nvidia-smi", *options)
    rows, words = [], []
    for line in ran.out.splitlines():
        for row in csv.reader(io.StringIO(line), skipinitialspace=True):
            if len(row) == len(columns):
                rows.append(row)
            elif line.strip():
                words.append(line.strip())
    return rows, "; ".join([*words, *filter(str.strip, ran.err.splitlines())])[:400]


def fault(text: str) -> int | None:
    """Return NVML's code for a value that nvidia-smi could not read because of a fault."""
    return _FAULTS.get(text)


def unopened(words: str, listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the GPUs that nvidia-smi could not open, from its lines.

    `listed`: those of its rows. Some releases write no index. nvidia-smi orders GPUs by address, so
    if the rows prove that no GPU is missing, the address shows the index.
    """
    found: list[dict[str, Any]] = []
    for part in words.split("; "):
        if match := _UNOPENED.search(part):
            error = match["error"].strip()
            code = _START_FAULTS.get(error, 15 if "lost" in error else 999)
            index, at = match["index"], match["pci"] and pci.short_name(match["pci"])
            gpu = {"index": int(index) if index else None, "pci": at}
            found.append(gpu | {"error": error, "errorCode": code})
    indexes = {pci.short_name(gpu["pci"] or ""): gpu["index"] for gpu in (*listed, *found)}
    places = {address: place for place, address in enumerate(sorted(indexes))}
    if listed and all(index in (None, places[address]) for address, index in indexes.items()):
        for gpu in found:
            gpu["index"] = places[gpu["pci"]] if gpu["pci"] else gpu["index"]
    return found


def _by_smi(why: str, code: int | None, *, of_others: bool) -> Found:
    rows, words = smi("gpu", list(_COLUMNS))
    found = [_row(row) for row in rows]
    found += [{"processes": []} | gpu for gpu in unopened(words, found)]
    shares = given(found)
    found = found if of_others else [gpu for gpu, own in shares.gpus if own]
    forbidden = [label(gpu) for gpu in found if is_forbidden(gpu)]
    found = [gpu for gpu in found if not is_forbidden(gpu)]
    apps, _ = smi("compute-apps", ["gpu_uuid", "pid", "process_name"]) if rows else ([], "")
    by_uuid = {gpu["uuid"]: gpu for gpu in found if gpu.get("uuid")}
    for uuid, pid, name in apps:
        if uuid in by_uuid:
            by_uuid[uuid]["processes"].append(f"{pid} {name}"[:100])
    fabric, _ = smi("gpu", ["uuid", "fabric.clusterUuid", "fabric.cliqueId"])
    fabrics = [(cluster, clique) for uuid, cluster, clique in fabric if uuid in by_uuid] or None
    cuda = re.search(r"CUDA Version: *(\S+)", _asked("nvidia-smi", "nvidia-smi").out)
    if not found:
        code = next((c for text, c in _START_FAULTS.items() if text in words), code)
    words, code = f"{why}; nvidia-smi: {words or 'no GPU'}", None if found else code
    version = cuda[1] if cuda else ""
    return Found(found, fabrics, version, words, code, forbidden, shares.given)


def is_forbidden(gpu: dict[str, Any]) -> bool:
    """Return True if this user may not open a GPU."""
    return gpu.get("errorCode") == _NO_PERMISSION


def label(gpu: dict[str, Any]) -> str:
    """Return the index of a GPU, or else its address; empty if both are unknown."""
    return str(gpu.get("pci") or "" if gpu.get("index") is None else gpu["index"])


def given(gpus: Sequence[dict[str, Any]]) -> Shares:
    """Return which of all GPUs this job was given, by the keys `index` and `uuid`.

    A GPU without an index has one that no other has. GPUs without a row keep theirs.
    """
    by_index = {gpu["index"]: gpu for gpu in gpus if gpu.get("index") is not None}
    for gpu in gpus:
        if gpu.get("index") is None:
            by_index[next(n for n in range(len(by_index) + 1) if n not in by_index)] = gpu
    uuids = [
        by_index.get(n, {}).get("uuid") for n in range(min(1024, max(by_index, default=-1) + 1))
    ]
    of_job = given_gpus.read(uuids)
    own = of_job.shares(uuids)
    pairs = [(gpu, own[n]) for n, gpu in sorted(by_index.items()) if 0 <= n < len(own)]
    return Shares(pairs, of_job.as_fact(len(uuids)))


def _row(row: Sequence[str]) -> dict[str, Any]:
    gpu: dict[str, Any] = {"processes": []}
    for key, text in zip(_COLUMNS.values(), row, strict=True):
        gpu[key] = None
        if (code := fault(text)) is not None:
            gpu |= {"error": text.strip("[]"), "errorCode": code}
        elif text and not text.startswith("["):
            gpu[key] = int(float(text)) if key in _NUMBERS else text
    return gpu


# NVML


def by_nvml(*, of_others: bool = False) -> dict[str, Any]:
    """Return the keys `gpus`, `fabrics`, `cuda`, `given`, `forbidden` and `words`.

    If NVML does not work, return `words`, and `code` if it has one.
    """
    try:
        bindings = nvml.load()
    except ImportError:
        return {"words": "no pynvml"}
    try:
        bindings.nvmlInit()
        all_gpus = nvml.gpus(bindings)
        driver = nvml.text(bindings.nvmlSystemGetDriverVersion())
    except bindings.NVMLError as error:
        return {"words": f"NVML: {error}", "code": error.value}
    listed, fabrics, hangs, forbidden = [], [], [], []
    for number, _, failure, uuid, own in all_gpus.gpus:
        if not (own or of_others):
            continue
        if getattr(failure, "value", None) == _NO_PERMISSION:
            forbidden.append(number)
            continue
        try:
            if isinstance(failure, nvml.Hang):
                raise failure
            gpu = all_gpus.patience.call(number, partial(_gpu, bindings, number, driver))
        except nvml.Hang as hang:
            hangs.append(f"GPU {number}: {hang}")
            gpu = {**dict.fromkeys(_COLUMNS.values()), "index": number, "uuid": uuid}
            gpu |= {"processes": []}
            if number == all_gpus.patience.hung[0]:
                gpu |= {"error": str(hang), "errorCode": hang.value}
        if gpu is not None:
            listed.append(gpu)
            fabrics += gpu.pop("fabric", [])
    if hangs and len(hangs) == len(listed):
        return {"words": f"NVML: {'; '.join(hangs)}"[:200]}
    try:
        version = bindings.nvmlSystemGetCudaDriverVersion()
        cuda = f"{version // 1000}.{version % 1000 // 10}"
    except (bindings.NVMLError, TypeError):
        cuda = ""
    found = {"gpus": listed, "fabrics": fabrics, "cuda": cuda, "given": all_gpus.given}
    words = f"NVML: {bindings.NVMLError(_NO_PERMISSION)}" if forbidden else ""
    return found | {"forbidden": forbidden, "words": words}


def _gpu(bindings: Any, index: int, driver: str) -> dict[str, Any] | None:
    """Return a GPU; None if it cannot be opened, without a fault."""
    gpu: dict[str, Any] = {**dict.fromkeys(_COLUMNS.values()), "index": index, "processes": []}
    handle: Any = None

    def ask(function: str, *arguments: Any, then: Callable[[Any], Any] = lambda v: v) -> Any:
        try:
            return then(getattr(bindings, function)(*arguments))
        # Also errors of the bindings: an unknown value is None.
        except Exception as error:
            code = nvml.fault(error)
            if code is not None:
                gpu.setdefault("error", str(error)[:200])
                gpu.setdefault("errorCode", code)
            return None

    handle = ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return gpu if "error" in gpu else None
    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    gpu |= {
        "uuid": ask("nvmlDeviceGetUUID", handle, then=nvml.text),
        "name": ask("nvmlDeviceGetName", handle, then=nvml.text),
        "memoryMiB": None if memory is None else memory.total // _MIB,
        "memoryUsedMiB": None if memory is None else memory.used // _MIB,
        "driver": driver,
        "eccUncorrected": ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        "pci": ask("nvmlDeviceGetPciInfo", handle, then=lambda info: nvml.text(info.busId)),
        "serial": ask("nvmlDeviceGetSerial", handle, then=nvml.text),
        "vbios": ask("nvmlDeviceGetVbiosVersion", handle, then=nvml.text),
        "inforom": ask("nvmlDeviceGetInforomImageVersion", handle, then=nvml.text),
        "part": ask("nvmlDeviceGetBoardPartNumber", handle, then=nvml.text),
    }
    for process in ask("nvmlDeviceGetComputeRunningProcesses", handle) or ():
        name = ask("nvmlSystemGetProcessName", process.pid, then=nvml.text)
        gpu["processes"].append(f"{process.pid} {name or ''}".strip()[:100])
    fabric = nvml.fabric(bindings, handle)
    if fabric is not None:
        gpu["fabric"] = [fabric]
    return gpu


def domain(fabrics: Sequence[tuple[str, str]] | None) -> Mapping[str, str | None]:
    """Return the key of the NVLink domain of all GPUs here; None if it ends at this host.

    Return an empty dictionary if that is unknown.

    NCCL treats GPUs as connected if they report the same cluster, not zero, and the same clique:
    https://github.com/NVIDIA/nccl/blob/192610c9321b23deb0fad81cf51b99bc06849e85/src/mnnvl.cc
    """
    domains = set(fabrics or ())
    if len(domains) != 1:
        return {"domain": None} if domains else {}
    ((cluster, clique),) = domains
    known = re.fullmatch("[0-9a-f-]{36}", cluster) and re.search("[1-9a-f]", cluster)
    return {"domain": f"{cluster}/{clique}" if known and clique.isdigit() else None}


if __name__ == "__main__":
    print(json.dumps(by_nvml(of_others=OTHERS in sys.argv[1:])))
