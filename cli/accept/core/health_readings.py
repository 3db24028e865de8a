"""What hosts counted, read from what `launchers/programs/health.py` prints, and what changed.

Counters only grow; what counts is by how much they grew while a step ran. Levels go up and down;
of them only a loss is told, such as a link that is no longer active.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from accept.core.model import Fact
from accept.core.serde import read

#: Bits of the level `reasons` that say a GPU is slowed by heat or by its power supply: software and
#: hardware thermal slowdown, power brake (nvml.h, nvmlClocksEventReason...). The bit of a hardware
#: slowdown alone may also come with a change of clocks, as nvml.h says.
SLOWED = 0x20 | 0x40 | 0x80
#: Of one host in one sweep, at most so many devices and so many events are kept.
MOST = 32
#: Levels of which less is a loss, and those of which more is one.
_FALLS = ("active", "rate", "pcie-width", "pcie-speed", "nvlinks")
_RISES = ("remap-pending", "remap-failure")
#: Levels of a GPU that are kept with what happened to it: nobody is blamed for them.
STATE = ("temperature", "power", "sm-clock")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU, port, interface or memory controller; counters that are zero are left out."""

    kind: Literal["gpu", "rdma", "net", "memory", "host"]
    name: str
    pci: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    #: Counters that others of its kind have and this one lacks.
    missing: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What stays the same of it: GPUs are numbered anew when one is lost."""
        return f"{self.kind} {self.pci or self.name}"

    @property
    def title(self) -> str:
        """What it is called in findings."""
        return f"{self.kind} {self.name}".strip()


@dataclass(frozen=True, kw_only=True)
class Event:
    """A line of the kernel log: an Xid of a GPU, an SXid of an NVSwitch, a machine check."""

    #: Seconds since the boot.
    at: float
    kind: Literal["xid", "sxid", "mce"]
    pci: str = ""
    code: int = 0
    fatal: bool = False


@dataclass(frozen=True, kw_only=True)
class Log:
    """The kernel log: the moment of its last line, in seconds since the boot, and its events."""

    last: float = 0.0
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All counters of one host at one moment."""

    boot: str = ""
    #: Seconds on a clock that only goes forward.
    uptime: float = 0.0
    #: Kind of device -> its counters, those that are zero too.
    read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    #: None: it could not be read.
    log: Log | None = None
    unread: tuple[str, ...] = ()
    #: Whether the program came to its end.
    whole: bool = False

    def count(self, device: Device, counter: str) -> int | None:
        """The counter of one of its devices; None where it could not be read."""
        base = counter.partition(".")[0]
        if base in device.missing or base not in self.read.get(device.kind, ()):
            return None
        return device.counters.get(counter, 0)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one host's devices counted between two readings. Devices go by their titles."""

    #: Number of the sweep of the earlier reading; 0: nothing is known of one.
    since: int
    #: Between the two, on the host's own clock.
    seconds: float = 0.0
    #: Device -> counter -> by how much it grew.
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Device -> level -> what it was, or should be, and what it is.
    levels: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    #: Device -> what its link carries, in 10^9 bits a second, of those with counters here.
    rates: dict[str, float] = field(default_factory=dict)
    #: GPU with counters, levels or events here -> its `STATE` in the later reading.
    states: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Interfaces that carry the run.
    run: tuple[str, ...] = ()
    #: Counters that went backwards, as "DEVICE COUNTER": somebody reset them.
    back: tuple[str, ...] = ()
    #: Devices that are no longer there.
    gone: tuple[str, ...] = ()
    #: Device, "" where none of the host has that address, and event.
    events: tuple[tuple[str, ...], ...] = ()
    rebooted: bool = False
    #: What could be read before and cannot be now.
    unread: tuple[str, ...] = ()
    #: How much was left out.
    cut: int = 0

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return self != Change(since=self.since, seconds=self.seconds)


def reading_of(facts: Sequence[Fact]) -> Reading:
    """The reading that facts `health` of one host make together.

    What cannot be read is said in `unread`.
    """
    found = Reading()
    for fact in facts:
        if fact.name != "health":
            continue
        try:
            part = read(Reading, fact.value)
        except ValueError as error:
            found = replace(found, unread=(*found.unread, f"a record ({str(error)[:100]})"))
            continue
        found = Reading(
            boot=part.boot or found.boot,
            uptime=part.uptime or found.uptime,
            read={**found.read, **part.read},
            devices=(*found.devices, *part.devices),
            log=part.log or found.log,
            unread=(*found.unread, *part.unread),
            whole=found.whole or part.whole,
        )
    if not found.whole:
        found = replace(found, unread=(*found.unread, "GPUs (the reading broke off)"))
    return found


def change(
    before: Reading, after: Reading, *, since: int, watched: frozenset[str], others: bool = False
) -> Change:
    """What changed from one reading to the other, of `watched` counters or of all `others`.

    Pure. A counter that went backwards is named and is no change; after a reboot none is compared.
    With `others` nothing but counters is told.
    """
    if before.boot and after.boot and before.boot != after.boot:
        return Change(since=since, rebooted=True)
    now = {device.key: device for device in after.devices}
    grown: dict[str, dict[str, int]] = {}
    levels: dict[str, dict[str, tuple[float, ...]]] = {}
    back, gone = [], []
    for old in before.devices:
        new = now.get(old.key)
        if new is None:
            gone += [old.title] if _looked(after, old) else []
            continue
        if not (old.levels.get("active", 1) or new.levels.get("active", 1)):
            # A link that nobody uses may come and go.
            continue
        for name in sorted({*old.counters, *new.counters}):
            was, is_now = before.count(old, name), after.count(new, name)
            if was is None or is_now is None or (name.partition(".")[0] in watched) is others:
                continue
            if is_now < was:
                back.append(f"{old.title} {name}")
            elif is_now > was:
                grown.setdefault(old.title, {})[name] = is_now - was
        if lost := dict(_losses(old, new, after)):
            levels[old.title] = lost
    rates = {d.title: d.levels["rate"] for d in after.devices if "rate" in d.levels}
    seconds = round(max(0.0, after.uptime - before.uptime), 3)
    told = _bounded(grown)
    if others:
        return Change(since=since, seconds=seconds, counters=told, cut=len(grown) - len(told))
    events = tuple(_events(before, after))
    # A device that is gone took its counters with it: they are not what could not be read.
    refused = tuple(why for why in after.unread if why not in before.unread)
    shown = {**told, **levels}
    struck = {*shown, *(event[0] for event in events)}
    return Change(
        since=since,
        seconds=seconds,
        counters=told,
        levels=_bounded(levels),
        rates={title: rate for title, rate in rates.items() if title in shown},
        states=_bounded(_states(before, now, struck)),
        run=tuple(d.title for d in after.devices if d.levels.get("run") and d.title in shown),
        back=tuple(back[:MOST]),
        gone=tuple(gone[:MOST]),
        events=events[:MOST],
        unread=refused[:MOST],
        cut=sum(max(0, len(all_) - MOST) for all_ in (grown, levels, back, gone, events)),
    )


def _bounded(found: dict[str, Any]) -> dict[str, Any]:
    return dict(list(found.items())[:MOST])


def _states(
    before: Reading, now: Mapping[str, Device], struck: Collection[str]
) -> dict[str, dict[str, float]]:
    """What the GPUs of these titles are like now."""
    struck_ones = (d for d in before.devices if d.kind == "gpu" and d.title in struck)
    found = {old.title: now[old.key].levels for old in struck_ones if old.key in now}
    kept = {
        title: {name: levels[name] for name in STATE if name in levels}
        for title, levels in found.items()
    }
    return {title: levels for title, levels in kept.items() if levels}


def _looked(after: Reading, old: Device) -> bool:
    """Whether the later reading came to where the device should have been."""
    return after.whole if old.kind == "gpu" else bool(after.uptime)


def _losses(old: Device, new: Device, after: Reading) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Levels that got worse, or that are bad where that is sure."""
    for level in (*_FALLS, *_RISES):
        # A GPU's link is narrow and slow while it idles.
        if level not in old.levels or level not in new.levels or _idles(new, level):
            continue
        was, is_now = old.levels[level], new.levels[level]
        if is_now > was if level in _RISES else is_now < was:
            yield level, (was, is_now)
    if new.kind != "gpu" or not new.levels.get("utilization"):
        return
    for level in ("pcie-width", "pcie-generation"):
        most = new.levels.get(f"{level}-max", 0.0)
        if new.levels.get(level, most) < most:
            yield level, (most, new.levels[level])
    slowed = int(new.levels.get("reasons", 0)) & SLOWED
    if slowed and after.count(new, "limited-thermal") is None:
        yield "reasons", (0.0, float(slowed))


def _idles(device: Device, level: str) -> bool:
    return device.kind == "gpu" and level.startswith("pcie")


def _events(before: Reading, after: Reading) -> Iterator[tuple[str, ...]]:
    """New lines of the kernel log, as (device, kind, code, "fatal" or "", address)."""
    if before.log is None or after.log is None:
        return
    titles = {d.pci: d.title for d in (*after.devices, *before.devices) if d.pci}
    for event in after.log.events:
        if event.at > before.log.last:
            fatal = "fatal" if event.fatal else ""
            yield titles.get(event.pci, ""), event.kind, str(event.code), fatal, event.pci
