"""Compare the start of the command line with the imports of the libraries that it uses.

Cold means a new process each time; files and byte code are in the page cache, as for the second
command that a person types. A command and its imports take turns, so other load disturbs
both alike. The shortest time of each counts, because other load can only add to it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import Row, beside

_TIMES = 40
_ACCEPT = str(Path(sys.executable).parent / "accept")
#: A site file with an image, so that Helm values can be rendered.
_SITE = str(Path(__file__).parents[1] / "tests" / "site.yaml")


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A command, the imports that it is compared with, and the largest ratio of the two times."""

    what: str
    command: tuple[str, ...]
    imports: str
    bar: float


_PAIRS = (
    _Pair(
        what="`accept render -m cpu -n 2 --site site.yaml`",
        command=(_ACCEPT, "render", "-m", "cpu", "-n", "2", "--site", _SITE),
        imports="import typer, yaml, jinja2, pydantic",
        bar=3.0,
    ),
    _Pair(
        what="`accept --help`",
        command=(_ACCEPT, "--help"),
        imports="import typer",
        bar=2.0,
    ),
)


def seconds(command: tuple[str, ...]) -> float:
    """Return how long a command takes from start to end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def rows(times: int = _TIMES) -> list[Row]:
    """Measure the shortest of `times` starts of each."""
    measured = []
    for pair in _PAIRS:
        yardstick = (sys.executable, "-c", pair.imports)
        taken = [(seconds(pair.command), seconds(yardstick)) for _ in range(times + 1)][1:]
        ours, theirs = (min(column) for column in zip(*taken, strict=True))
        measured.append(
            beside(
                f"{pair.what}, cold",
                f"{ours * 1e3:.0f} ms",
                f'`python -c "{pair.imports}"` {theirs * 1e3:.0f} ms',
                ours=ours,
                theirs=theirs,
                bar=pair.bar,
            )
        )
    return measured
