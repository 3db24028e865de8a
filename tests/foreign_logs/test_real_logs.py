"""Judge real logs of ten healthy nodes, and copies with one slow or damaged part.

The repository has 21 of the 204 logs. Tests that need more of them run with ACCEPT_TEST_LOGS=DIR.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from tests.factories.injected_faults import (
    BUSES,
    HOSTS,
    NODE,
    gpu,
    judged,
    named,
    node,
    only,
    slowed,
)
from tests.factories.real_logs import FOLDERS, MORE, REPOSITORY, folder_name

from accept.commands.judged import judge_path
from accept.core.causes import Cause
from accept.core.verdict import State


@pytest.fixture(params=FOLDERS, ids=folder_name)
def logs(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.param
    return folder


@pytest.fixture
def more_logs() -> Path:
    """Return the folder with more logs; the test is left out if none was named."""
    if MORE is None:
        pytest.skip("needs logs of all pairs and of 1, 2 and 4 GPUs per node: ACCEPT_TEST_LOGS=DIR")
    return MORE


def test_nobody_is_accused_on_the_healthy_cluster(logs: Path) -> None:
    verdict = judge_path(str(logs)).verdict
    assert named(verdict) == []
    assert verdict.state is State.INCONCLUSIVE


@pytest.mark.parametrize("part", ["N1_", "N2_", "N2_G8", "N10"])
def test_nobody_is_accused_on_a_part_of_the_cluster(tmp_path: Path, logs: Path, part: str) -> None:
    assert named(judged(logs, tmp_path, only(part))) == []


@pytest.mark.parametrize("part", ["N2_G4", "N2_G2", "N2_G1"])
def test_nobody_is_accused_by_pairs_with_fewer_gpus(
    tmp_path: Path, more_logs: Path, part: str
) -> None:
    assert named(judged(more_logs, tmp_path, only(part))) == []


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


@pytest.mark.parametrize("share", [0.95, 0.9, 0.7])
@pytest.mark.parametrize("part", ["N2_", "N2_G8", "N1_"])
def test_a_part_of_the_logs_is_enough(tmp_path: Path, logs: Path, part: str, share: float) -> None:
    verdict = judged(logs, tmp_path, only(part), node(NODE(4), share))
    if named(verdict) != [("node", NODE(4))]:
        # Ten healthy nodes alone differ so much that 5 % is likely a fault, but not proven.
        assert (part, share, named(verdict)) == ("N1_", 0.95, [])
        causes = {f.cause: f.message for check in verdict.checks for f in check.findings}
        assert f"node {NODE(4)} (probability 0.9" in causes[Cause.UNPROVEN]


def test_two_slow_nodes_of_few_logs_are_open_and_nobody_else_is_named(
    tmp_path: Path, logs: Path
) -> None:
    verdict = judged(logs, tmp_path, node(NODE(4), 0.94), node(NODE(9), 0.8))
    assert {name for _, name in named(verdict)} <= {NODE(4), NODE(9)}
    assert verdict.state is not State.PASS


def test_two_slow_nodes(tmp_path: Path, more_logs: Path) -> None:
    verdict = judged(more_logs, tmp_path, node(NODE(4), 0.94), node(NODE(9), 0.8))
    assert named(verdict) == [("node", NODE(4)), ("node", NODE(9))]


@pytest.mark.parametrize("share", [0.93, 0.8])
@pytest.mark.parametrize("number", [0, 2, 5, 7])
def test_a_slow_gpu(tmp_path: Path, more_logs: Path, number: int, share: float) -> None:
    verdict = judged(more_logs, tmp_path, gpu(NODE(5), number, share))
    assert named(verdict) == [("gpu", f"{NODE(5)}:{number}")]


@pytest.mark.parametrize("rail", [None, 3])
def test_a_slow_rail(tmp_path: Path, logs: Path, rail: int | None) -> None:
    """The log of one GPU of all nodes, as if it had been taken on each rail."""
    text = (logs / "multi-node" / "nccl_N10_G1.log").read_text()
    for number, bus in enumerate(BUSES):
        one = text.replace("device  0 [0000:1b:00]", f"device  {number} [0000:{bus}:00]")
        share = 0.9 if number == rail else 1 - 0.002 * number
        made = slowed(one, lambda _, share=share: share)  # type: ignore[misc]
        (tmp_path / f"rail{number}.log").write_text(made)
    verdict = judge_path(str(tmp_path)).verdict
    assert named(verdict) == ([] if rail is None else [("rail", f"rail {rail}")])


PAIR = "nccl_N2_G8_cnode3-003_cnode3-007.log"


@pytest.mark.parametrize("length", [0, 600, 900, 2000, -300])
def test_one_dead_pair_accuses_nobody_and_does_not_pass(
    tmp_path: Path, logs: Path, length: int
) -> None:
    verdict = judged(logs, tmp_path, lambda name, text: text[:length] if name == PAIR else text)
    assert named(verdict) == []
    assert verdict.state is State.FAIL


def test_a_pair_with_only_a_message_of_the_launcher_accuses_nobody(
    tmp_path: Path, logs: Path
) -> None:
    message = "srun: error: cnode3-007: task 8: Killed\n"
    verdict = judged(logs, tmp_path, lambda name, text: message if name == PAIR else text)
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


def test_a_truncated_log_of_all_nodes_accuses_nobody_and_is_named(
    tmp_path: Path, logs: Path
) -> None:
    log = "nccl_N10_G8.log"
    verdict = judged(logs, tmp_path, lambda name, text: text[:9000] if name == log else text)
    assert named(verdict) == []
    assert verdict.state is State.FAIL
    bad = [f for check in verdict.checks for f in check.findings if f.state is State.FAIL]
    assert {f.cause for f in bad} == {"incomplete-log"}
    assert all(f.evidence == (str(tmp_path / log),) for f in bad)
