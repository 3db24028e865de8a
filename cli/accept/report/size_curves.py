"""Draw the bandwidth of each collective over the message size, with its bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from accept.core.catalog.metrics import BUSBW, TIME
from accept.core.judge import bounds
from accept.core.records import Placement
from accept.core.table import BANDWIDTH, Row, Table, rows_of
from accept.core.text import count, format_size, number
from accept.report.data import Run
from accept.report.svg import area, line, round_ticks, short

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
    #: Position and text of the value below which the largest message fails; None: no bound.
    bound: tuple[str, str] | None
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    top: int = _TOP


def size_curves(run: Run) -> tuple[Curve, ...]:
    """Return a curve for each check, kind of groups and number of nodes with several sizes."""
    curves = []
    for check, evidence in run.evidences.items():
        name = TIME.name if check == "latency" else BUSBW.name
        drawn = [e for e in evidence.executions if not e.record.local_ranks]
        table = Table(tuple(row for e in drawn for row in rows_of(e, check, {name})))
        kinds = table.where(_is_drawn).by(lambda row: (row.step.groups, row.nodes, row.unit))
        for (groups, nodes, unit), own in kinds.items():
            # A bound of a latency is for one size.
            lowest = (
                None
                if name == TIME.name
                else bounds.lowest(evidence, own.rows[0].step, BANDWIDTH, nodes)
            )
            # The requested sizes: the programs round them down to whole elements.
            by_size = own.by(lambda row: row.nominal_size or 0)
            values = {size: rows.values for size, rows in by_size.items()}
            if len(values) > 1:
                title = f"{check}: {groups}, {count(nodes, 'node')}"
                curves.append(_curve(title, unit, values, lowest))
    return tuple(curves[:_MOST])


def _is_drawn(row: Row) -> bool:
    out_of_place = row.placement is not Placement.IN
    return bool(row.size) and row.is_plausible and (row.value or 0.0) > 0 and out_of_place


def _curve(title: str, unit: str, by_size: dict[int, list[float]], bound: float | None) -> Curve:
    sizes = sorted(by_size)
    values = [value for own in by_size.values() for value in own]
    marks = [*values, *([bound] if bound and bound > 0 else [])]
    low, high = min(marks), max(marks)
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
        bound=(short(y(bound)), f"fails below {number(bound)}") if bound and bound > 0 else None,
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return round values between two limits, 1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low * 0.9 <= tick <= high * 1.1]
    if len(inside) < 2:
        return round_ticks(low * 0.9, high * 1.1)
    return inside[:: -(-len(inside) // 6)]
