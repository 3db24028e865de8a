"""Read settings of a host that change the speed of GPUs and NICs, from files of the kernel.

`settings` returns texts that are equal on equal hosts; None: unknown, such as PCI Express without
the permission to read it. Everything is read below a root folder, which tests can replace.

Sources: Documentation/ABI/testing/sysfs-kernel-iommu_groups and Documentation/admin-guide/mm of
the Linux kernel; PCI Express Base Specification 7.7.11 (Access Control Services);
https://docs.nvidia.com/cuda/gpudirect-rdma/ for `nvidia-peermem` and dma-buf.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pci
from rank_io import read

#: Extended capability of Access Control Services, and the bits of its control register that send
#: data between two devices of a switch through the root complex.
_ACS, _REDIRECTS = 0x000D, 0x04 | 0x08
#: Offset of the first extended capability; without special permissions less is readable.
_EXTENDED, _MOST_CAPABILITIES = 0x100, 64


def settings(root: Path = Path("/")) -> dict[str, str | None]:
    """Return the settings of a host; those of GPUs only if it has some."""
    gpus, nics = [gpu.resolve() for gpu in pci.gpus(root / "sys")], list(_nics(root))
    found: dict[str, str | None] = {"hugepages": _hugepages(root)}
    if nics:
        firmware = {read(nic / "fw_ver") for nic in (root / "sys/class/infiniband").glob("*")}
        found["NIC firmware"] = ", ".join(sorted(filter(None, firmware))) or None
        found["NIC driver"] = _nic_driver(root)
    if gpus:
        found["IOMMU of GPUs and NICs"] = _iommu([*gpus, *nics])
        found["ACS above GPUs and NICs"] = _acs([*gpus, *nics])
        found["GPUDirect RDMA"] = _gpu_direct(root)
        found["PCI tree of GPUs and NICs"] = _tree(gpus, nics)
    return found


def _nics(root: Path) -> Iterator[Path]:
    for device in sorted((root / "sys/class/infiniband").glob("*")):
        if (device / "device").exists():
            yield (device / "device").resolve()


def _nic_driver(root: Path) -> str:
    """Return the release of NVIDIA's driver of NICs, which only OFED and DOCA state."""
    module = root / "sys/module/mlx5_core"
    return (read(module / "version") or "of the kernel") if module.exists() else "no mlx5"


def _iommu(devices: list[Path]) -> str:
    """Return how the IOMMU translates addresses of the devices; `identity` costs nothing."""
    kinds = {read(device / "iommu_group" / "type") or "off" for device in devices}
    return ", ".join(sorted(kinds))


def _acs(devices: list[Path]) -> str | None:
    """Return in how many bridges ACS redirects data between devices."""
    bridges = {bridge for device in devices for bridge in pci.above(device)}
    redirects = 0
    for bridge in bridges:
        try:
            config = (bridge / "config").read_bytes()
        except OSError:
            return None
        if len(config) <= _EXTENDED:
            return None
        redirects += bool(_acs_control(config) & _REDIRECTS)
    return f"redirects in {redirects} of {len(bridges)} bridges" if redirects else "no redirects"


def _acs_control(config: bytes) -> int:
    """Return the control register of ACS in a configuration space; 0 without ACS."""
    offset = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if not _EXTENDED <= offset <= len(config) - 8:
            break
        header, _, control = struct.unpack_from("<IHH", config, offset)
        if header & 0xFFFF == _ACS:
            return int(control)
        offset = header >> 20
    return 0


def _gpu_direct(root: Path) -> str:
    """Return how NICs reach the memory of GPUs: peermem, dma-buf (open driver only), or none."""
    if (root / "sys/module/nvidia_peermem").exists():
        return "nvidia-peermem"
    has_open_driver = "Open Kernel Module" in read(root / "proc/driver/nvidia/version")
    return "dma-buf" if has_open_driver else "none"


def _hugepages(root: Path) -> str | None:
    """Return the number of reserved huge pages by size in KiB, and the mode of transparent ones."""
    folder = root / "sys/kernel/mm"
    reserved = [
        f"{count} of {path.name.removeprefix('hugepages-')}"
        for path in sorted((folder / "hugepages").glob("hugepages-*kB"))
        if (count := read(path / "nr_hugepages")) not in ("", "0")
    ]
    mode = re.search(r"\[(\w+)\]", read(folder / "transparent_hugepage/enabled"))
    if mode is None:
        return None
    return ", ".join([*(reserved or ["none"]), f"transparent {mode[1]}"])


def _tree(gpus: list[Path], nics: list[Path]) -> str:
    """Return for each GPU its NUMA node, and the number of NICs below the same root port."""
    ports = [(pci.above(nic) or [nic])[0] for nic in nics]
    texts = []
    for gpu in gpus:
        port = (pci.above(gpu) or [gpu])[0]
        texts.append(f"{read(gpu / 'numa_node') or '?'}:{ports.count(port)}")
    return " ".join(texts)
