"""Compare things of one kind that were measured one by one: GPUs, hosts, full rails, blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.explanation import Normal
from accept.core.judge.effects.populations import FEWEST, robust_sigma
from accept.core.judge.effects.search import explain
from accept.core.judge.values import SIGMAS, is_bad, limit_of, lowest_good
from accept.core.table import Row

#: What healthy peers that differ reach, as a share of their median.
LEAST_OF_UNEVEN = 0.5


class Outlier(NamedTuple):
    """A bad peer, and what is normal."""

    #: The value that shows it.
    row: Row
    cause: Cause
    #: This value as a share of normal; None: normal is unknown.
    share: float | None
    normal: Normal | None
    #: The number of its bad values, and of all its values.
    bad: int
    values: int

    @property
    def text(self) -> str:
        """Return its value as a share of normal, and how often it was slow; empty if unknown."""
        if self.share is None or self.normal is None:
            return ""
        often = ""
        if self.cause is Cause.INTERMITTENT:
            often = f"; slow in {self.bad} of {self.values} executions"
        return f"{self.share:.0%} of the normal value of {self.normal.values}{often}"


def compare_rows(
    rows: Sequence[Row], noise: float, bound: float | None = None, *, uneven: bool = False
) -> tuple[list[Outlier], Normal | None]:
    """Return the peers that are below `bound`, or slow by the model, and what is normal.

    The rows are values of one metric. If more than half of the peers are bad, the fault is not in
    one of them, and none is returned. Normal is None for too few peers. `noise`: the lowest sigma
    of healthy values, as a share. `uneven`: healthy values differ, so only those below
    `LEAST_OF_UNEVEN` of the median are slow.
    """
    of_name: dict[str, list[Row]] = {}
    for row in rows:
        of_name.setdefault(_name(row), []).append(row)
    normal, slow = _halves(of_name) if uneven else _by_model(rows, noise)
    lowest = lowest_good(normal, bound)
    bad: list[Outlier] = []
    for name, own in of_name.items():
        shown = max(own, key=_score)
        if is_bad(_score(shown), bound):
            cause = Cause.BELOW_REFERENCE
        elif name not in slow:
            continue
        elif len(own) > 1 and normal and not is_bad(_score(shown), limit_of(normal)):
            # A peer that is at times as fast as others is slow by what it shows then.
            shown, cause = min(own, key=_score), Cause.INTERMITTENT
        else:
            cause = Cause.SLOW_OUTLIER
        share = _score(shown) / normal.value if normal and normal.value else None
        times = sum(is_bad(_score(row), lowest) for row in own)
        bad.append(Outlier(shown, cause, share, normal, times, len(own)))
    most = len(of_name) > 1 and 2 * len(bad) > len(of_name)
    return ([] if most else bad), normal


def _name(row: Row) -> str:
    """Return what was measured: a host, or its rank or NIC."""
    return f"{row.host or row.hosts[0]} {row.rank} {row.nic}"


def _score(row: Row) -> float:
    return row.score or 0.0


def _by_model(rows: Sequence[Row], noise: float) -> tuple[Normal | None, Collection[str]]:
    """Return what is normal, and the slow peers."""
    if len({*map(_name, rows)}) < FEWEST:
        return None, ()
    executions = [
        Execution(hosts=(_name(row),), population="", value=row.score, log=row.log) for row in rows
    ]
    found = explain(executions, Network(noise=noise))
    faults = (fault for fault in found.faults if len(fault.part.hosts) == 1)
    return found.normal.get(""), {one.part.hosts[0] for one in faults}


def _halves(
    of_name: Mapping[str, Sequence[Row]],
) -> tuple[Normal | None, Collection[str]]:
    """Return the median as the normal value, and the peers below half of it."""
    if len(of_name) < FEWEST:
        return None, ()
    best = {name: max(map(_score, own)) for name, own in of_name.items()}
    middle, count = median(best.values()), sum(map(len, of_name.values()))
    sigma = (1 - LEAST_OF_UNEVEN) / SIGMAS
    normal = Normal(value=middle, sigma=sigma, values=count, hosts=len(best))
    return normal, {n for n, value in best.items() if is_bad(value, LEAST_OF_UNEVEN * middle)}


def far_from_median(values: Mapping[str, float], noise: float) -> tuple[Normal | None, list[str]]:
    """Return what is normal, and the names far from it on both sides, the farthest first.

    Such values are unusual, and no fault. None: too few to compare.
    """
    if len(values) < FEWEST:
        return None, []
    middle = median(values.values())
    sigma = max(noise * abs(middle), robust_sigma(list(values.values())))
    distances = {name: abs(value - middle) for name, value in values.items()}
    far = [name for name, distance in distances.items() if distance > SIGMAS * sigma]
    share = sigma / abs(middle) if middle else 0.0
    normal = Normal(value=middle, sigma=share, values=len(values), hosts=len(values))
    return normal, sorted(far, key=lambda name: -distances[name])
