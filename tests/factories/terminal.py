"""Start a command on a terminal of its own, read what it shows, and type."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Mapping

from tests.factories.clock import PATIENCE


class Terminal:
    """A command on its own terminal."""

    def __init__(self, words: list[str], environment: Mapping[str, str]) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execve(words[0], words, environment)
        self.shown = ""

    def shows(self, words: str) -> None:
        """Wait until the terminal shows a text."""
        until = time.monotonic() + PATIENCE
        while words not in self.shown:
            if time.monotonic() >= until:
                raise TimeoutError(self.shown)
            assert self._read(), f"it ended: {self.shown}"

    def _read(self) -> bool:
        """Wait a moment for output; return False at its end."""
        if not select.select([self._end], [], [], 0.2)[0]:
            return True
        try:
            part = os.read(self._end, 65536)
        except OSError:
            return False
        self.shown += part.decode(errors="replace")
        return bool(part)

    def types(self, text: str) -> None:
        """Type a text."""
        os.write(self._end, text.encode())

    def ended(self) -> int:
        """Wait for its end; return its exit status."""
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self._end)
        return os.waitstatus_to_exitcode(status)
