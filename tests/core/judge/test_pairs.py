"""Pairs of hosts and the suspects they show, and outliers among peers."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accept.core.causes import Cause
from accept.core.groups import pair_rounds
from accept.core.judge.blame import Attribution, attribute
from accept.core.judge.outliers import Sample, outliers
from accept.core.judge.pairs import Event, Measurement, Population, events
from accept.core.judge.robust_stats import rounds_for, spread
from accept.core.judge.topology import find_blocks, near_and_far

NOISE = 0.01


def pairs(
    count: int,
    rounds: int,
    bad: set[str],
    *,
    factor: float = 0.94,
    seed: int = 1,
    jitter: float = 0.0,
) -> list[Measurement]:
    """Return pair rounds in which pairs reach 100, or a share of it with a bad host."""
    chance = random.Random(seed)
    return [
        Measurement(
            group.hosts,
            100
            * (factor if bad & set(group.hosts) else 1.0)
            * (1 + chance.uniform(-jitter, jitter)),
            wave=number,
        )
        for number, wave in enumerate(
            pair_rounds([f"h{i}" for i in range(count)], rounds=rounds, seed=seed)
        )
        for group in wave
    ]


def shown(
    measurements: Sequence[Measurement],
    *,
    bound: float | None = None,
    places: Mapping[str, str] | None = None,
) -> Attribution:
    population = Population(measurements=tuple(measurements), noise=NOISE, bound=bound)
    blocks = find_blocks([population], places or {})
    return attribute(events(near_and_far(population, blocks)), places=places)


def named(measurements: Sequence[Measurement], bound: float | None = None) -> set[str]:
    found = shown(measurements, bound=bound).blamed
    return {one.hosts[0] for one in found if one.kind == "node"}


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


# -- pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [f"h{i}" for i in range(8)])
@pytest.mark.parametrize("rounds", [3, 5])
def test_one_slow_host_of_eight_is_named_and_no_other(bad: str, rounds: int) -> None:
    found = shown(pairs(8, rounds, {bad}))
    (one,) = found.blamed
    assert (one.kind, one.hosts, one.strength, one.cause) == (
        "node",
        (bad,),
        "strong",
        "slow-outlier",
    )
    assert (one.bad, one.pairs, one.other_bad, one.cleared) == (rounds, rounds, 0, rounds)
    assert not found.open_pairs


@pytest.mark.parametrize("seed", range(10))
def test_six_percent_less_is_found_under_one_percent_of_noise(seed: int) -> None:
    assert named(pairs(64, 3, {"h17"}, factor=0.94, seed=seed, jitter=0.005)) == {"h17"}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("count", "bad"), [(8, {"h1", "h2"}), (64, {"h1", "h20", "h40", "h63"})])
def test_bad_hosts_that_may_meet_are_both_named(count: int, bad: set[str], seed: int) -> None:
    assert named(pairs(count, 4, bad, seed=seed)) == bad


def test_a_quarter_of_the_hosts_slow_makes_nearly_half_of_the_pairs_slow() -> None:
    bad = {f"h{i}" for i in range(4)}
    measured = pairs(16, 5, bad, factor=0.5)
    assert sum(one.value == 50 for one in measured) > len(measured) * 0.35
    assert named(measured) == bad


def test_four_bad_pairs_of_few_hosts_may_meet_in_one_host_by_chance() -> None:
    measured = pairs(10, 9, set())
    own = [i for i, one in enumerate(measured) if "h3" in one.hosts]
    for index in own[:4]:
        measured[index] = measured[index]._replace(value=60.0)
    assert not named(measured)


def test_all_three_pairs_of_a_host_may_be_bad_by_chance_if_other_pairs_are() -> None:
    """Three of the four bad pairs are those of h7; h6 has two of them and is not a bad host."""
    good = ["2-5", "2-8", "2-11", "3-4", "3-10", "4-9", "5-8", "5-11", "6-10", "8-11", "9-10"]
    speeds = dict.fromkeys(good, 100.0) | dict.fromkeys(["3-7", "7-9", "6-7", "4-6"], 6.0)
    assert not named(
        [Measurement(tuple(f"h{n}" for n in p.split("-")), v) for p, v in speeds.items()]
    )


@pytest.mark.parametrize("other", [90.0, 96.0, 100.0])
def test_a_slightly_slow_pair_does_not_clear_a_host_that_collapsed(other: float) -> None:
    measured = pairs(6, 5, {"h1"}, factor=0.2, jitter=0.005)
    index = next(i for i, one in enumerate(measured) if set(one.hosts) == {"h3", "h4"})
    measured[index] = measured[index]._replace(value=other)
    assert named(measured) == {"h1"}


def test_one_slow_pair_is_open_and_accuses_no_host() -> None:
    measured = pairs(8, 3, set())
    measured[5] = measured[5]._replace(value=60.0)
    found = shown(measured)
    assert not found.blamed
    (unit,) = found.open_pairs
    assert set(unit.hosts) == set(measured[5].hosts)
    assert (len(found.collapsed), found.pairs) == (1, len(measured))


def test_a_single_round_accuses_no_host() -> None:
    found = shown(pairs(8, 1, {"h3"}, factor=0.5))
    assert not found.blamed
    assert [set(unit.hosts) & {"h3"} for unit in found.open_pairs] == [{"h3"}]


def test_a_single_pair_needs_a_bound_to_be_bad() -> None:
    slow = shown([Measurement(("a", "b"), 50.0)], bound=90.0)
    assert not slow.blamed
    assert [unit.hosts for unit in slow.open_pairs] == [("a", "b")]
    assert not shown([Measurement(("a", "b"), 50.0)]).open_pairs


def test_all_pairs_slow_accuses_nobody() -> None:
    assert not shown(pairs(8, 3, set()), bound=200.0).blamed


def test_dead_pairs_count_like_slow_ones_and_give_their_cause() -> None:
    measured = [
        one._replace(value=None, cause=Cause.TIMED_OUT) if "h5" in one.hosts else one
        for one in pairs(8, 3, set())
    ]
    assert [(b.hosts, b.cause) for b in shown(measured).blamed] == [(("h5",), "timed-out")]


def test_wrong_data_accuse_a_host_at_any_speed() -> None:
    measured = [
        one._replace(cause=Cause.WRONG_DATA) if "h5" in one.hosts else one
        for one in pairs(8, 3, set())
    ]
    assert [(b.hosts, b.cause) for b in shown(measured).blamed] == [(("h5",), "wrong-data")]


def test_a_partner_is_cleared_only_by_a_good_pair_with_a_third_host() -> None:
    """Three hosts: each partner of the bad one is good only with the other partner."""
    measured = [
        Measurement(("a", "b"), None, Cause.CRASHED),
        Measurement(("b", "c"), None, Cause.CRASHED),
        Measurement(("a", "c"), 100.0),
    ]
    assert named(measured) <= {"b"}
    assert not named(measured[:2])


def test_a_host_that_met_only_bad_ones_is_unknown_and_not_accused() -> None:
    slow = [("x", "b1"), ("x", "b2"), *((b, f"c{i}") for b in ("b1", "b2") for i in range(4))]
    good = [(f"c{i}", f"d{i}") for i in range(4)] + [(f"d{i}", f"e{i}") for i in range(4)]
    measured = [Measurement(pair, 50.0) for pair in slow]
    measured += [Measurement(pair, 100.0) for pair in good]
    found = shown(measured)
    assert {b.hosts for b in found.blamed} == {("b1",), ("b2",)}
    assert found.unknown == ("x",)


def test_a_host_with_half_of_its_pairs_slow_is_intermittent() -> None:
    measured = [
        one._replace(value=70.0) if "h5" in one.hosts and one.wave % 2 else one
        for one in pairs(16, 8, set())
    ]
    (one,) = shown(measured).blamed
    assert (one.hosts, one.cause, one.bad, one.pairs) == (("h5",), "intermittent", 4, 8)


def test_differences_within_three_sigma_accuse_nobody() -> None:
    assert named(pairs(64, 63, {"h9"}, factor=0.975)) == set()


def test_a_bound_at_the_median_of_healthy_values_accuses_nobody() -> None:
    for seed in range(20):
        assert not shown(pairs(64, 4, set(), jitter=0.01, seed=seed), bound=100.0).blamed


@pytest.mark.parametrize("share", [0.97, 1.0, 1.01])
def test_a_bound_near_the_median_of_normal_noise_accuses_nobody(share: float) -> None:
    chance = random.Random(7)
    for seed in range(60):
        healthy = [m._replace(value=chance.gauss(100, 1)) for m in pairs(16, 5, set(), seed=seed)]
        assert not shown(healthy, bound=100 * share).blamed


def test_a_cluster_just_below_the_bound_accuses_nobody() -> None:
    assert not shown(pairs(64, 4, set(), jitter=0.005), bound=101.0).blamed


def test_hosts_that_are_slow_only_across_a_border_are_one_group() -> None:
    places = {f"h{i}": f"row/rack{i // 4}/h{i}" for i in range(32)}
    rack = {f"h{i}" for i in range(8, 12)}
    measured = [
        one._replace(value=80.0 if len(rack & set(one.hosts)) == 1 else 100.0)
        for one in pairs(32, 5, set())
    ]
    (one,) = shown(measured, places=places).blamed
    assert (one.kind, set(one.hosts)) == ("switch", rack)
    # Without places and without a pair inside the rack, each of its hosts may be bad as well.
    assert {host for one in shown(measured).blamed for host in one.hosts} == rack


def test_one_bad_host_in_a_rack_does_not_accuse_the_rack() -> None:
    places = {f"h{i}": f"row/rack{i // 4}/h{i}" for i in range(32)}
    (one,) = shown(pairs(32, 5, {"h9"}, factor=0.5), places=places).blamed
    assert (one.kind, one.hosts) == ("node", ("h9",))


def test_a_gpu_is_named_if_only_its_pairs_are_slow() -> None:
    sets = [frozenset({0, 1}), frozenset({2, 3}), frozenset({1, 2})]
    measured = [
        one._replace(gpus=(sets[one.wave % 3], sets[(one.wave + 1) % 3]))
        for one in pairs(16, 9, set())
    ]
    slow = [
        one._replace(value=50.0)
        if any(h == "h5" and 3 in (g or ()) for h, g in zip(one.hosts, one.gpus, strict=True))
        else one
        for one in measured
    ]
    (one,) = shown(slow).blamed
    assert (one.kind, one.hosts, one.device) == ("gpu", ("h5",), "3")


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


# -- properties ----------------------------------------------------------------------------------


@st.composite
def measured_pairs(draw: st.DrawFn) -> list[Measurement]:
    count = draw(st.integers(2, 12))
    values = st.sampled_from(
        [(100.0, None), (100.0, None), (94.0, None), (50.0, None), (None, Cause.CRASHED)]
    )
    planned = pairs(count, draw(st.integers(1, 6)), set(), seed=draw(st.integers(0, 99)))
    return [m._replace(value=v, cause=c) for m in planned for v, c in [draw(values)]]


@given(measured_pairs())
def test_nobody_without_a_bad_pair_is_accused_or_unknown(measured: list[Measurement]) -> None:
    hosts = {host for one in measured for host in one.hosts}
    fine = hosts - {h for one in measured if one.value != 100.0 for h in one.hosts}
    found = shown(measured)
    accused = {h for b in found.blamed if b.kind in ("node", "gpu") for h in b.hosts}
    assert fine.isdisjoint(accused)
    assert fine.isdisjoint(found.unknown)


@given(
    st.lists(
        st.builds(
            lambda hosts, value, cause: Measurement(tuple(hosts), value, cause),
            st.lists(st.sampled_from("abcdef"), max_size=4),
            st.none() | st.floats(0, 1e9),
            st.sampled_from([None, Cause.WRONG_DATA, Cause.CRASHED]),
        )
    ),
    st.none() | st.floats(0, 1e9),
)
@example([*[Measurement((), None)] * 15, Measurement(("a", "b"), 5e-324)], 2.0)
def test_any_values_can_be_judged(measured: list[Measurement], bound: float | None) -> None:
    shown(measured, bound=bound)
    outliers([Sample(m.hosts, m.value, m.cause) for m in measured], NOISE, bound)


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
