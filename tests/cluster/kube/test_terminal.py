"""Ctrl-C on a terminal asks: let the run go on, or end it."""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, Desk
from tests.cluster.runs import CONNECT, PATIENCE, VENV


class Terminal:
    """A command on its own terminal."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execve(words[0], words, environment)
        self.shown = ""

    def shows(self, words: str) -> None:
        """Wait until the terminal shows a text."""
        until = time.monotonic() + PATIENCE
        while words not in self.shown:
            assert time.monotonic() < until, self.shown
            if select.select([self._end], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._end, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"it ended: {self.shown}") from None

    def types(self, text: str) -> None:
        """Type a text."""
        os.write(self._end, text.encode())

    def ended(self) -> int:
        """Wait for its end; return its exit status."""
        while True:
            try:
                if not os.read(self._end, 65536):
                    break
            except OSError:
                break
        _, status = os.waitpid(self.pid, 0)
        os.close(self._end)
        return os.waitstatus_to_exitcode(status)


def test_a_run_is_left_and_taken_up_again(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    words = [str(VENV / "bin" / "accept"), "run", "-v", *desk.options(3, [*CONNECT, WAITS])]
    terminal = Terminal(words, desk.environment)
    terminal.shows("hosts: 3 of 3")
    terminal.types("\x03")
    terminal.shows("[d/c]")
    terminal.types("d\n")
    assert terminal.ended() == 130
    refused = desk.do("collect", "last")
    assert (refused.exit, "error[E-RUN-STILL-RUNNING]" in refused.err) == (5, True)
    watch = desk.command("watch", "last")
    watch.wait_for("[1/2]")
    desk.let_go_on()
    done = watch.wait()
    assert done.exit == 0, done.err
    assert desk.do("collect", "last").exit == 0
    assert desk.do("judge", "last").exit == 0


def test_a_run_is_ended_and_nothing_is_left(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    before = desk.everything()
    words = [str(VENV / "bin" / "accept"), "run", "-v", *desk.options(3, [*CONNECT, WAITS])]
    terminal = Terminal(words, desk.environment)
    terminal.shows("hosts: 3 of 3")
    terminal.types("\x03")
    terminal.shows("[d/c]")
    terminal.types("c\n")
    assert terminal.ended() == 130
    desk.leaves(before)
    assert desk.do("judge", "last").exit == 5
