"""Read the GPU counters of NVIDIA's driver by NVML (pynvml), or by nvidia-smi, which has fewer.

Devices are as in `health_host`; `pci` is the address and `name` the index. Each NVML function
reports by itself if a GPU does not support it. Sources: NVML API Reference Guide
(https://docs.nvidia.com/deploy/nvml-api/), `nvidia-smi --help-query-gpu`. Untried on hardware.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

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
_FIELDS = {
    "nvlink-recovery-failed": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    "nvlink-recovered": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
    "nvlink-receive-errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "nvlink-symbol-errors": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
}
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
}
#: The name of the throttle reasons in drivers before 535, in NVML and in nvidia-smi; a newer pynvml
#: has the new name with those drivers, too.
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
_OLD_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
_OLD_COLUMNS = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
_WORDS = {"Yes": 1.0, "No": 0.0}


def gpus(root: Path) -> tuple[list[Device], list[Gap]]:
    """Return the driver's GPUs, and what could not be read; no GPUs without a driver."""
    if not any((root / sign).exists() for sign in ("proc/driver/nvidia", "dev/nvidiactl")):
        return [], []
    try:
        import pynvml as nvml
    except ImportError:
        return _by_smi("no pynvml")
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return _by_smi(f"NVML: {error}")
    lost: dict[str, set[str]] = {}
    unsupported: dict[str, set[str]] = {}
    devices = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            devices.append(_gpu(nvml, index, handle, unsupported))
        except nvml.NVMLError as error:
            # A lost GPU keeps its index, and NVML reports the error.
            lost.setdefault(str(error), set()).add(f"GPU {index}")
    unread = [
        gap(f"{', '.join(sorted(names))} ({why})", unread_devices)
        for names_by_error, unread_devices in ((lost, "gpus"), (unsupported, "none"))
        for why, names in sorted(names_by_error.items())
    ]
    return devices, unread


def _gpu(nvml: Any, index: int, handle: Any, unsupported: dict[str, set[str]]) -> Device:
    """Return the counters of a GPU; add those it lacks to `unsupported`, by error message."""

    def query(name: str, function: str, *arguments: Any, older: str = "") -> Any:
        """Return the result of an NVML function, or None if the GPU does not support it."""
        try:
            return getattr(nvml, function)(handle, *arguments)
        except (nvml.NVMLError, AttributeError) as error:
            if older:
                return query(name, older, *arguments)
            unsupported.setdefault(str(error)[:80], set()).add(name)
            return None

    # Without an address the GPU cannot be identified, so this error is not caught here.
    pci = nvml.nvmlDeviceGetPciInfo(handle).busId
    rows = query("row remaps", "nvmlDeviceGetRemappedRows") or (None,) * 4
    links, active = _links(nvml, handle)
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
        spent = query(name, "nvmlDeviceGetViolationStatus", getattr(nvml, policy))
        counters[name] = None if spent is None else spent.violationTime
    used = query("utilization", "nvmlDeviceGetUtilizationRates")
    power = query("power", "nvmlDeviceGetPowerUsage")
    levels = {
        "temperature": query("temperature", "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "power": None if power is None else power / 1000,
        "sm-clock": query("clocks", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "memory-clock": query("clocks", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "utilization": None if used is None else used.gpu,
        "reasons": query("clock reasons", _REASONS, older=_OLD_REASONS),
        "pcie-generation": query("PCIe link", "nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie-generation-max": query("PCIe link", "nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie-width": query("PCIe link", "nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie-width-max": query("PCIe link", "nvmlDeviceGetMaxPcieLinkWidth"),
        "remap-pending": rows[2],
        "remap-failure": rows[3],
        "nvlinks": active,
    }
    return {
        "kind": "gpu",
        "name": str(index),
        "pci": pci_name(pci.decode() if isinstance(pci, bytes) else pci),
        "counters": counters,
        "levels": known(levels),
    }


def _links(nvml: Any, handle: Any) -> tuple[dict[str, int], int | None]:
    """Return error counters as "NAME.LINK", and the number of active links; None without NVLink."""
    counters: dict[str, int] = {}
    active, links = [], 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError:
            break
        links += 1
        if not state:
            continue
        active.append(link)
        for name, constant in _LINKS.items():
            try:
                value = nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, getattr(nvml, constant))
            except nvml.NVMLError:
                continue
            counters[f"{name}.{link}"] = int(value)
    fields = {name: getattr(nvml, constant, None) for name, constant in _FIELDS.items()}
    queries = [(name, field, link) for name, field in fields.items() if field for link in active]
    try:
        pairs = [(field, link) for _, field, link in queries]
        values = nvml.nvmlDeviceGetFieldValues(handle, pairs) if pairs else ()
    except nvml.NVMLError:
        values = ()
    for (name, _, link), value in zip(queries, values, strict=False):
        if value.nvmlReturn == 0 and value.valueType < len(_MEMBERS):
            counters[f"{name}.{link}"] = int(getattr(value.value, _MEMBERS[value.valueType]))
    return counters, len(active) if links else None


def _by_smi(why: str) -> tuple[list[Device], list[Gap]]:
    """Return the same from nvidia-smi, which lacks NVLink, replays and time spent limited."""
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
    return found, [gap(f"NVLink, PCIe replays, time spent limited ({why})")]


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
