"""Find the errors of launchers in a log, and the beginning of its program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from accept.core.causes import Cause
from accept.core.model import Problem
from accept.core.signs import Catalog, Finder, Layer, Match, Specificity, catalog
from accept.core.text import plain

#: The layers of software that start programs. A line about the end of a rank shows that it started.
_LAYERS = (Layer.MPI, Layer.SSH, Layer.SLURM, Layer.SYSTEM, Layer.CONTAINER, Layer.KUBERNETES)
_SPECIFICITIES = (Specificity.EFFECT, Specificity.ERROR, Specificity.CAUSE)
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
#: Number of bytes of a line that are kept.
_MAX_LINE = 1024


def watch(blocks: Iterable[bytes], problems: list[Problem]) -> Iterator[bytes]:
    """Pass `blocks` on, and at their end add the launch errors in them, the most decisive first.

    A line that a more specific sign of another layer explains is not one of them.
    """
    finder = Finder(_signs())
    for block in blocks:
        finder.take(block)
        yield block
    found = (match for match in finder.ranked()[:_MAX_PROBLEMS] if _is_of_launcher(match))
    problems += dict.fromkeys(match.problem() for match in found)


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
        return Problem(cause=Cause.LAUNCH_FAILED, message=message)

    def _look_for_reason(self, block: bytes) -> None:
        for line in block.split(b"\n"):
            if _NO_REASON.fullmatch(line):
                continue
            self._last = line.strip()[:_MAX_LINE]
            if not self._reason and _REASON.search(self._last):
                self._reason = self._last


def is_over(text: bytes) -> bool:
    """Return True if this part of a log shows that the launch failed for good."""
    return any(match.sign.final for match in _signs().search(text))


def _is_of_launcher(match: Match) -> bool:
    best = catalog().in_line(match.line.encode())
    return best is None or best.sign.layer in _LAYERS


@cache
def _signs() -> Catalog:
    return catalog().of(_LAYERS, _SPECIFICITIES)
