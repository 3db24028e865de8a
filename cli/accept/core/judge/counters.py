"""Which counters say that something is bad, and how much of it a healthy machine may count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Rates that are no fault; the parameters of the health check are such limits."""

    #: CRC errors of one NVLink.
    nvlink_crc_per_second: float
    #: Replays of the PCIe link of one GPU.
    pcie_replays_per_minute: float
    #: Errors per bit that a port carries.
    bit_error_ratio: float
    #: Number of errors of a port below which there is no rate.
    few: int
    #: Share of the time of a step, 0 to 1.
    limited_share: float


class Rule(NamedTuple):
    """The cause that a counter's growth means, and what it may grow by meanwhile."""

    cause: str
    #: "none", or the limit it is held against.
    allows: str = "none"


#: By name. All other counters are told after the run and judged by nobody: errors that were
#: corrected, packets dropped or sent again for want of room, a GPU held to its power limit.
RULES = {
    "ecc-uncorrected": Rule("gpu-ecc"),
    "ecc-uncorrected-aggregate": Rule("gpu-ecc"),
    "rows-remapped-uncorrected": Rule("gpu-row-remap"),
    "pages-retired-double": Rule("gpu-row-remap"),
    "limited-thermal": Rule("gpu-throttled", "time"),
    "limited-board": Rule("gpu-throttled", "time"),
    "limited-reliability": Rule("gpu-throttled", "time"),
    "nvlink-replay": Rule("nvlink-errors"),
    "nvlink-recovery": Rule("nvlink-errors"),
    "nvlink-recovery-failed": Rule("nvlink-errors"),
    "nvlink-crc-flit": Rule("nvlink-errors", "crc"),
    "nvlink-crc-data": Rule("nvlink-errors", "crc"),
    "pcie-replay": Rule("pcie-errors", "replays"),
    "link_downed": Rule("link-down"),
    "carrier_down_count": Rule("link-down"),
    "link_error_recovery": Rule("nic-errors"),
    "local_link_integrity_errors": Rule("nic-errors"),
    "excessive_buffer_overrun_errors": Rule("nic-errors"),
    "port_rcv_errors": Rule("nic-errors", "bits"),
    "symbol_error": Rule("nic-errors", "bits"),
    "rx_icrc_encapsulated": Rule("nic-errors", "bits"),
    "rx_errors": Rule("nic-errors", "bits"),
    "tx_errors": Rule("nic-errors", "bits"),
    "rx_crc_errors": Rule("nic-errors", "bits"),
    "ue_count": Rule("host-errors"),
}
WATCHED = frozenset(RULES)
#: Levels of which a loss says that something is bad.
LEVELS = {
    "active": "link-down",
    "rate": "link-down",
    "pcie-width": "pcie-degraded",
    "pcie-speed": "pcie-degraded",
    "pcie-generation": "pcie-degraded",
    "nvlinks": "nvlink-errors",
    "remap-pending": "gpu-row-remap",
    "remap-failure": "gpu-row-remap",
    "reasons": "gpu-throttled",
}
#: Xids that programs bring about, with the GPU still healthy: the list of NVIDIA's device plugin
#: for Kubernetes (NVIDIA/k8s-device-plugin, "Application errors: the GPU should still be healthy").
#: A step that is killed leaves 45.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


def allowed(rule: Rule, limits: Limits, *, seconds: float, gbps: float | None) -> float:
    """What a counter may grow by in `seconds` on a link of `gbps`; infinite: nobody can say."""
    if rule.allows == "crc":
        return limits.nvlink_crc_per_second * seconds
    if rule.allows == "replays":
        # A minute's worth in a shorter step too: they come in bursts.
        return limits.pcie_replays_per_minute * max(1.0, seconds / 60)
    if rule.allows == "bits":
        if not gbps:
            return math.inf
        return max(limits.few, limits.bit_error_ratio * gbps * 1e9 * seconds)
    return limits.limited_share * seconds * 1e9 if rule.allows == "time" else 0.0
