"""Reads nccl-tests output line by line: takes off what launchers add and mends what NCCL cut.

A line of NCCL's own can land between the lines of a table and, as rows are printed in pieces,
inside one. What stood before it then waits for its rest. A mended row that contradicts itself is
damage; see `accept.core.nccl_build`.
"""

from __future__ import annotations

import re

from accept.core.model import Problem
from accept.core.nccl_comments import FRAME, FRAME_BEGINS, Tables
from accept.core.nccl_lines import (
    LINE_LIMIT,
    clean,
    is_cut_row,
    known_name,
    split_nccl,
    text_of,
)
from accept.core.nccl_table import Log

MAX_FAILURES, MAX_WARNINGS = 64, 8
_MAX_NAMES, _MAX_HOSTS, _MAX_HEADS, _MAX_PENDING = 64, 8192, 4096, 4096

_FAILURE = re.compile(
    rb"(?:([\w.-]{1,255}): Test (?:CUDA|NCCL) failure"
    rb"|\.\. ([\w.-]{1,255}) pid \d+: Test failure"
    rb"|([\w.-]{1,255}): Test timeout \(\d+s\)"
    rb"|Invalid number of GPUs: \d+ requested).{0,300}"
)
_NEWLINE = 10
_CAUSES = ("gpu-missing", "crashed", "crashed", "timed-out")


class Reader:
    """Reads one log piece by piece.

    `quick` takes a short cut for the commonest clean lines. It must change no result; a property
    test compares the two.
    """

    def __init__(self, *, quick: bool = True, collective: str | None = None) -> None:
        self._quick = quick
        self._tables = Tables(collective)
        self._rest = b""
        self._overlong = False
        #: A line that was cut and waits for its rest.
        self._pending = b""
        #: What NCCL's lines began with so far ("[1,0]<stdout>:node1:11:12 [0]"), and the host.
        self._heads: dict[bytes, str] = {}
        self._networks: dict[bytes, dict[str, None]] = {}
        self._nccl_lines = 0
        self._warnings: list[str] = []
        self._failures: dict[tuple[str, str], Problem] = {}

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the log."""
        end = piece.rfind(b"\n")
        if end >= 0:
            whole = self._rest + piece[:end]
            if self._overlong:
                whole = whole.partition(b"\n")[2]
            self._overlong, self._rest = False, piece[end + 1 :]
            self._lines(whole)
        elif not self._overlong:
            self._rest += piece
        if len(self._rest) > LINE_LIMIT:
            self._overlong, self._rest = True, b""

    def _lines(self, whole: bytes) -> None:
        """Read whole lines."""
        if not self._quick or b"\x1b" in whole or b"\r" in whole:
            for line in _short(whole):
                self._line(line)
            return
        done, at = 0, whole.find(FRAME_BEGINS)
        while at >= 0:
            found = FRAME.match(whole, at) if at == 0 or whole[at - 1] == _NEWLINE else None
            end = found.end() if found else at + len(FRAME_BEGINS)
            if found:
                self._few(whole[done:at])
                if self._pending or not self._tables.frame(found):
                    self._few(found[0])
                done = end
            at = whole.find(FRAME_BEGINS, end)
        self._few(whole[done:])

    def _few(self, whole: bytes) -> None:
        """Read what stands around the clean beginnings of tables."""
        heads, hosts, tables = self._heads, self._tables.hosts, self._tables
        for line in _short(whole):
            first = line[:1]
            if first not in b" #":
                end = line.find(b" NCCL INFO ")
                host = heads.get(line[:end]) if end > 0 else None
                if host is None or (self._pending and host not in hosts):
                    self._line(line)
                else:
                    self._nccl_lines += 1
                    if b" network " in line or b" via NET/" in line:
                        self._network(host, line)
            elif not line:
                continue
            elif self._pending or b" NCCL " in line:
                self._line(line)
            elif first == b"#":
                tables.comment(line)
            elif not tables.row(line):
                self._line(line)

    def _line(self, line: bytes) -> None:
        """Read one line, whatever stands around it and in it."""
        text = clean(line)
        if text.startswith(b"ACCEPT {"):
            return
        split = (
            split_nccl(text, self._tables.hosts, inside=bool(self._pending))
            if b" NCCL " in text
            else None
        )
        if split is None:
            if text.strip():
                self._text(text, line)
            return
        before, host, message = split
        self._nccl_lines += 1
        if message.startswith(b"NCCL INFO "):
            self._network(host, message)
            if not before and line.endswith(text):
                if len(self._heads) >= _MAX_HEADS:
                    self._heads.clear()
                self._heads[line[: -len(message) - 1]] = host
        elif message.startswith(b"NCCL WARN") and len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(f"{host}: {text_of(message[10:510])}")
        if before.strip():
            self._cut(before)

    def _text(self, text: bytes, line: bytes) -> None:
        """Read a line that is not NCCL's, free of what launchers add."""
        tables, cut = self._tables, self._pending
        if text.lstrip().startswith(b"#"):
            self._flush()
            tables.comment(text)
        elif cut and tables.row(cut + text):
            self._pending = b""
        elif tables.row(text):
            self._flush()
        elif (b"Test " in line or b"Invalid number" in line) and self._failure(line):
            return
        elif cut.lstrip().startswith(b"#"):
            self._pending = b""
            tables.comment(cut + text)
        elif cut and len(cut) < _MAX_PENDING and is_cut_row(cut + text, tables.layout, 1):
            self._pending = cut + text
        elif is_cut_row(text, tables.layout, 3):
            self._flush()
            self._pending = text[:_MAX_PENDING]

    def _cut(self, before: bytes) -> None:
        """Keep what a message of NCCL's cut off, where it is the beginning of anything of ours."""
        layout = self._tables.layout
        joined = (self._pending + before)[:_MAX_PENDING]
        if self._tables.row(joined):
            self._pending = b""
        elif joined.lstrip().startswith(b"#") or is_cut_row(joined, layout, 1):
            self._pending = joined
        elif is_cut_row(before, layout, 1):
            self._flush()
            self._pending = before

    def _flush(self) -> None:
        """Give up waiting for the rest of a cut line."""
        pending, self._pending = self._pending, b""
        if pending.lstrip().startswith(b"#"):
            self._tables.comment(pending)
        elif pending:
            self._tables.damage("a row was cut")

    def _network(self, host: str, message: bytes) -> None:
        """Note the network that a message of NCCL's names as used."""
        start = message.find(b" via NET/")
        if start >= 0:
            name = message[start + 9 : message.find(b"/", start + 9)]
        else:
            name = message.partition(b"Using network ")[2].strip()
        known = self._networks.get(name)
        if known is None:
            if not name or len(name) > 64 or len(self._networks) >= _MAX_NAMES:
                return
            known = self._networks[name] = {}
        if host not in known and len(known) < _MAX_HOSTS:
            known[host] = None

    def _failure(self, line: bytes) -> bool:
        """Note a failure that nccl-tests reports, the first of each kind and host."""
        at = max(line.find(b"Test "), line.find(b"Invalid number"))
        found = _FAILURE.search(line[max(0, at - 300) : at + 400])
        if found is None:
            return False
        kind = found.lastindex or 0
        host = known_name(text_of(found[kind]), self._tables.hosts) if kind else ""
        cause = _CAUSES[kind]
        rest = text_of(found[0])
        message = host + rest[found.end(kind) - found.start() :] if kind else rest
        if (cause, host) not in self._failures and len(self._failures) < MAX_FAILURES:
            self._failures[cause, host] = Problem(
                cause=cause,
                message=message.rstrip("\r"),
                host=host or None,
                check=self._tables.check,
            )
        return True

    def close(self) -> Log:
        """Return what the log says."""
        if self._rest and not self._overlong:
            self._lines(self._rest)
        self._flush()
        tables, problems = self._tables.finish(quiet=bool(self._failures))
        return Log(
            tables=tables,
            problems=(*self._failures.values(), *problems),
            networks={text_of(name): tuple(hosts) for name, hosts in self._networks.items()},
            nccl_lines=self._nccl_lines,
            warnings=tuple(self._warnings),
        )


def _short(whole: bytes) -> list[bytes]:
    """Split into lines, without those that are too long."""
    lines = whole.split(b"\n")
    if len(whole) > LINE_LIMIT and max(map(len, lines)) > LINE_LIMIT:
        return [line for line in lines if len(line) <= LINE_LIMIT]
    return lines
