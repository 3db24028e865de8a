"""What the collective checks share: parameters, estimate, reading of a log, and judgement.

All five run in one launch. A log holds one nccl-tests table for each, announced by a line
`ACCEPT {"fact":"table","value":"all-reduce"}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accept.core.checks import param
from accept.core.sizes import parse_size

NAMES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of a collective check; sizes as nccl-tests writes them."""

    min: str = param("1K", "smallest message, such as 1K")
    max: str = param("16M", "largest message, such as 8G; the one that is judged for speed")
    factor: int = param(2, "each size is the one before times this, at least 2")
    iters: int = param(20, "timed repetitions of each size")
    warmup: int = param(5, "repetitions before the timed ones")
    dtype: Literal["float", "double", "half", "bfloat16", "int32"] = param(
        "float", "type of the elements"
    )

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for what cannot be run."""
        if parse_size(self.max) < parse_size(self.min):
            raise ValueError(f"max {self.max} is smaller than min {self.min}")
        if self.factor < 2:
            raise ValueError(f"factor must be at least 2, not {self.factor}")
        if self.iters < 1 or self.warmup < 0:
            raise ValueError("iters must be at least 1 and warmup at least 0")


def message_sizes(params: Params) -> tuple[int, ...]:
    """The sizes in bytes that nccl-tests goes through, smallest first."""
    sizes = [parse_size(params.min)]
    while sizes[-1] * params.factor <= parse_size(params.max):
        sizes.append(sizes[-1] * params.factor)
    return tuple(sizes)
