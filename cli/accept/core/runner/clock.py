"""The clock of a run: wall time when the coordinator starts, then as the monotonic clock moves."""

from __future__ import annotations

import time

#: Wall time at zero of the monotonic clock, as it was at the start.
_OFFSET = time.time() - time.monotonic()


def now() -> float:
    """Return seconds since 1970, without jumps: differences are true durations."""
    return _OFFSET + time.monotonic()
