"""Copies of real logs with faults injected at random: no innocent node is accused.

`python -m benchmarks real_logs` does the same with 20 draws of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories.injected_faults import WORLDS, accused, draw, innocent, judged
from tests.factories.real_logs import MORE, REPOSITORY

#: The worlds whose suspects are exact with enough logs.
_FOUND = ("a node bad in all pairs, 10% of pairs at 70%", "a GPU at 93%", "a GPU at 80%")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("world", WORLDS)
def test_few_logs_accuse_no_innocent_node(tmp_path: Path, world: str, seed: int) -> None:
    one = draw(world, seed)
    assert innocent(judged(REPOSITORY, tmp_path, *one.changes), one.injected) == set()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("world", WORLDS)
def test_no_innocent_node_is_accused_and_the_bad_one_is_found(
    tmp_path: Path, world: str, seed: int
) -> None:
    if MORE is None:
        pytest.skip("needs logs of all pairs and of 1, 2 and 4 GPUs per node: ACCEPT_TEST_LOGS=DIR")
    one = draw(world, seed)
    verdict = judged(MORE, tmp_path, *one.changes)
    assert innocent(verdict, one.injected) == set()
    if world in _FOUND:
        assert {suspect.name for suspect in accused(verdict)} == one.injected
