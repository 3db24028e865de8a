"""Draw the rails: a column for each local rank, a row for each node that rails were repeated on."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from accept.core.checks import REGISTRY
from accept.core.judge.evidence import Evidence
from accept.core.judge.results import is_full_rail, scored
from accept.core.judge.rounds import SIGMAS
from accept.core.model import GroupKind, Step
from accept.core.table import Outcome
from accept.report.data import Run
from accept.report.svg import Cells, Tone, cells, tone

_MOST_ROWS = 60
_LEFT, _TOP, _WIDTH, _HEIGHT = 150, 18, 46, 16


@dataclass(frozen=True, kw_only=True)
class RailMatrix:
    """The rails of one check: a row for all nodes together, then nodes in pairs of one rail."""

    check: str
    ranks: tuple[int, ...]
    rows: tuple[str, ...]
    cells: Cells
    #: Text, column, for the full rails.
    values: tuple[tuple[str, int], ...]
    left: int
    top: int
    cell_width: int
    cell_height: int


def rail_matrices(run: Run) -> tuple[RailMatrix, ...]:
    """Return a matrix for each check and step that measured rails."""
    matrices = (
        _matrix(run, evidence, step)
        for evidence in scored(run.evidences.values(), REGISTRY)
        for step in evidence.steps
        if step.groups is GroupKind.RAILS
    )
    return tuple(matrix for matrix in matrices if matrix is not None)


def _matrix(run: Run, evidence: Evidence, step: Step) -> RailMatrix | None:
    full: dict[int, float | None] = {}
    pairs: dict[tuple[str, int], list[float]] = {}
    for row in evidence.results(step=step):
        if row.outcome is Outcome.MISSING or len(row.ranks) != 1:
            continue
        (rank,) = row.ranks
        value = row.value if row.outcome is Outcome.OK else None
        if is_full_rail(row.execution.record, evidence.hosts):
            full[rank] = value
        else:
            for host in row.hosts:
                pairs.setdefault((host, rank), []).append(value or 0.0)
    known = [value for value in full.values() if value]
    if not known:
        return None
    ranks = tuple(sorted({*full, *(rank for _, rank in pairs)}))
    column = {rank: index for index, rank in enumerate(ranks)}
    usual = median(known)
    usual_pair = median(map(max, pairs.values())) if pairs else 0.0
    in_pairs = {host for host, _ in pairs}
    rows = [host for host in run.order if host in in_pairs][:_MOST_ROWS]
    corners: dict[Tone, list[tuple[float, float]]] = {}

    accused = {s.device for s in run.verdict.suspects if s.device is not None}

    def add(value: float | None, normal: float, rank: int, row: int, *, is_bad: bool) -> None:
        kind = Tone.FAILED
        if value and normal:
            low = value < normal * (1 - SIGMAS * run.plan.machine.noise)
            kind = tone(value / normal, low=low, bad=low and is_bad)
        put(kind, rank, row)

    def put(kind: Tone, rank: int, row: int) -> None:
        corner = (_LEFT + column[rank] * _WIDTH, _TOP + (row + 0.5) * _HEIGHT)
        corners.setdefault(kind, []).append(corner)

    for rank in ranks:
        if rank in full:
            add(full[rank], usual, rank, 0, is_bad=str(rank) in accused)
        else:
            put(Tone.MISSING, rank, 0)
        for number, host in enumerate(rows, 1):
            own = pairs.get((host, rank))
            if own is None:
                put(Tone.MISSING, rank, number)
            else:
                # A node is as good as its best pair.
                is_bad = host in run.suspects or str(rank) in accused
                add(max(own), usual_pair, rank, number, is_bad=is_bad)
    return RailMatrix(
        check=evidence.check,
        ranks=ranks,
        rows=("all nodes", *rows),
        cells=cells(corners, _WIDTH - 2, _HEIGHT - 2),
        values=tuple(
            (f"{value:.0f}" if value else "failed", column[rank]) for rank, value in full.items()
        ),
        left=_LEFT,
        top=_TOP,
        cell_width=_WIDTH,
        cell_height=_HEIGHT,
    )
