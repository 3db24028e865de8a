"""What one record says of one collective: read once, in one pass over its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from accept.core.judge.robust_stats import median_of
from accept.core.model import Metric, Step
from accept.core.text import parse_size

#: In place these overwrite what they send, so nothing can be checked.
_UNCHECKED_IN_PLACE = ("alltoall", "sendrecv")
#: GB/s that no machine has; a number beyond is damage, as is one that is not finite.
_ABSURD = 1e9


@lru_cache(maxsize=64)
def message_sizes(low: str, high: str, factor: int) -> tuple[int, ...]:
    """The sizes in bytes that nccl-tests goes through, smallest first."""
    sizes, most = [parse_size(low)], parse_size(high)
    while sizes[-1] * factor <= most:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def planned_sizes(step: Step) -> tuple[int, ...]:
    """The sizes a step goes through; empty where its parameters do not say."""
    given: dict[str, Any] = step.params
    try:
        low, high = str(given["min"]), str(given["max"])
        factor = int(given["factor"])
        return message_sizes(low, high, factor) if factor > 1 else ()
    except (KeyError, ValueError, TypeError):
        return ()


def nominal(size: int, step: Step) -> int:
    """The planned size that a measured one stands for.

    Programs round a size down to whole elements on every rank.
    """
    for planned in planned_sizes(step):
        if planned >= size:
            return planned if size * int(step.params["factor"]) > planned else size
    return size


class Measure(NamedTuple):
    """What executions of a collective are compared by; higher is better."""

    metric: str
    unit: str
    #: Whether it is a time, and calls a second are compared.
    inverse: bool = False

    def text(self, value: float) -> str:
        """A value as people know it: "380 GB/s", "14.2 us"."""
        shown = 1e6 / value if self.inverse and value else value
        return f"{number(shown)} {self.unit}"


BANDWIDTH = Measure("busbw", "GB/s")
LATENCY = Measure("time", "us", inverse=True)


def number(value: float) -> str:
    """A figure with four significant digits and no exponent where it can be helped."""
    if not math.isfinite(value) or value == 0 or not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class Reading(NamedTuple):
    """What one record says of one collective."""

    #: Bus bandwidth in GB/s at the largest size, or calls a second by the median time over all
    #: sizes, as single ones stand out on healthy machines; out of place where measured so.
    value: float | None
    #: The largest size measured; 0: none.
    top: int
    #: Elements that arrived wrong, over all sizes and placements.
    wrong: float
    #: Placements of which it is not known whether all data were right.
    unchecked: tuple[str, ...]
    #: Numbers that are none.
    damaged: int


def read(metrics: Iterable[Metric], check: str, measure: Measure = BANDWIDTH) -> Reading:
    """Collect a record's metrics of `check`, in one pass.

    `wrong` counts a whole table: it has a placement, and no size.
    """
    mine = [metric for metric in metrics if metric.check == check]
    speeds_said = [metric for metric in mine if metric.name == measure.metric]
    good = [metric for metric in speeds_said if abs(metric.value) < _ABSURD]
    damaged = len(speeds_said) - len(good)
    speeds = {(metric.size or 0, metric.placement): metric.value for metric in good}
    counts: dict[str | None, float] = {}
    for metric in mine:
        if metric.name == "wrong":
            counts[metric.placement] = counts.get(metric.placement, 0.0) + abs(metric.value)
    if check in _UNCHECKED_IN_PLACE:
        counts["in"] = 0.0
    top = max((size for size, _ in speeds), default=0)
    if measure.inverse:
        found = _calls(speeds)
    else:
        found = speeds.get((top, "out"))
        if found is None and speeds:
            found = min(value for (size, _), value in speeds.items() if size == top)
    unchecked = {placement or "" for _, placement in speeds} - {key or "" for key in counts}
    wrong = sum(value for value in counts.values() if value != 0)
    return Reading(found, top, wrong, tuple(sorted(unchecked)), damaged)


def _calls(times: dict[tuple[int, str | None], float]) -> float | None:
    """Calls a second, by the median of times in microseconds."""
    out = [value for (_, placement), value in times.items() if placement == "out" and value > 0]
    out = out or [value for value in times.values() if value > 0]
    return 1e6 / median_of(out) if out else None


def reached(found: Reading, step: Step) -> bool:
    """Whether the largest planned size was measured."""
    sizes = planned_sizes(step)
    return found.value is not None and (
        not sizes or found.top * int(step.params["factor"]) > sizes[-1]
    )
