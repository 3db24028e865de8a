"""Judge what changed on each host between two readings of its GPUs, links and NICs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
)
from accept.core.judge.findings import Problems
from accept.core.judge.health_rules import (
    APPLICATION_XIDS,
    INTENDED_LINK_DOWN,
    JUDGED,
    LEVELS,
    RULES,
    Limits,
    allowed,
    is_worse,
    level_text,
)
from accept.core.plan import Step
from accept.core.records import Problem, Record
from accept.core.text import decimal, plain, shortened

#: Maximum number of names in one note.
_MAX_NAMED = 6
#: Kind of a device -> the cause that its disappearance indicates.
_GONE: dict[DeviceKind | None, Cause] = {
    DeviceKind.GPU: Cause.GPU_MISSING,
    DeviceKind.RDMA: Cause.LINK_DOWN,
}

#: A cause, and what shows it.
Fault = tuple[Cause, str]


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


def examine(sweep: Sweep, limits: Limits, *, gpus: bool) -> Problems:
    """Return what the changes of a host show; `gpus`: its machine has GPUs."""
    host, change = sweep.host, sweep.change
    unclear = [
        problem
        for title, names in change.vanished.items()
        if gpus
        for problem in unreported(sweep.when, host, title, set(names))
    ]
    problems: list[Problem] = []
    #: Device -> what its counters show that accuses nothing.
    noted: dict[str, list[str]] = {}
    if change.rebooted and not sweep.total:
        problems.append(Problem(cause=Cause.HOST_DIED, message=f"{sweep.when}: reboot", host=host))
    for title in {
        **change.counters,
        **change.levels,
        **change.errors,
        **dict.fromkeys(change.gone),
    }:
        kind, _ = DeviceId.of(title)
        judged = kind is not DeviceKind.NET or title in change.run
        faults = list(driver_faults(change.errors.get(title, ())))
        if title in change.gone and kind in _GONE:
            faults.append((_GONE[kind], "disappeared"))
        for name, grown in change.counters.get(title, {}).items():
            rule, text = (
                RULES.get(name.partition(".")[0]),
                _growth_text(name, grown, change.seconds),
            )
            rate = change.rates.get(title)
            if rule is None or not judged:
                noted.setdefault(title, []).append(text)
            elif grown > allowed(rule, limits, seconds=change.seconds, gbps=rate):
                faults.append((rule.cause, text))
            else:
                noted.setdefault(title, []).append(text)
        faults += [
            (LEVELS[level].cause, level_text(level, *values))
            for level, values in change.levels.get(title, {}).items()
            if judged and len(values) == 2 and is_worse(level, *values, limits)
        ]
        problems += () if sweep.total else problems_of(sweep.when, host, title, faults, change)
    notes = [
        f"{sweep.when}: {', '.join(texts[:_MAX_NAMED])} on {title} of {host}"
        for title, texts in noted.items()
    ]
    for event in (event for event in change.events if len(event) == 5):
        where, fault, text = _event(*event)
        if fault is None:
            notes.append(f"{sweep.when}: {text} on {where or host} of {host}")
        elif not sweep.total:
            problems += problems_of(sweep.when, host, where, [(fault, text)], change)
    if change.back:
        names = shortened(change.back, _MAX_NAMED)
        notes.append(
            f"{sweep.when}: counters of {host} went backwards (reset by another program): {names}"
        )
    if change.cut:
        notes.append(f"{sweep.when}: {change.cut} more changes of {host} are not listed")
    return Problems(problems, unclear, notes)


def _event(title: str, kind: str, code: str, fatal: str, pci: str) -> tuple[str, Cause | None, str]:
    """Return the device of an event, the cause that it indicates (None: no fault), and a text."""
    of = "NVSwitch" if kind == "sxid" else "GPU"
    where = title or (f"the {of} at {pci}" if pci else "")
    number = decimal(code)
    if kind == "lost":
        cause = driver_cause(number or 0)
        reset = cause is Cause.GPU_RESET_REQUIRED
        return where or "a GPU", cause, "needs a reset" if reset else "lost by the driver"
    if kind == "oom":
        process = f"process {code} ({plain(title, 64)})"
        return process, Cause.OUT_OF_MEMORY, "killed because memory ran out"
    if kind == "crash":
        return "the kernel", Cause.KERNEL_CRASHED, f"crashed ({plain(title, 80)})"
    if kind == "sxid":
        where = f"the NVSwitch at {pci}"
    is_fault = kind == "sxid" and bool(fatal)
    if kind == "xid":
        is_fault = number not in APPLICATION_XIDS and bool(fatal or number != INTENDED_LINK_DOWN)
    text = "a machine check" if kind == "mce" else f"{kind.title()} {code}"
    return where, Cause.GPU_XID if is_fault else None, text


def _growth_text(counter: str, grown: int, seconds: float) -> str:
    """Return the growth of a counter, in seconds for counters of nanoseconds."""
    if counter.startswith("limited-"):
        return f"{counter} for {grown / 1e9:.3g} s of {seconds:.3g} s"
    name, _, link = counter.partition(".")
    return f"+{grown} {name}" + (f" on link {link}" if link else "")


# Problems of devices, at any time


def problems_of(
    when: str, host: str, title: str, faults: Iterable[Fault], change: Change | None = None
) -> Iterator[Problem]:
    """Yield one problem for each cause of a device with a title of `Device.title`."""
    by_cause: dict[Cause, list[str]] = {}
    for cause, text in faults:
        by_cause.setdefault(cause, []).append(text)
    state = change.states.get(title, {}) if change else {}
    values = [f"{state[name]:.4g} {unit}" for name, unit in STATE.items() if name in state]
    after = f" (after it {', '.join(values)})" if values else ""
    kind, name = DeviceId.of(title)
    for cause, texts in by_cause.items():
        yield Problem(
            cause=cause,
            message=f"{when}: {', '.join(texts)}: {title} of {host}{after}",
            host=host,
            gpu=name if kind is DeviceKind.GPU else None,
            nic=name if kind in (DeviceKind.RDMA, DeviceKind.NET) else None,
        )


def unreported(when: str, host: str, title: str, missing: set[str]) -> Iterator[Problem]:
    """Yield a problem if a GPU lacks readings that rules judge; those of missing links are none."""
    links = "nvlinks" in missing
    names = sorted(n for n in JUDGED & missing if not (links and n.startswith("nvlink-")))
    if names:
        text = f"not reported: {', '.join(names)}"
        yield from problems_of(when, host, title, [(Cause.GPU_UNREPORTED, text)])


def driver_faults(errors: Iterable[DriverError]) -> Iterator[Fault]:
    """Yield the cause and a text for each error that the driver reports for a GPU."""
    for error in errors:
        names = shortened([plain(name, 40) for name in error.readings], 3)
        text = f"the driver error {plain(error.words, 80)!r} (NVML {error.code}: {names})"
        yield driver_cause(error.code), text
