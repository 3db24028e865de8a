"""Damage bytes, JSON and archives, reproducibly from a given `Random`."""

from __future__ import annotations

import copy
import gzip
import io
import json
import tarfile
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any, Literal

#: Bytes that are inserted anywhere in a text. None reports a failure of a host.
WORDS = (
    b"\n",
    b"\r\n",
    b"\x00",
    b"\xff\xfe",
    b"\x1b[31m",
    b"#",
    b"# nThread 1 nGpus 1 minBytes 8 maxBytes 99999999999999999 step: 2(factor)",
    b"# Using devices\n",
    b"#  Rank 0 Group 0 Pid 1 on h device 0 [0x1b] x\n",
    b"node2:41001:41050 [1] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0\n",
    b" NCCL WARN ",
    b"[1,0]<stdout>:",
    b"2026-07-10T12:00:00.1Z stdout F ",
    b'ACCEPT {"metric": "busbw", "value": 1e999, "check": "all-reduce"}\n',
    b'ACCEPT {"fact": ',
    b"N/A",
    b"nan",
    b"-inf",
    b"1e400",
    b"9" * 40,
    b"-1",
    b"0",
    b"_",
    b'"',
    b"\\",
    b"{",
    b"[" * 70,
    b"]",
    b",",
    b'"results":[',
    b'"env":["SECRET=1"],',
    b"-----BEGIN ACCEPT EVIDENCE----- 0",
    b"-----END ACCEPT EVIDENCE-----",
    b"../../outside",
)
#: Values that replace any other value.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 70,
    10**400,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "nan",
    "x" * 5000,
    "\x00",
    "\ud800",
    "a\nb",
    "../../outside",
    "/etc/hostname",
    "logs/../../outside",
    [],
    {},
    [[]] * 50,
)
NAMES = (
    "evidence/plan.json",
    "evidence/logs/20-more.tar",
    "evidence",
    "../outside",
    "evidence/../../outside",
    "/outside",
    "./evidence//x",
    "evidence/" + "n" * 300,
    "evidence/\udcff\n",
    "",
    ".",
)
KINDS = (b"0", b"\0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"L", b"K", b"x", b"g", b"Z")


#: The ways in which `spoiled` changes a text; one of them is more likely.
_WAYS = ("insert", "insert", "lose", "change", "number", "repeat", "splice", "line", "cut")


def spoiled(chance: Random, raw: bytes, others: Sequence[bytes]) -> bytes:
    """Return the bytes with a few changes."""
    text = bytearray(raw)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randint(0, len(text))
        to = min(len(text), at + chance.choice((1, 4, 40, 400, 4000)))
        match chance.choice(_WAYS):
            case "insert":
                text[at:at] = chance.choice(WORDS)
            case "lose":
                del text[at:to]
            case "change":
                text[at : at + 1] = bytes([chance.randrange(256)])
            case "number":
                digits = [i for i in range(at, to) if 48 <= text[i] < 58]
                if digits:
                    new = chance.choice((b"0", b"9", b"-1", b"1e9", b"9" * 20))
                    text[digits[0] : digits[0] + 1] = new
            case "repeat":
                text[at:at] = text[at:to] * chance.choice((1, 2, 30))
            case "splice":
                other = chance.choice(others)
                begin = chance.randint(0, len(other))
                text[at:to] = other[begin : begin + 4000]
            case "line":
                begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at) + 1
                line = text[begin : end or len(text)]
                if chance.random() < 0.5:
                    del text[begin : end or len(text)]
                to = chance.randint(0, len(text))
                text[to:to] = line
            case _:
                del text[at:]
        # Repeats of repeats grow without bounds.
        del text[1 << 18 :]
    return bytes(text)


def twisted(chance: Random, data: Any) -> Any:
    """Return JSON with a few values replaced, repeated or removed."""
    data = copy.deepcopy(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        node = data
        for _ in range(chance.randint(0, 8)):
            inner = _inner(chance, node)
            if not isinstance(inner, dict | list) or not inner:
                break
            node = inner
        if isinstance(node, dict) and node:
            key = chance.choice(sorted(node))
            if chance.random() < 0.2:
                node[str(chance.choice(VALUES))[:100]] = node.pop(key)
            elif chance.random() < 0.2:
                del node[key]
            else:
                node[key] = _value(chance)
        elif isinstance(node, list) and node:
            place = chance.randrange(len(node))
            node[place : place + 1] = [_value(chance), node[place]][: chance.randint(0, 2)]
        else:
            data = _value(chance)
    return data


def _value(chance: Random) -> Any:
    return copy.deepcopy(chance.choice(VALUES))


def _inner(chance: Random, node: Any) -> Any:
    if isinstance(node, dict) and node:
        return node[chance.choice(sorted(node))]
    return chance.choice(node) if isinstance(node, list) and node else None


def json_of(chance: Random, text: bytes) -> bytes:
    """Return a JSON text with other values."""
    return json.dumps(twisted(chance, json.loads(text))).encode("utf-8", "surrogatepass")


def archive_of(files: dict[str, bytes]) -> bytes:
    """Return an archive of these files."""
    return b"".join(_intact(name, raw) for name, raw in files.items()) + bytes(1024)


@lru_cache(maxsize=256)
def _intact(name: str, raw: bytes) -> bytes:
    return _member(tarfile.TarInfo(f"evidence/{name}"), raw, tarfile.PAX_FORMAT)


def archive(chance: Random, files: dict[str, bytes]) -> bytes:
    """Return an archive of these files and of odd members, with correct header checksums."""
    raw = bytearray()
    names = sorted(files)
    odds = chance.choice((0.02, 0.3))
    for name in names if chance.random() < 0.7 else names[: chance.randint(0, len(names))]:
        raw += _intact(name, files[name])
        if chance.random() < odds:
            odd = tarfile.TarInfo(chance.choice(NAMES))
            odd.type, odd.linkname = chance.choice(KINDS), chance.choice(NAMES)
            odd.mode = chance.choice((0, 0o644, 0o7777, 1 << 30))
            odd.mtime = chance.choice((0, -1, 1 << 40))
            if chance.random() < 0.2:
                odd.pax_headers = {
                    chance.choice(("path", "size", "GNU.sparse.size", "GNU.sparse.map", "mtime")): (
                        chance.choice(("1", "-1", "1,2,3", "../../outside", "9" * 30, "x"))
                    )
                }
            content = chance.choice((b"", b"x" * 700, files[name]))
            form: Literal[1, 2] = chance.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
            raw += _member(odd, content, form, chance.choice((None, None, 0, 1 << 20, 1 << 40)))
    raw += bytes(chance.choice((0, 512, 1024, 10_240)))
    # Without the time, so that an input can be generated again.
    return gzip.compress(bytes(raw), 1, mtime=0) if chance.random() < 0.3 else bytes(raw)


def _member(
    info: tarfile.TarInfo, content: bytes, form: Literal[1, 2], claimed_size: int | None = None
) -> bytes:
    info.size = len(content) if claimed_size is None else claimed_size
    try:
        head = info.tobuf(form, "utf-8", "surrogateescape")
    except ValueError:
        # A value that no header holds.
        return b""
    return head + content + bytes(-len(content) % 512)


def bomb(megabytes: int, members: int) -> bytes:
    """Return a small archive of many zeros."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
        for number in range(members):
            info = tarfile.TarInfo(f"evidence/{number}")
            info.size = megabytes << 20
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return buffer.getvalue()
