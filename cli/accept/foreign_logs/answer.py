"""Answer why a job failed: decisive lines of its log, the cause, what to do, what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accept.core.causes import Cause, Owner
from accept.core.failures import OF_TABLES
from accept.core.nccl_tests.table import Log
from accept.core.records import Problem
from accept.core.signs import Match, SignOwner
from accept.core.text import plain

#: Most lines that are quoted, and most characters of each.
_MAX_LINES, _MAX_QUOTE = 3, 200


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Why a job failed or measured nothing, as far as its log shows it."""

    file: str
    #: None: no known sign is in the log.
    cause: Cause | None
    #: The meaning of the most decisive line, or else of the first failure; "" if none is known.
    means: str
    #: True if that line shows what failed. Otherwise it reports only that something did.
    is_evident: bool
    #: True if that line, or else that failure, shows a mistake of the user.
    is_mistake: bool
    #: At most three lines of the log, escaped, the most decisive one first.
    lines: tuple[str, ...]
    action: str
    unknown: str

    @property
    def sentences(self) -> Iterator[str]:
        """Yield the answer in lines for people, the most important ones first."""
        lines = [f'line: "{line}"' for line in self.lines]
        first, others = lines[:1], lines[1:]
        yield f"why: {self.means or 'the log shows no known sign'}"
        yield from first
        yield f"what to do: {self.action}"
        yield f"not known: {self.unknown}"
        yield from others

    def without_quote(self, problem: Problem) -> Problem:
        """Return a problem without the line that this answer quotes."""
        if self.means and problem.message.startswith(f"{self.means}; "):
            return replace(problem, message=self.means)
        return problem


def of_cut(file: str, last: str, message: str) -> Answer:
    """Return the answer of a log that measured nothing and shows no failure, with its last line."""
    return Answer(
        file=file,
        cause=Cause.INCOMPLETE_LOG,
        means=f"the log shows neither a result nor a failure: {message}",
        is_evident=False,
        is_mistake=False,
        lines=(plain(last, _MAX_QUOTE),) if last else (),
        action="look for the rest of the output, its stderr and the exit status of the job, and "
        "judge these files together",
        unknown="why the job ended, and the state of the nodes",
    )


def answer_of(file: str, log: Log, signs: Sequence[Match]) -> Answer | None:
    """Return the answer of a log with these ranked signs; None if it shows no failure."""
    failures = [problem for problem in log.problems if problem.cause not in OF_TABLES]
    best = signs[0] if signs else None
    if best is None and not failures and not log.warnings:
        return None
    shows_cause = best is not None and best.sign.shows_cause
    first = {match.sign.name: match for match in reversed(signs)}
    lines = [m.line for m in signs if m.sign.shows_cause and m in first.values()]
    lines += [warning.replace(": ", ": NCCL WARN ", 1) for warning in log.warnings]
    lines += [match.line for match in signs]
    shown: dict[str, None] = {}
    for line in lines:
        text = plain(line, _MAX_QUOTE)
        if not any(text in other or _words(text) in _words(other) for other in shown):
            shown[text] = None
    failure = failures[0] if failures else None
    shown_failure = failure.cause if failure else None
    known = best.sign.action if best else shown_failure.row.action if shown_failure else ""
    return Answer(
        file=file,
        cause=best.sign.cause if best else shown_failure,
        means=best.sign.means if best else failure.message if failure else "",
        is_evident=shows_cause,
        is_mistake=best.sign.is_mistake if best else _is_of_user(shown_failure),
        lines=tuple(shown)[:_MAX_LINES],
        action=known or "run it again with NCCL_DEBUG=INFO",
        unknown=_unknown(best, log, shows_cause=shows_cause),
    )


def _is_of_user(cause: Cause | None) -> bool:
    return cause is not None and cause.row.owner is Owner.USER


def _words(text: str) -> str:
    """Return a line without the place in a source that precedes a message of NCCL."""
    return text.partition(" NCCL WARN ")[2] or text


def _unknown(best: Match | None, log: Log, *, shows_cause: bool) -> str:
    if best is None:
        return "the cause, and the node at fault"
    measured = any(table.rows for table in log.tables)
    why = "because the job did not end" if measured else "because nothing was measured"
    hosts = {device.host for table in log.tables for device in table.devices}
    if best.sign.is_mistake:
        return f"the state of the {'node' if len(hosts) == 1 else 'nodes'}, {why}"
    cause = "" if shows_cause else "the cause; "
    if best.sign.owner is SignOwner.NETWORK:
        return f"{cause}the end of the connection that is at fault, and the speed of the others"
    if len(hosts) == 1:
        return f"{cause}the speed of the node, {why}"
    where = "" if best.host else "the node; "
    return f"{cause}{where}the state of the other nodes, {why}"
