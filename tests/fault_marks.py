"""A plugin that prints the marks `fault` of the collected tests: `pytest -p tests.fault_marks`."""

from __future__ import annotations

import pytest

#: The first word of each line that the plugin prints.
WORD = "fault-mark"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print a line with the names of fault and back end for each mark."""
    for item in session.items:
        for mark in item.iter_markers("fault"):
            fault, back_end = mark.args
            print(WORD, fault.name, back_end.name)
