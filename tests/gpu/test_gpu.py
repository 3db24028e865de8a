"""`make test-gpu` and `make bench ARGS=gpu` without a GPU: outcomes, limits, and clear messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import gpu as benchmark
from tests.factories import programs  # noqa: F401 - makes the programs importable
from tests.factories.paths import ROOT
from tests.gpu import parts
from tests.gpu.__main__ import Outcome, peaks_of, run
from tests.gpu.parts import Failed, Gpus, Skipped

NONE = Gpus(count=0, name="none", peaks={}, out=ROOT / "build" / "gpu-outputs")


def passing(gpus: Gpus, seconds: float) -> str:
    return "fine"


def skipping(gpus: Gpus, seconds: float) -> str:
    raise Skipped("no mpirun")


def failing(gpus: Gpus, seconds: float) -> str:
    raise Failed("wrong")


def breaking(gpus: Gpus, seconds: float) -> str:
    raise ValueError("malformed")


def test_a_part_that_breaks_counts_as_failed(capsys: pytest.CaptureFixture[str]) -> None:
    counts = run([passing, skipping, failing, breaking], NONE)
    assert (counts[Outcome.PASSED], counts[Outcome.SKIPPED], counts[Outcome.FAILED]) == (1, 1, 2)
    assert "no mpirun" in capsys.readouterr().out


def test_parts_after_the_limit_are_skipped_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    counts = run([passing, failing], NONE, limit=0)
    assert counts[Outcome.SKIPPED] == 2
    assert "failing" in capsys.readouterr().out


def test_a_program_that_does_not_end_is_a_failure() -> None:
    with pytest.raises(Failed, match="did not end"):
        parts.start([sys.executable, "-c", "import time; time.sleep(60)"], 0)


def test_a_skipped_part_counts_as_failed_unless_it_was_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([skipping], NONE)[Outcome.SKIPPED] == 1
    assert run([skipping], NONE, may_skip={"skipping"})[Outcome.ALLOWED] == 1


@pytest.mark.parametrize(("options", "status"), [((), 1), (("--allow-skips", "xid"), 0)])
def test_a_skipped_part_fails_the_command_unless_it_was_named(
    tmp_path: Path, options: tuple[str, ...], status: int
) -> None:
    command = [sys.executable, "-S", "-m", "tests.gpu", "--rehearse", "xid", *options]
    done = subprocess.run([*command, "--out", tmp_path], cwd=ROOT, check=False)
    assert done.returncode == status


def test_a_whole_run_is_among_the_first_three_parts() -> None:
    assert parts.run_quick in [part for group in parts.GROUPS.values() for part in group][:3]


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA B200"])
def test_a_known_gpu_has_peaks(device: str) -> None:
    assert peaks_of(device)["bf16"] > 0


def test_needs_only_the_standard_library_and_names_what_it_skips_without_torch() -> None:
    command = [sys.executable, "-S", "-m", "tests.gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    assert "nothing was tested" in done.stdout
    assert all(p.__name__ in done.stdout for group in parts.GROUPS.values() for p in group)


def test_the_benchmark_gives_the_reason_if_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "_why_not", lambda: "no GPU")
    (row,) = benchmark.rows()
    assert row.met is None
    assert "no GPU" in row.measured


@pytest.mark.parametrize(
    ("rates", "met"), [([1.0] * 10, [True, True]), ([0.96] * 10, [False, True]),
                       ([1.0] * 9 + [0.98], [True, False])],
)  # fmt: skip
def test_the_benchmark_compares_with_the_best_call(rates: list[float], met: list[bool]) -> None:
    rows = benchmark._share_row("copy", rates, {"a": 0.5, "b": 1.0}, "GB/s")
    assert [row.met for row in rows] == met


@pytest.mark.real
def test_the_yardsticks_run_on_a_cpu(run_extra: None) -> None:
    assert set(benchmark.copy("cpu", 0.01)) == {"copy_", "abs", "mul", "add"}
    assert benchmark.gemm("cpu", 0.01)["fp32"]["mm NN"] > 0


@pytest.mark.real
def test_a_rehearsal_starts_the_programs(run_extra: None) -> None:
    assert run([parts.readings, parts.ping], NONE)[Outcome.PASSED] == 2
