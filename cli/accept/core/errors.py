"""Define the exit codes, and the failures that a user can cause. No failure ends with 1."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from accept.core.error_codes import Code


class Exit(IntEnum):
    """The exit codes of `accept` and of the coordinator."""

    PASS = 0
    USAGE = 2
    REJECTED = 3
    NOT_STARTED = 4
    INTERRUPTED = 5
    INCOMPLETE = 6
    INCONCLUSIVE = 7
    INTERNAL = 70
    CTRL_C = 130
    TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM: everything ends as after Ctrl-C, but without questions to the user."""


class AcceptError(Exception):
    """A failure with a stable code, an exit code and advice.

    `message` names the problem, with the value and what was expected; `details` show more of it,
    and `hint` is the next step. Each is a single line, because a file name may contain line breaks
    and must not look like another message.
    """

    exit: Exit = Exit.USAGE

    def __init__(
        self, message: str, *, code: Code, hint: str = "", details: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = " ".join(message.splitlines())
        self.code = code
        self.details = tuple(" ".join(line.splitlines()) for line in details)
        self.hint = " ".join(hint.splitlines())

    def __str__(self) -> str:
        return "\n  ".join(filter(None, (self.message, *self.details, self.hint)))


def warning(code: Code, message: str) -> str:
    """Return the line of a warning about a problem that does not prevent the run."""
    return f"warning[{code}]: {message}"


class BadInput(AcceptError):
    """An option, a file or a value is invalid."""

    exit = Exit.USAGE


class NotStarted(AcceptError):
    """Nothing was submitted, or too few nodes were available."""

    exit = Exit.NOT_STARTED


class Interrupted(AcceptError):
    """The run was interrupted or timed out before it had a verdict."""

    exit = Exit.INTERRUPTED


class BadEvidence(AcceptError):
    """Evidence is incomplete or unreadable."""

    exit = Exit.INCOMPLETE


class NoEvidence(BadEvidence):
    """No evidence of the run exists, or none is reachable from this machine."""
