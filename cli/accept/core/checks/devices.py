"""What the checks of single devices share: parameters, estimate, and reading of a log.

`gemm` and `memory` with equal parameters run in one launch, one process for each GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accept.core import record_protocol
from accept.core.checks import param
from accept.core.model import Parsed
from accept.core.sizes import parse_size

#: Data types of `gemm`, in the order they are measured.
TYPES = ("bf16", "fp8", "tf32", "fp32")
#: As `Check.faults`. One that dies leaves all of its host without a figure.
FAULTS = {"flip": 1, "nan": 1, "hang": 2, "full-disk": 1}
#: Starting Python and torch, and making operands of the default size, in seconds.
_START, _PREPARE, _SIZE = 4.0, 2.0, 8192


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `gemm` and `memory`; each reads those that concern it."""

    seconds: float = param(
        5.0, "how long all GPUs of a host work at once: for each data type, and for copies"
    )
    alone: float = param(0.5, "how long each GPU then works alone; 0: not at all")
    types: str = param("", "data types of gemm, such as bf16,fp8; empty: what the hardware has")
    size: int = param(0, "gemm: rows and columns; 0: by the device, 8192 on large GPUs")
    share: float = param(0.9, "memory: share of a GPU's free memory that is tested")
    # What contexts of CUDA and other programs hold leaves more than half even of small GPUs.
    least: float = param(0.5, "memory: how much of that share of all its memory a GPU must test")
    most: str = param("256M", "memory: what a rank without a GPU tests, at most")
    noise: float = param(0.02, "noise floor when GPUs are compared, as a share of the median")

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for what cannot be run."""
        if not 0 < self.seconds <= 86400 or not 0 <= self.alone <= 86400:
            raise ValueError("seconds must lie between 0 and 86400, alone be at least 0")
        unknown = set(filter(None, self.types.split(","))) - set(TYPES)
        if unknown:
            raise ValueError(f"types: no type {sorted(unknown)[0]!r}; known: {', '.join(TYPES)}")
        if self.size and not 254 <= self.size <= 65536:
            raise ValueError(f"size must be 0, or from 254 to 65536, not {self.size}")
        if not 0 < self.share <= 0.98:
            raise ValueError(f"share must lie between 0 and 0.98, not {self.share}")
        if not 0 <= self.least <= 1:
            raise ValueError(f"least must lie between 0 and 1, not {self.least}")
        if parse_size(self.most) < 1 << 20:
            raise ValueError(f"most must be at least 1M, not {self.most}")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise must lie between 0 and 1, not {self.noise}")


def gemm_seconds(params: Params, _hosts: int, ranks: int) -> float:
    """Seconds: each type at once and alone, and what making and proving its matrices takes."""
    kinds = len(params.types.split(",")) if params.types else len(TYPES)
    prepare = _PREPARE * (params.size or _SIZE) / _SIZE
    return _START + kinds * (params.seconds + ranks * params.alone + prepare)


def memory_seconds(params: Params, _hosts: int, ranks: int) -> float:
    """Seconds: copy and triad at once, copies alone, and a second a GPU for the rest."""
    return _START + 2 * params.seconds + ranks * (params.alone + (1.0 if params.alone else 0.1))


def parse(lines: Iterable[bytes]) -> Parsed:
    """The records of all devices, which name their check; serves both."""
    return record_protocol.parse(lines)
