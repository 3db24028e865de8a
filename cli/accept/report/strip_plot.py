"""Draw one row for each node, with a dot for each of its executions, if a node deviates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from accept.core.by_key import by_key
from accept.core.text import count, number
from accept.report.data import Population, Run, Sample, share_of
from accept.report.svg import Tone, crosses, line, marks, room_for, round_ticks, short, tone_of

#: Rows of the worst nodes; the others share one row, which shows their density.
_MOST_ROWS, _WORST_ROWS = 64, 60
_MOST_PLOTS = 8
_PANEL, _ROW, _TOP = 380, 13, 20
#: A plot shows at least this share around its median, so that noise does not look like a fault.
_NARROWEST = 0.12


@dataclass(frozen=True, kw_only=True)
class Row:
    """A node, and its executions in words and as dots."""

    host: str
    y: float
    bad: bool
    text: str
    #: Color -> its dots.
    dots: dict[Tone, Markup]
    failed: Markup


@dataclass(frozen=True, kw_only=True)
class StripPlot:
    """The values of one population."""

    title: str
    limits: str
    #: The finding, for those who cannot see the plot.
    text: str
    rows: tuple[Row, ...]
    #: The colors of its dots.
    tones: tuple[Tone, ...]
    #: Number of nodes that only the density shows.
    rest: int
    ticks: tuple[tuple[str, str], ...]
    median: str
    bound: str
    band: tuple[str, str] | None
    density: Markup
    width: int
    height: int
    left: int
    top: int = _TOP


def strip_plots(run: Run) -> tuple[tuple[StripPlot, ...], tuple[Population, ...]]:
    """Return the plots of the populations with bad values, and the others, which are not drawn.

    If nothing is bad, the population with the slowest value is drawn.
    """
    ordered = sorted(
        run.populations, key=lambda one: (-sum(s.bad for s in one.samples), _least(one))
    )
    most = min(max(1, sum(any(s.bad for s in one.samples) for one in ordered)), _MOST_PLOTS)
    plots = tuple(_plot(run, population) for population in ordered[:most])
    return plots, tuple(ordered[most:])


def _least(population: Population) -> float:
    shares = (share_of(sample, population.normal) for sample in population.samples)
    return round(min((share for share in shares if share is not None), default=1.0), 2)


def _plot(run: Run, population: Population) -> StripPlot:
    own: dict[str, list[Sample]] = {host: [] for host in run.order}
    own |= by_key((host, sample) for sample in population.samples for host in sample.hosts)

    def usual(host: str) -> float:
        """Return the median value: a slow pair shows little about each of its nodes."""
        values = [0.0 if s.cause else s.value or 0.0 for s in own[host]]
        return median(values) if values else -1.0

    hosts = sorted(own, key=lambda host: (host not in run.suspects, usual(host)))
    hosts = hosts if len(hosts) <= _MOST_ROWS else hosts[:_WORST_ROWS]
    left, bottom = room_for(hosts), _TOP + len(hosts) * _ROW
    low, high = _range(population)
    scale = (_PANEL - 8) / (high - low) if high > low else 0.0

    def x(value: float) -> float:
        return left + 4 + (min(max(value, low), high) - low) * scale

    def row(host: str, y: float) -> Row:
        tones = [(tone_of(s, population), (x(s.value or 0.0), y)) for s in own[host]]
        failed = any(kind is Tone.FAILED for kind, _ in tones)
        return Row(
            host=host,
            y=y,
            bad=host in run.suspects,
            text=population.values_of(own[host]) if own[host] else "not measured",
            dots=marks(tones),
            failed=crosses([(left + 6.0, y)] if failed else [], 3),
        )

    rows = tuple(row(host, _TOP + (index + 0.5) * _ROW) for index, host in enumerate(hosts))
    normal, measure, rest = population.normal, population.measure, len(own) - len(hosts)
    low_edge, high_edge = map(x, population.band or (0.0, 0.0))
    shown = {host for host in hosts if own[host]}
    others = [s.value for s in population.samples if s.value and shown.isdisjoint(s.hosts)]
    executions = count(len(population.samples), "execution")
    return StripPlot(
        title=f"{population.title}: {population.step.groups}, {executions}, {measure.unit}",
        limits=population.limits,
        text=f"{rows[0].host} is lowest: {rows[0].text}" if rows else "nothing was measured",
        rows=rows,
        tones=tuple({kind: None for one in rows for kind in one.dots}),
        rest=rest,
        ticks=tuple((short(x(v)), number(measure.shown(v))) for v in round_ticks(low, high)),
        median=short(x(normal.value)) if normal else "",
        bound=short(x(population.bound)) if population.bound else "",
        band=(short(low_edge), short(max(high_edge - low_edge, 0.5))) if normal else None,
        density=_density([x(value) for value in others], bottom + 38) if rest else Markup(""),
        width=left + _PANEL,
        height=bottom + (40 if rest else 2),
        left=left,
    )


def _range(population: Population) -> tuple[float, float]:
    """Return the ends of the axis."""
    values = [s.value for s in population.samples if s.value is not None]
    normal = population.normal
    center = normal.value if normal else (sum(values) / len(values) if values else 1.0)
    marks = [*values, *([population.bound] if population.bound else []), center]
    return min(*marks, center * (1 - _NARROWEST)), max(*marks, center * (1 + _NARROWEST / 2))


def _density(positions: Sequence[float], bottom: float) -> Markup:
    """Return the histogram of the values of all nodes without a row of their own."""
    counts: dict[int, int] = {}
    for position in positions:
        counts[int(position / 4)] = counts.get(int(position / 4), 0) + 1
    most = max(counts.values(), default=1)
    return Markup("").join(
        line(((b * 4 + 2, bottom), (b * 4 + 2, bottom - 30 * n / most)))
        for b, n in sorted(counts.items())
    )
