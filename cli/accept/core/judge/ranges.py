"""Sum up what each check measured: the worst value, the median, and the bound that applies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accept.core.catalog.metrics import TIME
from accept.core.judge import bounds
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Evidence
from accept.core.model import MeasuredRange
from accept.core.table import BANDWIDTH, LATENCY, Table


def ranges(evidence: Evidence) -> Iterator[MeasuredRange]:
    """Yield the figures of a check: each kind of groups at the largest size, and each device."""
    names = {metric.name for record in evidence.records for metric in record.metrics}
    measure = next((m for m in (BANDWIDTH, LATENCY) if m.metric in names), None)
    table = evidence.results(measure) if measure else evidence.table
    for own in table.by(lambda row: row.step.id).values():
        yield from _of_groups(evidence, own) if measure else _of_devices(evidence, own)


def _of_groups(evidence: Evidence, results: Table) -> Iterator[MeasuredRange]:
    measured = results.where(lambda row: bool(row.value) and not row.ranks)
    for nodes, own in measured.by(lambda row: row.nodes).items():
        worst, size = own.worst, own.worst.nominal_size or 0
        is_time = worst.metric == TIME.name
        part = replace(evidence, steps=(worst.step,), records=own.records)
        yield MeasuredRange(
            check=evidence.check,
            metric=worst.metric,
            unit=worst.unit,
            size=None if is_time else size,
            nodes=nodes,
            values=len(own),
            worst=worst.value or 0.0,
            worst_at=host_list(worst.hosts),
            median=own.median,
            # Bounds of times are upper ones, for single sizes. One rank has no peer to send to.
            bound=None
            if is_time or worst.execution.record.ranks == 1
            else bounds.tightest_bound(part, nodes, worst.metric, top=(size,)),
        )


def _of_devices(evidence: Evidence, table: Table) -> Iterator[MeasuredRange]:
    """Yield the metrics of devices that have a bound."""
    bounded = {bound.metric for bound in bounds.bounds_of(evidence) if bound.lower is not None}
    known = table.where(lambda row: row.metric in bounded and row.size is None and row.is_plausible)
    part = replace(evidence, records=table.records)
    for (name, unit), own in known.by(lambda row: (row.metric, row.unit)).items():
        worst = min(own, key=lambda row: (row.value or 0.0, row.device))
        yield MeasuredRange(
            check=evidence.check,
            metric=name,
            unit=unit,
            nodes=1,
            values=len(own),
            worst=worst.value or 0.0,
            worst_at=worst.device,
            median=own.median,
            bound=bounds.tightest_bound(part, 1, name),
        )
