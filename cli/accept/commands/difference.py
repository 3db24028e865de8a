"""What changed between two runs, beyond the noise that is in them.

Groups measured in both are compared each with itself, so that slow pairs that always were slow do
not count; else the medians are. The median of n values has 1.2533 times the standard error of their
mean; sigma is estimated as the judge does (`accept.core.judge.population`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import NamedTuple

from accept.commands.figures import Measurement, measurements
from accept.core.judge.population import SIGMAS, spread
from accept.core.model import GroupKind, Plan, Record

#: Least noise of one measurement, as a share: no change below it means anything.
NOISE = 0.01
_MEDIAN = 1.2533
#: +1: more is better; -1: less is.
_BETTER = {"GB/s": 1, "samples/s": 1, "us": -1, "s": -1}


class Kind(NamedTuple):
    """What makes measurements of two runs comparable."""

    check: str
    metric: str
    unit: str
    groups: GroupKind
    nodes: int
    #: GPUs of each node; 0: all.
    gpus: int
    size: int | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One kind of measurement in both runs. Shares are of A; above 0 is better."""

    kind: Kind
    a: float
    b: float
    change: float
    #: What the change must exceed to mean something.
    noise: float
    #: Groups in A and B, and those that were compared with themselves.
    counts: tuple[int, int, int]
    significant: bool
    #: Hosts that lost more than the others did, and how much.
    hosts: tuple[tuple[str, float], ...] = ()

    @property
    def slower(self) -> bool:
        """Whether it got worse, for all or for one."""
        return bool(self.hosts) or (self.significant and self.change < 0)


_Group = tuple[tuple[str, ...], tuple[int, ...]]
_Groups = dict[_Group, float]


def kinds(found: Iterable[Measurement]) -> dict[Kind, _Groups]:
    """Measurements by kind and group; the median of what was repeated."""
    values: dict[Kind, dict[_Group, list[float]]] = {}
    for one in found:
        if one.unit in _BETTER and one.value > 0:
            kind = Kind(*one[:4], len(one.hosts), len(one.ranks), one.size)
            group = (tuple(sorted(one.hosts)), one.ranks)
            values.setdefault(kind, {}).setdefault(group, []).append(one.value)
    return {
        kind: {group: median(several) for group, several in groups.items()}
        for kind, groups in values.items()
    }


def changes(a: Mapping[Kind, _Groups], b: Mapping[Kind, _Groups]) -> tuple[Change, ...]:
    """What both have, in the order of A."""
    return tuple(_change(kind, a[kind], b[kind]) for kind in a if kind in b)


def _change(kind: Kind, a: _Groups, b: _Groups) -> Change:
    sign = _BETTER[kind.unit]
    ratios = {group: (b[group] / a[group]) ** sign for group in a if group in b}
    hosts: tuple[tuple[str, float], ...] = ()
    if len(ratios) * 2 >= min(len(a), len(b)):
        centre, sigma = _of(list(ratios.values()))
        error = sigma / sqrt(len(ratios))
        hosts = tuple(_hosts(ratios, centre, sigma)) if kind.nodes < 3 else ()
    else:
        (one, s_a), (two, s_b) = _of(list(a.values())), _of(list(b.values()))
        centre = (two / one) ** sign
        error = sqrt((s_a / one) ** 2 / len(a) + (s_b / two) ** 2 / len(b))
    noise = max(NOISE, SIGMAS * _MEDIAN * error)
    return Change(
        kind=kind,
        a=median(a.values()),
        b=median(b.values()),
        change=centre - 1,
        noise=noise,
        counts=(len(a), len(b), len(ratios)),
        significant=abs(centre - 1) > noise,
        hosts=hosts,
    )


def _of(values: Sequence[float]) -> tuple[float, float]:
    """Median and sigma of one value; of too few, sigma is that of two measurements."""
    among = spread(values, NOISE)
    centre = median(values)
    return (centre, among.sigma) if among else (centre, sqrt(2) * NOISE * abs(centre))


def _hosts(
    ratios: Mapping[_Group, float], centre: float, sigma: float
) -> Iterator[tuple[str, float]]:
    """Hosts whose groups lost more than the median group did."""
    mine: dict[str, list[float]] = {}
    for (hosts, _), ratio in ratios.items():
        for host in hosts:
            mine.setdefault(host, []).append(ratio)
    for host, several in mine.items():
        lost = median(several) / centre - 1
        if len(mine) > 2 and lost < -max(2 * NOISE, SIGMAS * _MEDIAN * sigma / sqrt(len(several))):
            yield host, lost


def failed(plan: Plan, records: Sequence[Record]) -> set[tuple[str, tuple[str, ...]]]:
    """Checks that measured nothing, with the hosts that were to."""
    have = {(one.check, one.hosts, one.log) for one in measurements(plan, records)}
    return {
        (check, tuple(sorted(record.hosts)))
        for record in records
        for check in record.checks
        if record.exit != 0 and (check, record.hosts, record.log) not in have
    }
