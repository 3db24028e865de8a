"""Run other programs: what they print is bounded before it is kept.

Programs that hang in a driver, and children that keep a pipe open, delay nobody.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.text import command_line, plain

T = TypeVar("T")

#: Maximum output of one program, of the replies of all hosts together, and of errors, in bytes.
MOST_OUTPUT, _MOST_TOTAL, _MOST_ERRORS = 4 << 20, 256 << 20, 64 << 10
#: Maximum number of connections at the same time.
_AT_ONCE = 128
#: Seconds in which a killed program ends, if it can; and between two looks for the end of one.
_GRACE, _LOOK = 1.0, 0.05

_share = threading.local()


class TooLong(NotStarted):
    """A program was ended because it printed more than is kept."""

    def __init__(self, argv: Sequence[str], most: int) -> None:
        super().__init__(
            f"{plain(argv[0], 100)} printed more than {most / (1 << 20):.3g} MiB",
            code=Code.OUTPUT_TOO_LONG,
            hint=f"see what it prints: {plain(command_line(*argv), 300)} | head",
        )


@dataclass(frozen=True, kw_only=True)
class Output:
    """Hold what a program printed."""

    #: None if its timeout ended it.
    exit: int | None
    out: bytes = b""
    #: The end of its errors.
    err: bytes = b""

    @property
    def text(self) -> str:
        """Return the output as text."""
        return self.out.decode(errors="replace")

    @property
    def errors(self) -> str:
        """Return the errors as text."""
        return self.err.decode(errors="replace")


class Program:
    """A program that runs until the end of its `with` block, at the latest.

    With `session`, its children end with it; then it cannot ask for a password at the terminal.
    Raises FileNotFoundError if the program is missing.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        session: bool = False,
    ) -> None:
        self._session = session
        #: The end of its errors.
        self.err = bytearray()
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            self._process = subprocess.Popen(
                argv,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=cwd,
                start_new_session=session,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._session:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def blocks(self, *, until: float = inf, stall_seconds: float = inf) -> Iterator[bytes]:
        """Yield the output as it comes, to its end.

        Raises TimeoutError at `until` on the monotonic clock, and after `stall_seconds` without
        output.
        """
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        out, heard = self._process.stdout.fileno(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            selector.register(self._process.stderr.fileno(), selectors.EVENT_READ)
            while opened := selector.get_map():
                left: float | None = min(until, heard + stall_seconds) - time.monotonic()
                has_ended = out not in opened and self._process.poll() is not None
                if left is not None and left <= 0 and not has_ended:
                    raise TimeoutError
                if out not in opened:
                    # The background process of a shared ssh connection keeps the errors open.
                    left = 0 if has_ended else min(left or 0, _LOOK)
                ready = selector.select(None if left == inf else left)
                if has_ended and not ready:
                    return
                for key, _ in ready:
                    block = os.read(key.fd, 1 << 16)
                    if not block:
                        selector.unregister(key.fd)
                    elif key.fd == out:
                        heard = time.monotonic()
                        yield block
                    else:
                        self.err += block
                        del self.err[:-_MOST_ERRORS]

    def wait(self, until: float = inf) -> int:
        """Return the exit status. Raises TimeoutError at `until` on the monotonic clock."""
        try:
            return self._process.wait(None if until == inf else max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    session: bool = False,
    timeout: float,
    most: int = MOST_OUTPUT,
) -> Output:
    """Run a program for at most `timeout` seconds, and return what it printed; see `Program`.

    Raises TooLong, after it has ended the program, if it prints more than `most` bytes.
    """
    most = min(most, getattr(_share, "most", most))
    until = time.monotonic() + timeout
    out = bytearray()
    with Program(argv, stdin=stdin, env=env, cwd=cwd, session=session) as program:
        try:
            for block in program.blocks(until=until):
                out += block
                if len(out) > most:
                    raise TooLong(argv, most)
            code = program.wait(until)
        except TimeoutError:
            return Output(exit=None)
    return Output(exit=code, out=bytes(out), err=bytes(program.err))


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.1) -> bool:
    """Wait until a condition holds, which is checked after each pause; False: it never did."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
    return True


def on_all(
    hosts: Iterable[str], action: Callable[[str], T], *, stop: Callable[[], object] = lambda: None
) -> Mapping[str, T]:
    """Call `action` for all hosts in parallel; return the results by host, in the same order.

    The more hosts there are, the less output of each is accepted. `stop` is called after an
    exception, also Ctrl-C, because it waits for the actions that run.
    """
    names = list(hosts)
    if not names:
        return {}

    def begin() -> None:
        _share.most = _MOST_TOTAL // len(names)

    with ThreadPoolExecutor(min(_AT_ONCE, len(names)), initializer=begin) as pool:
        try:
            return dict(zip(names, pool.map(action, names), strict=True))
        except BaseException:
            stop()
            raise
