"""Find in a log why its launch or its program failed, and the beginning of the program.

It is the same for the logs of our runs and for those of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

from accept.core.catalog.metrics import WRONG
from accept.core.causes import Cause
from accept.core.records import Metric, Problem
from accept.core.signs import Catalog, Layer, Match, SignOwner, Specificity, catalog
from accept.core.text import plain

#: Causes that a table shows by itself, without a line that reports a failure.
OF_TABLES = (
    Cause.INCOMPLETE_LOG,
    Cause.PARTIAL_LOG,
    Cause.NO_TABLE,
    Cause.UNPARSABLE,
    Cause.NO_MEASUREMENT,
    Cause.NOT_FINITE,
    Cause.WRONG_DATA,
)
#: Causes that report only that something failed.
_GENERAL = (Cause.CRASHED, Cause.LAUNCH_FAILED, Cause.UNKNOWN)
#: Causes for which the coordinator names the hosts whose ranks stopped.
_STOPPED = (Cause.CRASHED, Cause.RANK_HUNG)
#: The layers of software that start programs. A line about the end of a rank shows that it started.
_LAYERS = (Layer.MPI, Layer.SSH, Layer.SLURM, Layer.SYSTEM, Layer.CONTAINER, Layer.KUBERNETES)
_SPECIFICITIES = frozenset({*Specificity} - {Specificity.END})
#: Text that shows that a program started: a record or line of it. A traceback without any of that
#: is the launcher's own.
_RAN = re.compile(rb"^ACCEPT |^# nThread |NCCL (?:INFO|WARN) |^Traceback ", re.MULTILINE)
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


def launch_problems(found: Iterable[Match]) -> list[Problem]:
    """Return the launch errors among ranked signs, the most decisive first."""
    of_launcher = (
        match
        for match in found
        if match.sign.layer in _LAYERS and match.sign.specificity in _SPECIFICITIES
    )
    return list(dict.fromkeys(match.problem() for match in islice(of_launcher, _MAX_PROBLEMS)))


def decided(problems: Sequence[Problem], found: Sequence[Match]) -> tuple[Problem, ...]:
    """Return the problems with the causes that the ranked signs show, each of them once.

    A program ended with an error because of the best sign that its host or no host has, if only one
    program failed. Without a cause there, that of another host explains it, and accuses none. Signs
    of a mistake of the user name no host, and those of the network neither end of a connection.
    """
    failed = [problem for problem in problems if problem.cause not in OF_TABLES]
    is_one = len({problem.check for problem in failed}) == 1
    first = next((m for m in found if m.sign.specificity is Specificity.CAUSE), None)
    shown: dict[tuple[object, ...], Problem] = {}
    for problem in failed:
        own = next((m for m in found if not problem.host or m.host in (None, problem.host)), None)
        best = own if own and own.sign.specificity is Specificity.CAUSE else first or own
        host = problem.host if best is own and not (best and best.sign.is_mistake) else None
        new = replace(problem, host=host)
        if best and is_one and problem.cause in _GENERAL and best.sign.shows_cause:
            of_network = best.sign.owner is SignOwner.NETWORK
            decisive = replace(best.problem(problem.check), host=None if of_network else host)
            new = new if decisive.cause is Cause.CRASHED else decisive
        shown.setdefault((new.cause, new.check, new.host, new.rank, new.gpu), new)
    return (*shown.values(), *(p for p in problems if p.cause in OF_TABLES))


def ended(found: Iterable[Match]) -> bool:
    """Return True if a launcher reports how a rank ended, which thus had begun."""
    return any(match.sign.specificity is Specificity.END for match in found)


def explain_end(problems: Sequence[Problem], metrics: Iterable[Metric]) -> bool:
    """Return True if problems or wrong results explain that a program ended with an error."""
    reported = any(p.cause not in OF_TABLES or p.cause is Cause.WRONG_DATA for p in problems)
    return reported or any(metric.name == WRONG.name and metric.value for metric in metrics)


def end_problems(found: Sequence[Match]) -> Iterator[Problem]:
    """Yield why a program ended with an error that itself did not report, from ranked signs.

    Only a line that shows the cause accuses the host that it names.
    """
    for match in found:
        if match.sign.name == found[0].sign.name:
            problem = match.problem()
            of_network = match.sign.owner is SignOwner.NETWORK
            is_sure = match.sign.specificity is Specificity.CAUSE and not of_network
            yield problem if is_sure else replace(problem, host=None)


def without_innocent(outside: Iterable[Problem], logged: Sequence[Problem]) -> Iterator[Problem]:
    """Yield problems seen from outside; after a mistake of the user, no host stopped ranks."""
    signs = [catalog().find(problem.sign) for problem in logged if problem.sign]
    is_mistake = any(sign and sign.is_mistake and sign.shows_cause for sign in signs)
    for problem in outside:
        yield replace(problem, host=None) if is_mistake and problem.cause in _STOPPED else problem


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
    return any(True for _ in _final().search(text))


@cache
def _final() -> Catalog:
    return Catalog(sign for sign in catalog().signs if sign.final)
