"""Run other programs, and leave behind one that the kernel does not let die.

A program that hangs in a driver cannot be killed. `subprocess.run` would wait for its end, and it
would keep everything that a program prints.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from contextlib import suppress
from typing import NamedTuple

#: Seconds in which a killed program ends, if it can.
_GRACE = 1.0
#: Maximum output of a program, and errors that are kept of it, in bytes.
_MOST, _MOST_ERRORS = 16 << 20, 64 << 10


class Ran(NamedTuple):
    """The end of a program; `exit` is None if it is missing, late, or printed too much."""

    exit: int | None
    raw: bytes
    err: str
    #: True if it did not end in time.
    is_late: bool = False

    @property
    def out(self) -> str:
        """Return the output as text."""
        return self.raw.decode(errors="replace")


def run(seconds: float, *command: str, most: int = _MOST) -> Ran:
    """Return the output of a command, which has `seconds`."""
    until = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(None, b"", error.strerror or str(error))
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        try:
            while selector.get_map() and len(out) <= most and time.monotonic() < until:
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    block = os.read(key.fd, 1 << 16)
                    if not block:
                        selector.unregister(key.fileobj)
                    key.data.extend(block)
                    del err[:-_MOST_ERRORS]
            if len(out) > most:
                return Ran(None, b"", f"it printed more than {most >> 20} MiB")
            if selector.get_map():
                raise subprocess.TimeoutExpired(command, seconds)
            status = process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Ran(None, b"", f"no answer in {seconds:g} s", is_late=True)
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
    return Ran(status, bytes(out), err.decode(errors="replace"))
