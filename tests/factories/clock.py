"""Time in tests: a clock that only sleeping moves, and how long a test waits for a program."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from types import ModuleType

import pytest

#: Seconds that a test waits for what always happens. No test is about them: on a machine that is
#: not stuck, they never pass.
PATIENCE = 300


class Clock:
    """The clock of the package `accept`; the rest of the process keeps the real one.

    `time.sleep` itself must not be replaced: `subprocess` calls it while it waits for a process, so
    a replaced one would count the real time of busy machines.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._on_sleep: Callable[[], None] = lambda: None
        _replace(monkeypatch, sleep=self.sleep, monotonic=lambda: self.now)

    def sleep(self, seconds: float) -> None:
        """Move the clock, and run what was set by `on_sleep`."""
        self.now += seconds
        self._on_sleep()

    def on_sleep(self, call: Callable[[], None]) -> None:
        """Let every sleep call this function after the clock has moved."""
        self._on_sleep = call


def let_wall_clock_jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the wall clock of the package `accept` by `seconds` more with each reading."""
    calls = itertools.count(1)
    _replace(monkeypatch, time=lambda: time.time() + seconds * next(calls))


def _replace(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., object]) -> None:
    """Replace functions of `time` in the modules of the package `accept`."""
    replaced = ModuleType("time")
    replaced.__dict__.update(time.__dict__, **functions)
    for name, module in list(sys.modules.items()):
        if name.startswith("accept.") and module.__dict__.get("time") is time:
            monkeypatch.setattr(module, "time", replaced)
