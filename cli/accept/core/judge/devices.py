"""Judge measurements of single GPUs, and find GPUs that are slower than their peers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from accept.core.causes import Cause, Judgement
from accept.core.facts import LEFT_OUT, LOAD, FactKind, Load, shown
from accept.core.judge import bounds
from accept.core.judge.conclusion import conclude
from accept.core.judge.effects.explanation import Normal
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding, problem_of, suspect_of
from accept.core.judge.peers import compare_rows
from accept.core.judge.values import SIGMAS
from accept.core.plan import Bound, BoundKind
from accept.core.records import Problem, Record
from accept.core.table import Execution, Outcome, Row, rows_of
from accept.core.text import host_list, number, shortened
from accept.core.verdict import Finding, State, Strength, Suspect

#: Reasons for a lower clock that are faults -> the cause. A GPU at its power limit is normal. The
#: names are those of `launchers/programs/sampler.py`.
LIMITING_FAULTS = {
    "power-brake": Cause.GPU_THROTTLED,
    "thermal-hardware": Cause.GPU_THROTTLED,
    "application-clocks": Cause.GPU_SETTINGS,
}
#: Share of a rank's samples from which on such a reason counts.
_LIMITED_SHARE = 0.05
#: A clock below this share of the highest one is low. A recorded H100 without a limit stayed within
#: 1 % of its highest clock (tests/data/gpu), and clocks have steps of 15 MHz.
_LOW_CLOCK = 0.95
#: Above the median by more than this, in degrees Celsius, a temperature is unusual.
_WARM = 10.0
#: Fewer samples may all be from the start of a measurement.
_FEWEST_SAMPLES = 4
#: Maximum number of ranks of a host; a record with more is damaged.
_MAX_RANKS = 1024
#: Maximum number of metrics that a note lists as left out.
_MAX_NOTES = 8


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The metrics that a check measures on every device."""

    unit: str
    #: Metrics of speed that the results table shows; higher is better.
    rates: tuple[str, ...]
    #: Counts that are required and must be 0 -> the cause if one is not 0.
    wrong: Mapping[str, Cause]
    #: Other metrics of speed; if one device has them, all must.
    others: tuple[str, ...]
    #: Metrics that every device must have.
    needed: tuple[str, ...]
    #: Metrics that differ between healthy devices; slow is below half of the median.
    uneven: tuple[str, ...] = ()
    #: The metrics among these that the first rank of a host measures for all its GPUs.
    by_first: tuple[str, ...] = ()
    #: The metrics among these without a unit. A fact of the same name has a detail for each.
    shares: tuple[str, ...] = ()

    @property
    def speeds(self) -> tuple[str, ...]:
        """Return the metrics that are compared between devices."""
        return self.rates + self.others + self.uneven


class Device(NamedTuple):
    """One rank of one execution, and what it measured."""

    #: Without a value.
    rank: Row
    values: dict[str, Row]
    #: The state of its GPU during each measurement.
    loads: tuple[Load, ...]
    #: The metrics that its program left out -> the reason.
    left_out: Mapping[str, str]

    @property
    def record(self) -> int:
        """Return the identity of its record."""
        return id(self.rank.execution.record)


def judge_devices(
    evidence: Evidence,
    measured: Measured,
    *,
    noise: float,
    more: Iterable[Problem] = (),
    notes: Iterable[Finding] = (),
) -> Judged:
    """Judge a check of single devices.

    `noise`: noise of healthy devices, if it is larger than that of the machine. `more`, `notes`:
    problems and other findings of the check itself.
    """
    names = {*measured.speeds, *measured.wrong, *measured.needed}
    devices = [one for e in evidence.executions for one in _devices(e, evidence.check, names)]
    found = {name for device in devices for name in device.values}
    required = {*measured.needed, *measured.wrong, *found.intersection(measured.speeds)}
    lacking = list(_lacking(evidence, measured, devices, required))
    complete = {one.record for one in devices} - {one.record for one, _ in lacking}
    bounded = bounds.findings(evidence)
    clocks, findings = _clocks(devices)
    suspects: list[Suspect] = []
    promised = evidence.plan.machine.speed_promised
    # Without a speed target, ranks share the cores and the memory of their host.
    if promised:
        noise = max(noise, evidence.plan.machine.noise)
        population, suspects = _compare(evidence, measured, devices, noise)
        findings += [population, *_without_measurement(evidence, measured, bounded), *notes]
    reasons = dict.fromkeys(r for record in evidence.records for r in _reasons(evidence, record))
    if reasons:
        texts = [f"{name}: {why}" for name, why in reasons]
        text = f"not measured: {shortened(texts, _MAX_NOTES, '; ')}"
        findings.append(finding(evidence.check, Judgement.COMPLETENESS, State.PASS, text))
    return conclude(
        evidence,
        problems=[
            *more,
            *_wrong(devices, measured),
            *_unexplained(evidence, lacking),
            *clocks,
        ],
        findings=findings,
        suspects=suspects,
        outcomes=dict.fromkeys(complete, Outcome.OK),
        bounded=bounded,
        measured=_measured_text(evidence, measured, devices),
        required="results correct" + ("" if promised else "; no speed target"),
    )


# Measurements of each device


def _devices(execution: Execution, check: str, names: Collection[str]) -> Iterator[Device]:
    """Yield every rank that the execution should have, even if it measured nothing."""
    record = execution.record
    gpus = {p.rank: p.gpu for p in record.problems if p.gpu}
    values: dict[int, dict[str, Row]] = {rank: {} for rank in range(min(record.ranks, _MAX_RANKS))}
    for row in rows_of(execution, check, names):
        if row.rank is not None and row.rank in values:
            gpus |= {row.rank: row.gpu} if row.gpu else {}
            # A speed must be above 0; other values are damaged.
            if row.is_plausible and ((row.value or 0.0) > 0 or row.unit in ("count", "")):
                values[row.rank][row.metric] = row
    loads = [(fact.rank, load) for fact, load in LOAD.of(record) if fact.check == check]
    left = [(fact.rank, own) for fact, own in LEFT_OUT.of(record) if fact.check == check]
    host = record.hosts[0] if record.hosts else ""
    for rank, own in values.items():
        yield Device(
            Row(check, execution, host=host, rank=rank, gpu=gpus.get(rank)),
            own,
            tuple(load for at, load in loads if at == rank),
            {name: why for at, reasons in left if at == rank for name, why in reasons.items()},
        )


def _problem(cause: Cause, device: Device, predicate: str) -> Problem:
    """Return a problem of a device; `predicate` is the sentence without its subject, the device."""
    return problem_of(device.rank, cause, f"{device.rank.device} {predicate}")


def _wrong(devices: Iterable[Device], measured: Measured) -> Iterator[Problem]:
    """Yield the devices that count wrong results and have no problem for them yet."""
    for device in devices:
        of = device.rank
        known = {p.cause for p in of.execution.record.problems if p.rank == of.rank}
        for name, cause in measured.wrong.items():
            wrong = device.values[name].value if name in device.values else None
            explained = any(c in (cause, Cause.WRONG_DATA) or c.row.wrong_numbers for c in known)
            if wrong and not explained:
                yield _problem(cause, device, f"computed wrong elements: {name} {number(wrong)}")


def _lacking(
    evidence: Evidence, measured: Measured, devices: Sequence[Device], required: set[str]
) -> Iterator[tuple[Device, list[str]]]:
    """Yield the ranks that lack required metrics, and these metrics."""
    own = required.difference(measured.by_first)
    # Records whose first rank could not measure for its host, or gave a reason for it.
    without_first = {
        one.record for one in devices if one.rank.rank == 0 and not own <= one.values.keys()
    }
    for record in evidence.records:
        names = {name for name, _ in _reasons(evidence, record)}
        if names.intersection(measured.by_first) or any(p.rank == 0 for p in record.problems):
            without_first.add(id(record))
    for device in devices:
        wanted = own if device.record in without_first else required
        excused = device.left_out.keys() & {*measured.uneven}
        if lacking := wanted - device.values.keys() - excused:
            yield device, sorted(lacking)


def _unexplained(
    evidence: Evidence, lacking: Iterable[tuple[Device, list[str]]]
) -> Iterator[Problem]:
    """Yield the incomplete devices, unless their record explains what is missing."""
    measured = any(record.metrics for record in evidence.records)
    for device, names in lacking:
        execution, rank = device.rank.execution, device.rank.rank
        explained = any(p.rank in (None, rank) for p in execution.problems(evidence.check))
        if not explained and execution.record.exit is not None:
            missing = f"no {', '.join(names[:4])}" if measured else "nothing"
            yield _problem(Cause.NO_MEASUREMENT, device, f"measured {missing}")


def _without_measurement(
    evidence: Evidence, measured: Measured, bounded: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield findings on bounds without a measurement, and one if no bound applied at all."""
    if evidence.partial or not evidence.records:
        return
    known = {metric.name for record in evidence.records for metric in record.metrics}
    known |= {name for record in evidence.records for name, _ in _reasons(evidence, record)}
    check = evidence.check
    if not any(f.cause is not Cause.NO_MEASUREMENT for f in bounded):
        name = measured.needed[0]
        values = [m.value for record in evidence.records for m in record.metrics if m.name == name]
        lowest = min(values, default=0.0)
        example = bounds.example(f"{check}.{name}", lowest) if lowest > 0 else ""
        yield bounds.no_bound_finding(check, example)
    for bound in bounds.bounds_of(evidence):
        if bound.kind is not BoundKind.EXPECTATION and bound.metric not in known:
            yield bounds.unmeasured_finding(check, bound)


def _reasons(evidence: Evidence, record: Record) -> Iterator[tuple[str, str]]:
    """Yield the metrics that a program left out in one launch, and its reason."""
    for fact, reasons in LEFT_OUT.of(record):
        if fact.check == evidence.check:
            yield from reasons.items()


def _measured_text(evidence: Evidence, measured: Measured, devices: Sequence[Device]) -> str:
    """Return the value of the slowest device for each rate."""
    parts = []
    unit = "GPUs" if any(device.rank.gpu for device in devices) else "ranks"
    for name in measured.rates:
        if rows := [d.values[name] for d in devices if name in d.values]:
            worst = min(rows, key=lambda row: row.value or 0.0)
            slowest = f"slowest of {len(rows)} {unit}{bounds.peak_share(evidence, worst)}"
            parts.append(f"{name} {number(worst.value or 0.0)} {measured.unit} ({slowest})")
    return "; ".join(parts[:4])


# Clocks


def _clocks(devices: Sequence[Device]) -> tuple[list[Problem], list[Finding]]:
    """Return the devices whose clock a fault limited, or that was low for no reason, and a note.

    A setting that at least half of the devices have is one of the site: it is only noted.
    """
    found = [*_limited_clocks(devices), *_low_clocks(devices)]
    settings = sum(problem.cause is Cause.GPU_SETTINGS for problem in found)
    shared = 2 * settings >= len(devices)
    low = [own for device in devices if (own := [*filter(_is_low, device.loads)])]
    notes = []
    if low and 2 * len(low) >= len(devices):
        clocks = [load.medians["MHz"] for own in low for load in own]
        text = f"{len(low)} of {len(devices)} devices had clocks of {number(min(clocks))} to "
        text += f"{number(max(clocks))} MHz under load without a reason, and their highest is "
        text += f"{number(low[0][0].highest_clock)}: clocks may be locked (`nvidia-smi -rgc`)"
        notes = [finding(devices[0].rank.check, Judgement.CONSISTENCY, State.PASS, text)]
    return [p for p in found if not (shared and p.cause is Cause.GPU_SETTINGS)], notes


def _limited_clocks(devices: Iterable[Device]) -> Iterator[Problem]:
    for device in devices:
        samples = sum(load.samples for load in device.loads)
        for reason, cause in LIMITING_FAULTS.items():
            limited = sum(load.samples * load.limited.get(reason, 0.0) for load in device.loads)
            # A single sample in a short measurement may be chance.
            if limited > 1 and limited >= _LIMITED_SHARE * samples:
                share = f"{limited / samples:.0%} of {samples} samples"
                yield _problem(cause, device, f"had a clock limited by {reason} in {share}")


def _low_clocks(devices: Sequence[Device]) -> Iterator[Problem]:
    """Yield the devices with a lower clock than most, and than their highest, for no reason.

    NVML can set and reset locked clocks (`nvidia-smi -lgc`), but not report them. They are not the
    application clocks, and limit a GPU without one of the reasons that it reports.
    """
    clocks: dict[str, list[float]] = {}
    for load in (load for device in devices for load in device.loads if "MHz" in load.medians):
        clocks.setdefault(load.type, []).append(load.medians["MHz"])
    usual = {kind: median(own) for kind, own in clocks.items() if len(own) >= FEWEST}
    for device in devices:
        for load in filter(_is_low, device.loads):
            most = usual.get(load.type, 0.0)
            if load.medians["MHz"] < _LOW_CLOCK * most:
                text = f"had a clock of {number(load.medians['MHz'])} MHz under load ({load.type}) "
                text += f"without a reason; the median is {number(most)}, its highest "
                text += f"{number(load.highest_clock)}, and {_LOW_CLOCK:.0%} of both are required; "
                text += "locked clocks? `nvidia-smi -rgc` releases them"
                yield _problem(Cause.GPU_SETTINGS, device, text)
                break


def is_unusual(value: float, usual: float, unit: str) -> bool:
    """Return True for a clock or a temperature under load that is unlike most, and not a fault."""
    return value < _LOW_CLOCK * usual if unit == "MHz" else value > usual + _WARM


def _is_low(load: Load) -> bool:
    """Return True if a clock was below the GPU's highest, and no reason limited it."""
    limited = max(load.limited.values(), default=0.0) >= _LIMITED_SHARE
    clock = load.medians.get("MHz", load.highest_clock)
    low = clock < _LOW_CLOCK * load.highest_clock
    return low and not limited and load.samples >= _FEWEST_SAMPLES


# Comparison with peers


def _compare(
    evidence: Evidence, measured: Measured, devices: Sequence[Device], noise: float
) -> tuple[Finding, list[Suspect]]:
    """Return the finding on, and suspects for, devices slower than their peers or below a bound."""
    slow: dict[tuple[str | None, int | None], list[tuple[Cause, str, str]]] = {}
    normals: dict[str, Normal] = {}
    most = 0
    for name in measured.speeds:
        rows = [device.values[name] for device in devices if name in device.values]
        most = max(most, len(rows))
        bound = bounds.lowest_of_devices(evidence, name)
        bad, normal = compare_rows(rows, noise, bound, uneven=name in measured.uneven)
        normals |= {name: normal} if normal else {}
        for outlier in bad:
            row = outlier.row
            text = f"{name} {number(row.value or 0.0)}{_unit(row, measured)}"
            text += f", {outlier.text}" if outlier.text else ""
            slow.setdefault((row.host, row.rank), []).append((outlier.cause, name, text))
    latest = {(device.rank.host, device.rank.rank): device for device in devices}
    suspects = [_suspect(latest[key], reasons) for key, reasons in slow.items()]
    return _population(evidence, measured, normals, most, suspects), suspects


def _unit(row: Row, measured: Measured) -> str:
    """Return the unit of a value; for a metric without one, the detail in the device's fact."""
    if row.metric not in measured.shares:
        return f" {measured.unit}"
    details = FactKind(row.metric, shown).of(row.execution.record)
    own = [detail for fact, detail in details if fact.rank == row.rank]
    return f" ({own[-1][:60]})" if own else ""


def _suspect(device: Device, slow: Sequence[tuple[Cause, str, str]]) -> Suspect:
    """Return a slow device; `slow`: cause, metric and a text for each slow measurement."""
    names = [name for _, name, _ in slow]
    why = f"{device.rank.check}: {'; '.join([text for _, _, text in slow[:3]])}"
    # Slow only while its neighbors work?
    kinds = {name.removesuffix("-p5") for name in names if not name.endswith("-alone")}
    alone = {f"{kind}-alone" for kind in kinds} & device.values.keys()
    if device.rank.gpu and alone and not alone.intersection(names):
        why += "; alone it is as fast as the others: heat or power while the full host works"
    # The reasons for a lower clock meanwhile, as far as it reported them.
    for load in device.loads:
        parts = [f"{reason} {share:.0%} of the time" for reason, share in load.limited.items()]
        parts += [f"{number(median)} {unit}" for unit, median in load.medians.items()]
        if parts and any(name.startswith(load.type) for name in names):
            why += f"; meanwhile {', '.join(parts[:6])}"
            break
    return suspect_of(device.rank, slow[0][0], Strength.STRONG, why)


def _population(
    evidence: Evidence,
    measured: Measured,
    normals: Mapping[str, Normal],
    most: int,
    suspects: Sequence[Suspect],
) -> Finding:
    """Return the finding on the comparison; `most`: the most devices that have one metric."""
    first = next(iter(normals.values()), None)
    values = ", ".join(
        f"{name} {number(peers.value)} (none below {1 - SIGMAS * peers.sigma:.0%})"
        for name, peers in list(normals.items())[:8]
    )
    text = f"{most} devices: too few to compare ({FEWEST} needed)"
    if first:
        text = f"{first.hosts} devices, normal values in {measured.unit}: {values}"
    if suspects:
        names = host_list([suspect.name for suspect in suspects])
        text = f"{names}: {suspects[0].why}"
    source = f"normal value of {first.hosts} in this run" if first else ""
    return finding(
        evidence.check,
        Judgement.POPULATION,
        State.FAIL if suspects else State.PASS,
        text,
        suspects[0].cause if suspects else None,
        bound=Bound(kind=BoundKind.POPULATION, source=source) if first and suspects else None,
        hosts=(host for s in suspects for host in s.hosts),
        logs=(log for s in suspects for log in s.evidence),
    )
