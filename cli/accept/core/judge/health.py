"""Judge the health counters of GPUs, links and NICs, and what changed between two readings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from accept.core.health_readings import STATE, Change, Reading
from accept.core.model import Fact, Problem, Record, Step
from accept.core.serde import read
from accept.core.text import decimal


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


#: Of one kind of note, at most so many hosts or devices are named.
_SOME = 6


class Said(NamedTuple):
    """What one host's sweep brought, and while which steps."""

    host: str
    #: "during 30-collectives".
    when: str
    change: Change
    #: It is of the whole run, of counters that nobody is blamed for.
    total: bool


def said(asked: Sequence[Record], steps: Sequence[Step]) -> Iterator[Said]:
    """Read the changes that were kept, oldest first; one that cannot be read is unread."""
    for record in asked:
        for fact in record.facts:
            if fact.name in ("health-change", "health-total") and fact.host:
                total = fact.name == "health-total"
                change = _change(fact)
                when = "over the run" if total else _when(steps, change.since, record.wave)
                yield Said(fact.host, when, change, total)


def _change(fact: Fact) -> Change:
    try:
        return read(Change, fact.value)
    except ValueError as error:
        return Change(since=0, unread=(f"anything: {str(error)[:100]}",))


def _when(steps: Sequence[Step], since: int, number: int) -> str:
    """The steps between two sweeps: step n runs between sweeps n and n + 1."""
    names = [step.id for step in steps[max(0, since - 1) : max(0, number - 1)]]
    if not names:
        return "before the first step"
    return f"during {names[0]}" if len(names) == 1 else f"between {names[0]} and {names[-1]}"


def problems(one: Said, limits: Limits) -> Iterator[Problem]:
    """What is bad, a problem for each device and cause."""
    host, change = one.host, one.change
    if one.total:
        return
    if change.rebooted:
        yield Problem(cause="host-died", message=f"{one.when}: {host} rebooted", host=host)
    for title in change.gone:
        kind, _, name = title.partition(" ")
        cause = {"gpu": "gpu-missing", "rdma": "link-down"}.get(kind)
        if cause:
            message = f"{one.when}: {title} of {host} is no longer there"
            yield _problem(cause, one, title, message)
    for title in {**change.counters, **change.levels}:
        found: dict[str, list[str]] = {}
        for name, grown in change.counters.get(title, {}).items():
            if cause := blamed(change, title, name, grown, limits):
                found.setdefault(cause, []).append(_words(name, grown, change.seconds))
        for level, values in change.levels.get(title, {}).items():
            if len(values) == 2 and level in LEVELS and _counts(change, title):
                found.setdefault(LEVELS[level], []).append(_level(level, *values))
        for cause, words in found.items():
            yield _problem(cause, one, title, _seen(one, title, words))
    for event in change.events:
        yield from _event(one, event)


def blamed(change: Change, title: str, counter: str, grown: int, limits: Limits) -> str:
    """The cause that a counter's growth means, or "" where a healthy machine may count as much."""
    rule = RULES.get(counter.partition(".")[0])
    if rule is None or not _counts(change, title):
        return ""
    gbps = change.rates.get(title)
    most = allowed(rule, limits, seconds=change.seconds, gbps=gbps)
    return rule.cause if grown > most else ""


def _counts(change: Change, title: str) -> bool:
    """Whether anybody is blamed for a device: for network interfaces, those that carry the run."""
    return not title.startswith("net ") or title in change.run


def _seen(one: Said, title: str, words: Sequence[str]) -> str:
    """Return the sentence for what a device counted or showed."""
    verb = "was" if len(words) == 1 else "were"
    state = _state(one.change, title)
    return f"{one.when}: {', '.join(words)} {verb} seen on {title} of {one.host}{state}"


def _problem(cause: str, one: Said, title: str, message: str) -> Problem:
    kind, _, name = title.partition(" ")
    return Problem(
        cause=cause,
        message=message,
        host=one.host,
        gpu=name if kind == "gpu" else None,
        nic=name if kind in ("rdma", "net") else None,
    )


def _state(change: Change, title: str) -> str:
    """What a GPU was like when the step had ended."""
    units = dict(zip(STATE, ("C", "W", "MHz"), strict=True))
    known = change.states.get(title, {})
    found = [f"{known[name]:.4g} {unit}" for name, unit in units.items() if name in known]
    return f" (after it {', '.join(found)})" if found else ""


def _event(one: Said, event: tuple[str, ...]) -> Iterator[Problem]:
    title, kind, code, fatal, pci = event if len(event) == 5 else ("", "", "", "", "")
    if kind == "xid" and decimal(code) not in APPLICATION_XIDS:
        where = title or f"the GPU at {pci}"
        yield _problem("gpu-xid", one, where, _seen(one, where, [f"Xid {code}"]))
    elif kind == "sxid" and fatal:
        switch = f"the NVSwitch at {pci}"
        yield _problem("gpu-xid", one, switch, _seen(one, switch, [f"SXid {code} (fatal)"]))


def _words(counter: str, grown: int, seconds: float) -> str:
    """A counter's growth; one that counts nanoseconds, as time."""
    if counter.startswith("limited-"):
        return f"{counter} for {grown / 1e9:.3g} s of {seconds:.3g} s"
    name, _, link = counter.partition(".")
    return f"+{grown} {name}" + (f" on link {link}" if link else "")


def _level(level: str, was: float, now: float) -> str:
    if level == "active":
        return "a link that is no longer active"
    if level == "reasons":
        return f"a clock limited by heat or power supply (clock event reasons 0x{int(now):x})"
    return f"{level} {now:g} instead of {was:g}"


def notes(one: Said, limits: Limits) -> Iterator[str]:
    """What nobody is blamed for, in words."""
    change = one.change
    if change.back:
        yield f"{one.when}: counters of {one.host} went backwards, so somebody reset them: " + (
            ", ".join(change.back[:_SOME])
        )
    for title, grown in change.counters.items():
        words = [
            _words(name, value, change.seconds)
            for name, value in grown.items()
            if not blamed(change, title, name, value, limits)
        ]
        if words:
            yield f"{one.when}: {', '.join(words[:_SOME])} on {title} of {one.host}"
    for event in change.events:
        if len(event) == 5 and not any(_event(one, event)):
            title, kind, code, _, pci = event
            what = "a machine check" if kind == "mce" else f"{kind.title()} {code}"
            yield f"{one.when}: {what} on {title or pci or one.host} of {one.host}"
    if change.cut:
        yield f"{one.when}: {change.cut} more of {one.host} were left out"


def before_the_run(host: str, reading: Reading) -> Iterator[str]:
    """What was bad already, in words: what follows is judged by the change."""
    for device in reading.devices:
        bad = [f"{n} {v:g}" for n, v in device.levels.items() if n.startswith("remap-") and v]
        names = ("ecc-uncorrected-aggregate", "pages-retired-double", "rows-remapped-uncorrected")
        bad += [f"{n} {device.counters[n]}" for n in names if device.counters.get(n)]
        if bad:
            yield f"before the run: {', '.join(bad)} on {device.title} of {host}"
    events = reading.log.events if reading.log else ()
    found = sorted({f"{e.kind.title()} {e.code} at {e.pci}" for e in events if e.kind != "mce"})
    if found:
        yield f"before the run, in the kernel log of {host}: {', '.join(found[:_SOME])}"
