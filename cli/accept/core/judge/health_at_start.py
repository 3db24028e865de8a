"""Judge the first reading of each host: damage and settings that existed before the run.

A value that a GPU or NIC does not report is neither good nor bad. Without one that its machine or
its peers have, a GPU cannot be judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from typing import NamedTuple

from accept.core.causes import GPU_IS_LOST, RESET_REQUIRED, Cause, driver_cause
from accept.core.health_readings import (
    FABRIC_JOINED,
    Device,
    DeviceKind,
    Event,
    Reading,
    fabric_faults,
    slowed_by,
)
from accept.core.judge.findings import Problems, usual
from accept.core.judge.health import Fault, driver_faults, problems_of, unreported
from accept.core.judge.health_rules import (
    FATAL_IF_REPORTED,
    HIGHEST,
    LEVELS,
    NO_FABRIC,
    RETIRED,
    Limits,
    is_worse,
    level_text,
)
from accept.core.plan import PlannedMachine
from accept.core.records import Problem
from accept.core.signs import SignOwner, Specificity, catalog
from accept.core.text import count, duration, plain, shortened

#: Clocks of a GPU that equal GPUs have in common.
_CLOCKS = ("sm-clock-max", "sm-clock-application", "sm-clock-default")
#: PCIe generation from which an idle link may have fewer lanes (L0p of PCIe 6.0).
_FEWER_LANES_AT_REST = 6
#: Share of the raw rate of PCIe that carries data, by the encoding of generations 3 to 5.
_PCIE_ENCODING = 128 / 130
#: Temperature of a GPU's memory that is worth a note, in degrees Celsius; from practice.
_HOT_MEMORY = 95
#: A kernel log that begins later has lost lines, in seconds since boot.
_LOG_BEGINS = 600
_MAX_NAMED = 6
_WHEN = "before the run"


class _Gpu(NamedTuple):
    """A GPU with its host, and the reading of the host."""

    host: str
    reading: Reading
    device: Device


class _Required(NamedTuple):
    """Hold the properties that GPUs must have, by their machine or by most of them."""

    links: int
    #: True if the machine states the number of links.
    links_known: bool
    clocks: Mapping[str, float]
    #: The hosts whose GPUs must be part of a fabric.
    fabric: Set[str]


def examine(
    readings: Mapping[str, Reading], machine: PlannedMachine, limits: Limits, *, one_kind: bool
) -> Problems:
    """Return what GPUs and NICs show from before the run; one problem for each device and cause.

    `one_kind`: all GPUs of the run have the same name, so they must have equal numbers of links.
    """
    gpus = [
        _Gpu(host, reading, device)
        for host, reading in readings.items()
        for device in reading.devices
        if machine.gpus != 0 and device.kind is DeviceKind.GPU
    ]
    several = {host for host, number in Counter(gpu.host for gpu in gpus).items() if number > 1}
    peers = [gpu.device.levels for gpu in gpus] if one_kind else []
    joined = usual(levels.get("fabric-state") for levels in peers) == FABRIC_JOINED
    required = _Required(
        machine.nvlinks or int(max((levels.get("nvlinks", 0) for levels in peers), default=0)),
        bool(machine.nvlinks),
        {clock: usual(levels.get(clock) for levels in peers) or 0 for clock in _CLOCKS},
        # A single GPU of a virtual machine has no part in a fabric (leptonai/gpud issue 1140).
        several if machine.nvls or joined else set(),
    )
    failed: list[Problem] = []
    noted: list[str] = []
    for host, reading in readings.items():
        for device in reading.devices:
            faults = list(_nic_faults(device))
            if machine.gpus != 0 and device.kind is DeviceKind.GPU:
                faults += _gpu_faults(_Gpu(host, reading, device), limits, required)
            failed += problems_of(_WHEN, host, device.title, faults)
            if texts := list(_notes(device)):
                noted.append(f"{_WHEN}: {', '.join(texts)} on {device.title} of {host}")
        blamed = set(_fatal_events(reading)) if machine.gpus != 0 else set()
        failed += _event_problems(host, reading, blamed)
        failed += _crashes(host, reading)
        noted += _log_notes(host, reading, blamed)
    unclear = [*_unclear_links(gpus if one_kind and not machine.nvlinks else ())]
    promised = {"nvlinks"} if machine.nvlinks else set()
    promised |= {"fabric-state"} if machine.nvls else set()
    unclear += _unreported(gpus, promised, several, one_kind=one_kind)
    return Problems(failed, unclear, noted)


def _unreported(
    gpus: Sequence[_Gpu], promised: Set[str], several: Set[str], *, one_kind: bool
) -> Iterator[Problem]:
    """Yield the GPUs that lack readings.

    A reading is required if the machine promises it to a host with several GPUs, or if more than
    half of all GPUs report it. GPUs with errors of the driver are named already.
    """
    counts = Counter(name for gpu in gpus for name in gpu.reading.reported(gpu.device))
    common = {name for name, number in counts.items() if one_kind and 2 * number > len(gpus)}
    for host, reading, gpu in gpus:
        required = common | promised if host in several else common
        if gpu.levels.get("nvlinks") == 0:
            required = {name for name in required if not name.startswith("nvlink-")}
        if not gpu.errors:
            yield from unreported(_WHEN, host, gpu.title, required - reading.reported(gpu))


def _unclear_links(gpus: Sequence[_Gpu]) -> Iterator[Problem]:
    """Yield each host with GPUs without any link, while others have links.

    Without a number from the machine, these GPUs may simply have no bridge.
    """
    titles: dict[str, list[str]] = {}
    for host, _, gpu in gpus if any(one.device.levels.get("nvlinks") for one in gpus) else ():
        if gpu.levels.get("nvlinks") == 0:
            titles.setdefault(host, []).append(gpu.title)
    for host, without in titles.items():
        text = f"{_WHEN}: no active NVLink on {', '.join(without)} of {host}, but on other "
        text += "GPUs; add nvlink.links to your machine file"
        yield Problem(cause=Cause.NVLINK_DOWN, message=text, host=host)


# Devices


def _gpu_faults(of: _Gpu, limits: Limits, required: _Required) -> Iterator[Fault]:
    """Yield what is wrong with a GPU."""
    gpu, levels = of.device, of.device.levels
    yield from driver_faults(gpu.errors)
    pages = sum(gpu.counters.get(f"{RETIRED}-{kind}", 0) for kind in ("single", "double"))
    known: dict[str, float] = {**levels, **gpu.counters, RETIRED: pages}
    for name, rule in HIGHEST.items():
        value, most = known.get(name, 0.0), rule.highest
        most = getattr(limits, most) if isinstance(most, str) else most
        if most is not None and value > most:
            yield rule.before or rule.cause, level_text(name, most, value)
    if slowed := slowed_by(gpu, of.reading):
        yield Cause.GPU_THROTTLED, level_text("reasons", 0, slowed)
    if is_worse("compute-mode", 0, mode := levels.get("compute-mode", 0), limits):
        yield Cause.GPU_MODE, level_text("compute-mode", 0, mode)
    # Some workstation GPUs are delivered without ECC.
    if levels.get("ecc") == 0 and levels.get("ecc-default") != 0:
        yield Cause.GPU_SETTINGS, "ECC is off"
    for level, rule in LEVELS.items():
        now, best = levels.get(level, 0), levels.get(rule.reaches, 0)
        at_rest = level == "pcie-width" and _may_rest(gpu)
        if 0 < now < best and is_worse(level, best, now, limits) and not at_rest:
            yield rule.cause, level_text(level, best, now)
    for clock, others in required.clocks.items():
        if 0 < (now := levels.get(clock, 0)) < others:
            yield Cause.GPU_SETTINGS, f"{clock} {now:g}, that of others {others:g}"
    yield from _fabric_faults(levels, required=of.host in required.fabric)
    links = levels.get("nvlinks")
    if links is not None and links < required.links and (required.links_known or links):
        whose = "the machine has" if required.links_known else "others have"
        text = f"{count(int(links), 'active NVLink')}, and {whose} {required.links}"
        yield Cause.NVLINK_DOWN, text


def _may_rest(gpu: Device) -> bool:
    """Return True if fewer lanes may only mean that the GPU is idle."""
    return gpu.levels.get("pcie-generation-max", 0) >= _FEWER_LANES_AT_REST


def _fabric_faults(levels: Mapping[str, float], *, required: bool) -> Iterator[Fault]:
    state = levels.get("fabric-state")
    if state is None or (state == NO_FABRIC and not required):
        return
    status, health = levels.get("fabric-status", 0.0), levels.get("fabric-health", 0.0)
    if state != FABRIC_JOINED:
        yield Cause.FABRIC_MANAGER, level_text("fabric-state", FABRIC_JOINED, state)
    elif int(status):
        yield Cause.FABRIC_MANAGER, level_text("fabric-status", 0, status)
    if fabric_faults(health):
        yield Cause.FABRIC_MANAGER, level_text("fabric-health", 0, health)


def _nic_faults(nic: Device) -> Iterator[Fault]:
    """Yield what is wrong with the PCIe link of an active RDMA port."""
    for level in ("pcie-width", "pcie-speed") if nic.levels.get("active") else ():
        excused = level == "pcie-speed" and _is_enough(nic)
        if nic.kind is DeviceKind.RDMA and not excused and (text := _degraded(nic, level)):
            yield LEVELS[level].cause, text


def _degraded(device: Device, level: str) -> str:
    """Return a text if the PCIe link of a device is below its highest level; else ""."""
    now, most = device.levels.get(level, 0), device.levels.get(f"{level}-max", 0)
    return level_text(level, most, now) if 0 < now < most else ""


def _is_enough(nic: Device) -> bool:
    """Return True if the PCIe link carries the port's full rate, as firmware may have set it."""
    levels = nic.levels
    carried = levels.get("pcie-width", 0) * levels.get("pcie-speed", 0) * _PCIE_ENCODING
    return 0 < levels.get("rate", 0) <= carried


def _notes(device: Device) -> Iterator[str]:
    """Yield a text for each anomaly of a device that accuses nothing."""
    for name in ("ecc-uncorrected-aggregate", "pages-retired-double", "rows-remapped-uncorrected"):
        if number := device.counters.get(name):
            yield f"{name} {number}"
    if device.levels.get("persistence") == 0:
        yield "persistence mode off, so counters may restart between steps (`nvidia-smi -pm 1`)"
    if (temperature := device.levels.get("memory-temperature", 0)) >= _HOT_MEMORY:
        yield f"memory at {temperature:g} C"
    at_rest = device.kind is DeviceKind.GPU and _may_rest(device)
    if at_rest and (text := _degraded(device, "pcie-width")):
        yield f"{text} at rest"
    enough = device.kind is DeviceKind.RDMA and _is_enough(device)
    if enough and (text := _degraded(device, "pcie-speed")):
        yield text


# The kernel log


@cache
def _fatal_xids() -> Set[int]:
    """Return the Xids that show by themselves that a GPU is faulty: see `values/signs.yaml`."""
    sign = catalog().find("Xid")
    rows = {code: sign.of_code(code) for code in sign.codes} if sign else {}
    return {
        int(code)
        for code, row in rows.items()
        if row.owner is SignOwner.DRIVER and row.specificity is Specificity.CAUSE
    }


def _fatal_events(reading: Reading) -> Iterator[Event]:
    """Yield the fatal events since boot, except Xids of GPUs that were reset afterwards."""
    events = reading.events
    # A GPU that works again was reset, even if the log does not show it.
    working = {d.pci for d in reading.devices if d.levels and not d.errors}
    resets = {event.pci: event.at for event in events if event.kind == "reset"}
    # The driver does not always write which GPU needs a reset: that of any may have been the one.
    resets[""] = max(resets.values(), default=0.0)
    for event in events:
        fatal_xid = event.code in _fatal_xids() or (event.fatal and event.code in FATAL_IF_REPORTED)
        fatal = {
            "sxid": event.fatal,
            "lost": event.pci not in working,
            "xid": fatal_xid,
        }.get(event.kind, False)
        if fatal and resets.get(event.pci, 0.0) <= event.at:
            yield event


def _event_problems(host: str, reading: Reading, fatal: Set[Event]) -> Iterator[Problem]:
    """Yield a problem for each GPU or NVSwitch with fatal events since boot."""
    titles = {device.pci: device.title for device in reading.devices if device.pci}
    levels = [device.levels for device in reading.devices if device.levels]
    advice = ""
    if levels and not any("recovery-action" in names for names in levels):
        advice = "; its driver does not report resets: reboot the host after a repair"
    by_device: dict[str, list[Event]] = {}
    for event in (event for event in reading.events if event in fatal):
        other = "NVSwitch" if event.kind == "sxid" else "GPU"
        unnamed = f"the {other} at {event.pci}" if event.pci else "a GPU"
        by_device.setdefault(titles.get(event.pci, unnamed), []).append(event)
    for title, events in by_device.items():
        lost = all(event.kind == "lost" for event in events)
        cause = driver_cause(events[-1].code) if lost else Cause.GPU_XID
        texts = [f"{_event_name(event)} {event.when}" for event in events[-_MAX_NAMED:]]
        text = f"{', '.join(texts)}, and no reset since{advice}"
        yield from problems_of(_WHEN, host, title, [(cause, text)])


def _crashes(host: str, reading: Reading) -> Iterator[Problem]:
    """Yield a problem if the kernel crashed since boot: it may go on in an undefined state."""
    events = [event for event in reading.events if event.kind == "crash"]
    texts = [f"crashed {event.when} ({plain(event.words, 80)})" for event in events[:_MAX_NAMED]]
    if texts:
        text = f"{', '.join(texts)}, and no reboot since"
        yield from problems_of(_WHEN, host, "the kernel", [(Cause.KERNEL_CRASHED, text)])


def _event_text(event: Event) -> str:
    if event.kind != "oom":
        return f"{_event_name(event)} at {event.pci}"
    process = f"process {event.code} ({plain(event.process, 64)})"
    return f"{process} killed {event.when} because memory ran out"


def _event_name(event: Event) -> str:
    if event.kind != "lost":
        return f"{event.kind.title()} {event.code}"
    if event.code == RESET_REQUIRED:
        return "needs a reset"
    return "fallen off the bus" if event.code == GPU_IS_LOST else "RmInitAdapter failed"


def _log_notes(host: str, reading: Reading, blamed: Set[Event]) -> Iterator[str]:
    """Yield notes on a log that lost its beginning, and on events that accuse nothing."""
    if reading.log is None:
        return
    if reading.log.first > _LOG_BEGINS:
        begin = duration(reading.log.first)
        yield f"the kernel log of {host} begins {begin} after the boot: no earlier Xid is known"
    kinds = ("xid", "sxid", "lost", "oom")
    others = (e for e in reading.log.events if e.kind in kinds and e not in blamed)
    if texts := sorted({_event_text(event) for event in others}):
        yield f"{_WHEN}, in the kernel log of {host}: {shortened(texts, _MAX_NAMED)}"
