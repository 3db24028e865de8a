"""Pairs of few hosts with given results: the hosts they accuse, and those they do not."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.judging import gpu_plan, judged
from tests.factories.verdicts import FLOOR, hosts, hosts_record, record, step, table

from accept.core.causes import Cause
from accept.core.facts import GPUS
from accept.core.groups import Group, pair_rounds
from accept.core.model import OF_HOST, Fact, State, Suspect, SuspectKind, Verdict

_STEP = step("all-reduce", "pairs", rounds=3)


class Pair(NamedTuple):
    """The result of two hosts: a value, or a cause."""

    hosts: tuple[str, ...]
    #: None: nothing was measured.
    value: float | None
    cause: Cause | None = None
    gpus: tuple[frozenset[int], ...] = ()
    wave: int = 0


def pairs(
    count: int,
    rounds: int,
    bad: set[str],
    *,
    factor: float = 0.94,
    seed: int = 1,
    jitter: float = 0.0,
) -> list[Pair]:
    """Return pair rounds in which pairs reach 100, or a share of it with a bad host."""
    chance = random.Random(seed)
    return [
        Pair(
            group.hosts,
            100
            * (factor if bad & set(group.hosts) else 1.0)
            * (1 + chance.uniform(-jitter, jitter)),
            wave=number,
        )
        for number, wave in enumerate(pair_rounds(hosts(count), rounds=rounds, seed=seed))
        for group in wave
    ]


def verdict(
    found: Sequence[Pair],
    *,
    bound: float | None = None,
    places: Mapping[str, str] | None = None,
) -> Verdict:
    """Return the verdict on these pairs alone."""
    names = tuple(dict.fromkeys(host for pair in found for host in pair.hosts))
    facts = (
        Fact(name="place", value=place, check="hosts", host=host)
        for host, place in (places or {}).items()
    )
    first = replace(hosts_record(names), facts=tuple(facts))
    references = () if bound is None else (replace(FLOOR, lower=bound, peak=None),)
    return judged(
        gpu_plan(_STEP, references=references),
        first,
        *(
            record(
                _STEP,
                Group(hosts=pair.hosts),
                *(
                    table("all-reduce", pair.value, wrong=5 * (pair.cause is Cause.WRONG_DATA))
                    if pair.value is not None
                    else ()
                ),
                wave=pair.wave,
                number=number,
                status=1 if pair.value is None else 0,
                facts=tuple(
                    Fact(name=GPUS.name, value=sorted(gpus), host=host)
                    for host, gpus in zip(pair.hosts, pair.gpus, strict=False)
                ),
            )
            for number, pair in enumerate(found)
        ),
    )


def of_hosts(found: Sequence[Pair], *, bound: float | None = None) -> list[Suspect]:
    """Return the suspects that are a host or its part."""
    return [s for s in verdict(found, bound=bound).suspects if s.kind in OF_HOST]


def named(found: Sequence[Pair], *, bound: float | None = None) -> set[str]:
    """Return the hosts that are accused, also as a part."""
    return {host for one in of_hosts(found, bound=bound) for host in one.hosts}


# -- hosts that are named --------------------------------------------------------------------------


@pytest.mark.parametrize("bad", hosts(8))
@pytest.mark.parametrize("rounds", [3, 5])
def test_one_slow_host_of_eight_is_named_and_no_other(bad: str, rounds: int) -> None:
    (one,) = verdict(pairs(8, rounds, {bad})).suspects
    assert (one.kind, one.hosts, one.strength, one.cause) == (
        "node",
        (bad,),
        "strong",
        "slow-outlier",
    )


@pytest.mark.parametrize("seed", range(10))
def test_six_percent_less_is_found_under_one_percent_of_noise(seed: int) -> None:
    assert named(pairs(64, 3, {"h17"}, factor=0.94, seed=seed, jitter=0.005)) == {"h17"}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("count", "bad"), [(8, {"h1", "h2"}), (64, {"h1", "h20", "h40", "h63"})])
def test_bad_hosts_that_may_meet_are_all_named(count: int, bad: set[str], seed: int) -> None:
    assert named(pairs(count, 4, bad, seed=seed)) == bad


def test_a_quarter_of_the_hosts_slow_makes_nearly_half_of_the_pairs_slow() -> None:
    bad = {f"h{i}" for i in range(4)}
    measured = pairs(16, 5, bad, factor=0.5)
    assert sum(one.value == 50 for one in measured) > len(measured) * 0.35
    assert named(measured) == bad


@pytest.mark.parametrize("other", [90.0, 96.0, 100.0])
def test_a_slightly_slow_pair_does_not_clear_a_host_that_collapsed(other: float) -> None:
    measured = pairs(6, 5, {"h1"}, factor=0.2, jitter=0.005)
    index = next(i for i, one in enumerate(measured) if set(one.hosts) == {"h3", "h4"})
    measured[index] = measured[index]._replace(value=other)
    assert named(measured) == {"h1"}


@pytest.mark.parametrize(
    ("value", "cause", "shown"),
    [(None, None, "crashed"), (100.0, Cause.WRONG_DATA, "wrong-data")],
)
def test_failures_and_wrong_data_accuse_a_host_with_their_cause(
    value: float | None, cause: Cause | None, shown: str
) -> None:
    measured = [
        one._replace(value=value, cause=cause) if "h5" in one.hosts else one
        for one in pairs(8, 3, set())
    ]
    assert [(s.hosts, s.cause) for s in of_hosts(measured)] == [(("h5",), shown)]


def test_a_host_with_half_of_its_pairs_slow_is_intermittent() -> None:
    measured = [
        one._replace(value=70.0) if "h5" in one.hosts and one.wave % 2 else one
        for one in pairs(16, 8, set())
    ]
    (one,) = verdict(measured).suspects
    assert (one.hosts, one.cause) == (("h5",), "intermittent")


def test_a_gpu_is_named_if_only_its_pairs_are_slow() -> None:
    sets = [frozenset({0, 1}), frozenset({2, 3}), frozenset({1, 2})]
    measured = [
        one._replace(gpus=(sets[one.wave % 3], sets[(one.wave + 1) % 3]))
        for one in pairs(16, 9, set())
    ]
    slow = [
        one._replace(value=50.0)
        if any(h == "h5" and 3 in g for h, g in zip(one.hosts, one.gpus, strict=True))
        else one
        for one in measured
    ]
    (one,) = verdict(slow).suspects
    assert (one.kind, one.hosts, one.device) == ("gpu", ("h5",), "3")


def test_hosts_that_are_slow_only_across_a_border_are_one_group() -> None:
    places = {f"h{i}": f"row/rack{i // 4}/h{i}" for i in range(32)}
    rack = {f"h{i}" for i in range(8, 12)}
    measured = [
        one._replace(value=80.0 if len(rack & set(one.hosts)) == 1 else 100.0)
        for one in pairs(32, 5, set())
    ]
    (one,) = verdict(measured, places=places).suspects
    assert (one.kind, set(one.hosts)) == ("switch", rack)


def test_one_bad_host_in_a_rack_does_not_accuse_the_rack() -> None:
    places = {f"h{i}": f"row/rack{i // 4}/h{i}" for i in range(32)}
    (one,) = verdict(pairs(32, 5, {"h9"}, factor=0.5), places=places).suspects
    assert (one.kind, one.hosts) == ("node", ("h9",))


# -- hosts that are not accused --------------------------------------------------------------------


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
    assert not named([Pair(tuple(f"h{n}" for n in p.split("-")), v) for p, v in speeds.items()])


def test_one_slow_pair_accuses_no_host_and_does_not_pass() -> None:
    measured = pairs(8, 3, set())
    measured[5] = measured[5]._replace(value=60.0)
    assert not named(measured)
    assert verdict(measured).state is not State.PASS


def test_a_single_round_accuses_no_host() -> None:
    assert not named(pairs(8, 1, {"h3"}, factor=0.5))


def test_a_pair_below_its_bound_accuses_neither_host() -> None:
    found = verdict([Pair(("h0", "h1"), 50.0)], bound=90.0)
    assert (found.state, found.suspects) == (State.FAIL, ())


def test_all_pairs_below_the_bound_accuse_nobody() -> None:
    assert not named(pairs(8, 3, set()), bound=200.0)


def test_a_host_is_not_cleared_by_a_pair_with_only_one_other() -> None:
    """Three hosts: each partner of the bad one is good only with the other partner."""
    measured = [Pair(("a", "b"), None), Pair(("b", "c"), None), Pair(("a", "c"), 100.0)]
    assert named(measured) <= {"b"}
    assert not named(measured[:2])


def test_a_host_that_met_only_bad_ones_is_not_accused() -> None:
    slow = [("x", "b1"), ("x", "b2"), *((b, f"c{i}") for b in ("b1", "b2") for i in range(4))]
    good = [(f"c{i}", f"d{i}") for i in range(4)] + [(f"d{i}", f"e{i}") for i in range(4)]
    measured = [Pair(pair, 50.0) for pair in slow] + [Pair(pair, 100.0) for pair in good]
    assert named(measured) == {"b1", "b2"}


def test_differences_within_two_sigma_accuse_nobody() -> None:
    assert named(pairs(64, 63, {"h9"}, factor=0.98)) == set()


@pytest.mark.parametrize("share", [0.97, 1.0, 1.01])
def test_a_bound_near_the_median_of_healthy_values_accuses_nobody(share: float) -> None:
    chance = random.Random(7)
    for seed in range(20):
        healthy = [m._replace(value=chance.gauss(100, 1)) for m in pairs(16, 5, set(), seed=seed)]
        assert not named(healthy, bound=100 * share)


@st.composite
def measured_pairs(draw: st.DrawFn) -> list[Pair]:
    count = draw(st.integers(2, 12))
    values = st.sampled_from([100.0, 100.0, 94.0, 50.0, None])
    planned = pairs(count, draw(st.integers(1, 6)), set(), seed=draw(st.integers(0, 99)))
    return [m._replace(value=draw(values)) for m in planned]


@given(measured_pairs())
def test_nobody_without_a_bad_pair_is_accused(measured: list[Pair]) -> None:
    names = {host for one in measured for host in one.hosts}
    fine = names - {h for one in measured if one.value != 100.0 for h in one.hosts}
    found = verdict(measured).suspects
    kinds = (*OF_HOST, SuspectKind.LINK)
    assert fine.isdisjoint(h for one in found if one.kind in kinds for h in one.hosts)


@given(
    st.lists(
        st.builds(
            Pair,
            st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4).map(tuple),
            st.none() | st.floats(0, 1e9),
            st.sampled_from([None, Cause.WRONG_DATA]),
        )
    ),
    st.none() | st.floats(0, 1e9),
)
def test_any_values_can_be_judged(measured: list[Pair], bound: float | None) -> None:
    verdict(measured, bound=bound)
