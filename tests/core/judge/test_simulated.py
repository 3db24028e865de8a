"""Pair rounds and their confirmation on simulated clusters: which hosts are named.

`make bench` has the table of rates; here are few clusters of each kind, always the same ones.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.simulated_cluster import LAWS, Law, Outcome, accept, cluster, rate

from accept.core.judge.remeasure import confirming
from accept.core.judge.robust_stats import MOST_ROUNDS


def outcomes(trials: int, count: int, bad: int = 0, **kind: object) -> list[Outcome]:
    return [accept(cluster(count, bad, seed=seed, **kind)) for seed in range(trials)]  # type: ignore[arg-type]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [4, 16, 64, 256])
def test_healthy_clusters_are_not_rejected(count: int, law: Law) -> None:
    assert not any(o.rejected for o in outcomes(40, count, law=law))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("count", "bad"), [(16, 1), (64, 1), (256, 5)])
def test_six_percent_less_is_found_and_nobody_else_accused(count: int, bad: int, law: Law) -> None:
    for outcome in outcomes(20, count, bad, deficit=0.06, law=law):
        assert len(outcome.found) == bad
        assert not outcome.accused
        assert outcome.rounds <= MOST_ROUNDS


def test_a_tenth_of_the_hosts_dead_is_found_whole() -> None:
    for outcome in outcomes(20, 64, 6, deficit=1.0):
        assert (len(outcome.found), outcome.accused) == (6, frozenset())


def test_who_is_slow_at_times_is_called_that_and_harms_no_partner() -> None:
    found = outcomes(40, 64, 1, deficit=0.5, often=0.5)
    assert sum(len(o.found) for o in found) > 20
    assert not any(o.accused for o in found)
    causes = {node.cause for o in found for node in o.decoded.nodes}
    assert causes == {"intermittent", "slow-outlier"}


def test_noise_too_large_for_a_small_deficit_accuses_nobody_wrongly() -> None:
    for outcome in outcomes(40, 64, 1, deficit=0.06, noise=0.03):
        assert not outcome.accused


def test_nothing_is_measured_again_where_nobody_stands_out() -> None:
    assert sum(o.again for o in outcomes(40, 64)) == 0


# -- the wave that confirms ----------------------------------------------------------------------


@given(st.integers(2, 40), st.data())
def test_suspects_meet_good_hosts_each_host_once(count: int, data: st.DataObject) -> None:
    hosts = [f"h{i}" for i in range(count)]
    suspects = set(data.draw(st.lists(st.sampled_from(hosts), unique=True)))
    links = [("h0", "h1")] if data.draw(st.booleans()) and suspects.isdisjoint({"h0", "h1"}) else []
    wave = confirming(hosts, suspects, links, set(), seed=data.draw(st.integers(0, 9)))
    busy = [host for group in wave for host in group.hosts]
    assert len(busy) == len(set(busy))
    good = set(hosts) - suspects - {host for link in links for host in link}
    for group in wave:
        assert group.hosts in links or good.intersection(group.hosts)
    met = suspects.intersection(busy)
    assert len(met) == min(len(suspects), len(good))
    assert bool(wave) == bool(links or (suspects and good))


def test_a_suspect_meets_somebody_new_where_there_is_one() -> None:
    hosts = ["a", "b", "c", "d"]
    met = {frozenset(("a", "b")), frozenset(("a", "c"))}
    wave = confirming(hosts, {"a"}, [], met, seed=1)
    assert ("a", "d") in {group.hosts for group in wave}


def test_bounds_of_a_rate_hold_what_was_seen() -> None:
    low, high = rate(0, 3000)
    assert low == pytest.approx(0)
    assert high == pytest.approx(0.00128, abs=2e-5)
    assert rate(0, 0) == (0.0, 1.0)
