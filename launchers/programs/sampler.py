"""What a GPU says of itself while it works: clock, power, heat, what holds it back, its link."""

from __future__ import annotations

import os
import threading
from typing import Any

import rank_io

#: Seconds between two looks: coarse, so that looking costs nothing that is measured.
EVERY = 0.25
#: Why a GPU runs below its highest clock, by the bit of nvmlDeviceGetCurrentClocksEventReasons:
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


#: What is read of a PCIe link, by the function of NVML.
LINK = {
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "width-max": "nvmlDeviceGetMaxPcieLinkWidth",
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "generation-max": "nvmlDeviceGetMaxPcieLinkGeneration",
}


class Sampler:
    """Looks at one GPU from a thread of its own, for as long as it is entered.

    `summary` is what it saw: smallest, median and largest value of each, and the share of the looks
    at which each reason held the clock back; or `unread`, why nothing could be seen.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.seen: dict[str, list[float]] = {"MHz": [], "W": [], "C": []}
        self.held: dict[str, int] = {}
        self.unread = "" if device.startswith("cuda") else "no GPU"
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
        """What was seen, as a fact's value."""
        found: dict[str, Any] = {
            unit: [min(values), rank_io.median(values), max(values)]
            for unit, values in self.seen.items()
            if values
        }
        looks = len(self.seen["C"])
        if looks:
            found["looks"] = looks
            found["held"] = {name: round(n / looks, 3) for name, n in self.held.items()}
        return found | ({"unread": self.unread} if self.unread else {})

    def _watch(self) -> None:
        try:
            nvml, handle = _open(self.device)
            while not self._over.wait(EVERY):
                self._look(nvml, handle)
        except Exception as error:
            self.unread = rank_io.one_line(error)

    def _look(self, nvml: Any, handle: Any) -> None:
        clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        self.seen["MHz"].append(clock)
        self.seen["W"].append(round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1))
        # The name that every release has; newer ones call it EventReasons as well.
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        for bit, name in REASONS.items():
            self.held[name] = self.held.get(name, 0) + bool(mask & bit)
        celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        self.seen["C"].append(celsius)


class Link:
    """A GPU's PCIe link, for looks while it carries data.

    At rest it tells nothing: its width and generation "may be reduced when the GPU is not in use"
    (`nvidia-smi --help-query-gpu`, pcie.link.width.current). `seen`: the most of each look, or
    `unread`, why nothing could be seen.
    """

    def __init__(self, device: str) -> None:
        self.seen: dict[str, Any] = {}
        try:
            self._nvml, self._handle = _open(device)
        except Exception as error:
            self.seen["unread"] = rank_io.one_line(error)

    def look(self) -> None:
        """Look once."""
        if "unread" in self.seen:
            return
        try:
            for name, function in LINK.items():
                now = int(getattr(self._nvml, function)(self._handle))
                self.seen[name] = max(now, self.seen.get(name, 0))
        except Exception as error:
            self.seen = {"unread": rank_io.one_line(error)}


def _open(device: str) -> tuple[Any, Any]:
    """NVML, and its handle of torch's device: by UUID, as their numbers may differ."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise LookupError(f"torch {torch.__version__} tells no UUID of its GPUs")
    # Both count the GPUs in the order of the bus then: see torch_io.pick_device.
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2]))
