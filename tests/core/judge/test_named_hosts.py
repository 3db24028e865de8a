"""Pairs of few hosts with given results: the parts they accuse, and those they do not."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.judging import gpu_plan, judged
from tests.factories.verdicts import FLOOR, hosts, hosts_record, record, step, table

from accept.core.causes import Cause
from accept.core.groups import Group, pair_rounds
from accept.core.model import OF_HOST, Fact, State, SuspectKind, Verdict

_STEP = step("all-reduce", "pairs", rounds=3)
#: Two hosts, their value (None: nothing was measured), and a cause.
Pair = tuple[tuple[str, ...], float | None, Cause | None]


def pairs(
    count: int, rounds: int, *bad: str, share: float | None = 0.5, jitter: float = 0.0
) -> list[Pair]:
    """Return rounds of pairs that reach 100, or a share of it with a bad host."""
    chance = random.Random(count)
    return [
        (
            group.hosts,
            share and 100 * share * (1 + chance.uniform(-jitter, jitter))
            if {*bad} & {*group.hosts}
            else 100 * (1 + chance.uniform(-jitter, jitter)),
            None,
        )
        for wave in pair_rounds(hosts(count), rounds=rounds, seed=1)
        for group in wave
    ]


def verdict(
    found: Sequence[Pair], *, bound: float | None = None, places: Mapping[str, str] | None = None
) -> Verdict:
    """Return the verdict on these pairs alone."""
    names = tuple(dict.fromkeys(host for own, *_ in found for host in own))
    facts = (
        Fact(name="place", value=place, check="hosts", host=host)
        for host, place in (places or {}).items()
    )
    references = () if bound is None else (replace(FLOOR, lower=bound, peak=None),)
    records = (
        record(
            _STEP,
            Group(hosts=own),
            *(() if value is None else table("all-reduce", value, wrong=5 * (cause is not None))),
            number=number,
            status=1 if value is None else 0,
        )
        for number, (own, value, cause) in enumerate(found)
    )
    first = replace(hosts_record(names), facts=tuple(facts))
    return judged(gpu_plan(_STEP, references=references), first, *records)


def named(found: Sequence[Pair], *, bound: float | None = None) -> set[str]:
    """Return the hosts that are accused, also as a part."""
    suspects = verdict(found, bound=bound).suspects
    return {host for one in suspects if one.kind in OF_HOST for host in one.hosts}


def valued(names: str, value: float | None) -> list[Pair]:
    """Return pairs with a value by their names: `a_b c_d`."""
    return [(tuple(name.split("_")), value, None) for name in names.split()]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pairs(64, 3, "h17", share=0.94, jitter=0.005), {"h17"}),
        (pairs(8, 4, "h1", "h2", share=0.94), {"h1", "h2"}),
        # Nearly half of the pairs are slow.
        (pairs(16, 5, *hosts(4)), {*hosts(4)}),
        (pairs(8, 3, "h5", share=None), {"h5"}),
        (pairs(8, 1, "h3"), set()),
        (pairs(64, 63, "h9", share=0.98), set()),
        # Three hosts: each partner of the bad one is good only with the other partner.
        (valued("a_b b_c", None), set()),
        (
            [(own, 100.0, Cause.WRONG_DATA if "h5" in own else None) for own, *_ in pairs(8, 3)],
            {"h5"},
        ),
        # Three of the four bad pairs are those of h7; h6 has two of them and is not a bad host.
        (
            valued("2_5 2_8 2_11 3_4 3_10 4_9 5_8 5_11 6_10 8_11 9_10", 100.0)
            + valued("3_7 7_9 6_7 4_6", 6.0),
            set(),
        ),
        # x met only bad hosts.
        (
            valued("x_b x_c b_d b_e b_f b_g c_d c_e c_f c_g", 50.0)
            + valued("d_h e_i f_j g_k h_l i_m j_n k_o", 100.0),
            {"b", "c"},
        ),
    ],
)
def test_hosts_are_named_if_their_pairs_prove_it(found: list[Pair], expected: set[str]) -> None:
    assert named(found) == expected


@pytest.mark.parametrize("other", [90.0, 96.0, 100.0])
def test_a_slightly_slow_pair_does_not_clear_a_host_that_collapsed(other: float) -> None:
    found = pairs(6, 5, "h1", share=0.2, jitter=0.005)
    assert named([(o, other if {*o} == {"h3", "h4"} else v, c) for o, v, c in found]) == {"h1"}


def test_a_group_behind_a_switch_is_named_and_not_for_one_bad_host_of_it() -> None:
    places = {f"h{i}": f"row/rack{i // 4}/h{i}" for i in range(32)}
    rack = {f"h{i}" for i in range(8, 12)}
    found = [(o, 80.0 if len(rack & {*o}) == 1 else 100.0, None) for o, *_ in pairs(32, 5)]
    (one,) = verdict(found, places=places).suspects
    assert (one.kind, {*one.hosts}) == ("switch", rack)
    (one,) = verdict(pairs(32, 5, "h9"), places=places).suspects
    assert (one.kind, one.hosts) == ("node", ("h9",))


def test_pairs_below_their_bound_accuse_no_host() -> None:
    below = verdict(valued("h0_h1", 50.0), bound=90.0)
    assert (below.state, below.suspects) == (State.FAIL, ())
    assert not named(pairs(8, 3), bound=200.0)
    # A bound near the median of healthy values accuses nobody, either.
    for share in (0.97, 1.0, 1.01):
        assert not named(pairs(16, 5, jitter=0.02), bound=100 * share)


@given(st.data(), st.integers(2, 12), st.integers(1, 6))
def test_nobody_without_a_bad_pair_is_accused(data: st.DataObject, count: int, rounds: int) -> None:
    values = st.sampled_from([100.0, 100.0, 94.0, 50.0, None])
    found = [(own, data.draw(values), cause) for own, _, cause in pairs(count, rounds)]
    fine = {*hosts(count)} - {host for own, value, _ in found if value != 100 for host in own}
    kinds = (*OF_HOST, SuspectKind.LINK)
    assert fine.isdisjoint(h for s in verdict(found).suspects if s.kind in kinds for h in s.hosts)
