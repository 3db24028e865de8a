"""Reads nccl-tests output line by line: takes off what launchers add and mends what NCCL cut.

A line of NCCL's own can land between the lines of a table and, as rows are printed in pieces,
inside one. What stood before it then waits for its rest. A mended row that contradicts itself is
damage; see `accept.core.nccl_build`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from accept.core.model import Problem
from accept.core.nccl_comments import Tables
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
        lines = whole.split(b"\n")
        if max(map(len, lines)) > LINE_LIMIT:
            lines = [line for line in lines if len(line) <= LINE_LIMIT]
        if not self._quick or b"\x1b" in whole or b"\r" in whole:
            for line in lines:
                self._line(line)
            return
        heads, hosts, tables = self._heads, self._tables.hosts, self._tables
        rows, devices, comment = tables.rows, tables.devices, tables.comment
        take: Callable[[Sequence[bytes]], bool] | None = None
        run: list[bytes] = []
        for line in lines:
            first = line[:1]
            kind = None
            if first == b" ":
                kind = rows
            elif first == b"#" and line[3:7] == b"Rank":
                kind = devices
            if kind is not take:
                self._take(take, run)
                take, run = kind, []
            if first not in b" #":
                end = line.find(b" NCCL INFO ")
                host = heads.get(line[:end]) if end > 0 else None
                if host is not None and (not self._pending or host in hosts):
                    self._nccl_lines += 1
                    if b" network " in line or b" via NET/" in line:
                        self._network(host, line)
                else:
                    self._line(line)
            elif self._pending or b" NCCL " in line:
                self._line(line)
            elif kind:
                run.append(line)
            else:
                comment(line)
        self._take(take, run)

    def _take(self, take: Callable[[Sequence[bytes]], bool] | None, run: list[bytes]) -> None:
        """Read a run of like lines at once, or one by one where any of them is odd."""
        if take and run and not take(run):
            for line in run:
                self._line(line)

    def _line(self, line: bytes) -> None:
        """Read one line, whatever stands around it and in it."""
        if b"Test " in line or b"Invalid number" in line:
            self._failure(line)
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
                self._text(text)
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

    def _text(self, text: bytes) -> None:
        """Read a line that is not NCCL's, free of what launchers add."""
        pending, layout = self._pending, self._tables.layout
        comment = text.lstrip().startswith(b"#")
        if pending and not comment:
            if pending.lstrip().startswith(b"#"):
                self._pending = b""
                self._tables.comment(pending + text)
                return
            if self._tables.rows((pending + text,)):
                self._pending = b""
                return
            if len(pending) < _MAX_PENDING and is_cut_row(pending + text, layout, 1):
                self._pending = pending + text
                return
        if comment:
            self._flush()
            self._tables.comment(text)
        elif self._tables.rows((text,)):
            self._flush()
        elif is_cut_row(text, layout, 3):
            self._flush()
            self._pending = text[:_MAX_PENDING]

    def _cut(self, before: bytes) -> None:
        """Keep what a message of NCCL's cut off, where it is the beginning of anything of ours."""
        layout = self._tables.layout
        joined = (self._pending + before)[:_MAX_PENDING]
        if self._tables.rows((joined,)):
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

    def _failure(self, line: bytes) -> None:
        """Note a failure that nccl-tests reports, the first of each kind and host."""
        at = max(line.find(b"Test "), line.find(b"Invalid number"))
        found = _FAILURE.search(line[max(0, at - 300) : at + 400])
        if found is None or len(self._failures) >= MAX_FAILURES:
            return
        kind = found.lastindex
        host = known_name(text_of(found[kind]), self._tables.hosts) if kind else ""
        cause = _CAUSES[kind or 0]
        message = text_of(found[0]).strip(" .\r")
        self._failures.setdefault(
            (cause, host),
            Problem(
                cause=cause,
                message=message,
                host=host or None,
                check=self._tables.check,
            ),
        )

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
