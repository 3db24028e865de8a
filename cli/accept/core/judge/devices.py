"""Judge measurements of single GPUs, and find GPUs that are slower than their peers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from accept.core.causes import Cause, Judgement
from accept.core.facts import LEFT_OUT, LOAD, FactKind, Load, shown
from accept.core.judge import bounds, completeness
from accept.core.judge.effects.explanation import Normal
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.peers import Peer, compare_peers
from accept.core.judge.rounds import FEWEST, SIGMAS
from accept.core.judge.summary import verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import (
    Bound,
    BoundKind,
    Finding,
    Problem,
    Record,
    State,
    Strength,
    Suspect,
    SuspectKind,
)
from accept.core.table import Execution, Outcome, Row, rows_of
from accept.core.text import number

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


#: A row for one rank of one execution, without a value, and the rows of its metrics.
Device = tuple[Row, dict[str, Row]]


@dataclass(kw_only=True)
class _Slow:
    """The metrics in which a device is slow, and a text for each."""

    cause: Cause
    texts: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)


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
    judged = {
        *measured.rates,
        *measured.wrong,
        *measured.others,
        *measured.needed,
        *measured.uneven,
    }
    devices = [one for e in evidence.executions for one in _devices(e, evidence.check, judged)]
    names = {metric.name for record in evidence.records for metric in record.metrics}
    found = {name for _, values in devices for name in values}
    required = {*measured.needed, *measured.wrong, *found.intersection(measured.others)}
    required |= found.intersection((*measured.rates, *measured.uneven))
    incomplete = list(_incomplete(evidence, measured, devices, required))
    problems = [*more, *_wrong(devices, measured), *_unexplained(evidence, incomplete, names)]
    problems += limited_clocks(devices, evidence.check)
    complete = {_record(rank) for rank, _ in devices} - {_record(rank) for rank, _ in incomplete}
    outcomes = dict.fromkeys(complete, Outcome.OK)
    findings = completeness.step_findings(evidence)
    findings += completeness.problem_findings(evidence, outcomes=outcomes, more=problems)
    bound_findings = bounds.findings(evidence)
    findings += bound_findings
    findings += _locked_everywhere(devices, evidence.check)
    suspects = list(from_problems(problems, "", len(evidence.hosts)))
    promised = evidence.plan.machine.speed_promised
    # Without a speed target, ranks share the cores and the memory of their host.
    if promised:
        noise = max(noise, evidence.plan.machine.noise)
        peer_findings, slow = _compare(evidence, measured, devices, noise)
        suspects += slow
        findings += peer_findings
        findings += _without_measurement(evidence, measured, names, bound_findings)
        findings += notes
    findings += _left_out(evidence)
    criteria = ["results correct", *([] if promised else ["no speed target"])]
    criteria += bounds.sources(bound_findings)
    verdict = verdict_of(
        evidence,
        findings,
        measured=_measured_text(evidence, measured, devices),
        required="; ".join(criteria),
    )
    return Judged(verdict, tuple(suspects))


# Measurements of each device


def _devices(execution: Execution, check: str, names: Collection[str]) -> Iterator[Device]:
    """Yield every rank that the execution should have, even if it measured nothing."""
    record = execution.record
    gpus: dict[int, str | None] = {}
    values: dict[int, dict[str, Row]] = {rank: {} for rank in range(min(record.ranks, _MAX_RANKS))}
    for row in rows_of(execution, check, names):
        if row.rank is not None and row.rank in values:
            gpus[row.rank] = row.gpu or gpus.get(row.rank)
            if _is_plausible(row):
                values[row.rank][row.metric] = row
    for problem in record.problems:
        if problem.rank in values and problem.gpu:
            gpus.setdefault(problem.rank, problem.gpu)
    host = record.hosts[0] if record.hosts else ""
    for rank, own in values.items():
        yield Row(check, execution, host=host, rank=rank, gpu=gpus.get(rank)), own


def _is_plausible(row: Row) -> bool:
    """Return True unless a value is damaged: a speed must be above 0."""
    return row.is_plausible and ((row.value or 0.0) > 0 or row.unit in ("count", ""))


def _record(row: Row) -> int:
    return id(row.execution.record)


def _problem(cause: Cause, rank: Row, predicate: str) -> Problem:
    """Return a problem of a device; `predicate` is the sentence without its subject, the device."""
    message = f"{rank.device} {predicate}"
    return Problem(cause=cause, message=message, host=rank.host, rank=rank.rank, gpu=rank.gpu)


def _wrong(devices: Sequence[Device], measured: Measured) -> Iterator[Problem]:
    """Yield the devices that count wrong results and have no problem for them yet."""
    for rank, values in devices:
        known = {p.cause for p in rank.execution.record.problems if p.rank == rank.rank}
        for name, cause in measured.wrong.items():
            count = values[name].value if name in values else None
            explained = any(c in (cause, Cause.WRONG_DATA) or c.row.wrong_numbers for c in known)
            if count and not explained:
                elements = "1 wrong element" if count == 1 else f"{number(count)} wrong elements"
                yield _problem(cause, rank, f"computed {elements} ({name})")


def limited_clocks(devices: Sequence[Device], check: str) -> Iterator[Problem]:
    """Yield the devices whose clock was limited by a fault during their measurements.

    A setting that at least half of the devices have is one of the site.
    """
    ranks = [rank for rank, _ in devices]
    found = [*_limited_clocks(ranks, check), *_low_clocks(ranks, check)]
    settings = sum(problem.cause is Cause.GPU_SETTINGS for problem in found)
    shared = 2 * settings >= len(devices)
    yield from (p for p in found if not (shared and p.cause is Cause.GPU_SETTINGS))


def _loads(rank: Row, check: str) -> list[Load]:
    return [
        load
        for fact, load in LOAD.of(rank.execution.record)
        if (fact.check, fact.rank) == (check, rank.rank)
    ]


def _limited_clocks(ranks: Iterable[Row], check: str) -> Iterator[Problem]:
    for rank in ranks:
        loads = _loads(rank, check)
        samples = sum(load.samples for load in loads)
        for reason, cause in LIMITING_FAULTS.items():
            limited = sum(load.samples * load.limited.get(reason, 0.0) for load in loads)
            # A single sample in a short measurement may be chance.
            if limited > 1 and limited >= _LIMITED_SHARE * samples:
                share = limited / samples
                predicate = f"had a clock limited by {reason} in {share:.0%} of {samples} samples"
                yield _problem(cause, rank, predicate)


def _low_clocks(ranks: Sequence[Row], check: str) -> Iterator[Problem]:
    """Yield the devices with a lower clock than most, and than their highest, for no reason.

    NVML can set and reset locked clocks (`nvidia-smi -lgc`), but not report them. They are not the
    application clocks, and limit a GPU without one of the reasons that it reports.
    """
    loads = [(rank, load) for rank in ranks for load in _loads(rank, check)]
    clocks: dict[str, list[float]] = {}
    for _, load in loads:
        if "MHz" in load.medians:
            clocks.setdefault(load.type, []).append(load.medians["MHz"])
    named: set[int] = set()
    for rank, load in loads:
        own = clocks.get(load.type, [])
        if len(own) < FEWEST or not _is_low(load) or id(rank) in named:
            continue
        clock, usual = load.medians["MHz"], median(own)
        if clock < _LOW_CLOCK * usual:
            named.add(id(rank))
            text = (
                f"had a clock of {number(clock)} MHz under load ({load.type}) without a reason in "
            )
            text += f"{load.samples} samples: the median of {len(own)} is {number(usual)}, its "
            text += f"highest {number(load.highest_clock)}, and {_LOW_CLOCK:.0%} of both are "
            text += "required; locked clocks? `nvidia-smi -rgc` releases them"
            yield _problem(Cause.GPU_SETTINGS, rank, text)


def _is_low(load: Load) -> bool:
    """Return True if a clock was below the GPU's highest, and no reason limited it."""
    limited = max(load.limited.values(), default=0.0) >= _LIMITED_SHARE
    clock = load.medians.get("MHz", load.highest_clock)
    low = clock < _LOW_CLOCK * load.highest_clock
    return low and not limited and load.samples >= _FEWEST_SAMPLES


def _locked_everywhere(devices: Sequence[Device], check: str) -> Iterator[Finding]:
    """Yield a note if at least half of the devices had a low clock for no reason."""
    low = [load for rank, _ in devices for load in _loads(rank, check) if _is_low(load)]
    ranks = sum(any(map(_is_low, _loads(rank, check))) for rank, _ in devices)
    if low and 2 * ranks >= len(devices):
        clocks = [load.medians["MHz"] for load in low]
        text = f"{ranks} of {len(devices)} devices had clocks of {number(min(clocks))} to "
        text += f"{number(max(clocks))} MHz under load without a reason, and their highest is "
        text += f"{number(low[0].highest_clock)}: clocks may be locked (`nvidia-smi -rgc`)"
        yield Finding(check=check, judgement=Judgement.CONSISTENCY, state=State.PASS, message=text)


def _incomplete(
    evidence: Evidence, measured: Measured, devices: Sequence[Device], required: Collection[str]
) -> Iterator[tuple[Row, list[str]]]:
    """Yield the ranks that lack required metrics, and these metrics."""
    own = set(required).difference(measured.by_first)
    # Records whose first rank could not measure for its host, or gave a reason for it.
    without_first = {
        _record(rank) for rank, values in devices if rank.rank == 0 and not own <= values.keys()
    }
    for record in evidence.records:
        names = {name for name, _ in _reasons(evidence, record)}
        if names.intersection(measured.by_first) or any(p.rank == 0 for p in record.problems):
            without_first.add(id(record))
    for rank, values in devices:
        wanted = own if _record(rank) in without_first else required
        excused = {
            name
            for fact, reasons in LEFT_OUT.of(rank.execution.record)
            if (fact.check, fact.rank) == (evidence.check, rank.rank)
            for name in reasons
        }
        lacking = set(wanted) - values.keys() - excused.intersection(measured.uneven)
        if lacking:
            yield rank, sorted(lacking)


def _unexplained(
    evidence: Evidence, incomplete: Iterable[tuple[Row, list[str]]], names: Collection[str]
) -> Iterator[Problem]:
    """Yield the incomplete devices, unless their record explains what is missing."""
    for rank, lacking in incomplete:
        problems = rank.execution.problems(evidence.check)
        explained = any(p.rank in (None, rank.rank) for p in problems)
        if not explained and rank.execution.record.exit is not None:
            missing = f"no {', '.join(lacking[:4])}" if names else "nothing"
            yield _problem(Cause.NO_MEASUREMENT, rank, f"measured {missing}")


def _without_measurement(
    evidence: Evidence,
    measured: Measured,
    names: Collection[str],
    bound_findings: Sequence[Finding],
) -> Iterator[Finding]:
    """Yield findings on bounds without a measurement, and one if no bound applied at all."""
    if evidence.partial or not evidence.records:
        return
    excused = {name for record in evidence.records for name, _ in _reasons(evidence, record)}
    if not any(f.cause is not Cause.NO_MEASUREMENT for f in bound_findings):
        rate = measured.needed[0]
        check = evidence.check
        yield bounds.no_bound_finding(check, f"{check}.{rate}>={measured.unit}")
    for bound in bounds.bounds_of(evidence):
        if bound.kind is not BoundKind.EXPECTATION and bound.metric not in {*names, *excused}:
            yield bounds.unmeasured_finding(evidence.check, bound)


def _reasons(evidence: Evidence, record: Record) -> Iterator[tuple[str, str]]:
    """Yield the metrics that a program left out in one launch, and its reason."""
    for fact, reasons in LEFT_OUT.of(record):
        if fact.check == evidence.check:
            yield from reasons.items()


def _left_out(evidence: Evidence) -> list[Finding]:
    """Return a note on the metrics that programs left out."""
    reasons = dict.fromkeys(r for record in evidence.records for r in _reasons(evidence, record))
    if not reasons:
        return []
    text = "; ".join(f"{name}: {why}" for name, why in list(reasons)[:_MAX_NOTES])
    message = f"not measured: {text}"
    return [
        Finding(
            check=evidence.check,
            judgement=Judgement.COMPLETENESS,
            state=State.PASS,
            message=message,
        )
    ]


def _measured_text(evidence: Evidence, measured: Measured, devices: Sequence[Device]) -> str:
    """Return the value of the slowest device for each rate."""
    parts = []
    for name in measured.rates:
        values = [own[name].value or 0.0 for _, own in devices if name in own]
        if not values:
            continue
        unit = "GPUs" if any(rank.gpu for rank, _ in devices) else "ranks"
        peak = bounds.peak(evidence, evidence.hosts[:1], name, 0)
        share = f", {min(values) / peak[0]:.0%} of the peak" if peak else ""
        slowest = f"slowest of {len(values)} {unit}{share}"
        parts.append(f"{name} {number(min(values))} {measured.unit} ({slowest})")
    return "; ".join(parts[:4])


# Comparison with peers


def _compare(
    evidence: Evidence, measured: Measured, devices: Sequence[Device], noise: float
) -> tuple[list[Finding], list[Suspect]]:
    """Return findings on, and suspects for, devices slower than their peers or below a bound."""
    slow: dict[tuple[str | None, int | None], _Slow] = {}
    spreads: list[tuple[str, Normal | None, int]] = []
    for name in (*measured.rates, *measured.others, *measured.uneven):
        with_metric = [(rank, values[name]) for rank, values in devices if name in values]
        if not with_metric:
            continue
        bound = bounds.highest_lower_bound(evidence, 1, name)
        peers = [
            Peer(f"{rank.host} {rank.rank}", row.value, log=row.log) for rank, row in with_metric
        ]
        found = compare_peers(peers, noise, bound, uneven=name in measured.uneven)
        spreads.append((name, found.normal, len(with_metric)))
        for outlier in found.bad:
            rank, row = with_metric[outlier.at]
            reasons = slow.setdefault((rank.host, rank.rank), _Slow(cause=outlier.cause))
            reasons.metrics.append(name)
            share = f", {outlier.text}" if outlier.text else ""
            value = f"{name} {number(row.value or 0.0)}{_unit(row, measured)}"
            reasons.texts.append(f"{value}{share}")
    latest = {(rank.host, rank.rank): (rank, values) for rank, values in devices}
    suspects = [_suspect(evidence, latest[key], reasons) for key, reasons in slow.items()]
    return [_population(evidence, measured, spreads, suspects)], suspects


def _unit(row: Row, measured: Measured) -> str:
    """Return the unit of a value; for a metric without one, the detail in the device's fact."""
    if row.metric not in measured.shares:
        return f" {measured.unit}"
    details = FactKind(row.metric, shown).of(row.execution.record)
    own = [detail for fact, detail in details if fact.rank == row.rank]
    return f" ({own[-1][:60]})" if own else ""


def _suspect(evidence: Evidence, device: Device, slow: _Slow) -> Suspect:
    rank, _ = device
    texts = "; ".join(slow.texts[:3]) + _only_together(device, slow.metrics)
    return Suspect(
        kind=SuspectKind.GPU if rank.gpu else SuspectKind.NODE,
        hosts=(rank.host or "",),
        device=rank.gpu or None,
        cause=slow.cause,
        strength=Strength.STRONG,
        why=f"{evidence.check}: {texts}{_throttling(rank, slow.metrics)}",
        evidence=(rank.log,) if rank.log else (),
    )


def _only_together(device: Device, slow: Sequence[str]) -> str:
    """Return the explanation of a GPU that is slow only while its neighbors work; else ""."""
    rank, values = device
    if not rank.gpu:
        return ""
    kinds = {name.removesuffix("-p5") for name in slow if not name.endswith("-alone")}
    alone = [kind for kind in kinds if f"{kind}-alone" in values]
    if not alone or any(f"{kind}-alone" in slow for kind in kinds):
        return ""
    return "; alone it is as fast as the others: heat or power while the full host works"


def _throttling(rank: Row, slow: Sequence[str]) -> str:
    """Return why the GPU limited its clock in a slow measurement, as far as it reported it."""
    for fact, load in LOAD.of(rank.execution.record):
        if fact.rank != rank.rank or not any(name.startswith(load.type) for name in slow):
            continue
        parts = [f"{reason} {share:.0%} of the time" for reason, share in load.limited.items()]
        parts += [f"{number(median)} {unit}" for unit, median in load.medians.items()]
        if parts:
            return f"; meanwhile {', '.join(parts[:6])}"
    return ""


def _population(
    evidence: Evidence,
    measured: Measured,
    spreads: Sequence[tuple[str, Normal | None, int]],
    suspects: Sequence[Suspect],
) -> Finding:
    if suspects:
        names = completeness.host_list([suspect.name for suspect in suspects])
        first = next((peers for _, peers, _ in spreads if peers), None)
        source = f"normal value of {first.hosts} in this run" if first else ""
        return Finding(
            check=evidence.check,
            judgement=Judgement.POPULATION,
            state=State.FAIL,
            cause=suspects[0].cause,
            message=f"{names}: {suspects[0].why}",
            bound=Bound(kind=BoundKind.POPULATION, source=source) if first else None,
            hosts=tuple(dict.fromkeys(host for s in suspects for host in s.hosts)),
            evidence=tuple(dict.fromkeys(log for s in suspects for log in s.evidence))[:8],
        )
    compared = [(name, peers) for name, peers, _ in spreads if peers]
    if compared:
        values = ", ".join(
            f"{name} {number(peers.value)} (none below {1 - SIGMAS * peers.sigma:.0%})"
            for name, peers in compared[:8]
        )
        text = f"{compared[0][1].hosts} devices, normal values in {measured.unit}: {values}"
    else:
        count = max((count for _, _, count in spreads), default=0)
        text = f"{count} devices: too few to compare ({FEWEST} needed)"
    return Finding(
        check=evidence.check, judgement=Judgement.POPULATION, state=State.PASS, message=text
    )
