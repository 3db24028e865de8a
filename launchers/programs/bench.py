"""One rank of a measurement of devices: what all do at once, what each does in its turn.

A device that fails does not hide the others: its rank says so, does nothing more with it, and stays
where the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rank_io
import torch_io


class Bench:
    """Who measures what, and how it went. `device` is as torch names it; "" where there is none."""

    def __init__(
        self,
        me: rank_io.Identity,
        plant: rank_io.Plant,
        progress: rank_io.Progress,
        device: str,
        patience: float,
    ) -> None:
        self.me, self.plant, self.progress, self.device = me, plant, progress, device
        #: Seconds that the others wait for a rank that works.
        self.patience = patience
        self.labels: dict[str, Any] = {"host": me.host, "rank": me.rank}
        #: What is accused: the GPU where there is one, by its number on the host, else the host.
        self.who = f"rank {me.rank} on {me.host}"
        if device.startswith("cuda"):
            gpu = torch_io.gpu_number(int(device.partition(":")[2]), me.local_rank)
            self.labels["gpu"] = gpu
            self.who = f"GPU {gpu} of {me.host}"
        self.status = 0 if device else rank_io.EXIT_CRASHED
        self.lost = not device

    def at_once(self, check: str, name: str, work: Callable[[], None]) -> None:
        """Do `work` on all ranks at the same time. All ranks call this together."""
        self.progress.enter(name)
        torch_io.wait_for_all()
        self._attempt(check, name, work)

    def in_turn(self, check: str, name: str, work: Callable[[], None]) -> None:
        """Do `work` on one rank of each host after the other. All ranks call this together."""
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
            said = f"{self.who} failed in {name}: {rank_io.one_line(error)}"
            rank_io.problem("crashed", said, check=check, **self.labels)

    def wrong(self, check: str, cause: str, message: str) -> None:
        """Print that this device computed or kept wrong data."""
        self.status = rank_io.EXIT_WRONG
        rank_io.problem(cause, f"{self.who}: {message}", check=check, **self.labels)

    def metric(self, check: str, name: str, value: float, unit: str) -> None:
        """Print a number of this device."""
        rank_io.metric(name, value, unit, check=check, **self.labels)

    def fact(self, check: str, name: str, value: Any) -> None:
        """Print something else of this device."""
        rank_io.fact(name, value, check=check, host=self.me.host, rank=self.me.rank)
