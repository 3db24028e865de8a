"""Turn encodings, colors and the exports of log collectors into the plain text of a log."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from accept.core.facts import mapping, text
from accept.core.nccl_tests.table import IN_PARTS
from accept.evidence.untrusted import first_bytes
from accept.foreign_logs.excerpt import TYPE_BYTES, named_in

#: Number of first bytes that show the encoding, and of those that show the format of an export.
_ENCODED, _START = 64, 1 << 16
#: The member of a record that contains the line: docker and Kubernetes, Cloud Logging, journald,
#: CloudWatch, Loki, OpenTelemetry, and programs that log JSON, with the output of a command.
_LINE = re.compile(
    rb'"(log|textPayload|message|MESSAGE|@message|msg|line|body|output|stdout|stderr)"'
    rb'\s*:\s*("(?:[^"\\]|\\.)*")'
)
#: The beginning of a verdict that accept wrote as JSON; its messages quote lines of logs.
OWN = re.compile(rb"[\s\[]*\{\s*\"schema\"\s*:\s*\d{1,3},\s*\"state\"\s*:")
#: A line with one record, which may follow lines that are plain text.
_RECORD_LINE = re.compile(rb"^[ \t]*\{[ \t]*\"[^\n]*\}[ \t\r]*$", re.MULTILINE)
_RECORD = re.compile(rb"[\s\[]*\{\s*\"")
_TIME = re.compile(rb'"timestamp"\s*:\s*"?([\d:TZ.+-]{10,40})')
#: A sequence that controls a terminal, and the beginning of one at the end of a block.
_SEQUENCE = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\))"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|\][^\x07\x1b\n]{0,256}\x1b?)?\Z")
#: Docker splits longer lines.
_DOCKER_PART = 16_000
#: Upper limits: of a record, and of an export whose newest record comes first.
_MAX_RECORD, _MAX_REVERSED = 4 << 20, 256 << 20

#: The results that rccl-tests writes as JSON (`-x FILE`): a record for each size and placement, in
#: lines or in a list. It has no devices. Format: rccl-tests src/common.cu.
_RCCL = re.compile(rb"[\s\[]*\{[^{}]{0,400}\"(?:algBw|busBw)\"\s*:")
_RCCL_RECORD = re.compile(rb"\{[^{}]{1,4000}\}")
_COLUMNS = """#
#                                                out-of-place                in-place
#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)
"""
#: Upper limit of what is read, in bytes.
_MAX_RCCL = 16 << 20


def plain_text(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of a log in UTF-8, without the records of a log collector around its lines.

    Colors are left out. The JSON of nccl-tests and all other content is unmodified.
    """
    return _without_colors(_without_records(_utf8(iter(blocks))))


def _without_records(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Return text without the records of a log collector around its lines."""
    start, blocks = _first(blocks, _START)
    whole = chain((start,), blocks)
    if _RCCL.match(start):
        return rccl_text(whole)
    if not _RECORD.match(start):
        return whole if b"\0" in start else _with_records(whole)
    if OWN.match(start) or not _LINE.search(start):
        return whole
    times = _TIME.findall(start)
    # Cloud Logging exports the newest record first.
    return _newest_last(_lines(whole)) if times and times[0] > times[-1] else _lines(whole)


def _first(blocks: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes, at least `size` if there are as many, and the other blocks."""
    parts = []
    while size > 0 and (block := next(blocks, b"")):
        parts.append(block)
        size -= len(block)
    return b"".join(parts), blocks


def _utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text in UTF-8, without a byte order mark. Windows PowerShell writes UTF-16."""
    start, blocks = _first(blocks, _ENCODED)
    encoding = ""
    if start.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        encoding = "utf-16"
    elif len(start) > 1 and not any(start[1:_ENCODED:2]) and all(start[:_ENCODED:2]):
        encoding = "utf-16-le"
    elif len(start) > 1 and not any(start[:_ENCODED:2]) and all(start[1:_ENCODED:2]):
        encoding = "utf-16-be"
    if not encoding:
        yield start.removeprefix(BOM_UTF8)
        yield from blocks
        return
    decoder = getincrementaldecoder(encoding)("replace")
    for block in chain((start,), blocks):
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _without_colors(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield text without the sequences of a terminal, which would become parts of words."""
    rest = b""
    for new in blocks:
        if b"\x1b" not in new and not rest:
            yield new
            continue
        block = rest + new
        rest = unfinished[0] if (unfinished := _UNFINISHED.search(block)) else b""
        yield _SEQUENCE.sub(b"", block[: len(block) - len(rest)])
    yield rest


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that the records contain."""
    rest = b""
    for block in blocks:
        rest += block
        end = 0
        lines = []
        for found in _LINE.finditer(rest):
            lines.append(_line(found[1], found[2]))
            end = found.end()
        # An unfinished record stays for the next block.
        rest = rest[end:][-_MAX_RECORD:]
        yield b"".join(lines)


def _with_records(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield plain text; of its lines with one record, the lines that this record contains."""
    rest = b""
    for block in blocks:
        rest += block
        end = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _MAX_RECORD else 0)
        if end:
            yield _RECORD_LINE.sub(_content, rest[:end])
        rest = rest[end:]
    yield _RECORD_LINE.sub(_content, rest)


def _content(record: re.Match[bytes]) -> bytes:
    """Return the lines in a record, or the record if it contains none."""
    lines = b"".join(_line(found[1], found[2]) for found in _LINE.finditer(record[0]))
    return lines.removesuffix(b"\n") or record[0]


def _line(name: bytes, value: bytes) -> bytes:
    try:
        text = str(json.loads(value)).encode("utf-8", "replace")
    except ValueError:
        return b""
    is_part = name == b"log" and len(text) >= _DOCKER_PART
    return text if text.endswith(b"\n") or is_part else text + b"\n"


def _newest_last(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines in reverse order; of an export that is too long, only the newest."""
    lines: list[bytes] = []
    size = 0
    for block in blocks:
        size += len(block)
        if size > _MAX_REVERSED:
            break
        lines += block.splitlines(keepends=True)
    return reversed(lines)


def rccl_text(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the results as nccl-tests prints them. No content raises an error."""
    content = first_bytes(blocks, _MAX_RCCL)
    rows: dict[tuple[str, ...], dict[bool, str]] = {}
    for found in _RCCL_RECORD.finditer(content):
        try:
            record = mapping(json.loads(found[0]))
            (name,) = named_in(text(record.get("name")) or "")
            size, elements = int(str(record["size"])), _elements(name, record)
            key = (name, str(size), str(elements), str(record["type"]), str(record["redop"]))
            side = (
                f"{float(str(record['time'])):.4f} {float(str(record['algBw'])):.4f} "
                f"{float(str(record['busBw'])):.4f} {record['#wrong']}"
            )
        except (KeyError, ValueError, RecursionError):
            continue
        rows.setdefault(key, {})[str(record.get("inPlace")) in ("1", "True")] = side
    before = ""
    for (name, *cells), sides in rows.items():
        if name != before:
            before = name
            yield f"# Collective test starting: {name}_perf\n{_COLUMNS}".encode()
        # A file that was cut may have one placement only.
        if len(sides) == 2:
            row = (*cells, "-1", sides[False], sides[True])
            yield (" ".join(map(_one_line, row)) + "\n").encode("utf-8", "replace")


def _one_line(cell: str) -> str:
    return " ".join(cell.split())


def _elements(name: str, record: Mapping[str, object]) -> int:
    """Return the number of elements, as a table shows it."""
    ranks = int(str(record.get("ranks", record.get("gpus", 1)))) if name in IN_PARTS else 1
    return int(str(record["size"])) // (TYPE_BYTES.get(str(record["type"]), 4) * max(1, ranks))
