"""Print records about each GPU of a host, from the matrix of rates between the GPUs.

`rates[i][j]` is the rate from GPU i to GPU j in GB/s; the diagonal is ignored. For each GPU:

* metric `p2p-out`, `p2p-in` (GB/s): medians over the other GPUs;
* metric `p2p-least`: its slowest path, in either direction, as a share of the lower median of the
  two GPUs of that path; fact `p2p-least`: that path in words.
"""

from __future__ import annotations

from collections.abc import Sequence

import rank_io
import torch_io


def medians(rates: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the median rate at which each GPU sends, and at which it receives."""
    gpus = range(len(rates))
    out = [rank_io.median([rates[i][j] for j in gpus if j != i]) for i in gpus]
    came = [rank_io.median([rates[i][j] for i in gpus if i != j]) for j in gpus]
    return out, came


def slowest_paths(rates: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """Return the slowest path of each GPU: share, from, to.

    The rate is compared with the lower of the two medians, so that a GPU that is slow with all
    others, or far from most of them, does not make the others look slow.
    """
    gpus = range(len(rates))
    out, came = medians(rates)
    paths = [
        (rates[i][j] / max(min(out[i], came[j]), 1e-9), i, j) for i in gpus for j in gpus if i != j
    ]
    return [min(path for path in paths if gpu in path[1:]) for gpu in gpus]


def print_p2p(check: str, me: rank_io.Identity, rates: Sequence[Sequence[float]]) -> None:
    """Print the records of all GPUs of the host; `me` is its first rank, which has measured."""
    out, came = medians(rates)
    numbers = [torch_io.gpu_number(gpu, gpu) for gpu in range(len(rates))]
    for gpu, (share, i, j) in enumerate(slowest_paths(rates)):
        where = {"host": me.host, "rank": me.rank + gpu, "check": check}
        for name, value in (("p2p-out", out[gpu]), ("p2p-in", came[gpu])):
            rounded = float(format(value, ".6g"))
            rank_io.metric(name, rounded, "GB/s", gpu=numbers[gpu], **where)
        rank_io.metric("p2p-least", float(format(share, ".4g")), "", gpu=numbers[gpu], **where)
        path = f"GPU {numbers[i]} to GPU {numbers[j]}: {rates[i][j]:.4g} GB/s"
        rank_io.fact("p2p-least", path, **where)
