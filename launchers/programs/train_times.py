"""Where the time of each step goes, and which rank the others wait for.

A rank's own time is what passes until its gradients are there to be averaged: reading its samples,
forward, backward. Ranks that wait for a slow one have a short own time and a long communication.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from stopwatch import share


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
