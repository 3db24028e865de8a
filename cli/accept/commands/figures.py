"""What was measured, a figure an execution: for programs, references, and comparing runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from accept.core.judge.collective_metrics import nominal, read
from accept.core.model import GroupKind, Plan, Record, Step


class Measurement(NamedTuple):
    """One figure of one execution."""

    check: str
    metric: str
    unit: str
    groups: GroupKind
    hosts: tuple[str, ...]
    #: Local ranks of each host that took part; empty: all.
    ranks: tuple[int, ...]
    #: Size of the message in bytes, as it was asked for; None: the metric has none.
    size: int | None
    value: float
    log: str


def measurements(plan: Plan, records: Sequence[Record]) -> Iterator[Measurement]:
    """The figures that verdicts rest on: of a collective the bandwidth at the largest size.

    Metrics of single ranks, and numbers that are none, are left out.
    """
    steps = {step.id: step for step in plan.steps}
    for record in records:
        step = steps.get(record.step)
        for check in record.checks if step else ():
            assert step is not None
            yield from _of(record, step, check)


def _of(record: Record, step: Step, check: str) -> Iterator[Measurement]:
    mine = [metric for metric in record.metrics if metric.check == check]

    def made(name: str, unit: str, size: int | None, value: float) -> Measurement:
        where = (record.hosts, record.local_ranks)
        return Measurement(check, name, unit, step.groups, *where, size, value, record.log)

    if any(metric.name == "busbw" for metric in mine):
        found = read(mine, check)
        if found.value is not None:
            yield made("busbw", "GB/s", nominal(found.top, step), found.value)
        return
    for metric in mine:
        if metric.rank is None and metric.size is None and abs(metric.value) < float("inf"):
            yield made(metric.name, metric.unit, None, metric.value)


def as_json(found: Measurement) -> dict[str, Any]:
    """A measurement as `judge --json` prints it."""
    return {**found._asdict(), "hosts": list(found.hosts), "ranks": list(found.ranks)}
