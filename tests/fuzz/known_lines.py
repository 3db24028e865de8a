"""Lines that nearly match a known line: no pattern takes more than linear time for them."""

from __future__ import annotations

import re
import string
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

from tests.factories.known_lines import EXAMPLES
from tests.fuzz import Broken

from accept.config.signs import event_rows
from accept.core.signs import catalog, decisive

#: True measures the time, which only `python -m tests.fuzz` does: a loaded machine delays tests.
is_timed = False
#: Length of the longest input. It is compared with its eight parts, which take as long together:
#: with all noise, the whole must stay below the eightfold time of a quadratic search. The first
#: part alone may take no time, because what a pattern begins with may follow later.
_LONGEST, _PARTS, _MOST, _NOISE = 1 << 16, 8, 4, 0.02
_CLASSES = (string.digits, string.ascii_letters, "0123456789abcdef:.", " ", "\t", "-./_", "'\"()[]")


@cache
def _events() -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(row.expanded.encode()) for row in event_rows().values())


def _patterns(line: bytes) -> tuple[re.Pattern[bytes], ...]:
    """Return the patterns with which a line is searched."""
    signs = (s for s in catalog().signs if any(one.encode() in line for one in s.literals))
    return (*(sign.regex for sign in signs), *_events())


def make(chance: Random) -> bytes:
    """Return a line of the catalog with parts that repeat, long runs and missing characters."""
    examples = [example for _, example in EXAMPLES]
    examples += [row.example for row in event_rows().values()]
    line = chance.choice(examples)
    for _ in range(chance.randrange(1, 4)):
        begin = chance.randrange(len(line))
        end = chance.randrange(begin, len(line)) + 1
        pumped = line[begin:end] if chance.random() < 0.5 else chance.choice(_CLASSES)
        times = chance.choice((2, 300, _LONGEST)) // len(pumped) + 1
        gap = chance.choice((0, 0, 1, len(line)))
        line = (line[:end] + pumped * times + line[end + gap :])[:_LONGEST]
    return line.encode()[: chance.choice((_LONGEST, -1))]


def read(raw: bytes, _folder: Path) -> str:
    """Search a line for all patterns, and return whether any is in it."""
    found = decisive(raw)
    matching = sum(pattern.search(raw) is not None for pattern in _patterns(raw))
    if is_timed:
        for pattern in _patterns(raw):
            _compare(pattern, raw)
    return f"{len(found)} signs" if found else "near" if not matching else "beyond the limit"


def _compare(pattern: re.Pattern[bytes], raw: bytes) -> None:
    if _seconds(pattern, [raw], 1) < _NOISE:
        return
    size = len(raw) // _PARTS + 1
    # Together, because the clock may count steps of 10 ms.
    parts = _seconds(pattern, [raw[i : i + size] for i in range(0, len(raw), size)], 3)
    whole = _seconds(pattern, [raw], 3)
    if whole > _MOST * parts + _NOISE:
        raise Broken(f"{pattern.pattern!r} takes {whole:.4f} s, and its parts {parts:.4f} s")


def _seconds(pattern: re.Pattern[bytes], texts: Sequence[bytes], passes: int) -> float:
    """Return the CPU time in which these texts are searched: the fastest of some passes."""
    seconds = []
    for _ in range(passes):
        begin = time.process_time()
        for text in texts:
            pattern.search(text)
        seconds.append(time.process_time() - begin)
    return min(seconds)
