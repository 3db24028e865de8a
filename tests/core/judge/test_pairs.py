"""Spread of populations, and outliers among peers."""

from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.core.causes import Cause
from accept.core.judge.blame import attribute
from accept.core.judge.outliers import Sample, outliers
from accept.core.judge.pairs import Event
from accept.core.judge.robust_stats import rounds_for, spread

NOISE = 0.01


# -- population ----------------------------------------------------------------------------------


def test_three_values_are_too_few_to_conclude_from() -> None:
    assert spread([1.0, 1.0, 0.1], NOISE) is None


def test_equal_values_have_the_spread_of_the_noise() -> None:
    among = spread([100.0] * 8, NOISE)
    assert among is not None
    assert (among.median, among.sigma, among.limit) == (100, 1, 96)


def test_an_outlier_does_not_widen_the_limit_that_finds_it() -> None:
    among = spread([100.0] * 7 + [1.0], NOISE)
    assert among is not None
    assert among.limit == 96


def test_a_wide_population_has_a_low_limit() -> None:
    among = spread([80, 90, 100, 110, 120, 100, 95, 105], NOISE)
    assert among is not None
    assert among.limit < 60


def test_healthy_normal_values_are_rarely_called_slow() -> None:
    """The stated rate is one in 30,000 for large n; small n must not be far worse."""
    chance = random.Random(7)
    for count in (4, 8, 16, 64):
        flagged = total = 0
        for _ in range(2000):
            values = [chance.gauss(100, 1) for _ in range(count)]
            among = spread(values, NOISE)
            assert among is not None
            flagged += sum(value < among.limit for value in values)
            total += count
        assert flagged / total < 1e-3


@given(st.lists(st.floats(1, 1e6), min_size=4), st.floats(0.5, 2))
def test_the_limit_scales_with_the_values(values: list[float], factor: float) -> None:
    one, two = spread(values, NOISE), spread([value * factor for value in values], NOISE)
    assert one is not None
    assert two is not None
    assert two.limit == pytest.approx(one.limit * factor, rel=1e-6, abs=1e-6 * median(values))


@pytest.mark.parametrize(("elsewhere", "kind"), [(0.95, "node"), (1.0, "gpu")])
def test_a_host_that_loses_as_much_without_a_gpu_is_bad_itself(elsewhere: float, kind: str) -> None:
    """Pairs of GPU 0 vary so much that their loss is within the noise."""
    found = []
    for pair in combinations([f"h{index}" for index in range(8)], 2):
        for gpu, share in ((0, elsewhere), (6, 0.95)):
            slow = "h5" in pair
            found.append(
                Event(
                    hosts=pair,
                    gpus=(frozenset({gpu}),) * 2,
                    deviation=-6.0 if slow and gpu == 6 else 0.0,
                    share=share if slow else 1.0,
                    bad=slow and gpu == 6,
                    cause=None,
                    log=f"{pair} {gpu}",
                    step="pairs",
                    wave=0,
                    checks=frozenset({"all-reduce"}),
                    alone=False,
                    repeated=False,
                )
            )
    (one,) = attribute(found).blamed
    assert (one.kind, one.hosts) == (kind, ("h5",))


def test_more_hosts_and_more_noise_need_more_rounds() -> None:
    assert [rounds_for(count, 0.01) for count in (2, 8, 64, 1024, 4096)] == [1, 4, 4, 5, 5]
    assert rounds_for(64, 0.002) < rounds_for(64, 0.01) < rounds_for(64, 0.02) == 5


# -- outliers ------------------------------------------------------------------------------------


def test_the_slow_one_of_eight_is_an_outlier() -> None:
    samples = [Sample((f"h{i}",), 100.0 if i != 3 else 94.0) for i in range(8)]
    (one,) = outliers(samples, NOISE).bad.values()
    assert (one.sample, one.cause) == (samples[3], "slow-outlier")


def test_wrong_data_in_one_of_several_executions_is_shown_by_that_one() -> None:
    samples = [Sample((f"h{i % 8}",), 100.0) for i in range(24)]
    samples[10] = samples[10]._replace(value=None, cause=Cause.WRONG_DATA)
    ((index, one),) = outliers(samples, NOISE).bad.items()
    assert (index, one.cause) == (10, "wrong-data")


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.3, 0.9))
def test_a_host_often_slow_is_bad_and_one_rarely_slow_is_reported(
    slow: int, fine: int, share: float
) -> None:
    samples = [Sample((f"h{i}",), 100.0 + i / 10) for i in range(8) for _ in range(slow + fine)]
    samples += [Sample(("bad",), value) for value in [100 * share] * slow + [100.0] * fine]
    found = outliers(samples, NOISE)
    times = (slow, slow + fine)
    if slow > 1 and slow / (slow + fine) > 1 / 4:
        (one,) = found.bad.values()
        assert (one.sample.hosts, one.cause, one.executions) == (("bad",), "intermittent", times)
        assert found.rare == {}
    else:
        assert found.bad == {}
        assert list(found.rare.values()) == [times]


@pytest.mark.parametrize(("hosts", "executions"), [(64, 30), (16, 100), (256, 8), (64, 5)])
@pytest.mark.parametrize("freedom", [3, 5])
def test_noise_with_heavy_tails_accuses_nobody(hosts: int, executions: int, freedom: int) -> None:
    for seed in range(5):
        chance = random.Random(seed)

        def student(chance: random.Random = chance) -> float:
            squares = chance.gammavariate(freedom / 2, 2)
            return chance.gauss(0, 1) / math.sqrt(squares / freedom)

        samples = [
            Sample((f"h{i}",), 100 * (1 + NOISE * student()))
            for i in range(hosts)
            for _ in range(executions)
        ]
        assert outliers(samples, NOISE).bad == {}


@given(st.lists(st.floats(0.98, 1.02), min_size=20, max_size=60))
def test_noise_of_peers_that_are_measured_many_times_is_not_a_fault(shares: list[float]) -> None:
    samples = [Sample((f"h{i % 5}",), 100.0 * share) for i, share in enumerate(shares)]
    found = outliers(samples, NOISE)
    assert (found.bad, found.rare) == ({}, {})


def test_when_most_are_bad_none_is_an_outlier() -> None:
    samples = [Sample((f"h{i}",), 100.0) for i in range(4)]
    assert outliers(samples, NOISE, bound=200.0).bad == {}
