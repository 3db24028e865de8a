"""Parse single lines of nccl-tests output: prefixes, messages of NCCL, devices and rows.

All functions are pure and accept any bytes without raising.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite, isinf
from typing import NamedTuple

from accept.core.records import Placement

#: Longer lines are ignored completely.
LINE_LIMIT = 64 * 1024

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")

#: The tag of Open MPI 4 ([1,0]<stdout>:) and of Open MPI 5 ([job@1,0]<stdout>: ).
_TAG = re.compile(
    rb"\[[^][\s]{1,200}@[^][\s]{1,40}\]<std(?:out|err|diag)>: ?"
    rb"|\[[^][\s]{1,200}\](?:\[[^][\s]{1,200}\])?<std(?:out|err|diag)>:"
)
#: Prefixes of launchers and log collectors: Open MPI 4 and 5 (`--tag-output`), srun (`-l`),
#: `kubectl logs --prefix`, stern, compose, pdsh, Ray, journald, syslog, container runtimes, grep,
#: timestamps; and the marks of Markdown for lists, quotations and tables.
_PREFIX = re.compile(
    rb"(?:"
    rb"\[[^][\s]{1,200}\](?:\[[^][\s]{1,200}\])?<std(?:out|err|diag)>: ?"  # [1,0]<stdout>:
    rb"|\[\d{4}-\d\d-\d\d[T ][^]\s]{5,30}\] ?"  # [2026-01-31 10:00:00]
    rb"|\[ *\d{1,10}\.\d{1,9}\] "  # [   12.345678]
    rb"|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[^\s]{0,24}\s(?:std(?:out|err) [FP] )?"
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d[.\d]{0,10} "  # Jan 31 10:00:00
    rb"|\[[^][\s]{1,200}\](?:: ?| )"  # [host:rank]: [pod]
    rb"|\([^()\n]{1,200}\) "  # (RayTrainWorker pid=7, ip=10.0.0.1)
    rb"| {0,5}\d{1,6}: "  # 12:
    rb"|(?!nThread:)[\w./-]{1,255}:(?=[# \[(]|[-*>|] |[A-Z][a-z]{2} [ \d]\d |\d{4}[-/]) ?"
    rb"|[\w.-]{1,255}(?: +\| | [\w.-]{1,255} \xe2\x80\xba )"  # pod |
    rb"|[\w.-]{1,255} [\w./@:-]{1,255}\[\d{1,10}\]: "  # host unit[pid]:
    rb"| {0,8}[-*>|] "  # Markdown
    rb"){1,6}"
)

#: The prefixes that begin with spaces, as rows do.
_INDENTED = re.compile(rb" {1,8}(?:\d{1,6}: |[-*>|] )")

_NCCL = re.compile(rb" NCCL (?:INFO|WARN|TRACE|ERROR|ABORT|VERSION) ?")
_NCCL_HEAD = re.compile(
    rb"(?:\[[^][\s]{1,200}\]<std(?:out|err)>: ?)?(?:\[\d{4}-\d\d-\d\d[T ][^]\s]{5,30}\] )?"
    rb"([\w.-]{1,255}):\d{1,10}:\d{1,10} \[(-?\d{1,4})\](?: \S{1,200}:\d{1,6})?$"
)
#: Maximum length of the part of a message before the word NCCL, in bytes.
_HEAD_LIMIT = 720


def clean(line: bytes) -> bytes:
    """Return the line without terminal colors, launcher prefixes and the carriage return."""
    if b"\x1b" in line:
        line = _ANSI.sub(b"", line)
    first = line[:1]
    # Most lines are comments, and rows that begin with spaces.
    has_prefix = first != b"#" and (first != b" " or _INDENTED.match(line))
    if has_prefix and (prefix := _PREFIX.match(line)):
        line = line[prefix.end() :]
    # A cell of a Markdown table ends with a bar.
    return line.rstrip(b"\r |" if b"|" in line else b"\r")


def without_tags(text: bytes) -> bytes:
    """Return the text without tags of Open MPI, which tags every part of a line that it gets."""
    return _TAG.sub(b"", text)


def plain_nccl(line: bytes) -> tuple[str, int, bytes] | None:
    """Return the host, the GPU and the text of a line that is only a message of NCCL."""
    word = _NCCL.search(line)
    if word is None or b"\x1b" in line:
        return None
    head = _NCCL_HEAD.match(line, 0, word.start())
    if head is None:
        return None
    return head[1].decode(), int(head[2]), line[word.start() + 1 :].rstrip(b"\r")


def split_nccl(
    text: bytes, hosts: Container[str], *, inside: bool
) -> tuple[bytes, str, int, bytes] | None:
    """Split a cleaned line at a message of NCCL: (text before it, its host and GPU, the message).

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
    return text[:start], host, int(head[2]), text[word.start() + 1 :]


def known_name(glued: str, hosts: Container[str]) -> str:
    """Return the known host name at the end of the text, or the text if there is none."""
    return next((glued[i:] for i in range(len(glued)) if glued[i:] in hosts), glued)


def text_of(raw: bytes) -> str:
    """Decode any bytes."""
    return raw.decode("utf-8", "replace")


#: Replaces the PCI address of a GPU that a log does not list.
UNKNOWN_BUS = "x"


class Device(NamedTuple):
    """A line of "Using devices": a rank, its split group, host, local device, bus id and name."""

    rank: int
    group: int
    host: str
    device: int
    bus: str
    name: str


#: Old builds print no group, no process, and only the middle of the bus id.
_DEVICE = re.compile(
    r"Rank +(\d{1,7}) (?:Group +(\d{1,7}) )?(?:Pid +\d+ )?on +(\S{1,255}) device +(\d{1,4}) "
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

    The printed algbw is left out because it is size / time with fewer digits. `p99` and `longest`
    are the 99th percentile and the maximum of the repetitions in us; None: not printed.
    """

    time: float
    busbw: float
    wrong: int | None
    p99: float | None = None
    longest: float | None = None


class Row(NamedTuple):
    """One row, with its size in bytes.

    A side is None if one of its numbers is not finite, or if the build does not print it.
    """

    size: int
    type: str
    redop: str
    root: int
    out_of_place: Side | None
    in_place: Side | None
    #: Number of elements of one rank; None: not known.
    elements: int | None = None

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
    #: Positions of time, busbw and wrong, first out of place, then in place. With times of each
    #: repetition (`-I 1`), four columns follow: minimum, maximum, 99th percentile, variation.
    sides: tuple[tuple[int, int, int], ...]
    #: True with the times of each repetition.
    repetitions: bool = False
    #: One expression per token, to distinguish a cut row from foreign text.
    kinds: tuple[re.Pattern[bytes], ...]
    #: True if `wrong` is the largest deviation ("error"), as in old builds, and not a count.
    deviation: bool = False
    #: True with `-C`: the time is the CPU's and does not match the bandwidth.
    cpu_time: bool = False
    #: Microseconds per unit of the time; builds before 2019 print milliseconds.
    unit: float = 1.0
    #: Ends of the columns of time in the line of column names.
    ends: tuple[int, ...] = ()
    #: The same columns with blank cells: without the operation, the root, or both.
    blank: tuple[Layout, ...] = ()


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
#: Names of columns before 2019.
_OLD_NAMES = {b"bytes": b"size", b"N": b"count", b"op": b"redop", b"res": b"error"}
TOKEN = re.compile(rb"\S+")
_TOKEN_START = re.compile(rb"[\w.+/:-]*")


#: Columns of a side with the times of each repetition.
_REPETITIONS = (b"i_min", b"i_max", b"i_p99", b"i_cv%")


@lru_cache(maxsize=64)
def layout_of(header: bytes) -> Layout | None:
    """Return the layout that a table's line of column names describes, or None if it has none."""
    names = header.replace(b"#wrong", b"wrong").strip(b"# \t").split()
    is_old = names[:2] == [b"bytes", b"N"]
    names = [_OLD_NAMES.get(name, name) for name in names] if is_old else names
    stamped = names[-1:] == [b"timestamp"]
    columns = tuple(names[:-1] if stamped else names)
    if columns[:3] != (b"size", b"count", b"type"):
        return None
    ends = tuple(found.end() for found in re.finditer(rb"\b(?:cpu)?time\b", header))
    layouts = []
    for left_out in ((), (b"redop",), (b"root",), (b"redop", b"root")):
        if set(left_out) <= {*columns}:
            kept = tuple(name for name in columns if name not in left_out)
            layout = _layout(kept, stamped=stamped, unit=1000.0 if is_old else 1.0)
            if layout is None:
                return None
            layouts.append(layout)
    return replace(layouts[0], ends=ends, blank=tuple(layouts[1:]))


def _layout(columns: tuple[bytes, ...], *, stamped: bool, unit: float) -> Layout | None:
    """Return the layout of these columns, or None if they are not those of nccl-tests."""
    sides, timed = [], []
    for time in (i for i, name in enumerate(columns) if name in (b"time", b"cputime")):
        if columns[time + 1 : time + 3] != (b"algbw", b"busbw"):
            return None
        # Versions of 2025 have this column if they copy data at the same time (`side_work`).
        wrong = time + 3 + (columns[time + 3 : time + 4] == (b"copybw",))
        if columns[wrong : wrong + 1] not in ((b"wrong",), (b"error",)):
            return None
        sides.append((time, time + 2, wrong))
        timed.append(columns[wrong + 1 : wrong + 1 + len(_REPETITIONS)] == _REPETITIONS)
    if len(sides) not in (1, 2):
        return None
    return Layout(
        width=len(columns) + 2 * stamped,
        redop=columns.index(b"redop") if b"redop" in columns else None,
        root=columns.index(b"root") if b"root" in columns else None,
        sides=tuple(sides),
        repetitions=all(timed),
        kinds=tuple(_KINDS.get(name, _REAL) for name in columns) + (_STAMP,) * (2 * stamped),
        deviation=b"error" in columns,
        cpu_time=b"cputime" in columns,
        unit=unit,
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
        for more in (b"", b" " + b" ".join(_REPETITIONS))
        for stamp in (b"", b" timestamp")
    )
}
_STANDARD = _BY_WIDTH[13]


def parse_row(line: bytes, layout: Layout | None) -> Row | None:
    """Parse a line as a row with all its sides, or return None if it is not one.

    Without a layout, the number of tokens determines the columns. Numbers may be infinite or NaN.
    """
    tokens = line.split()
    layout = layout or _BY_WIDTH.get(len(tokens))
    if layout is None:
        return None
    if len(tokens) != layout.width:
        layout = next((same for same in layout.blank if fits(tokens, same)), None)
        if layout is None:
            return None
    return row_of(line, tokens, layout)


def fits(tokens: Sequence[bytes], layout: Layout) -> bool:
    """Return True if each column has a valid token, and algbw is size / time.

    This way a cut row is not mistaken for one with blank cells.
    """
    kinds = layout.kinds
    if len(tokens) != len(kinds) or not all(map(_matches, kinds, tokens)):
        return False
    for time, _, _ in layout.sides:
        try:
            duration, algbw = float(tokens[time]) * layout.unit, float(tokens[time + 1])
        except ValueError:
            return False
        moved = int(tokens[0]) * 1e-3
        slack = 0.55 * algbw if layout.unit > 1 else 0.0055 * algbw
        if not (
            duration > 0
            and abs(moved - algbw * duration) <= slack + 0.0055 * duration + 1e-3 * moved
        ):
            return False
    return True


def _matches(kind: re.Pattern[bytes], token: bytes) -> bool:
    return kind.fullmatch(token) is not None


def row_of(line: bytes, tokens: Sequence[bytes], layout: Layout) -> Row | None:
    """Return the row of these tokens, or None if one of them is not valid."""
    kind = word(tokens[2])
    redop = "none" if layout.redop is None else word(tokens[layout.redop])
    # Python reads 1_000 as a number.
    if kind is None or redop is None or (b"_" in line and _has_underscore(tokens, layout)):
        return None
    try:
        size, elements = int(tokens[0]), int(tokens[1])
        root = -1 if layout.root is None else int(tokens[layout.root])
        sides = [_side(tokens, places, layout) for places in layout.sides]
    except ValueError:
        return None
    out, inp = sides if len(sides) == 2 else (sides[0], None)
    return Row(size, kind, redop, root, out, inp, elements) if 0 <= size < 1 << 63 else None


def _side(tokens: Sequence[bytes], places: tuple[int, int, int], layout: Layout) -> Side:
    time, busbw, wrong = places
    count = _deviation(tokens[wrong]) if layout.deviation else _wrong(tokens[wrong])
    side = Side(_printed(tokens[time]) * layout.unit, _printed(tokens[busbw]), count)
    if not layout.repetitions:
        return side
    longest, p99 = float(tokens[wrong + 2]), float(tokens[wrong + 3])
    return side._replace(longest=longest, p99=p99) if isfinite(longest + p99) else side


def _printed(token: bytes) -> float:
    """Parse a number. Raise ValueError if it is none, or larger than a program can print."""
    value = float(token)
    if isinf(value) and not token[-1:].isalpha():
        raise ValueError(token)
    return value


def _has_underscore(tokens: Sequence[bytes], layout: Layout) -> bool:
    """Return True if a number has an underscore; types and operations may have one."""
    return any(b"_" in token for i, token in enumerate(tokens) if i not in (2, layout.redop))


@lru_cache(maxsize=256)
def _wrong(token: bytes) -> int | None:
    """Parse a count of wrong elements: `%g` of an integer, or N/A. Raise ValueError otherwise."""
    if token == b"N/A":
        return None
    value = _printed(token)
    if not isfinite(value):
        return None
    if not 0 <= value < 1 << 63:
        raise ValueError(token)
    return int(value) if value == int(value) else None


@lru_cache(maxsize=256)
def _deviation(token: bytes) -> int | None:
    """Parse a largest deviation. Only the footer shows whether it is too large.

    Old builds print that of alltoall in place, too, which is at least 1, and do not count it.
    """
    return None if token == b"N/A" or not float(token) < 1 else 0


def is_cut_row(text: bytes, layout: Layout | None, least: int) -> bool:
    """Return True if the text may be the beginning of a row, with at least `least` tokens.

    The last token may be cut; all others must be valid in their columns.
    """
    layout = layout or _STANDARD
    tokens = text.split(None, layout.width + 1)
    if len(tokens) < least:
        return False
    return any(_is_beginning(tokens, same.kinds) for same in (layout, *layout.blank))


def _is_beginning(tokens: Sequence[bytes], kinds: Sequence[re.Pattern[bytes]]) -> bool:
    if not len(tokens) <= len(kinds):
        return False
    if not all(kind.fullmatch(t) for kind, t in zip(kinds, tokens[:-1], strict=False)):
        return False
    last = kinds[len(tokens) - 1] if len(tokens) < 4 else _TOKEN_START
    return bool(last.fullmatch(tokens[-1]))
