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

#: The two lines above the rows of a table of nccl-tests.
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


def largest_table(folder: Path, records: Iterable[Record]) -> list[str]:
    """Return the tables of nccl-tests in the log of the record with the most hosts.

    `folder` is that of the evidence.
    """
    largest = max(records, key=lambda record: len(record.hosts), default=None)
    blocks = None if largest is None else evidence.open_log(folder, largest.log)
    return [] if blocks is None else list(_table_lines(evidence.lines_of(blocks)))


def _table_lines(lines: Iterable[bytes]) -> Iterator[str]:
    rows = shown = 0
    for raw in lines:
        line = clean(raw)
        if is_header := _HEADER.fullmatch(line):
            rows = 0
        elif not _ROW.fullmatch(line):
            continue
        rows += not is_header
        if rows <= _MAX_ROWS:
            yield line.decode("ascii")
            shown += 1
        if shown == _MAX_LINES:
            return
