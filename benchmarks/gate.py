"""Measure how long `accept gate` takes on this machine without GPUs, warm and cold.

Warm means that a gate ran before. Cold means that the files of Python's environment, torch among
them, were dropped from the page cache, as after a boot; files of the system stay. The yardstick is
the import of torch in the same state, because a gate cannot be faster than that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import Row

_TIMES = 5
_ACCEPT = str(Path(sys.executable).parent / "accept")
#: Limits in seconds.
_WARM, _COLD = 8.0, 20.0


def rows(times: int = _TIMES) -> list[Row]:
    """Measure the shortest of `times` gates, warm and cold; each must pass."""
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as runs:
        environment = {**os.environ, "ACCEPT_RUNS": runs}
        _gate(environment)
        warm = min(_gate(environment) for _ in range(times))
        torch_warm = min(_import_torch() for _ in range(times))
        cold, torch_cold = [], []
        for _ in range(times):
            _drop()
            cold.append(_gate(environment))
            _drop()
            torch_cold.append(_import_torch())
        lines = sorted(Path(runs).glob("*/evidence/records.jsonl"))[times]
        records = [json.loads(line) for line in lines.read_text().splitlines()]
    parts = _parts(records)
    return [
        _row("`accept gate -m cpu`, warm", warm, torch_warm, _WARM),
        *(Row(what=f"… {what}", measured=f"{taken:.1f} s") for what, taken in parts.items()),
        _row("`accept gate -m cpu`, cold", min(cold), min(torch_cold), _COLD),
    ]


def _row(what: str, seconds: float, torch: float, bar: float) -> Row:
    return Row(
        what=what,
        measured=f"{seconds:.1f} s",
        yardstick=f'`python -c "import torch"` {torch:.1f} s',
        ratio=seconds / torch,
        bar=f"{bar:.0f} s",
        met=seconds <= bar,
    )


def _gate(environment: dict[str, str]) -> float:
    """Return how long a gate takes, which must pass."""
    began = time.perf_counter()
    words = [_ACCEPT, "gate", "--machine", "cpu", "--time", "10m"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


def _import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def _drop() -> None:
    """Drop the files of Python's environment from the page cache."""
    for path in Path(sys.prefix).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _parts(records: list[dict[str, object]]) -> dict[str, float]:
    """Return the seconds of each step, and of reading error counters between them."""
    taken: dict[str, float] = {}
    for record in records:
        step, start, end = str(record["step"]), record["start"], record["end"]
        assert isinstance(start, float)
        assert isinstance(end, float)
        name = "reading error counters between the steps" if step == "00-hosts" else step
        taken[name] = taken.get(name, 0.0) + end - start
    return taken
