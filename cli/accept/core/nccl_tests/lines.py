"""Parse single lines of nccl-tests output: prefixes, messages of NCCL, devices and rows.

All functions are pure and accept any bytes without raising.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

from accept.core.model import Placement

#: Longer lines are ignored completely.
LINE_LIMIT = 64 * 1024

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")

#: Prefixes of launchers and log collectors: Open MPI 4 and 5 (`--tag-output`), srun (`-l`),
#: `kubectl logs --prefix`, stern, compose, pdsh, container runtimes, timestamps.
_PREFIX = re.compile(
    rb"(?:"
    rb"\[[^][\s]{1,200}\](?:\[[^][\s]{1,200}\])?<std(?:out|err|diag)>: ?"  # [1,0]<stdout>:
    rb"|\[\d{4}-\d\d-\d\d[T ][^]\s]{5,30}\] ?"  # [2026-01-31 10:00:00]
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\s]{0,24} (?:std(?:out|err) [FP] )?"
    rb"|\[[^][\s]{1,200}\](?:: ?| )"  # [host:rank]: [pod]
    rb"| {0,5}\d{1,6}: "  # 12:
    rb"|[\w.-]{1,255}(?:: | +\| | [\w.-]{1,255} \xe2\x80\xba )"  # node1:   pod |
    rb"){1,4}"
)

_NCCL = re.compile(rb" NCCL (?:INFO|WARN|TRACE|ERROR|ABORT|VERSION) ?")
_NCCL_HEAD = re.compile(
    rb"(?:\[[^][\s]{1,200}\]<std(?:out|err)>: ?)?(?:\[\d{4}-\d\d-\d\d[T ][^]\s]{5,30}\] )?"
    rb"([\w.-]{1,255}):\d{1,10}:\d{1,10} \[-?\d{1,4}\](?: \S{1,200}:\d{1,6})?$"
)
#: Longest head of a message before the word NCCL, in bytes.
_HEAD_LIMIT = 720


def clean(line: bytes) -> bytes:
    """Return the line without terminal colors, launcher prefixes and the carriage return."""
    if b"\x1b" in line:
        line = _ANSI.sub(b"", line)
    if not line.startswith(b"#") and (prefix := _PREFIX.match(line)):
        line = line[prefix.end() :]
    return line.rstrip(b"\r")


def split_nccl(
    text: bytes, hosts: Container[str], *, inside: bool
) -> tuple[bytes, str, bytes] | None:
    """Split a cleaned line at a message of NCCL: (text before it, its host, the message).

    Return None if the line has no such message. The message of another rank can interrupt a row at
    any byte, so its host name may follow a number without a gap ("23.8node2:11:12 [0] NCCL INFO").
    The known host names, `hosts`, show where the name begins. `inside` is True while a cut row
    waits for its rest, because a line may then begin with that rest.
    """
    word = _NCCL.search(text)
    if word is None:
        return None
    head = _NCCL_HEAD.search(text, max(0, word.start() - _HEAD_LIMIT), word.start())
    if head is None:
        return None
    start, host = head.start(), head[1].decode()
    if start or inside:
        name = known_name(host, hosts)
        if name != host:
            start, host = head.end(1) - len(name), name
    return text[:start], host, text[word.start() + 1 :]


def known_name(glued: str, hosts: Container[str]) -> str:
    """Return the known host name at the end of the text, or the text if there is none."""
    return next((glued[i:] for i in range(len(glued)) if glued[i:] in hosts), glued)


def text_of(raw: bytes) -> str:
    """Decode any bytes."""
    return raw.decode("utf-8", "replace")


class Device(NamedTuple):
    """A line of "Using devices": a rank, its split group, host, local device, bus id and name."""

    rank: int
    group: int
    host: str
    device: int
    bus: str
    name: str


#: Old builds print no group, and only the middle of the bus id.
_DEVICE = re.compile(
    r"Rank +(\d{1,7}) (?:Group +(\d{1,7}) )?Pid +\d+ on +(\S{1,255}) device +(\d{1,4}) "
    r"\[([0-9a-fx:.]{1,20})\] ?([^\n]{0,128})",
    re.ASCII,
)


def parse_device(raw: bytes) -> Device | None:
    """Parse a line about a device, without its # sign. Return None if it is damaged.

    nccl-tests itself abbreviates the list of a process with many GPUs with dots.
    """
    text = text_of(raw)
    found = _DEVICE.fullmatch(text)
    if found is None or "..." in text or " NCCL " in text:
        return None
    rank, group, host, device, bus, name = found.groups()
    return Device(int(rank), int(group or 0), host, int(device), bus, name)


class Side(NamedTuple):
    """One placement of a row: time in us, bus bandwidth in GB/s, wrong elements (None: unchecked).

    The printed algbw is left out because it is size / time with fewer digits.
    """

    time: float
    busbw: float
    wrong: int | None


class Row(NamedTuple):
    """One row, with its size in bytes. A side is None if one of its numbers is not finite."""

    size: int
    type: str
    redop: str
    root: int
    out_of_place: Side | None
    in_place: Side | None

    def sides(self) -> tuple[tuple[Placement, Side | None], tuple[Placement, Side | None]]:
        """Return both placements."""
        return (Placement.OUT, self.out_of_place), (Placement.IN, self.in_place)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Positions of the relevant columns in a row of a table."""

    #: Number of tokens per row.
    width: int
    #: Positions of the operation and of the root; None in tables of old builds that lack them.
    redop: int | None
    root: int | None
    #: Positions of time, busbw and wrong, first out of place, then in place.
    sides: tuple[tuple[int, int, int], tuple[int, int, int]]
    #: One expression per token, to distinguish a cut row from foreign text.
    kinds: tuple[re.Pattern[bytes], ...]
    #: True if `wrong` is the largest deviation ("error"), as in old builds, and not a count.
    deviation: bool = False
    #: True with `-C`: the time is the CPU's and does not match the bandwidth.
    cpu_time: bool = False


_WORD = re.compile(rb"[a-z]\w*")


@lru_cache(maxsize=256)
def word(token: bytes) -> str | None:
    """Return the name of a type or an operation, or None if the token cannot be one."""
    return token.decode() if len(token) < 32 and _WORD.fullmatch(token) else None


_WHOLE = re.compile(rb"-?\d+")
_REAL = re.compile(rb"-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|inf)|N/A", re.IGNORECASE)
_STAMP = re.compile(rb"[\d:TZ.-]+")
_KINDS = {
    b"size": re.compile(rb"\d+"),
    b"count": re.compile(rb"\d+"),
    b"type": _WORD,
    b"redop": _WORD,
    b"root": _WHOLE,
}
_TOKEN_START = re.compile(rb"[\w.+/:-]*")


@lru_cache(maxsize=64)
def layout_of(header: bytes) -> Layout | None:
    """Return the layout that a table's line of column names describes, or None if it has none."""
    names = header.replace(b"#wrong", b"wrong").strip(b"# \t").split()
    stamped = names[-1:] == [b"timestamp"]
    columns = names[:-1] if stamped else names
    if columns[:3] != [b"size", b"count", b"type"]:
        return None
    sides = []
    for time in (i for i, name in enumerate(columns) if name in (b"time", b"cputime")):
        if columns[time + 1 : time + 3] != [b"algbw", b"busbw"]:
            return None
        # Versions of 2025 have this column if they copy meanwhile (`side_work`).
        wrong = time + 3 + (columns[time + 3 : time + 4] == [b"copybw"])
        if columns[wrong : wrong + 1] not in ([b"wrong"], [b"error"]):
            return None
        sides.append((time, time + 2, wrong))
    if len(sides) != 2:
        return None
    return Layout(
        width=len(columns) + 2 * stamped,
        redop=columns.index(b"redop") if b"redop" in columns else None,
        root=columns.index(b"root") if b"root" in columns else None,
        sides=(sides[0], sides[1]),
        kinds=tuple(_KINDS.get(name, _REAL) for name in columns) + (_STAMP,) * (2 * stamped),
        deviation=b"error" in columns,
        cpu_time=b"cputime" in columns,
    )


def _standard(per_iteration: bytes, stamp: bytes) -> Layout:
    side = b" time algbw busbw wrong" + per_iteration
    layout = layout_of(b"size count type redop root" + side + side + stamp)
    assert layout is not None
    return layout


#: Layouts by number of tokens, for tables whose line of column names is missing.
_BY_WIDTH = {
    layout.width: layout
    for layout in (
        _standard(more, stamp)
        for more in (b"", b" i_min i_max i_p99 i_cv%")
        for stamp in (b"", b" timestamp")
    )
}
_STANDARD = _BY_WIDTH[13]


def parse_row(line: bytes, layout: Layout | None) -> Row | None:
    """Parse a line as a row, or return None if it is not a complete row.

    Without a layout, the number of tokens determines the columns. Numbers may be infinite or NaN.
    """
    tokens = line.split()
    layout = layout or _BY_WIDTH.get(len(tokens))
    if layout is None or len(tokens) != layout.width:
        return None
    kind = word(tokens[2])
    redop = "none" if layout.redop is None else word(tokens[layout.redop])
    # Python reads 1_000 as a number.
    if kind is None or redop is None or (b"_" in line and _has_underscore(tokens, layout)):
        return None
    try:
        size = int(tokens[0])
        root = -1 if layout.root is None else int(tokens[layout.root])
        out, inp = (_side(tokens, places, layout) for places in layout.sides)
    except ValueError:
        return None
    return Row(size, kind, redop, root, out, inp) if 0 <= size < 1 << 63 else None


def _side(tokens: Sequence[bytes], places: tuple[int, int, int], layout: Layout) -> Side:
    time, busbw, wrong = places
    count = _deviation(tokens[wrong]) if layout.deviation else _wrong(tokens[wrong])
    return Side(float(tokens[time]), float(tokens[busbw]), count)


def _has_underscore(tokens: Sequence[bytes], layout: Layout) -> bool:
    """Return True if a number has an underscore; types and operations may have one."""
    return any(b"_" in token for i, token in enumerate(tokens) if i not in (2, layout.redop))


@lru_cache(maxsize=256)
def _wrong(token: bytes) -> int | None:
    """Parse a count of wrong elements: `%g` of an integer, or N/A. Raise ValueError otherwise."""
    if token == b"N/A":
        return None
    value = float(token)
    if not isfinite(value):
        return None
    if value < 0:
        raise ValueError(token)
    return int(value) if value == int(value) else None


@lru_cache(maxsize=256)
def _deviation(token: bytes) -> int | None:
    """Parse a largest deviation. Only the footer shows whether it is too large."""
    return None if token == b"N/A" or not isfinite(float(token)) else 0


def is_cut_row(text: bytes, layout: Layout | None, least: int) -> bool:
    """Return True if the text may be the beginning of a row, with at least `least` tokens.

    The last token may be cut; all others must be valid in their columns.
    """
    layout = layout or _STANDARD
    tokens = text.split(None, layout.width + 1)
    if not least <= len(tokens) <= layout.width:
        return False
    kinds = layout.kinds
    if not all(kind.fullmatch(t) for kind, t in zip(kinds, tokens[:-1], strict=False)):
        return False
    last = kinds[len(tokens) - 1] if len(tokens) < 4 else _TOKEN_START
    return bool(last.fullmatch(tokens[-1]))
