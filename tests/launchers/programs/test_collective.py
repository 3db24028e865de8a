"""collective.py: a table like nccl-tests', a check of every element, and the rank to blame."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.paths import PROGRAMS
from tests.factories.programs import Ran, Start

from accept.core import nccl_tests
from collective import LIMIT, LIMIT_CPU, Bench, bandwidth, fixed, iterations, options_of, read_size
from corruption_source import blame, observers
from rank_io import Identity, Injected, Progress, Rank
from reference_data import COLLECTIVES, count_of

CHECKS = ["all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv"]
SMALL = ("--min", "1K", "--max", "64K", "--factor", "8", "--iters", "2")
real = pytest.mark.real


# -- the table ---------------------------------------------------------------------------------


@real
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_healthy_run_prints_five_whole_tables_and_nothing_wrong(start: Start, ranks: int) -> None:
    ran = start("collective.py", ranks, *SMALL)
    log = nccl_tests.parse(ran.text.encode())
    assert (ran.exit, ran.problems, log.problems) == (0, [], ())
    assert [table.check for table in log.tables] == CHECKS
    for table in log.tables:
        assert (table.complete, table.ranks, table.out_of_bounds) == (True, ranks, 0)
        assert [device.host for device in table.devices] == [f"h{rank}" for rank in range(ranks)]
        assert [row.size for row in table.rows] == [1024, 8192, 65536]
        in_place = None if table.check in ("alltoall", "sendrecv") else 0
        for row in table.rows:
            sides = (row.out_of_place, row.in_place)
            assert [side and side.wrong for side in sides] == [0, in_place]
    assert ran.fact("began") > 0
    assert {words[1] for words in ran.progress.values()} == {"done"}
    assert len({words[0] for words in ran.progress.values()}) == 1, "all went through the same"


@pytest.mark.rare
@real
def test_sizes_are_rounded_down_to_whole_ranks_and_too_small_ones_are_named(start: Start) -> None:
    args = ("--collectives", "all-gather", "--min", "32", "--max", "512", "--factor", "4")
    ran = start("collective.py", 3, *args)
    log = nccl_tests.parse(ran.text.encode())
    assert [row.size for row in log.tables[0].rows] == [96, 480]
    assert "# Size 32 left out" in ran.text
    assert log.problems == ()


def test_counts_are_those_of_nccl_tests() -> None:
    gather, reduce = COLLECTIVES["all_gather"], COLLECTIVES["all_reduce"]
    assert count_of(reduce, 1 << 20, 3) == 1 << 18
    assert count_of(gather, 1 << 20, 4) == 1 << 16
    assert count_of(gather, 1024, 3) == 84, "1024 B are 85 elements a rank; 84 are whole 16 B"
    assert count_of(gather, 32, 3) == 0


@pytest.mark.parametrize(
    ("microseconds", "printed"),
    [
        (0.5, "   0.50"),
        (173.14, " 173.14"),
        (1177.22, "1177.22"),
        (17709.6, "17709.6"),
        (177096.4, " 177096"),
        (1.2e7, "1.2e+07"),
        (3.2e8, "3.2e+08"),
    ],
)
def test_times_are_printed_as_nccl_tests_does(microseconds: float, printed: str) -> None:
    assert fixed(microseconds, 7) == printed


def test_a_slow_link_still_has_digits() -> None:
    assert [bandwidth(value) for value in (0.0125, 0.5, 1.0, 365.84)] == [
        "0.0125",
        "0.5000",
        "  1.00",
        "365.84",
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("1K", 1024), ("8M", 8 << 20), ("2g", 2 << 30)]
)
def test_sizes_are_binary(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize(
    ("device", "options", "limit"),
    [("cuda:3", [], LIMIT), ("cpu", [], LIMIT_CPU), ("cuda:0", ["--limit", "9"], 9.0)],
)
def test_gpus_have_a_hundred_times_the_default_limit(
    device: str, options: list[str], limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LIMIT == 100 * LIMIT_CPU
    monkeypatch.setattr("collective.Operations", lambda *_: None)
    monkeypatch.setattr("collective.devices", lambda _: ([], []))
    monkeypatch.setattr("collective.Accuser", lambda *_: None)
    me = Identity(rank=0, size=2, local_rank=0, local_size=2, host="h0")
    progress, injected = Progress(0, ""), Injected(faults=frozenset())
    rank = Rank(me=me, progress=progress, injected=injected, device=device)
    assert Bench(options_of(options), rank).limit == limit


@given(st.integers(1, 500), st.floats(0, 30), st.sampled_from([2, 5]))
def test_the_requested_iterations_run_if_they_fit_and_a_minimum_always(
    asked: int, each: float, least: int
) -> None:
    done = iterations(asked, each, LIMIT, least)
    assert min(asked, least) <= done <= asked
    assert done == asked or done <= least or done * each <= LIMIT
    assert done == asked or asked * each > LIMIT


# -- injected faults ---------------------------------------------------------------------------


@pytest.mark.sampled
@real
@pytest.mark.parametrize(("ranks", "fault"), [(2, "nan@h1:0"), (3, "wrong@h2:0")])
def test_a_rank_that_contributes_wrong_data_is_named_by_every_collective(
    start: Start, ranks: int, fault: str
) -> None:
    ran = start("collective.py", ranks, *SMALL, inject=fault)
    guilty = int(fault[fault.index("h") + 1 : -2])
    assert ran.exit != 0
    for check in CHECKS:
        assert ran.blamed(check) == {("wrong-data", f"h{guilty}", guilty)}
    tables = nccl_tests.parse(ran.text.encode()).tables
    assert all(table.out_of_bounds for table in tables)
    assert f"# INJECTED {fault.replace('@', ' on ')}" in ran.text
    assert ran.fact("injected") == fault


@pytest.mark.rare
@real
def test_a_slow_rank_slows_every_operation(start: Start) -> None:
    ran = start("collective.py", 2, *SMALL, "--collectives", "sendrecv", inject="slow@h0:0")
    (table,) = nccl_tests.parse(ran.text.encode()).tables
    assert ran.exit == 0
    assert all(row.out_of_place and row.out_of_place.time >= 50_000 for row in table.rows)


@real
def test_an_unknown_fault_is_refused(start: Start) -> None:
    ran = start("collective.py", 1, *SMALL, inject="wrong@h0")
    assert ran.exit != 0
    assert "FAULT@HOST:LOCALRANK" in ran.text


# -- faults in transit, which no rank sees in its own buffers --------------------------------

SABOTAGE = """
import sys
sys.path.insert(0, {programs!r})
import collective
from torch_collectives import Operations
honest = Operations.operate

def operate(self, kind, send, recv, size):
    honest(self, kind, send, recv, size)
    rank, ranks, bad = self.me.rank, self.me.size, 2
    block = len(recv) // ranks
    {damage}

Operations.operate = operate
collective.main()
"""

#: The data of rank 2 arrive damaged at all other ranks, and sums contain the damage.
SENDER = """
    if kind.name in ("all_gather", "alltoall") and rank != bad:
        recv[bad * block] += 1
    elif kind.name in ("all_reduce", "reduce_scatter") or (kind.name == "sendrecv" and rank == 3):
        recv[0] += 1
"""
#: Rank 2 damages whatever it receives from others.
RECEIVER = """
    if rank == bad and kind.name in ("all_gather", "alltoall"):
        recv[[0, block, 3 * block]] += 1
    elif rank == bad:
        recv[0] += 1
"""


def sabotaged(start: Start, folder: Path, damage: str) -> Ran:
    program = folder / "sabotaged.py"
    program.write_text(SABOTAGE.format(programs=str(PROGRAMS), damage=damage.strip()))
    return start(program, 4, "--min", "4K", "--max", "4K", "--iters", "1")


@pytest.mark.sampled
@real
@pytest.mark.parametrize("damage", [SENDER, RECEIVER], ids=["sender", "receiver"])
def test_corruption_in_transit_is_traced_to_its_rank(
    start: Start, tmp_path: Path, damage: str
) -> None:
    ran = sabotaged(start, tmp_path, damage)
    assert ran.exit != 0
    for check in CHECKS:
        assert ran.blamed(check) == {("wrong-data", "h2", 2)}


@real
def test_a_rank_that_fails_is_named_and_ranks_that_lost_it_are_not(
    start: Start, tmp_path: Path
) -> None:
    ran = sabotaged(start, tmp_path, "if rank == bad: raise ValueError('bad shape')")
    assert ran.exit != 0
    crashed = [record for record in ran.problems if record["problem"] == "crashed"]
    assert {record["host"] for record in crashed if "host" in record} == {"h2"}
    assert "ValueError: bad shape" in ran.text
    assert "Traceback" not in ran.text


# -- blame --------------------------------------------------------------------------------------


def everybody(ranks: int) -> list[list[int]]:
    return [[r for r in range(ranks) if r != s] for s in range(ranks)]


def clean(ranks: int) -> list[list[int]]:
    return [[0] * ranks for _ in range(ranks)]


@given(st.integers(3, 12), st.data())
def test_only_a_sender_that_all_others_find_wrong_is_named(ranks: int, data: st.DataObject) -> None:
    guilty = data.draw(st.integers(0, ranks - 1))
    matrix = clean(ranks)
    for rank in everybody(ranks)[guilty]:
        matrix[rank][guilty] = 1
    assert blame(matrix, everybody(ranks)) == ([guilty], [])


@given(st.integers(4, 12), st.data())
def test_only_a_receiver_that_finds_all_others_wrong_is_named(
    ranks: int, data: st.DataObject
) -> None:
    guilty = data.draw(st.integers(0, ranks - 1))
    matrix = clean(ranks)
    for rank in everybody(ranks)[guilty]:
        matrix[guilty][rank] = 1
    assert blame(matrix, everybody(ranks)) == ([], [guilty])


@given(st.integers(2, 8), st.data())
def test_the_names_follow_the_ranks(ranks: int, data: st.DataObject) -> None:
    cell = st.integers(0, 1)
    row = st.lists(cell, min_size=ranks, max_size=ranks)
    matrix = data.draw(st.lists(row, min_size=ranks, max_size=ranks))
    order = data.draw(st.permutations(range(ranks)))
    moved = clean(ranks)
    for r, s in itertools.product(range(ranks), repeat=2):
        moved[order[r]][order[s]] = matrix[r][s]
    senders, receivers = blame(matrix, everybody(ranks))
    expected = sorted(order[s] for s in senders), sorted(order[r] for r in receivers)
    assert blame(moved, everybody(ranks)) == expected


def test_in_a_pair_only_a_rank_with_a_wrong_contribution_is_named() -> None:
    assert blame([[0, 1], [0, 0]], everybody(2)) == ([], [])
    assert blame([[0, 1], [0, 1]], everybody(2)) == ([1], [])


def test_a_single_bad_link_accuses_neither_end() -> None:
    matrix = clean(4)
    matrix[1][3] = 5
    assert blame(matrix, everybody(4)) == ([], [])


def test_one_rank_sees_the_data_of_sendrecv_and_none_sees_the_terms_of_a_sum() -> None:
    assert [observers(COLLECTIVES["sendrecv"], s, 3) for s in range(3)] == [[1], [2], [0]]
    assert observers(COLLECTIVES["all_reduce"], 0, 3) == []
    assert observers(COLLECTIVES["alltoall"], 1, 3) == [0, 2]
