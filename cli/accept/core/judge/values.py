"""Decide whether a measured value is bad; judge, reports and commands all ask here.

What is not measured against a bound or peers has its own rules: counters and states of hosts in
`health_rules.py`, clocks under load in `devices.py`, `pauses.py` and `packet_loss.py`.
"""

from __future__ import annotations

from accept.core.judge.effects.explanation import Normal

#: A value this many sigma below normal is slow, as one in 30,000 normal values is.
SIGMAS = 4.0


def is_bad(value: float | None, lowest: float | None, highest: float | None = None) -> bool:
    """Return True if nothing was measured, or if a value is outside its limits (None: no limit).

    The limits are those of a bound, or of what healthy peers reach; see `lowest_good`. What is not
    a number is bad.
    """
    return value is None or not (
        (lowest is None or value >= lowest) and (highest is None or value <= highest)
    )


def limit_of(normal: Normal) -> float:
    """Return the lowest value that is not slow."""
    return normal.value * (1 - SIGMAS * normal.sigma)


def lowest_good(normal: Normal | None, bound: float | None = None) -> float | None:
    """Return the lowest value that is neither slow nor below its bound; None: unknown."""
    slow = limit_of(normal) if normal else None
    return max((limit for limit in (slow, bound) if limit is not None), default=None)
