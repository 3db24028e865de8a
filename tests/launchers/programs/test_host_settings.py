"""The settings of a host, read from trees of files, and who is named if one host differs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factories.verdicts import gpus, hosts, inventory_of, record, step

import host_settings
from accept.core.facts import inventories_of
from accept.core.judge.consistency import differences, partly_unknown

#: A root port with a switch, with a GPU and a NIC below it.
PORT = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
GPU, NIC = f"{PORT}/0000:02:00.0/0000:03:00.0", f"{PORT}/0000:02:01.0/0000:04:00.0"


def config(control: int | None) -> bytes:
    """Return a configuration space with ACS behind another capability; None: without ACS."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 0x148 << 20)
    if control is not None:
        struct.pack_into("<IHH", space, 0x148, 0x000D, 0x5F, control)
    return bytes(space)


def host(root: Path, **changes: object) -> dict[str, str | None]:
    """Return the settings of a host with one GPU and one NIC."""
    given = {"control": 0, "iommu": "identity", "module": True, "driver": "Open Kernel Module"}
    given |= {"pages": "0", "nic": NIC, "space": 4096, "ofed": "24.10-0.7.0", **changes}
    for path in (GPU, str(given["nic"])):
        (root / path / "iommu_group").mkdir(parents=True)
        (root / path / "iommu_group/type").write_text(f"{given['iommu']}\n")
    (root / GPU / "vendor").write_text("0x10de\n")
    (root / GPU / "class").write_text("0x030200\n")
    (root / GPU / "numa_node").write_text("1\n")
    control, space = given["control"], given["space"]
    assert control is None or isinstance(control, int)
    assert isinstance(space, int)
    for bridge in _bridges(root):
        (bridge / "config").write_bytes(config(control)[:space])
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:03:00.0").symlink_to(root / GPU)
    rdma = root / "sys/class/infiniband/mlx5_0"
    rdma.mkdir(parents=True)
    (rdma / "device").symlink_to(root / str(given["nic"]))
    (rdma / "fw_ver").write_text("28.39.1002\n")
    if given["ofed"] is not None:
        (root / "sys/module/mlx5_core").mkdir(parents=True)
    if given["ofed"]:
        (root / "sys/module/mlx5_core/version").write_text(f"{given['ofed']}\n")
    if given["module"]:
        (root / "sys/module/nvidia_peermem").mkdir(parents=True)
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(f"NVRM version: {given['driver']}\n")
    pages = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    pages.mkdir(parents=True)
    (pages / "nr_hugepages").write_text(f"{given['pages']}\n")
    (root / "sys/kernel/mm/transparent_hugepage").mkdir()
    enabled = root / "sys/kernel/mm/transparent_hugepage/enabled"
    enabled.write_text("always [madvise] never\n")
    return host_settings.settings(root)


def _bridges(root: Path) -> Iterator[Path]:
    for path in (root / "sys/devices").rglob("0000:*"):
        if any(path.glob("0000:*")):
            yield path


USUAL = {
    "hugepages": "none, transparent madvise",
    "NIC firmware": "28.39.1002",
    "NIC driver": "24.10-0.7.0",
    "IOMMU of GPUs and NICs": "identity",
    "ACS above GPUs and NICs": "no redirects",
    "GPUDirect RDMA": "nvidia-peermem",
    "PCI tree of GPUs and NICs": "1:1",
}


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({}, {}),
        ({"control": None}, {}),
        ({"control": 0x01}, {}),
        *(
            ({"control": bits}, {"ACS above GPUs and NICs": "redirects in 4 of 4 bridges"})
            for bits in (0x1D, 0x04, 0x08)
        ),
        ({"space": 64}, {"ACS above GPUs and NICs": None}),
        ({"iommu": "DMA-FQ"}, {"IOMMU of GPUs and NICs": "DMA-FQ"}),
        ({"module": False}, {"GPUDirect RDMA": "dma-buf"}),
        ({"module": False, "driver": "Kernel Module"}, {"GPUDirect RDMA": "none"}),
        ({"ofed": ""}, {"NIC driver": "of the kernel"}),
        ({"ofed": None}, {"NIC driver": "no mlx5"}),
        ({"pages": "512"}, {"hugepages": "512 of 2048kB, transparent madvise"}),
        (
            {"nic": "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"},
            {"PCI tree of GPUs and NICs": "1:0"},
        ),
    ],
)
def test_a_setting_is_read_and_changes_nothing_else(
    tmp_path: Path, changes: dict[str, object], differing: dict[str, str | None]
) -> None:
    assert host(tmp_path, **changes) == USUAL | differing


def test_a_host_without_gpus_has_few_settings(tmp_path: Path) -> None:
    assert host_settings.settings(tmp_path) == {"hugepages": None}


def named(changes: dict[str, object], vbios: str = "96.00.74.00.01") -> tuple[set[str], set[str]]:
    """Return the hosts that a difference accuses, and those that it notes; h2 of four differs."""
    records = []
    for number, name in enumerate(hosts(4)):
        odd = number == 2
        listed = gpus(name, vbios=vbios if odd else "96.00.74.00.01")
        fact = inventory_of(name, gpus=listed, settings=USUAL | (changes if odd else {}))
        made = step("inventory", "each", checks=("inventory",))
        records.append(record(made, (name,), number=number, facts=(fact,)))
    inventories = inventories_of(records, hosts(4))
    assert not list(partly_unknown(inventories)) or None in changes.values()
    accused, noted = (
        {str(p.host) for p in differences(inventories, noted=noted)} for noted in (False, True)
    )
    return accused, noted


@pytest.mark.parametrize("name", sorted(USUAL))
def test_a_host_that_differs_is_named_or_noted(name: str) -> None:
    only_noted = name in ("hugepages", "NIC firmware")
    expected = (set(), {"h2"}) if only_noted else ({"h2"}, set())
    assert named({name: "other"}) == expected
    assert named({name: None}) == (set(), set())


def test_another_vbios_is_only_noted() -> None:
    assert named({}, vbios="96.00.A5.00.01") == (set(), {"h2"})
