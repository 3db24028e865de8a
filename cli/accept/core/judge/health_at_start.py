"""Judge the first reading of each host: damage and settings that existed before the run.

A value that a GPU or NIC does not report is neither good nor bad. Without one that its machine or
its peers have, a GPU cannot be judged: see `unreported`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache

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
from accept.core.judge.health import (
    EXCLUSIVE,
    INTENDED_LINK_DOWN,
    NVLINK_RATIOS,
    PROHIBITED,
    Limits,
    by_cause,
    cause_of,
    device_problem,
    driver_faults,
    judged_of,
    level_text,
    slowed_text,
)
from accept.core.model import PlannedMachine, Problem
from accept.core.signs import SignOwner, Specificity, catalog
from accept.core.text import count, duration

#: Xids that are fatal only if the log reports that: those of NVLink 5, also 155, which links that
#: are switched off on purpose cause, and 154, by which the driver requires an action.
_FATAL_IF_REPORTED = frozenset({*range(144, 151), 154, INTENDED_LINK_DOWN})
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
#: Clocks of a GPU that equal GPUs have in common.
_CLOCKS = ("sm-clock-max", "sm-clock-application", "sm-clock-default")
#: Pages of both kinds: those with many corrected errors, and those with an uncorrected one.
_RETIRED = "pages-retired"
#: PCIe generation from which an idle link may have fewer lanes (L0p of PCIe 6.0).
_FEWER_LANES_AT_REST = 6
#: Share of the raw rate of PCIe that carries data, by the encoding of generations 3 to 5.
_PCIE_ENCODING = 128 / 130
#: Temperature of a GPU's memory that is worth a note, in degrees Celsius; from practice.
_HOT_MEMORY = 95
#: A kernel log that begins later has lost lines, in seconds since boot.
_LOG_BEGINS = 600
_MAX_NAMED = 6


#: Reading of a GPU -> the highest value without a fault, or the name of the limit for it, and the
#: sentence. Those of remapping and of caches are NVIDIA's criteria for a replacement
#: (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/).
_HIGHEST: dict[str, tuple[float | str, str]] = {
    "remap-failure": (0, "remapping of a memory row failed"),
    "sram-threshold": (0, "too many uncorrected errors of its caches"),
    "remap-pending": (0, "a remapped memory row waits for a reset"),
    "pages-pending": (0, "a retired memory page waits for a reset"),
    "banks-without-spares": (0, "memory banks without a spare row: {}"),
    "mig": (0, "MIG is on"),
    "ecc-corrected": ("corrected_errors", "{} corrected memory errors since its driver started"),
    "ecc-uncorrected-aggregate": ("uncorrected_errors", "{} uncorrected errors in its lifetime"),
    "rows-remapped-uncorrected": ("memory_repairs", "{} rows remapped for uncorrected errors"),
    _RETIRED: ("retired_pages", "{} retired memory pages"),
    **{name: (most, f"{name} of a link is {{}}") for name, most in NVLINK_RATIOS.items()},
}
#: Level of a GPU -> the level that it must reach.
_LOWEST = {
    "sm-clock-application": "sm-clock-default",
    "power-limit": "power-limit-default",
    "pcie-width": "pcie-width-max",
}
#: Readings whose values from before the run have another cause than their changes.
_CAUSES = {
    "remap-pending": Cause.GPU_RESET_REQUIRED,
    "pages-pending": Cause.GPU_RESET_REQUIRED,
    "rows-remapped-uncorrected": Cause.GPU_ECC,
    _RETIRED: Cause.GPU_ECC,
}

_Fault = tuple[Cause, str]
#: A GPU with its host, and the reading of the host.
_HostGpu = tuple[str, Reading, Device]


def examine(
    readings: Mapping[str, Reading], machine: PlannedMachine, limits: Limits, *, one_kind: bool
) -> Problems:
    """Return what GPUs and NICs show from before the run.

    `one_kind`: all GPUs of the run have the same name, so they must have equal numbers of links.
    """
    gpus = _gpus(readings, machine)
    unclear = [*_unclear_links(gpus if one_kind and not machine.nvlinks else ())]
    unclear += _unreported(gpus, _promised(machine), _several(gpus), one_kind=one_kind)
    found = problems(readings, machine, limits, one_kind=one_kind)
    return Problems(list(found), unclear, list(notes(readings, machine)))


def problems(
    readings: Mapping[str, Reading], machine: PlannedMachine, limits: Limits, *, one_kind: bool
) -> Iterator[Problem]:
    """Yield what fails GPUs and NICs; one problem for each device and cause."""
    gpus = _gpus(readings, machine)
    several = _several(gpus)
    peers = [gpu for _, _, gpu in gpus] if one_kind else []
    links = machine.nvlinks or int(max((d.levels.get("nvlinks", 0) for d in peers), default=0))
    clocks = {level: usual(d.levels.get(level) for d in peers) for level in _CLOCKS}
    joined = usual(d.levels.get("fabric-state") for d in peers) == FABRIC_JOINED
    for host, reading in readings.items():
        # A single GPU of a virtual machine has no part in a fabric (leptonai/gpud issue 1140).
        fabric = (machine.nvls or joined) and host in several
        for device in reading.devices:
            faults = list(_nic_faults(device))
            if machine.gpus != 0 and _is_gpu(device):
                faults += _gpu_faults(device, limits, fabric=fabric)
                if slowed := slowed_by(device, reading):
                    faults.append((Cause.GPU_THROTTLED, slowed_text(slowed)))
                faults += _unusual_clocks(device, clocks)
                faults += _missing_links(device, links, unsure=not machine.nvlinks)
            for cause, texts in by_cause(faults).items():
                message = f"before the run: {', '.join(texts)}: {device.title} of {host}"
                yield device_problem(cause, host, device.title, message)
        yield from _xid_problems(host, reading) if machine.gpus != 0 else ()


def _gpus(readings: Mapping[str, Reading], machine: PlannedMachine) -> list[_HostGpu]:
    every = [(host, reading, d) for host, reading in readings.items() for d in reading.devices]
    return [one for one in every if machine.gpus != 0 and _is_gpu(one[2])]


def _several(gpus: Iterable[_HostGpu]) -> set[str]:
    """Return the hosts with more than one GPU."""
    return {host for host, number in Counter(h for h, _, _ in gpus).items() if number > 1}


def _is_gpu(device: Device) -> bool:
    return device.kind is DeviceKind.GPU


def _promised(machine: PlannedMachine) -> set[str]:
    """Return the readings that each GPU of a host with several must have."""
    names = {"nvlinks": machine.nvlinks, "fabric-state": machine.nvls}
    return {name for name, promised in names.items() if promised}


def _unreported(
    gpus: Sequence[_HostGpu], promised: Set[str], several: Collection[str], *, one_kind: bool
) -> Iterator[Problem]:
    """Yield the GPUs that lack readings.

    A reading is required if the machine promises it, or if more than half of all GPUs report it.
    GPUs with errors of the driver are not listed, because they are named already.
    """
    counts = Counter(name for _, reading, gpu in gpus for name in reading.reported(gpu))
    common = {name for name, number in counts.items() if one_kind and 2 * number > len(gpus)}
    for host, reading, gpu in gpus:
        required = common | promised if host in several else common
        if gpu.levels.get("nvlinks") == 0:
            required = {name for name in required if not name.startswith("nvlink-")}
        if not gpu.errors and (names := judged_of(required - reading.reported(gpu))):
            text = f"before the run: not reported by {gpu.title} of {host}: {', '.join(names)}"
            yield device_problem(Cause.GPU_UNREPORTED, host, gpu.title, text)


def _unclear_links(gpus: Sequence[_HostGpu]) -> Iterator[Problem]:
    """Yield each host with GPUs without any link, while others have links.

    Without a number from the machine, these GPUs may simply have no bridge.
    """
    titles: dict[str, list[str]] = {}
    linked = any(gpu.levels.get("nvlinks", 0) for _, _, gpu in gpus)
    for host, _, gpu in gpus:
        if linked and gpu.levels.get("nvlinks") == 0:
            titles.setdefault(host, []).append(gpu.title)
    for host, without in titles.items():
        text = f"before the run: no active NVLink on {', '.join(without)} of {host}, but on other "
        text += "GPUs; add nvlink.links to your machine file"
        yield Problem(cause=Cause.NVLINK_DOWN, message=text, host=host)


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
    pages = sum(gpu.counters.get(f"{_RETIRED}-{kind}", 0) for kind in ("single", "double"))
    known: dict[str, float] = {**levels, **gpu.counters, _RETIRED: pages}
    for name, (most, text) in _HIGHEST.items():
        value: float = known.get(name, 0)
        if value > (getattr(limits, most) if isinstance(most, str) else most):
            cause = _CAUSES.get(name) or cause_of(name)
            yield cause, text.format(f"{value:.0e}" if value < 1 else f"{value:.0f}")
    if action := int(levels.get("recovery-action", 0)):
        text = _RECOVERY.get(action, f"recovery action {action}")
        yield Cause.GPU_RESET_REQUIRED, f"the driver requires {text}"
    yield from _fabric_faults(levels, required=fabric)
    # Some workstation GPUs are delivered without ECC.
    if levels.get("ecc") == 0 and levels.get("ecc-default") != 0:
        yield Cause.GPU_SETTINGS, "ECC is off"
    mode = levels.get("compute-mode", 0)
    if mode == PROHIBITED:
        yield Cause.GPU_MODE, "its compute mode prohibits any process"
    elif mode in EXCLUSIVE and not limits.exclusive_ok:
        yield Cause.GPU_MODE, "its compute mode allows only one process"
    for level, other in _LOWEST.items():
        value, normal = levels.get(level, 0), levels.get(other, 0)
        share = limits.power_limit_share if level == "power-limit" else 1
        if 0 < value < share * normal and not (level == "pcie-width" and _may_rest(gpu)):
            yield cause_of(level), level_text(level, normal, value)


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


def _unusual_clocks(gpu: Device, usual: Mapping[str, float | None]) -> Iterator[_Fault]:
    for level in _CLOCKS:
        clock, others = gpu.levels.get(level, 0), usual[level] or 0
        if 0 < clock < others:
            yield Cause.GPU_SETTINGS, f"{level} {clock:g}, that of others {others:g}"


def _missing_links(gpu: Device, required: int, *, unsure: bool) -> Iterator[_Fault]:
    active = gpu.levels.get("nvlinks")
    if active is None or active >= required or (unsure and not active):
        return
    expected = f"others have {required}" if unsure else f"the machine has {required}"
    yield Cause.NVLINK_DOWN, f"{count(int(active), 'active NVLink')}, and {expected}"


# NICs


def _nic_faults(nic: Device) -> Iterator[_Fault]:
    """Yield what is wrong with the PCIe link of an active RDMA port."""
    if nic.kind is DeviceKind.RDMA and nic.levels.get("active"):
        for level in ("pcie-width", "pcie-speed"):
            if (text := _degraded(nic, level)) and not (level == "pcie-speed" and _is_enough(nic)):
                yield Cause.PCIE_DEGRADED, text


def _degraded(device: Device, level: str) -> str:
    """Return a text if the PCIe link of a device is below its highest level; else ""."""
    now, most = device.levels.get(level, 0), device.levels.get(f"{level}-max", 0)
    return level_text(level, most, now) if 0 < now < most else ""


def _is_enough(nic: Device) -> bool:
    """Return True if the PCIe link carries the port's full rate, as firmware may have set it."""
    levels = nic.levels
    carried = levels.get("pcie-width", 0) * levels.get("pcie-speed", 0) * _PCIE_ENCODING
    return 0 < levels.get("rate", 0) <= carried


# Xids


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
                event.code in _fatal_xids() or (event.fatal and event.code in _FATAL_IF_REPORTED)
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
    if event.code == RESET_REQUIRED:
        return "needs a reset"
    return "fallen off the bus" if event.code == GPU_IS_LOST else "RmInitAdapter failed"


# Notes


def _note_texts(device: Device) -> Iterator[str]:
    for name in ("ecc-uncorrected-aggregate", "pages-retired-double", "rows-remapped-uncorrected"):
        if number := device.counters.get(name):
            yield f"{name} {number}"
    if device.levels.get("persistence") == 0:
        yield "persistence mode off, so counters may restart between steps (`nvidia-smi -pm 1`)"
    if (temperature := device.levels.get("memory-temperature", 0)) >= _HOT_MEMORY:
        yield f"memory at {temperature:g} C"
    if _is_gpu(device) and _may_rest(device) and (text := _degraded(device, "pcie-width")):
        yield f"{text} at rest"
    if device.kind is DeviceKind.RDMA and _is_enough(device):
        yield from filter(None, [_degraded(device, "pcie-speed")])
