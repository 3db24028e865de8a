"""Message sizes as nccl-tests writes them: a whole number and K, M, G or T, powers of 1024."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FORM = re.compile(r"([0-9]{1,18})([KMGT]?)", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of `text`, such as "8G", "512K" or "1048576".

    Raises ValueError, naming the forms there are, for anything else and for zero.
    """
    match = _FORM.fullmatch(text.strip().upper())
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if size < 1:
        raise ValueError(
            f"{text[:40]!r} is no size; write a whole number of bytes above 0, "
            "or one with K, M, G or T (powers of 1024), such as 512K or 8G"
        )
    return size


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads as `size` bytes: 8589934592 is "8G"."""
    for unit in ("T", "G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)
