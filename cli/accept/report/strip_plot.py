"""Draw one row for each node, with a dot for each of its executions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from accept.core.judge.values import is_bad, limit_of
from accept.report.data import Population, Run, Sample, share_of
from accept.report.svg import Tone, cells, dots, line, short, tone

#: Rows of the worst nodes; the others share one row, which shows their density.
_MOST_ROWS, _WORST_ROWS = 64, 60
#: Maximum number of panels in a row, and on the page.
_COLUMNS, _MOST_PANELS = 5, 15
_LEFT, _PANEL, _GAP, _ROW, _TOP = 150, 160, 14, 13, 46
#: A panel shows at least this share around its median, so that noise does not look like a fault.
_NARROWEST = 0.12


@dataclass(frozen=True, kw_only=True)
class Row:
    """A node: its name, and its values in one panel each."""

    host: str
    y: float
    bad: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The values of one population."""

    x: int
    title: str
    subtitle: str
    low: str
    high: str
    median: str
    bound: str
    band: tuple[str, str] | None
    #: Color -> its dots.
    dots: dict[Tone, Markup]
    failed: Markup
    missing: Markup
    density: Markup


@dataclass(frozen=True, kw_only=True)
class StripPlot:
    """Panels with common rows."""

    panels: tuple[Panel, ...]
    rows: tuple[Row, ...]
    #: Number of nodes that only the density shows.
    rest: int
    width: int
    height: int
    left: int
    panel: int
    row: int
    top: int


def strip_plots(run: Run) -> tuple[tuple[StripPlot, ...], int]:
    """Return the plots, and the number of populations that do not fit in them."""
    shown = _worst_first(run)[:_MOST_PANELS]
    if not shown:
        return (), 0
    usual = _usual_shares(run, shown)
    hosts = sorted(run.order, key=lambda host: (host not in run.suspects, usual[host]))
    hosts = hosts if len(hosts) <= _MOST_ROWS else hosts[:_WORST_ROWS]
    groups = [shown[i : i + _COLUMNS] for i in range(0, len(shown), _COLUMNS)]
    plots = tuple(_plot(run, group, hosts, usual) for group in groups)
    return plots, len(run.populations) - len(shown)


def _worst_first(run: Run) -> list[Population]:
    """Return the populations with the slowest values first."""

    def least(population: Population) -> float:
        shares = (share_of(sample, population.normal) for sample in population.samples)
        return min((share for share in shares if share is not None), default=1.0)

    return sorted(run.populations, key=lambda population: round(least(population), 2))


def _usual_shares(run: Run, populations: Sequence[Population]) -> dict[str, float]:
    """Return the share of normal of each node in its worst population; -1 without any value.

    Of several executions the median counts: a slow pair shows little about each of its nodes.
    """
    lowest: dict[str, float] = {}
    for population in populations:
        shares: dict[str, list[float]] = {}
        for sample in population.samples:
            share = share_of(sample, population.normal)
            for host in sample.hosts:
                value = 0.0 if sample.cause else 1.0 if share is None else share
                shares.setdefault(host, []).append(value)
        for host, own in shares.items():
            lowest[host] = min(lowest.get(host, 9.0), median(own))
    return {host: lowest.get(host, -1.0) for host in run.order}


def _plot(
    run: Run, populations: Sequence[Population], hosts: Sequence[str], usual: dict[str, float]
) -> StripPlot:
    rows = {
        host: Row(
            host=host,
            y=_TOP + index * _ROW + _ROW / 2,
            bad=host in run.suspects,
            text="not measured"
            if usual[host] < 0
            else f"{usual[host]:.0%} of normal in its worst step",
        )
        for index, host in enumerate(hosts)
    }
    rest = len(run.order) - len(rows)
    bottom = _TOP + len(rows) * _ROW
    panels = tuple(
        _panel(population, _LEFT + index * (_PANEL + _GAP), rows, bottom if rest else None)
        for index, population in enumerate(populations)
    )
    return StripPlot(
        panels=panels,
        rows=tuple(rows.values()),
        rest=rest,
        width=_LEFT + len(panels) * (_PANEL + _GAP),
        height=bottom + (46 if rest else 4),
        left=_LEFT,
        panel=_PANEL,
        row=_ROW,
        top=_TOP,
    )


def _panel(
    population: Population, left: int, rows: dict[str, Row], density_top: float | None
) -> Panel:
    values = [s.value for s in population.samples if s.value is not None]
    normal, measure = population.normal, population.measure
    centre = normal.value if normal else (sum(values) / len(values) if values else 1.0)
    marks = [*values, *([population.bound] if population.bound else [])]
    low = min(*marks, centre * (1 - _NARROWEST), centre) if marks else 0.0
    high = max(*marks, centre * (1 + _NARROWEST / 2), centre) if marks else 1.0
    scale = (_PANEL - 8) / (high - low) if high > low else 0.0

    def x(value: float) -> float:
        return left + 4 + (min(max(value, low), high) - low) * scale

    points: dict[Tone, list[tuple[float, float]]] = {}
    failed: list[tuple[float, float]] = []
    measured: set[str] = set()
    for sample in population.samples:
        for host in sample.hosts:
            if host not in rows:
                continue
            measured.add(host)
            if sample.value is None or sample.cause:
                failed.append((left + 4 + 3 * (len(failed) % 3), rows[host].y))
            else:
                is_below = is_bad(sample.value, population.bound)
                kind = tone(share_of(sample, normal), is_below_bound=is_below)
                points.setdefault(kind, []).append((x(sample.value), rows[host].y))
    missing = [(left, row.y) for host, row in rows.items() if host not in measured]
    band = None
    if normal is not None:
        edges = x(limit_of(normal)), x(2 * normal.value - limit_of(normal))
        band = short(edges[0]), short(max(edges[1] - edges[0], 0.5))
    ends = sorted((low, high))
    return Panel(
        x=left,
        title=population.title,
        subtitle=f"{population.step.groups}, {len(population.samples)} executions",
        low=measure.text(ends[0]),
        high=measure.text(ends[1]),
        median=short(x(normal.value)) if normal else "",
        bound=short(x(population.bound)) if population.bound else "",
        band=band,
        dots={kind: dots(own) for kind, own in sorted(points.items())},
        failed=_crosses(failed),
        missing=cells(missing, _PANEL),
        density=_density(population.samples, rows, x, density_top),
    )


def _crosses(points: Iterable[tuple[float, float]]) -> Markup:
    return Markup("").join(
        Markup(f"M{short(px - 3)} {short(py - 3)}l6 6m0-6l-6 6") for px, py in points
    )


def _density(
    samples: Sequence[Sample], rows: dict[str, Row], x: Callable[[float], float], top: float | None
) -> Markup:
    """Return the histogram of the values of all nodes without a row of their own."""
    if top is None:
        return Markup("")
    values = [
        x(s.value)
        for s in samples
        if s.value is not None and not s.cause and not rows.keys() & {*s.hosts}
    ]
    if not values:
        return Markup("")
    counts: dict[int, int] = {}
    for value in values:
        counts[int(value / 4)] = counts.get(int(value / 4), 0) + 1
    most = max(counts.values())
    bottom = top + 38
    return Markup("").join(
        line(((b * 4 + 2, bottom), (b * 4 + 2, bottom - 30 * n / most)))
        for b, n in sorted(counts.items())
    )
