"""Draw the rails: a column for each local rank, a row for each node that rails were repeated on."""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.checks import REGISTRY
from accept.core.judge.evidence import Evidence
from accept.core.judge.results import is_full_rail, scored
from accept.core.plan import GroupKind, Step
from accept.core.table import Outcome, Row
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
    left: int = _LEFT
    top: int = _TOP
    cell_width: int = _WIDTH
    cell_height: int = _HEIGHT


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
    speed, accused = run.effects.speed, {s.device for s in run.verdict.suspects if s.device}
    by_log = {speed.executions[i].log: i for i in speed.of(evidence.check, step)}
    full: dict[int, Row] = {}
    pairs: dict[tuple[str, int], list[Row]] = {}
    for row in evidence.results(step=step):
        if row.outcome is Outcome.MISSING or len(row.ranks) != 1:
            continue
        (rank,) = row.ranks
        if is_full_rail(row.execution.record, evidence.hosts):
            full[rank] = row
        else:
            for host in row.hosts:
                pairs.setdefault((host, rank), []).append(row)
    if not any(map(_value, full.values())):
        return None
    ranks = tuple(sorted({*full, *(rank for _, rank in pairs)}))
    in_pairs = {host for host, _ in pairs}
    rows = [host for host in run.order if host in in_pairs][:_MOST_ROWS]
    corners: dict[Tone, list[tuple[float, float]]] = {}

    def tone_at(own: list[Row], *, is_accused: bool) -> Tone:
        if not own:
            return Tone.MISSING
        # A node is as good as its best pair.
        best = max(own, key=_value)
        index = by_log.get(best.log)
        if not _value(best) or index is None:
            return Tone.FAILED
        low = speed.is_affected(index)
        return tone(speed.share(index), low=low, bad=low and is_accused)

    for column, rank in enumerate(ranks):
        own = {0: [full[rank]] if rank in full else []}
        own |= {at: pairs.get((host, rank), []) for at, host in enumerate(rows, 1)}
        for at, found in own.items():
            is_accused = str(rank) in accused or (at > 0 and rows[at - 1] in run.suspects)
            corner = (_LEFT + column * _WIDTH, _TOP + (at + 0.5) * _HEIGHT)
            corners.setdefault(tone_at(found, is_accused=is_accused), []).append(corner)
    return RailMatrix(
        check=evidence.check,
        ranks=ranks,
        rows=("all nodes", *rows),
        cells=cells(corners, _WIDTH - 2, _HEIGHT - 2),
        values=tuple(
            (f"{value:.0f}" if (value := _value(row)) else "failed", ranks.index(rank))
            for rank, row in full.items()
        ),
    )


def _value(row: Row) -> float:
    return (row.value or 0.0) if row.outcome is Outcome.OK else 0.0
