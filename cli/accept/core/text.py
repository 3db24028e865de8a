"""Make untrusted text safe to show, and read and write sizes such as `8G`."""

from __future__ import annotations

import re
import unicodedata

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$])")


def plain(text: object, most: int = 400) -> str:
    """One line of at most `most` characters: no control, direction or invisible characters.

    Terminal sequences are removed whole, so that nothing of them is left to read as text.
    """
    kept = _ANSI.sub("", str(text)[: most * 8])
    line = "".join(" " if c in "\n\r\t\x0b\x0c" else c for c in kept)
    line = "".join(c for c in line if unicodedata.category(c)[0] != "C")
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def decimal(text: str) -> int | None:
    """The number that a text is: 1 to 18 digits from 0 to 9. None for any other text.

    `int` takes signs, blanks and the digits of any script besides, `str.isdigit` what `int` does
    not, and with more than 4,300 digits it raises.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def visible(text: str) -> str:
    """The lines of a text as they are, without what a terminal would act on."""
    kept = _ANSI.sub("", text).replace("\t", " ")
    return "".join(c for c in kept if c == "\n" or unicodedata.category(c)[0] != "C")


def markdown(text: object, most: int = 400) -> str:
    """The same with everything escaped that Markdown or HTML in it would act on."""
    return _MARKDOWN.sub(r"\\\1", plain(text, most)).replace("\\<", "&lt;").replace("\\&", "&amp;")


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
