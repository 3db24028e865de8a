"""When a training run prints and ends: by the clock of rank 0, at the same step on all ranks.

Clocks need not agree, and asking rank 0 at every step would cost. So with each answer it says in
how many steps it is to be asked again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from train_options import LEAST_STEPS

#: What all ranks do next.
GO_ON, END, PRINT = 0, 1, 2
#: About so far apart the clock is looked at.
LOOK_SECONDS = 10.0


class Clock:
    """The clock of one rank; `agree` makes rank 0's two numbers those of all ranks."""

    def __init__(
        self, options: argparse.Namespace, agree: Callable[[int, int], tuple[int, int]]
    ) -> None:
        self.options, self.agree = options, agree
        now = time.monotonic()
        self.end = now + 60 * options.minutes if options.minutes else float("inf")
        self.due = now + options.report
        #: Before this step rank 0 is asked: with fewer done there is nothing to say.
        self.next = LEAST_STEPS + 1

    def look(self, step: int, last: float) -> int:
        """What is to be done before this step, where the one before it took `last` seconds."""
        if step != self.next:
            return GO_ON
        now = time.monotonic()
        wish = END if now >= self.end else PRINT if now >= self.due else GO_ON
        wish, ahead = self.agree(wish, self.ahead(step, last))
        self.next += ahead
        if wish == PRINT:
            self.due = now + self.options.report
        return wish

    def ahead(self, step: int, last: float) -> int:
        """In how many steps to ask again: at the next comparison of the ranks or before it."""
        every: int = self.options.every
        return max(1, min(int(LOOK_SECONDS / last), every - step % every))
