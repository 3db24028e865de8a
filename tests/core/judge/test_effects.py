"""The effects model on small clusters of known executions, its page, and peers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.blame_picture import PICTURE, picture
from tests.factories.verdicts import record, step

from accept.core import table
from accept.core.groups import pair_rounds
from accept.core.judge.effects.distances import LIMIT
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.explanation import Explanation
from accept.core.judge.effects.follow_up import next_wave
from accept.core.judge.effects.search import explain
from accept.core.judge.peers import compare_rows
from accept.core.judge.rounds import rounds_for
from accept.core.model import OF_HOST, SuspectKind

_NOISE = 0.01


def _pairs(
    count: int, rounds: int, bad: Sequence[str] = (), factor: float = 0.62
) -> list[Execution]:
    chance = random.Random(count)
    hosts = [f"h{i}" for i in range(count)]
    return [
        Execution(
            hosts=group.hosts,
            population="pairs",
            value=(factor or None) and 100 * chance.gauss(factor, 0.001)
            if {*bad}.intersection(group.hosts)
            else 100 * chance.gauss(1, 0.001),
            wave=("pairs", number),
        )
        for number, wave in enumerate(pair_rounds(hosts, rounds=rounds, seed=1))
        for group in wave
    ]


def explained(executions: Sequence[Execution]) -> Explanation:
    return explain(executions, Network(noise=_NOISE))


def _accused(found: Explanation) -> set[str]:
    """Return the hosts that are accused themselves."""
    return {h for one in found.faults if one.part.kind in OF_HOST for h in one.part.hosts}


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
def test_one_bad_host_of_eight_is_named_with_its_counts(
    bad: str, rounds: int, factor: float
) -> None:
    found = explained(_pairs(8, rounds, [bad], factor))
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
    measured = _pairs(8, 3)
    measured[5] = measured[5]._replace(value=60.0)
    found = explained(measured)
    assert not found.faults
    assert [{*one.hosts} for one in found.open_pairs] == [{*measured[5].hosts}]
    assert not explained(_pairs(64, 8)).faults
    assert not explained([]).faults


@pytest.mark.parametrize("behind_switch", [False, True])
def test_bad_hosts_that_never_met_do_so_in_the_wave_that_follows(*, behind_switch: bool) -> None:
    measured, hosts = _pairs(64, 8), [f"h{i}" for i in range(64)]
    met = {frozenset(e.hosts) for e in measured}
    bad: list[str] = []
    for host in hosts:
        if len(bad) < 6 and not any({host, other} in met for other in bad):
            bad.append(host)
    measured = _pairs(64, 8, bad)
    wave = next_wave(explained(measured), measured, hosts)
    assert any({*pair} <= {*bad} for pair in wave)
    for pair in wave:
        slow = {*bad}.intersection(pair) and not (behind_switch and {*pair} <= {*bad})
        again = Execution(hosts=pair, population="pairs", value=62.0 if slow else 100.0)
        measured.append(again._replace(wave=("pairs", 8), repeated=True))
    kinds = {one.part.kind for one in explained(measured).faults}
    assert kinds == {SuspectKind.SWITCH if behind_switch else SuspectKind.NODE}


# -- properties ----------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(2, 17), st.integers(1, 6), st.sets(st.integers(0, 16), max_size=3))
def test_a_wave_that_follows_pairs_each_host_once_and_with_new_hosts_only_to_answer_something(
    count: int, rounds: int, bad: set[int]
) -> None:
    measured = _pairs(count, rounds, [f"h{i}" for i in bad])
    hosts = tuple(f"h{i}" for i in range(count))
    found = explained(measured)
    wave = next_wave(found, measured, hosts)
    busy = [host for pair in wave for host in pair]
    assert len(busy) == len({*busy})
    assert {*busy} <= {*hosts}
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
    found = explained(measured)
    hosts = {host for one in measured for host in one.hosts}
    assert _accused(found) <= hosts


# -- peers ---------------------------------------------------------------------------------------


def peer(number: int, value: float, log: str = "") -> table.Row:
    of = step("gemm", "each")
    made = replace(record(of, [f"h{number}"]), log=log)
    execution = table.Execution(of, made, alone=True, repeated=False)
    return table.Row("gemm", execution, unit="GB/s", value=value)


def test_when_most_peers_are_bad_or_too_few_none_is_named() -> None:
    assert not compare_rows([peer(i, 100.0) for i in range(4)], _NOISE, bound=200.0)[0]
    assert not compare_rows([peer(i, 50.0 + 50 * (i > 0)) for i in range(3)], _NOISE)[0]


@pytest.mark.parametrize(("hosts", "executions"), [(64, 30), (16, 100), (256, 8), (64, 5)])
@pytest.mark.parametrize("freedom", [3, 5])
def test_noise_of_peers_with_heavy_tails_accuses_nobody(
    hosts: int, executions: int, freedom: int
) -> None:
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
