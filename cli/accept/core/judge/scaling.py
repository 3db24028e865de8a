"""Compare the bandwidth of many hosts with that of few: the efficiency over a ladder of groups."""

from __future__ import annotations

from collections.abc import Iterator

from accept.core.judge.evidence import Evidence
from accept.core.model import GroupKind, Scaling, ScalingPoint
from accept.core.table import Outcome


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
        size = max(sizes)
        medians = {
            nodes: own.median for nodes, own in sizes[size].by(lambda row: row.nodes).items()
        }
        if len(medians) < 2:
            continue
        base = medians[min(medians)]
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
