"""train.py: the same loss curve for any number of ranks, and which rank deviated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.paths import PROGRAMS
from tests.factories.programs import Start

from accept.core.checks.train import Params
from train import DATASETS, LEAST_STEPS, MODELS, PRECISIONS, options_of
from train_parallel import pieces_of, slice_of

real = pytest.mark.real


@real
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("ranks", "launcher", "options"),
    [
        (1, "mpirun", ["--checkpoint", "FOLDER"]),
        (2, "mpirun", ["--model", "gpt-tiny", "--parallel", "ddp"]),
        (3, "torchrun", ["--micro", "1"]),
        (5, "mpirun", ["--micro", "3"]),
    ],
)
def test_every_number_of_ranks_learns_along_the_reference_curve(
    start: Start, tmp_path: Path, ranks: int, launcher: str, options: list[str]
) -> None:
    given = [str(tmp_path / "new") if option == "FOLDER" else option for option in options]
    ran = start("train.py", ranks, *given, launcher=launcher)
    assert (ran.exit, ran.problems) == (0, [])
    assert len(ran.fact("loss-curve")) == 60
    assert ran.fact("training")["reference"]
    assert ran.metric("curve-deviation") <= ran.metric("curve-tolerance") <= 1e-3
    assert ran.metric("loss-last") <= ran.metric("loss-target") * ran.metric("loss-first")
    assert ran.fact("compared") == {"times": 2, "differed": 0}
    assert {words[1] for words in ran.progress.values()} == {"done"}
    assert ran.fact("began") > 0
    own = [record for record in ran.records if record.get("metric") == "rank-own"]
    assert sorted(record["rank"] for record in own) == list(range(ranks))
    if options[:1] == ["--checkpoint"]:
        assert ran.metric("checkpoint-write") > 0
        assert ran.metric("checkpoint-read") > 0
        assert list((tmp_path / "new").iterdir()) == []


@real
def test_a_long_run_prints_intermediate_results_and_then_the_full_results(start: Start) -> None:
    often = "--every", "10", "--report", "0.001"
    ran = start("train.py", 1, "--steps", "60", *often, "--by", "40")
    assert (ran.exit, ran.problems) == (0, [])

    def values_of(name: str) -> list[float]:
        return [record["value"] for record in ran.records if record.get("metric") == name]

    # After enough steps, then every ten steps, and at the end.
    curves = [record["value"] for record in ran.records if record.get("fact") == "loss-curve"]
    assert [len(curve) for curve in curves] == [21, 30, 40, 50, 60]
    assert curves[-1][:40] == curves[2]
    assert values_of("loss-last") == pytest.approx(
        [sum(curve[-5:]) / 5 for curve in curves], rel=1e-4
    )
    assert values_of("loss-by") == pytest.approx([sum(curves[2][35:40]) / 5] * 3, rel=1e-4)
    assert len(values_of("throughput")) == 5
    assert len(values_of("rank-own")) == 1


@pytest.mark.rare
@real
def test_fsdp_follows_the_same_curve_and_detects_a_wrong_result(start: Start) -> None:
    options = "--model", "gpt-tiny", "--parallel", "fsdp", "--steps", "20"
    ran = start("train.py", 2, *options, inject="wrong@h1:0")
    assert ran.exit != 0
    assert ran.metric("curve-deviation") <= 1e-3
    assert ran.fact("training")["compared"] == "outputs"
    # With FSDP, both ranks use the changed parameter, so only the changed gradient differs.
    assert ran.fact("compared") == {"times": 2, "differed": 1}
    assert ran.blamed("train") == {("gradients-differ", None, None)}
    # Waiting for the parameters of others cannot be distinguished from computing.
    metrics = {str(record.get("metric")) for record in ran.records}
    assert "throughput" in metrics
    assert not {"rank-own", "time-input", "time-compute", "time-communication"} & metrics
    assert {words[1] for words in ran.progress.values()} == {"done"}


@real
def test_throughput_counts_the_global_batch_once(start: Start) -> None:
    # Every step takes at least 50 ms, so 64 samples per step are at most 1,280 per second.
    ran = start("train.py", 2, "--steps", "20", inject="slow@h1:0")
    assert ran.exit == 0
    assert 0 < ran.metric("throughput") <= 64 / 0.05
    assert ran.metric("step-p50") >= 0.05
    assert ran.fact("slowest-rank")["own"] >= 0.05
    (slowest,) = [record for record in ran.records if record.get("fact") == "slowest-rank"]
    assert (slowest["host"], slowest["rank"]) == ("h1", 1)


@pytest.mark.rare
@real
def test_the_training_that_loads_gpus_runs_on_cpus_with_a_small_model(start: Start) -> None:
    options = ("--model", "gpt-fit", "--precision", "autocast", "--ratio", "0.9")
    ran = start("train.py", 2, *options, "--steps", "20", "--peak", "1")
    assert ran.exit == 0
    assert ran.metric("sustained") == ran.metric("flops") > 0
    assert ran.metric("mfu") > 0
    # Four pieces of 16 samples on each of two ranks.
    assert ran.fact("training")["batch"] == 128


@real
def test_a_rank_with_different_gradients_and_parameters_is_named(start: Start) -> None:
    ran = start("train.py", 3, inject="wrong@h1:0")
    assert ran.exit != 0
    assert ran.blamed("train") == {("gradients-differ", "h1", 1), ("parameters-differ", "h1", 1)}
    assert ran.fact("injected") == "wrong@h1:0"


@real
def test_if_two_ranks_differ_neither_is_named(start: Start) -> None:
    ran = start("train.py", 2, inject="wrong@h1:0")
    assert ran.exit != 0
    assert ran.blamed("train") == {
        ("gradients-differ", None, None),
        ("parameters-differ", None, None),
    }


@real
def test_the_first_rank_with_a_value_that_is_not_finite_is_named(start: Start) -> None:
    ran = start("train.py", 2, inject="nan@h0:0")
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


@given(st.integers(1, 4096), st.integers(1, 2000))
def test_slices_of_all_ranks_are_the_batch_and_none_is_empty(batch: int, ranks: int) -> None:
    batch = max(batch, ranks)
    slices = [slice_of(rank, ranks, batch) for rank in range(ranks)]
    assert [index for own in slices for index in own] == list(range(batch))
    sizes = {len(own) for own in slices}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 80))
def test_pieces_are_the_slice_and_none_crosses_a_multiple_of_micro(
    batch: int, ranks: int, micro: int
) -> None:
    batch = max(batch, ranks)
    for rank in range(ranks):
        pieces = pieces_of(rank, ranks, batch, micro)
        assert [n for piece in pieces for n in piece] == list(slice_of(rank, ranks, batch))
        assert all(piece[0] // micro == piece[-1] // micro for piece in pieces)


@given(st.integers(0, 6), st.integers(0, 6))
def test_pieces_are_the_same_at_every_number_of_ranks_that_divides_them(
    power: int, size: int
) -> None:
    ranks, micro = 2**power, 2**size
    batch = 64 * micro
    alone = pieces_of(0, 1, batch, micro)
    assert [p for rank in range(ranks) for p in pieces_of(rank, ranks, batch, micro)] == alone


def test_the_check_knows_the_choices_of_the_program() -> None:
    hints = get_type_hints(Params)
    assert get_args(hints["model"]) == MODELS
    assert get_args(hints["dataset"]) == DATASETS
    assert get_args(hints["precision"]) == PRECISIONS


def test_each_reference_curve_has_default_settings_and_its_source() -> None:
    held = json.loads((PROGRAMS / "train_reference.json").read_text())
    assert held["torch"]
    assert held["command"].startswith("python train.py ")
    for one in held["curves"]:
        options = options_of(["--model", one["settings"]["model"]])
        assert {"batch": 64, **one["settings"]} == one["settings"]
        assert all(getattr(options, name) == value for name, value in one["settings"].items())
        assert set(one["tolerance"]) <= set(PRECISIONS)
        assert 0 < one["tolerance"]["fp32"] <= 1e-3
        assert len(one["losses"]) >= LEAST_STEPS
