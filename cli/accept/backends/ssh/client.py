"""Run commands on hosts from the workstation, with the user's own ssh and ssh configuration."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from accept.backends.job import SshAccess
from accept.config import Site
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.runner.ssh import MARKER, PRINT_MARKER
from accept.core.serde import Invalid
from accept.core.text import duration

T = TypeVar("T")

#: Connections at the same time.
_AT_ONCE = 128
#: Number of tries if an sshd refuses a connection because too many arrive at once.
_TRIES = 4
#: What ssh prints when a connection ends before a login was possible, so that nothing ran.
_REFUSED_EARLY = "exchange_identification"
#: Most text that a login shell may print before the marker, in bytes.
_MAX_GREETING = 1 << 20


def access_of(site: Site) -> SshAccess:
    """Return how the hosts of a site are reached. Raises BadInput for a value that ssh misreads."""
    config = os.environ.get("ACCEPT_SSH_CONFIG")
    try:
        return SshAccess(
            config_file=str(Path(config).absolute()) if config else None,
            user=site.ssh.user or None,
            port=site.ssh.port,
            jump_host=site.ssh.jump_host or None,
        )
    except Invalid as error:
        key = str(error.path[0])
        where = "ACCEPT_SSH_CONFIG" if key == "configFile" else f"ssh.{key} of the site file"
        raise BadInput(f"{where}: {error.message}", code=Code.SSH_OPTION, hint=error.hint) from None


def ssh_options(site: Site) -> tuple[str, ...]:
    """Return the options of every ssh call: the site's fields, over the user's configuration."""
    return access_of(site).options()


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The result of a command on a host."""

    #: Exit status; 255 if ssh itself failed, None if its timeout ended it.
    exit: int | None
    out: bytes
    err: str
    #: True if it is certain that the command began.
    began: bool = False
    #: What the login shell printed before the command ran, such as the output of a `.bashrc`.
    greeting: bytes = b""


def call(
    options: Iterable[str], host: str, command: str, *, stdin: bytes = b"", timeout: float
) -> Reply:
    """Run an sh command on a host, with any login shell."""
    argv = _argv(options, host, command)
    for tries_left in reversed(range(_TRIES)):
        try:
            done = subprocess.run(
                argv, input=stdin, capture_output=True, timeout=timeout, check=False
            )
        except FileNotFoundError:
            raise _no_ssh() from None
        except subprocess.TimeoutExpired:
            return Reply(exit=None, out=b"", err=f"no answer within {duration(timeout)}")
        err = done.stderr.decode(errors="replace")
        is_refused = done.returncode == 255 and not done.stdout and _REFUSED_EARLY in err
        if not is_refused or not tries_left:
            break
        # sshd drops connections at random when many arrive at once (MaxStartups).
        time.sleep(random.uniform(0.2, 1.5))
    greeting, found, out = done.stdout.partition(MARKER)
    return Reply(
        exit=done.returncode,
        out=out if found else b"",
        err=err,
        began=bool(found),
        greeting=greeting,
    )


def stream(
    options: Iterable[str],
    host: str,
    command: str,
    *,
    stdin: bytes = b"",
    stall_seconds: float | None = None,
) -> Generator[bytes, None, None]:
    """Run an sh command on a host and yield its output as it comes.

    `stdin` must fit into a pipe's buffer. Raises ConnectionError if the command or the connection
    fails, or if nothing comes for `stall_seconds`. Closing the generator ends the command's ssh.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                _argv(options, host, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        except FileNotFoundError:
            raise _no_ssh() from None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # An ssh that has ended already breaks the pipe; its exit status is read below.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(stdin)
                process.stdin.close()
            yield from _without_greeting(_chunks(process.stdout.fileno(), stall_seconds))
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if code != 0:
            errors.seek(0)
            text = errors.read()[-4096:].decode(errors="replace")
            raise ConnectionError(last_line(text))


def _chunks(descriptor: int, stall_seconds: float | None) -> Iterator[bytes]:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(stall_seconds):
                raise ConnectionError(f"no data for {stall_seconds:.0f} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            yield chunk


def _without_greeting(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what follows the marker."""
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


def _argv(options: Iterable[str], host: str, command: str) -> list[str]:
    marked = f"{PRINT_MARKER}{command}"
    return ["ssh", *options, "--", host, f"exec /bin/sh -c {_quoted(marked)}"]


def _no_ssh() -> NotStarted:
    return NotStarted(
        "ssh is not installed here", code=Code.SSH_MISSING, hint="install the OpenSSH client"
    )


def _quoted(command: str) -> str:
    """Return the command in single quotes, which sh, csh and fish understand alike."""
    return "'" + command.replace("'", "'\\''") + "'"


def on_all(hosts: Iterable[str], action: Callable[[str], T]) -> Mapping[str, T]:
    """Call `action` for all hosts in parallel; return the results by host, in the same order."""
    names = list(hosts)
    if not names:
        return {}
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        return dict(zip(names, pool.map(action, names), strict=True))


def last_line(text: str) -> str:
    """Return the last line of a command's output for a message, at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no answer"
