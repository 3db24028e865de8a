"""Measure a device: run work at once or in turn on the ranks, and time it in windows.

The windows give rates over time instead of one mean. On CUDA they are timed by events, and the host
does not wait inside a window: it stays a few windows ahead of the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import rank_io
import torch_io

#: Length of one window in seconds. In shorter windows the resolution of events (0.5 us) and the
#: gaps between kernels are a large share.
WINDOW_SECONDS = 0.02
#: Number of windows that the host enqueues ahead of the GPU.
WINDOWS_AHEAD = 4
#: Maximum number of points of a rate curve.
MAX_CURVE_POINTS = 60


class Bench:
    """Run the stages of a measurement on this rank, and print its records.

    If a device fails, its rank reports a problem, measures nothing more, and keeps taking part in
    the barriers, so that the other devices are still measured.
    """

    def __init__(self, rank: rank_io.Rank, patience: float) -> None:
        me, device = self.me, self.device = rank.me, rank.device
        self.injected, self.progress = rank.injected, rank.progress
        #: Seconds that the other ranks wait for one that works.
        self.patience = patience
        self.labels: dict[str, Any] = {"host": me.host, "rank": me.rank}
        #: Name of the device in messages: the GPU by its number on the host, else the rank.
        self.who = f"rank {me.rank} on {me.host}"
        if device.startswith("cuda"):
            gpu = torch_io.gpu_number(int(device.partition(":")[2]), me.local_rank)
            self.labels["gpu"] = gpu
            self.who = f"GPU {gpu} of {me.host}"
        #: The device's name in NVML; "" if it is not a GPU.
        self.uuid = torch_io.uuid_of(device)
        self.status = 0 if device else rank_io.EXIT_CRASHED
        self.lost = not device

    def at_once(self, check: str, name: str, work: Callable[[], None]) -> None:
        """Run `work` on all ranks at the same time. All ranks must call this together."""
        self.progress.enter(name)
        torch_io.wait_for_all()
        self._attempt(check, name, work)

    def in_turn(self, check: str, name: str, work: Callable[[], None]) -> None:
        """Run `work` on one rank of each host at a time. All ranks must call this together."""
        for turn in range(self.me.local_size):
            self.progress.enter(f"{name} {turn}")
            torch_io.wait_for_all()
            if turn == self.me.local_rank:
                self._attempt(check, name, work)

    def _attempt(self, check: str, name: str, work: Callable[[], None]) -> None:
        if self.lost:
            return
        self.progress.work(self.patience)
        try:
            work()
        except Exception as error:
            self.lost, self.status = True, max(self.status, rank_io.EXIT_CRASHED)
            message = f"{self.who} failed in {name}: {rank_io.one_line(error)}"
            rank_io.problem(rank_io.cause_of(error), message, check=check, **self.labels)

    def wrong(self, check: str, cause: str, message: str) -> None:
        """Print a problem: this device computed or kept wrong data."""
        self.status = rank_io.EXIT_WRONG
        rank_io.problem(cause, f"{self.who}: {message}", check=check, **self.labels)

    def finish(self) -> int:
        """Wait for all ranks; return the exit status: the worst of all on rank 0, else 0."""
        self.progress.enter("barrier")
        worst = torch_io.most(self.status)
        self.progress.enter("done")
        return int(worst) if self.me.rank == 0 else 0

    def metric(self, check: str, name: str, value: float, unit: str) -> None:
        """Print a metric of this device."""
        rank_io.metric(name, value, unit, check=check, **self.labels)

    def fact(self, check: str, name: str, value: Any) -> None:
        """Print a fact about this device."""
        rank_io.fact(name, value, check=check, host=self.me.host, rank=self.me.rank)


def _nothing() -> None:
    pass


class Timer:
    """Take moments of the work on a device: of the host on a CPU, else of the current stream."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, device

    def mark(self) -> Any:
        """Return the moment at which the work so far is done: seconds, or an event of a GPU."""
        if self.device == "cpu":
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two moments."""
        return float(end - start if self.device == "cpu" else start.elapsed_time(end) / 1e3)

    def finish(self) -> None:
        """Wait until the enqueued work is done."""
        if self.device != "cpu":
            self.torch.cuda.synchronize(self.device)


class WindowedTimer(Timer):
    """Time work on one device in windows of `window` seconds.

    With `window` 0 each window is one call, which suits a CPU, where calls themselves are timed.
    """

    def __init__(self, device: str, window: float = WINDOW_SECONDS) -> None:
        super().__init__(device)
        self.window = window

    def calls(self, work: Callable[[], None], seconds: float) -> int:
        """Warm up for `seconds`; return the number of calls that fill a window."""
        work()
        self.finish()
        start, count, fastest = time.perf_counter(), 0, 0.0
        while not count or time.perf_counter() - start < seconds:
            before = time.perf_counter()
            work()
            self.finish()
            # The fastest call counts, because the first ones still load kernels.
            took = time.perf_counter() - before
            fastest = took if not count else min(fastest, took)
            count += 1
        return max(1, round(self.window / max(fastest, 1e-9)))

    def windows(
        self,
        work: Callable[[], None],
        calls: int,
        seconds: float,
        *,
        between: Callable[[], None] = _nothing,
        middle: Callable[[], None] = _nothing,
    ) -> list[float]:
        """Run windows of `calls` calls for `seconds`, at least one; return the seconds of each.

        `between` runs after each window, outside of its time, and must not wait for the device.
        `middle` runs once, halfway.
        """
        marks: list[tuple[Any, Any]] = []
        start, middle_done = time.perf_counter(), False
        while not marks or time.perf_counter() - start < seconds:
            if not middle_done and time.perf_counter() - start >= seconds / 2:
                middle_done = True
                middle()
            if self.device != "cpu" and len(marks) >= WINDOWS_AHEAD:
                marks[-WINDOWS_AHEAD][1].synchronize()
            first = self.mark()
            for _ in range(calls):
                work()
            marks.append((first, self.mark()))
            between()
        if not middle_done:
            middle()
        self.finish()
        return [self.between(first, last) for first, last in marks]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def rate_curve(taken: Sequence[float], work: float) -> list[float]:
    """Return the rates over time, at most MAX_CURVE_POINTS; neighboring windows are merged.

    `work` is the work of one window.
    """
    step = -(-len(taken) // MAX_CURVE_POINTS)
    parts = [taken[i : i + step] for i in range(0, len(taken), step)]
    return [float(format(work * len(part) / sum(part), ".4g")) for part in parts]


def print_rates(
    check: str, name: str, unit: str, taken: Sequence[float], work: float, **labels: Any
) -> None:
    """Print the metrics and the curve of a list of window times in seconds.

    The metrics are the median (`NAME`), the 5th percentile (`-p5`), the minimum (`-least`) and the
    maximum (`-most`). `work` is the work of one window, in the numerator of `unit`.
    """
    rates = [work / seconds for seconds in taken]
    values = {
        "": rank_io.median(rates),
        "-p5": quantile(rates, 0.05),
        "-least": min(rates),
        "-most": max(rates),
    }
    for tail, value in values.items():
        rank_io.metric(f"{name}{tail}", float(format(value, ".6g")), unit, check=check, **labels)
    curve = {"metric": name, "seconds": round(sum(taken), 3), "rates": rate_curve(taken, work)}
    where = {key: labels[key] for key in ("host", "rank") if key in labels}
    rank_io.fact("curve", curve, check=check, **where)
