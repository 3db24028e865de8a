"""Sample a GPU while it works: clock, power, temperature, throttle reasons, and PCIe link."""

from __future__ import annotations

import threading
from typing import Any

import nvml
import rank_io

#: Seconds between two samples; long enough not to affect the measurement.
EVERY = 0.25
#: Reasons for a lower clock, by the bit in nvmlDeviceGetCurrentClocksEventReasons:
#: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
REASONS = {
    0x02: "application-clocks",
    0x04: "power-cap",
    0x08: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "thermal-software",
    0x40: "thermal-hardware",
    0x80: "power-brake",
}


#: The function for these reasons, and its name in drivers before 535.
_REASONS_NAMES = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
#: Values of a PCIe link, with the NVML function that reads each.
LINK = {
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "width-max": "nvmlDeviceGetMaxPcieLinkWidth",
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "generation-max": "nvmlDeviceGetMaxPcieLinkGeneration",
}


class Sampler:
    """Sample the GPU with a UUID in a thread, while the context is entered; "": there is no GPU.

    `summary` has the minimum, median and maximum of each value, the GPU's highest clock, and for
    each throttle reason the share of the samples that showed it. If sampling failed, `unread` has
    the reason.
    """

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.seen: dict[str, list[float]] = {"MHz": [], "W": [], "C": []}
        #: Highest clock of the GPU in MHz.
        self.most: int | None = None
        #: Number of samples of the reasons, and of those that showed each reason.
        self.looks = 0
        self.held: dict[str, int] = {}
        self.unread = "" if uuid else "no GPU"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        if not self.unread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def summary(self) -> dict[str, Any]:
        """Return the summary of the samples, as the value of a fact."""
        result: dict[str, Any] = {
            unit: [min(values), rank_io.median(values), max(values)]
            for unit, values in self.seen.items()
            if values
        }
        if self.most is not None:
            result["MHz-max"] = self.most
        if self.looks:
            result["looks"] = self.looks
            result["held"] = {name: round(n / self.looks, 3) for name, n in self.held.items()}
        return result | ({"unread": self.unread} if self.unread else {})

    def _watch(self) -> None:
        try:
            bindings, handle = _open(self.uuid)
            while not self._over.wait(EVERY):
                self._look(bindings, handle)
        except Exception as error:
            self.unread = rank_io.one_line(error)

    def _look(self, bindings: Any, handle: Any) -> None:
        """Take one sample of each value; one that cannot be read costs no other."""
        if self.most is None:
            self.most = self._ask(
                bindings, handle, "nvmlDeviceGetMaxClockInfo", bindings.NVML_CLOCK_SM
            )
        clock = self._ask(bindings, handle, "nvmlDeviceGetClockInfo", bindings.NVML_CLOCK_SM)
        power = self._ask(bindings, handle, "nvmlDeviceGetPowerUsage")
        celsius = self._ask(
            bindings, handle, "nvmlDeviceGetTemperature", bindings.NVML_TEMPERATURE_GPU
        )
        watts = None if power is None else round(power / 1000, 1)
        for unit, value in (("MHz", clock), ("W", watts), ("C", celsius)):
            if value is not None:
                self.seen[unit].append(value)
        mask = self._ask(bindings, handle, *_REASONS_NAMES)
        if mask is not None:
            self.looks += 1
            for bit, name in REASONS.items():
                self.held[name] = self.held.get(name, 0) + bool(mask & bit)

    def _ask(self, bindings: Any, handle: Any, function: str, *others: Any) -> Any:
        """Return the result of an NVML function, or None; `others`: arguments, or older names."""
        older = [name for name in others if isinstance(name, str)]
        try:
            return getattr(bindings, function)(handle, *(o for o in others if o not in older))
        except Exception as error:
            if older:
                return self._ask(bindings, handle, *older)
            self.unread = rank_io.one_line(error)
            return None


class Link:
    """Sample a GPU's PCIe link while it carries data.

    An idle link shows little: its width and generation "may be reduced when the GPU is not in use"
    (`nvidia-smi --help-query-gpu`, pcie.link.width.current). `seen` has the maximum of each value,
    or the reason for a failure as `unread`.
    """

    def __init__(self, uuid: str) -> None:
        self.seen: dict[str, Any] = {}
        try:
            self._bindings, self._handle = _open(uuid)
        except Exception as error:
            self.seen["unread"] = rank_io.one_line(error)

    def address(self) -> str:
        """Return the GPU's place on the PCI bus, or "" if it cannot be read."""
        try:
            place = self._bindings.nvmlDeviceGetPciInfo(self._handle).busId
        except Exception:
            return ""
        return place.decode() if isinstance(place, bytes) else str(place)

    def look(self) -> None:
        """Take one sample."""
        if "unread" in self.seen:
            return
        try:
            for name, function in LINK.items():
                now = int(getattr(self._bindings, function)(self._handle))
                self.seen[name] = max(now, self.seen.get(name, 0))
        except Exception as error:
            self.seen = {"unread": rank_io.one_line(error)}


def _open(uuid: str) -> tuple[Any, Any]:
    """Return NVML and its handle of a GPU; not by number, because torch's and NVML's may differ."""
    bindings = nvml.load()
    bindings.nvmlInit()
    return bindings, bindings.nvmlDeviceGetHandleByUUID(uuid.encode())
