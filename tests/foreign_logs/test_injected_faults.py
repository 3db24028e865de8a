"""Copies of real logs with faults injected at random: no innocent node is accused.

`python -m benchmarks real_logs` does the same with 20 draws of each.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.factories.injected_faults import (
    HOSTS,
    WORLDS,
    accused,
    dealt,
    draw,
    found,
    innocent,
    judged,
    node,
)
from tests.factories.real_logs import MORE, REPOSITORY

#: The worlds whose suspects are exact with enough logs.
_FOUND = (
    "a node bad in all pairs, 10% of pairs at 70%",
    "a node at 97%",
    "a node at 93%",
    "a node at 60%",
    "a node at 6%",
    "a GPU at 93%",
    "a GPU at 80%",
    "a NIC of two GPUs at 70%",
    "a leaf at 60%",
    "a rail at 60%",
)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("world", WORLDS)
def test_few_logs_accuse_no_innocent_node(tmp_path: Path, world: str, seed: int) -> None:
    one = draw(world, seed)
    assert innocent(judged(REPOSITORY, tmp_path, *one.changes), one) == set()


@pytest.mark.parametrize("share", [1.0, 0.6, 0.06])
def test_results_that_are_dealt_to_random_pairs_accuse_no_node(
    tmp_path: Path, share: float
) -> None:
    logs = MORE or REPOSITORY
    changes = dealt(logs, random.Random(f"{share}"), node(HOSTS[3], share))
    assert accused(judged(logs, tmp_path, changes)) == []


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("world", WORLDS)
def test_no_innocent_node_is_accused_and_the_bad_one_is_found(
    tmp_path: Path, world: str, seed: int
) -> None:
    if MORE is None:
        pytest.skip("needs logs of all pairs and of 1, 2 and 4 GPUs per node: ACCEPT_TEST_LOGS=DIR")
    one = draw(world, seed)
    verdict = judged(MORE, tmp_path, *one.changes)
    assert innocent(verdict, one) == set()
    if world in _FOUND:
        assert found(verdict, one)
