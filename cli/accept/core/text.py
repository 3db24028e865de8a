"""Make untrusted text safe to show; format counts, durations, sizes and host lists; text enums."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from enum import Enum

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,12})([^0-9]*)")
#: An underscore inside a word starts nothing, and nor does a bracket without a square one.
_MARKDOWN = re.compile(r"([\\`*{}\[\]<#|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
#: Commands of GitHub Actions, at the start of a line, and of Azure Pipelines, anywhere.
#: https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
#: https://learn.microsoft.com/azure/devops/pipelines/scripts/logging-commands
_CI_COMMAND = re.compile(r"^(\s*:)(?=:[A-Za-z].*::)|(##)(?=(?:vso)?\[)", re.MULTILINE)


class TextEnum(str, Enum):
    """A closed set of texts. `enum.StrEnum` needs Python 3.11."""

    def __str__(self) -> str:
        return str(self.value)


def plain(text: object, most: int = 400) -> str:
    """Return one line of at most `most` characters, without control and invisible characters.

    Terminal sequences are removed completely, so that no part of them is left as text.
    """
    kept = _ANSI.sub("", str(text)[: most * 8])
    line = "".join(" " if c in "\n\r\t\x0b\x0c" else c for c in kept)
    line = "".join(c for c in line if unicodedata.category(c)[0] != "C")
    line = inert(" ".join(line.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def inert(text: str) -> str:
    """Return lines for the log of a CI system, with a blank in what it would take for a command."""
    if "::" not in text and "##" not in text:
        return text
    return _CI_COMMAND.sub(lambda match: f"{match[1] or match[2]} ", text)


def decimal(text: str) -> int | None:
    """Parse a number of 1 to 18 ASCII digits. Return None for any other text.

    `int` also accepts signs, blanks and the digits of any script, and raises for more than 4,300
    digits. `str.isdigit` accepts characters that `int` does not.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def visible(text: str) -> str:
    """Return the lines of a text without anything that controls a terminal."""
    kept = _ANSI.sub("", text).replace("\t", " ")
    return "".join(c for c in kept if c == "\n" or unicodedata.category(c)[0] != "C")


def command_line(*words: object) -> str:
    """Return a command line to copy. Words that a shell would interpret are quoted."""
    return shlex.join(plain(word, 4096) for word in words)


def markdown(text: object, most: int = 400) -> str:
    """Return `plain(text, most)` with the special characters of Markdown and HTML escaped.

    A comment after `@` keeps a page in an issue from notifying people.
    """
    line = _MARKDOWN.sub(r"\\\1", plain(text, most)).replace("\\<", "&lt;").replace("\\&", "&amp;")
    return line.replace("@", "@<!-- -->")


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 host" or "2 hosts"; `plural` if it is irregular."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def nccl_version(code: int) -> str:
    """Return the version of NCCL in NCCL_VERSION_CODE, such as 2.28.3 for 22803."""
    first, step = (10_000, 100) if code >= 10_000 else (1000, 100)
    return f"{code // first}.{code % first // step}.{code % step}"


def number(value: float) -> str:
    """Return a number with four significant digits, without an exponent if possible."""
    if not math.isfinite(value) or value == 0 or not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def met_bound(value: float, *, upper: bool = False) -> str:
    """Return a round number, two digits, that a value meets as a lower or `upper` bound.

    For a value that nothing measures, such as NaN, it is 1.
    """
    if not 1e-300 < value < math.inf:
        return "1"
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return number((math.ceil if upper else math.floor)(value / step) * step)


def value_range(values: Sequence[float]) -> str:
    """Return the smallest and the largest value for people: "9.6 to 10"."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def shortened(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first texts, such as "a, b and 4 more"; `most` is how many of them are shown."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def host_list(hosts: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    return shortened(hosts, 4)


def device_label(host: str | None, rank: int | None, gpu: str | None) -> str:
    """Return a device for people: "GPU 3 of h1", or "rank 3 of h1" without a GPU."""
    return f"GPU {gpu} of {host}" if gpu else f"rank {rank} of {host}"


def duration(seconds: float) -> str:
    """Return a duration as "0.25 s", "45 s", "3 min 29 s" or "3 h 29 min"."""
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def byte_count(size: int) -> str:
    """Return a number of bytes as "0 B", "4.1 kB", "64 MB" or "1.25 GB"."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size} B"


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})([KMGT]?)", re.ASCII)


def parse_size(text: str) -> int:
    """Parse a size such as "8G", "512K" or "1048576" into bytes.

    Raise ValueError, with examples, for anything else and for zero.
    """
    match = _SIZE.fullmatch(text.strip().upper())
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if size < 1:
        raise ValueError(
            f"{text[:40]!r} is not a valid size; write a whole number of bytes above 0, "
            "or one with K, M, G or T (powers of 1024), such as 512K or 8G"
        )
    return size


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as `size` bytes: 8589934592 is "8G"."""
    for unit in ("T", "G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def folded(names: Sequence[str]) -> str:
    """Return names of hosts as a short list: "node[01-03,07],login".

    Only the last number of a name is folded. Leading zeros are kept.
    """
    matches = {name: _LAST_NUMBER.fullmatch(name) for name in names}
    parts = {name: match.groups() for name, match in matches.items() if match}
    padded = {
        (before, after, len(digits))
        for before, digits, after in parts.values()
        if digits.startswith("0") and digits != "0"
    }
    numbers: dict[tuple[str, str, int], list[int]] = {}
    for name in matches:
        if name not in parts:
            numbers[name, "", 0] = []
            continue
        before, digits, after = parts[name]
        width = len(digits) if (before, after, len(digits)) in padded else 0
        numbers.setdefault((before, after, width), []).append(int(digits))
    return ",".join(
        f"{before}{_ranges(own, width)}{after}" for (before, after, width), own in numbers.items()
    )


def _ranges(numbers: Sequence[int], width: int) -> str:
    """Return numbers as "[1-3,7]", a single number without brackets, and "" for none."""
    texts = [
        f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}"
        for low, high in spans(numbers)
    ]
    return "".join(texts) if len(numbers) < 2 else f"[{','.join(texts)}]"


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each row of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
