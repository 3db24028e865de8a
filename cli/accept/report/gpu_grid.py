"""Draw the GPUs of each node: rates of `gemm`, `memory` and tools, temperatures and clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from accept.core.catalog.metrics import BETTER_BY_UNIT, Better
from accept.core.facts import LOAD
from accept.core.judge.devices import is_unusual
from accept.core.judge.values import is_bad
from accept.core.text import count, number, value_range
from accept.report.data import DeviceValues, Run
from accept.report.svg import Cells, Tone, cells, room_for, tone

_MOST_ROWS, _MOST_GRIDS, _MOST_RANKS = 60, 12, 32
_TOP, _CELL, _ROW = 16, 14, 13
#: Levels at load: unit in the fact -> title.
_LEVELS = {"C": "temperature", "MHz": "clock"}


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """A node, and its values in words."""

    host: str
    y: float
    bad: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One figure of all GPUs: a row for each node, a column for each local rank."""

    title: str
    text: str
    cells: Cells
    rows: tuple[GridRow, ...]
    #: Position and text of each column.
    ranks: tuple[tuple[float, int], ...]
    #: Nodes without a row: normal ones, and those that do not fit.
    normal: int
    more: int
    #: Ranks of a node without a cell.
    cut: int
    left: int
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class _Figure:
    title: str
    unit: str
    noun: str
    #: Host and local rank -> its value, and its color.
    values: Mapping[tuple[str, int], float]
    tones: Mapping[tuple[str, int], Tone]

    @property
    def text(self) -> str:
        values = f"{value_range([*self.values.values()])} {self.unit}"
        middle = median(self.values.values())
        return f"{values}, median {number(middle)}, {count(len(self.values), self.noun)}"

    def deviates(self, hosts: tuple[str, ...]) -> bool:
        """Return True if a value is not normal, or missing although other nodes have it."""
        ranks = {rank for _, rank in self.values}
        missing = len(hosts) * len(ranks) > len(self.values)
        return missing or any(kind is not Tone.NORMAL for kind in self.tones.values())


def gpu_grids(run: Run) -> tuple[tuple[Grid, ...], tuple[tuple[str, str], ...]]:
    """Return a grid of each figure that deviates, and title and values of the others."""
    figures = [*_rates(run), *_levels(run)]
    drawn = [figure for figure in figures if figure.deviates(run.verdict.hosts)][:_MOST_GRIDS]
    others = tuple((one.title, one.text) for one in figures if one not in drawn)
    return tuple(_grid(run, figure) for figure in drawn), others


def _grid(run: Run, figure: _Figure) -> Grid:
    ranks = 1 + max((rank for _, rank in figure.tones), default=0)
    cut, ranks = max(0, ranks - _MOST_RANKS), min(ranks, _MOST_RANKS)
    order = [*Tone]

    def worst(host: str) -> int:
        own = (figure.tones.get((host, rank), Tone.MISSING) for rank in range(ranks))
        return max(map(order.index, own), default=0)

    severities = {host: found for host in run.verdict.hosts if (found := worst(host))}
    shown = sorted(severities, key=lambda host: (host not in run.suspects, -severities[host]))
    shown = shown[:_MOST_ROWS]
    left = room_for(shown)
    corners: dict[Tone, list[tuple[float, float]]] = {}
    rows = []
    for index, host in enumerate(shown):
        y = _TOP + (index + 0.5) * _ROW
        for rank in range(ranks):
            kind = figure.tones.get((host, rank), Tone.MISSING)
            corners.setdefault(kind, []).append((left + rank * _CELL, y))
        own = [figure.values.get((host, rank)) for rank in range(ranks)]
        text = ", ".join("not measured" if one is None else number(one) for one in own)
        bad = host in run.suspects
        rows.append(GridRow(host=host, y=y, bad=bad, text=f"{text} {figure.unit}"))
    return Grid(
        title=figure.title,
        text=figure.text,
        cells=cells(corners, _CELL - 2, _ROW - 2),
        rows=tuple(rows),
        ranks=tuple((left + (rank + 0.5) * _CELL - 1, rank) for rank in range(ranks)),
        normal=len(run.verdict.hosts) - len(severities),
        more=len(severities) - len(shown),
        cut=cut,
        left=left,
        width=left + max(ranks * _CELL, 180),
        height=_TOP + len(shown) * _ROW + 2,
    )


def _rates(run: Run) -> Iterator[_Figure]:
    for device in run.devices:
        # A tool may measure nodes, or count errors.
        if not device.of_gpus or BETTER_BY_UNIT.get(device.unit) is Better.LOWER:
            continue
        tones = {at: _tone_of(run, device, at) for at in device.values}
        yield _Figure(
            title=device.title,
            unit=device.unit,
            noun=run.rank_noun,
            values=device.values,
            tones=tones,
        )


def _tone_of(run: Run, device: DeviceValues, at: tuple[str, int]) -> Tone:
    value, low = device.values[at], is_bad(device.values[at], device.lowest)
    if not value > 0:
        return Tone.FAILED
    share = value / device.median if device.median > 0 and device.lowest is not None else None
    return tone(share, low=low, bad=low and at[0] in run.suspects)


def _levels(run: Run) -> Iterator[_Figure]:
    """Yield temperature and clock of each GPU while it worked."""
    found: dict[str, dict[tuple[str, int], float]] = {}
    for record in run.records:
        for fact, load in LOAD.of(record):
            host = record.host_of(fact)
            if fact.rank is not None:
                for unit, value in load.medians.items():
                    own = found.setdefault(unit, {})
                    own[host, fact.rank] = max(own.get((host, fact.rank), value), value)
    for unit, title in _LEVELS.items():
        if levels := found.get(unit):
            usual = median(levels.values())
            tones = {
                at: Tone.LOW if is_unusual(value, usual, unit) else Tone.NORMAL
                for at, value in levels.items()
            }
            yield _Figure(title=title, unit=unit, noun="GPU", values=levels, tones=tones)
