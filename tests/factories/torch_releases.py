"""The oldest and the newest supported release of torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.factories.paths import ROOT, TESTS

#: The Python with the oldest supported release; made by `make .venv-torch26/.stamp`.
OLDEST = ROOT / ".venv-torch26" / "bin" / "python"
#: The Pythons beside which a supported torch is installed.
RELEASES = (
    pytest.param(Path(sys.executable), id="newest"),
    pytest.param(OLDEST, id="oldest", marks=pytest.mark.oldest),
)
#: The record of the oldest supported release, printed by tests/factories/foreign_uses.py.
RECORD = TESTS / "data" / "torch" / "2.6.0.json"


def need_torch(python: Path) -> None:
    """Skip the test if there is no torch beside this Python."""
    if not any(python.parent.parent.glob("lib/python*/site-packages/torch")):
        pytest.skip(f"no torch beside {python}: make setup .venv-torch26/.stamp")
