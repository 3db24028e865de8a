"""Judge the health counters of GPUs, links and NICs, and what changed between two readings."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from accept.core.causes import Cause, driver_cause
from accept.core.health_readings import (
    HEALTH_CHANGE,
    HEALTH_TOTAL,
    STATE,
    Change,
    DeviceId,
    DeviceKind,
    DriverError,
    fabric_faults,
)
from accept.core.model import Problem, Record, Step
from accept.core.text import decimal, plain


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Highest rates that are not a fault; the parameters of the health check are such limits."""

    #: CRC errors of one NVLink.
    nvlink_crc_per_second: float
    #: Replays of the PCIe link of one GPU.
    pcie_replays_per_minute: float
    #: Errors of a port per bit that it carries.
    bit_error_ratio: float
    #: A port may count this many errors at any rate.
    few: int
    #: Lost packets of an RDMA port, as a share of its packets in a step, 0 to 1.
    packet_loss: float
    #: Share of the time of a step, 0 to 1.
    limited_share: float
    #: Corrected memory errors of a GPU between two readings.
    corrected_errors: int
    #: Before the run: numbers of uncorrected errors, rows remapped for them, and retired pages.
    uncorrected_errors: int
    memory_repairs: int
    retired_pages: int
    #: Enforced power limit as a share of the default one.
    power_limit_share: float
    #: True if GPUs may allow only one process.
    exclusive_ok: bool


class Rule(NamedTuple):
    """The cause that the growth of a counter indicates, and the limit of the growth."""

    cause: Cause
    #: Name of the limit; "none": no growth is allowed.
    allows: str = "none"


#: Counter -> its rule. Other counters are only reported after the run: packets that were dropped
#: or resent because buffers were full, a GPU at its power limit. So are limits by board or
#: reliability, which healthy GPUs may have (false positives: NVIDIA/DCGM 270, 285). Of NVLinks,
#: DCGM 4.6.0 fails a GPU for 1 replay, recovery or ECC error, for 100 CRC errors per second, and
#: for 1 of the counters of NVLink 5 (NVIDIA/DCGM, modules/health, MonitorNVLink4Fields,
#: MonitorNVLink5Fields, and common/DcgmGPUHardwareLimits.h). Errors before the link's own
#: correction are not read.
RULES = {
    "ecc-corrected": Rule(Cause.GPU_ECC, "corrected"),
    "ecc-uncorrected": Rule(Cause.GPU_ECC),
    "ecc-uncorrected-aggregate": Rule(Cause.GPU_ECC),
    "rows-remapped-uncorrected": Rule(Cause.GPU_ROW_REMAP),
    "pages-retired-double": Rule(Cause.GPU_ROW_REMAP),
    "limited-thermal": Rule(Cause.GPU_THROTTLED, "time"),
    "nvlink-replay": Rule(Cause.NVLINK_ERRORS),
    "nvlink-recovery": Rule(Cause.NVLINK_ERRORS),
    **dict.fromkeys(
        (
            "nvlink-recovery-failed",
            "nvlink-recovery-events",
            "nvlink-receive-errors",
            "nvlink-remote-errors",
            "nvlink-general-errors",
            "nvlink-symbol-errors",
            "nvlink-effective-errors",
            "nvlink-integrity-errors",
            "nvlink-malformed",
            "nvlink-overruns",
        ),
        Rule(Cause.NVLINK_ERRORS),
    ),
    "nvlink-ecc": Rule(Cause.NVLINK_ERRORS),
    "nvlink-crc-flit": Rule(Cause.NVLINK_ERRORS, "crc"),
    "nvlink-crc-data": Rule(Cause.NVLINK_ERRORS, "crc"),
    "pcie-replay": Rule(Cause.PCIE_ERRORS, "replays"),
    "aer-fatal": Rule(Cause.PCIE_ERRORS),
    "aer-nonfatal": Rule(Cause.PCIE_ERRORS),
    "aer-correctable": Rule(Cause.PCIE_ERRORS, "bits"),
    "link_downed": Rule(Cause.LINK_DOWN),
    "carrier_down_count": Rule(Cause.LINK_DOWN),
    "link_error_recovery": Rule(Cause.NIC_ERRORS),
    "local_link_integrity_errors": Rule(Cause.NIC_ERRORS),
    "excessive_buffer_overrun_errors": Rule(Cause.NIC_ERRORS),
    "port_rcv_errors": Rule(Cause.NIC_ERRORS, "bits"),
    "symbol_error": Rule(Cause.NIC_ERRORS, "bits"),
    "rx_icrc_encapsulated": Rule(Cause.NIC_ERRORS, "bits"),
    "rx_errors": Rule(Cause.NIC_ERRORS, "bits"),
    "tx_errors": Rule(Cause.NIC_ERRORS, "bits"),
    "rx_crc_errors": Rule(Cause.NIC_ERRORS, "bits"),
    "ue_count": Rule(Cause.HOST_ERRORS),
}
#: The counters that are read between the steps.
WATCHED = frozenset(RULES)
#: Maximum number of names in one note.
_MAX_NAMED = 6
#: Level -> the cause that its loss indicates.
LEVELS = {
    "active": Cause.LINK_DOWN,
    "rate": Cause.LINK_DOWN,
    "pcie-width": Cause.PCIE_DEGRADED,
    "pcie-speed": Cause.PCIE_DEGRADED,
    "pcie-generation": Cause.PCIE_DEGRADED,
    "nvlinks": Cause.NVLINK_DOWN,
    "fabric-state": Cause.FABRIC_MANAGER,
    "fabric-status": Cause.FABRIC_MANAGER,
    "fabric-health": Cause.FABRIC_MANAGER,
    "remap-pending": Cause.GPU_ROW_REMAP,
    "remap-failure": Cause.GPU_REMAP_FAILED,
    "pages-pending": Cause.GPU_ROW_REMAP,
    "recovery-action": Cause.GPU_RESET_REQUIRED,
    "sram-threshold": Cause.GPU_ECC,
    "reasons": Cause.GPU_THROTTLED,
    "nvlink-effective-ber": Cause.NVLINK_ERRORS,
    "nvlink-symbol-ber": Cause.NVLINK_ERRORS,
    "banks-without-spares": Cause.GPU_REMAP_FAILED,
    "power-limit": Cause.GPU_SETTINGS,
    "sm-clock-application": Cause.GPU_SETTINGS,
    "ecc": Cause.GPU_SETTINGS,
    "compute-mode": Cause.GPU_MODE,
    "mig": Cause.GPU_MODE,
}
#: The readings of a GPU that rules judge, before the run or during it.
JUDGED = WATCHED | {*LEVELS, "sm-clock-max"}
#: Values of NVML's compute mode (nvml.h, nvmlComputeMode_t), except 0 for any number of processes.
PROHIBITED, EXCLUSIVE = 2, (1, 3)
#: Highest error ratios of an NVLink 5 that are not a fault: 1e-12, and 15e-238, which stands for 0
#: on GPUs from Blackwell on (NVIDIA/DCGM 4.6.0, MonitorNVLink5Fields, DcgmGPUHardwareLimits.h).
NVLINK_RATIOS = {"nvlink-effective-ber": 1e-12, "nvlink-symbol-ber": 1.6e-237}
#: Kind of a device -> the cause that its disappearance indicates.
_GONE = {DeviceKind.GPU: Cause.GPU_MISSING, DeviceKind.RDMA: Cause.LINK_DOWN}
#: Xids that faulty programs cause on healthy GPUs: the list of NVIDIA's device plugin
#: for Kubernetes (NVIDIA/k8s-device-plugin, "Application errors: the GPU should still be healthy").
#: A killed step causes Xid 45.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
#: The Xid of an NVLink 5 that is down on purpose, such as one that sleeps (NVIDIA's catalog). A
#: link that is lost also lowers the level "nvlinks".
INTENDED_LINK_DOWN = 155


# Reading the changes


class Sweep(NamedTuple):
    """The changes that one sweep of a host found."""

    host: str
    #: The steps since the last sweep, such as "during 30-collectives".
    when: str
    change: Change
    #: True for the changes over the full run, of counters that accuse nothing.
    total: bool
    #: The step since the last sweep; None if there was none, or several.
    step: Step | None = None


def changes_of(answers: Sequence[Record], steps: Sequence[Step]) -> Iterator[Sweep]:
    """Yield the recorded changes, oldest first. An invalid one is reported as unread."""
    for record in answers:
        for kind in (HEALTH_CHANGE, HEALTH_TOTAL):
            for fact, change in kind.of(record):
                if fact.host:
                    total = kind is HEALTH_TOTAL
                    # Step n runs between sweeps n and n + 1.
                    between = steps[max(0, change.since - 1) : max(0, record.wave - 1)]
                    when = "over the run" if total else _when(between)
                    step = between[0] if len(between) == 1 and not total else None
                    yield Sweep(fact.host, when, change, total, step)


def _when(steps: Sequence[Step]) -> str:
    """Return the names of the steps between two sweeps."""
    if not steps:
        return "before the first step"
    first, last = steps[0].id, steps[-1].id
    return f"during {first}" if len(steps) == 1 else f"between {first} and {last}"


# Problems and notes


def problems(sweep: Sweep, limits: Limits) -> Iterator[Problem]:
    """Yield one problem for each device and cause."""
    host, change = sweep.host, sweep.change
    if sweep.total:
        return
    if change.rebooted:
        yield Problem(cause=Cause.HOST_DIED, message=f"{sweep.when}: {host} rebooted", host=host)
    for title in change.gone:
        kind = DeviceId.of(title).kind
        if kind in _GONE:
            message = f"{sweep.when}: {title} of {host} disappeared"
            yield device_problem(_GONE[kind], host, title, message)
    for title in {**change.counters, **change.levels, **change.errors}:
        by_cause: dict[Cause, list[str]] = {}
        for name, grown in change.counters.get(title, {}).items():
            if cause := blamed(change, title, name, grown, limits):
                by_cause.setdefault(cause, []).append(_growth_text(name, grown, change.seconds))
        for level, values in change.levels.get(title, {}).items():
            if len(values) == 2 and _is_judged(change, title) and is_loss(level, *values, limits):
                by_cause.setdefault(LEVELS[level], []).append(_level_text(level, *values))
        for cause, text in driver_faults(change.errors.get(title, ())):
            by_cause.setdefault(cause, []).append(text)
        for cause, texts in by_cause.items():
            yield device_problem(cause, sweep.host, title, _sentence(sweep, title, texts))
    for event in change.events:
        yield from _event_problems(sweep, event)


def vanished(sweep: Sweep) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the title of each GPU that no longer reports judged readings, and these readings."""
    for title, names in sweep.change.vanished.items():
        if lost := judged_of(names):
            yield title, lost


def judged_of(missing: Collection[str]) -> tuple[str, ...]:
    """Return the judged ones of the readings that a GPU lacks, without those of missing links."""
    links = "nvlinks" in missing
    names = JUDGED.intersection(missing)
    return tuple(sorted(n for n in names if not (links and n.startswith("nvlink-"))))


def notes(sweep: Sweep, limits: Limits) -> Iterator[str]:
    """Yield a text for each change that accuses nothing."""
    change = sweep.change
    if change.back:
        yield (
            f"{sweep.when}: counters of {sweep.host} went backwards (reset by another program): "
            + (", ".join(change.back[:_MAX_NAMED]))
        )
    for title, grown in change.counters.items():
        texts = [
            _growth_text(name, value, change.seconds)
            for name, value in grown.items()
            if not blamed(change, title, name, value, limits)
        ]
        if texts:
            yield f"{sweep.when}: {', '.join(texts[:_MAX_NAMED])} on {title} of {sweep.host}"
    for event in change.events:
        if len(event) == 5 and not any(_event_problems(sweep, event)):
            title, kind, code, _, pci = event
            text = "a machine check" if kind == "mce" else f"{kind.title()} {code}"
            yield f"{sweep.when}: {text} on {title or pci or sweep.host} of {sweep.host}"
    if change.cut:
        yield f"{sweep.when}: {change.cut} more changes of {sweep.host} are not listed"


# Rules


def allowed(rule: Rule, limits: Limits, *, seconds: float, gbps: float | None) -> float:
    """Return the allowed growth of a counter in `seconds` on a link of `gbps`.

    Infinite if the speed of the link is needed but unknown.
    """
    if rule.allows == "crc":
        return limits.nvlink_crc_per_second * seconds
    if rule.allows == "replays":
        # Replays come in bursts, so a shorter step may have those of a full minute.
        return limits.pcie_replays_per_minute * max(1.0, seconds / 60)
    if rule.allows == "corrected":
        return limits.corrected_errors
    if rule.allows == "bits":
        if not gbps:
            return math.inf
        return max(limits.few, limits.bit_error_ratio * gbps * 1e9 * seconds)
    return limits.limited_share * seconds * 1e9 if rule.allows == "time" else 0.0


def blamed(change: Change, title: str, counter: str, grown: int, limits: Limits) -> Cause | None:
    """Return the cause that a counter's growth indicates, or None if the growth is allowed."""
    rule = RULES.get(counter.partition(".")[0])
    if rule is None or not _is_judged(change, title):
        return None
    gbps = change.rates.get(title)
    limit = allowed(rule, limits, seconds=change.seconds, gbps=gbps)
    return rule.cause if grown > limit else None


def is_loss(level: str, was: float, now: float, limits: Limits) -> bool:
    """Return True if a level that changed indicates a fault."""
    if level == "power-limit":
        return now < limits.power_limit_share * was
    if level == "compute-mode":
        return now == PROHIBITED or (now in EXCLUSIVE and not limits.exclusive_ok)
    return level in LEVELS and now != was and not 0 < now <= NVLINK_RATIOS.get(level, 0.0)


def _is_judged(change: Change, title: str) -> bool:
    """Return True if a device is judged: of network interfaces, only those that the run uses."""
    return DeviceId.of(title).kind is not DeviceKind.NET or title in change.run


def driver_faults(errors: Sequence[DriverError]) -> Iterator[tuple[Cause, str]]:
    """Yield the cause and a text for each error that the driver reports for a GPU."""
    for error in errors:
        cause = driver_cause(error.code)
        names = ", ".join(plain(name, 40) for name in error.readings[:3])
        more = f" and {len(error.readings) - 3} more" if len(error.readings) > 3 else ""
        yield (
            cause,
            f"the driver error {plain(error.words, 80)!r} (NVML {error.code}: {names}{more})",
        )


# Texts


def _sentence(sweep: Sweep, title: str, texts: Sequence[str]) -> str:
    """Return the sentence about the changes of a device."""
    verb = "was" if len(texts) == 1 else "were"
    state = _state_text(sweep.change, title)
    return f"{sweep.when}: {', '.join(texts)} {verb} seen on {title} of {sweep.host}{state}"


def device_problem(cause: Cause, host: str, title: str, message: str) -> Problem:
    """Return a problem of the device with a title of `Device.title`."""
    kind, name = DeviceId.of(title)
    return Problem(
        cause=cause,
        message=message,
        host=host,
        gpu=name if kind is DeviceKind.GPU else None,
        nic=name if kind in (DeviceKind.RDMA, DeviceKind.NET) else None,
    )


def _state_text(change: Change, title: str) -> str:
    """Return the state of a GPU after the step, or ""."""
    known = change.states.get(title, {})
    values = [f"{known[name]:.4g} {unit}" for name, unit in STATE.items() if name in known]
    return f" (after it {', '.join(values)})" if values else ""


def _event_problems(sweep: Sweep, event: tuple[str, ...]) -> Iterator[Problem]:
    title, kind, code, fatal, pci = event if len(event) == 5 else ("", "", "", "", "")
    if kind == "lost":
        where = title or (f"the GPU at {pci}" if pci else "a GPU")
        cause = driver_cause(decimal(code) or 0)
        needs_reset = cause is Cause.GPU_RESET_REQUIRED
        text = "a GPU that needs a reset" if needs_reset else "a GPU that the driver has lost"
        yield device_problem(cause, sweep.host, where, _sentence(sweep, where, [text]))
    elif kind == "xid" and _is_fault(decimal(code), fatal=bool(fatal)):
        where = title or f"the GPU at {pci}"
        message = _sentence(sweep, where, [f"Xid {code}"])
        yield device_problem(Cause.GPU_XID, sweep.host, where, message)
    elif kind == "sxid" and fatal:
        switch = f"the NVSwitch at {pci}"
        message = _sentence(sweep, switch, [f"SXid {code} (fatal)"])
        yield device_problem(Cause.GPU_XID, sweep.host, switch, message)


def _is_fault(xid: int | None, *, fatal: bool) -> bool:
    return xid not in APPLICATION_XIDS and (fatal or xid != INTENDED_LINK_DOWN)


def _growth_text(counter: str, grown: int, seconds: float) -> str:
    """Return the growth of a counter, in seconds for counters of nanoseconds."""
    if counter.startswith("limited-"):
        return f"{counter} for {grown / 1e9:.3g} s of {seconds:.3g} s"
    name, _, link = counter.partition(".")
    return f"+{grown} {name}" + (f" on link {link}" if link else "")


def slowed_text(reasons: int) -> str:
    """Return a text for a GPU that these clock event reasons slow."""
    return f"a clock limited by heat or power supply (clock event reasons 0x{reasons:x})"


def _level_text(level: str, was: float, now: float) -> str:
    if level == "active":
        return "a link that is no longer active"
    if level == "reasons":
        return slowed_text(int(now))
    if level == "fabric-status":
        return f"an NVLink fabric with an error (NVML error {now:g})"
    if level == "fabric-health":
        return f"an NVLink fabric with a fault ({', '.join(fabric_faults(now))})"
    return f"{level} {now:g} instead of {was:g}"
