"""Judge real logs of ten healthy nodes, and copies with one slow or damaged part.

The repository has 21 of the 204 logs. Tests that need more of them run with ACCEPT_TEST_LOGS=DIR.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from tests.factories.injected_faults import (
    HOSTS,
    NODE,
    judged,
    named,
    node,
)
from tests.factories.real_logs import FOLDERS, REPOSITORY, folder_name

from accept.commands.judged import judge_path
from accept.core.verdict import State


@pytest.fixture(params=FOLDERS, ids=folder_name)
def logs(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.param
    return folder


def test_nobody_is_accused_on_the_healthy_cluster(logs: Path) -> None:
    verdict = judge_path(str(logs)).verdict
    assert named(verdict) == []
    assert verdict.state is State.INCONCLUSIVE


@pytest.mark.parametrize("third", range(3))
def test_nobody_is_accused_if_two_logs_in_three_are_missing(
    tmp_path: Path, logs: Path, third: int
) -> None:
    def keep(name: str, text: str) -> str | None:
        return text if sum(name.encode()) % 3 == third else None

    assert named(judged(logs, tmp_path, keep)) == []


@pytest.mark.parametrize("share", [0.95, 0.9, 0.7])
@pytest.mark.parametrize("number", [2, 6, 9])
def test_only_the_slow_node_is_named(tmp_path: Path, logs: Path, number: int, share: float) -> None:
    """The three nodes share their switch with no other node, with one, and with six."""
    verdict = judged(logs, tmp_path, node(NODE(number), share))
    assert named(verdict) == [("node", NODE(number))]
    assert verdict.state in (State.DEGRADED, State.FAIL)


PAIR = "nccl_N2_G8_cnode3-003_cnode3-007.log"


@pytest.mark.parametrize("length", [0, 600, 900, 2000, -300])
def test_one_dead_pair_accuses_nobody_and_does_not_pass(
    tmp_path: Path, logs: Path, length: int
) -> None:
    verdict = judged(logs, tmp_path, lambda name, text: text[:length] if name == PAIR else text)
    assert named(verdict) == []
    assert verdict.state is State.FAIL


@pytest.mark.parametrize(
    ("length", "error", "accused"),
    [
        (0, "", []),
        (900, "", []),
        (2200, "", []),
        (900, "\ncnode3-004: Test NCCL failure all_reduce.cu:95 'system error'\n", ["crashed"]),
        (0, "srun: error: cnode3-004: task 8: Killed\n", ["crashed"]),
    ],
)
def test_logs_of_all_pairs_of_a_node_that_just_end_accuse_nobody(
    tmp_path: Path, length: int, error: str, accused: list[str]
) -> None:
    """Copies of one real log for each pair of five nodes. With an error, it is a crash."""
    text = (REPOSITORY / "pairwise" / "nccl_N2_G8_cnode3-003_cnode3-007.log").read_text()
    for pair in combinations(HOSTS[:5], 2):
        copy = text.replace(NODE(3), "first").replace(NODE(7), pair[1]).replace("first", pair[0])
        if NODE(4) in pair:
            copy = copy[:length] + error
        (tmp_path / f"nccl_N2_G8_{'_'.join(pair)}.log").write_text(copy)
    verdict = judge_path(str(tmp_path)).verdict
    assert [(s.name, s.cause) for s in verdict.suspects] == [(NODE(4), c) for c in accused]
    # Without the node that crashed, the others may pass.
    assert verdict.state in ((State.FAIL, State.DEGRADED) if accused else (State.FAIL,))
