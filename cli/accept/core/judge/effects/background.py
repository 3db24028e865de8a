"""Declare the background: what share of pairs and logs is bad without a known reason.

The background explains losses that no part does. Its rates and the distribution of its losses are
learned from the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, log1p

from accept.core.judge.effects.populations import NETWORK

#: Losses by one fault vary by this share of the loss.
VARIES = 0.3
#: Prior of the share of bad pairs, or logs: about 1 % is bad, but in one network of ten it may be
#: far more. Log probability, and the parameters of a Beta distribution.
_PRIORS = ((log(0.9), 0.5, 50.0), (log(0.1), 1.0, 5.0))
#: Prior share of the logs of a bad pair that are bad, and of the values of a bad log; they count
#: like this many logs or values.
ALL_LOGS, ALL_VALUES, PRIOR_COUNT = 0.9, 0.7, 5.0
#: Lowest loss of the background, the width of its bins, and their number; one more for failures.
FIRST = 0.01
_WIDTH, BINS = 0.35, 19
_CENTERS = tuple(FIRST * exp(_WIDTH * (j + 0.5)) for j in range(BINS))
#: Bins farther than this from a loss do not matter.
_NEAR = 3

_TAIL, _PEAK = NETWORK.tail, NETWORK.peak
_SQUARE = 1 / (NETWORK.scale**2 * NETWORK.freedom)


class Table:
    """For each population, the share of background losses in each bin.

    That of a population leans on that of all. A row is computed when it is first read, because
    weighing a candidate reads few.
    """

    def __init__(self, bins: Sequence[Sequence[float]], pool: Sequence[float] = ()) -> None:
        self._bins = bins
        #: The losses of all populations in each bin.
        self._pool = pool or [sum([max(row[j], 0.0) for row in bins]) for j in range(BINS + 1)]
        total = sum(self._pool)
        # Without data, a loss may have any order of magnitude.
        self._prior = [2 * (2 / (BINS + 1) + share) / (2 + total) for share in self._pool]
        self._rows: dict[int, list[float]] = {}

    def __getitem__(self, population: int) -> Sequence[float]:
        """Return the shares of a population, failures last."""
        if population not in self._rows:
            row = [max(x, 0.0) for x in self._bins[population]]
            own = 2 + sum(row)
            shares = zip(self._prior, row, strict=True)
            self._rows[population] = [(prior + x) / own for prior, x in shares]
        return self._rows[population]

    def without(self, losses: Iterable[tuple[int, int, float]]) -> Table:
        """Return the table without some losses: the population, bin and probability of each."""
        bins, pool, changed = [*self._bins], [*self._pool], dict[int, list[float]]()
        for k, bin_, probability in losses:
            row = changed.get(k)
            if row is None:
                row = bins[k] = changed[k] = [*bins[k]]
            before = max(row[bin_], 0.0)
            row[bin_] -= probability
            pool[bin_] += max(row[bin_], 0.0) - before
        return Table(bins, pool)


@dataclass(frozen=True, kw_only=True)
class Background:
    """The rates and losses of bad pairs and logs, from executions that no part explains."""

    pair_rate: float
    log_rate: float
    #: Expected number of bad pairs and logs, by unit.
    pairs: Mapping[int, float]
    logs: Mapping[int, float]
    #: Execution -> probability that it is bad.
    bad: Mapping[int, float]
    table: Table
    #: Population -> log share of bad values in a bad log, and of good ones; the same for logs of a
    #: bad pair, by their populations.
    of_values: Sequence[tuple[float, float]]
    of_logs: Mapping[tuple[int, ...], tuple[float, float]]


def log_add(a: float, b: float) -> float:
    """Return the log of the sum of two exponentials."""
    if a < b:
        a, b = b, a
    return a + log1p(exp(b - a)) if b - a > -40 else a


def log_choose(n: int, k: int) -> float:
    """Return the log of the number of ways to choose k of n."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def bin_of(loss: float) -> int:
    """Return the bin of a background loss."""
    return min(BINS - 1, int(log(loss / FIRST) / _WIDTH))


def near_bins(loss: float, bin_: int) -> list[tuple[int, float]]:
    """Return the bins near that of a loss, with the density of the loss in each."""
    near = range(max(0, bin_ - _NEAR), min(BINS, bin_ + _NEAR + 1))
    widths = ((b, VARIES * _CENTERS[b]) for b in near)
    return [
        (b, exp(_PEAK - _TAIL * log1p(_SQUARE * ((loss - _CENTERS[b]) / w) ** 2)) / w)
        for b, w in widths
    ]


def shares_of(bad: float, total: float, prior: float) -> tuple[float, float]:
    """Return the log of an estimated share, and of the remainder."""
    share = (bad + PRIOR_COUNT * prior) / (total + PRIOR_COUNT)
    return log(share), log1p(-share)


def density(loss: float | None, low: float, high: float, scale: float, fails: float) -> float:
    """Return the log density of a loss that is predicted from `low` to `high`."""
    if loss is None:
        return log(fails)
    apart = loss - low if loss < low else loss - high if loss > high else 0.0
    z = apart / scale
    return _PEAK - _TAIL * log1p(_SQUARE * z * z) - log(scale) - fails


def rate_of(bad: float, total: float) -> tuple[float, float]:
    """Return an estimated rate, and the log likelihood of the data for an unknown rate."""
    good = max(total - bad, 0.0)
    rows = [
        (weight + _log_beta(a + bad, b + good) - _log_beta(a, b), (a + bad) / (a + b + bad + good))
        for weight, a, b in _PRIORS
    ]
    likelihood = log_add(rows[0][0], rows[1][0])
    return sum(exp(own - likelihood) * rate for own, rate in rows), likelihood


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
