"""Measure how fast a log is searched for known lines if it has none: `make bench ARGS=signs`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from accept.core.signs import catalog, decisive
from benchmarks import Row
from benchmarks.parse import large_log

#: Megabytes of the block that is searched again and again, and of the whole text.
_BLOCK, _TEXT = 4, 1000


def rows() -> Sequence[Row]:
    """Return the row of a text of 1 GB without a sign, in CPU time of one core."""
    block = large_log(_BLOCK)
    assert not decisive(block)
    begin = time.process_time()
    for _ in range(_TEXT // _BLOCK):
        assert not list(catalog().search(block))
    spent = time.process_time() - begin
    signs = len(catalog().signs)
    return (Row(what=f"1 GB of log without any of {signs} signs", measured=f"{spent:.0f} s"),)
