"""Build matrices whose product is known in advance, and exact in every data type.

Entries are +1 and -1, of period 127 along both axes: A[i,k] = a[(i + k) % 127] and
B[k,j] = b[(k + j) % 127]. Over K = 127 * 2^m the sum over k goes through 2^m whole periods, so that

    (A B)[i,j] = 2^m * r[(j - i) % 127],    r[d] = sum over u of a[u] * b[(u + d) % 127].

Why it is exact: one product is +1 or -1, so every partial sum, in any order and however the sum is
split, is an integer of magnitude at most K, which is at most 8128, below 2^13. fp32
accumulators hold integers up to 2^24, and those of fp8 on Hopper, which keep about 14 bits
(https://arxiv.org/abs/2412.19437, 3.3.2), hold these.
Operands are exact in every type. Of the result, |r| <= 127 takes seven bits and 2^m is a power of
two: bf16 keeps eight. 127 terms of +1 and -1 make r odd, so no element is zero and there is only
one bit pattern for each. The period is prime: it divides no tile, so a tile in the wrong place is
detected.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

PERIOD = 127
#: Maximum number of periods to sum over, as a power of two; sums then stay below 2^13.
MOST_PERIODS = 6


def signs(seed: int) -> list[int]:
    """Return one period of random +1 and -1."""
    pick = random.Random(seed)
    return [pick.choice((-1, 1)) for _ in range(PERIOD)]


def inner(size: int) -> int:
    """Return the largest 127 * 2^m up to `size` and up to 8128; `size` is at least 127."""
    return PERIOD << min(MOST_PERIODS, (size // PERIOD).bit_length() - 1)


def correlation(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Return r[d], the sum over u of a[u] * b[(u + d) % PERIOD]."""
    return [sum(a[u] * b[(u + d) % PERIOD] for u in range(PERIOD)) for d in range(PERIOD)]


def product(a: Sequence[int], b: Sequence[int], k: int) -> list[list[int]]:
    """Return the first PERIOD rows and columns of the product over `k`, which is from `inner`."""
    r = correlation(a, b)
    return [[k // PERIOD * r[(j - i) % PERIOD] for j in range(PERIOD)] for i in range(PERIOD)]


def block(torch: Any, table: Sequence[Sequence[int]], columns: int, like: Any) -> Any:
    """Repeat a PERIOD x PERIOD table to PERIOD x `columns`, with the type and device of `like`."""
    rows = torch.tensor(table, dtype=torch.float32)
    wide = rows.repeat(1, -(-columns // PERIOD))[:, :columns]
    return wide.to(like.device).to(like.dtype).contiguous()


def shifted(values: Sequence[int]) -> list[list[int]]:
    """Return one period of an operand: values[(i + j) % PERIOD]."""
    return [[values[(i + j) % PERIOD] for j in range(PERIOD)] for i in range(PERIOD)]


def tile(target: Any, rows: Any) -> None:
    """Fill `target` from its first row on with repeated `rows`."""
    for start in range(0, len(target), len(rows)):
        part = target[start : start + len(rows)]
        part.copy_(rows[: len(part)])


def bits(torch: Any, tensor: Any) -> Any:
    """View a tensor as integers, so that any different bit compares unequal, also in NaN."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(kind[tensor.element_size()])


class Differs(NamedTuple):
    """The differences of a matrix from the expected one, with the first one in detail."""

    elements: int
    #: Number of elements that are not finite.
    strange: int
    row: int
    column: int
    got: float
    wanted: float


def differs(torch: Any, found: Any, rows: Any) -> Differs | None:
    """Compare every bit of `found` with repeated `rows`; return None if all are equal."""
    period = len(rows)
    starts = range(0, len(found), period)
    want = bits(torch, rows)
    parts = [bits(torch, found[start : start + period]) for start in starts]
    counts = torch.stack([(part != want[: len(part)]).sum() for part in parts]).tolist()
    if not sum(counts):
        return None
    at = next(index for index, count in enumerate(counts) if count)
    row, column = (parts[at] != want[: len(parts[at])]).nonzero()[0].tolist()
    return Differs(
        elements=sum(counts),
        strange=int((~torch.isfinite(found)).sum()),
        row=at * period + row,
        column=column,
        got=float(found[at * period + row, column]),
        wanted=float(rows[row, column]),
    )


def _bytes(tensor: Any) -> memoryview:
    """Return the memory of a contiguous CPU tensor."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr()))


def digest(tensor: Any) -> str:
    """Return BLAKE2b over the bytes of a tensor, computed on the CPU."""
    held = tensor.cpu().contiguous()
    return hashlib.blake2b(_bytes(held), digest_size=16).hexdigest()


def digest_of(rows: Any, count: int) -> str:
    """Return `digest` of a matrix of `count` rows that repeats `rows`, without building it."""
    held = rows.cpu().contiguous()
    memory = _bytes(held)
    each = len(memory) // len(rows)
    made = hashlib.blake2b(digest_size=16)
    for start in range(0, count, len(rows)):
        made.update(memory[: each * min(len(rows), count - start)])
    return made.hexdigest()
