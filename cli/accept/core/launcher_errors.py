"""What a log says of a launch that failed, in the launcher's own words.

Open MPI 4.1 and 5.0, PRRTE, Slurm, ssh, the shell and the loader; the texts are theirs, as they
print them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from accept.core.model import Problem


class _Sign(NamedTuple):
    """What is found in a line, and what it means."""

    text: bytes
    cause: str
    message: str
    #: What finds the host behind the text, where it names one.
    host: re.Pattern[bytes] | None = None
    #: Nothing more can come of this launch. Open MPI 5.0 now and then says so and does not end.
    over: bool = False


_FAILED, _NAME = "launch-failed", rb"([\w.-]{1,255})(?=[:\s]|$)"
_HOST = re.compile(_NAME)
_ON_NODE = re.compile(rb"[^\n]{0,80}? failed on node " + _NAME)

_SIGNS = (
    _Sign(b"not enough slots available", "rank-count", "the launcher has fewer slots than ranks"),
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
    _Sign(b" DUE TO TIME LIMIT", "timed-out", "Slurm ended the job at its time limit"),
    _Sign(b" DUE TO NODE FAILURE", _FAILED, "Slurm ended the job: a node of it failed"),
    _Sign(b"No space left on device", "disk-full", "nothing more can be written"),
)
#: Most that is said of one log, and the longest line that is looked at whole.
_MOST, _LINE = 64, 1024


def watch(blocks: Iterable[bytes], found: list[Problem]) -> Iterator[bytes]:
    """Pass `blocks` on, and add to `found` what they say of launches, each thing once."""
    rest = b""
    for block in blocks:
        # A line goes on in the next block where this one does not end it.
        end = block.rfind(b"\n") + 1 or (len(block) if len(block) > _LINE else 0)
        if end:
            _look(rest + block[:end], found)
            rest = b""
        rest = (rest + block[end:])[-_LINE:]
        yield block
    _look(rest, found)


def is_over(text: bytes) -> bool:
    """Whether a part of a log says that a launch has failed, after which nothing more can come."""
    return any(sign.over and sign.text in text for sign in _SIGNS)


def _look(text: bytes, found: list[Problem]) -> None:
    for sign in _SIGNS:
        at = text.find(sign.text)
        while at >= 0 and len(found) < _MOST:
            end = at + len(sign.text)
            # What a program of ours prints is no launcher's.
            if not text.startswith(b"ACCEPT ", text.rfind(b"\n", 0, at) + 1):
                problem = _problem(sign, text, end)
                if problem not in found:
                    found.append(problem)
                if sign.host is None:
                    break
            at = text.find(sign.text, end)


def _problem(sign: _Sign, text: bytes, end: int) -> Problem:
    named = sign.host.match(text, end) if sign.host else None
    if named is None:
        return Problem(cause=sign.cause, message=sign.message)
    host = named[1].decode("ascii", "replace")
    return Problem(cause=sign.cause, message=f"{host}: {sign.message}", host=host)
