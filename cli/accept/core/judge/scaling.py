"""Compare the bandwidth of many hosts with that of few: the efficiency over a ladder of groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accept.core.catalog.metrics import BUSBW
from accept.core.judge.collective_metrics import nominal, read
from accept.core.judge.evidence import Evidence
from accept.core.judge.robust_stats import median_of
from accept.core.model import GroupKind, Record, Scaling, ScalingPoint, Step


def scaling(evidence: Evidence) -> Iterator[Scaling]:
    """Yield the efficiency of each ladder of a check, if it has two numbers of hosts or more.

    Groups inside one NVLink domain do not use the fabric, so they do not count.
    """
    for step in evidence.steps:
        if step.groups is not GroupKind.LADDER:
            continue
        values = _values(evidence, step, evidence.of_step(step))
        size = max((size for size, _ in values), default=0)
        nodes = sorted(count for own, count in values if own == size)
        if len(nodes) < 2:
            continue
        medians = {count: median_of(values[size, count]) for count in nodes}
        base = medians[nodes[0]]
        yield Scaling(
            check=evidence.check,
            step=step.id,
            unit=BUSBW.unit,
            size=size,
            points=tuple(
                ScalingPoint(nodes=count, value=value, efficiency=value / base)
                for count, value in medians.items()
            ),
        )


def _values(
    evidence: Evidence, step: Step, records: Sequence[Record]
) -> dict[tuple[int, int], list[float]]:
    """Return the bandwidths of correct executions by size and number of hosts."""
    found: dict[tuple[int, int], list[float]] = {}
    for record in records:
        if record.exit != 0 or record.problems or evidence.together(record.hosts):
            continue
        reading = read(record.metrics, evidence.check)
        if reading.value and not reading.wrong and len(record.hosts) > 1:
            key = nominal(reading.top, step), len(record.hosts)
            found.setdefault(key, []).append(reading.value)
    return found
