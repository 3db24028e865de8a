"""The fixture that starts the rank programs for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories.programs import Ran, Start, launch, missing_parts


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Return `tests.factories.programs.launch`, with a new folder for the progress at each call."""
    if missing := missing_parts():
        pytest.skip(f"the extra `run` is not installed: no {', '.join(missing)}")

    def run(program: str | Path, ranks: int, *args: str, **options: str) -> Ran:
        return launch(tmp_path_factory.mktemp("progress"), program, ranks, *args, **options)

    return run
