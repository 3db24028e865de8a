"""Matrices whose product is known without multiplying them, and exact in every type.

Entries are +1 and -1, of period 127 along both axes: A[i,k] = a[(i + k) % 127] and
B[k,j] = b[(k + j) % 127]. Over K = 127 * 2^m the sum over k goes through 2^m whole periods, so that

    (A B)[i,j] = 2^m * r[(j - i) % 127],    r[d] = sum over u of a[u] * b[(u + d) % 127].

Why it is exact: one product is +1 or -1, so every partial sum, in whatever order and however the
sum is split, is an integer of magnitude at most K, which is at most 8128, below 2^13. fp32
accumulators hold integers up to 2^24, and those of fp8 on Hopper, which keep about 14 bits
(https://arxiv.org/abs/2412.19437, 3.3.2), hold these.
Operands are exact in every type. Of the result, |r| <= 127 takes seven bits and 2^m is a power of
two: bf16 keeps eight. 127 terms of +1 and -1 make r odd, so no element is zero and there is only
one bit pattern for each. The period is prime: it divides no tile, so a tile in the wrong place is
seen.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

PERIOD = 127
#: Most periods that are summed over, as a power of two: the sums are below 2^13.
MOST_PERIODS = 6


def signs(seed: int) -> list[int]:
    """One period of +1 and -1 by seed."""
    pick = random.Random(seed)
    return [pick.choice((-1, 1)) for _ in range(PERIOD)]


def inner(size: int) -> int:
    """The largest 127 * 2^m that is at most `size` (at least 127), and at most 8128."""
    return PERIOD << min(MOST_PERIODS, (size // PERIOD).bit_length() - 1)


def correlation(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """r[d] = sum over u of a[u] * b[(u + d) % PERIOD]."""
    return [sum(a[u] * b[(u + d) % PERIOD] for u in range(PERIOD)) for d in range(PERIOD)]


def product(a: Sequence[int], b: Sequence[int], k: int) -> list[list[int]]:
    """The first PERIOD rows and columns of the product, over `k` (from `inner`)."""
    r = correlation(a, b)
    return [[k // PERIOD * r[(j - i) % PERIOD] for j in range(PERIOD)] for i in range(PERIOD)]


def block(torch: Any, table: Sequence[Sequence[int]], columns: int, like: Any) -> Any:
    """A table of PERIOD x PERIOD repeated to PERIOD x `columns`, as `like` in type and device."""
    rows = torch.tensor(table, dtype=torch.float32)
    wide = rows.repeat(1, -(-columns // PERIOD))[:, :columns]
    return wide.to(like.device).to(like.dtype).contiguous()


def shifted(values: Sequence[int]) -> list[list[int]]:
    """values[(i + j) % PERIOD]: one period of an operand."""
    return [[values[(i + j) % PERIOD] for j in range(PERIOD)] for i in range(PERIOD)]


def tile(target: Any, rows: Any) -> None:
    """Fill `target` from above with `rows`, again and again."""
    for start in range(0, len(target), len(rows)):
        part = target[start : start + len(rows)]
        part.copy_(rows[: len(part)])


def bits(torch: Any, tensor: Any) -> Any:
    """The same memory as integers: what differs in one bit, NaN too, compares unequal."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(kind[tensor.element_size()])


class Differs(NamedTuple):
    """What of a matrix is not as it should be."""

    elements: int
    #: How many of them are no finite numbers.
    strange: int
    row: int
    column: int
    got: float
    wanted: float


def differs(torch: Any, found: Any, rows: Any) -> Differs | None:
    """Compare every element of `found` with `rows`, repeated; None: all are bit for bit equal."""
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
    """The memory of a contiguous tensor on the CPU."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr()))


def digest(tensor: Any) -> str:
    """BLAKE2b over the bytes of a tensor, computed by the CPU whoever holds it."""
    held = tensor.cpu().contiguous()
    return hashlib.blake2b(_bytes(held), digest_size=16).hexdigest()


def digest_of(rows: Any, count: int) -> str:
    """`digest` of a matrix of `count` rows that repeats `rows`, without making it."""
    held = rows.cpu().contiguous()
    memory = _bytes(held)
    each = len(memory) // len(rows)
    made = hashlib.blake2b(digest_size=16)
    for start in range(0, count, len(rows)):
        made.update(memory[: each * min(len(rows), count - start)])
    return made.hexdigest()
