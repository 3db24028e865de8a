"""No test depends on how busy the machine is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.factories.clock import PATIENCE, Clock
from tests.factories.paths import TESTS

#: Tests of real clusters, GPUs and fuzzing, which are about times and have their own patience.
_ABOUT_TIMES = {"cluster", "gpu", "fuzz"}
SOURCES = [
    path
    for path in sorted(TESTS.rglob("*.py"))
    if path.relative_to(TESTS).parts[0] not in _ABOUT_TIMES
]
#: What makes a test depend on the load, and what to use instead.
_FORBIDDEN = {
    r"setattr\(\s*\"time\.|setattr\(\s*time,": "tests.factories.clock.Clock",
    r"(?:communicate|wait|join|get)\((?:timeout=)?\d": "tests.factories.clock.PATIENCE",
    r"assert .*(?:monotonic|perf_counter|time\.time)\(\).* <": "no limit for the duration",
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(TESTS)))
def test_uses_the_shared_clock_and_patience(path: Path) -> None:
    text = path.read_text()
    assert {use for what, use in _FORBIDDEN.items() if re.search(what, text)} == set()


def test_the_clock_does_not_count_the_time_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    # `run` calls time.sleep while it waits with a limit.
    process = subprocess.Popen(["sleep", "0.2"])
    process.wait(timeout=PATIENCE)
    assert clock.now == 1000.0
