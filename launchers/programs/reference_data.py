"""Define the data that every rank must hold after a collective.

The data are integers that float32 represents exactly. They depend on rank, index and trial. Only
`Pattern` needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rank_io import Unusable

#: Size of an element in bytes.
FLOAT = 4
#: Elements filled or compared at a time: few enough to stay in a core's cache.
CHUNK = 1 << 18
#: Multipliers that spread indices and trials over 30 bits (odd; otherwise arbitrary).
_INDEX, _TRIAL, _BITS = 668265261, 374761393, (1 << 30) - 1


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective, with its name in nccl-tests."""

    name: str
    redop: str
    #: True if the size is divided among the ranks, so that counts are per rank.
    split: bool = True
    checked_in_place: bool = True
    #: Ratio of busbw to algbw for n ranks.
    factor: Callable[[int], float] = lambda n: (n - 1) / n

    @property
    def check(self) -> str:
        """Return the name of its check, such as "all-reduce"."""
        return self.name.replace("_", "-")


COLLECTIVES = {
    kind.name: kind
    for kind in (
        Collective(name="all_reduce", redop="sum", split=False, factor=lambda n: 2 * (n - 1) / n),
        Collective(name="all_gather", redop="none"),
        Collective(name="reduce_scatter", redop="sum"),
        Collective(name="alltoall", redop="none", checked_in_place=False),
        Collective(
            name="sendrecv",
            redop="sum",
            split=False,
            checked_in_place=False,
            factor=lambda _: 1.0,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the data that a rank receives: its position and its expected content.

    Element i must be ones * a(start + i) + weight * b(start + i). `source` is the rank that sent
    it, or None if contributions of several ranks are summed.
    """

    offset: int
    length: int
    start: int
    ones: int
    weight: int
    source: int | None


def parts(kind: Collective, count: int, rank: int, ranks: int) -> list[Part]:
    """Return what `rank` must have received after `kind` with `count` as nccl-tests counts."""
    if kind.name in ("all_reduce", "reduce_scatter"):
        return [
            Part(
                offset=0,
                length=count,
                start=rank * count if kind.split else 0,
                ones=ranks,
                weight=ranks * (ranks - 1) // 2,
                source=None,
            )
        ]
    if kind.name == "sendrecv":
        source = (rank - 1) % ranks
        return [Part(offset=0, length=count, start=0, ones=1, weight=source, source=source)]
    start = rank * count if kind.name == "alltoall" else 0
    return [
        Part(offset=s * count, length=count, start=start, ones=1, weight=s, source=s)
        for s in range(ranks)
    ]


def count_of(kind: Collective, size: int, ranks: int) -> int:
    """Return nccl-tests' count for `size` bytes.

    The count is in elements. If `kind` is split, it is per rank and a multiple of 16 B.
    """
    elements = size // FLOAT
    return (elements // ranks) & -(16 // FLOAT) if kind.split else elements


class Pattern:
    """The test data: value(rank, index, trial) = a(index, trial) + rank * b(index, trial).

    a is in [0, 256) and b in [1, 8]. With many ranks b's range is smaller, so that sums over all
    ranks stay below 2^24, up to which float represents every integer.
    """

    def __init__(self, ranks: int, device: str) -> None:
        import torch

        room = ((1 << 24) - 256 * ranks) // max(1, ranks * (ranks - 1) // 2)
        if room < 1:
            raise Unusable(f"{ranks} ranks: sums would not be exact in float")
        self._steps = next(steps for steps in (8, 4, 2, 1) if steps <= room)
        index = torch.arange(CHUNK, dtype=torch.int64) * _INDEX & _BITS
        self._table = index.to(torch.int32).to(device)
        self._torch = torch

    def _chunk(self, start: int, length: int, trial: int, ones: int, weight: int) -> Any:
        # Both terms are below 2^30, so their sum does not overflow and its low 30 bits are correct.
        mixed = self._table[:length] + ((start * _INDEX + trial * _TRIAL) & _BITS)
        values = (((mixed >> 20) & (self._steps - 1)) + 1) * weight
        values += ((mixed >> 9) & 255) * ones
        return values.to(self._torch.float32)

    def fill(self, out: Any, rank: int, trial: int) -> None:
        """Write the contribution of `rank` into `out`."""
        for at in range(0, len(out), CHUNK):
            piece = out[at : at + CHUNK]
            piece.copy_(self._chunk(at, len(piece), trial, 1, rank))

    def wrong(self, got: Any, part: Part, trial: int) -> int:
        """Return the number of elements of `got` that differ from `part`."""
        count = self._torch.zeros((), dtype=self._torch.int64, device=got.device)
        for at in range(0, part.length, CHUNK):
            piece = got[part.offset + at : part.offset + min(at + CHUNK, part.length)]
            expected = self._chunk(part.start + at, len(piece), trial, part.ones, part.weight)
            count += (piece != expected).sum()
        return int(count)
