"""Read the device counters of hosts (`launchers/programs/health.py`) and compare two readings.

Counters only grow, and only their growth during a step matters. Levels rise and fall, and only
losses are reported, such as a link that is no longer active.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

from accept.core.by_key import by_key
from accept.core.facts import FactKind
from accept.core.records import Fact
from accept.core.serde import read
from accept.core.text import TextEnum, duration, plain

T = TypeVar("T")

#: Bits of the level `reasons` for a GPU that its hardware slows to half its clock or less: heat and
#: power brake (nvml.h, nvmlClocksEventReason...). The bit for any hardware slowdown is not among
#: them, because it may also come with a change of clocks.
_SLOWED_BY_HARDWARE = 0x40 | 0x80
#: The bit for a GPU slowed by its software because of heat. The counter `limited-thermal` has the
#: time of that, which may be short, so the bit counts only without the counter.
_SLOWED_BY_SOFTWARE = 0x20
#: Upper limit of the devices, and of the events, that are kept per host and sweep.
MOST = 32
#: Levels that are a loss when they fall, and levels that are a loss when they rise.
_LOST_WHEN_LOWER = (
    "active",
    "rate",
    "pcie-width",
    "pcie-speed",
    "nvlinks",
    "fabric-state",
    "power-limit",
    "sm-clock-application",
    "ecc",
)
_LOST_WHEN_HIGHER = (
    "ecc",
    "nvlink-effective-ber",
    "nvlink-symbol-ber",
    "banks-without-spares",
    "compute-mode",
    "mig",
    "remap-pending",
    "remap-failure",
    "pages-pending",
    "recovery-action",
    "sram-threshold",
)
#: Counters of an RDMA port for packets that it sent again, and for those that it received out of
#: sequence. A lost packet counts at both ends. Drivers mlx5 and bnxt_re of the Linux kernel; those
#: of congestion control (CNP) are not among them.
_SENT_AGAIN = (
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "seq_err_naks_rcvd",
    "to_retransmits",
)
_OUT_OF_SEQUENCE = ("out_of_sequence", "oos_drop_count")
#: Counters of the packets of a port. They are compared only with the counters above.
_SENT, _RECEIVED = "port_xmit_packets", "port_rcv_packets"
#: Levels that describe the state of a GPU when something happened to it, with their units. They
#: never lead to a finding themselves.
STATE = {
    "temperature": "C",
    "memory-temperature": "C in its memory",
    "power": "W",
    "sm-clock": "MHz",
}
#: Value of `fabric-state` (nvml.h, NVML_GPU_FABRIC_STATE_COMPLETED).
FABRIC_JOINED = 3
#: Fields of the level `fabric-health`: the fault, its lowest bit, its mask, and the values that
#: mean it. 0 means that the GPU does not report the field (nvml.h,
#: NVML_GPU_FABRIC_HEALTH_MASK_...).
_FABRIC_FAULTS = (
    ("the bandwidth is degraded", 0, 0x3, range(1, 2)),
    ("a route is being recovered", 2, 0x3, range(1, 2)),
    ("a route is unhealthy", 4, 0x3, range(1, 2)),
    ("it is recovering from access timeouts", 6, 0x3, range(1, 2)),
    ("the configuration is incorrect", 8, 0xF, range(2, 16)),
)


class DeviceKind(TextEnum):
    """The kinds of devices with counters."""

    GPU = "gpu"
    #: A port of an RDMA device.
    RDMA = "rdma"
    #: A network interface.
    NET = "net"
    MEMORY = "memory"
    #: A GPU, an RDMA device, or a bridge above them, on the PCI bus.
    PCIE = "pcie"
    HOST = "host"


class DeviceId(NamedTuple):
    """The device that a key of `Change` refers to."""

    #: None if the key has another form, as in damaged evidence.
    kind: DeviceKind | None
    name: str

    @classmethod
    def of(cls, title: str) -> DeviceId:
        """Parse a title that `Device.title` returned."""
        kind, _, name = title.partition(" ")
        return cls(DeviceKind(kind), name) if kind in set(DeviceKind) else cls(None, title)


@dataclass(frozen=True, kw_only=True)
class DriverError:
    """An error of the driver that is a fault of a GPU, such as a lost GPU."""

    #: NVML's return code, its text, and the readings that failed with it.
    code: int
    words: str = ""
    readings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, port, interface or memory controller. Counters that are zero are left out."""

    kind: DeviceKind
    name: str
    pci: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    #: Counters that this device lacks, although others of its kind have them.
    missing: tuple[str, ...] = ()
    errors: tuple[DriverError, ...] = ()

    @property
    def title(self) -> str:
        """Return the name used in findings and as a key of `Change`; `DeviceId.of` reads it."""
        return f"{self.kind} {self.name}".strip()


@dataclass(frozen=True, kw_only=True)
class Event:
    """A line of the kernel log: an Xid of a GPU, an SXid of an NVSwitch, a machine check.

    "reset": the driver reported that a GPU no longer needs a reset. "lost": the driver lost a GPU,
    could not start it, or refuses one that needs a reset, and the code is NVML's. The driver may
    not name that GPU. "crash": the kernel crashed, in a panic, an Oops or on a CPU that hung.
    "oom": the kernel killed a process because memory ran out; the code is its number.
    """

    #: Seconds since boot.
    at: float
    kind: Literal["xid", "sxid", "mce", "reset", "lost", "crash", "oom"]
    pci: str = ""
    code: int = 0
    fatal: bool = False
    #: The name of a process that was killed.
    process: str = ""
    #: The words of the kernel about a crash.
    words: str = ""
    #: The time of day, as a log without the time since boot shows it; then `at` is only an order.
    stamp: str = ""

    @property
    def when(self) -> str:
        """Return the time of the event for people."""
        return (
            f"on {plain(self.stamp, 40)}" if self.stamp else f"{duration(self.at)} after the boot"
        )


@dataclass(frozen=True, kw_only=True)
class Log:
    """The kernel log, or what the watcher of Xids saw: its events, and the times that it covers.

    Times are in seconds since boot.
    """

    #: Time of its first line; later than the boot if older lines were overwritten.
    first: float = 0.0
    last: float = 0.0
    events: tuple[Event, ...] = ()
    #: What the watcher does not watch. Events of the others count all the same.
    blind: tuple[str, ...] = ()


class Unread(TextEnum):
    """The devices of a host that could not be read at all."""

    ALL = "all"
    GPUS = "gpus"
    #: Xids of the GPUs: neither the kernel log nor the watcher could be read.
    XIDS = "xids"
    #: No device: only single counters, or the kernel log, could not be read.
    NONE = "none"


#: Gaps that may contain any GPU.
_WITHOUT_GPUS = (Unread.ALL, Unread.GPUS)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that a reading lacks."""

    #: The thing that could not be read, and the reason.
    reason: str
    devices: Unread = Unread.ALL


def _valid(data: dict[str, object]) -> dict[str, object]:
    """Return a reading in which values of a wrong type are gaps, so that only they are lost."""
    devices, unread = data.get("devices"), data.get("unread", [])
    if not isinstance(devices, list) or not isinstance(unread, list):
        return data
    gaps: list[object] = []
    valid: list[object] = []
    for device in devices:
        cleaned, bad = _valid_device(device)
        try:
            read(Device, cleaned)
        except ValueError as error:
            gaps.append({"reason": f"a device ({str(error)[:100]})", "devices": "all"})
            continue
        valid.append(cleaned)
        if bad:
            title = f"{device.get('kind')} {device.get('name')}" if isinstance(device, dict) else ""
            reason = f"{', '.join(bad[:4])} of {title[:40]} (unexpected value)"
            gaps.append({"reason": reason, "devices": "none"})
    return {**data, "devices": valid, "unread": [*unread, *gaps]}


def _valid_device(device: object) -> tuple[object, list[str]]:
    """Return a device without counters and levels of a wrong type, and their names."""
    if not isinstance(device, dict):
        return device, []
    cleaned, bad = dict(device), []
    for key, types in (("counters", int), ("levels", (int, float))):
        values = device.get(key)
        if isinstance(values, dict):
            wrong = [
                n for n, v in values.items() if isinstance(v, bool) or not isinstance(v, types)
            ]
            cleaned[key] = {name: value for name, value in values.items() if name not in wrong}
            bad += [plain(name, 40) for name in wrong]
    return cleaned, bad


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All counters of one host at one time."""

    #: Identity of the boot; it differs after a reboot.
    boot: str = ""
    #: Seconds on a monotonic clock.
    uptime: float = 0.0
    #: Counters that were read for each kind of device, including those that are zero.
    read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    #: None if it could not be read.
    log: Log | None = None
    #: The Xids that a watcher got from the driver (`launchers/programs/xid_watch.py`); None if none
    #: works.
    watch: Log | None = None
    unread: tuple[Gap, ...] = ()
    #: Addresses of the GPUs of other jobs, whose events are not those of the run.
    others: tuple[str, ...] = ()
    #: True if the program finished.
    whole: bool = False

    adapt = staticmethod(_valid)

    @property
    def events(self) -> tuple[Event, ...]:
        """Return the events of the kernel log; none if it could not be read."""
        return self.log.events if self.log else ()

    @property
    def reports_xids(self) -> bool:
        """Return True if the Xids of all GPUs are in the kernel log, or known to the watcher."""
        return any(source is not None and not source.blind for source in (self.log, self.watch))

    def count(self, device: Device, counter: str) -> int | None:
        """Return a counter of one of the devices, or None if it could not be read."""
        base = counter.partition(".")[0]
        if base in device.missing or base not in self.read.get(device.kind, ()):
            return None
        return device.counters.get(counter, 0)

    def counters_of(self, device: Device) -> set[str]:
        """Return the counters that a device has."""
        return {*self.read.get(device.kind, ())} - {*device.missing}

    def reported(self, gpu: Device) -> set[str]:
        """Return the levels and counters that a GPU reports.

        Counters of its links are not among them if no link is active.
        """
        names = {*gpu.levels, *self.counters_of(gpu)}
        if gpu.levels.get("nvlinks"):
            return names
        return {name for name in names if not name.startswith("nvlink-")}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Hold the packets of an RDMA port between two readings, and those that were lost."""

    sent: int = 0
    received: int = 0
    sent_again: int = 0
    out_of_sequence: int = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """Hold the changes on one host between two readings. Devices are keyed by their titles."""

    #: Sweep number of the earlier reading; 0 if there is none.
    since: int
    #: Time between the readings, on the host's clock.
    seconds: float = 0.0
    #: Growth of each counter of each device.
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    #: RDMA ports that sent packets again or received them out of sequence.
    losses: dict[str, Loss] = field(default_factory=dict)
    #: For each level of each device: (former or possible value, current value).
    levels: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    #: Errors that the driver did not report for a GPU in the earlier reading.
    errors: dict[str, tuple[DriverError, ...]] = field(default_factory=dict)
    #: Levels and counters that a GPU reported in the earlier reading only, unless it has errors.
    vanished: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Link rates, in 10^9 bits per second, of the devices in `counters` and `levels`.
    rates: dict[str, float] = field(default_factory=dict)
    #: `STATE` in the later reading, for each GPU with counters, levels or events here.
    states: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Devices in `counters` and `levels` that carry the traffic of the run.
    run: tuple[str, ...] = ()
    #: Counters that another program reset, as "DEVICE COUNTER".
    back: tuple[str, ...] = ()
    #: Devices that disappeared.
    gone: tuple[str, ...] = ()
    #: (device, kind, code, "fatal" or "", PCI address); the device is "" if none has that address,
    #: and the name of the process if one was killed.
    events: tuple[tuple[str, ...], ...] = ()
    rebooted: bool = False
    #: Gaps of the later reading that the earlier one did not have.
    unread: tuple[Gap, ...] = ()
    #: Number of entries that were left out because of `MOST`.
    cut: int = 0

    def __bool__(self) -> bool:
        """Return True if anything changed."""
        return self != Change(since=self.since, seconds=self.seconds)


def _reading(value: object) -> Reading:
    try:
        return read(Reading, value)
    except ValueError as error:
        return Reading(unread=(Gap(reason=f"a record ({str(error)[:100]})"),))


def _change(value: object) -> Change:
    try:
        return read(Change, value)
    except ValueError as error:
        return Change(since=0, unread=(Gap(reason=f"a record ({str(error)[:100]})"),))


#: A part of the reading of a host.
HEALTH_READING = FactKind("health", _reading)
#: The changes on a host since its last reading, and over the run.
HEALTH_CHANGE = FactKind("health-change", _change)
HEALTH_TOTAL = FactKind("health-total", _change)


def counters_by_kind(readings: Iterable[Reading]) -> dict[str, tuple[str, ...]]:
    """Return the counters of each kind of device that one of the readings has."""
    names = by_key(item for reading in readings for item in reading.read.items())
    return {kind: tuple(sorted({*chain(*several)})) for kind, several in names.items()}


def reading_of(facts: Iterable[Fact]) -> Reading:
    """Combine the facts `health` of one host into one reading. `unread` names damaged parts."""
    reading = Reading()
    parts = [part for _, part in HEALTH_READING.among(facts)]
    all_read = counters_by_kind(parts)
    for part in parts:
        devices = (
            replace(d, missing=tuple(sorted({*all_read.get(d.kind, ())} - part.counters_of(d))))
            for d in part.devices
        )
        reading = Reading(
            boot=part.boot or reading.boot,
            uptime=part.uptime or reading.uptime,
            read=all_read,
            devices=(*reading.devices, *devices),
            log=part.log or reading.log,
            watch=part.watch or reading.watch,
            unread=(*reading.unread, *part.unread),
            others=(*reading.others, *part.others),
            whole=reading.whole or part.whole,
        )
    if reading.others and reading.log is not None:
        own = tuple(event for event in reading.log.events if event.pci not in reading.others)
        reading = replace(reading, log=replace(reading.log, events=own))
    if not reading.whole:
        gap = Gap(reason="GPUs (the reading was interrupted)", devices=Unread.GPUS)
        reading = replace(reading, unread=(*reading.unread, gap))
    return reading


def change(
    before: Reading, after: Reading, *, since: int, watched: frozenset[str], others: bool = False
) -> Change:
    """Compare two readings of a host by the `watched` counters, or by all `others`.

    After a reboot nothing is compared. With `others`, only counters are compared.
    """
    if before.boot and after.boot and before.boot != after.boot:
        return Change(since=since, rebooted=True)
    new_devices = dict(_matched(before, after))
    growth: dict[str, dict[str, int]] = {}
    levels: dict[str, dict[str, tuple[float, ...]]] = {}
    lost: dict[str, Loss] = {}
    vanished: dict[str, tuple[str, ...]] = {}
    reset, gone = [], []
    for old in before.devices:
        new = new_devices.get(old.title)
        if new is None:
            gone += [old.title] if _covers(after, old) else []
            continue
        if not (old.levels.get("active", 1) or new.levels.get("active", 1)):
            # A link that nobody uses may come and go.
            continue
        if new.kind is DeviceKind.RDMA and (loss := _loss(before, old, after, new)):
            lost[old.title] = loss
        for name in sorted({*old.counters, *new.counters} - {_SENT, _RECEIVED}):
            old_count, new_count = before.count(old, name), after.count(new, name)
            if old_count is None or new_count is None:
                continue
            if (name.partition(".")[0] in watched) is others:
                continue
            if new_count < old_count:
                reset.append(f"{old.title} {name}")
            elif new_count > old_count:
                growth.setdefault(old.title, {})[name] = new_count - old_count
        if losses := dict(_losses(old, new, after)):
            levels[old.title] = losses
        if missing := _vanished(before, old, after, new):
            vanished[old.title] = missing
    rates = {d.title: d.levels["rate"] for d in after.devices if "rate" in d.levels}
    seconds = round(max(0.0, after.uptime - before.uptime), 3)
    counters = _bounded(growth)
    if others:
        cut = len(growth) - len(counters)
        return Change(since=since, seconds=seconds, counters=counters, cut=cut)
    events = tuple(_events(before, after))
    unread = tuple(gap for gap in after.unread if gap not in before.unread)
    sources = _xid_sources(before, after)
    if before.reports_xids and all(new.blind for _, new in sources):
        unread = (Gap(reason="Xids", devices=Unread.XIDS), *unread)
    errors = {title: new for title, new in _new_errors(before, after, new_devices) if new}
    changed = {**counters, **levels, **errors}
    affected = {*changed, *(event[0] for event in events)}
    return Change(
        since=since,
        seconds=seconds,
        counters=counters,
        losses=_bounded(lost),
        levels=_bounded(levels),
        errors=_bounded(errors),
        vanished=_bounded(vanished),
        rates={title: rate for title, rate in rates.items() if title in changed},
        states=_bounded(_states(before, new_devices, affected)),
        run=tuple(d.title for d in after.devices if d.levels.get("run") and d.title in changed),
        back=tuple(reset[:MOST]),
        gone=tuple(gone[:MOST]),
        events=events[:MOST],
        unread=unread[:MOST],
        cut=sum(
            max(0, len(entries) - MOST)
            for entries in (growth, lost, levels, errors, vanished, reset, gone, events)
        ),
    )


def _matched(before: Reading, after: Reading) -> Iterator[tuple[str, Device]]:
    """Yield the title of each device of `before` that is in `after`, and its later reading.

    A device is known by its address, because the driver may renumber its GPUs. If one of the two
    readings lacks the address of a lost GPU, its name counts.
    """
    by_address = {(device.kind, device.pci): device for device in after.devices if device.pci}
    by_name = {(device.kind, device.name): device for device in after.devices}
    for old in before.devices:
        new = by_address.get((old.kind, old.pci))
        if new is None:
            new = by_name.get((old.kind, old.name))
            if new is not None and new.pci and old.pci:
                continue
        if new is not None:
            yield old.title, new


def _new_errors(
    before: Reading, after: Reading, new_devices: Mapping[str, Device]
) -> Iterator[tuple[str, tuple[DriverError, ...]]]:
    """Yield the errors that a device did not have before, under its former title."""
    matched = set()
    for old in before.devices:
        if new := new_devices.get(old.title):
            matched.add(new.title)
            known = {error.code for error in old.errors}
            yield old.title, tuple(error for error in new.errors if error.code not in known)
    for device in after.devices:
        if device.title not in matched:
            yield device.title, device.errors


def _vanished(before: Reading, old: Device, after: Reading, new: Device) -> tuple[str, ...]:
    """Return what a GPU without errors reported before, and no longer reports."""
    if new.kind is not DeviceKind.GPU or new.errors:
        return ()
    missing = before.reported(old) - after.reported(new)
    if new.levels.get("nvlinks") == 0:
        missing = {name for name in missing if not name.startswith("nvlink-")}
    return tuple(sorted(missing))


def _loss(before: Reading, old: Device, after: Reading, new: Device) -> Loss | None:
    """Return the packets of a port, and those that were lost; None: none, or not readable."""

    def grown(*names: str) -> int:
        counts = ((before.count(old, name), after.count(new, name)) for name in names)
        return sum(max(0, now - was) for was, now in counts if was is not None and now is not None)

    loss = Loss(
        sent=grown(_SENT),
        received=grown(_RECEIVED),
        sent_again=grown(*_SENT_AGAIN),
        out_of_sequence=grown(*_OUT_OF_SEQUENCE),
    )
    return loss if loss.sent_again or loss.out_of_sequence else None


def counts_losses(reading: Reading, port: Device) -> bool:
    """Return True if a port has counters of lost packets, and of packets."""
    counted = [
        any(reading.count(port, name) is not None for name in names)
        for names in ((*_SENT_AGAIN, *_OUT_OF_SEQUENCE), (_SENT, _RECEIVED))
    ]
    return port.kind is DeviceKind.RDMA and all(counted)


def _bounded(entries: dict[str, T]) -> dict[str, T]:
    return dict(list(entries.items())[:MOST])


def _states(
    before: Reading, new_devices: Mapping[str, Device], affected: Collection[str]
) -> dict[str, dict[str, float]]:
    """Return the current `STATE` of the GPUs with the `affected` titles."""
    states = {}
    for old in before.devices:
        new = new_devices.get(old.title)
        if new is None or old.kind is not DeviceKind.GPU or old.title not in affected:
            continue
        if state := {name: new.levels[name] for name in STATE if name in new.levels}:
            states[old.title] = state
    return states


def _covers(reading: Reading, device: Device) -> bool:
    """Return True if the reading got as far as the device, so that its absence means something."""
    if device.kind is not DeviceKind.GPU:
        return bool(reading.uptime)
    return reading.whole and not any(gap.devices in _WITHOUT_GPUS for gap in reading.unread)


def _losses(old: Device, new: Device, after: Reading) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the levels that got worse, or that are certainly bad, with old and new value."""
    for level in dict.fromkeys((*_LOST_WHEN_LOWER, *_LOST_WHEN_HIGHER)):
        # The PCIe link of an idle GPU may be narrow and slow, which is normal.
        if new.kind is DeviceKind.GPU and level.startswith("pcie"):
            continue
        if level not in old.levels or level not in new.levels:
            continue
        old_value, new_value = old.levels[level], new.levels[level]
        is_lower = new_value < old_value and level in _LOST_WHEN_LOWER
        if is_lower or (new_value > old_value and level in _LOST_WHEN_HIGHER):
            yield level, (old_value, new_value)
    # The error of a fabric that it joined. Of another one, `fabric-state` is the loss.
    old_status, new_status = (d.levels.get("fabric-status", 0.0) for d in (old, new))
    if new_status not in (0.0, old_status) and new.levels.get("fabric-state") == FABRIC_JOINED:
        yield "fabric-status", (old_status, new_status)
    old_health, new_health = (d.levels.get("fabric-health", 0.0) for d in (old, new))
    if set(fabric_faults(new_health)) - set(fabric_faults(old_health)):
        yield "fabric-health", (old_health, new_health)
    if new.kind is not DeviceKind.GPU or not new.levels.get("utilization"):
        return
    for level in ("pcie-width", "pcie-generation"):
        maximum = new.levels.get(f"{level}-max", 0.0)
        if new.levels.get(level, maximum) < maximum:
            yield level, (maximum, new.levels[level])
    if slowed := slowed_by(new, after):
        yield "reasons", (0.0, float(slowed))


def slowed_by(gpu: Device, reading: Reading) -> int:
    """Return the bits of `reasons` by which heat or power supply slows a busy GPU; 0: none."""
    if not gpu.levels.get("utilization"):
        return 0
    counted = reading.count(gpu, "limited-thermal") is not None
    bits = _SLOWED_BY_HARDWARE | (0 if counted else _SLOWED_BY_SOFTWARE)
    return int(gpu.levels.get("reasons", 0)) & bits


def fabric_faults(health: float) -> list[str]:
    """Return what is wrong with the NVLink fabric of a GPU, from its level `fabric-health`."""
    mask = int(health)
    return [text for text, low, width, bad in _FABRIC_FAULTS if mask >> low & width in bad]


def _xid_sources(before: Reading, after: Reading) -> list[tuple[Log, Log]]:
    """Return the sources of Xids that both readings have."""
    sources = ((before.log, after.log), (before.watch, after.watch))
    return [(old, new) for old, new in sources if old is not None and new is not None]


def _events(before: Reading, after: Reading) -> Iterator[tuple[str, ...]]:
    """Yield the new events in the form of `Change.events`, each once if two sources have it."""
    titles = {d.pci: d.title for d in (*after.devices, *before.devices) if d.pci}
    seen: dict[tuple[str, ...], str] = {}
    for old, new in _xid_sources(before, after):
        for event in new.events:
            if event.at > old.last and event.kind != "reset":
                title = titles.get(event.pci, "") if event.pci else event.process or event.words
                key = (title, event.kind, str(event.code), event.pci)
                seen[key] = "fatal" if event.fatal else seen.get(key, "")
    for (title, kind, code, pci), fatal in seen.items():
        yield title, kind, code, fatal, pci
