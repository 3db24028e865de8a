"""What the rates between the GPUs of one host say of each of them, printed as records.

`rates[i][j]` is GB/s from GPU i to GPU j; the diagonal is not looked at. Of each GPU:

* metric `p2p-out`, `p2p-in` (GB/s): medians over the others;
* metric `p2p-least`: its slowest way, from it or to it, as a share of what the slower of the two
  GPUs that it joins usually has; fact `p2p-least`: which way that is, in words.
"""

from __future__ import annotations

from collections.abc import Sequence

import rank_io
import torch_io


def medians(rates: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """What each GPU usually sends, and what it usually receives."""
    gpus = range(len(rates))
    out = [rank_io.median([rates[i][j] for j in gpus if j != i]) for i in gpus]
    came = [rank_io.median([rates[i][j] for i in gpus if i != j]) for j in gpus]
    return out, came


def least_ways(rates: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """The slowest way of each GPU: share, from, to.

    Held against the lower of the two medians, a GPU that is slow with all others, or far from most
    of them, makes none of them slow.
    """
    gpus = range(len(rates))
    out, came = medians(rates)
    ways = [
        (rates[i][j] / max(min(out[i], came[j]), 1e-9), i, j) for i in gpus for j in gpus if i != j
    ]
    return [min(way for way in ways if gpu in way[1:]) for gpu in gpus]


def tell(check: str, me: rank_io.Identity, rates: Sequence[Sequence[float]]) -> None:
    """Print it for all ranks of the host: the first of them, `me`, has measured."""
    out, came = medians(rates)
    numbers = [torch_io.gpu_number(gpu, gpu) for gpu in range(len(rates))]
    for gpu, (share, i, j) in enumerate(least_ways(rates)):
        where = {"host": me.host, "rank": me.rank + gpu, "check": check}
        for name, value in (("p2p-out", out[gpu]), ("p2p-in", came[gpu])):
            rounded = float(format(value, ".6g"))
            rank_io.metric(name, rounded, "GB/s", gpu=numbers[gpu], **where)
        rank_io.metric("p2p-least", float(format(share, ".4g")), "", gpu=numbers[gpu], **where)
        said = f"GPU {numbers[i]} to GPU {numbers[j]}: {rates[i][j]:.4g} GB/s"
        rank_io.fact("p2p-least", said, **where)
