"""Sum up what each check measured: the worst value, the median, and the bound that applies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accept.core.catalog.metrics import BUSBW, TIME
from accept.core.judge import bounds
from accept.core.judge.collective_metrics import BANDWIDTH, LATENCY, nominal, read
from accept.core.judge.completeness import device_label, host_list
from accept.core.judge.evidence import Evidence
from accept.core.judge.robust_stats import median_of
from accept.core.model import MeasuredRange, Record, Step

#: Speeds from this on are damage.
_ABSURD = 1e9


def ranges(evidence: Evidence) -> Iterator[MeasuredRange]:
    """Yield the figures of a check: each kind of groups at the largest size, and each device."""
    for step in evidence.steps:
        records = evidence.of_step(step)
        names = {metric.name for record in records for metric in record.metrics}
        if BUSBW.name in names or TIME.name in names:
            yield from _of_groups(evidence, step, records, is_time=BUSBW.name not in names)
        else:
            yield from _of_devices(evidence, records)


def _of_groups(
    evidence: Evidence, step: Step, records: list[Record], *, is_time: bool
) -> Iterator[MeasuredRange]:
    measure = LATENCY if is_time else BANDWIDTH
    found: dict[int, list[tuple[float, Record, int]]] = {}
    for record in records:
        reading = read(record.metrics, evidence.check, measure)
        if reading.value and not record.local_ranks:
            own = found.setdefault(len(record.hosts), [])
            own.append((reading.value, record, nominal(reading.top, step)))
    for nodes, values in found.items():
        worst, record, size = min(values, key=lambda one: one[0])
        median = median_of(value for value, _, _ in values)
        part = replace(evidence, steps=(step,), records=tuple(one for _, one, _ in values))
        yield MeasuredRange(
            check=evidence.check,
            metric=measure.metric,
            unit=measure.unit,
            size=None if is_time else size,
            nodes=nodes,
            values=len(values),
            worst=1e6 / worst if is_time else worst,
            worst_at=host_list(record.hosts),
            median=1e6 / median if is_time else median,
            # Bounds of times are upper ones, for single sizes. One rank has no peer to send to.
            bound=None
            if is_time or record.ranks == 1
            else bounds.tightest_bound(part, nodes, measure.metric, top=(size,)),
        )


def _of_devices(evidence: Evidence, records: list[Record]) -> Iterator[MeasuredRange]:
    """Yield the metrics of devices that have a bound."""
    bounded = {bound.metric for bound in bounds.bounds_of(evidence) if bound.lower is not None}
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for record in records:
        for metric in record.metrics:
            if (
                metric.check == evidence.check
                and metric.name in bounded
                and metric.size is None
                and abs(metric.value) < _ABSURD
            ):
                host = metric.host or host_list(record.hosts)
                at = host if metric.rank is None else device_label(host, metric.rank, metric.gpu)
                found.setdefault((metric.name, metric.unit), []).append((metric.value, at))
    for (name, unit), values in found.items():
        worst, at = min(values)
        yield MeasuredRange(
            check=evidence.check,
            metric=name,
            unit=unit,
            nodes=1,
            values=len(values),
            worst=worst,
            worst_at=at,
            median=median_of(value for value, _ in values),
            bound=bounds.tightest_bound(replace(evidence, records=tuple(records)), 1, name),
        )
