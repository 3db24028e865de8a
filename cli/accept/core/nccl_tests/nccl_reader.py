"""Reads nccl-tests output line by line: takes off what launchers add and mends what NCCL cut.

A line of NCCL's own can land between the lines of a table and, as rows are printed in pieces,
inside one. What stood before it then waits for its rest. A mended row that contradicts itself is
damage; see `accept.core.nccl_tests.table`.
"""

from __future__ import annotations

import re

from accept.core.model import Problem
from accept.core.nccl_tests.lines import (
    LINE_LIMIT,
    clean,
    is_cut_row,
    known_name,
    split_nccl,
    text_of,
)
from accept.core.nccl_tests.nccl_info import RUN, Info
from accept.core.nccl_tests.nccl_table import Log
from accept.core.nccl_tests.reader import FRAME, FRAME_BEGINS, Tables

MAX_FAILURES = 64
_MAX_PENDING = 4096

_FAILURE = re.compile(
    rb"(?:([\w.-]{1,255}): Test (?:CUDA|NCCL) failure"
    rb"|\.\. ([\w.-]{1,255}) pid \d+: Test failure"
    rb"|([\w.-]{1,255}): Test timeout \(\d+s\)"
    rb"|noticed that process rank \d+ with PID \d+ on node ([\w.-]{1,255}) exited on"
    rb"|srun: error: ([\w.-]{1,255}): tasks? [\d,-]+: (?!Exited|Terminated)"
    rb"|Exit(?: code: +|ed with exit code )(?!0\b|7\b)(\d{1,3})\b"
    rb"|Invalid number of GPUs: \d+ requested).{0,300}"
)
_SIGN = re.compile(rb"Test |Invalid number|noticed that|srun: error|Exit code:")
_NEWLINE = 10
#: What `int` takes as the beginning of a size.
_ROW_BEGINS = b"+0123456789"
_CAUSES = ("gpu-missing", "crashed", "crashed", "timed-out", "crashed", "crashed", "crashed")
#: From here on it is the launcher that speaks: Open MPI 4 and 5, Slurm.
_LAUNCHER, _EXIT = 4, 6
#: Exit codes of nccl-tests, src/common.h; 7 (wrong data, or a mean below NCCL_TESTS_MIN_BW) is no
#: news beside the table.
_EXITS = {
    b"1": "an internal error",
    b"2": "an error of CUDA",
    b"3": "an error of NCCL",
    b"4": "a timeout",
    b"5": "not implemented",
    b"6": "invalid usage",
    b"255": "bad arguments",
}


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
        self._info = Info()
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
        done = 0
        if b"NCCL INFO " in whole:
            for found in RUN.finditer(whole):
                self._each(whole[done : found.start()])
                if self._pending:
                    self._each(found[0])
                else:
                    self._info.inform(found[0])
                done = found.end()
        self._each(whole[done:])

    def _each(self, whole: bytes) -> None:
        """Read line by line."""
        tables = self._tables
        for line in _short(whole):
            if not line:
                continue
            first = line[:1]
            if self._pending or first not in b" #" or b" NCCL " in line:
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
        self._info.say(host, message)
        if before.strip():
            self._cut(before)

    def _text(self, text: bytes, line: bytes) -> None:
        """Read a line that is not NCCL's, free of what launchers add."""
        tables, cut = self._tables, self._pending
        first = text.lstrip()[:1]
        if first == b"#":
            self._flush()
            tables.comment(text)
        elif cut and tables.row(cut + text):
            self._pending = b""
        elif first in _ROW_BEGINS and tables.row(text):
            self._flush()
        elif (sign := _SIGN.search(line)) and self._failure(line, sign.start()):
            return
        elif cut.lstrip().startswith(b"#"):
            self._pending = b""
            tables.comment(cut + text)
        elif cut and len(cut) < _MAX_PENDING and is_cut_row(cut + text, tables.layout, 1):
            self._pending = cut + text
        elif first in _ROW_BEGINS and is_cut_row(text, tables.layout, 3):
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

    def _failure(self, line: bytes, at: int) -> bool:
        """Note a failure that nccl-tests reports, the first of each kind and host.

        Of what a launcher says only the very first counts: then it ends the other ranks.
        """
        found = _FAILURE.search(line[max(0, at - 300) : at + 400])
        if found is None:
            return False
        kind = found.lastindex or 0
        if kind >= _LAUNCHER and self._failures:
            return True
        cause, host, message = _CAUSES[kind], "", text_of(found[0])
        if kind == _EXIT:
            cause = "timed-out" if found[kind] == b"4" else cause
            message = f"a rank ended with {text_of(found[kind])}"
            message += f" (nccl-tests: {_EXITS[found[kind]]})" if found[kind] in _EXITS else ""
        elif kind:
            host = known_name(text_of(found[kind]), self._tables.hosts)
            told = message[found.end(kind) - found.start() :].lstrip(": ")
            signal = kind == _LAUNCHER
            message = (
                f"{host}: a rank was ended by a signal" if signal else f"{host} reported: {told}"
            )
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
            networks=self._info.networks(),
            detours=self._info.detours(),
            nccl_lines=self._info.lines,
            warnings=tuple(self._info.warnings),
        )


def _short(whole: bytes) -> list[bytes]:
    """Split into lines, without those that are too long."""
    lines = whole.split(b"\n")
    if len(whole) > LINE_LIMIT and max(map(len, lines)) > LINE_LIMIT:
        return [line for line in lines if len(line) <= LINE_LIMIT]
    return lines
