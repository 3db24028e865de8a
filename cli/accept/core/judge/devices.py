"""Judge measurements of single GPUs, and find GPUs that are slower than their peers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from accept.core.judge import bounds, completeness
from accept.core.judge.collective_metrics import number
from accept.core.judge.completeness import device_label
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.outliers import outliers
from accept.core.judge.pairs import Sample
from accept.core.judge.robust_stats import FEWEST, SIGMAS, Spread
from accept.core.judge.summary import verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Finding, Metric, Problem, Record, State, Step, Suspect

#: Noise of what differs between healthy devices; `SIGMAS` times that is half of the median.
_UNEVEN = 0.5 / SIGMAS


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a check measures on every device."""

    unit: str
    #: Metrics of speed, by which it is known in the table; higher is better.
    rates: tuple[str, ...]
    #: Counts that must be there and 0, and the cause where one is not.
    wrong: Mapping[str, str]
    #: Other metrics of speed, where one device has them all must.
    others: tuple[str, ...]
    #: Without these nothing was measured.
    needed: tuple[str, ...]
    #: Others that differ between healthy devices: they are slow below half of the median.
    uneven: tuple[str, ...] = ()
    #: Of those before, what the first rank of a host measures for all of its host.
    by_first: tuple[str, ...] = ()
    #: Of those before, what has no unit. A fact of that name says more of each.
    shares: tuple[str, ...] = ()


class Device(NamedTuple):
    """One rank in one record, and what it measured, by metric."""

    record: Record
    host: str
    rank: int
    gpu: str | None
    values: dict[str, float]

    def __str__(self) -> str:
        return device_label(self.host, self.rank, self.gpu)


@dataclass(kw_only=True)
class _Slow:
    """Why a device is slow, piece by piece."""

    cause: str
    said: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)


def compared(
    evidence: Evidence, measured: Measured, found: Sequence[Device], noise: float
) -> tuple[list[Finding], list[Suspect]]:
    """Devices that are clearly slower than all devices of the run, or below a bound."""
    slow: dict[tuple[str, int], _Slow] = {}
    told: list[tuple[str, Spread | None, int]] = []
    for name in (*measured.rates, *measured.others, *measured.uneven):
        having = [device for device in found if name in device.values]
        if not having:
            continue
        bound = bounds.highest_lower_bound(evidence, 1, name)
        samples = [Sample((d.host,), d.values[name], "", d.record.log, (d.rank,)) for d in having]
        uneven = name in measured.uneven
        bad = outliers(samples, max(noise, _UNEVEN) if uneven else noise, bound, fixed=uneven)
        told.append((name, bad.spread, len(having)))
        for index, outlier in bad.bad.items():
            device = having[index]
            one = slow.setdefault((device.host, device.rank), _Slow(cause=outlier.cause))
            one.metrics.append(name)
            share = f", {outlier.share}" if outlier.share else ""
            value = f"{name} {number(device.values[name])}{_unit(device, measured, name)}"
            one.said.append(f"{value}{share}")
    latest = {(device.host, device.rank): device for device in found}
    suspects = [_suspect(evidence, latest[key], one) for key, one in slow.items()]
    return [*_population(evidence, measured, told, suspects)], suspects


def _unit(device: Device, measured: Measured, name: str) -> str:
    """The unit of a metric; of one without, what the device's fact of its name says."""
    if name not in measured.shares:
        return f" {measured.unit}"
    told = (f for f in device.record.facts if f.name == name and f.rank == device.rank)
    return "".join(f" ({str(fact.value)[:60]})" for fact in list(told)[-1:])


def _suspect(evidence: Evidence, device: Device, slow: _Slow) -> Suspect:
    said = "; ".join(slow.said[:3]) + _only_together(device, slow.metrics)
    return Suspect(
        kind="gpu" if device.gpu else "node",
        name=f"{device.host}:{device.gpu}" if device.gpu else device.host,
        cause=slow.cause,
        strength="strong",
        why=f"{evidence.check}: {said}{_held_back(device, slow.metrics)}",
        evidence=(device.record.log,) if device.record.log else (),
    )


def _only_together(device: Device, slow: Sequence[str]) -> str:
    """Return what it means that a GPU is slow only while its neighbours work."""
    if not device.gpu:
        return ""
    kinds = {name.removesuffix("-p5") for name in slow if not name.endswith("-alone")}
    alone = [kind for kind in kinds if f"{kind}-alone" in device.values]
    if not alone or any(f"{kind}-alone" in slow for kind in kinds):
        return ""
    return "; alone it is as fast as the others: heat or power while all of the host work"


def _held_back(device: Device, slow: Sequence[str]) -> str:
    """What the GPU said held its clock back, where it was slow."""
    for fact in device.record.facts:
        value: Any = fact.value
        if fact.name != "load" or fact.rank != device.rank or not isinstance(value, dict):
            continue
        if not any(name.startswith(str(value.get("type"))) for name in slow):
            continue
        held = value.get("held")
        parts = []
        for name, share in held.items() if isinstance(held, dict) else ():
            if isinstance(share, float | int) and share > 0:
                parts.append(f"{str(name)[:40]} {share:.0%} of the time")
        for unit in ("MHz", "C"):
            span = value.get(unit)
            if isinstance(span, list) and len(span) == 3 and isinstance(span[1], float | int):
                parts.append(f"{number(span[1])} {unit}")
        if parts:
            return f"; meanwhile {', '.join(parts[:6])}"
    return ""


def _population(
    evidence: Evidence,
    measured: Measured,
    told: Sequence[tuple[str, Spread | None, int]],
    suspects: Sequence[Suspect],
) -> Iterator[Finding]:
    if suspects:
        names = completeness.host_list([one.name for one in suspects])
        first = next((among for _, among, _ in told if among), None)
        hosts = dict.fromkeys(one.name.rpartition(":")[0] or one.name for one in suspects)
        yield Finding(
            check=evidence.check,
            judgement="population",
            state=State.FAIL,
            cause=suspects[0].cause,
            message=f"{names}: {suspects[0].why}",
            source=f"median of {first.count} in this run" if first else "",
            hosts=tuple(hosts),
            evidence=tuple(dict.fromkeys(log for one in suspects for log in one.evidence))[:8],
        )
        return
    compared = [(name, among) for name, among, _ in told if among]
    if compared:
        usual = ", ".join(
            f"{name} {number(among.median)} (none below {among.share:.0%})"
            for name, among in compared[:8]
        )
        text = f"{compared[0][1].count} devices, medians in {measured.unit}: {usual}"
    else:
        count = max((count for _, _, count in told), default=0)
        text = f"{count} devices: too few to compare, {FEWEST} are needed; nothing is concluded"
    yield Finding(check=evidence.check, judgement="population", state=State.PASS, message=text)


_ABSURD = 1e9
#: More ranks than a host can have; a record that says more is damaged.
_MOST = 1024
#: Most notes on what was left out.
_NOTES = 8


def judge_devices(
    evidence: Evidence, measured: Measured, *, noise: float, more: Iterable[Problem] = ()
) -> Judged:
    """Judge a check of single devices; `more` are problems that it found by itself.

    `noise`: of healthy devices, where it is more than that of the machine.
    """
    found = [device for record in evidence.records for device in _devices(record, evidence.check)]
    names = {name for device in found for name in device.values}
    wanted = {*measured.needed, *measured.wrong, *names.intersection(measured.others)}
    wanted |= names.intersection((*measured.rates, *measured.uneven))
    lacking = list(_lacking(evidence, measured, found, wanted))
    problems = [*more, *_wrong(found, measured), *_missing(evidence, lacking, names)]
    complete_ones = {id(d.record) for d in found} - {id(d.record) for d, _ in lacking}

    def score(record: Record, _step: Step) -> tuple[float | None, str]:
        return (1.0 if id(record) in complete_ones else None), ""

    findings = completeness.step_findings(evidence)
    findings += completeness.problem_findings(evidence, score=score, more=problems)
    held = bounds.findings(evidence)
    findings += held
    suspects = list(from_problems(problems, "", len(evidence.hosts)))
    promised = evidence.plan.machine.speed_promised
    if promised:
        # Where none is, ranks share the cores and the memory of their host.
        among, slow = compared(evidence, measured, found, max(noise, evidence.plan.machine.noise))
        suspects += slow
        findings += among
        findings += _unheld(evidence, measured, names, held)
    findings += _left_out(evidence)
    against = ["every element right", *([] if promised else ["no speed promised"])]
    against += bounds.sources(held)
    verdict = verdict_of(
        evidence,
        findings,
        measured=_text(evidence, measured, found),
        against="; ".join(against),
    )
    return Judged(verdict, tuple(suspects))


def _devices(record: Record, check: str) -> Iterator[Device]:
    """Every rank that the record should have, whatever of it is there."""
    host = record.hosts[0] if record.hosts else ""
    gpus: dict[int, str | None] = {}
    values: dict[int, dict[str, float]] = {rank: {} for rank in range(min(record.ranks, _MOST))}
    for metric in record.metrics:
        if metric.check == check and metric.rank in values:
            gpus[metric.rank] = metric.gpu or gpus.get(metric.rank)
            if _counts(metric):
                values[metric.rank][metric.name] = metric.value
    for problem in record.problems:
        if problem.rank in values and problem.gpu:
            gpus.setdefault(problem.rank, problem.gpu)
    for rank, mine in values.items():
        yield Device(record, host, rank, gpus.get(rank), mine)


def _counts(metric: Metric) -> bool:
    """Whether a number can be what it says: speeds are above 0, and no machine has `_ABSURD`."""
    return abs(metric.value) < _ABSURD and (metric.value > 0 or metric.unit in ("count", ""))


def _problem(cause: str, device: Device, predicate: str) -> Problem:
    """Return a problem of a device; `predicate` completes the sentence that the device begins."""
    message = f"{device} {predicate}"
    return Problem(cause=cause, message=message, host=device.host, rank=device.rank, gpu=device.gpu)


def _wrong(found: Sequence[Device], measured: Measured) -> Iterator[Problem]:
    """Devices that count wrong results which no problem of theirs tells of."""
    for device in found:
        told = {p.cause for p in device.record.problems if p.rank == device.rank}
        for name, cause in measured.wrong.items():
            count = device.values.get(name, 0.0)
            if count and not told & {cause, "wrong-data", "wrong-result", "not-finite"}:
                elements = "1 wrong element" if count == 1 else f"{number(count)} wrong elements"
                yield _problem(cause, device, f"computed {elements} ({name})")


def _lacking(
    evidence: Evidence, measured: Measured, found: Sequence[Device], wanted: Collection[str]
) -> Iterator[tuple[Device, list[str]]]:
    """Devices without what each must have, and what that is."""
    own = set(wanted).difference(measured.by_first)
    # Those whose first rank could not measure for them, or said why it did not.
    alone = {id(d.record) for d in found if d.rank == 0 and not own <= d.values.keys()}
    for record in evidence.records:
        names = {name for name, _ in _reasons(evidence, record)}
        if names.intersection(measured.by_first) or any(p.rank == 0 for p in record.problems):
            alone.add(id(record))
    for device in found:
        mine = own if id(device.record) in alone else wanted
        if lacks := sorted(set(mine) - device.values.keys()):
            yield device, lacks


def _missing(
    evidence: Evidence, lacking: Iterable[tuple[Device, list[str]]], names: Collection[str]
) -> Iterator[Problem]:
    """Devices without what each must have, unless their record says why."""
    for device, lacks in lacking:
        mine = [p for p in device.record.problems if p.check in (None, evidence.check)]
        explained = any(p.rank in (None, device.rank) for p in mine)
        if not explained and device.record.exit is not None:
            what = f"no {', '.join(lacks[:4])}" if names else "nothing"
            yield _problem("no-measurement", device, f"measured {what}")


def _unheld(
    evidence: Evidence, measured: Measured, names: Collection[str], held: Sequence[Finding]
) -> Iterator[Finding]:
    """Bounds of which nothing was measured, and that there are none at all."""
    if evidence.partial or not evidence.records:
        return
    excused = {name for record in evidence.records for name, _ in _reasons(evidence, record)}
    if not any(f.state is not State.INCONCLUSIVE for f in held):
        rate = measured.needed[0]
        check = evidence.check
        yield bounds.no_bound_finding(check, f"{check}.{rate}>={measured.unit}")
    for bound in bounds.bounds_of(evidence):
        if bound.kind != "expectation" and bound.metric not in {*names, *excused}:
            yield bounds.unmeasured_finding(evidence.check, bound)


def _reasons(evidence: Evidence, record: Record) -> Iterator[tuple[str, str]]:
    """Metrics that a program left out in one launch, and why, by its own word."""
    for fact in record.facts:
        if fact.name == "left-out" and fact.check == evidence.check:
            for name, why in fact.value.items() if isinstance(fact.value, dict) else ():
                yield str(name)[:40], str(why)[:120]


def _left_out(evidence: Evidence) -> list[Finding]:
    told = (reason for record in evidence.records for reason in _reasons(evidence, record))
    said = list(dict.fromkeys(told))[:_NOTES]
    if not said:
        return []
    text = "; ".join(f"{name}: {why}" for name, why in said)
    message = f"not measured: {text}"
    return [
        Finding(check=evidence.check, judgement="completeness", state=State.PASS, message=message)
    ]


def _text(evidence: Evidence, measured: Measured, found: Sequence[Device]) -> str:
    """The slowest device's figure of each rate."""
    parts = []
    for name in measured.rates:
        values = [device.values[name] for device in found if name in device.values]
        if not values:
            continue
        what = "GPUs" if any(device.gpu for device in found) else "ranks"
        line = bounds.peak(evidence, evidence.hosts[:1], name, 0)
        share = f", {min(values) / line[0]:.0%} of the peak" if line else ""
        few = f"slowest of {len(values)} {what}{share}"
        parts.append(f"{name} {number(min(values))} {measured.unit} ({few})")
    return "; ".join(parts[:4])
