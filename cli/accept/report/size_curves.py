"""Draw the bandwidth of each collective over the message size, with its references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from accept.core.catalog.metrics import BUSBW, TIME
from accept.core.judge.bounds import bounds_of, covers_nodes
from accept.core.model import Placement, Reference
from accept.core.table import Row, Table, rows_of
from accept.core.text import count, format_size
from accept.report.data import Run
from accept.report.svg import area, line, short

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 330, 200, 52, 24, 24
_MOST = 12


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The values of one check in one kind of groups: the median, and the range of all."""

    title: str
    unit: str
    median: Markup
    range: Markup
    #: Position and text of the ticks of each axis.
    sizes: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, str], ...]
    #: Position and text of each reference; one without a size is for the largest message.
    references: tuple[tuple[str, str, str], ...]
    width: int
    height: int
    left: int
    top: int
    bottom: int


def size_curves(run: Run) -> tuple[Curve, ...]:
    """Return a curve for each check, kind of groups and number of nodes with several sizes."""
    curves = []
    for check, evidence in run.evidences.items():
        name = TIME.name if check == "latency" else BUSBW.name
        drawn = [e for e in evidence.executions if not e.record.local_ranks]
        table = Table(tuple(row for e in drawn for row in rows_of(e, check, {name})))
        kinds = table.where(_is_drawn).by(lambda row: (row.step.groups, row.nodes, row.unit))
        for (groups, nodes, unit), own in kinds.items():
            together = evidence.together(own.rows[0].hosts)
            references = [
                bound
                for bound in bounds_of(evidence)
                if bound.metric == name and covers_nodes(bound, nodes, together=together)
            ]
            values = {size: rows.values for size, rows in own.by(lambda row: row.size or 0).items()}
            if len(values) > 1:
                title = f"{check}: {groups}, {count(nodes, 'node')}"
                curves.append(_curve(title, unit, values, references))
    return tuple(curves[:_MOST])


def _is_drawn(row: Row) -> bool:
    out_of_place = row.placement is not Placement.IN
    return bool(row.size) and row.is_plausible and (row.value or 0.0) > 0 and out_of_place


def _curve(
    title: str, unit: str, by_size: dict[int, list[float]], references: Sequence[Reference]
) -> Curve:
    sizes = sorted(by_size)
    limits = [
        (r.size or sizes[-1], limit, f"{text}, {r.kind}")
        for r in references
        for text, limit in (
            ("fails below", r.lower),
            ("expected", r.expected),
            ("at most", r.upper),
            ("reference", r.value),
        )
        if limit and limit > 0
    ]
    values = [value for own in by_size.values() for value in own]
    low, high = min(values), max([*values, *(limit for _, limit, _ in limits)])
    low = min(low, *(limit for _, limit, _ in limits)) if limits else low
    left, right = math.log2(sizes[0]), math.log2(sizes[-1])
    bottom, top = math.log10(low) - 0.05, math.log10(high) + 0.05

    def x(size: float) -> float:
        span = _WIDTH - _LEFT - 8
        return _LEFT + (math.log2(size) - left) / (right - left) * span

    def y(value: float) -> float:
        span = _HEIGHT - _TOP - _BOTTOM
        return _HEIGHT - _BOTTOM - (math.log10(value) - bottom) / (top - bottom) * span

    every = max(1, len(sizes) // 5)
    return Curve(
        title=title,
        unit=unit,
        median=line((x(size), y(median(by_size[size]))) for size in sizes),
        range=area(
            [(x(size), y(max(by_size[size]))) for size in sizes],
            [(x(size), y(min(by_size[size]))) for size in sizes],
        ),
        sizes=tuple((short(x(size)), format_size(size)) for size in sizes[::every]),
        values=tuple((short(y(tick)), f"{tick:g}") for tick in _ticks(low, high)),
        references=tuple(
            (short(x(size)), short(y(limit)), text)
            for size, limit, text in limits
            if sizes[0] <= size <= sizes[-1]
        ),
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        top=_TOP,
        bottom=_HEIGHT - _BOTTOM,
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return round values between two limits, 1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low * 0.9 <= tick <= high * 1.1]
    return inside if len(inside) <= 6 else inside[:: -(-len(inside) // 6)]
