"""Answer why a job failed: decisive lines of its log, the cause, what to do, what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accept.core.failures import OF_TABLES
from accept.core.model import Problem
from accept.core.nccl_tests.table import Log
from accept.core.signs import Match, SignOwner
from accept.core.text import plain

#: Most lines that are quoted, and most characters of each.
_MAX_LINES, _MAX_QUOTE = 3, 200


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Why a job failed, as far as its log shows it."""

    #: The meaning of the most decisive line; "" if no known sign is in the log.
    means: str
    #: True if that line shows what failed. Otherwise it reports only that something did.
    is_evident: bool
    #: True if the most decisive line shows a mistake of the user.
    is_mistake: bool
    #: At most three lines of the log, escaped, the most decisive one first.
    lines: tuple[str, ...]
    action: str
    unknown: str

    @property
    def sentences(self) -> Iterator[str]:
        """Yield the answer in lines for people, the most important ones first."""
        first, *others = (f'line: "{line}"' for line in self.lines)
        yield f"why: {self.means or 'the log shows no known sign'}"
        yield first
        if self.action:
            yield f"what to do: {self.action}"
        yield f"not known: {self.unknown}"
        yield from others

    def without_quote(self, problem: Problem) -> Problem:
        """Return a problem without the line that this answer quotes."""
        if self.means and problem.message.startswith(f"{self.means}; "):
            return replace(problem, message=self.means)
        return problem


def answer_of(log: Log, signs: Sequence[Match]) -> Answer | None:
    """Return the answer of a log with these ranked signs; None if it shows no failure."""
    failures = [problem for problem in log.problems if problem.cause not in OF_TABLES]
    best = signs[0] if signs else None
    if best is None and not failures and not log.warnings:
        return None
    shows_cause = best is not None and best.sign.shows_cause
    first = {match.sign.name: match for match in reversed(signs)}
    lines = [m.line for m in signs if m.sign.shows_cause and m in first.values()]
    lines += [warning.replace(": ", ": NCCL WARN ", 1) for warning in log.warnings]
    lines += [match.line for match in signs] or [problem.message for problem in failures]
    shown: dict[str, None] = {}
    for line in lines:
        text = plain(line, _MAX_QUOTE)
        if not any(text in other or _words(text) in _words(other) for other in shown):
            shown[text] = None
    return Answer(
        means=best.sign.means if best else "",
        is_evident=shows_cause,
        is_mistake=best is not None and best.sign.is_mistake,
        lines=tuple(shown)[:_MAX_LINES],
        action=best.sign.action if best else "run it again with NCCL_DEBUG=INFO",
        unknown=_unknown(best, log, shows_cause=shows_cause),
    )


def _words(text: str) -> str:
    """Return a line without the place in a source that precedes a message of NCCL."""
    return text.partition(" NCCL WARN ")[2] or text


def _unknown(best: Match | None, log: Log, *, shows_cause: bool) -> str:
    if best is None:
        return "the cause, and the host at fault"
    measured = any(table.rows for table in log.tables)
    why = "because the job did not end" if measured else "because nothing was measured"
    hosts = {device.host for table in log.tables for device in table.devices}
    if best.sign.is_mistake:
        return f"the state of the {'host' if len(hosts) == 1 else 'hosts'}, {why}"
    cause = "" if shows_cause else "the cause; "
    if best.sign.owner is SignOwner.NETWORK:
        return f"{cause}the end of the connection that is at fault, and the speed of the others"
    if len(hosts) == 1:
        return f"{cause}the speed of the host, {why}"
    where = "" if best.host else "the host; "
    return f"{cause}{where}the state of the other hosts, {why}"
