"""Where the time of each step goes, and which rank the others wait for.

A rank's own time is what passes until its gradients are there to be averaged: reading its samples,
forward, backward. Ranks that wait for a slow one have a short own time and a long communication.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rank_io import median
from windowed_timer import share

#: Fewer steps than these are judged only where there are no more: one hiccup is much of them.
FEW = 20


class Marks(NamedTuple):
    """A moment: on the host, and as an event of the GPU's stream (None on CPU)."""

    host: float
    event: Any


class Split(NamedTuple):
    """Seconds of one step: whole, reading samples, own work before communication, communication.

    What is left of the whole is the update of the parameters.
    """

    whole: float
    input: float
    own: float
    communication: float


class Summary(NamedTuple):
    """One rank's steps: percentiles of the whole, median own time, and mean parts, in seconds."""

    p50: float
    p95: float
    p99: float
    own: float
    input: float
    compute: float
    communication: float
    total: float


class StepTimer:
    """Moments of the steps of one rank on its device."""

    def __init__(self, device: str) -> None:
        self.cuda: Any = None
        if device != "cpu":
            import torch

            self.cuda = torch.cuda

    def mark(self) -> Marks:
        """This moment; on a GPU, when what was asked of it so far will be done."""
        if self.cuda is None:
            return Marks(time.perf_counter(), None)
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return Marks(time.perf_counter(), event)

    def split(self, start: Marks, ready: Marks, averaged: Marks, reading: float) -> Split:
        """The parts of a step that began at `start` and ends now; waits for the GPU."""
        if self.cuda is not None:
            self.cuda.synchronize()
        whole = time.perf_counter() - start.host
        own, averaging = self._between(start, ready), self._between(ready, averaged)
        return Split(whole, reading, own, max(averaging, 0.0))

    def _between(self, first: Marks, second: Marks) -> float:
        if self.cuda is None:
            return second.host - first.host
        return float(first.event.elapsed_time(second.event)) / 1000


def summary(steps: Sequence[Split]) -> Summary:
    """What a rank says of its steps, at least one."""
    whole = sorted(step.whole for step in steps)
    own = sorted(step.own for step in steps)
    total = sum(whole)
    count = len(steps)
    read = sum(step.input for step in steps) / count
    talked = sum(step.communication for step in steps) / count
    return Summary(
        p50=share(whole, 0.5),
        p95=share(whole, 0.95),
        p99=share(whole, 0.99),
        own=share(own, 0.5),
        input=read,
        compute=total / count - read - talked,
        communication=talked,
        total=total,
    )


class Windows:
    """The steps of a run, told in windows: what was seen of all ranks in each of them.

    `worst` is the window in which one rank kept the others waiting longest, as a share of the
    median, a row for each rank: who was slow for a part of the run is in it, whatever came after.
    All rows are of one window, as ranks compare only under the same conditions. `p50` is the
    longest median of a window's steps, in seconds.
    """

    def __init__(self) -> None:
        self.worst: list[Summary] = []
        self.p50 = 0.0
        self.steps = 0
        self.totals: list[float] = []
        self._enough, self._lag = False, 0.0

    def add(self, rows: Sequence[Summary], slowest: Sequence[float]) -> None:
        """Take in a window: a row of each rank, and the slowest rank's time of each step."""
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
        """Steps a second over the whole run, of the rank that took longest."""
        return self.steps / max(self.totals)
