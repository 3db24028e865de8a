"""Draw the pairs of nodes as a matrix, ordered by switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from accept.report.data import Population, Run, share_of
from accept.report.svg import Tone, cells, tone

#: With more nodes, cells would be smaller than a pixel on paper.
MOST_NODES = 128
#: Colors of measured pairs, the worst last.
_SEVERITY = (Tone.UNKNOWN, Tone.NORMAL, Tone.LOW, Tone.SLOW, Tone.BAD, Tone.FAILED)
_SIDE, _MOST_CELL, _MARGIN, _CHARACTER, _LONGEST = 640, 24, 12, 5.2, 18


@dataclass(frozen=True, kw_only=True)
class Label:
    """The name of a node at its row and column."""

    host: str
    at: float
    bad: bool


@dataclass(frozen=True, kw_only=True)
class PairMatrix:
    """A matrix of all nodes; cells without a color were not measured."""

    cells: Mapping[Tone, Markup]
    labels: tuple[Label, ...]
    #: Distance of two cells, and the side of one.
    step: float
    cell: float
    size: float
    #: Room for the names, on the left and above.
    margin: int
    #: Measured pairs, and all pairs.
    measured: int
    pairs: int
    #: Pairs without a valid result, and others that are slower than all normal ones or below their
    #: bound.
    failed: int
    slow: int
    #: The limit of slow pairs; empty: it differs between checks.
    limit: str


def pair_matrix(run: Run) -> PairMatrix | None:
    """Return the matrix of the worst result of each pair; None without pairs or with many nodes."""
    worst: dict[tuple[str, str], Tone] = {}
    slow: set[tuple[str, str]] = set()
    populations = [population for population in run.populations if population.nodes == 2]
    for population in populations:
        for sample in population.samples:
            bound, value = population.bound, sample.value
            is_below = bound is not None and value is not None and value < bound
            kind = tone(share_of(sample, population.normal), is_below_bound=is_below)
            kind = Tone.FAILED if sample.cause or value is None else kind
            one, other = sorted(sample.hosts)
            if sample.bad:
                slow.add((one, other))
            worst[one, other] = max(worst.get((one, other), kind), kind, key=_SEVERITY.index)
    count = len(run.order)
    if not worst or not 2 < count <= MOST_NODES:
        return None
    failed = {pair for pair, kind in worst.items() if kind is Tone.FAILED}
    step = min(_SIDE / count, _MOST_CELL)
    longest = min(_LONGEST, max(map(len, run.order)))
    margin = round(_MARGIN + _CHARACTER * longest)
    position = {host: index for index, host in enumerate(run.order)}
    corners: dict[Tone, list[tuple[float, float]]] = {}
    for (one, other), kind in sorted(worst.items()):
        if one in position and other in position:
            for a, b in ((position[one], position[other]), (position[other], position[one])):
                corners.setdefault(kind, []).append((margin + a * step, margin + (b + 0.5) * step))
    cell = max(step - 1, step * 0.8)
    # Names need about 9 units of height; beyond that only some are shown.
    every = max(1, -(-9 * count // _SIDE))
    labels = tuple(
        Label(host=host, at=(index + 0.5) * step, bad=host in run.suspects)
        for index, host in enumerate(run.order)
        if index % every == 0 or host in run.suspects
    )
    return PairMatrix(
        cells={kind: cells(own, cell) for kind, own in sorted(corners.items())},
        labels=labels,
        step=step,
        cell=cell,
        size=step * count,
        margin=margin,
        measured=len(worst),
        pairs=count * (count - 1) // 2,
        failed=len(failed),
        slow=len(slow - failed),
        limit=_limit(populations[0]) if len(populations) == 1 else "",
    )


def _limit(population: Population) -> str:
    """Return the value below which a pair is slow, and its share of normal."""
    normal, lowest = population.normal, population.lowest_good
    if lowest is None:
        return ""
    share = f", {lowest / normal.value:.0%} of normal" if normal and normal.value else ""
    return f"below {population.measure.text(lowest)}{share}"
