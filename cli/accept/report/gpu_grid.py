"""Draw the GPUs of each node: rates of `gemm` and `memory`, temperatures and clocks at load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from accept.core.facts import LOAD
from accept.core.text import number
from accept.report.data import Run
from accept.report.svg import Tone, cells, tone

_MOST_ROWS, _WORST_ROWS, _MOST_GRIDS, _MOST_RANKS = 64, 60, 12, 32
_LEFT, _TOP, _CELL, _GAP, _ROW = 150, 34, 11, 16, 12
#: Levels at load: unit in the fact, title, and how much above or below the median is unusual.
_LEVELS = (("C", "temperature", 10.0, +1), ("MHz", "clock", 0.05, -1))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One figure of all GPUs."""

    x: int
    title: str
    subtitle: str
    cells: Mapping[Tone, Markup]


@dataclass(frozen=True, kw_only=True)
class GpuGrid:
    """Grids with common rows, one for each node."""

    grids: tuple[Grid, ...]
    rows: tuple[tuple[str, float, bool], ...]
    #: Nodes without a row, and ranks of a node without a cell.
    rest: int
    cut: int
    width: int
    height: int
    left: int
    row: int


@dataclass(frozen=True, kw_only=True)
class _Figure:
    title: str
    subtitle: str
    #: Host and local rank -> its color.
    tones: Mapping[tuple[str, int], Tone]


def gpu_grid(run: Run) -> GpuGrid | None:
    """Return the grids; None if no GPU or rank was measured by itself."""
    figures = [*_rates(run), *_levels(run)][:_MOST_GRIDS]
    if not figures:
        return None
    order = [*Tone]
    ranks = 1 + max((rank for figure in figures for _, rank in figure.tones), default=0)
    ranks = max(ranks, run.plan.gpus_used or run.plan.machine.gpus or 0)
    cut, ranks = max(0, ranks - _MOST_RANKS), min(ranks, _MOST_RANKS)
    # With one row for each node, the worst come first.
    severity = {tone: index for index, tone in enumerate(order)}
    worst = {
        host: max(
            (
                severity[figure.tones.get((host, rank), Tone.MISSING)]
                for figure in figures
                for rank in range(ranks)
            ),
            default=0,
        )
        for host in run.verdict.hosts
    }
    hosts = sorted(run.verdict.hosts, key=lambda host: (host not in run.suspects, -worst[host]))
    shown = hosts if len(hosts) <= _MOST_ROWS else hosts[:_WORST_ROWS]
    grids = tuple(_grid(figure, index, shown, ranks) for index, figure in enumerate(figures))
    return GpuGrid(
        grids=grids,
        rows=tuple(
            (host, _TOP + (index + 0.5) * _ROW + 4, host in run.suspects)
            for index, host in enumerate(shown)
        ),
        rest=len(hosts) - len(shown),
        cut=cut,
        width=_LEFT + len(grids) * (ranks * _CELL + _GAP),
        height=_TOP + len(shown) * _ROW + 4,
        left=_LEFT,
        row=_ROW,
    )


def _grid(figure: _Figure, index: int, hosts: list[str], ranks: int) -> Grid:
    left = _LEFT + index * (ranks * _CELL + _GAP)
    corners: dict[Tone, list[tuple[float, float]]] = {}
    for row, host in enumerate(hosts):
        for rank in range(ranks):
            kind = figure.tones.get((host, rank), Tone.MISSING)
            corner = (left + rank * _CELL, _TOP + (row + 0.5) * _ROW)
            corners.setdefault(kind, []).append(corner)
    return Grid(
        x=left,
        title=figure.title,
        subtitle=figure.subtitle,
        cells={kind: cells(own, _CELL - 1) for kind, own in sorted(corners.items())},
    )


def _rates(run: Run) -> Iterator[_Figure]:
    for device in run.devices:
        yield _Figure(
            title=f"{device.check} {device.metric}",
            subtitle=f"{number(device.median)} {device.unit}",
            tones={at: _tone_of(value, device.median) for at, value in device.values.items()},
        )


def _tone_of(value: float, usual: float) -> Tone:
    return tone(value / usual) if value > 0 and usual > 0 else Tone.FAILED


def _levels(run: Run) -> Iterator[_Figure]:
    """Yield temperature and clock of each GPU while it worked."""
    found: dict[str, dict[tuple[str, int], float]] = {}
    for record in run.records:
        for fact, load in LOAD.of(record):
            host = fact.host or (record.hosts[0] if len(record.hosts) == 1 else "")
            if fact.rank is not None:
                for unit, value in load.medians.items():
                    own = found.setdefault(unit, {})
                    own[host, fact.rank] = max(own.get((host, fact.rank), value), value)
    for unit, title, limit, direction in _LEVELS:
        if levels := found.get(unit):
            usual = median(levels.values())
            yield _Figure(
                title=title,
                subtitle=f"{number(usual)} {unit}",
                tones={
                    at: _level_tone(
                        (value - usual) * direction, limit * (usual if limit < 1 else 1)
                    )
                    for at, value in levels.items()
                },
            )


def _level_tone(excess: float, limit: float) -> Tone:
    if excess > limit:
        return Tone.SLOW
    return Tone.LOW if excess > limit / 2 else Tone.NORMAL
