"""Inject faults into copies of real logs, 20 times each, and count false accusations.

`ACCEPT_TEST_LOGS=DIR` names a folder with more logs than those of the repository; one GPU can be
found only with logs of 1, 2 and 4 GPUs per host.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.factories.injected_faults import WORLDS, draw, found, innocent, judged
from tests.factories.real_logs import FOLDERS, MORE, folder_name

from benchmarks import Row

DRAWS = 20


def measured(world: str, logs: Path, draws: int = DRAWS) -> tuple[int, list[tuple[int, str]]]:
    """Return how often exactly the injected faults were named, and (seed, name) of others."""
    exact, wrong = 0, []
    for seed in range(draws):
        one = draw(world, seed)
        with tempfile.TemporaryDirectory() as folder:
            verdict = judged(logs, Path(folder), *one.changes)
        exact += found(verdict, one)
        wrong += [(seed, name) for name in sorted(innocent(verdict, one))]
    return exact, wrong


def rows() -> list[Row]:
    """Return a row for each world and folder of logs."""
    result = []
    for logs in FOLDERS:
        for world in WORLDS:
            exact, wrong = measured(world, logs)
            one = draw(world, 0)
            injected = bool(one.injected or one.group or one.rail)
            draws = len({seed for seed, _ in wrong})
            shown = f"exact in {exact} of {DRAWS}, " if injected else ""
            result.append(
                Row(
                    what=f"{world}; {'all' if logs is MORE else 'the'} logs ({folder_name(logs)})",
                    measured=f"{shown}innocent accused in {draws} of {DRAWS}",
                    bar="none innocent",
                    met=not wrong,
                )
            )
    return result
