"""Write the log of a run: lines with the time, and the table of a step's largest group."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from accept.core import evidence
from accept.core.model import Record
from accept.core.nccl_tests.lines import clean
from accept.core.text import count, nccl_version

#: Lines of nccl-tests: its libraries, the program of the next table, and the average below a table.
_LIBRARY = re.compile(rb"# nccl-tests version [ -~]{0,80} nccl-library=(\d{4,6})")
_PROGRAM = re.compile(rb"# Collective test starting: ([a-z0-9_]{1,40})")
_AVERAGE = re.compile(rb"# Avg bus bandwidth *: [ -~]{1,40}")
#: The two lines above the rows of a table.
_HEADER = re.compile(rb"# +(?:size +count|\(B\) +\(elements\)) +[ -~]{0,200}")
_ROW = re.compile(rb" {0,30}\d{1,18} +\d{1,18} +[a-z0-9_]{1,16} +[ -~]{1,200}")
#: Maximum number of rows of one table, and of lines of all tables of one step.
_MAX_ROWS, _MAX_LINES = 25, 200


def say(text: str) -> None:
    """Print a line with the time of the day in UTC."""
    show(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")


def show(text: str) -> None:
    """Print text unmodified."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def largest_table(folder: Path, records: Iterable[Record], profile: str = "") -> list[str]:
    """Return the tables of nccl-tests in the log of the record with the most hosts.

    Each has a title and ends with its average. `folder` is that of the evidence, `profile` the NCCL
    profile of the step if it is not that of the run.
    """
    largest = max(records, key=lambda record: len(record.hosts), default=None)
    blocks = None if largest is None else evidence.open_log(folder, largest.log)
    if largest is None or blocks is None:
        return []
    ranks = [count(largest.ranks, "rank")] if largest.ranks else []
    group = f"{' '.join((*ranks, 'on'))} {count(len(largest.hosts), 'node')}"
    return list(_table_lines(evidence.lines_of(blocks), group, profile))


def _table_lines(lines: Iterable[bytes], group: str, profile: str) -> Iterator[str]:
    rows = shown = 0
    program, library, in_header = "", "", False
    for raw in lines:
        line = clean(raw)
        if found := _LIBRARY.fullmatch(line):
            library = f"NCCL {nccl_version(int(found[1]))}"
        elif found := _PROGRAM.fullmatch(line):
            program = found[1].decode("ascii")
        is_header = _HEADER.fullmatch(line) is not None
        if is_header and not in_header:
            words = (program or "nccl-tests", group, library, profile and f"profile {profile}")
            yield f"# {', '.join(word for word in words if word)}"
            rows, shown = 0, shown + 1
        in_header = is_header
        if not is_header and not _ROW.fullmatch(line) and not _AVERAGE.fullmatch(line):
            continue
        rows += _ROW.fullmatch(line) is not None
        if rows <= _MAX_ROWS or _AVERAGE.fullmatch(line):
            yield line.decode("ascii").rstrip()
            shown += 1
        if shown >= _MAX_LINES:
            return
