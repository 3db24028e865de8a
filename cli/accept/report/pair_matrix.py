"""Draw the pairs of nodes as a matrix, ordered by switch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from accept.core.text import spans
from accept.core.verdict import SuspectKind
from accept.report.data import Run, share_of
from accept.report.svg import Cells, Tone, cells, room_for, short, tone_of

#: With more nodes, cells would be smaller than a pixel on paper.
MOST_NODES = 128
#: Colors of measured pairs, the worst last.
_SEVERITY = (Tone.UNKNOWN, Tone.NORMAL, Tone.LOW, Tone.SLOW, Tone.BAD, Tone.FAILED)
_SIDE, _MOST_CELL = 640, 24
#: Width of a column of brackets, and the most columns: a rack and a row.
_BRACKET, _MOST_LEVELS = 13, 2
#: Maximum numbers of pairs whose values are shown on hover, and of suspects with a frame.
_MOST_TEXTS, _MOST_FRAMES = 1000, 8


@dataclass(frozen=True, kw_only=True)
class Label:
    """The name of a node at its row and column."""

    host: str
    at: float
    bad: bool


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """A group of neighbors with a common place in the network."""

    name: str
    #: Distance of its column from the matrix.
    away: int
    begin: float
    length: float


@dataclass(frozen=True, kw_only=True)
class PairMatrix:
    """A matrix of all nodes; cells without a color were not measured."""

    cells: Cells
    #: Path of both cells of a pair, and its worst result in words.
    texts: tuple[tuple[Markup, str], ...]
    labels: tuple[Label, ...]
    brackets: tuple[Bracket, ...]
    #: Outlines of the rows and columns of suspects.
    frames: Markup
    size: float
    #: Room for brackets and names, on the left and above, and for the brackets alone.
    margin: int
    of_brackets: int
    #: Measured pairs, and all pairs.
    measured: int
    pairs: int
    #: Pairs without a valid result, and other bad ones.
    failed: int
    slow: int
    #: What is normal, slow and a failure in each step.
    limits: tuple[str, ...]


def pair_matrix(run: Run) -> PairMatrix | None:
    """Return the matrix of the worst result of each pair; None without pairs or with many nodes."""
    worst: dict[tuple[str, str], tuple[int, float, str]] = {}
    bad: set[tuple[str, str]] = set()
    populations = [population for population in run.populations if population.nodes == 2]
    for population in populations:
        for sample in population.samples:
            one, other = sorted(sample.hosts)
            if sample.bad:
                bad.add((one, other))
            text = f"{one} - {other}, {population.title}: {population.values_of([sample])}"
            severity = _SEVERITY.index(tone_of(sample, population))
            found = severity, -(share_of(sample, population.normal) or 0.0), text
            worst[one, other] = max(worst.get((one, other), found), found)
    count = len(run.order)
    if not worst or not 2 < count <= MOST_NODES:
        return None
    step = min(_SIDE / count, _MOST_CELL)
    brackets = tuple(_brackets(run, step))
    of_brackets = _BRACKET * len({one.away for one in brackets})
    margin = room_for(run.order) + of_brackets
    position = {host: index for index, host in enumerate(run.order)}
    cell = max(step - 1, step * 0.8)
    corners: dict[Tone, list[tuple[float, float]]] = {}
    texts = []
    for pair, (severity, _, text) in sorted(worst.items(), key=lambda item: -item[1][0]):
        a, b = (position.get(host) for host in pair)
        if a is not None and b is not None:
            both = [(margin + x * step, margin + (y + 0.5) * step) for x, y in ((a, b), (b, a))]
            corners.setdefault(_SEVERITY[severity], []).extend(both)
            texts.append((Markup("").join(Markup(_cell(*at, cell)) for at in both), text))
    # Names need about 9 units of height; beyond that only some are shown.
    every = max(1, -(-9 * count // _SIDE))
    failed = {pair for pair, (severity, *_) in worst.items() if _SEVERITY[severity] is Tone.FAILED}
    return PairMatrix(
        cells=cells(corners, cell, cell),
        texts=tuple(texts[:_MOST_TEXTS]),
        labels=tuple(
            Label(host=host, at=(index + 0.5) * step, bad=host in run.suspects)
            for index, host in enumerate(run.order)
            if index % every == 0 or host in run.suspects
        ),
        brackets=brackets,
        frames=Markup("").join(_frames(run, position, step, margin)),
        size=step * count,
        margin=margin,
        of_brackets=of_brackets,
        measured=len(worst),
        pairs=count * (count - 1) // 2,
        failed=len(failed),
        slow=len(bad - failed),
        limits=tuple(f"{one.title}: {one.limits}" for one in populations if one.limits),
    )


def _cell(x: float, y: float, side: float) -> str:
    return _rectangle(x, y - side / 2, side, side)


def _rectangle(x: float, y: float, width: float, height: float) -> str:
    return f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h-{short(width)}z"


def _brackets(run: Run, step: float) -> Iterator[Bracket]:
    """Yield the groups of several nodes that share a place, the smallest groups first."""
    places = [run.found.places.get(host, "").split("/")[:-1] for host in run.order]
    away = 0
    for depth in range(max(map(len, places)), 0, -1):
        groups, begin = [], 0
        for name, own in groupby("/".join(place[:depth]) for place in places):
            length = len(list(own))
            if name and 1 < length < len(places):
                groups.append((name, begin, length))
            begin += length
        if groups and away < _MOST_LEVELS:
            for name, start, length in groups:
                yield Bracket(name=name, away=away, begin=start * step, length=length * step)
            away += 1


def _frames(run: Run, position: dict[str, int], step: float, margin: int) -> Iterator[Markup]:
    """Yield outlines of the rows and columns of suspects, or of where both sides of one meet."""
    whole = [(0, len(position) - 1)]
    for suspect in run.verdict.suspects[:_MOST_FRAMES]:
        own, others = suspect.hosts, suspect.others
        if suspect.kind is SuspectKind.LINK:
            own, others = own[:1], own[1:]
        across = spans(position[host] for host in others if host in position) or whole
        for first, last in spans(position[host] for host in own if host in position):
            for low, high in across:
                row = margin + low * step, margin + first * step
                sides = (high + 1 - low) * step, (last + 1 - first) * step
                yield Markup(_rectangle(*row, *sides) + _rectangle(*row[::-1], *sides[::-1]))
