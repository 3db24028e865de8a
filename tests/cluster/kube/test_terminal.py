"""Ctrl-C on a terminal asks: let the run go on, or end it."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, Desk
from tests.cluster.runs import CONNECT, VENV
from tests.factories.terminal import Terminal


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
    assert desk.do("judge", "last").out == done.out
