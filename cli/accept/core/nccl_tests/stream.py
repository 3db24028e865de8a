"""Cuts JSON of any length into the members that are wanted, and holds one at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

#: Longest member, or row, that is read, and longest string that is skipped, in bytes. A row with
#: the times of 20 iterations of 8,192 processes (`-I 1`) takes 4 MB.
MAX_MEMBER, _MAX_STRING = 32 << 20, 1 << 20
_BLOCK = 1 << 16

RESULTS = b"results"
#: Members that are read as a whole. The last is how versions before 2.17.9 spell the mean.
_WANTED = (
    b"args",
    b"config",
    b"out_of_bounds",
    b"average_bus_bandwidth",
    b"average_bus_bandwidith",
)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|[][{}"]', re.DOTALL)
_QUOTE = 0x22
#: nccl-tests puts NaN into quotes, and infinities not.
_BARE = re.compile(rb"(?<=[:,\[])(-?(?:inf|nan))(?=[,\]}])")


def members(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the wanted members of each document by their names, and the results one by one.

    A document ends with (b"", b""), wherever it is cut off. A member that is too long is empty.
    """
    depth, at, key, buffer = 0, 0, b"", b""
    begin: int | None = None
    for piece, last in _joined(pieces):
        buffer += piece
        for found in _TOKEN.finditer(buffer, at):
            token, start, end = found[0], *found.span()
            if token[0] == _QUOTE:
                if len(token) == 1 or (end == len(buffer) and not last):
                    # The rest of the string, or whether it is a name, comes with the next piece.
                    at = start
                    break
                if depth == 1 and found[1]:
                    key = token[1 : token.rindex(b'"')]
                    begin = end if key in _WANTED else None
            elif token in b"{[":
                depth += 1
                if depth == 3 and key == RESULTS:
                    begin = start
            else:
                depth = max(0, depth - 1)
                if begin is not None and depth == 1 + (key == RESULTS):
                    yield key, buffer[begin:end] if end - begin <= MAX_MEMBER else b""
                    begin = None
                if depth == 0:
                    yield b"", b""
                    key, begin = b"", None
        else:
            at = len(buffer)
        if begin is not None and len(buffer) - begin > MAX_MEMBER:
            yield key, b""
            begin = None
        if len(buffer) - at > _MAX_STRING:
            break
        gone = at if begin is None else min(at, begin)
        buffer, at = buffer[gone:], at - gone
        begin = None if begin is None else begin - gone
    yield b"", b""


def _joined(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Pieces of 64 KiB and more, and whether it is the last."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            yield b"".join(held), False
            held, size = [], 0
    yield b"".join(held), True


def load(raw: bytes) -> Any:
    """What a member says; None where it is damaged."""
    for text in (raw, _BARE.sub(rb'"\1"', raw)):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            continue
    return None
