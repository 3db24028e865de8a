"""Run programs whose output comes from hosts and servers: it is bounded before it is kept."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: Maximum output of one program, of the replies of all hosts together, and of errors, in bytes.
MOST_OUTPUT, _MOST_TOTAL, _MOST_ERRORS = 4 << 20, 256 << 20, 64 << 10
#: Maximum number of connections at the same time.
_AT_ONCE = 128

_share = threading.local()


@dataclass(frozen=True, kw_only=True)
class Output:
    """Hold what a program printed."""

    #: None if its timeout or too much output ended it.
    exit: int | None
    out: bytes
    err: bytes
    #: True if it was ended because it printed more than is kept.
    is_too_long: bool = False


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout: float,
    most: int = MOST_OUTPUT,
) -> Output:
    """Run a program for at most `timeout` seconds; end it if it prints more than `most` bytes.

    Errors beyond their limit are dropped. Raises FileNotFoundError if the program is missing.
    """
    most = min(most, getattr(_share, "most", most))
    until = time.monotonic() + timeout
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        process = subprocess.Popen(
            argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
    with process, selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = bytearray(), bytearray()
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        try:
            while selector.get_map() and len(out) <= most:
                if (left := until - time.monotonic()) <= 0:
                    return Output(exit=None, out=b"", err=b"")
                for key, _ in selector.select(left):
                    block = os.read(key.fd, 1 << 16)
                    if not block:
                        selector.unregister(key.fileobj)
                    elif key.data is out:
                        out += block
                    else:
                        err += block[: _MOST_ERRORS - len(err)]
            if len(out) > most:
                return Output(exit=None, out=b"", err=b"", is_too_long=True)
            try:
                code = process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                return Output(exit=None, out=b"", err=b"")
        finally:
            process.kill()
    return Output(exit=code, out=bytes(out), err=bytes(err))


def on_all(hosts: Iterable[str], action: Callable[[str], T]) -> Mapping[str, T]:
    """Call `action` for all hosts in parallel; return the results by host, in the same order.

    The more hosts there are, the less output of each is accepted.
    """
    names = list(hosts)
    if not names:
        return {}

    def begin() -> None:
        _share.most = _MOST_TOTAL // len(names)

    with ThreadPoolExecutor(min(_AT_ONCE, len(names)), initializer=begin) as pool:
        return dict(zip(names, pool.map(action, names), strict=True))
