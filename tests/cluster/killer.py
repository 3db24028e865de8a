"""Kill the process that imports this at one of its actions; a copy of it is `sitecustomize`.

An action is a line on stderr, a renamed file, a request to an API server, a program that starts or
ends, or one of many files written or removed in a row. So a point of a command's life is a number,
and does not depend on time.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading

AT, COUNT, WITH_CHILDREN = "KILL_AT", "KILL_COUNT", "KILL_WITH_CHILDREN"
#: Of as many of a kind in a row, one counts.
_ROW_OF = {"write": 60, "remove": 60, "end": 1000}
_KINDS = {
    "os.rename": "rename",
    "subprocess.Popen": "start",
    "http.client.send": "request",
    "os.mkdir": "write",
    "os.remove": "remove",
    "os.rmdir": "remove",
}
_MODES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Killer:
    def __init__(self, at: int, count: int | None, *, with_children: bool) -> None:
        self._at, self._count, self._with_children = at, count, with_children
        self._lock = threading.RLock()
        self._last, self._row, self._actions = "", 0, 0

    def audit(self, event: str, words: tuple[object, ...]) -> None:
        """Count an event of the interpreter."""
        kind = _KINDS.get(event, "")
        if event == "open" and isinstance(words[0], str) and words[0] != os.devnull:
            kind = "write" if isinstance(words[2], int) and words[2] & _MODES else ""
        if kind:
            self.act(kind)

    def act(self, kind: str) -> None:
        """Count an action, and end the process if it is the one."""
        with self._lock:
            self._row = self._row + 1 if kind == self._last else 0
            self._last = kind
            # Some callers wait for the same program several times.
            if self._row % _ROW_OF.get(kind, 1):
                return
            self._actions += 1
            if self._count is not None:
                os.write(self._count, f"{kind}\n".encode())
            if self._actions == self._at:
                if self._with_children:
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


def _install() -> None:
    # Programs that this process starts are not killed.
    os.environ.pop("PYTHONPATH", None)
    at, path = os.environ.pop(AT, ""), os.environ.pop(COUNT, "")
    with_children = bool(os.environ.pop(WITH_CHILDREN, ""))
    if not at and not path:
        return
    count = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if path else None
    killer = _Killer(int(at or 0), count, with_children=with_children)

    class Stderr(io.TextIOWrapper):
        def write(self, text: str, /) -> int:
            killer.act("line")
            return super().write(text)

    wait = subprocess.Popen.wait

    def wait_and_act(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        status = wait(self, timeout)
        killer.act("end")
        return status

    sys.stderr = Stderr(sys.stderr.buffer, encoding="utf-8", line_buffering=True)
    subprocess.Popen.wait = wait_and_act  # type: ignore[method-assign, assignment]
    sys.addaudithook(killer.audit)


if __name__ == "sitecustomize":
    _install()
