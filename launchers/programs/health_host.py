"""Read the kernel's counters: RDMA ports, network interfaces, memory controllers, kernel log.

Everything is read below a root folder, which tests can replace. A device is a dict with `kind`,
`name`, `pci` if it has a PCI address, `counters` (integers that only grow; None if unreadable) and
`levels` (numbers that go up and down).

Sources: Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/
sysfs-class-net-statistics, sysfs-class-net and sysfs-devices-edac, dev-kmsg of the Linux kernel.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pci
from rank_io import number, read

Device = dict[str, Any]
Gap = dict[str, str]

#: Counters in `ports/N/counters`.
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
    "port_xmit_packets",
    "port_rcv_packets",
)
#: Counters in `ports/N/hw_counters`, if the driver has them: of mlx5, and the last three of bnxt_re
#: (drivers/infiniband/hw of the Linux kernel).
_HARDWARE = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "roce_adp_retrans",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rx_icrc_encapsulated",
    "oos_drop_count",
    "seq_err_naks_rcvd",
    "to_retransmits",
)
#: Counters in `statistics`.
_INTERFACE = (
    "rx_errors",
    "tx_errors",
    "rx_crc_errors",
    "rx_missed_errors",
    "rx_dropped",
    "tx_dropped",
)
#: Errors of PCI Express that a damaged link or device causes, by the file that counts them.
#: Requests that a device does not support are left out, because programs cause them.
_AER = {
    "fatal": frozenset({"DLP", "SDES", "TLP", "FCP", "CmpltTO", "RxOF", "MalfTLP", "ECRC"}),
    "nonfatal": frozenset({"DLP", "SDES", "TLP", "FCP", "CmpltTO", "RxOF", "MalfTLP", "ECRC"}),
    "correctable": frozenset({"RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout"}),
}
#: Rate of PCIe 6.0 in GT/s.
_CORRECTING = 64.0
#: Messages of the kernel that are events, from `values/signs.yaml`: kind, pattern, and the code of
#: a pattern without one.
_EVENTS: list[tuple[str, re.Pattern[bytes], int | None]] = [
    (kind, re.compile(pattern.encode()), code)
    for kind, pattern, code in json.loads(
        Path(__file__).with_name("kernel_events.json").read_bytes()
    )
]
#: Maximum number of events that are reported, the newest ones. Of equal events only the newest is,
#: so that a flood of one cannot hide another.
EVENTS = 64
#: A line of `/dev/kmsg`: priority, number, microseconds since the boot; of `dmesg`: seconds. Lines
#: of `dmesg` that start with blanks continue the message.
_LINE = re.compile(
    rb"^(?:\d+,\d+,(\d+),[^;\n]*;|\[ *(\d+\.\d+)\])(.*(?:\n[ \t]+NVRM:.*)*)", re.MULTILINE
)


def gap(reason: str, devices: str = "none") -> Gap:
    """Return an entry of `unread`; `devices` without any reading: "all", "gpus" or "none"."""
    return {"reason": reason, "devices": devices}


def leading(text: str) -> float | None:
    """Return the number at the start of a text such as "32.0 GT/s PCIe", or None."""
    found = re.match(r"\d+(\.\d+)?", text)
    return float(found.group()) if found else None


def known(levels: dict[str, float | None]) -> dict[str, float]:
    """Return the levels that could be read."""
    return {name: value for name, value in levels.items() if value is not None}


def pcie_link(device: Path) -> dict[str, float | None]:
    """Return lanes and speed (GT/s) of a device's PCIe link, and the highest that it can have.

    The card and the port above it limit the link. Virtual functions report 0 lanes: not known.
    """
    levels: dict[str, float | None] = {}
    ports = (device, device.resolve().parent)
    for name, what in (("pcie-width", "link_width"), ("pcie-speed", "link_speed")):
        levels[name] = leading(read(device / f"current_{what}")) or None
        limits = [leading(read(port / f"max_{what}")) for port in ports]
        levels[f"{name}-max"] = min((limit for limit in limits if limit), default=None)
    return levels


def rdma_ports(root: Path) -> Iterator[Device]:
    """Yield the ports of InfiniBand and RoCE devices."""
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        device = port.parent.parent
        counters = {name: number(port / "counters" / name) for name in _PORT}
        counters |= {name: number(port / "hw_counters" / name) for name in _HARDWARE}
        link = device / "device"
        levels = {
            "active": float("ACTIVE" in read(port / "state")),
            "rate": leading(read(port / "rate")),
            **pcie_link(link),
        }
        name = f"{device.name}/{port.name}"
        yield {"kind": "rdma", "name": name, "counters": counters, "levels": known(levels)}


def interfaces(root: Path, of_the_run: tuple[str, ...]) -> Iterator[Device]:
    """Yield the network interfaces that have a device, unlike bridges, veth and tunnels."""
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


def pci_devices(root: Path) -> Iterator[Device]:
    """Yield GPUs, RDMA devices and the bridges above them on the PCI bus, with their errors.

    From PCIe 6.0 on they have no level `rate`, so that correctable errors have no limit: such links
    correct errors all the time. Devices without files of AER (Documentation/ABI/testing/
    sysfs-bus-pci-devices-aer_stats) have none.
    """
    nics = [device / "device" for device in (root / "sys/class/infiniband").glob("*")]
    ends = [device.resolve() for device in (*nics, *pci.gpus(root / "sys"))]
    # A device is above the files in its folder.
    for path in sorted({path for end in ends for path in pci.above(end / "vendor")}):
        counters = {
            f"aer-{kind}": _aer(read(path / f"aer_dev_{kind}"), names)
            for kind, names in _AER.items()
        }
        if set(counters.values()) == {None}:
            continue
        link = pcie_link(path)
        speed, width = link["pcie-speed-max"], link["pcie-width-max"]
        levels = {"rate": speed * width if speed and width and speed < _CORRECTING else None}
        yield {"kind": "pcie", "name": path.name, "counters": counters, "levels": known(levels)}


def _aer(text: str, names: frozenset[str]) -> int | None:
    """Return the sum of the named errors in a file of AER; None if it has none of them."""
    rows = (line.split() for line in text.splitlines())
    counts = [int(row[1]) for row in rows if len(row) == 2 and row[0] in names and row[1].isdigit()]
    return sum(counts) if counts else None


def memory(root: Path) -> Iterator[Device]:
    """Yield the memory controllers for which the kernel has a driver."""
    for path in sorted((root / "sys/devices/system/edac/mc").glob("mc[0-9]*")):
        counters = {name: number(path / name) for name in ("ue_count", "ce_count")}
        yield {"kind": "memory", "name": path.name, "counters": counters, "levels": {}}


def host(root: Path) -> Device:
    """Return the counters of the host as a whole."""
    found = re.search(r"^oom_kill (\d+)$", read(root / "proc/vmstat"), re.MULTILINE)
    counters = {"oom_kill": int(found[1]) if found else None}
    return {"kind": "host", "name": "", "counters": counters, "levels": {}}


def kernel_log(root: Path) -> tuple[dict[str, Any] | None, list[Gap]]:
    """Return the kernel log's first and last time (s since boot) and its events.

    An event is {"at": s, "kind": "xid" | "reset" | "lost" | "sxid" | "mce" | "crash" | "oom",
    "pci", "code", "fatal", "process", "words"}. Returns None and the reason if the log cannot be
    read.
    """
    try:
        text = _messages(root / "dev/kmsg")
    except OSError as error:
        text = _dmesg() if root == Path("/") else b""
        if not text:
            return None, [gap(f"Xid in the kernel log ({error.strerror or error})")]
    return read_messages(text), []


def read_messages(text: bytes) -> dict[str, Any]:
    """Return the keys of `kernel_log`, without gaps, from lines of `/dev/kmsg` or `dmesg`."""
    first, last = None, 0.0
    events: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in _LINE.finditer(text):
        at = int(entry[1]) / 1e6 if entry[1] else float(entry[2])
        first = at if first is None else first
        last = max(last, at)
        for kind, pattern, code in _EVENTS:
            if found := pattern.search(entry[3]):
                event = _event(at, kind, found.groupdict(), code)
                key = identity(event)
                events.pop(key, None)
                events[key] = event
                break
    return {"first": first or 0.0, "last": last, "events": list(events.values())[-EVENTS:]}


def identity(event: dict[str, Any]) -> tuple[Any, ...]:
    """Return what equal events have in common."""
    return tuple(event.get(name) for name in ("kind", "pci", "code", "fatal", "words"))


def _event(
    at: float, kind: str, found: dict[str, bytes | None], code: int | None
) -> dict[str, Any]:
    event: dict[str, Any] = {"at": at, "kind": kind}
    if kind not in ("mce", "crash"):
        event["pci"] = pci.short_name(gpu.decode()) if (gpu := found.get("gpu")) else ""
        event["code"] = code if code is not None else int(found["code"] or 0)
    if kind == "sxid" or found.get("fatal"):
        event["fatal"] = found["fatal"] is not None
    for name in ("process", "words"):
        if text := found.get(name):
            event[name] = text.decode("utf-8", "replace").strip()
    return event


def _messages(path: Path) -> bytes:
    """Return all messages in `/dev/kmsg`, which returns one per read and never ends."""
    parts = []
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                part = os.read(file, 1 << 13)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The message was overwritten before it was read; the next read continues after it.
                continue
            if not part:
                break
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts)


def _dmesg() -> bytes:
    """Return the log from dmesg, because some users may run it but may not open the device."""
    import commands

    ran = commands.run(5, "dmesg")
    return ran.raw if ran.exit == 0 else b""
