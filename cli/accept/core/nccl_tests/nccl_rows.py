"""Reads rows of a table, many at once: column by column is twice as fast as row by row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import isfinite
from typing import NamedTuple

from accept.core.nccl_tests.lines import BY_WIDTH, Layout, word
from accept.core.nccl_tests.nccl_table import Row, Side

#: `Side(*cells)` and `Row(*cells)`, without the function that namedtuple puts in between.
_side = partial(tuple.__new__, Side)
_row = partial(tuple.__new__, Row)


class Rows(NamedTuple):
    """What some lines hold: the rows that can be believed, and words about what cannot."""

    rows: Sequence[Row]
    #: Every placement of every row was checked and right.
    right: bool
    damaged: Sequence[str] = ()
    not_finite: Sequence[str] = ()


def read_rows(lines: Sequence[bytes], layout: Layout | None, factor: float | None) -> Rows | None:
    """Read lines that are rows, or return None where any of them is none.

    `factor` is busbw / (size / time), or None where that is not known; see `bus_factor`.
    """
    tokens = [line.split() for line in lines]
    layout = layout or BY_WIDTH.get(len(tokens[0]))
    if layout is None or {*map(len, tokens)} != {layout.width}:
        return None
    columns: list[Sequence[bytes]] = [*zip(*tokens, strict=True)]
    if layout.lacks:
        columns += [b"none"] * len(lines), [b"-1"] * len(lines)
    size, kind, redop, root, *sides = layout.pick(columns)
    types, redops = [*map(word, kind)], [*map(word, redop)]
    # Python would read 1_000 as a number.
    if None in types or None in redops or _underlined(lines, (size, root, *sides)):
        return None
    wrong = _deviation if layout.deviation else _wrong
    try:
        sizes, roots = [*map(int, size)], [*map(int, root)]
        out_time, in_time = [*map(float, sides[0])], [*map(float, sides[3])]
        out_bus, in_bus = [*map(float, sides[1])], [*map(float, sides[4])]
        out_wrong, in_wrong = [*map(wrong, sides[2])], [*map(wrong, sides[5])]
    except ValueError:
        return None
    if min(sizes) < 0 or max(sizes) >= 1 << 63:
        return None
    out = map(_side, zip(out_time, out_bus, out_wrong, strict=True))
    inp = map(_side, zip(in_time, in_bus, in_wrong, strict=True))
    rows = [*map(_row, zip(sizes, types, redops, roots, out, inp, strict=True))]
    right = {*out_wrong, *in_wrong} == {0}
    if layout.cpu_time:
        factor = None
    finite = isfinite(sum(out_time) + sum(out_bus) + sum(in_time) + sum(in_bus))
    if not finite or (
        factor is not None
        and (
            _doubtful(sizes, out_time, out_bus, factor) or _doubtful(sizes, in_time, in_bus, factor)
        )
    ):
        return _sift(rows, right=right, factor=factor)
    return Rows(rows, right)


def _underlined(lines: Sequence[bytes], columns: Sequence[Sequence[bytes]]) -> bool:
    """Say whether there is an underscore in any of the columns; types may have one."""
    return b"_" in b"".join(lines) and any(b"_" in b"".join(column) for column in columns)


@lru_cache(maxsize=256)
def _wrong(token: bytes) -> int | None:
    """Read a count of wrong elements: `%g` of an integer, or N/A. Raises ValueError."""
    if token == b"N/A":
        return None
    value = float(token)
    if not isfinite(value):
        return None
    if value < 0:
        raise ValueError(token)
    return int(value) if value == int(value) else None


@lru_cache(maxsize=256)
def _deviation(token: bytes) -> int | None:
    """Read a largest deviation; the footer alone says whether it is too large."""
    return None if token == b"N/A" or not isfinite(float(token)) else 0


def _doubtful(
    sizes: Sequence[int], times: Sequence[float], buses: Sequence[float], factor: float
) -> list[bool]:
    """Return something where any row may contradict itself: `_contradicts`, in haste."""
    share = factor * 1e-3
    return [
        True
        for size, time, busbw in zip(sizes, times, buses, strict=True)
        if abs(share * size - busbw * time) > 0.005 * (time + busbw) + 6e-4 * share * size
    ]


def _contradicts(size: int, time: float, busbw: float, factor: float) -> bool:
    """Say whether a row's numbers disagree by more than their printed digits allow.

    busbw = factor * size / time. Times have two decimals, or at least four digits (two in the
    form 1.0e+07); bandwidths two decimals, or at least five digits.
    """
    moved = factor * size * 1e-3
    slack = 0.0055 * (time + busbw) + (7e-4 if time < 9.5e6 else 0.06) * moved
    return abs(moved - busbw * time) > slack


def _sift(rows: Sequence[Row], *, right: bool, factor: float | None) -> Rows:
    """Take out numbers that are not finite and rows that contradict themselves."""
    kept: list[Row] = []
    damaged: list[str] = []
    not_finite: list[str] = []
    for row in rows:
        sides: list[Side | None] = []
        for place, side in row.sides():
            assert side is not None
            if isfinite(side.time) and isfinite(side.busbw):
                sides.append(side)
                if factor is not None and _contradicts(row.size, *side[:2], factor):
                    damaged.append(f"the row of {row.size} B contradicts itself")
                    break
            else:
                sides.append(None)
                where = f"{row.size} B ({'in' if place == 'in' else 'out-of'}-place)"
                text = f"the time at {where} is {side.time} us and busbw is {side.busbw} GB/s"
                not_finite.append(text)
        else:
            kept.append(row._replace(out_of_place=sides[0], in_place=sides[1]))
    return Rows(kept, right, damaged, not_finite)
