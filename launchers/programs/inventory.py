"""Describe this host: GPUs, processors, memory, network, limits, versions, effective settings.

Prints one fact as a record. It measures nothing, and it imports no large package: versions come
from the metadata of installed packages. An allow-list of settings keeps secrets of the environment
out of the evidence.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import commands
import gpu_inventory
import host_settings
import imex
import pci
import rank_io
from rank_io import number, read

_SETTINGS = re.compile(
    r"(NCCL|GLOO|OMPI_MCA|PRTE_MCA|UCX|FI|NVSHMEM)_[A-Z0-9_a-z]+|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|LD_LIBRARY_PATH|OMP_NUM_THREADS"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
#: Time limit of `mpirun --version` in seconds.
_SECONDS = 90


def imex_channels(dev: Path) -> int | None:
    """Return the number of IMEX channels, which NVLink between hosts needs; None: no driver.

    https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html
    """
    if not (dev / "nvidiactl").exists():
        return None
    return len(list((dev / "nvidia-caps-imex-channels").glob("channel*")))


def nics() -> list[dict[str, Any]]:
    """Return network interfaces except loopback, and RDMA devices; speed in Mbit/s if known."""
    found: list[dict[str, Any]] = []
    for path in sorted(Path("/sys/class/net").glob("*")):
        if path.name != "lo":
            state, speed = read(path / "operstate"), number(path / "speed")
            found.append({"name": path.name, "speed": speed, "state": state})
    slots = {read(slot / "address"): slot.name for slot in (pci.SYS / "bus/pci/slots").glob("*")}
    for path in sorted(Path("/sys/class/infiniband").glob("*")):
        port = path / "ports" / "1"
        rate = re.match(r"\d+", read(port / "rate"))
        speed_known = int(rate.group()) * 1000 if rate else None
        state = read(port / "state").partition(":")[2].strip().lower()
        try:
            address = (path / "device").resolve().name
        except OSError:
            address = ""
        found.append(
            {
                "name": path.name,
                "speed": speed_known,
                "state": state,
                "rdma": True,
                "model": read(path / "hca_type") or None,
                "firmware": read(path / "fw_ver") or None,
                # The PSID of NVIDIA's adapters: which board, with which configuration.
                "board": read(path / "board_id") or None,
                "pci": address or None,
                # The address of a slot has no function.
                "slot": slots.get(address.partition(".")[0]),
            }
        )
    return found


def dmi(name: str) -> str | None:
    """Return what the firmware reports about this host; None if only root may read it."""
    return read(Path("/sys/class/dmi/id") / name) or None


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
    ran = commands.run(_SECONDS, "mpirun", "--version")
    match = re.search(r"\(Open MPI\) (\S+)", ran.out)
    if match or ran.is_late:
        found["mpi"] = match and match[1]
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
        shown, used = pool.submit(gpu_inventory.gpus), pool.submit(versions)
        domain_state = pool.submit(imex.state)
    found, software = shown.result(), used.result()
    if found.cuda or found.gpus is None:
        software["cuda"] = found.cuda or None
    value = {
        "hostname": socket.gethostname(),
        # Only root may read it.
        "serial": dmi("product_serial"),
        "vendor": dmi("sys_vendor"),
        "model": dmi("product_name"),
        "bios": dmi("bios_version"),
        "cpus": len(os.sched_getaffinity(0)),
        "memoryBytes": int(memory.group(1)) * 1024 if memory else None,
        "gpus": found.gpus,
        "driverWords": found.words,
        "driverCode": found.code,
        "forbidden": list(found.forbidden),
        "given": found.given,
        **gpu_inventory.domain(found.fabrics),
        "pciNvidia": len(pci.gpus()),
        "imexChannels": imex_channels(Path("/dev")),
        "imex": domain_state.result(),
        "nics": nics(),
        "memlock": limit(resource.RLIMIT_MEMLOCK),
        "ipcLock": may_lock(),
        "kernel": platform.release(),
        "versions": software,
        "env": settings(),
        "settings": host_settings.settings(),
        # Settings that this node chose for itself.
        "chosen": os.environ.get("ACCEPT_CHOSEN", "").split(),
    }
    rank_io.fact("inventory", value, check="inventory", host=rank_io.host_name())


if __name__ == "__main__":
    main()
