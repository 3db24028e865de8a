"""What the kernel counts on this host: RDMA ports, network interfaces, memory controllers, its log.

Everything is read below a root, so that it can be a tree of files. A device is a dict: `kind`,
`name`, `pci` where it has an address, `counters` (whole numbers that only grow; None: cannot be
read) and `levels` (numbers that go up and down).

Sources: Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/
sysfs-class-net-statistics, sysfs-class-net and sysfs-devices-edac, dev-kmsg of the Linux kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rank_io import number, read

Device = dict[str, Any]

#: Of `ports/N/counters`.
_PORT = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
)
#: Of `ports/N/hw_counters`, where the driver has them.
_HARDWARE = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "rx_icrc_encapsulated",
)
#: Of `statistics`.
_INTERFACE = (
    "rx_errors",
    "tx_errors",
    "rx_crc_errors",
    "rx_missed_errors",
    "rx_dropped",
    "tx_dropped",
)
#: What the kernel writes of a GPU, of an NVSwitch, and of an error that the hardware reported.
_SIGNS = {
    "xid": re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:.]{7,20})\): (\d{1,6})"),
    "sxid": re.compile(rb"SXid \(PCI:([0-9a-fA-F:.]{7,20})\): (\d{1,6}), (Fatal)?"),
    "mce": re.compile(rb"\[Hardware Error\]: Machine check"),
}
#: Newest events that are told; each has a line of its own in the log.
_EVENTS = 64
#: A line of `/dev/kmsg`: priority, number, microseconds since the boot; of `dmesg`: seconds.
_LINE = re.compile(rb"(?:\d+,\d+,(\d+),[^;]*;|\[ *(\d+\.\d+)\])(.*)")


def leading(text: str) -> float | None:
    """The number a text begins with ("32.0 GT/s PCIe", "400 Gb/sec (4X NDR)"), or None."""
    found = re.match(r"\d+(\.\d+)?", text)
    return float(found.group()) if found else None


def pci_name(text: str) -> str:
    """A PCI address as the kernel's log has it, "0000:1b:00", from any way to write it."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest.partition('.')[0]}"


def known(levels: dict[str, float | None]) -> dict[str, float]:
    """The levels that could be read."""
    return {name: value for name, value in levels.items() if value is not None}


def rdma_ports(root: Path) -> Iterator[Device]:
    """The ports of InfiniBand and RoCE devices."""
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        device = port.parent.parent
        counters = {name: number(port / "counters" / name) for name in _PORT}
        counters |= {name: number(port / "hw_counters" / name) for name in _HARDWARE}
        link = device / "device"
        levels = {
            "active": float("ACTIVE" in read(port / "state")),
            "rate": leading(read(port / "rate")),
            "pcie-width": leading(read(link / "current_link_width")),
            "pcie-speed": leading(read(link / "current_link_speed")),
        }
        name = f"{device.name}/{port.name}"
        yield {"kind": "rdma", "name": name, "counters": counters, "levels": known(levels)}


def interfaces(root: Path, of_the_run: tuple[str, ...]) -> Iterator[Device]:
    """Network interfaces with a device behind them: bridges, veth and tunnels have none."""
    for path in sorted((root / "sys/class/net").glob("*")):
        if not (path / "device").exists():
            continue
        counters = {name: number(path / "statistics" / name) for name in _INTERFACE}
        counters["carrier_down_count"] = number(path / "carrier_down_count")
        speed = number(path / "speed")
        levels = {
            "active": float(read(path / "operstate") == "up"),
            "rate": speed / 1000 if speed else None,
            "run": 1.0 if path.name in of_the_run else None,
        }
        yield {"kind": "net", "name": path.name, "counters": counters, "levels": known(levels)}


def memory(root: Path) -> Iterator[Device]:
    """Memory controllers, where the kernel has a driver for them."""
    for path in sorted((root / "sys/devices/system/edac/mc").glob("mc[0-9]*")):
        counters = {name: number(path / name) for name in ("ue_count", "ce_count")}
        yield {"kind": "memory", "name": path.name, "counters": counters, "levels": {}}


def host(root: Path) -> Device:
    """What is counted once a host."""
    found = re.search(r"^oom_kill (\d+)$", read(root / "proc/vmstat"), re.MULTILINE)
    counters = {"oom_kill": int(found[1]) if found else None}
    return {"kind": "host", "name": "", "counters": counters, "levels": {}}


def kernel_log(root: Path) -> tuple[dict[str, Any] | None, str]:
    """The last moment of the kernel's log (s since the boot) and its events, or None and why not.

    An event: {"at": s, "kind": "xid" | "sxid" | "mce", "pci", "code", "fatal"}.
    """
    try:
        text = _messages(root / "dev/kmsg")
    except OSError as error:
        text = _dmesg() if root == Path("/") else b""
        if not text:
            return None, f"Xid in the kernel log ({error.strerror or error})"
    last, events = 0.0, []
    for line in text.split(b"\n"):
        entry = _LINE.match(line)
        if entry is None:
            continue
        at = int(entry[1]) / 1e6 if entry[1] else float(entry[2])
        last = max(last, at)
        for kind, sign in _SIGNS.items():
            if found := sign.search(entry[3]):
                events.append(_event(at, kind, found))
    return {"last": last, "events": events[-_EVENTS:]}, ""


def _event(at: float, kind: str, found: re.Match[bytes]) -> dict[str, Any]:
    event: dict[str, Any] = {"at": at, "kind": kind}
    if kind != "mce":
        event |= {"pci": pci_name(found[1].decode()), "code": int(found[2])}
    if kind == "sxid":
        event["fatal"] = found[3] is not None
    return event


def _messages(path: Path) -> bytes:
    """All that is in `/dev/kmsg`, which gives one message a read and never ends."""
    parts = []
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                part = os.read(file, 1 << 13)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # It was overwritten before it could be read: the next read goes on behind it.
                continue
            if not part:
                break
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts)


def _dmesg() -> bytes:
    """The log by the system call, which some may use who may not open the device."""
    import subprocess

    try:
        ran = subprocess.run(["dmesg"], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return b""
    return ran.stdout if ran.returncode == 0 else b""
