"""Draw the pairs of each suspect and of its partners over time: slow always, or only at times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from accept.core.text import duration, number
from accept.core.verdict import Suspect
from accept.report.data import Population, Run, Sample
from accept.report.svg import Tone, crosses, dots, line, marks, round_ticks, short, tone_of

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 480, 170, 46, 8, 20
_MOST = 6


@dataclass(frozen=True, kw_only=True)
class OverTime:
    """The executions of a suspect, joined by a line, and the other ones of its partners."""

    title: str
    text: str
    #: Path through the suspect's values.
    curve: Markup
    #: Color -> dots of the suspect.
    dots: dict[Tone, Markup]
    failed: Markup
    #: Dots of its partners in other pairs.
    others: Markup
    #: A dot of the suspect as a path, and its value in words.
    texts: tuple[tuple[Markup, str], ...]
    band: tuple[str, str] | None
    normal: str
    times: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, str], ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT


def over_time(run: Run) -> tuple[OverTime, ...]:
    """Return a curve for each suspect with bad pairs, in the step with most of these."""
    return tuple(_curves(run))[:_MOST]


def _curves(run: Run) -> Iterator[OverTime]:
    populations = [one for one in run.populations if one.nodes == 2]
    for suspect in run.verdict.suspects:
        pairs = {frozenset(pair.hosts) for pair in suspect.pairs}
        counts = [
            sum(frozenset(s.hosts) in pairs for s in one.samples if s.bad) for one in populations
        ]
        if not any(counts):
            continue
        population = populations[counts.index(max(counts))]
        partners = frozenset[str]().union(*pairs)
        own: list[Sample] = []
        others: list[Sample] = []
        for sample in population.samples:
            if sample.start > 0 and partners.intersection(sample.hosts):
                hosts = frozenset(sample.hosts)
                is_own = hosts in pairs or not (
                    suspect.of_network or hosts.isdisjoint(suspect.hosts)
                )
                (own if is_own else others).append(sample)
        if own:
            yield _curve(run, suspect, population, own, others)


def _curve(
    run: Run, suspect: Suspect, population: Population, own: list[Sample], others: list[Sample]
) -> OverTime:
    normal, measure = population.normal, population.measure
    values = [s.value for s in (*own, *others) if s.value]
    lowest, highest = population.band or (min(values, default=0.0), max(values, default=1.0))
    low, high = min([*values, lowest]) * 0.98, max([*values, highest]) * 1.01
    starts = [s.start for s in (*own, *others)]
    begin, seconds = min(starts), max(max(starts) - min(starts), 1.0)
    since = max(begin - run.verdict.start, 0.0)

    def x(moment: float) -> float:
        part = min(max((moment - begin) / seconds, 0.0), 1.0)
        return _LEFT + 8 + part * (_WIDTH - _LEFT - 20)

    def y(value: float) -> float:
        part = (min(max(value, low), high) - low) / (high - low) if high > low else 0.5
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    tones = []
    texts = []
    for sample in sorted(own, key=lambda one: one.start):
        at = x(sample.start), y(sample.value or low)
        tones.append((tone_of(sample, population), at))
        after = duration(since + sample.start - begin)
        text = f"{' - '.join(sample.hosts)} after {after}: {population.values_of([sample])}"
        texts.append((dots([at]), text))
    failed = [at for kind, at in tones if kind is Tone.FAILED]
    measured = sorted(at for kind, at in tones if kind is not Tone.FAILED)
    return OverTime(
        title=f"{suspect.name}: {population.title}, {measure.unit}",
        text=f"{population.values_of(own)}; its partners in other pairs: "
        f"{population.values_of(others) if others else 'not measured'}",
        curve=line(measured) if measured else Markup(""),
        dots=marks(tones),
        failed=crosses(failed, 3),
        others=dots((x(s.start), y(s.value)) for s in others if s.value),
        texts=tuple(texts[:200]),
        band=(short(y(highest)), short(y(lowest) - y(highest))) if normal else None,
        normal=short(y(normal.value)) if normal else "",
        times=tuple(
            (short(x(begin + part * seconds / 3)), duration(since + part * seconds / 3))
            for part in range(4)
        ),
        values=tuple((short(y(v)), number(measure.shown(v))) for v in round_ticks(low, high)),
    )
