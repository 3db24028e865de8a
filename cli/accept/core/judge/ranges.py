"""Sum up what each check measured: worst, median and bound, and how it scales with the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from accept.core.catalog.metrics import TIME
from accept.core.judge import bounds
from accept.core.judge.evidence import Evidence
from accept.core.plan import GroupKind
from accept.core.records import Placement
from accept.core.table import BANDWIDTH, LATENCY, Outcome, Table, rows_of
from accept.core.text import host_list
from accept.core.verdict import MeasuredRange, Scaling, ScalingPoint


def ranges(evidence: Evidence) -> Iterator[MeasuredRange]:
    """Yield the figures of a check: each kind of groups at the largest size, and each device."""
    names = {metric.name for record in evidence.records for metric in record.metrics}
    measure = next((m for m in (BANDWIDTH, LATENCY) if m.metric in names), None)
    if measure is not None:
        for own in evidence.results(measure).by(lambda row: row.step.id).values():
            yield from _of_groups(evidence, own)
    else:
        yield from _of_devices(evidence)


def _of_groups(evidence: Evidence, results: Table) -> Iterator[MeasuredRange]:
    measured = results.where(
        lambda row: bool(row.value) and not row.ranks and row.execution.has_peer
    )
    for own in measured.by(lambda row: row.nodes).values():
        largest = _range(evidence, own)
        yield largest
        if largest.bound is None and largest.size is not None:
            # The largest size has no bound, but smaller ones may.
            for size in bounds.other_sizes(evidence, largest.metric):
                rows = [
                    row
                    for result in own
                    for row in rows_of(result.execution, evidence.check, {largest.metric})
                    if row.nominal_size == size and row.placement is not Placement.IN and row.value
                ]
                if rows and (smaller := _range(evidence, Table(tuple(rows)))).bound is not None:
                    yield smaller


def _range(evidence: Evidence, own: Table) -> MeasuredRange:
    """Return the figure of groups of one number of nodes at one size."""
    worst, size = own.worst, own.worst.nominal_size or 0
    is_time = worst.metric == TIME.name
    value, executions = worst.value or 0.0, [row.execution for row in own]
    return MeasuredRange(
        check=evidence.check,
        metric=worst.metric,
        unit=worst.unit,
        size=None if is_time else size,
        nodes=worst.nodes,
        values=len(own),
        worst=value,
        worst_at=host_list(worst.hosts),
        median=own.median,
        # Bounds of times are upper ones, for single sizes.
        bound=None
        if is_time
        else bounds.deciding(evidence, worst.metric, executions, value, (size,)),
    )


def _of_devices(evidence: Evidence) -> Iterator[MeasuredRange]:
    """Yield the metrics of devices that have a bound."""
    bounded = {bound.metric for bound in bounds.bounds_of(evidence) if bound.lower is not None}
    rows = (row for e in evidence.executions for row in rows_of(e, evidence.check, bounded))
    known = Table(tuple(row for row in rows if row.size is None and row.is_plausible))
    for own in known.by(lambda row: (row.step.id, row.metric, row.unit)).values():
        worst, executions = own.worst, {id(row.execution): row.execution for row in own}
        yield MeasuredRange(
            check=evidence.check,
            metric=worst.metric,
            unit=worst.unit,
            nodes=1,
            values=len(own),
            worst=worst.value or 0.0,
            worst_at=worst.device,
            median=own.median,
            bound=bounds.deciding(
                evidence, worst.metric, [*executions.values()], worst.value or 0.0
            ),
        )


def scaling(evidence: Evidence) -> Iterator[Scaling]:
    """Yield the efficiency of each ladder of a check, if it has two numbers of hosts or more.

    Groups inside one NVLink domain do not use the fabric, so they do not count.
    """
    if all(step.groups is not GroupKind.LADDER for step in evidence.steps):
        return
    correct = evidence.results().where(
        lambda row: (
            bool(row.value)
            and row.step.groups is GroupKind.LADDER
            and row.nodes > 1
            and row.outcome is not Outcome.WRONG
            and row.execution.record.exit == 0
            and not row.execution.record.problems
            and not evidence.together(row.hosts)
        )
    )
    for step, results in correct.by(lambda row: row.step.id).items():
        sizes = results.by(lambda row: row.nominal_size or 0)
        size, largest = max(sizes.items(), key=itemgetter(0))
        medians = {nodes: own.median for nodes, own in largest.by(lambda row: row.nodes).items()}
        base = medians[min(medians)]
        if len(medians) > 1:
            yield Scaling(
                check=evidence.check,
                step=step,
                unit=results.rows[0].unit,
                size=size,
                points=tuple(
                    ScalingPoint(nodes=nodes, value=value, efficiency=value / base)
                    for nodes, value in sorted(medians.items())
                ),
            )
