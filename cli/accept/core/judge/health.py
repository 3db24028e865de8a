"""Judge the health counters of GPUs, links and NICs, and what changed between two readings."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from accept.core.judge.findings import Problems
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
    **dict.fromkeys(("ecc-uncorrected", "ecc-uncorrected-aggregate"), Rule(Cause.GPU_ECC)),
    "ecc-corrected": Rule(Cause.GPU_ECC, "corrected"),
    **dict.fromkeys(
        ("rows-remapped-uncorrected", "pages-retired-double"), Rule(Cause.GPU_ROW_REMAP)
    ),
    "limited-thermal": Rule(Cause.GPU_THROTTLED, "time"),
    **{
        f"nvlink-{name}": Rule(Cause.NVLINK_ERRORS)
        for name in (
            *("replay", "recovery", "recovery-failed", "recovery-events", "receive-errors"),
            *("remote-errors", "general-errors", "symbol-errors", "effective-errors"),
            *("integrity-errors", "malformed", "overruns", "ecc"),
        )
    },
    **dict.fromkeys(("nvlink-crc-flit", "nvlink-crc-data"), Rule(Cause.NVLINK_ERRORS, "crc")),
    "pcie-replay": Rule(Cause.PCIE_ERRORS, "replays"),
    **dict.fromkeys(("aer-fatal", "aer-nonfatal"), Rule(Cause.PCIE_ERRORS)),
    "aer-correctable": Rule(Cause.PCIE_ERRORS, "bits"),
    **dict.fromkeys(("link_downed", "carrier_down_count"), Rule(Cause.LINK_DOWN)),
    **{
        f"{name}_errors": Rule(Cause.NIC_ERRORS, allows)
        for allows, names in {
            "none": ("local_link_integrity", "excessive_buffer_overrun"),
            "bits": ("port_rcv", "rx", "tx", "rx_crc"),
        }.items()
        for name in names
    },
    "link_error_recovery": Rule(Cause.NIC_ERRORS),
    **dict.fromkeys(("symbol_error", "rx_icrc_encapsulated"), Rule(Cause.NIC_ERRORS, "bits")),
    "ue_count": Rule(Cause.HOST_ERRORS),
}
#: The counters that are read between the steps.
WATCHED = frozenset(RULES)
#: Maximum number of names in one note.
_MAX_NAMED = 6
#: Level -> the cause that its loss indicates.
LEVELS = {
    level: cause
    for cause, levels in {
        Cause.LINK_DOWN: ("active", "rate"),
        Cause.PCIE_DEGRADED: ("pcie-width", "pcie-speed", "pcie-generation"),
        Cause.NVLINK_DOWN: ("nvlinks",),
        Cause.NVLINK_ERRORS: ("nvlink-effective-ber", "nvlink-symbol-ber"),
        Cause.FABRIC_MANAGER: ("fabric-state", "fabric-status", "fabric-health"),
        Cause.GPU_ROW_REMAP: ("remap-pending", "pages-pending"),
        Cause.GPU_REMAP_FAILED: ("remap-failure", "banks-without-spares"),
        Cause.GPU_RESET_REQUIRED: ("recovery-action",),
        Cause.GPU_ECC: ("sram-threshold",),
        Cause.GPU_THROTTLED: ("reasons",),
        Cause.GPU_SETTINGS: ("power-limit", "sm-clock-application", "ecc"),
        Cause.GPU_MODE: ("compute-mode", "mig"),
    }.items()
    for level in levels
}
#: The readings of a GPU that rules judge, before the run or during it.
JUDGED = WATCHED | {*LEVELS, "sm-clock-max"}
#: Values of NVML's compute mode (nvml.h, nvmlComputeMode_t), except 0 for any number of processes.
PROHIBITED, EXCLUSIVE = 2, (1, 3)
#: Highest error ratios of an NVLink 5 that are not a fault: 1e-12, and 15e-238, which stands for 0
#: on GPUs from Blackwell on (NVIDIA/DCGM 4.6.0, MonitorNVLink5Fields, DcgmGPUHardwareLimits.h).
NVLINK_RATIOS = {"nvlink-effective-ber": 1e-12, "nvlink-symbol-ber": 1.6e-237}
#: Kind of a device -> the cause that its disappearance indicates.
_GONE: dict[DeviceKind | None, Cause] = {
    DeviceKind.GPU: Cause.GPU_MISSING,
    DeviceKind.RDMA: Cause.LINK_DOWN,
}
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


def examine(sweep: Sweep, limits: Limits, *, gpus: bool) -> Problems:
    """Return what the changes of a host show; `gpus`: its machine has GPUs."""
    unclear = [
        device_problem(
            Cause.GPU_UNREPORTED,
            sweep.host,
            title,
            f"{sweep.when}: no longer reported by {title} of {sweep.host}: {', '.join(lost)}",
        )
        for title, names in sweep.change.vanished.items()
        if gpus and (lost := judged_of(names))
    ]
    problems = [] if sweep.total else list(_problems(sweep, limits))
    return Problems(problems, unclear, list(_notes(sweep, limits)))


def _problems(sweep: Sweep, limits: Limits) -> Iterator[Problem]:
    """Yield one problem for each device and cause."""
    host, change = sweep.host, sweep.change
    if change.rebooted:
        yield Problem(cause=Cause.HOST_DIED, message=f"{sweep.when}: {host} rebooted", host=host)
    for title in change.gone:
        if cause := _GONE.get(DeviceId.of(title).kind):
            message = f"{sweep.when}: {title} of {host} disappeared"
            yield device_problem(cause, host, title, message)
    for title in {**change.counters, **change.levels, **change.errors}:
        faults = [
            (cause, _growth_text(name, grown, change.seconds))
            for name, grown in change.counters.get(title, {}).items()
            if (cause := _blamed(change, title, name, grown, limits))
        ]
        faults += [
            (LEVELS[level], level_text(level, *values))
            for level, values in change.levels.get(title, {}).items()
            if len(values) == 2 and _is_judged(change, title) and _is_loss(level, *values, limits)
        ]
        faults += driver_faults(change.errors.get(title, ()))
        for cause, texts in by_cause(faults).items():
            yield device_problem(cause, host, title, _sentence(sweep, title, texts))
    for event in change.events:
        yield from _event_problems(sweep, event)


def cause_of(reading: str) -> Cause:
    """Return the cause that a change of a judged level or counter indicates."""
    return LEVELS.get(reading) or RULES[reading].cause


def by_cause(faults: Iterable[tuple[Cause, str]]) -> dict[Cause, list[str]]:
    """Return the texts of each cause."""
    texts: dict[Cause, list[str]] = {}
    for cause, text in faults:
        texts.setdefault(cause, []).append(text)
    return texts


def judged_of(missing: Collection[str]) -> tuple[str, ...]:
    """Return the judged ones of the readings that a GPU lacks, without those of missing links."""
    links = "nvlinks" in missing
    names = JUDGED.intersection(missing)
    return tuple(sorted(n for n in names if not (links and n.startswith("nvlink-"))))


def _notes(sweep: Sweep, limits: Limits) -> Iterator[str]:
    """Yield a text for each change that accuses nothing."""
    change, host = sweep.change, f"of {sweep.host}"
    if change.back:
        names = ", ".join(change.back[:_MAX_NAMED])
        yield f"{sweep.when}: counters {host} went backwards (reset by another program): {names}"
    for title, grown in change.counters.items():
        texts = [
            _growth_text(name, value, change.seconds)
            for name, value in grown.items()
            if not _blamed(change, title, name, value, limits)
        ]
        if texts:
            yield f"{sweep.when}: {', '.join(texts[:_MAX_NAMED])} on {title} {host}"
    for event in change.events:
        if len(event) == 5 and not any(_event_problems(sweep, event)):
            title, kind, code, _, pci = event
            text = "a machine check" if kind == "mce" else f"{kind.title()} {code}"
            yield f"{sweep.when}: {text} on {title or pci or sweep.host} {host}"
    if change.cut:
        yield f"{sweep.when}: {change.cut} more changes {host} are not listed"


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


def _blamed(change: Change, title: str, counter: str, grown: int, limits: Limits) -> Cause | None:
    """Return the cause that a counter's growth indicates, or None if the growth is allowed."""
    rule = RULES.get(counter.partition(".")[0])
    if rule is None or not _is_judged(change, title):
        return None
    gbps = change.rates.get(title)
    limit = allowed(rule, limits, seconds=change.seconds, gbps=gbps)
    return rule.cause if grown > limit else None


def _is_loss(level: str, was: float, now: float, limits: Limits) -> bool:
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


def level_text(level: str, was: float, now: float) -> str:
    """Return a text for a level that got worse, or that is worse than it must be."""
    if level == "active":
        return "a link that is no longer active"
    if level == "reasons":
        return slowed_text(int(now))
    if level == "fabric-status":
        return f"an NVLink fabric with an error (NVML error {now:g})"
    if level == "fabric-health":
        return f"an NVLink fabric with a fault ({', '.join(fabric_faults(now))})"
    return f"{level} {now:g} instead of {was:g}"
