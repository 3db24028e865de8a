"""How long the command line takes to start, against importing what it cannot do without.

Cold means a process of its own each time; files and byte code are in the page cache, as they are
for anybody's second command. Commands take turns, so that a neighbour disturbs all alike.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks import Row, beside

_TIMES = 20
_BAR = 1.5
_ACCEPT = str(Path(sys.executable).parent / "accept")
_PAIRS = (
    (
        "`accept render -m cpu -n 2 --backend ssh`",
        (_ACCEPT, "render", "-m", "cpu", "-n", "2", "--backend", "ssh"),
        "import typer, yaml, jinja2",
    ),
    ("`accept --help`", (_ACCEPT, "--help"), "import typer"),
)


def seconds(command: tuple[str, ...]) -> float:
    """How long a command takes from start to end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def rows(times: int = _TIMES) -> list[Row]:
    """Medians of `times` starts of each."""
    found = []
    for what, command, imports in _PAIRS:
        yardstick = (sys.executable, "-c", imports)
        taken = [(seconds(command), seconds(yardstick)) for _ in range(times + 1)][1:]
        ours, theirs = (median(column) for column in zip(*taken, strict=True))
        found.append(
            beside(
                f"{what}, cold",
                f"{ours * 1e3:.0f} ms",
                f'`python -c "{imports}"` {theirs * 1e3:.0f} ms',
                ours=ours,
                theirs=theirs,
                bar=_BAR,
            )
        )
    return found
