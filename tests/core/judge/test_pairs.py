"""Decode pair results into suspects, and find outliers among peers."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accept.core.causes import Cause
from accept.core.groups import pair_rounds
from accept.core.judge.outliers import outliers
from accept.core.judge.pairs import Sample, decode
from accept.core.judge.robust_stats import detectable_deficit, rounds_for, spread

NOISE = 0.01


def pairs(
    count: int,
    rounds: int,
    bad: set[str],
    *,
    factor: float = 0.94,
    seed: int = 1,
    jitter: float = 0.0,
) -> list[Sample]:
    """Return pair rounds in which pairs reach 100, or a share of it with a bad host."""
    chance = random.Random(seed)
    return [
        Sample(
            group.hosts,
            100
            * (factor if bad & set(group.hosts) else 1.0)
            * (1 + chance.uniform(-jitter, jitter)),
        )
        for wave in pair_rounds([f"h{i}" for i in range(count)], rounds=rounds, seed=seed)
        for group in wave
    ]


def named(samples: list[Sample]) -> set[str]:
    return {node.hosts[0] for node in decode(samples, NOISE).nodes}


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
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_one_slow_host_of_eight_is_named_and_no_other(bad: str, rounds: int) -> None:
    decoded = decode(pairs(8, rounds, {bad}), NOISE)
    assert [node.hosts for node in decoded.nodes] == [(bad,)]
    assert decoded.nodes[0].strength == "strong"
    assert decoded.nodes[0].cause == "slow-outlier"
    assert decoded.links == ()


@pytest.mark.parametrize("seed", range(10))
def test_six_percent_less_is_found_under_one_percent_of_noise(seed: int) -> None:
    samples = pairs(64, 3, {"h17"}, factor=0.94, seed=seed, jitter=0.005)
    assert named(samples) == {"h17"}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("count", "bad"), [(8, {"h1", "h2"}), (64, {"h1", "h20", "h40", "h63"})])
def test_bad_hosts_that_may_meet_are_both_named(count: int, bad: set[str], seed: int) -> None:
    assert named(pairs(count, 4, bad, seed=seed)) == bad


def test_two_bad_hosts_that_met_are_both_named() -> None:
    hosts = ("a", "b", "c", "d", "e", "f")
    bad = {"a", "b"}
    met = [("a", "b"), ("c", "d"), ("e", "f"), ("a", "c"), ("b", "d"), ("a", "e"), ("b", "f")]
    samples = [Sample(pair, 50.0 if bad & set(pair) else 100.0) for pair in [*met, hosts[2:5:2]]]
    assert named(samples) == bad


def test_a_quarter_of_the_hosts_slow_makes_nearly_half_of_the_pairs_slow() -> None:
    bad = {f"h{i}" for i in range(4)}
    samples = pairs(16, 4, bad, factor=0.5)
    assert sum(sample.value == 50 for sample in samples) > len(samples) * 0.35
    assert named(samples) == bad


def test_one_round_accuses_the_link_and_not_a_host() -> None:
    decoded = decode(pairs(8, 1, {"h3"}, factor=0.5), NOISE)
    assert decoded.nodes == ()
    assert [set(link.hosts) & {"h3"} for link in decoded.links] == [{"h3"}]
    assert decoded.links[0].strength == "weak"


def test_a_single_pair_can_only_accuse_the_link() -> None:
    slow = decode([Sample(("a", "b"), 50.0)], NOISE, bound=90.0)
    assert slow.nodes == ()
    assert [link.hosts for link in slow.links] == [("a", "b")]
    assert decode([Sample(("a", "b"), 50.0)], NOISE).links == ()


def test_one_slow_pair_among_hosts_that_are_fine_elsewhere_accuses_the_link() -> None:
    samples = pairs(8, 3, set())
    samples[5] = samples[5]._replace(value=60.0)
    decoded = decode(samples, NOISE)
    assert decoded.nodes == ()
    assert [link.hosts for link in decoded.links] == [samples[5].hosts]


def test_all_pairs_slow_accuses_nobody() -> None:
    decoded = decode(pairs(8, 3, set()), NOISE, bound=200.0)
    assert (decoded.nodes, decoded.links) == ((), ())


def test_dead_pairs_count_like_slow_ones_and_give_their_cause() -> None:
    samples = [
        sample if "h5" not in sample.hosts else Sample(sample.hosts, None, Cause.TIMED_OUT)
        for sample in pairs(8, 3, set())
    ]
    decoded = decode(samples, NOISE)
    assert [(node.hosts, node.cause) for node in decoded.nodes] == [(("h5",), "timed-out")]


def test_wrong_data_accuse_however_fast_they_came() -> None:
    samples = [
        sample if "h5" not in sample.hosts else Sample(sample.hosts, 100.0, Cause.WRONG_DATA)
        for sample in pairs(8, 3, set())
    ]
    decoded = decode(samples, NOISE)
    assert [(node.hosts, node.cause) for node in decoded.nodes] == [(("h5",), "wrong-data")]


def test_three_hosts_are_enough_where_pairs_are_dead() -> None:
    """Three hosts are too few to compare speeds, but failed pairs need no comparison."""
    samples = [
        Sample(("a", "b"), None, Cause.CRASHED),
        Sample(("b", "c"), None, Cause.CRASHED),
        Sample(("a", "c"), 100.0),
    ]
    assert [node.hosts for node in decode(samples, NOISE).nodes] == [("b",)]


def test_a_host_that_met_only_bad_ones_is_unknown_and_not_accused() -> None:
    slow = [("x", "b1"), ("x", "b2"), ("b1", "c"), ("b2", "d"), ("b1", "d"), ("b2", "c")]
    samples = [Sample(pair, 50.0) for pair in slow] + [
        Sample(pair, 100.0) for pair in [("c", "d"), ("e", "f"), ("e", "g"), ("f", "g")]
    ]
    decoded = decode(samples, NOISE)
    assert {node.hosts[0] for node in decoded.nodes} == {"b1", "b2"}
    assert decoded.unknown == ("x",)


# -- what a threshold is worth ------------------------------------------------------------------


def test_a_host_that_is_slow_now_and_then_is_called_that() -> None:
    samples = [
        sample if "h5" not in sample.hosts or number % 2 else sample._replace(value=70.0)
        for number, sample in enumerate(pairs(16, 6, set()))
    ]
    slow = sum(sample.value == 70 for sample in samples)
    assert 2 <= slow < 6
    (node,) = decode(samples, NOISE).nodes
    assert (node.hosts, node.cause) == (("h5",), "intermittent")
    assert f"in {slow} of its 6 pairs" in node.why


def test_what_is_within_three_sigma_is_not_held_against_a_host_however_often_seen() -> None:
    assert named(pairs(64, 63, {"h9"}, factor=0.975)) == set()


def test_a_host_below_the_bound_by_noise_alone_is_not_accused() -> None:
    """With a bound in the middle of a healthy population, half of the pairs are below it."""
    for seed in range(20):
        samples = pairs(64, 4, set(), jitter=0.01, seed=seed)
        assert decode(samples, NOISE, bound=100.0).nodes == ()


@pytest.mark.parametrize("share", [0.97, 1.0, 1.01])
def test_a_bound_in_the_middle_of_normal_noise_accuses_hardly_anybody(share: float) -> None:
    chance, accused = random.Random(7), 0
    for seed in range(60):
        healthy = [s._replace(value=chance.gauss(100, 1)) for s in pairs(16, 5, set(), seed=seed)]
        found = decode(healthy, NOISE, bound=100 * share)
        accused += bool(found.nodes or found.links)
    assert accused <= 1


def test_a_cluster_just_below_the_bound_accuses_nobody() -> None:
    assert decode(pairs(64, 4, set(), jitter=0.005), NOISE, bound=101.0).nodes == ()


def test_where_most_are_far_below_the_bound_those_who_are_not_show_who_is() -> None:
    bad = {f"h{i}" for i in range(6)}
    assert named(pairs(8, 7, bad, factor=0.5)) == set()
    samples = pairs(8, 7, bad, factor=0.5)
    assert {n.hosts[0] for n in decode(samples, NOISE, bound=90.0).nodes} == bad


def test_hosts_that_are_slow_only_across_a_border_accuse_what_is_between() -> None:
    places = {f"h{i}": f"row/rack{i // 4}/h{i}" for i in range(32)}
    rack = {f"h{i}" for i in range(8, 12)}
    samples = [
        sample._replace(value=80.0 if len(rack & set(sample.hosts)) == 1 else 100.0)
        for sample in pairs(32, 5, set())
    ]
    decoded = decode(samples, NOISE, places=places)
    assert decoded.nodes == ()
    (switch,) = decoded.switches
    assert set(switch.hosts) == rack
    # Nothing can be said of what is between hosts whose places nobody knows.
    assert {node.hosts[0] for node in decode(samples, NOISE).nodes} <= rack


def test_one_bad_host_in_a_rack_does_not_accuse_the_rack() -> None:
    places = {f"h{i}": f"row/rack{i // 4}/h{i}" for i in range(32)}
    decoded = decode(pairs(32, 5, {"h9"}, factor=0.5), NOISE, places=places)
    assert decoded.switches == ()
    assert [node.hosts for node in decoded.nodes] == [("h9",)]


def test_more_hosts_and_more_noise_need_more_rounds() -> None:
    assert [rounds_for(count, 0.01) for count in (2, 8, 64, 1024, 4096)] == [1, 4, 4, 5, 5]
    assert rounds_for(64, 0.002) < rounds_for(64, 0.01) < rounds_for(64, 0.02) == 5


def test_what_rounds_could_have_found_is_told() -> None:
    assert detectable_deficit(1024, 0.01, 5) < 0.04 < detectable_deficit(1024, 0.01, 2)
    assert detectable_deficit(1024, 0.03, 5) > 0.06


# -- properties ----------------------------------------------------------------------------------


@st.composite
def measured(draw: st.DrawFn) -> list[Sample]:
    count = draw(st.integers(2, 12))
    names = [f"h{i}" for i in range(count)]
    waves = pair_rounds(names, rounds=draw(st.integers(1, 6)), seed=draw(st.integers(0, 99)))
    values = st.sampled_from(
        [(100.0, None), (100.0, None), (94.0, None), (50.0, None), (None, Cause.CRASHED)]
    )
    met = [Sample(group.hosts, None) for wave in waves for group in wave]
    return [s._replace(value=v, cause=c) for s in met for v, c in [draw(values)]]


@given(measured(), st.randoms())
def test_renaming_hosts_renames_the_accused(samples: list[Sample], chance: random.Random) -> None:
    names = sorted({host for sample in samples for host in sample.hosts})
    shuffled = names[:]
    chance.shuffle(shuffled)
    new = dict(zip(names, shuffled, strict=True))
    other = [s._replace(hosts=tuple(new[host] for host in s.hosts)) for s in samples]
    chance.shuffle(other)
    one, two = decode(samples, NOISE), decode(other, NOISE)
    assert {(new[a.hosts[0]], a.strength, a.cause) for a in one.nodes} == {
        (b.hosts[0], b.strength, b.cause) for b in two.nodes
    }
    assert {new[host] for host in one.unknown} == set(two.unknown)


@given(measured())
def test_nobody_without_a_bad_pair_is_accused_or_unknown(samples: list[Sample]) -> None:
    good = {"fine": 100.0, "slow": 99.0}
    hosts = {host for sample in samples for host in sample.hosts}
    fine = hosts - {h for s in samples if s.value not in good.values() for h in s.hosts}
    decoded = decode(samples, NOISE)
    assert fine.isdisjoint(host for node in decoded.nodes for host in node.hosts)
    assert fine.isdisjoint(decoded.unknown)


@given(
    st.lists(
        st.builds(
            Sample,
            st.lists(st.sampled_from("abcdef"), max_size=4).map(tuple),
            st.none() | st.floats(0, 1e9),
            st.sampled_from([None, Cause.WRONG_DATA, Cause.CRASHED]),
        )
    ),
    st.none() | st.floats(0, 1e9),
)
@example([*[Sample((), None)] * 15, Sample(("a", "b"), 5e-324)], 2.0)
def test_decoding_never_raises(samples: list[Sample], bound: float | None) -> None:
    decode(samples, NOISE, bound)
    outliers(samples, NOISE, bound)


# -- outliers ------------------------------------------------------------------------------------


def test_the_slow_one_of_eight_stands_out() -> None:
    samples = [Sample((f"h{i}",), 100.0 if i != 3 else 94.0) for i in range(8)]
    (one,) = outliers(samples, NOISE).bad.values()
    assert (one.sample, one.cause) == (samples[3], "slow-outlier")


def test_wrong_data_in_one_of_several_executions_is_shown_by_that_one() -> None:
    samples = [Sample((f"h{i % 8}",), 100.0) for i in range(24)]
    samples[10] = samples[10]._replace(value=None, cause=Cause.WRONG_DATA)
    ((index, one),) = outliers(samples, NOISE).bad.items()
    assert (index, one.cause) == (10, "wrong-data")


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.3, 0.9))
def test_slow_in_a_share_of_its_executions_is_bad_and_slow_rarely_is_told(
    slow: int, fine: int, share: float
) -> None:
    samples = [Sample((f"h{i}",), 100.0 + i / 10) for i in range(8) for _ in range(slow + fine)]
    samples += [Sample(("bad",), value) for value in [100 * share] * slow + [100.0] * fine]
    found = outliers(samples, NOISE)
    times = (slow, slow + fine)
    if slow > 1 and slow / (slow + fine) > 1 / 4:
        (one,) = found.bad.values()
        assert (one.sample.hosts, one.cause, one.slow_of) == (("bad",), "intermittent", times)
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
def test_noise_of_equals_that_are_measured_again_and_again_is_no_fault(shares: list[float]) -> None:
    samples = [Sample((f"h{i % 5}",), 100.0 * share) for i, share in enumerate(shares)]
    found = outliers(samples, NOISE)
    assert (found.bad, found.rare) == ({}, {})


def test_when_most_are_bad_none_is_an_outlier() -> None:
    samples = [Sample((f"h{i}",), 100.0) for i in range(4)]
    assert outliers(samples, NOISE, bound=200.0).bad == {}
