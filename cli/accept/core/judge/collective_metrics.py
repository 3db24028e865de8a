"""Read the metrics of one collective from a record, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from accept.core.catalog.metrics import BUSBW, TIME
from accept.core.judge.robust_stats import median_of
from accept.core.model import Metric, Placement, Step
from accept.core.nccl_tests.table import UNCHECKED_IN_PLACE
from accept.core.text import parse_size

#: Speeds in GB/s from this on are damage, as are numbers that are not finite.
_ABSURD = 1e9


@lru_cache(maxsize=64)
def message_sizes(low: str, high: str, factor: int) -> tuple[int, ...]:
    """Return the sizes in bytes that nccl-tests measures, smallest first."""
    sizes, highest = [parse_size(low)], parse_size(high)
    while sizes[-1] * factor <= highest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def planned_sizes(step: Step) -> tuple[int, ...]:
    """Return the sizes that a step measures; empty if its parameters do not define them."""
    try:
        low, high = str(step.params["min"]), str(step.params["max"])
        factor = int(step.params["factor"])
        return message_sizes(low, high, factor) if factor > 1 else ()
    except (KeyError, ValueError, TypeError):
        return ()


def nominal(size: int, step: Step) -> int:
    """Return the planned size of a measured one.

    Programs round a size down to whole elements on every rank, by less than half.
    """
    for planned in planned_sizes(step):
        if planned >= size:
            return planned if 2 * size > planned else size
    return size


class Measure(NamedTuple):
    """The metric by which executions of a collective are compared."""

    metric: str
    unit: str
    #: True for a time: then calls per second are compared, because higher must be better.
    inverse: bool = False

    def text(self, value: float) -> str:
        """Return a value for people: "380 GB/s", "14.2 us"."""
        shown = 1e6 / value if self.inverse and value else value
        return f"{number(shown)} {self.unit}"


BANDWIDTH = Measure(BUSBW.name, BUSBW.unit)
LATENCY = Measure(TIME.name, TIME.unit, inverse=True)


def number(value: float) -> str:
    """Return a number with four significant digits, without an exponent if possible."""
    if not math.isfinite(value) or value == 0 or not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def value_range(values: Sequence[float]) -> str:
    """Return the smallest and the largest value for people: "9.6 to 10"."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


class Reading(NamedTuple):
    """The metrics of one collective in one record."""

    #: Bus bandwidth in GB/s at the largest size, or calls per second by the median time of all
    #: sizes, because single times may be outliers even on healthy machines. Out-of-place results
    #: are preferred.
    value: float | None
    #: The largest measured size in bytes; 0: none.
    top: int
    #: Number of wrong elements, over all sizes and placements.
    wrong: float
    #: Placements whose results were not checked.
    unchecked: tuple[str, ...]
    #: Number of values that are not finite or not plausible.
    damaged: int


def read(metrics: Iterable[Metric], check: str, measure: Measure = BANDWIDTH) -> Reading:
    """Read the metrics of `check`.

    The metric `wrong` counts wrong elements of a full table, so it has a placement but no size.
    """
    own = [metric for metric in metrics if metric.check == check]
    measured = [metric for metric in own if metric.name == measure.metric]
    good = [metric for metric in measured if abs(metric.value) < _ABSURD]
    damaged = len(measured) - len(good)
    speeds = {(metric.size or 0, metric.placement): metric.value for metric in good}
    counts: dict[Placement | None, float] = {}
    for metric in own:
        if metric.name == "wrong":
            counts[metric.placement] = counts.get(metric.placement, 0.0) + abs(metric.value)
    if check in UNCHECKED_IN_PLACE:
        counts[Placement.IN] = 0.0
    top = max((size for size, _ in speeds), default=0)
    if measure.inverse:
        value = _calls_per_second(speeds)
    else:
        value = speeds.get((top, Placement.OUT))
        if value is None and speeds:
            value = min(speed for (size, _), speed in speeds.items() if size == top)
    unchecked = {placement or "" for _, placement in speeds} - {key or "" for key in counts}
    wrong = sum(count for count in counts.values() if count != 0)
    return Reading(value, top, wrong, tuple(sorted(unchecked)), damaged)


def _calls_per_second(times: dict[tuple[int, Placement | None], float]) -> float | None:
    """Return calls per second, from the median of times in microseconds."""
    out = [
        value for (_, placement), value in times.items() if placement is Placement.OUT and value > 0
    ]
    out = out or [value for value in times.values() if value > 0]
    return 1e6 / median_of(out) if out else None


def reached(reading: Reading, step: Step) -> bool:
    """Return True if the largest planned size was measured."""
    sizes = planned_sizes(step)
    return reading.value is not None and (not sizes or 2 * reading.top > sizes[-1])
