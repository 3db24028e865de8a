"""Write the log of a run: lines with the time, and the table of a step's largest group."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from accept.core.records import Record
from accept.core.report.result_files import tables

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

    `folder` is that of the evidence, `profile` the NCCL profile of the step if it is not that of
    the run.
    """
    largest = max(records, key=lambda record: len(record.hosts), default=None)
    if largest is None:
        return []
    return list(islice(tables(folder, largest, profile, most_rows=_MAX_ROWS), _MAX_LINES))
