"""Describe this host: GPUs, processors, memory, network, limits, versions, effective settings.

Prints one fact as a record. It measures nothing, and it imports no large package: versions come
from the metadata of installed packages. An allow-list of settings keeps secrets of the environment
out of the evidence.
"""

from __future__ import annotations

import csv
import io
import os
import platform
import re
import resource
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import rank_io
from rank_io import number, read

#: PCI devices of these classes are GPUs: display and 3D controllers.
_GPU_CLASSES = ("0x03",)
_SETTINGS = re.compile(
    r"(NCCL|GLOO|OMPI_MCA|PRTE_MCA|UCX|FI|NVSHMEM)_[A-Z0-9_a-z]+|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|LD_LIBRARY_PATH|OMP_NUM_THREADS"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_GPU_FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "memory.total": "memoryMiB",
    "memory.used": "memoryUsedMiB",
    "driver_version": "driver",
    "ecc.errors.uncorrected.volatile.total": "eccUncorrected",
    "pci.bus_id": "pci",
    "serial": "serial",
}
#: Time limit of a command in seconds. Without persistence mode nvidia-smi first starts all GPUs of
#: the host, which takes half a minute or more.
SECONDS = 90
_NUMBERS = {"index", "memoryMiB", "memoryUsedMiB", "eccUncorrected"}


def output(*command: str) -> str:
    """Return the output of a command; "" if it is missing or fails.

    Raises subprocess.TimeoutExpired after SECONDS.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def smi(query: str, fields: list[str]) -> list[list[str]]:
    """Return the rows of an nvidia-smi query. Raises the errors of `output`."""
    text = output(
        "nvidia-smi", f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"
    )
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return [row for row in rows if len(row) == len(fields)]


def gpus() -> list[dict[str, Any]] | None:
    """Return the driver's GPUs, with the processes on each; unknown values are None.

    Returns None if the driver does not answer, because the host may still have GPUs.
    """
    queries = (("gpu", list(_GPU_FIELDS)), ("compute-apps", ["gpu_uuid", "pid", "process_name"]))
    try:
        # At the same time, so that the driver starts once for both.
        with ThreadPoolExecutor() as pool:
            rows, apps = pool.map(lambda query: smi(*query), queries)
    except subprocess.TimeoutExpired:
        return None
    found = []
    for row in rows:
        gpu: dict[str, Any] = {}
        for key, text in zip(_GPU_FIELDS.values(), row, strict=True):
            known = text and not text.startswith("[")
            number = key in _NUMBERS
            gpu[key] = (int(float(text)) if number else text) if known else None
        gpu["processes"] = []
        found.append(gpu)
    by_uuid = {gpu["uuid"]: gpu for gpu in found}
    for uuid, pid, name in apps:
        if uuid in by_uuid:
            by_uuid[uuid]["processes"].append(f"{pid} {name}"[:100])
    return found


def domain() -> dict[str, str | None]:
    """Return the key of the NVLink domain of all GPUs here; None if it ends at this host.

    Return an empty dictionary if that is unknown, because nvidia-smi fails or does not answer.

    NCCL treats GPUs as connected if they report the same cluster, not zero, and the same clique:
    https://github.com/NVIDIA/nccl/blob/192610c9321b23deb0fad81cf51b99bc06849e85/src/mnnvl.cc
    """
    try:
        domains = {tuple(row) for row in smi("gpu", ["fabric.clusterUuid", "fabric.cliqueId"])}
    except subprocess.TimeoutExpired:
        return {}
    if len(domains) != 1:
        return {"domain": None} if domains else {}
    ((cluster, clique),) = domains
    known = re.fullmatch("[0-9a-f-]{36}", cluster) and re.search("[1-9a-f]", cluster)
    return {"domain": f"{cluster}/{clique}" if known and clique.isdigit() else None}


def pci_gpus() -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, also without a driver."""
    count = 0
    for device in Path("/sys/bus/pci/devices").glob("*"):
        if read(device / "vendor") == "0x10de" and read(device / "class").startswith(_GPU_CLASSES):
            count += 1
    return count


def nics() -> list[dict[str, Any]]:
    """Return network interfaces except loopback, and RDMA devices; speed in Mbit/s if known."""
    found: list[dict[str, Any]] = []
    for path in sorted(Path("/sys/class/net").glob("*")):
        if path.name != "lo":
            state, speed = read(path / "operstate"), number(path / "speed")
            found.append({"name": path.name, "speed": speed, "state": state})
    for path in sorted(Path("/sys/class/infiniband").glob("*")):
        port = path / "ports" / "1"
        rate = re.match(r"\d+", read(port / "rate"))
        speed_known = int(rate.group()) * 1000 if rate else None
        state = read(port / "state").partition(":")[2].strip().lower()
        found.append({"name": path.name, "speed": speed_known, "state": state, "rdma": True})
    return found


def versions() -> dict[str, str | None]:
    """Return the versions of the software that checks use, without those that are missing.

    A version is None if the program did not answer in time.
    """
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower()
        if name in ("torch", "mpi4py", "numpy"):
            found[name] = dist.version
        elif name.startswith("nvidia-nccl"):
            found["nccl"] = dist.version
    commands = {
        "mpi": (r"\(Open MPI\) (\S+)", "mpirun", "--version"),
        "cuda": (r"CUDA Version: *(\S+)", "nvidia-smi"),
    }
    for name, (pattern, *command) in commands.items():
        try:
            if match := re.search(pattern, output(*command)):
                found[name] = match.group(1)
        except subprocess.TimeoutExpired:
            found[name] = None
    return found


def settings() -> dict[str, str]:
    """Return the effective settings of NCCL and of related libraries.

    The environment overrides the user's file (NCCL_CONF_FILE, else ~/.nccl.conf), which overrides
    /etc/nccl.conf
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
    """
    own = os.environ.get("NCCL_CONF_FILE") or "~/.nccl.conf"
    found = dict(os.environ)
    for path in (Path(own).expanduser(), Path("/etc/nccl.conf")):
        for line in read(path).splitlines():
            name, equals, value = line.partition("=")
            if equals and not name.startswith("#"):
                found.setdefault(name.strip(), value.strip())
    return {
        name: value[:500]
        for name, value in sorted(found.items())
        if _SETTINGS.fullmatch(name) and not _SECRET.search(name)
    }


def limit(which: int) -> str | int:
    """Return a soft limit in KiB, or "unlimited"."""
    soft, _ = resource.getrlimit(which)
    return "unlimited" if soft == resource.RLIM_INFINITY else soft // 1024


def may_lock() -> bool:
    """Return True if this process may lock memory beyond its limit, by CAP_IPC_LOCK.

    The capability counts only in the initial user namespace, which maps every id
    (capabilities(7), user_namespaces(7)).
    """
    capabilities = re.search(r"CapEff:\s*([0-9a-f]+)", read(Path("/proc/self/status")))
    initial = read(Path("/proc/self/uid_map")).split() == ["0", "0", "4294967295"]
    return bool(capabilities and initial and int(capabilities[1], 16) >> 14 & 1)


def main() -> None:
    """Print the fact."""
    memory = re.search(r"MemTotal:\s+(\d+) kB", read(Path("/proc/meminfo")))
    with ThreadPoolExecutor() as pool:
        shown, linked, used = pool.submit(gpus), pool.submit(domain), pool.submit(versions)
    value = {
        "hostname": socket.gethostname(),
        # Only root may read it.
        "serial": read(Path("/sys/class/dmi/id/product_serial")) or None,
        "cpus": len(os.sched_getaffinity(0)),
        "memoryBytes": int(memory.group(1)) * 1024 if memory else None,
        "gpus": shown.result(),
        **linked.result(),
        "pciNvidia": pci_gpus(),
        "nics": nics(),
        "memlock": limit(resource.RLIMIT_MEMLOCK),
        "ipcLock": may_lock(),
        "kernel": platform.release(),
        "versions": used.result(),
        "env": settings(),
        # Settings that this node chose for itself.
        "chosen": os.environ.get("ACCEPT_CHOSEN", "").split(),
    }
    rank_io.fact("inventory", value, check="inventory", host=rank_io.host_name())


if __name__ == "__main__":
    main()
