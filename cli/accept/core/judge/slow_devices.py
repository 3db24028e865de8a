"""Which devices are clearly slower than all devices of a run, and what is known of why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from accept.core.judge import bounds, completeness
from accept.core.judge.collective_metrics import number
from accept.core.judge.completeness import place
from accept.core.judge.evidence import Evidence
from accept.core.judge.outliers import outliers
from accept.core.judge.pairs import Sample
from accept.core.judge.population import FEWEST, SIGMAS, Spread
from accept.core.model import Finding, Record, State, Suspect

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
        return place(self.host, self.rank, self.gpu)


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
        bound = bounds.least(evidence, 1, name)
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
        names = completeness.some([one.name for one in suspects])
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
