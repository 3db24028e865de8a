"""gemm.py and memory.py: results that are known in advance, and effects of faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.programs import Start

import exact_gemm
import patterns
from memory import left_by_cgroups
from windowed_timer import MAX_CURVE_POINTS, quantile, rate_curve

real = pytest.mark.real
SMALL = ("--seconds", "0.05", "--alone", "0.02", "--size", "256", "--most", "4194304")
signs = st.integers(0, 10**6).map(exact_gemm.signs)


# -- a product that is known ---------------------------------------------------------------------


@given(signs, signs, st.integers(0, 3), st.integers(0, 2000), st.integers(0, 2000))
def test_each_element_of_the_known_product_equals_the_computed_product(
    a: list[int], b: list[int], times: int, row: int, column: int
) -> None:
    k, period = exact_gemm.PERIOD << times, exact_gemm.PERIOD
    multiplied = sum(a[(row + n) % period] * b[(n + column) % period] for n in range(k))
    assert exact_gemm.product(a, b, k)[row % period][column % period] == multiplied


@given(signs, signs, st.integers(254, 16384))
def test_the_known_product_is_exact_in_bf16_and_never_zero(
    a: list[int], b: list[int], size: int
) -> None:
    k = exact_gemm.inner(size)
    for value in exact_gemm.product(a, b, k)[0]:
        significant = abs(value) // (k // exact_gemm.PERIOD)
        # Eight bits of a bf16, and a power of two.
        assert 0 < significant < 1 << 8
        assert (k // exact_gemm.PERIOD).bit_count() == 1
        assert abs(value) <= k < 1 << 14


@given(st.integers(exact_gemm.PERIOD, 1 << 16))
def test_the_inner_dimension_is_whole_periods_and_more_than_half_of_the_size(size: int) -> None:
    # Accumulators of fp8 hold at most 14 bits.
    assert min(size / 2, 8127) < exact_gemm.inner(size) <= min(size, 8128)
    assert exact_gemm.inner(size) % exact_gemm.PERIOD == 0


@real
@given(st.integers(0, 299), st.integers(0, 199), st.integers(0, 15))
def test_a_single_flipped_bit_is_found_where_it_is(row: int, column: int, bit: int) -> None:
    torch = pytest.importorskip("torch")
    table = exact_gemm.product(exact_gemm.signs(1), exact_gemm.signs(2), exact_gemm.PERIOD)
    found = torch.empty(300, 200, dtype=torch.bfloat16)
    rows = exact_gemm.block(torch, table, 200, found)
    exact_gemm.tile(found, rows)
    assert exact_gemm.differs(torch, found, rows) is None
    assert exact_gemm.digest(found) == exact_gemm.digest_of(rows, 300)
    exact_gemm.bits(torch, found)[row, column] ^= torch.tensor(1 << bit).to(torch.int16)
    differs = exact_gemm.differs(torch, found, rows)
    assert differs is not None
    assert (differs.elements, differs.row, differs.column) == (1, row, column)
    assert exact_gemm.digest(found) != exact_gemm.digest_of(rows, 300)


# -- patterns of memory --------------------------------------------------------------------------

words = st.sampled_from((64, 128, 4160))


@real
@given(st.sampled_from(patterns.NAMES), words, st.integers(0, 9), st.integers(0, 20), st.data())
def test_each_word_of_a_block_follows_the_formula(
    name: str, size: int, seed: int, number: int, data: st.DataObject
) -> None:
    torch = pytest.importorskip("torch")
    block = torch.empty(size, dtype=torch.int64)
    patterns.pattern(torch, name, size, seed, "cpu").write(torch, block, number)
    place = data.draw(st.integers(0, size - 1))
    assert int(block[place]) == patterns.word(name, number * size + place, size, seed)


@given(words, st.integers(0, 9), st.integers(0, 63))
def test_walking_bits_give_each_bit_of_each_word_both_values(
    size: int, seed: int, index: int
) -> None:
    ones, zeros = (patterns.word(name, index, size, seed) for name in patterns.NAMES[:2])
    assert ones ^ zeros == -1
    assert (ones & ((1 << 64) - 1)).bit_count() == 1


@given(st.lists(st.integers(0, 1 << 34), min_size=2, max_size=2, unique=True))
def test_no_two_words_have_the_same_address(indices: list[int]) -> None:
    first, second = (patterns.word("address", index, 1 << 20, 1) for index in indices)
    assert first != second


@real
@given(st.sampled_from(patterns.NAMES), st.integers(0, 3), st.integers(0, 63), st.integers(0, 62))
def test_a_flipped_bit_in_memory_is_reported_with_its_position(
    name: str, number: int, place: int, bit: int
) -> None:
    torch = pytest.importorskip("torch")
    one = patterns.pattern(torch, name, 64, 1, "cpu")
    blocks, scratch = (
        [torch.empty(64, dtype=torch.int64) for _ in range(4)],
        torch.empty(64, dtype=torch.int64),
    )
    for n, block in enumerate(blocks):
        one.write(torch, block, n)
    blocks[number][place] ^= 1 << bit
    counts = [one.differing(torch, block, n, scratch) for n, block in enumerate(blocks)]
    fault = patterns.find(torch, one, blocks, counts, 64)
    assert fault is not None
    assert (fault.words, fault.offset) == (1, (number * 64 + place) * 8)
    assert f"bits {bit}" in str(fault)


# -- rates over time -----------------------------------------------------------------------------

windows = st.lists(st.floats(1e-4, 10), min_size=1, max_size=300)


@given(windows)
def test_a_curve_is_short_and_between_the_slowest_and_the_fastest_window(
    taken: list[float],
) -> None:
    rates = rate_curve(taken, 3.0)
    assert 1 <= len(rates) <= MAX_CURVE_POINTS
    assert 3 / max(taken) * 0.999 <= min(rates) <= max(rates) <= 3 / min(taken) * 1.001


@given(windows)
def test_at_most_one_in_twenty_is_slower_than_the_slowest_twentieth(taken: list[float]) -> None:
    assert sum(value < quantile(taken, 0.05) for value in taken) <= len(taken) * 0.05


# -- available memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "lines", "left"),
    [
        # The tightest limit on the way up counts.
        (
            {
                "pod/memory.max": "1000", "pod/memory.current": "900",
                "pod/one/memory.max": "max", "pod/one/memory.current": "10",
            },
            ["0::/pod/one"],
            100,
        ),
        # Cache that the kernel can drop counts as free.
        (
            {
                "pod/memory.max": "1000", "pod/memory.current": "900",
                "pod/memory.stat": "anon 100\ninactive_file 300",
            },
            ["0::/pod"],
            400,
        ),
        # Version 1 of cgroups.
        (
            {
                "memory/pod/memory.limit_in_bytes": "500",
                "memory/pod/memory.usage_in_bytes": "450",
            },
            ["3:cpu,cpuacct:/pod", "2:memory:/pod"],
            50,
        ),
        ({}, ["0::/"], None),
    ],
)  # fmt: skip
def test_the_memory_that_cgroups_leave(
    files: dict[str, str], lines: list[str], left: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert left_by_cgroups(tmp_path, lines) == left


# -- launched ------------------------------------------------------------------------------------


@pytest.mark.sampled
@real
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_rank_measures_and_is_right(start: Start, ranks: int) -> None:
    ran = start("devices.py", ranks, *SMALL)
    assert (ran.exit, ran.problems) == (0, [])
    found = {(r["check"], r["metric"], r["rank"]): r["value"] for r in ran.records if "metric" in r}
    for rank in range(ranks):
        for check, name in (
            ("gemm", "fp32"), ("gemm", "fp32-p5"), ("gemm", "fp32-alone"),
            ("memory", "copy"), ("memory", "triad"), ("memory", "copy-alone"), ("memory", "tested"),
        ):  # fmt: skip
            assert found[check, name, rank] > 0
        assert found["gemm", "fp32-wrong", rank] == found["memory", "wrong", rank] == 0
    digests = [r["value"]["exact"] for r in ran.records if r.get("fact") == "digest"]
    assert len(digests) == ranks
    assert len(set(digests)) == 1
    assert {steps[1] for steps in ran.progress.values()} == {"done"}


@real
def test_a_flipped_bit_is_found_in_product_and_memory_and_named(start: Start) -> None:
    ran = start("devices.py", 2, *SMALL, inject="flip@h1:0")
    assert ran.exit == 7
    assert ran.blamed("gemm") == {("wrong-result", "h1", 1)}
    assert ran.blamed("memory") == {("wrong-data", "h1", 1)}
    messages = " ".join(problem["message"] for problem in ran.problems)
    assert "1 of 65536 elements of a known product are wrong, first row 128, column 85" in messages
    assert "bits 5" in messages


@pytest.mark.rare
@real
def test_a_result_that_is_not_finite_is_reported(start: Start) -> None:
    ran = start(
        "gemm.py", 2, "--seconds", "0.05", "--alone", "0", "--size", "256", inject="nan@h0:0"
    )
    assert ran.exit == 7
    assert ran.blamed("gemm") == {("not-finite", "h0", 0)}


@pytest.mark.rare
@real
def test_a_slowed_rank_is_slow_and_the_other_is_not(start: Start) -> None:
    ran = start("gemm.py", 2, "--seconds", "1", "--size", "256", inject="slow@h1:0")
    rate = {r["rank"]: r["value"] for r in ran.records if r.get("metric") == "fp32"}
    # 50 ms and more for each product.
    slowest = 2 * 256**3 / 0.05 / 1e12
    assert rate[1] <= slowest
    assert rate[0] > 2 * slowest
