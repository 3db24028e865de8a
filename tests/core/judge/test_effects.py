"""The effects model on few hosts with given results: the parts that they accuse, and no others."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.blame_picture import PICTURE, picture
from tests.factories.judging import gpu_plan, judged
from tests.factories.verdicts import FLOOR, hosts, hosts_record, record, step, table

from accept.core.causes import Cause
from accept.core.groups import Group, pair_rounds
from accept.core.judge.effects.distances import LIMIT
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.explanation import Explanation, Fault, Part
from accept.core.judge.effects.follow_up import next_wave
from accept.core.judge.effects.search import explain
from accept.core.judge.peers import compare_rows
from accept.core.judge.rounds import rounds_for
from accept.core.records import Fact
from accept.core.table import Execution as Executed
from accept.core.table import Row
from accept.core.verdict import OF_HOST, State, SuspectKind, Verdict

_NOISE = 0.01
#: Share by which healthy pairs differ.
_JITTER = 0.002
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


def executions(found: Sequence[Pair]) -> list[Execution]:
    """Return the executions of rounds of pairs; a pair without a value failed."""
    each = len({host for own, *_ in found for host in own}) // 2
    return [
        Execution(hosts=own, population="pairs", value=value or None, wave=("pairs", n // each))
        for n, (own, value, _) in enumerate(found)
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


def explained(measured: Sequence[Execution]) -> Explanation:
    return explain(measured, Network(noise=_NOISE))


# -- the page ------------------------------------------------------------------------------------


def test_the_page_has_the_picture_and_the_limits_of_the_code() -> None:
    assert PICTURE.read_text("utf-8") == picture()
    page = PICTURE.with_suffix(".md").read_text("utf-8")
    assert f"up to {LIMIT:.0%}".replace("%", " %") in page
    assert len(page.splitlines()) <= 150


# -- small clusters ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [f"h{i}" for i in range(8)])
@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("factor", [0.62, 0.0])
def test_a_bad_host_of_eight_is_named_with_its_counts(bad: str, rounds: int, factor: float) -> None:
    found = explained(executions(pairs(8, rounds, bad, share=factor, jitter=_JITTER)))
    (one,) = found.faults
    assert (one.part.kind, one.part.hosts) == ("node", (bad,))
    assert (one.pairs_hit, one.pairs, one.other_hit, len(one.cleared)) == (
        rounds,
        rounds,
        0,
        rounds,
    )
    assert not found.open_pairs


def test_one_slow_pair_is_open_and_noise_is_nothing() -> None:
    measured = executions(pairs(8, 3, jitter=_JITTER))
    measured[5] = measured[5]._replace(value=60.0)
    found = explained(measured)
    assert not found.faults
    assert [{*one.hosts} for one in found.open_pairs] == [{*measured[5].hosts}]
    assert not explained(executions(pairs(64, 8, jitter=_JITTER))).faults
    assert not explained([]).faults


@pytest.mark.parametrize("behind_switch", [False, True])
def test_bad_hosts_that_never_met_do_so_in_the_wave_that_follows(*, behind_switch: bool) -> None:
    met = {frozenset(own) for own, *_ in pairs(64, 8)}
    bad: list[str] = []
    for host in hosts(64):
        if len(bad) < 6 and not any({host, other} in met for other in bad):
            bad.append(host)
    measured = executions(pairs(64, 8, *bad, share=0.62, jitter=_JITTER))
    wave = next_wave(explained(measured), measured, hosts(64))
    assert any({*pair} <= {*bad} for pair in wave)
    for pair in wave:
        slow = {*bad}.intersection(pair) and not (behind_switch and {*pair} <= {*bad})
        again = Execution(hosts=pair, population="pairs", value=62.0 if slow else 100.0)
        measured.append(again._replace(wave=("pairs", 8), repeated=True))
    kinds = {one.part.kind for one in explained(measured).faults}
    assert kinds == {SuspectKind.SWITCH if behind_switch else SuspectKind.NODE}


def test_an_accused_host_gets_a_new_partner_in_any_wave_that_follows() -> None:
    """All of its pairs may be bad links, as others are."""
    measured = executions(pairs(64, 4, "h9", share=0.06, jitter=_JITTER))
    other = next(i for i, one in enumerate(measured) if "h9" not in one.hosts)
    measured[other] = measured[other]._replace(value=6.0)
    found = explained(measured)
    assert "h9" in {host for fault in found.faults for host in fault.part.hosts}
    wave = next_wave(found, measured, hosts(64))
    (pair,) = (pair for pair in wave if "h9" in pair)
    assert frozenset(pair) not in {frozenset(one.hosts) for one in measured}


@pytest.mark.parametrize(("again", "waves", "named"), [(100.0, 2, set()), (93.0, 1, {"a", "b"})])
def test_two_hosts_that_were_fast_together_once_meet_until_distance_is_certain(
    again: float, waves: int, named: set[str]
) -> None:
    met = {frozenset(own) for own, *_ in pairs(64, 8)}
    names = next(
        (a, b) for a in hosts(64) for b in hosts(64) if a < b and frozenset((a, b)) not in met
    )
    shown = dict(zip(names, "ab", strict=True))
    measured = executions(pairs(64, 8, *names, share=0.93, jitter=_JITTER))
    one = Execution(hosts=names, population="pairs", value=97.0)
    measured.append(one._replace(wave=("pairs", 8), repeated=True))
    assert not explained(measured).faults
    for number in range(waves):
        assert names in next_wave(explained(measured), measured, hosts(64))
        measured.append(one._replace(value=again, wave=("pairs", 9 + number), repeated=True))
    found = explained(measured)
    assert {shown[host] for fault in found.faults for host in fault.part.hosts} == named
    assert next_wave(found, measured, hosts(64)) == ()


@pytest.mark.parametrize(
    ("gpus", "measured", "meet"),
    [
        ((), ((0,), (0,)), False),
        ((1,), (), False),
        ((1,), ((0, 1), None), False),
        ((1,), ((0, 1), (1,)), False),
        ((1,), ((0, 1), (0,)), True),
        ((1,), ((0,), (0,)), True),
    ],
)
def test_bad_gpus_that_have_met_do_not_meet_again(
    gpus: tuple[int, ...], measured: tuple[tuple[int, ...] | None, ...], *, meet: bool
) -> None:
    kind, pair = SuspectKind.GPU if gpus else SuspectKind.NODE, ("h0", "h1")
    parts = [Part(kind=kind, hosts=(host,), gpus=gpus) for host in pair]
    found = Explanation(faults=tuple(Fault(part=p, effects=(), odds=9) for p in parts))
    one = Execution(hosts=pair, population="pairs", value=100.0, gpus=measured)
    assert next_wave(found, [one], pair) == ((pair,) if meet else ())


# -- properties ----------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(2, 17), st.integers(1, 6), st.sets(st.integers(0, 16), max_size=3))
def test_a_wave_that_follows_pairs_each_host_once_and_with_new_hosts_only_to_answer_something(
    count: int, rounds: int, bad: set[int]
) -> None:
    names = [f"h{i}" for i in bad]
    measured = executions(pairs(count, rounds, *names, share=0.62, jitter=_JITTER))
    found = explained(measured)
    wave = next_wave(found, measured, hosts(count))
    busy = [host for pair in wave for host in pair]
    assert len(busy) == len({*busy})
    assert {*busy} <= {*hosts(count)}
    parts = [*(one.part for one in found.faults), *(one.part for one in found.doubtful)]
    asked = {*found.unknown, *(host for part in parts for host in (*part.hosts, *part.others))}
    met = {frozenset(one.hosts) for one in measured}
    assert not [pair for pair in wave if asked.isdisjoint(pair) and frozenset(pair) not in met]


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(
            lambda hosts, value, log: Execution(
                hosts=tuple(hosts), population=f"{len(hosts)}", value=value, log=log
            ),
            st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True),
            st.none() | st.floats(allow_nan=True),
            st.sampled_from(["", "x.log", "y.log"]),
        )
    )
)
def test_any_executions_can_be_explained(measured: list[Execution]) -> None:
    known = {host for one in measured for host in one.hosts}
    assert {
        h for one in explained(measured).faults if one.part.kind in OF_HOST for h in one.part.hosts
    } <= known


# -- hosts that are named ------------------------------------------------------------------------


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


# -- peers ---------------------------------------------------------------------------------------


def peer(number: int, value: float, log: str = "") -> Row:
    of = step("gemm", "each")
    made = replace(record(of, [f"h{number}"]), log=log)
    execution = Executed(of, made, alone=True, repeated=False)
    return Row("gemm", execution, unit="GB/s", value=value)


def test_when_most_peers_are_bad_or_too_few_none_is_named() -> None:
    assert not compare_rows([peer(i, 100.0) for i in range(4)], _NOISE, bound=200.0)[0]
    assert not compare_rows([peer(i, 50.0 + 50 * (i > 0)) for i in range(3)], _NOISE)[0]


@pytest.mark.sampled
@pytest.mark.parametrize(("hosts", "executions"), [(64, 30), (16, 100), (256, 8), (64, 5)])
@pytest.mark.parametrize("freedom", [3, 5])
def test_noise_with_heavy_tails_accuses_no_peer(hosts: int, executions: int, freedom: int) -> None:
    for seed in range(5):
        chance = random.Random(seed)

        def student(chance: random.Random = chance) -> float:
            return chance.gauss(0, 1) / math.sqrt(chance.gammavariate(freedom / 2, 2) / freedom)

        peers = [
            peer(i, 100 * (1 + _NOISE * student()), log=f"{i} {j}")
            for i in range(hosts)
            for j in range(executions)
        ]
        assert not compare_rows(peers, _NOISE)[0]


# -- rounds --------------------------------------------------------------------------------------


def test_more_hosts_and_more_noise_need_more_rounds() -> None:
    assert [rounds_for(count, 0.01) for count in (2, 8, 64, 1024, 4096)] == [1, 4, 4, 5, 5]
    assert rounds_for(64, 0.002) < rounds_for(64, 0.01) < rounds_for(64, 0.02) == 5
