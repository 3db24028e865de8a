"""Split the time of each step into parts, and find the rank that the others wait for.

A rank's own time lasts until its gradients are ready to be averaged: reading samples, forward and
backward. Ranks that wait for a slow rank have a short own time and a long communication time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rank_io import median
from windowed_timer import Timer, quantile

#: Windows with fewer steps count only if no longer one exists, because one hiccup distorts them.
FEW = 20


class Marks(NamedTuple):
    """A moment, as a time of the host and as one of the device."""

    host: float
    device: Any


class Split(NamedTuple):
    """Seconds of one step: total, reading samples, own time before communication, communication.

    The rest of the total is the update of the parameters.
    """

    whole: float
    input: float
    own: float
    communication: float


class Summary(NamedTuple):
    """One rank's steps in seconds: percentiles of the step, median own time, means of the parts."""

    p50: float
    p95: float
    p99: float
    own: float
    input: float
    compute: float
    communication: float
    total: float


class StepTimer:
    """Record moments in the steps of one rank on its device."""

    def __init__(self, device: str) -> None:
        self.timer = Timer(device)

    def mark(self) -> Marks:
        """Return this moment; on a GPU, the moment when the work enqueued so far is done."""
        moment = self.timer.mark()
        return Marks(time.perf_counter(), moment)

    def split(self, start: Marks, ready: Marks, averaged: Marks, reading: float) -> Split:
        """Return the parts of a step that began at `start` and ends now; wait for the GPU."""
        self.timer.finish()
        whole = time.perf_counter() - start.host
        own = self.timer.between(start.device, ready.device)
        averaging = self.timer.between(ready.device, averaged.device)
        return Split(whole, reading, own, max(averaging, 0.0))


def summary(steps: Sequence[Split]) -> Summary:
    """Return the summary of a rank's steps, at least one."""
    whole = sorted(step.whole for step in steps)
    own = sorted(step.own for step in steps)
    total = sum(whole)
    count = len(steps)
    read = sum(step.input for step in steps) / count
    talked = sum(step.communication for step in steps) / count
    return Summary(
        p50=quantile(whole, 0.5),
        p95=quantile(whole, 0.95),
        p99=quantile(whole, 0.99),
        own=quantile(own, 0.5),
        input=read,
        compute=total / count - read - talked,
        communication=talked,
        total=total,
    )


class Windows:
    """The steps of a run, in windows between two prints.

    `worst` is the window in which one rank kept the others waiting longest, relative to the median;
    it has a row per rank. So a rank that was slow for a part of the run remains visible. All rows
    are of one window, because ranks are comparable only under the same conditions. `p50` is the
    largest median of a window's steps, in seconds.
    """

    def __init__(self) -> None:
        self.worst: list[Summary] = []
        self.p50 = 0.0
        self.steps = 0
        self.totals: list[float] = []
        self._enough, self._lag = False, 0.0

    def add(self, rows: Sequence[Summary], slowest: Sequence[float]) -> None:
        """Add a window: a row per rank, and the slowest rank's time of each step."""
        self.steps += len(slowest)
        before = self.totals or [0.0] * len(rows)
        self.totals = [total + row.total for total, row in zip(before, rows, strict=True)]
        own = [row.own for row in rows]
        enough, lag = len(slowest) >= FEW, max(own) / (median(own) or 1.0)
        if (enough, lag) >= (self._enough, self._lag):
            self.worst, self._lag = list(rows), lag
        if enough >= self._enough:
            longest = median(slowest)
            self.p50 = max(self.p50, longest) if enough == self._enough else longest
        self._enough = self._enough or enough

    @property
    def rate(self) -> float:
        """Return the steps per second over the full run, for the rank that took longest."""
        return self.steps / max(self.totals)
