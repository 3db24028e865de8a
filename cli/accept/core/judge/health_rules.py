"""Declare which reading of a device indicates which fault, and from which value on: data only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.health_readings import FABRIC_JOINED, fabric_faults
from accept.core.serde import param


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Highest values that are not a fault; the parameters of the health check are these limits.

    Sources of the defaults, from NVIDIA/DCGM: 100 CRC errors per second of an NVLink
    (DCGM_LIMIT_MAX_NVLINK_CRC_ERROR), no NVLink replay or recovery (DCGM_LIMIT_MAX_NVLINK_ERROR; so
    does facebookresearch/gcm, check-dcgmi nvlink), 8 PCIe replays per minute
    (DCGM_LIMIT_MAX_PCIREPLAY_RATE). The bit error ratio of ports, 1e-12, is the threshold of
    ibdiagnet (user manual, --ber_thresh). 511 remapped rows and 62 retired pages: DCGM fails at 512
    (DCGM_LIMIT_MAX_ROW_REMAP_UNCORRECTABLE) and 63 (DCGM_LIMIT_MAX_RETIRED_PAGES). A reset repairs
    each of them, so fewer are in the specification. 10,000 corrected errors, since the driver
    started or in a step, and 10,000 uncorrected in a lifetime: Azure's node health check
    (azure_gpu_ecc, of SRAM).
    """

    nvlink_crc_per_second: float = param(
        100.0, "tolerated CRC errors of an NVLink, per second", least=0
    )
    pcie_replays_per_minute: float = param(
        8.0, "tolerated replays of a PCIe link, per minute", least=0
    )
    bit_error_ratio: float = param(1e-12, "tolerated errors of a port, per bit", least=0)
    # The standard deviation of a count of 10 is about 3, so smaller counts give no usable rate.
    few: int = param(10, "errors of a port in one step that are too few for a rate", least=0)
    # A tenth of the loss at which RoCE nearly stops: its relative throughput drops to nearly zero
    # above 1 % with go-back-N (Wang et al., ICCCN 2019, doi 10.1109/ICCCN.2019.8846946).
    packet_loss: float = param(
        0.001,
        "lost packets of an RDMA port, as a share of its packets in a step, tolerated",
        least=0,
    )
    # Shorter slowdowns are below the noise of a measurement. DCGM failed GPUs for 0.0 s
    # (NVIDIA/DCGM issue 242).
    limited_share: float = param(
        0.01,
        "tolerated share of a step during which a GPU is slowed, except by its power limit",
        least=0,
    )
    corrected_errors: int = param(
        10_000,
        "corrected memory errors of a GPU, tolerated before the run and between two readings",
        least=0,
    )
    memory_repairs: int = param(
        511,
        "rows remapped for uncorrected errors in a GPU's lifetime, tolerated",
        least=0,
    )
    retired_pages: int = param(62, "pages retired in a GPU's lifetime, tolerated", least=0)
    uncorrected_errors: int = param(
        10_000,
        "uncorrected memory errors in a GPU's lifetime, tolerated before the run",
        least=0,
    )
    # Limits are rounded to whole watts.
    power_limit_share: float = param(
        0.99,
        "lowest enforced power limit, as a share of the GPU's default limit",
        least=0,
    )
    exclusive_ok: bool = param(False, "accept GPUs whose compute mode allows only one process")


class Rule(NamedTuple):
    """The fault that a reading indicates, and the values without it."""

    cause: Cause
    #: Name of the limit of a counter's growth between two readings; "": none is allowed.
    growth: str = ""
    #: The highest value before the run without a fault, or the name of its limit; None: any value.
    highest: float | str | None = None
    #: The level of the same GPU that it must reach before the run.
    reaches: str = ""
    #: Its cause before the run, if that differs.
    before: Cause | None = None


def _rules(cause: Cause, growth: str, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Rule(cause, growth))


#: Highest error ratios of an NVLink 5 that are not a fault: 1e-12, and 15e-238, which stands for 0
#: on GPUs from Blackwell on (NVIDIA/DCGM 4.6.0, MonitorNVLink5Fields, DcgmGPUHardwareLimits.h).
_RATIOS = {"nvlink-effective-ber": 1e-12, "nvlink-symbol-ber": 1.6e-237}
#: Retired pages of both kinds: with many corrected errors, and with an uncorrected one.
RETIRED = "pages-retired"
#: Counter -> its rule. Other counters are only reported after the run: packets that were dropped
#: or resent because buffers were full, a GPU at its power limit. So are limits by board or
#: reliability, which healthy GPUs may have (false positives: NVIDIA/DCGM 270, 285). Of NVLinks,
#: DCGM 4.6.0 fails a GPU for 1 replay, recovery or ECC error, for 100 CRC errors per second, and
#: for 1 of the counters of NVLink 5 (NVIDIA/DCGM, modules/health, MonitorNVLink4Fields,
#: MonitorNVLink5Fields, and common/DcgmGPUHardwareLimits.h). Errors before the link's own
#: correction are not read. Limits before the run are NVIDIA's criteria for a replacement
#: (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/).
RULES = {
    "ecc-uncorrected": Rule(Cause.GPU_ECC),
    "ecc-uncorrected-aggregate": Rule(Cause.GPU_ECC, highest="uncorrected_errors"),
    "ecc-corrected": Rule(Cause.GPU_ECC, "corrected_errors", highest="corrected_errors"),
    "rows-remapped-uncorrected": Rule(
        Cause.GPU_ROW_REMAP, highest="memory_repairs", before=Cause.GPU_ECC
    ),
    "pages-retired-double": Rule(Cause.GPU_ROW_REMAP),
    "limited-thermal": Rule(Cause.GPU_THROTTLED, "limited_share"),
    "pcie-replay": Rule(Cause.PCIE_ERRORS, "pcie_replays_per_minute"),
    "ue_count": Rule(Cause.HOST_ERRORS),
    **_rules(
        Cause.NVLINK_ERRORS,
        "",
        "nvlink-replay nvlink-recovery nvlink-recovery-failed nvlink-recovery-events "
        "nvlink-receive-errors nvlink-remote-errors nvlink-general-errors nvlink-symbol-errors "
        "nvlink-effective-errors nvlink-integrity-errors nvlink-malformed nvlink-overruns "
        "nvlink-ecc",
    ),
    **_rules(Cause.NVLINK_ERRORS, "nvlink_crc_per_second", "nvlink-crc-flit nvlink-crc-data"),
    **_rules(Cause.PCIE_ERRORS, "", "aer-fatal aer-nonfatal"),
    **_rules(Cause.PCIE_ERRORS, "bit_error_ratio", "aer-correctable"),
    **_rules(Cause.LINK_DOWN, "", "link_downed carrier_down_count"),
    **_rules(
        Cause.NIC_ERRORS,
        "",
        "link_error_recovery local_link_integrity_errors excessive_buffer_overrun_errors",
    ),
    **_rules(
        Cause.NIC_ERRORS,
        "bit_error_ratio",
        "symbol_error port_rcv_errors rx_icrc_encapsulated rx_errors tx_errors rx_crc_errors",
    ),
}
_RESET = Rule(Cause.GPU_ROW_REMAP, highest=0, before=Cause.GPU_RESET_REQUIRED)
#: Level -> its rule: the cause that a loss of it indicates.
LEVELS = {
    **_rules(Cause.LINK_DOWN, "", "active rate"),
    **_rules(Cause.PCIE_DEGRADED, "", "pcie-speed pcie-generation"),
    "pcie-width": Rule(Cause.PCIE_DEGRADED, reaches="pcie-width-max"),
    "nvlinks": Rule(Cause.NVLINK_DOWN),
    **{name: Rule(Cause.NVLINK_ERRORS, highest=most) for name, most in _RATIOS.items()},
    **_rules(Cause.FABRIC_MANAGER, "", "fabric-state fabric-status fabric-health"),
    **dict.fromkeys(("remap-pending", "pages-pending"), _RESET),
    **dict.fromkeys(
        ("remap-failure", "banks-without-spares"), Rule(Cause.GPU_REMAP_FAILED, highest=0)
    ),
    "recovery-action": Rule(Cause.GPU_RESET_REQUIRED, highest=0),
    "sram-threshold": Rule(Cause.GPU_ECC, highest=0),
    "reasons": Rule(Cause.GPU_THROTTLED),
    "power-limit": Rule(Cause.GPU_SETTINGS, reaches="power-limit-default"),
    "sm-clock-application": Rule(Cause.GPU_SETTINGS, reaches="sm-clock-default"),
    "ecc": Rule(Cause.GPU_SETTINGS),
    "compute-mode": Rule(Cause.GPU_MODE),
    "mig": Rule(Cause.GPU_MODE, highest=0),
}
#: What has a highest value before the run; the retired pages are a sum of two counters.
HIGHEST = {name: rule for name, rule in (RULES | LEVELS).items() if rule.highest is not None}
HIGHEST[RETIRED] = Rule(Cause.GPU_ECC, highest="retired_pages")
#: The counters that are read between the steps.
WATCHED = frozenset(RULES)
#: The readings of a GPU that rules judge, before the run or during it.
JUDGED = WATCHED | {*LEVELS, "sm-clock-max"}
#: Values of NVML's compute mode (nvml.h, nvmlComputeMode_t), except 0 for any number of processes.
_PROHIBITED, _EXCLUSIVE = 2, (1, 3)
#: Xids that faulty programs cause on healthy GPUs: the list of NVIDIA's device plugin
#: for Kubernetes (NVIDIA/k8s-device-plugin, "Application errors: the GPU should still be healthy").
#: A killed step causes Xid 45.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
#: The Xid of an NVLink 5 that is down on purpose, such as one that sleeps (NVIDIA's catalog). A
#: link that is lost also lowers the level "nvlinks".
INTENDED_LINK_DOWN = 155
#: Xids that are fatal only if the log reports that: those of NVLink 5, also 155, which links that
#: are switched off on purpose cause, and 154, by which the driver requires an action.
FATAL_IF_REPORTED = frozenset({*range(144, 151), 154, INTENDED_LINK_DOWN})
#: Value of `fabric-state` of a GPU without a part in a fabric (nvml.h, NVML_GPU_FABRIC_STATE_...).
NO_FABRIC = 0
#: Level -> its values, as texts: NVML's GPU recovery action (nvml.h, nvmlDeviceGpuRecoveryAction_t)
#: and state of the fabric.
_VALUES: Mapping[str, Mapping[float, str]] = {
    "recovery-action": {
        1: "a reset of the GPU",
        2: "a reboot",
        3: "an end of its peer-to-peer traffic",
        4: "an end of its work and then a reset",
        5: "a recovery of the IMEX domain",
        6: "a reset of the bus",
        7: "a reboot of the system",
    },
    "fabric-state": {
        NO_FABRIC: "has no part in",
        1: "did not start to join",
        2: "has not yet joined",
        FABRIC_JOINED: "has joined",
    },
    "compute-mode": {_PROHIBITED: "prohibits any process"},
}


def allowed(rule: Rule, limits: Limits, *, seconds: float, gbps: float | None) -> float:
    """Return the allowed growth of a counter in `seconds` on a link of `gbps`.

    Infinite if the speed of the link is needed but unknown.
    """
    limit: float = getattr(limits, rule.growth) if rule.growth else 0.0
    if rule.growth == "nvlink_crc_per_second":
        return limit * seconds
    if rule.growth == "pcie_replays_per_minute":
        # Replays come in bursts, so a shorter step may have those of a full minute.
        return limit * max(1.0, seconds / 60)
    if rule.growth == "bit_error_ratio":
        return max(limits.few, limit * gbps * 1e9 * seconds) if gbps else math.inf
    return limit * seconds * 1e9 if rule.growth == "limited_share" else limit


def is_worse(level: str, usual: float, now: float, limits: Limits) -> bool:
    """Return True if a level indicates a fault, compared with a former or required value."""
    if level == "power-limit":
        return now < limits.power_limit_share * usual
    if level == "compute-mode":
        return now == _PROHIBITED or (now in _EXCLUSIVE and not limits.exclusive_ok)
    return level in LEVELS and now != usual and not 0 < now <= _RATIOS.get(level, 0.0)


#: Reading -> its text, if its name and its numbers alone do not explain it. {} stands for the
#: value, and its limit follows.
_TEXTS: Mapping[str, str] = {
    "remap-failure": "remapping of a memory row failed",
    "sram-threshold": "too many uncorrected errors of its caches",
    "remap-pending": "a remapped memory row waits for a reset",
    "pages-pending": "a retired memory page waits for a reset",
    "mig": "MIG is on",
    "banks-without-spares": "memory banks without a spare row: {}",
    "ecc-corrected": "{} corrected memory errors since its driver started",
    "ecc-uncorrected-aggregate": "{} uncorrected errors in its lifetime",
    "rows-remapped-uncorrected": "{} rows remapped for uncorrected errors",
    RETIRED: "{} retired memory pages",
}


def level_text(level: str, usual: float, now: float) -> str:
    """Return a text for a level that got worse, or that is worse than it must be."""
    value = _VALUES.get(level, {}).get(now, "")
    match level:
        case "active":
            return "a link that is no longer active"
        case "reasons":
            reasons = f"0x{int(now):x}"
            return f"a clock limited by heat or power supply (clock event reasons {reasons})"
        case "fabric-state":
            return f"it {value or f'has the state {now:g} in'} the NVLink fabric"
        case "fabric-status":
            return f"an error of the NVLink fabric (NVML error {now:g})"
        case "fabric-health":
            return f"a fault of the NVLink fabric ({', '.join(fabric_faults(now))})"
        case "recovery-action":
            return f"the driver requires {value or f'recovery action {now:g}'}"
        case "compute-mode":
            return f"its compute mode {value or 'allows only one process'}"
        case _:
            text = _TEXTS.get(level, "")
            if "{}" in text:
                return f"{text.format(f'{now:.0f}')} (at most {usual:.0f})"
            return text or f"{level} {now:g} instead of {usual:g}"
