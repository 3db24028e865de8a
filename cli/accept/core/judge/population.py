"""Population: who is clearly slower than equals measured in the same run.

Median and MAD instead of mean and standard deviation, because the outliers looked for must not
widen the limit that is to find them. The MAD of n normal values times 1.4826 estimates sigma; for
small n it comes out too small, which the factors of Croux and Rousseeuw correct (Time-efficient
algorithms for two highly robust estimators of scale, 1992).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Below this many values nothing is concluded.
FEWEST = 4
#: How many sigma below the median is slow: one in 30,000 normal values.
SIGMAS = 4.0

_SMALL = {4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Centre and width of a population, and the limit below which a value is slow."""

    count: int
    median: float
    sigma: float

    @property
    def limit(self) -> float:
        """The lowest value that is not slow."""
        return self.median - SIGMAS * self.sigma

    @property
    def share(self) -> float:
        """The limit as a share of the median."""
        return self.limit / self.median if self.median else 0.0


def middle(values: Iterable[float]) -> float:
    """The median of one value or more."""
    # Loaded where it is used: those who only plan load this module too.
    from statistics import median

    return median(values)


def spread(values: Sequence[float], noise: float, *, fixed: bool = False) -> Spread | None:
    """The spread of `values` (finite), or None below `FEWEST` of them.

    `noise`: what is known to vary in healthy machines, as a share of the median; sigma is never
    less. Without it, equal values would turn the smallest difference into an outlier. `fixed`:
    nor is it more, however far values of unequals lie apart.
    """
    count = len(values)
    if count < FEWEST:
        return None
    centre = middle(values)
    least = noise * abs(centre)
    if fixed:
        return Spread(count=count, median=centre, sigma=least)
    mad = middle(abs(value - centre) for value in values)
    factor = _SMALL.get(count, count / (count - 0.8))
    return Spread(count=count, median=centre, sigma=max(1.4826 * factor * mad, least))
