"""Reads what nccl-tests writes with `-J FILE`: the same numbers as its text, so the same model.

A document is turned into the text that says the same and read as such: what makes a table whole,
finite, checked and free of contradictions is known in one place. The environment, which holds
secrets, is skipped unread. Of a document only one member, or one row, is held at a time.

Format: nccl-tests src/util.cu, JSON_FILE_VERSION 3, 2.17.4 to 2.19.6. Only rank 0 writes it; a
crash leaves it without its end, or without its footer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from accept.core import nccl_tests
from accept.core.nccl_tests.document import UNKNOWN_BUS, Document
from accept.core.nccl_tests.nccl_table import Log
from accept.core.nccl_tests.stream import members

__all__ = ["UNKNOWN_BUS", "is_json", "parse"]


def parse(source: bytes | Iterable[bytes] | BinaryIO, *, collective: str | None = None) -> Log:
    """Read a log of nccl-tests, text or JSON; see `accept.core.nccl_tests.parse`.

    A run of several groups at once (NCCL_TESTS_SPLIT) with the times of every process (`-I 1`)
    gives a table for each group, as if it had run alone; any other gives one table.
    """
    blocks = nccl_tests.pieces(source)
    start = b""
    for block in blocks:
        start = (start + block).lstrip()
        if len(start) > 64:
            break
    whole = chain((start,), blocks)
    return nccl_tests.parse(_as_text(whole) if is_json(start) else whole, collective=collective)


def is_json(start: bytes) -> bool:
    """Whether what begins like this is an object of JSON, and no text of nccl-tests."""
    return re.match(rb'\s*\{\s*"', start) is not None


def _as_text(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The text that nccl-tests would have printed beside its JSON."""
    document = Document()
    for key, raw in members(pieces):
        if key:
            document.take(key, raw)
        else:
            yield from document.text()
            document = Document()
