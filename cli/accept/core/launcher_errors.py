"""Find the error messages of launchers in a log.

The texts are copied from Open MPI 4.1 and 5.0, PRRTE, Slurm, ssh, the shell and the loader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.model import Problem
from accept.core.text import plain


class _Sign(NamedTuple):
    """A text that launchers print, and its meaning."""

    text: bytes
    cause: Cause
    message: str
    #: Matches the name of the host after the text; None if the text is not followed by one.
    host: re.Pattern[bytes] | None = None
    #: True if the launch cannot succeed after this. Open MPI 5.0 sometimes prints it and hangs.
    over: bool = False


_FAILED = Cause.LAUNCH_FAILED
_NAME = rb"([\w.-]{1,255})(?=[:\s]|$)"
_HOST = re.compile(_NAME)
_ON_NODE = re.compile(rb"[^\n]{0,80}? failed on node " + _NAME)

_SIGNS = (
    _Sign(
        b"not enough slots available", Cause.RANK_COUNT, "the launcher has fewer slots than ranks"
    ),
    _Sign(
        b"A daemon failed to report back",
        _FAILED,
        "a daemon of mpirun never reported back",
        over=True,
    ),
    _Sign(
        b"unable to reliably start one or more daemons",
        _FAILED,
        "a daemon did not start",
        over=True,
    ),
    _Sign(b"has lost communication with a remote daemon", _FAILED, "a daemon fell silent"),
    _Sign(b"No network interfaces were found", _FAILED, "no network for mpirun's own traffic"),
    _Sign(b"orted: command not found", _FAILED, "mpirun's daemon is not on PATH there"),
    _Sign(b"prted: command not found", _FAILED, "mpirun's daemon is not on PATH there"),
    _Sign(b"_perf: command not found", _FAILED, "the program is not on PATH"),
    _Sign(b"error while loading shared libraries", _FAILED, "a library of a program is missing"),
    _Sign(b"Host key verification failed", _FAILED, "the pinned host key was refused"),
    _Sign(b"Permission denied (publickey", _FAILED, "the run's key was refused"),
    _Sign(b"ssh: connect to host ", _FAILED, "ssh did not reach it", _HOST),
    _Sign(b"ssh: Could not resolve hostname ", _FAILED, "ssh knows no such host", _HOST),
    _Sign(b"srun: error: Task launch for ", _FAILED, "Slurm could not launch on it", _ON_NODE),
    _Sign(b"srun: error: Node failure on ", _FAILED, "Slurm lost it", _HOST),
    _Sign(b"launch failed on ", _FAILED, "the launch failed on it", _HOST),
    _Sign(b"allocate a port for PMI", _FAILED, "MPI's process manager got no port"),
    _Sign(b"PMI2_Init failed", _FAILED, "MPI did not reach its process manager"),
    _Sign(b"PMI_Init returned ", _FAILED, "MPI did not reach its process manager"),
    _Sign(b"PMIX ERROR: ", _FAILED, "MPI's process manager (PMIx) reported an error"),
    _Sign(b" DUE TO TIME LIMIT", Cause.TIMED_OUT, "Slurm ended the job at its time limit"),
    _Sign(b" DUE TO NODE FAILURE", _FAILED, "Slurm ended the job because a node failed"),
    _Sign(b"No space left on device", Cause.DISK_FULL, "nothing more can be written"),
)
#: Text that shows that a program started: a record or line of it, or how the launcher reports its
#: end. A traceback without any of that is the launcher's own.
_RAN = re.compile(
    rb"^ACCEPT |^# nThread |NCCL (?:INFO|WARN) |^Traceback |"
    rb"(?:mpirun|prterun|orterun)[^\n]{0,8} (?:detected|noticed) that |"
    rb"process(?:es)? returned a non-zero exit|MPI_ABORT was invoked|"
    rb"srun: error: [^\n]{1,80}: task[^\n]{1,40}: (?:Exited|Terminated|Killed)",
    re.MULTILINE,
)
#: A line in which a launcher reports its own failure.
_REASON = re.compile(rb"error|fail|unable|cannot|could not|lost|refused|abort", re.IGNORECASE)
#: A line that reports nothing: the command line, or a rule.
_NO_REASON = re.compile(rb"\s*(?:#.*|[-=*]*\s*)")
#: Number of characters of that line.
_MAX_REASON = 240
#: Upper limit of problems per log.
_MAX_PROBLEMS = 64
#: Length up to which a line that spans blocks is examined as a whole.
_MAX_LINE = 1024


def watch(blocks: Iterable[bytes], problems: list[Problem]) -> Iterator[bytes]:
    """Pass `blocks` on, and add each launch error in them to `problems`, without duplicates."""
    rest = b""
    for block in blocks:
        # The last line may continue in the next block.
        end = block.rfind(b"\n") + 1 or (len(block) if len(block) > _MAX_LINE else 0)
        if end:
            _search(rest + block[:end], problems)
            rest = b""
        rest = (rest + block[end:])[-_MAX_LINE:]
        yield block
    _search(rest, problems)


class Launch:
    """The beginning of a program in a log, or the launcher's reason why there was none."""

    def __init__(self) -> None:
        self.began = False
        self._reason, self._last = b"", b""

    def watch(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass blocks of whole lines on, and look for the beginning of a program in them."""
        for block in blocks:
            if not self.began and not (began := _RAN.search(block) is not None):
                self._look_for_reason(block)
            elif not self.began:
                self.began = began
            yield block

    def failure(self, status: int) -> Problem:
        """Return the problem of a launch that ended with `status` before a program began."""
        reason = (self._reason or self._last).decode("utf-8", "replace")
        message = f"the launch ended with status {status} before the program began"
        message += f": {plain(reason, _MAX_REASON)}" if reason else ""
        return Problem(cause=_FAILED, message=message)

    def _look_for_reason(self, block: bytes) -> None:
        for line in block.split(b"\n"):
            if _NO_REASON.fullmatch(line):
                continue
            self._last = line.strip()[:_MAX_LINE]
            if not self._reason and _REASON.search(self._last):
                self._reason = self._last


def is_over(text: bytes) -> bool:
    """Return True if this part of a log shows that the launch failed for good."""
    return any(sign.over and sign.text in text for sign in _SIGNS)


def _search(text: bytes, problems: list[Problem]) -> None:
    for sign in _SIGNS:
        start = text.find(sign.text)
        while start >= 0 and len(problems) < _MAX_PROBLEMS:
            end = start + len(sign.text)
            # Records of our programs are not messages of a launcher.
            if not text.startswith(b"ACCEPT ", text.rfind(b"\n", 0, start) + 1):
                problem = _problem(sign, text, end)
                if problem not in problems:
                    problems.append(problem)
                if sign.host is None:
                    break
            start = text.find(sign.text, end)


def _problem(sign: _Sign, text: bytes, end: int) -> Problem:
    match = sign.host.match(text, end) if sign.host else None
    if match is None:
        return Problem(cause=sign.cause, message=sign.message)
    host = match[1].decode("ascii", "replace")
    return Problem(cause=sign.cause, message=f"{host}: {sign.message}", host=host)
