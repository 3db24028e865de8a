"""Find the hosts and pairs that changed from one run to another, pooled over all figures.

The speed of a host in a figure is the median of its groups, as a log, compared with the median
host. Its change from A to B is pooled over all figures, weighted by their precision. A host is
named if the pooled change is above `NOISE` and above `_POOLED_SIGMAS` times its noise. That noise
is never below the spread of the hosts themselves, so common noise of several figures in one log,
and hosts that drift, do not accuse a host. A change in one figure alone must be clearer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1, hypot, log, sqrt
from statistics import median
from typing import NamedTuple

from accept.core.by_key import by_key
from accept.core.judge.effects.distances import LIMIT
from accept.core.judge.effects.populations import FEWEST, robust_sigma

#: Least noise of one measurement, as a share. Smaller changes are never significant.
NOISE = 0.01
#: The same when hosts are compared with each other: many measurements show how small noise is.
_LOWEST_NOISE = 0.005
#: Standard error of a median divided by that of a mean, for normal noise: sqrt(pi / 2).
MEDIAN_ERROR = 1.2533
#: A host is slower if its pooled change, or that of one figure, exceeds this many sigma.
_POOLED_SIGMAS, _SINGLE_SIGMAS = 5.0, 6.0
#: The sigma of n values is increased by this share of 1/n, because it is uncertain.
_FEW = 3.0
#: A figure counts for at most this many sigma when all are pooled, because noise has heavy tails.
_CLIP_SIGMAS = 3.0
#: A pair collapsed if it also lost this many sigma.
_PAIR_SIGMAS = 6.0
#: A host is slower in the figures in which it lost at least this share of its pooled change.
_SHARED = 0.5

#: Hosts, and local ranks of each (empty: all).
Group = tuple[tuple[str, ...], tuple[int, ...]]


class Figure(NamedTuple):
    """The values of two runs that can be compared, by group; higher is better."""

    a: Mapping[Group, float]
    b: Mapping[Group, float]


@dataclass(frozen=True, kw_only=True)
class ChangedHost:
    """A host that became slower than the others did."""

    host: str
    #: Its change compared with the others, as a share, pooled over the figures that show it.
    change: float
    #: A pooled change is significant if it is larger than this.
    noise: float
    #: Number of figures that show it, and of all figures of this host.
    figures: int
    of_figures: int


@dataclass(frozen=True, kw_only=True)
class ChangedPair:
    """Two hosts whose measurements with each other collapsed."""

    hosts: tuple[str, ...]
    #: The lowest value as a share of that in A, compared with the other pairs.
    share: float
    #: Number of figures that show it, and of all figures of this pair.
    figures: int
    of_figures: int


class _Estimate(NamedTuple):
    """The change of a host, as a log, and the standard error."""

    change: float
    error: float
    #: Number of values of this host.
    values: int

    @property
    def clipped(self) -> _Estimate:
        """Return an estimate that cannot outweigh several others."""
        most = _CLIP_SIGMAS * self.error
        return self._replace(change=max(-most, min(most, self.change)))

    @property
    def is_significant(self) -> bool:
        """Return True if it shows alone that the host is slower; one value never does."""
        return self.values > 1 and self.change < -max(2 * NOISE, _SINGLE_SIGMAS * self.error)


def careful_sigma(values: Sequence[float]) -> float:
    """Return the sigma of values, larger if it rests on few of them; 0 if they are too few."""
    return robust_sigma(values) * (1 + _FEW / len(values)) if len(values) >= FEWEST else 0.0


def changed_hosts(figures: Iterable[Figure]) -> tuple[ChangedHost, ...]:
    """Return the hosts that became slower than the others did, slowest first."""
    estimates = by_key(item for figure in figures for item in _host_changes(figure).items())
    pooled = {host: _pool([one.clipped for one in own]) for host, own in estimates.items()}
    changes = [one.change for one in pooled.values()]
    center, sigma = (median(changes), careful_sigma(changes)) if changes else (0.0, 0.0)
    found = []
    for host, own in estimates.items():
        noise = max(NOISE, _POOLED_SIGMAS * max(pooled[host].error, sigma))
        change = pooled[host].change - center
        if change < -noise:
            showing = [one for one in own if one.change <= _SHARED * change]
        else:
            # The other figures may outweigh one that shows it.
            showing = [one for one in own if one.is_significant]
        if showing:
            found.append(
                ChangedHost(
                    host=host,
                    change=round(expm1(_pool(showing).change), 6),
                    noise=round(noise, 6),
                    figures=len(showing),
                    of_figures=len(own),
                )
            )
    return tuple(sorted(found, key=lambda one: (one.change, one.host)))


def _pool(estimates: Sequence[_Estimate]) -> _Estimate:
    """Return the mean of independent estimates, weighted by their precision."""
    weights = [1 / one.error**2 for one in estimates]
    total = sum(weights)
    mean = sum(w * one.change for w, one in zip(weights, estimates, strict=True)) / total
    return _Estimate(mean, 1 / sqrt(total), sum(one.values for one in estimates))


def _host_changes(figure: Figure) -> dict[str, _Estimate]:
    """Return the change of each host in a figure, compared with the median host.

    Each group is compared with itself. If less than half of the groups are in both runs, each host
    is compared with the others of its run, and both results with each other.
    """
    ratios = _log_ratios(figure)
    if 2 * len(ratios) >= min(len(figure.a), len(figure.b)):
        return _relative(ratios, sqrt(2) * _LOWEST_NOISE)
    before, after = (
        _relative({group: log(value) for group, value in side.items()}, _LOWEST_NOISE)
        for side in figure
    )
    return {
        host: _Estimate(
            change=after[host].change - one.change,
            error=hypot(after[host].error, one.error),
            values=min(after[host].values, one.values),
        )
        for host, one in before.items()
        if host in after
    }


def _log_ratios(figure: Figure) -> dict[Group, float]:
    return {
        group: log(figure.b[group] / figure.a[group]) for group in figure.a if group in figure.b
    }


def _relative(logs: Mapping[Group, float], noise: float) -> dict[str, _Estimate]:
    """Return the median log of each host relative to the median host; none of too few hosts.

    `noise` is the lowest sigma of one value.
    """
    of_host = by_key((host, value) for (hosts, _), value in logs.items() for host in hosts)
    medians = {host: median(own) for host, own in of_host.items()}
    if len(medians) < FEWEST:
        return {}
    center = median(medians.values())
    rest, freedom = list(logs.values()), len(logs) - len(medians)
    if freedom > 0:
        # What remains after the slower host of each group is noise.
        factor = sqrt(len(logs) / freedom)
        rest = [
            factor * (value - min(medians[host] for host in hosts))
            for (hosts, _), value in logs.items()
        ]
    sigma = max(noise, careful_sigma(rest))
    return {
        host: _Estimate(
            change=medians[host] - center,
            error=sigma * (MEDIAN_ERROR if len(own) > 2 else 1.0) / sqrt(len(own)),
            values=len(own),
        )
        for host, own in of_host.items()
    }


def changed_pairs(
    figures: Iterable[Figure], hosts: Sequence[ChangedHost]
) -> tuple[ChangedPair, ...]:
    """Return the pairs that collapsed and that no changed host explains, slowest first."""
    host_logs = {one.host: log(1 + one.change) for one in hosts}
    shares: dict[tuple[str, ...], list[float]] = {}
    collapsed: dict[tuple[str, ...], list[float]] = {}
    for figure in figures:
        ratios = {group: one for group, one in _log_ratios(figure).items() if len(group[0]) == 2}
        if not ratios:
            continue
        sigma = max(NOISE * sqrt(2), careful_sigma([*ratios.values()]))
        center = median(ratios.values()) if len(ratios) >= FEWEST else 0.0
        for (pair, _), ratio in ratios.items():
            shares.setdefault(pair, []).append(ratio - center)
            explained = min(host_logs.get(host, 0.0) for host in pair)
            if ratio - center - explained < min(log(1 - LIMIT), -_PAIR_SIGMAS * sigma):
                collapsed.setdefault(pair, []).append(ratio - center)
    found = [
        ChangedPair(
            hosts=pair,
            share=round(exp(min(lost)), 6),
            figures=len(lost),
            of_figures=len(shares[pair]),
        )
        for pair, lost in collapsed.items()
    ]
    return tuple(sorted(found, key=lambda one: (one.share, one.hosts)))
