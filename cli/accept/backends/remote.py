"""Run commands on the hosts of a run from this machine, over ssh or as steps of Slurm."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from accept.core import bounded
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.runner.ssh import MARKER, PRINT_MARKER
from accept.core.text import duration

#: Number of tries if an sshd refuses a connection because too many arrive at once.
_TRIES = 4
#: Text that ssh prints if a connection ends before the login, so that no command ran.
_REFUSED_EARLY = "exchange_identification"
#: Starts of last lines whose reason is in a line before: of ssh with a jump host, and of tar.
_CONSEQUENCES = (
    "kex_exchange_identification: Connection closed",
    "Connection closed by UNKNOWN",
    "stdio forwarding failed",
    "tar: Exiting with failure",
    "tar: Error is not recoverable",
)
#: Maximum length of the text that a host may print before the marker, in bytes.
_MAX_GREETING = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The program that runs commands on hosts: ssh, or srun."""

    #: Return the arguments of the program that runs an sh command on a host.
    arguments: Callable[[str, str], Sequence[str]]
    #: The error if this machine does not have that program.
    missing: Code
    hint: str
    #: A connection without output for this many seconds may be to a host that is gone, and is made
    #: again; infinite: the program detects this itself.
    silent_seconds: float = inf
    #: Why the program may start nothing on a host that is in order, and what to do; empty: nothing.
    refusal: str = ""

    def argv(self, host: str, command: str) -> list[str]:
        """Return the arguments for `command`, which first prints the marker."""
        return [*self.arguments(host, PRINT_MARKER + command)]

    def not_installed(self, host: str) -> NotStarted:
        """Return the error that the program is missing here."""
        program = self.argv(host, "")[0]
        return NotStarted(f"{program} is not installed here", code=self.missing, hint=self.hint)


@dataclass(frozen=True, kw_only=True)
class Reply(bounded.Output):
    """The result of a command on a host; `exit` is 255 if ssh itself failed."""

    #: True if it is certain that the command began.
    began: bool = False
    #: Output of the login shell before the command ran, such as that of a `.bashrc`.
    greeting: bytes = b""


def call(reach: Reach, host: str, command: str, *, stdin: bytes = b"", timeout: float) -> Reply:
    """Run an sh command on a host, with any login shell."""
    argv = reach.argv(host, command)
    for tries_left in reversed(range(_TRIES)):
        try:
            done = bounded.run(argv, stdin=stdin, timeout=timeout)
        except FileNotFoundError:
            raise reach.not_installed(host) from None
        except bounded.TooLong:
            return Reply(exit=None, err=b"the reply is too long")
        if done.exit is None:
            return Reply(exit=None, err=f"no answer within {duration(timeout)}".encode())
        is_refused = done.exit == 255 and not done.out and _REFUSED_EARLY in done.errors
        if not is_refused or not tries_left:
            break
        # sshd drops connections at random when many arrive at once (MaxStartups).
        time.sleep(random.uniform(0.2, 1.5))
    greeting, found, out = done.out.partition(MARKER)
    return Reply(
        exit=done.exit,
        out=out if found else b"",
        err=done.err,
        began=bool(found),
        greeting=greeting,
    )


def stream(
    reach: Reach,
    host: str,
    command: str,
    *,
    stdin: bytes = b"",
    stall_seconds: float = inf,
) -> Generator[bytes, None, None]:
    """Run an sh command on a host and yield its output as it comes.

    Raises ConnectionError if the command or the connection fails, or if nothing comes for
    `stall_seconds`. Closing the generator ends the command's ssh.
    """
    try:
        program = bounded.Program(reach.argv(host, command), stdin=stdin)
    except FileNotFoundError:
        raise reach.not_installed(host) from None
    with program:
        try:
            yield from _without_greeting(program.blocks(stall_seconds=stall_seconds))
        except TimeoutError:
            raise ConnectionError(f"no data for {stall_seconds:.0f} s") from None
        if program.wait() != 0:
            raise ConnectionError(last_line(program.err.decode(errors="replace")))


def _without_greeting(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the output after the marker."""
    before = b""
    for chunk in chunks:
        before += chunk
        _, found, after = before.partition(MARKER)
        if found:
            if after:
                yield after
            break
        if len(before) > _MAX_GREETING:
            raise ConnectionError(f"the login shell prints more than {_MAX_GREETING} bytes")
    yield from chunks


def last_line(text: str) -> str:
    """Return the last line of a command's output that has a reason, at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(_CONSEQUENCES)]
    return (reasons[-1:] or lines[:1] or ["no answer"])[0][:300]
