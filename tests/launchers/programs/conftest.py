"""The fixture that starts the rank programs for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories.programs import Ran, Start, launch, missing_parts


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Return start(PROGRAM, RANKS, *ARGS, plant="", launcher="mpirun"), which returns a `Ran`."""
    if missing := missing_parts():
        pytest.skip(f"the extra `run` is not installed: no {', '.join(missing)}")

    def run(
        program: str | Path, ranks: int, *args: str, plant: str = "", launcher: str = "mpirun"
    ) -> Ran:
        progress = tmp_path_factory.mktemp("progress")
        return launch(progress, program, ranks, *args, plant=plant, launcher=launcher)

    return run
