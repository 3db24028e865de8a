"""train.py: one loss curve at every number of ranks, and who left it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.programs.conftest import Start, refusal

from train import LEAST_BATCH, LEAST_STEPS, ends, odd_ones, options_of, slice_of

#: Largest difference between two curves, as a share of the first loss: rounding of float32.
TOLERANCE = 1e-3
real = pytest.mark.real


@pytest.fixture(scope="module")
def alone(start: Start) -> list[float]:
    """The loss curve of a single rank."""
    curve: list[float] = start("train.py", 1).fact("loss-curve")
    return curve


@real
@pytest.mark.parametrize(
    ("ranks", "launcher"),
    [(1, "mpirun"), (2, "torchrun"), (3, "torchrun"), (4, "mpirun"), (8, "mpirun")],
)
def test_every_number_of_ranks_learns_along_the_same_curve(
    start: Start, alone: list[float], ranks: int, launcher: str
) -> None:
    ran = start("train.py", ranks, launcher=launcher)
    assert (ran.exit, ran.problems) == (0, [])
    curve = ran.fact("loss-curve")
    assert len(curve) == len(alone) == 60
    worst = max(abs(a - b) for a, b in zip(curve, alone, strict=True))
    assert worst <= TOLERANCE * alone[0]
    assert ran.metric("loss-last") <= ran.metric("loss-target") * ran.metric("loss-first")
    assert (ran.metric("loss-first"), ran.metric("loss-last")) == pytest.approx(
        ends(curve), rel=1e-4
    )
    assert {words[1] for words in ran.progress.values()} == {"done"}
    assert ran.fact("began") > 0


@real
def test_throughput_counts_the_global_batch_once(start: Start) -> None:
    # Every step takes 50 ms at least, so no count of 64 samples a step can exceed 1,280 a second.
    ran = start("train.py", 2, "--steps", "20", plant="slow@h1:0")
    assert ran.exit == 0
    assert 0 < ran.metric("throughput") <= 64 / 0.05
    assert ran.metric("step-p50") >= 0.05


@real
def test_the_rank_whose_parameters_differ_is_named(start: Start) -> None:
    ran = start("train.py", 3, plant="wrong@h1:0")
    assert ran.exit != 0
    assert ran.blamed("train") == {("parameters-differ", "h1", 1)}
    assert ran.fact("planted") == "wrong@h1:0"


@real
def test_of_two_ranks_that_differ_neither_is_named(start: Start) -> None:
    ran = start("train.py", 2, plant="wrong@h1:0")
    assert ran.exit != 0
    assert ran.blamed("train") == {("parameters-differ", None, None)}


@real
def test_the_rank_that_first_is_not_finite_is_named(start: Start) -> None:
    ran = start("train.py", 2, plant="nan@h0:0")
    assert ran.exit != 0
    assert ("not-finite", "h0", 0) in ran.blamed("train")
    assert not any(record.get("host") == "h1" for record in ran.problems)
    last = next(record for record in ran.records if record.get("metric") == "loss-last")
    assert last["value"] == "nan"


@real
def test_a_run_that_diverges_everywhere_accuses_no_rank(start: Start) -> None:
    ran = start("train.py", 2, "--rate", "1e30")
    assert ran.exit != 0
    assert ("not-finite", None, None) in ran.blamed("train")
    assert not any("host" in record for record in ran.problems)


@real
def test_a_rank_that_hangs_is_behind_all_others(start: Start) -> None:
    ran = start("train.py", 3, "--timeout", "5", plant="hang@h2:0")
    assert ran.exit != 0
    seq = {rank: int(words[0]) for rank, words in ran.progress.items()}
    assert seq[0] == seq[1] == seq[2] + 1
    assert "crashed" in {record["problem"] for record in ran.problems}
    assert not any("host" in record for record in ran.problems)


@real
def test_a_rank_that_dies_ends_the_run(start: Start) -> None:
    ran = start("train.py", 2, plant="die@h1:0")
    assert ran.exit != 0
    assert int(ran.progress[1][0]) < int(ran.progress[0][0])


@given(st.integers(1, 4096), st.integers(1, 2000))
def test_slices_of_all_ranks_are_the_batch_and_none_is_empty(batch: int, ranks: int) -> None:
    batch = max(batch, ranks)
    slices = [slice_of(rank, ranks, batch) for rank in range(ranks)]
    assert [index for own in slices for index in own] == list(range(batch))
    sizes = {len(own) for own in slices}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_the_minority_is_odd_and_without_a_majority_nobody_is() -> None:
    assert odd_ones(["a", "a", "a"]) == []
    assert odd_ones(["a", "b", "a"]) == [1]
    assert odd_ones(["a", "b", "a", "a", "c"]) == [1, 4]
    assert odd_ones(["a", "b"]) is None
    assert odd_ones(["a", "a", "b", "b"]) is None


@pytest.mark.parametrize(
    "arguments",
    [["--steps", str(LEAST_STEPS - 1)], ["--batch", str(LEAST_BATCH - 1)], ["--ratio", "1"]],
)
def test_what_could_not_be_judged_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert arguments[0] in refusal(options_of, arguments, capsys)
