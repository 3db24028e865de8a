"""Run other programs, and leave behind one that the kernel does not let die.

A program that hangs in a driver cannot be killed. `subprocess.run` would wait for its end.
"""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import suppress
from typing import NamedTuple

#: Seconds in which a killed program ends, if it can.
_GRACE = 1.0


class Ran(NamedTuple):
    """The end of a program; `exit` is None if it is missing."""

    exit: int | None
    out: str
    err: str


def run(seconds: float, *command: str) -> Ran:
    """Return the output of a command. Raises subprocess.TimeoutExpired after `seconds`."""
    # Into files, because nobody may read a pipe to its end if the program stays.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            return Ran(None, "", error.strerror or str(error))
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ran(status, *texts)
