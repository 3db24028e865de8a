"""Parse single lines of nccl-tests output: prefixes, messages of NCCL, and columns.

All functions are pure and accept any bytes without raising.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

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
    prefix = _PREFIX.match(line)
    return (line[prefix.end() :] if prefix else line).rstrip(b"\r")


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
    base = max(0, word.start() - _HEAD_LIMIT)
    head = _NCCL_HEAD.search(text[base : word.start()])
    if head is None:
        return None
    start, host = base + head.start(), head[1].decode()
    if start or inside:
        name = known_name(host, hosts)
        if name != host:
            start, host = base + head.end(1) - len(name), name
    return text[:start], host, text[word.start() + 1 :]


def known_name(glued: str, hosts: Container[str]) -> str:
    """Return the known host name at the end of the text, or the text if there is none."""
    return next((glued[i:] for i in range(len(glued)) if glued[i:] in hosts), glued)


def text_of(raw: bytes) -> str:
    """Decode any bytes."""
    return raw.decode("utf-8", "replace")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Positions of the relevant columns in a row of a table."""

    #: Number of tokens per row.
    width: int
    #: Selects from a table's columns: size, type, redop, root, and time, busbw and wrong, first out
    #: of place, then in place.
    pick: Callable[[Sequence[Sequence[bytes]]], tuple[Sequence[bytes], ...]]
    #: One expression per token, to distinguish a cut row from foreign text.
    kinds: tuple[re.Pattern[bytes], ...]
    #: True if the table lacks redop and root; `pick` then expects them after the other columns.
    lacks: bool = False
    #: True if `wrong` is the largest deviation ("error"), as in old builds, and not a count.
    deviation: bool = False
    #: True with `-C`: the time is the CPU's and does not match the bandwidth.
    cpu_time: bool = False


_WORD = re.compile(rb"[a-z]\w*")


@lru_cache(maxsize=256)
def word(token: bytes) -> str | None:
    """Return the name of a type or an operation, or None where the token cannot be one."""
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
    places = [0, 2]
    width = len(columns) + 2 * stamped
    places += [columns.index(b"redop") if b"redop" in columns else width]
    places += [columns.index(b"root") if b"root" in columns else width + 1]
    times = [i for i, name in enumerate(columns) if name in (b"time", b"cputime")]
    if len(times) != 2:
        return None
    for first in times:
        if columns[first + 1 : first + 3] != [b"algbw", b"busbw"]:
            return None
        # Versions of 2025 have this column if they copy meanwhile (`side_work`).
        wrong = first + 3 + (columns[first + 3 : first + 4] == [b"copybw"])
        if columns[wrong : wrong + 1] not in ([b"wrong"], [b"error"]):
            return None
        places += (first, first + 2, wrong)
    return Layout(
        width=width,
        pick=itemgetter(*places),
        kinds=tuple(_KINDS.get(name, _REAL) for name in columns) + (_STAMP,) * (2 * stamped),
        lacks=max(places) >= width,
        deviation=b"error" in columns,
        cpu_time=b"cputime" in columns,
    )


def _standard(per_iteration: bytes, stamp: bytes) -> Layout:
    side = b" time algbw busbw wrong" + per_iteration
    layout = layout_of(b"size count type redop root" + side + side + stamp)
    assert layout is not None
    return layout


#: Layouts by number of tokens, for tables whose line of column names is missing.
BY_WIDTH = {
    layout.width: layout
    for layout in (
        _standard(more, stamp)
        for more in (b"", b" i_min i_max i_p99 i_cv%")
        for stamp in (b"", b" timestamp")
    )
}
STANDARD = BY_WIDTH[13]


def is_cut_row(text: bytes, layout: Layout | None, least: int) -> bool:
    """Return True if the text may be the beginning of a row, with at least `least` tokens.

    The last token may be cut; all others must be valid in their columns.
    """
    layout = layout or STANDARD
    tokens = text.split(None, layout.width + 1)
    if not least <= len(tokens) <= layout.width:
        return False
    kinds = layout.kinds
    if not all(kind.fullmatch(t) for kind, t in zip(kinds, tokens[:-1], strict=False)):
        return False
    last = kinds[len(tokens) - 1] if len(tokens) < 4 else _TOKEN_START
    return bool(last.fullmatch(tokens[-1]))
