"""Work repeated for a while and timed in windows: rates over time, not one mean.

On CUDA by events, and without a wait of the host inside a window: the host stays some windows ahead
of the GPU, and waits for the end of one only when the GPU has others to go on with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import rank_io

#: Seconds that one window is to take; shorter ones drown in the resolution of events (0.5 us) and
#: in the gaps between kernels.
WINDOW = 0.02
#: Windows that the host is ahead.
AHEAD = 4
#: Most points of a curve.
CURVE = 60


def _nothing() -> None:
    pass


class Stopwatch:
    """Times work on one device. `window`: see WINDOW; on a CPU, where calls are timed, shorter."""

    def __init__(self, device: str, window: float = WINDOW) -> None:
        import torch

        self.torch, self.device, self.window = torch, device, window

    def finish(self) -> None:
        """Wait until what was enqueued is done."""
        if self.device != "cpu":
            self.torch.cuda.synchronize(self.device)

    def calls(self, work: Callable[[], None], seconds: float) -> int:
        """Warm up for `seconds`; returns how many calls fill a window."""
        work()
        self.finish()
        start, done, each = time.perf_counter(), 0, 0.0
        while not done or time.perf_counter() - start < seconds:
            before = time.perf_counter()
            work()
            self.finish()
            # The best of them: the first still load kernels.
            took = time.perf_counter() - before
            each = took if not done else min(each, took)
            done += 1
        return max(1, round(self.window / max(each, 1e-9)))

    def windows(
        self,
        work: Callable[[], None],
        calls: int,
        seconds: float,
        *,
        between: Callable[[], None] = _nothing,
        middle: Callable[[], None] = _nothing,
    ) -> list[float]:
        """Seconds of each window of `calls` calls, for as long as `seconds`: one window or more.

        `between` comes after each window and counts into none; it must not wait for the device.
        `middle` comes once, half way.
        """
        taken: list[float] = []
        marks: list[Any] = []
        start, struck = time.perf_counter(), False
        while not (taken or marks) or time.perf_counter() - start < seconds:
            if not struck and time.perf_counter() - start >= seconds / 2:
                struck = True
                middle()
            if self.device == "cpu":
                before = time.perf_counter()
                for _ in range(calls):
                    work()
                taken.append(time.perf_counter() - before)
                between()
                continue
            if len(marks) >= AHEAD:
                marks[-AHEAD][1].synchronize()
            first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(calls):
                work()
            last.record()
            between()
            marks.append((first, last))
        if not struck:
            middle()
        self.finish()
        return taken or [first.elapsed_time(last) / 1e3 for first, last in marks]


def share(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` (0 to 1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1)]


def curve(taken: Sequence[float], work: float) -> list[float]:
    """Rates over time, at most CURVE points: of neighbouring windows together, `work` each."""
    step = -(-len(taken) // CURVE)
    parts = [taken[i : i + step] for i in range(0, len(taken), step)]
    return [float(format(work * len(part) / sum(part), ".4g")) for part in parts]


def tell(
    check: str, name: str, unit: str, taken: Sequence[float], work: float, **labels: Any
) -> None:
    """Print what windows say: median rate (`NAME`), the rate that 5 % fall below (`-p5`), least and
    most, and the curve as a fact. `work`: in the unit's numerator, of one window."""
    rates = [work / seconds for seconds in taken]
    found = {
        "": rank_io.median(rates),
        "-p5": share(rates, 0.05),
        "-least": min(rates),
        "-most": max(rates),
    }
    for tail, value in found.items():
        rank_io.metric(f"{name}{tail}", float(format(value, ".6g")), unit, check=check, **labels)
    shown = {"metric": name, "seconds": round(sum(taken), 3), "rates": curve(taken, work)}
    where = {key: labels[key] for key in ("host", "rank") if key in labels}
    rank_io.fact("curve", shown, check=check, **where)
