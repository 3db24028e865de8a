"""Schedules: groups of a wave are disjoint, no pair meets twice, no host is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accept.core.groups import MAX_BLOCK, pair_rounds, waves
from accept.core.plan import GroupKind


def names(n: int) -> tuple[str, ...]:
    return tuple(f"h{i}" for i in range(n))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 4096), rounds=st.integers(1, 6), seed=st.integers())
def test_pair_rounds_are_disjoint_and_no_pair_meets_twice(n: int, rounds: int, seed: int) -> None:
    result = pair_rounds(names(n), rounds=rounds, seed=seed)
    assert len(result) == min(rounds, n - 1 if n % 2 == 0 else n)
    met = set()
    for wave in result:
        seen = [host for group in wave for host in group.hosts]
        assert len(seen) == len(set(seen)) == n - n % 2
        for group in wave:
            pair = frozenset(group.hosts)
            assert len(pair) == 2
            assert pair not in met
            met.add(pair)


@given(st.lists(st.lists(st.sampled_from(names(9)), min_size=2, max_size=2, unique=True)))
def test_given_pairs_are_each_measured_once_in_disjoint_waves(drawn: list[list[str]]) -> None:
    pairs = [(a, b) for a, b in drawn]
    made = waves(GroupKind.PAIRS, names(7), rounds=2, pairs=pairs or [("h0", "h1")])
    met = [group.hosts for wave in made for group in wave]
    expected = {pair for pair in pairs or [("h0", "h1")] if set(pair) <= set(names(7))}
    assert sorted(met) == sorted(expected)
    for wave in made:
        assert len({host for group in wave for host in group.hosts}) == 2 * len(wave)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16, 33])
def test_all_rounds_together_are_all_pairs(n: int) -> None:
    met = [g.hosts for wave in pair_rounds(names(n), rounds=n, seed=7) for g in wave]
    assert len({frozenset(p) for p in met}) == len(met) == n * (n - 1) // 2


@given(n=st.integers(1, 300), ranks=st.integers(1, 8))
def test_rails_have_one_group_over_all_hosts_per_local_rank(n: int, ranks: int) -> None:
    result = waves(GroupKind.RAILS, names(n), ranks=ranks)
    if n == 1:
        assert result == ()
        return
    (wave,) = result
    assert [g.local_ranks for g in wave] == [(r,) for r in range(ranks)]
    assert all(g.hosts == names(n) for g in wave)


@given(n=st.integers(2, 100), rounds=st.integers(1, 4), ranks=st.integers(1, 8))
def test_rail_pairs_are_the_pairs_of_a_round_on_every_rail(n: int, rounds: int, ranks: int) -> None:
    pairs = pair_rounds(names(n), rounds=rounds, seed=7)
    result = waves(GroupKind.RAIL_PAIRS, names(n), rounds=rounds, seed=7, ranks=ranks)
    assert [{(g.hosts, g.local_ranks) for g in wave} for wave in result] == [
        {(g.hosts, (rank,)) for g in wave for rank in range(ranks)} for wave in pairs
    ]


@given(n=st.integers(2, 300))
def test_the_ladder_doubles_with_disjoint_blocks_and_ends_with_all(n: int) -> None:
    result = waves(GroupKind.LADDER, names(n))
    assert result[-1][0].hosts == names(n)
    for step, wave in enumerate(result[:-1]):
        assert all(len(g.hosts) == 2 ** (step + 1) for g in wave)
        seen = [h for g in wave for h in g.hosts]
        assert len(seen) == len(set(seen))


@given(n=st.integers(2, 300))
def test_halves_split_the_hosts(n: int) -> None:
    ((first, second),) = waves(GroupKind.HALVES, names(n))
    assert first.hosts + second.hosts == names(n)
    assert abs(len(first.hosts) - len(second.hosts)) <= 1


@given(n=st.integers(1, 4096))
def test_blocks_are_neighbors_of_similar_numbers_and_contain_every_host_once(n: int) -> None:
    (wave,) = waves(GroupKind.BLOCKS, names(n))
    sizes = [len(group.hosts) for group in wave]
    assert tuple(host for group in wave for host in group.hosts) == names(n)
    assert max(sizes) <= MAX_BLOCK
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-n // MAX_BLOCK)


@given(n=st.integers(1, 300))
def test_all_is_one_group_and_each_is_one_group_per_host(n: int) -> None:
    assert [[g.hosts for g in w] for w in waves(GroupKind.ALL, names(n))] == [[names(n)]]
    assert [[g.hosts for g in w] for w in waves(GroupKind.EACH, names(n))] == [
        [(h,) for h in names(n)]
    ]


@pytest.mark.parametrize("kind", GroupKind)
def test_no_hosts_give_no_waves(kind: GroupKind) -> None:
    assert waves(kind, ()) == ()
