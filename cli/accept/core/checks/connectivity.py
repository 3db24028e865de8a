"""Whether exactly the planned ranks answer over MPI, and how long a message takes between hosts."""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.checks import param


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `connectivity`."""

    pings: int = param(20, "round trips for each pair of hosts; 0 leaves the latency matrix out")
