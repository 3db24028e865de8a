"""Read GPU counters of NVIDIA's driver from NVML (pynvml), or from nvidia-smi, which has fewer.

Devices are as in `health_host`; `pci` is the address and `name` the index. Each NVML function
reports by itself if a GPU does not support it. Sources: NVML API Reference Guide
(https://docs.nvidia.com/deploy/nvml-api/), `nvidia-smi --help-query-gpu`. Not tested on hardware.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nvml
from health_host import Device, Gap, gap, known, pci_name

#: Counter -> (type of error, counter type) of nvmlDeviceGetTotalEccErrors.
_ECC = {
    "ecc-corrected": (0, 0),
    "ecc-uncorrected": (1, 0),
    "ecc-corrected-aggregate": (0, 1),
    "ecc-uncorrected-aggregate": (1, 1),
}
#: Counter -> policy of nvmlDeviceGetViolationStatus, whose time is in ns.
_VIOLATIONS = {
    "limited-power": "NVML_PERF_POLICY_POWER",
    "limited-thermal": "NVML_PERF_POLICY_THERMAL",
    "limited-board": "NVML_PERF_POLICY_BOARD_LIMIT",
    "limited-reliability": "NVML_PERF_POLICY_RELIABILITY",
}
#: Counter -> counter of nvmlDeviceGetNvLinkErrorCounter, on each link.
_LINKS = {
    "nvlink-replay": "NVML_NVLINK_ERROR_DL_REPLAY",
    "nvlink-recovery": "NVML_NVLINK_ERROR_DL_RECOVERY",
    "nvlink-crc-flit": "NVML_NVLINK_ERROR_DL_CRC_FLIT",
    "nvlink-crc-data": "NVML_NVLINK_ERROR_DL_CRC_DATA",
}
#: Counter -> field of nvmlDeviceGetFieldValues, on each link: those of NVLink 5.
_LINK_FIELDS = {"nvlink-recovery-failed": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"}
#: The same, summed over the links, because they are only noted and many links have some.
_SUMMED_FIELDS = {
    "nvlink-recovered": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
    "nvlink-receive-errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "nvlink-symbol-errors": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
    "nvlink-effective-errors": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
    "nvlink-integrity-errors": "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "nvlink-malformed": "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "nvlink-overruns": "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
}
#: Level -> field of the whole GPU. The times for each clock event reason are not among them: their
#: numbers have another meaning in other drivers (269 to 271 in bindings 13.615, else 251 to 253).
_LEVEL_FIELDS = {
    "memory-temperature": "NVML_FI_DEV_MEMORY_TEMP",
    "recovery-action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
}
#: What is unreadable without it, the function, its structure, and level -> member.
_STRUCTURES = (
    (
        "fabric",
        "nvmlDeviceGetGpuFabricInfoV",
        "c_nvmlGpuFabricInfoV_t",
        {"fabric-state": "state", "fabric-status": "status", "fabric-health": "healthMask"},
    ),
    (
        "SRAM threshold",
        "nvmlDeviceGetSramEccErrorStatus",
        "c_nvmlEccSramErrorStatus_v1_t",
        {"sram-threshold": "bThresholdExceeded"},
    ),
)
#: The member that holds a field's value, by the field's type.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")
#: Column of `nvidia-smi --query-gpu` -> counter or level.
_SMI_COUNTERS = {
    "ecc.errors.corrected.volatile.total": "ecc-corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc-uncorrected",
    "ecc.errors.corrected.aggregate.total": "ecc-corrected-aggregate",
    "ecc.errors.uncorrected.aggregate.total": "ecc-uncorrected-aggregate",
    "retired_pages.single_bit_ecc.count": "pages-retired-single",
    "retired_pages.double_bit.count": "pages-retired-double",
    "remapped_rows.correctable": "rows-remapped-corrected",
    "remapped_rows.uncorrectable": "rows-remapped-uncorrected",
}
_SMI_LEVELS = {
    "temperature.gpu": "temperature",
    "power.draw": "power",
    "clocks.sm": "sm-clock",
    "clocks.mem": "memory-clock",
    "utilization.gpu": "utilization",
    "clocks_event_reasons.active": "reasons",
    "pcie.link.gen.current": "pcie-generation",
    "pcie.link.gen.max": "pcie-generation-max",
    "pcie.link.width.current": "pcie-width",
    "pcie.link.width.max": "pcie-width-max",
    "remapped_rows.pending": "remap-pending",
    "remapped_rows.failure": "remap-failure",
    "retired_pages.pending": "pages-pending",
    "temperature.memory": "memory-temperature",
    "ecc.mode.current": "ecc",
    "mig.mode.current": "mig",
    "compute_mode": "compute-mode",
    "enforced.power.limit": "power-limit",
    "power.default_limit": "power-limit-default",
}
#: The name of the throttle reasons in drivers before 535, in NVML and in nvidia-smi; a newer pynvml
#: has the new name with those drivers, too.
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
_OLD_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
_OLD_COLUMNS = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
#: Words of nvidia-smi -> the number that NVML has for them.
_MODES = {"Default": 0.0, "Exclusive_Thread": 1.0, "Prohibited": 2.0, "Exclusive_Process": 3.0}
_WORDS = {"Yes": 1.0, "No": 0.0, "Enabled": 1.0, "Disabled": 0.0, **_MODES}


def has_driver(root: Path) -> bool:
    """Return True if NVIDIA's driver is loaded, or its device is in this container."""
    return any((root / sign).exists() for sign in ("proc/driver/nvidia", "dev/nvidiactl"))


def gpus(root: Path) -> tuple[list[Device], list[Gap]]:
    """Return the driver's GPUs, and what could not be read; no GPUs without a driver."""
    if not has_driver(root):
        return [], []
    try:
        bindings = nvml.load()
    except ImportError:
        return _by_smi("no pynvml")
    try:
        bindings.nvmlInit()
        count = bindings.nvmlDeviceGetCount()
    except bindings.NVMLError as error:
        return _by_smi(f"NVML: {error}")
    lost: dict[str, set[str]] = {}
    unsupported: dict[str, set[str]] = {}
    devices = []
    for index in range(count):
        try:
            handle = bindings.nvmlDeviceGetHandleByIndex(index)
            devices.append(_gpu(bindings, index, handle, unsupported))
        except bindings.NVMLError as error:
            # A lost GPU keeps its index, and NVML reports the error.
            lost.setdefault(str(error), set()).add(f"GPU {index}")
    unread = [
        gap(f"{', '.join(sorted(names))} ({why})", unread_devices)
        for names_by_error, unread_devices in ((lost, "gpus"), (unsupported, "none"))
        for why, names in sorted(names_by_error.items())
    ]
    return devices, unread


def _gpu(bindings: Any, index: int, handle: Any, unsupported: dict[str, set[str]]) -> Device:
    """Return the counters of a GPU; add those it lacks to `unsupported`, by error message."""

    def query(name: str, function: str, *arguments: Any, older: str = "") -> Any:
        """Return the result of an NVML function, or None if the GPU does not support it."""
        try:
            return getattr(bindings, function)(handle, *arguments)
        except (bindings.NVMLError, AttributeError) as error:
            if older:
                return query(name, older, *arguments)
            unsupported.setdefault(str(error)[:80], set()).add(name)
            return None

    # Without an address the GPU cannot be identified, so this error is not caught here.
    pci = bindings.nvmlDeviceGetPciInfo(handle).busId
    rows = query("row remaps", "nvmlDeviceGetRemappedRows") or (None,) * 4
    links, active = _links(bindings, handle)
    if active is None:
        unsupported.setdefault("Not Supported", set()).add("NVLink")
    counters = {
        **{name: query(name, "nvmlDeviceGetTotalEccErrors", *kind) for name, kind in _ECC.items()},
        "rows-remapped-corrected": rows[0],
        "rows-remapped-uncorrected": rows[1],
        "pcie-replay": query("pcie-replay", "nvmlDeviceGetPcieReplayCounter"),
        **links,
    }
    for cause, name in enumerate(("pages-retired-single", "pages-retired-double")):
        pages = query("retired pages", "nvmlDeviceGetRetiredPages", cause)
        counters[name] = None if pages is None else len(pages)
    for name, policy in _VIOLATIONS.items():
        spent = query(name, "nvmlDeviceGetViolationStatus", getattr(bindings, policy))
        counters[name] = None if spent is None else spent.violationTime
    fields = _field_values(bindings, handle, [(name, f, 0) for name, f in _LEVEL_FIELDS.items()])
    values = {name: value for (name, _), value in fields.items()}
    for name in sorted(_LEVEL_FIELDS.keys() - values.keys()):
        unsupported.setdefault("Not Supported", set()).add(name)
    used = query("utilization", "nvmlDeviceGetUtilizationRates")
    power = query("power", "nvmlDeviceGetPowerUsage")
    limit = query("power limit", "nvmlDeviceGetEnforcedPowerLimit")
    usual_limit = query("power limit", "nvmlDeviceGetPowerManagementDefaultLimit")
    ecc = query("ECC mode", "nvmlDeviceGetEccMode") or (None,)
    # The binding returns a list with one element.
    ecc_default = query("default ECC mode", "nvmlDeviceGetDefaultEccMode") or (None,)
    mig = query("MIG mode", "nvmlDeviceGetMigMode") or (None,)
    levels = {
        "temperature": query(
            "temperature", "nvmlDeviceGetTemperature", bindings.NVML_TEMPERATURE_GPU
        ),
        "power": None if power is None else power / 1000,
        "sm-clock": query("clocks", "nvmlDeviceGetClockInfo", bindings.NVML_CLOCK_SM),
        "memory-clock": query("clocks", "nvmlDeviceGetClockInfo", bindings.NVML_CLOCK_MEM),
        "utilization": None if used is None else used.gpu,
        "reasons": query("clock reasons", _REASONS, older=_OLD_REASONS),
        "pcie-generation": query("PCIe link", "nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie-generation-max": query("PCIe link", "nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie-width": query("PCIe link", "nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie-width-max": query("PCIe link", "nvmlDeviceGetMaxPcieLinkWidth"),
        "remap-pending": rows[2],
        "remap-failure": rows[3],
        "pages-pending": query("retired pages", "nvmlDeviceGetRetiredPagesPendingStatus"),
        "nvlinks": active,
        "ecc": ecc[0],
        "ecc-default": ecc_default[0],
        "mig": mig[0],
        "compute-mode": query("compute mode", "nvmlDeviceGetComputeMode"),
        "power-limit": None if limit is None else limit / 1000,
        "power-limit-default": None if usual_limit is None else usual_limit / 1000,
        **{name: values.get(name) for name in _LEVEL_FIELDS},
        **_structures(bindings, handle, unsupported),
    }
    return {
        "kind": "gpu",
        "name": str(index),
        "pci": pci_name(nvml.text(pci)),
        "counters": counters,
        "levels": known(levels),
    }


def _links(bindings: Any, handle: Any) -> tuple[dict[str, int], int | None]:
    """Return error counters as "NAME.LINK", and the number of active links; None without NVLink."""
    counters: dict[str, int] = {}
    active, links = [], 0
    for link in range(bindings.NVML_NVLINK_MAX_LINKS):
        try:
            state = bindings.nvmlDeviceGetNvLinkState(handle, link)
        except bindings.NVMLError:
            continue
        links += 1
        if not state:
            continue
        active.append(link)
        for name, constant in _LINKS.items():
            try:
                value = bindings.nvmlDeviceGetNvLinkErrorCounter(
                    handle, link, getattr(bindings, constant)
                )
            except bindings.NVMLError:
                continue
            counters[f"{name}.{link}"] = int(value)
    both = {**_LINK_FIELDS, **_SUMMED_FIELDS}
    fields = [(name, field, link) for name, field in both.items() for link in active]
    for (name, link), value in _field_values(bindings, handle, fields).items():
        key = name if name in _SUMMED_FIELDS else f"{name}.{link}"
        counters[key] = counters.get(key, 0) + value
    return counters, len(active) if links else None


def _field_values(
    bindings: Any, handle: Any, fields: Sequence[tuple[str, str, int]]
) -> dict[tuple[str, int], int]:
    """Return the values of fields that the GPU supports, from (name, NVML's name, link)."""
    numbers = [(name, getattr(bindings, constant, None), link) for name, constant, link in fields]
    queries = [(name, number, link) for name, number, link in numbers if number is not None]
    try:
        pairs = [(number, link) for _, number, link in queries]
        values = bindings.nvmlDeviceGetFieldValues(handle, pairs) if pairs else ()
    except bindings.NVMLError:
        values = ()
    return {
        (name, link): int(getattr(value.value, _MEMBERS[value.valueType]))
        for (name, _, link), value in zip(queries, values, strict=False)
        if value.nvmlReturn == 0 and value.valueType < len(_MEMBERS)
    }


def _structures(
    bindings: Any, handle: Any, unsupported: dict[str, set[str]]
) -> dict[str, float | None]:
    """Return the levels that NVML writes into a structure.

    The fabric is that of NVLink with NVSwitches. A GPU without one has the state 0.
    """
    levels: dict[str, float | None] = {}
    for name, function, structure, members in _STRUCTURES:
        try:
            filled = getattr(bindings, structure)()
            getattr(bindings, function)(handle, ctypes.byref(filled))
        except (bindings.NVMLError, AttributeError) as error:
            unsupported.setdefault(str(error)[:80], set()).add(name)
            continue
        levels |= {level: getattr(filled, member) for level, member in members.items()}
    if levels.get("fabric-state") == 0:
        unsupported.setdefault("Not Supported", set()).add("fabric")
        levels = {name: value for name, value in levels.items() if not name.startswith("fabric")}
    return levels


def _by_smi(why: str) -> tuple[list[Device], list[Gap]]:
    """Return the same from nvidia-smi, which lacks NVLink, replays and the time spent throttled."""
    from inventory import smi

    columns = ["index", "pci.bus_id", *_SMI_COUNTERS, *_SMI_LEVELS]
    try:
        # With one unknown column nvidia-smi prints nothing.
        rows = smi("gpu", columns) or smi("gpu", [_OLD_COLUMNS.get(c, c) for c in columns])
    except subprocess.TimeoutExpired as error:
        reason = f"GPUs ({why}; nvidia-smi does not answer in {error.timeout:.0f} s)"
        return [], [gap(reason, "gpus")]
    if not rows:
        return [], [gap(f"GPUs ({why}; nvidia-smi printed no GPU)", "gpus")]
    found = [_row(dict(zip(columns, row, strict=True))) for row in rows]
    return found, [gap(f"NVLink, fabric, PCIe replays, time spent limited ({why})")]


def _row(row: dict[str, str]) -> Device:
    counters = {name: _value(row[column]) for column, name in _SMI_COUNTERS.items()}
    levels = {name: _value(row[column]) for column, name in _SMI_LEVELS.items()}
    return {
        "kind": "gpu",
        "name": row["index"],
        "pci": pci_name(row["pci.bus_id"]),
        "counters": {k: None if v is None else int(v) for k, v in counters.items()},
        "levels": known(levels),
    }


def _value(text: str) -> float | None:
    """Return a number, a bit mask, or Yes or No as 1 or 0; None for "[N/A]" and the like."""
    try:
        return float(int(text, 16)) if text.startswith("0x") else _WORDS.get(text) or float(text)
    except ValueError:
        return _WORDS.get(text)
