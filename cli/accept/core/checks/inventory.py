"""What each host is, and whether hosts that should be equal are."""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.checks import param


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `inventory`."""

    max_clock_offset: float = param(1.0, "largest clock difference between two hosts, in seconds")
    require_unlimited_memlock: bool = param(
        False, "whether a limited `ulimit -l` is a failure (RDMA needs it unlimited)"
    )
    max_gpu_used_mib: int = param(1024, "GPU memory in use above which a GPU counts as busy, in MiB")
