"""Draw steps and waves over time, with launches, hangs, deaths and health events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from accept.core.health_readings import HEALTH_CHANGE
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.records import Record
from accept.core.text import duration
from accept.report.data import Run
from accept.report.svg import short

_LEFT, _TOP, _WIDTH, _ROW = 220, 22, 780, 18


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """The waves of one step as bars."""

    name: str
    y: int
    launches: Markup
    work: Markup
    #: Failed executions.
    ticks: Markup
    text: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A row for each step that ran."""

    rows: tuple[StepRow, ...]
    #: Times of changes of device counters.
    health: Markup
    #: Position and text of each tick of the axis.
    axis: tuple[tuple[str, str], ...]
    width: int
    height: int
    left: int = _LEFT
    top: int = _TOP
    row: int = _ROW


def timeline(run: Run) -> Timeline | None:
    """Return the timeline; None if the records have no times."""
    start, seconds = run.verdict.start, run.verdict.end - run.verdict.start
    if seconds <= 0:
        return None

    def x(moment: float) -> float:
        return _LEFT + min(max(moment - start, 0.0), seconds) / seconds * _WIDTH

    waves: dict[str, dict[int, list[Record]]] = {}
    changes: set[float] = set()
    for record in run.records:
        if record.step != HOSTS_STEP and record.end > 0:
            waves.setdefault(record.step, {}).setdefault(record.wave, []).append(record)
        if any(change for _, change in HEALTH_CHANGE.of(record)):
            changes.add(record.end or record.start)
    planned = [step.id for step in run.plan.steps]
    rows = tuple(
        _row(step, index, waves[step], x)
        for index, step in enumerate(step for step in planned if step in waves)
    )
    height = _TOP + len(rows) * _ROW + 6
    return Timeline(
        rows=rows,
        health=Markup("").join(
            Markup(f"M{short(x(moment))} {_TOP}V{height - 4}") for moment in sorted(changes)
        ),
        axis=tuple(
            (short(x(start + part * seconds / 5)), duration(part * seconds / 5))
            for part in range(6)
        ),
        width=_LEFT + _WIDTH + 50,
        height=height,
    )


def _row(
    step: str, index: int, waves: Mapping[int, list[Record]], x: Callable[[float], float]
) -> StepRow:
    launches, work, ticks = [], [], []
    failed = groups = 0
    y = _TOP + index * _ROW
    for records in waves.values():
        begin = min(record.start for record in records)
        end = max(record.end for record in records)
        began = max((r.began for r in records if r.began is not None), default=begin)
        launches.append(_bar(x(begin), x(began), y))
        work.append(_bar(x(began), x(end), y))
        bad = [record for record in records if record.exit != 0]
        failed += len(bad)
        groups += len(records)
        ticks += [Markup(f"M{short(x(record.end))} {y + 2}v{_ROW - 5}") for record in bad[:50]]
    text = f"{len(waves)} waves, {groups} groups"
    return StepRow(
        name=step,
        y=y,
        launches=Markup("").join(launches),
        work=Markup("").join(work),
        ticks=Markup("").join(ticks),
        text=f"{text}, {failed} failed" if failed else text,
    )


def _bar(begin: float, end: float, y: float) -> Markup:
    width = max(end - begin, 0.0)
    # Waves that follow each other at once need a gap to be seen.
    shown = short(max(width - 1, 0.5)) if width else "0"
    return Markup(f"M{short(begin)} {y + 3}h{shown}v{_ROW - 7}h-{shown}z") if width else Markup("")
