"""Read GPU counters of NVIDIA's driver from NVML (pynvml), or from nvidia-smi, which has fewer.

Devices are as in `health_host`; `pci` is the address and `name` the index. Each NVML function
reports by itself if a GPU does not support it. Sources: NVML API Reference Guide
(https://docs.nvidia.com/deploy/nvml-api/), `nvidia-smi --help-query-gpu`. Of GPUs, only an H100
without NVLink was read (tests/data/gpu).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import amd_gpus
import gpu_inventory
import nvml
import pci
from health_host import Device, Gap, gap, known

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
    "nvlink-ecc": "NVML_NVLINK_ERROR_DL_ECC_DATA",
}
#: Counter -> field of nvmlDeviceGetFieldValues, on each link: those of NVLink 5.
_LINK_FIELDS = {
    "nvlink-recovery-failed": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    "nvlink-recovery-events": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    "nvlink-receive-errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "nvlink-remote-errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS",
    "nvlink-general-errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS",
    "nvlink-symbol-errors": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
    "nvlink-effective-errors": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
    "nvlink-integrity-errors": "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "nvlink-malformed": "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "nvlink-overruns": "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
}
#: Level -> field on each link: the highest error ratio of NVLink 5.
#: Bits 8 to 11 are the mantissa and bits 0 to 7 the negative exponent; 15e-255 stands for 0
#: (NVIDIA/DCGM, modules/health/tests, MonitorNVLink5Fields).
_LINK_RATIOS = {
    "nvlink-effective-ber": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER",
    "nvlink-symbol-ber": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER",
}
_NO_ERRORS = 0xFFF
#: Level -> field of the whole GPU. The times for each clock event reason are not among them: their
#: numbers have another meaning in other drivers (269 to 271 in bindings 13.615, else 251 to 253).
_LEVEL_FIELDS = {
    "memory-temperature": "NVML_FI_DEV_MEMORY_TEMP",
    "recovery-action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
}
#: Level -> NVML function, with its arguments.
_LEVELS = {
    "pcie-generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie-generation-max": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie-width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie-width-max": ("nvmlDeviceGetMaxPcieLinkWidth",),
    "pages-pending": ("nvmlDeviceGetRetiredPagesPendingStatus",),
    "compute-mode": ("nvmlDeviceGetComputeMode",),
    "persistence": ("nvmlDeviceGetPersistenceMode",),
}
#: Level in MHz of the SM clock -> NVML function.
_CLOCKS = {
    "sm-clock": "nvmlDeviceGetClockInfo",
    "sm-clock-max": "nvmlDeviceGetMaxClockInfo",
    "sm-clock-application": "nvmlDeviceGetApplicationsClock",
    "sm-clock-default": "nvmlDeviceGetDefaultApplicationsClock",
}
#: Level in watts -> NVML function, which returns milliwatts.
_POWERS = {
    "power": "nvmlDeviceGetPowerUsage",
    "power-limit": "nvmlDeviceGetEnforcedPowerLimit",
    "power-limit-default": "nvmlDeviceGetPowerManagementDefaultLimit",
}
#: A GPU without any reading.
_NOTHING: Device = {"kind": "gpu", "pci": "", "counters": {}, "levels": {}}
#: Name of a reading, then the function, its structure, and level -> member; then those of drivers
#: before 545, if they had one.
_FABRIC = {"fabric-state": "state", "fabric-status": "status"}
_STRUCTURES = (
    (
        "fabric",
        (
            "nvmlDeviceGetGpuFabricInfoV",
            "c_nvmlGpuFabricInfoV_t",
            {**_FABRIC, "fabric-health": "healthMask"},
        ),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t", _FABRIC),
    ),
    (
        "SRAM threshold",
        (
            "nvmlDeviceGetSramEccErrorStatus",
            "c_nvmlEccSramErrorStatus_v1_t",
            {"sram-threshold": "bThresholdExceeded"},
        ),
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


def gpus(root: Path, show: Callable[[Device], None]) -> tuple[list[Device], list[Gap], list[str]]:
    """Return the driver's GPUs, what could not be read, and the addresses of other jobs' GPUs.

    A GPU whose values are complete is shown at once instead, because the next one may hang.
    There are no GPUs without a driver. A GPU that the driver has lost, or the first one that hangs
    while others answer, is one of them, with `errors` instead of values.
    """
    # Some containers hide the driver's files, but not its library.
    driver = has_driver(root)
    if not driver and root != Path("/"):
        return [], [], []
    if not driver and amd_gpus.is_installed():
        return (*amd_gpus.health(), [])
    try:
        bindings = nvml.load()
    except ImportError:
        return _by_smi("no pynvml") if driver else ([], [], [])
    try:
        bindings.nvmlInit()
        listed, _, patience = nvml.gpus(bindings)
    except bindings.NVMLError as error:
        return _by_smi(f"NVML: {error}") if driver else ([], [], [])
    unopened: dict[str, set[str]] = {}
    unsupported: dict[str, set[str]] = {}
    devices, shown, others = [], [], []
    hung: dict[int, tuple[_Gpu, nvml.Hang]] = {}
    for index, handle, failure, _, given in listed:
        gpu = _Gpu(bindings, unsupported if given else {})
        gpu.handle = handle
        try:
            if failure is not None:
                raise failure
            patience.call(index, partial(_address, gpu))
            if given:
                device = patience.call(index, partial(_device, gpu, index))
                devices.append(device)
                if device["pci"]:
                    show(device)
                    shown.append(device)
            elif given is not None and gpu.address:
                others.append(gpu.address)
        except nvml.Hang as hang:
            hung |= {index: (gpu, hang)} if given else {}
        except bindings.NVMLError as error:
            if given and nvml.fault(error) is None:
                unopened.setdefault(str(error), set()).add(f"GPU {index}")
            elif given:
                # A lost GPU keeps its index, and NVML reports the error.
                gpu.failed("its handle", error)
                devices.append({**_NOTHING, "name": str(index), "errors": gpu.listed_errors()})
    others_answer = any(device["levels"] for device in devices)
    for index, (gpu, reason) in hung.items():
        if others_answer and index == patience.hung[0]:
            gpu.failed(gpu.doing, reason)
            more = {"pci": gpu.address, "errors": gpu.listed_errors()}
            devices.append({**_NOTHING, "name": str(index), **more})
        else:
            # The driver hangs, perhaps because of another GPU.
            unopened.setdefault(str(reason), set()).add(f"GPU {index}")
    devices.sort(key=lambda device: int(device["name"]))
    _complete_addresses(root, devices, len(listed))
    unread = [
        gap(f"{', '.join(sorted(names))} ({why})", unread_devices)
        for names_by_error, unread_devices in ((unopened, "gpus"), (unsupported, "none"))
        for why, names in sorted(names_by_error.items())
    ]
    return [device for device in devices if device not in shown], unread, others


class _Gpu:
    """Query one GPU. Each failed query is an error of the GPU, or adds to `unsupported`."""

    def __init__(self, bindings: Any, unsupported: dict[str, set[str]]) -> None:
        self.bindings = bindings
        self.handle: Any = None
        self.unsupported = unsupported
        #: Its address on the PCI bus; empty if it is unknown.
        self.address = ""
        #: The reading that was requested last.
        self.doing = "its handle"
        #: NVML's code and text -> the names of the readings that failed with it.
        self.errors: dict[tuple[int, str], list[str]] = {}
        self._results: dict[tuple[Any, ...], Any] = {}

    def failed(self, name: str, error: Exception, *, optional: bool = False) -> None:
        """Record why a reading failed; of an `optional` one, only faults."""
        code, words = nvml.fault(error), str(error)[:80]
        if code is None:
            if not optional:
                self.unsupported.setdefault(words, set()).add(name)
        elif name not in (names := self.errors.setdefault((code, words), [])):
            names.append(name)

    def listed_errors(self) -> list[dict[str, Any]]:
        """Return the errors as the key `errors` of a device."""
        return [
            {"code": code, "words": words, "readings": names}
            for (code, words), names in self.errors.items()
        ]

    def call(
        self, name: str, function: str, *arguments: Any, older: str = "", optional: bool = False
    ) -> Any:
        """Return the result of an NVML function, or None if it fails; `older` is its old name."""
        key = (function, *arguments)
        if key not in self._results:
            self.doing = name
            try:
                self._results[key] = getattr(self.bindings, function)(self.handle, *arguments)
            # Also errors of the bindings, which cost one reading and not all of them.
            except Exception as error:
                if older and nvml.fault(error) is None:
                    return self.call(name, older, *arguments)
                self._results[key] = None
                self.failed(name, error, optional=optional)
        return self._results[key]

    def fill(self, name: str, function: str, structure: str, *, optional: bool = False) -> Any:
        """Return a structure that an NVML function fills, or None if it fails."""
        self.doing = name
        try:
            filled = getattr(self.bindings, structure)()
            getattr(self.bindings, function)(self.handle, ctypes.byref(filled))
        except Exception as error:
            self.failed(name, error, optional=optional)
            return None
        return filled

    def number(
        self,
        name: str,
        function: str,
        *arguments: Any,
        part: int | str = "",
        older: str = "",
        optional: bool = False,
    ) -> Any:
        """Return a number: the result of an NVML function, or a `part` of it, or its length.

        Return None if it fails or has another type.
        """
        result = self.call(name, function, *arguments, older=older, optional=optional)
        return None if result is None else self.checked(name, _part(result, part))

    def checked(self, name: str, value: Any) -> Any:
        """Return a number of at most 63 bits; None for anything else, which is unsupported."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and abs(value) < 1 << 63:
            return value
        self.unsupported.setdefault("unexpected value", set()).add(name)
        return None


def _part(result: Any, part: int | str) -> Any:
    """Return an element, a member or ("len") the length of a result; None if it has none.

    Some functions of the bindings return a list in one version and a number in another.
    """
    if part == "" or isinstance(result, int | float):
        return result
    try:
        if part == "len":
            return len(result)
        return result[part] if isinstance(part, int) else getattr(result, part)
    except (TypeError, LookupError, AttributeError):
        return None


def _device(gpu: _Gpu, index: int) -> Device:
    """Return the counters and levels of a GPU."""
    bindings, number = gpu.bindings, gpu.number
    rows = [number("row remaps", "nvmlDeviceGetRemappedRows", part=part) for part in range(4)]
    links, link_levels = _links(gpu)
    counters = {
        **{name: number(name, "nvmlDeviceGetTotalEccErrors", *kind) for name, kind in _ECC.items()},
        "rows-remapped-corrected": rows[0],
        "rows-remapped-uncorrected": rows[1],
        "pcie-replay": number("pcie-replay", "nvmlDeviceGetPcieReplayCounter"),
        **links,
    }
    for cause, name in enumerate(("pages-retired-single", "pages-retired-double")):
        counters[name] = number("retired pages", "nvmlDeviceGetRetiredPages", cause, part="len")
    for name, policy in _VIOLATIONS.items():
        function = "nvmlDeviceGetViolationStatus"
        counters[name] = number(name, function, getattr(bindings, policy), part="violationTime")
    fields = _field_values(gpu, [(name, f, 0) for name, f in _LEVEL_FIELDS.items()])
    values = {name: value for (name, _), value in fields.items()}
    if not gpu.errors:
        for name in sorted(_LEVEL_FIELDS.keys() - values.keys()):
            gpu.unsupported.setdefault("Not Supported", set()).add(name)
    levels = {name: number(name, *query) for name, query in _LEVELS.items()}
    levels |= {
        name: None if (milliwatts := number(name, function)) is None else milliwatts / 1000
        for name, function in _POWERS.items()
    }
    levels |= {
        "temperature": number(
            "temperature", "nvmlDeviceGetTemperature", bindings.NVML_TEMPERATURE_GPU
        ),
        **{name: number(name, f, bindings.NVML_CLOCK_SM) for name, f in _CLOCKS.items()},
        "memory-clock": number("memory-clock", "nvmlDeviceGetClockInfo", bindings.NVML_CLOCK_MEM),
        "utilization": number("utilization", "nvmlDeviceGetUtilizationRates", part="gpu"),
        "reasons": number("clock reasons", _REASONS, older=_OLD_REASONS),
        "remap-pending": rows[2],
        "remap-failure": rows[3],
        "banks-without-spares": number(
            "row remaps", "nvmlDeviceGetRowRemapperHistogram", part="none", optional=True
        ),
        **link_levels,
        "ecc": number("ECC mode", "nvmlDeviceGetEccMode", part=0),
        "ecc-default": number("default ECC mode", "nvmlDeviceGetDefaultEccMode", part=0),
        "mig": number("MIG mode", "nvmlDeviceGetMigMode", part=0),
        **{name: values.get(name) for name in _LEVEL_FIELDS},
        **_structures(gpu),
    }
    device: Device = {
        **_NOTHING,
        "name": str(index),
        "pci": gpu.address,
        "counters": counters,
        "levels": known(levels),
    }
    return {**device, "errors": gpu.listed_errors()} if gpu.errors else device


def _address(gpu: _Gpu) -> None:
    """Read the address of a GPU on the PCI bus."""
    place = gpu.call("PCI address", "nvmlDeviceGetPciInfo")
    if place is not None:
        gpu.address = pci.short_name(nvml.text(place.busId))


def _links(gpu: _Gpu) -> tuple[dict[str, int], dict[str, float | None]]:
    """Return error counters as "NAME.LINK", and the levels of all links together."""
    counters: dict[str, int] = {}
    active, links = [], 0
    for link in range(gpu.bindings.NVML_NVLINK_MAX_LINKS):
        # Of links that a GPU does not have, the state is not supported.
        state = gpu.number("NVLink", "nvmlDeviceGetNvLinkState", link, optional=True)
        links += state is not None
        if not state:
            continue
        active.append(link)
        for name, constant in _LINKS.items():
            error = getattr(gpu.bindings, constant)
            value = gpu.number(name, "nvmlDeviceGetNvLinkErrorCounter", link, error, optional=True)
            if value is not None:
                counters[f"{name}.{link}"] = value
    both = {**_LINK_FIELDS, **_LINK_RATIOS}
    fields = [(name, field, link) for name, field in both.items() for link in active]
    levels: dict[str, float | None] = {"nvlinks": len(active) if links else None}
    for (name, link), value in _field_values(gpu, fields).items():
        if name in _LINK_FIELDS:
            counters[f"{name}.{link}"] = value
        else:
            ratio = 0.0 if value >= _NO_ERRORS else (value >> 8) * 10.0 ** -(value & 0xFF)
            levels[name] = max(ratio, levels.get(name) or 0.0)
    if not links and not gpu.errors:
        gpu.unsupported.setdefault("Not Supported", set()).add("NVLink")
    return counters, levels


def _field_values(gpu: _Gpu, fields: Sequence[tuple[str, str, int]]) -> dict[tuple[str, int], int]:
    """Return the values of fields that the GPU supports, from (name, NVML's name, link)."""
    numbers = [(name, getattr(gpu.bindings, field, None), link) for name, field, link in fields]
    queries = [(name, number, link) for name, number, link in numbers if number is not None]
    pairs = tuple((number, link) for _, number, link in queries)
    function = "nvmlDeviceGetFieldValues"
    values = gpu.call("fields", function, pairs, optional=True) if pairs else ()
    found = {}
    for (name, _, link), value in zip(queries, values or (), strict=False):
        if value.nvmlReturn != 0:
            gpu.failed(name, gpu.bindings.NVMLError(value.nvmlReturn), optional=True)
        elif value.valueType < len(_MEMBERS):
            number = gpu.checked(name, getattr(value.value, _MEMBERS[value.valueType]))
            if number is not None:
                found[name, link] = int(number)
    return found


def _structures(gpu: _Gpu) -> dict[str, float | None]:
    """Return the levels that NVML writes into a structure.

    The fabric is that of NVLink with NVSwitches. A GPU without one has the state 0.
    """
    levels: dict[str, float | None] = {}
    for name, *ways in _STRUCTURES:
        for function, structure, members in ways:
            last = function == ways[-1][0]
            if (filled := gpu.fill(name, function, structure, optional=not last)) is not None:
                levels |= {
                    level: gpu.checked(name, getattr(filled, member))
                    for level, member in members.items()
                }
                break
    return levels


def _complete_addresses(root: Path, devices: Sequence[Device], count: int) -> None:
    """Add the addresses of GPUs that the driver has lost, if they are certain.

    NVML orders GPUs by address, as the kernel's list of the driver's GPUs is ordered here.
    """
    folders = (root / "proc/driver/nvidia/gpus").glob("*:*")
    listed = sorted(pci.short_name(folder.name) for folder in folders)
    by_index = {str(index): address for index, address in enumerate(listed)}
    if len(listed) == count and all(d["pci"] in ("", by_index[d["name"]]) for d in devices):
        for device in devices:
            device["pci"] = by_index[device["name"]]


def _by_smi(why: str) -> tuple[list[Device], list[Gap], list[str]]:
    """Return the same from nvidia-smi, which lacks NVLink, replays and the time spent throttled."""
    columns = ["index", "uuid", "pci.bus_id", *_SMI_COUNTERS, *_SMI_LEVELS]
    try:
        # With one unknown column nvidia-smi prints no row.
        rows, words = gpu_inventory.smi("gpu", columns)
        if not rows:
            older = [_OLD_COLUMNS.get(column, column) for column in columns]
            rows, words = gpu_inventory.smi("gpu", older)
    except gpu_inventory.Silent as error:
        return [], [gap(f"GPUs ({why}; {error})", "gpus")], []
    listed: list[dict[str, Any]] = []
    for row in (dict(zip(columns, values, strict=True)) for values in rows):
        uuid = None if row["uuid"].startswith("[") else row["uuid"]
        gpu = {"index": int(row["index"]), "uuid": uuid, "pci": row["pci.bus_id"]}
        listed.append(gpu | {"device": _row(row)})
    unopened = gpu_inventory.unopened(words, listed)
    listed += [gpu | {"device": _unopened(gpu)} for gpu in unopened]
    shares = gpu_inventory.given(listed).gpus
    found = [(gpu["device"], own) for gpu, own in shares if not gpu_inventory.is_forbidden(gpu)]
    devices = [device for device, own in found if own]
    if not devices:
        return [], [gap(f"GPUs ({why}; nvidia-smi: {words or 'no GPU'})", "gpus")], []
    others = [device["pci"] for device, own in found if own is False and device["pci"]]
    unread = [gap(f"NVLink, fabric, PCIe replays, time spent limited ({why})")]
    for gpu in (gpu for gpu, own in shares if own and gpu_inventory.is_forbidden(gpu)):
        unread.append(gap(f"GPU {gpu_inventory.label(gpu)} ({gpu['error']})", "gpus"))
    return devices, unread, others


def _unopened(gpu: dict[str, Any]) -> Device:
    """Return a GPU that nvidia-smi could not open."""
    error = {"code": gpu["errorCode"], "words": gpu["error"][:80], "readings": ["its handle"]}
    return {
        **_NOTHING,
        "name": gpu_inventory.label(gpu),
        "pci": gpu["pci"] or "",
        "errors": [error],
    }


def _row(row: dict[str, str]) -> Device:
    counters = {name: _value(row[column]) for column, name in _SMI_COUNTERS.items()}
    levels = {name: _value(row[column]) for column, name in _SMI_LEVELS.items()}
    device: Device = {
        **_NOTHING,
        "name": row["index"],
        "pci": pci.short_name(row["pci.bus_id"]),
        "counters": {k: None if v is None else int(v) for k, v in counters.items()},
        "levels": known(levels),
    }
    readings: dict[str, list[str]] = {}
    for column, text in row.items():
        if gpu_inventory.fault(text) is not None:
            readings.setdefault(text, []).append(column)
    errors = [
        {"code": gpu_inventory.fault(text), "words": text.strip("[]"), "readings": columns}
        for text, columns in readings.items()
    ]
    return {**device, "errors": errors} if errors else device


def _value(text: str) -> float | None:
    """Return a number, a bit mask, or Yes or No as 1 or 0; None for "[N/A]" and the like."""
    try:
        return float(int(text, 16)) if text.startswith("0x") else _WORDS.get(text) or float(text)
    except ValueError:
        return _WORDS.get(text)
