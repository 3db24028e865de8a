"""Judge the first reading of each host: damage and settings that existed before the run.

A value that a GPU or NIC does not report is neither good nor bad. Without one that its machine or
its peers have, a GPU cannot be judged: see `unreported`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from accept.core.causes import RESET_REQUIRED, Cause, driver_cause
from accept.core.health_readings import (
    FABRIC_JOINED,
    Device,
    DeviceKind,
    Event,
    Reading,
    fabric_faults,
    slowed_by,
)
from accept.core.judge.health import (
    EXCLUSIVE,
    INTENDED_LINK_DOWN,
    NVLINK_RATIOS,
    PROHIBITED,
    Limits,
    device_problem,
    driver_faults,
    judged_of,
    slowed_text,
)
from accept.core.model import PlannedMachine, Problem
from accept.core.text import count, duration

#: Xids after which NVIDIA's catalog asks for a reset, a reboot or support
#: (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Not among them: errors
#: that end one application (94), and repairs of memory (63, 156), which have a state of their own.
#: For a PCIe link that fails (167) and the kind of an Xid 48 (171, 172) it names no action.
_FATAL_XIDS = frozenset(
    {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 157, 158, 167, 171, 172}
)
#: Xids that are fatal only if the log reports that: those of NVLink 5, also 155, which links that
#: are switched off on purpose cause, and 154, by which the driver requires an action.
_FATAL_IF_REPORTED = frozenset({*range(144, 151), 154, INTENDED_LINK_DOWN})
#: Levels of a GPU -> the cause if they are not 0, and a text. The first two are NVIDIA's criteria
#: for a replacement (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/).
_FLAGS = {
    "remap-failure": (Cause.GPU_REMAP_FAILED, "remapping of a memory row failed"),
    "sram-threshold": (Cause.GPU_ECC, "too many uncorrected errors of its caches"),
    "remap-pending": (Cause.GPU_RESET_REQUIRED, "a remapped memory row waits for a reset"),
    "pages-pending": (Cause.GPU_RESET_REQUIRED, "a retired memory page waits for a reset"),
}
#: Values of NVML's GPU recovery action (nvml.h, nvmlDeviceGpuRecoveryAction_t).
_RECOVERY = {
    1: "a reset of the GPU",
    2: "a reboot",
    3: "an end of its peer-to-peer traffic",
    4: "an end of its work and then a reset",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
#: Values of `fabric-state` (nvml.h, NVML_GPU_FABRIC_STATE_...).
_NO_FABRIC = 0
_FABRIC_STATES = {
    _NO_FABRIC: "has no part in",
    1: "did not start to join",
    2: "has not yet joined",
    FABRIC_JOINED: "has joined",
}
#: Clocks of a GPU that equal GPUs have in common, with texts.
_CLOCKS = {
    "sm-clock-max": "highest clock",
    "sm-clock-application": "application clock",
    "sm-clock-default": "default application clock",
}
#: PCIe generation from which an idle link may have fewer lanes (L0p of PCIe 6.0).
_FEWER_LANES_AT_REST = 6
#: Share of the raw rate of PCIe that carries data, by the encoding of generations 3 to 5.
_PCIE_ENCODING = 128 / 130
#: Temperature of a GPU's memory that is worth a note, in degrees Celsius; from practice.
_HOT_MEMORY = 95
#: A kernel log that begins later has lost lines, in seconds since boot.
_LOG_BEGINS = 600
_MAX_NAMED = 6

_Fault = tuple[Cause, str]


def problems(
    readings: Mapping[str, Reading], machine: PlannedMachine, limits: Limits, *, one_kind: bool
) -> Iterator[Problem]:
    """Yield the problems of GPUs and NICs from before the run, one for each device and cause.

    `one_kind`: all GPUs of the run have the same name, so they must have equal numbers of links.
    """
    links = _required_links(readings, machine, one_kind=one_kind)
    usual_clocks = _usual_clocks(readings) if one_kind else {}
    joined = one_kind and _most_joined(readings)
    for host, reading in readings.items():
        fabric = (machine.nvls or joined) and len(_gpus(reading)) > 1
        for device in reading.devices:
            faults = list(_nic_faults(device))
            if device.kind is DeviceKind.GPU and machine.gpus != 0:
                faults += _gpu_faults(device, limits, fabric=fabric)
                if slowed := slowed_by(device, reading):
                    faults.append((Cause.GPU_THROTTLED, slowed_text(slowed)))
                faults += _unusual_clocks(device, usual_clocks)
                faults += _missing_links(device, links, unsure=not machine.nvlinks)
            texts: dict[Cause, list[str]] = {}
            for cause, text in faults:
                texts.setdefault(cause, []).append(text)
            for cause, found in texts.items():
                message = f"before the run: {', '.join(found)}: {device.title} of {host}"
                yield device_problem(cause, host, device.title, message)
        if machine.gpus != 0:
            yield from _xid_problems(host, reading)


def _gpus(reading: Reading) -> list[Device]:
    """Return the GPUs of a host.

    A single GPU of a virtual machine has no part in a fabric (leptonai/gpud issue 1140).
    """
    return [device for device in reading.devices if device.kind is DeviceKind.GPU]


def _most_joined(readings: Mapping[str, Reading]) -> bool:
    """Return True if more than half of all GPUs have joined the fabric of their host."""
    states = [gpu.levels.get("fabric-state") for r in readings.values() for gpu in _gpus(r)]
    return 2 * states.count(FABRIC_JOINED) > len(states)


def unreported(
    readings: Mapping[str, Reading], machine: PlannedMachine, *, one_kind: bool
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield host and title of each GPU that lacks readings, and their names.

    A reading is required if the machine promises it, or if more than half of all GPUs report it.
    GPUs with errors of the driver are not listed, because they are named already.
    """
    if machine.gpus == 0:
        return
    usual: set[str] = set()
    if one_kind:
        found = [reading.reported(gpu) for reading in readings.values() for gpu in _gpus(reading)]
        counts = Counter(name for names in found for name in names)
        usual = {name for name, number in counts.items() if 2 * number > len(found)}
    promised = {"nvlinks"} if machine.nvlinks else set()
    promised |= {"fabric-state"} if machine.nvls else set()
    for host, reading in readings.items():
        gpus = _gpus(reading)
        for gpu in gpus:
            required = usual | promised if len(gpus) > 1 else usual
            if gpu.levels.get("nvlinks") == 0:
                required = {name for name in required if not name.startswith("nvlink-")}
            if not gpu.errors and (names := judged_of(required - reading.reported(gpu))):
                yield host, gpu.title, names


def unclear_links(
    readings: Mapping[str, Reading], machine: PlannedMachine, *, one_kind: bool
) -> Iterator[tuple[str, str]]:
    """Yield each host with GPUs without any link, and their titles, if others have links.

    Without a number from the machine, these GPUs may simply have no bridge.
    """
    links = _required_links(readings, machine, one_kind=one_kind)
    if machine.nvlinks or machine.gpus == 0 or not links:
        return
    for host, reading in readings.items():
        titles = [d.title for d in reading.devices if d.levels.get("nvlinks") == 0]
        if titles:
            yield host, ", ".join(titles)


def notes(readings: Mapping[str, Reading], machine: PlannedMachine) -> Iterator[str]:
    """Yield a text for each anomaly before the run that accuses nothing."""
    for host, reading in readings.items():
        for device in reading.devices:
            if texts := list(_note_texts(device)):
                yield f"before the run: {', '.join(texts)} on {device.title} of {host}"
        if reading.log is None:
            continue
        if reading.log.first > _LOG_BEGINS:
            begin = duration(reading.log.first)
            yield f"the kernel log of {host} begins {begin} after the boot: no earlier Xid is known"
        blamed = set() if machine.gpus == 0 else set(_fatal_events(reading))
        kinds = ("xid", "sxid", "lost")
        others = [e for e in reading.log.events if e.kind in kinds and e not in blamed]
        texts = sorted({f"{_event_name(event)} at {event.pci}" for event in others})
        if texts:
            yield f"before the run, in the kernel log of {host}: {', '.join(texts[:_MAX_NAMED])}"


# GPUs


def _gpu_faults(gpu: Device, limits: Limits, *, fabric: bool) -> Iterator[_Fault]:
    """Yield what is wrong with a GPU, except its links; `fabric`: it must have joined one."""
    levels = gpu.levels
    yield from driver_faults(gpu.errors)
    for name, (cause, text) in _FLAGS.items():
        if levels.get(name):
            yield cause, text
    if action := int(levels.get("recovery-action", 0)):
        text = _RECOVERY.get(action, f"recovery action {action}")
        yield Cause.GPU_RESET_REQUIRED, f"the driver requires {text}"
    corrected = gpu.counters.get("ecc-corrected", 0)
    if corrected > limits.corrected_errors:
        yield Cause.GPU_ECC, f"{corrected} corrected memory errors since its driver started"
    errors = gpu.counters.get("ecc-uncorrected-aggregate", 0)
    if errors > limits.uncorrected_errors:
        yield Cause.GPU_ECC, f"{errors} uncorrected memory errors in its lifetime"
    rows = gpu.counters.get("rows-remapped-uncorrected", 0)
    if rows > limits.memory_repairs:
        yield Cause.GPU_ECC, f"{rows} memory rows remapped for uncorrected errors"
    pages = sum(gpu.counters.get(f"pages-retired-{kind}", 0) for kind in ("single", "double"))
    if pages > limits.retired_pages:
        yield Cause.GPU_ECC, f"{count(pages, 'retired memory page')}"
    if banks := levels.get("banks-without-spares", 0):
        yield Cause.GPU_REMAP_FAILED, f"{count(int(banks), 'memory bank')} without a spare row"
    yield from _fabric_faults(levels, required=fabric)
    for level, limit in NVLINK_RATIOS.items():
        if (ratio := levels.get(level, 0.0)) > limit:
            yield Cause.NVLINK_ERRORS, f"{level} of a link is {ratio:.0e}"
    yield from _wrong_settings(levels, limits)
    width, most = levels.get("pcie-width", 0), levels.get("pcie-width-max", 0)
    if 0 < width < most and not _may_rest(gpu):
        yield Cause.PCIE_DEGRADED, f"{width:g} PCIe lanes instead of {most:g}"


def _may_rest(gpu: Device) -> bool:
    """Return True if fewer lanes may only mean that the GPU is idle."""
    return gpu.levels.get("pcie-generation-max", 0) >= _FEWER_LANES_AT_REST


def _fabric_faults(levels: Mapping[str, float], *, required: bool) -> Iterator[_Fault]:
    state = levels.get("fabric-state")
    if state is None or (state == _NO_FABRIC and not required):
        return
    if state != FABRIC_JOINED:
        text = _FABRIC_STATES.get(int(state), f"has the state {state:g} in")
        yield Cause.FABRIC_MANAGER, f"it {text} the NVLink fabric"
    elif status := int(levels.get("fabric-status", 0)):
        yield Cause.FABRIC_MANAGER, f"it could not join the NVLink fabric (NVML error {status})"
    for text in fabric_faults(levels.get("fabric-health", 0.0)):
        yield Cause.FABRIC_MANAGER, f"NVLink fabric: {text}"


def _wrong_settings(levels: Mapping[str, float], limits: Limits) -> Iterator[_Fault]:
    # Some workstation GPUs are delivered without ECC.
    if levels.get("ecc") == 0 and levels.get("ecc-default") != 0:
        yield Cause.GPU_SETTINGS, "ECC is off"
    if levels.get("mig"):
        yield Cause.GPU_MODE, "MIG is on"
    mode = levels.get("compute-mode", 0)
    if mode == PROHIBITED:
        yield Cause.GPU_MODE, "its compute mode prohibits any process"
    elif mode in EXCLUSIVE and not limits.exclusive_ok:
        yield Cause.GPU_MODE, "its compute mode allows only one process"
    clock, usual = levels.get("sm-clock-application", 0), levels.get("sm-clock-default", 0)
    if 0 < clock < usual:
        yield Cause.GPU_SETTINGS, f"its application clock is {clock:g} MHz, the default {usual:g}"
    limit, default = levels.get("power-limit", 0), levels.get("power-limit-default", 0)
    if 0 < limit < limits.power_limit_share * default:
        yield Cause.GPU_SETTINGS, f"its power limit is {limit:g} W, the default is {default:g} W"


def _usual_clocks(readings: Mapping[str, Reading]) -> dict[str, float]:
    """Return the clocks that more than half of all GPUs of the run have, by level."""
    usual = {}
    for level in _CLOCKS:
        values = [
            device.levels[level]
            for reading in readings.values()
            for device in reading.devices
            if level in device.levels
        ]
        counts = Counter(values).most_common(1)
        if counts and 2 * counts[0][1] > len(values):
            usual[level] = counts[0][0]
    return usual


def _unusual_clocks(gpu: Device, usual: Mapping[str, float]) -> Iterator[_Fault]:
    for level, text in _CLOCKS.items():
        clock = gpu.levels.get(level)
        if clock is not None and 0 < clock < usual.get(level, 0):
            yield (
                Cause.GPU_SETTINGS,
                f"its {text} is {clock:g} MHz, that of others {usual[level]:g}",
            )


def _required_links(
    readings: Mapping[str, Reading], machine: PlannedMachine, *, one_kind: bool
) -> int:
    """Return the number of active NVLinks that each GPU must have; 0: unknown."""
    if machine.nvlinks or not one_kind:
        return machine.nvlinks
    seen = (d.levels.get("nvlinks", 0) for reading in readings.values() for d in reading.devices)
    return int(max(seen, default=0))


def _missing_links(gpu: Device, required: int, *, unsure: bool) -> Iterator[_Fault]:
    active = gpu.levels.get("nvlinks")
    if active is None or active >= required or (unsure and not active):
        return
    expected = f"others have {required}" if unsure else f"the machine has {required}"
    yield Cause.NVLINK_DOWN, f"{count(int(active), 'active NVLink')}, and {expected}"


# NICs


def _nic_faults(nic: Device) -> Iterator[_Fault]:
    """Yield what is wrong with the PCIe link of an active RDMA port."""
    if nic.kind is not DeviceKind.RDMA or not nic.levels.get("active"):
        return
    width, most = nic.levels.get("pcie-width", 0), nic.levels.get("pcie-width-max", 0)
    if 0 < width < most:
        yield Cause.PCIE_DEGRADED, f"{width:g} PCIe lanes instead of {most:g}"
    if (slow := _slow_link(nic)) and not _fast_enough(nic):
        yield Cause.PCIE_DEGRADED, slow


def _slow_link(nic: Device) -> str:
    speed, most = nic.levels.get("pcie-speed", 0), nic.levels.get("pcie-speed-max", 0)
    return f"a PCIe link of {speed:g} GT/s instead of {most:g}" if 0 < speed < most else ""


def _fast_enough(nic: Device) -> bool:
    """Return True if the PCIe link carries the port's full rate, as firmware may have set it."""
    levels = nic.levels
    carried = levels.get("pcie-width", 0) * levels.get("pcie-speed", 0) * _PCIE_ENCODING
    return 0 < levels.get("rate", 0) <= carried


# Xids


def _fatal_events(reading: Reading) -> Iterator[Event]:
    """Yield the fatal events since boot, except Xids of GPUs that were reset afterwards."""
    events = reading.log.events if reading.log else ()
    working = {d.pci for d in reading.devices if d.levels and not d.errors}
    resets = {event.pci: event.at for event in events if event.kind == "reset"}
    # The driver does not always write which GPU needs a reset: that of any may have been the one.
    resets[""] = max(resets.values(), default=0.0)
    for event in events:
        if event.kind == "sxid":
            fatal = event.fatal
        elif event.kind == "lost":
            # A GPU that works again was reset, even if the log does not show it.
            fatal = event.pci not in working
        else:
            fatal = event.kind == "xid" and (
                event.code in _FATAL_XIDS or (event.fatal and event.code in _FATAL_IF_REPORTED)
            )
        if fatal and resets.get(event.pci, 0.0) <= event.at:
            yield event


def _xid_problems(host: str, reading: Reading) -> Iterator[Problem]:
    """Yield a problem for each GPU or NVSwitch with fatal events since boot."""
    titles = {device.pci: device.title for device in reading.devices if device.pci}
    by_device: dict[str, list[Event]] = {}
    for event in _fatal_events(reading):
        other = "NVSwitch" if event.kind == "sxid" else "GPU"
        unnamed = f"the {other} at {event.pci}" if event.pci else "a GPU"
        title = titles.get(event.pci, unnamed)
        by_device.setdefault(title, []).append(event)
    for title, events in by_device.items():
        texts = [f"{_event_name(event)} {event.when}" for event in events[-_MAX_NAMED:]]
        message = f"before the run: {', '.join(texts)}, and no reset since: {title} of {host}"
        levels = [device.levels for device in reading.devices if device.levels]
        if levels and not any("recovery-action" in names for names in levels):
            message += "; its driver does not report resets: reboot the host after a repair"
        lost = all(event.kind == "lost" for event in events)
        cause = driver_cause(events[-1].code) if lost else Cause.GPU_XID
        yield device_problem(cause, host, title, message)


def _event_name(event: Event) -> str:
    if event.kind != "lost":
        return f"{event.kind.title()} {event.code}"
    return "needs a reset" if event.code == RESET_REQUIRED else "fallen off the bus"


# Notes


def _note_texts(device: Device) -> Iterator[str]:
    for name in ("ecc-uncorrected-aggregate", "pages-retired-double", "rows-remapped-uncorrected"):
        if number := device.counters.get(name):
            yield f"{name} {number}"
    if device.levels.get("persistence") == 0:
        yield "persistence mode off, so counters may restart between steps (`nvidia-smi -pm 1`)"
    if (temperature := device.levels.get("memory-temperature", 0)) >= _HOT_MEMORY:
        yield f"memory at {temperature:g} C"
    width, most = device.levels.get("pcie-width", 0), device.levels.get("pcie-width-max", 0)
    if device.kind is DeviceKind.GPU and 0 < width < most and _may_rest(device):
        yield f"{width:g} PCIe lanes instead of {most:g} at rest"
    if device.kind is DeviceKind.RDMA and _fast_enough(device) and (slow := _slow_link(device)):
        yield slow
