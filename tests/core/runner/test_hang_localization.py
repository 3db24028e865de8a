"""Find the rank that stopped: it is behind ranks that wait, and no rank makes progress."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import programs  # noqa: F401  # makes the programs importable

from accept.core.causes import Cause
from accept.core.runner.execute import (
    STILL_SECONDS,
    Place,
    cause_of_end,
    moving,
    places,
    progress_command,
    stopped,
)
from rank_io import Progress


def ask(folder: Path) -> str:
    """Return a host's report on the ranks that wrote to `folder`."""
    argv = ["/bin/sh", "-c", progress_command(str(folder))]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def rank_of(place: Place) -> int:
    return place.rank


def at(*sequences: int, idle: float = 60.0) -> list[Place]:
    """Return one rank on each of h1, h2, ..., at these operations."""
    return [
        Place(host=f"h{n}", rank=n - 1, sequence=sequence, what="all_reduce 8", idle=idle)
        for n, sequence in enumerate(sequences, 1)
    ]


class TestPositionsOfRanks:
    def test_progress_of_ranks_is_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "a folder's name"
        for rank, operations in ((3, 2), (12, 0)):
            progress = Progress(rank, str(folder))
            for _ in range(operations):
                progress.enter("all_reduce", 1024)
        old = time.time() - 100
        os.utime(folder / "3", (old, old))
        (folder / "other").write_text("9 9 9 9")
        third, twelfth = sorted(places("h1", ask(folder), ago=40.0), key=rank_of)
        assert (third.rank, third.sequence, third.what) == (3, 2, "all_reduce 1024")
        assert 58 <= third.idle <= 70, "before the end, not before it was asked"
        assert (twelfth.rank, twelfth.sequence, twelfth.what) == (12, 0, "start 0")
        assert twelfth.idle < STILL_SECONDS

    def test_without_progress_files_no_place_is_known(self, tmp_path: Path) -> None:
        assert places("h1", ask(tmp_path), 0.0) == []
        assert places("h1", ask(tmp_path / "none"), 0.0) == []

    def test_a_rank_that_works_alone_reports_for_how_long(self, tmp_path: Path) -> None:
        progress = Progress(0, str(tmp_path))
        progress.enter("bf16 alone 3")
        progress.work(70.4)
        (place,) = places("h1", ask(tmp_path), 0.0)
        assert (place.what, place.own) == ("bf16 alone 3 0", 70)
        progress.enter("barrier")
        assert places("h1", ask(tmp_path), 0.0)[0].own == 0

    @pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "²", "-1", "1e3", ""])
    def test_invalid_numbers_are_ignored(self, number: str) -> None:
        for line in (f"0 {number} 1 7 x", f"0 1 1 {number} x", f"{number} 1 1 7 x"):
            assert places("h1", line, 0.0) == []

    @given(st.text())
    def test_any_answer_is_accepted(self, answer: str) -> None:
        places("h1", answer, 0.0)

    def test_a_file_from_the_future_is_not_moving(self) -> None:
        assert not moving(places("h1", "0 1000 2000 7 barrier 0", 0.0))


class TestTheStoppedRank:
    def test_the_rank_behind_is_named(self) -> None:
        (named,) = stopped(at(9, 9, 4, 9), Cause.RANK_HUNG)
        assert (named.cause, named.host, named.rank) == ("rank-hung", "h3", 2)
        assert named.message == (
            "rank 2 on h3 stopped at operation 4 (all_reduce 8); others wait in 9"
        )

    def test_the_last_of_several_behind_is_named(self) -> None:
        """Each rank waits for the next one."""
        assert [one.host for one in stopped(at(9, 8, 4, 8), Cause.RANK_HUNG)] == ["h3"]

    def test_no_rank_is_named_if_all_are_equal_or_most_are_behind(self) -> None:
        assert stopped(at(9, 9, 9), Cause.RANK_HUNG) == ()
        assert stopped(at(9, 4, 4, 4), Cause.RANK_HUNG) == ()
        assert stopped([], Cause.RANK_HUNG) == ()

    def test_a_rank_that_reported_that_it_waited_is_not_named(self) -> None:
        """Ranks fall behind if they wait for one that hangs."""
        ranks = at(9, 9, 9, 9, 8, 4)
        assert [one.rank for one in stopped(ranks, Cause.RANK_HUNG)] == [4, 5]
        assert [one.rank for one in stopped(ranks, Cause.RANK_HUNG, waited=[0, 4])] == [5]

    def test_a_rank_hung_if_others_gave_up_waiting_and_crashed_if_the_end_was_sudden(
        self,
    ) -> None:
        assert cause_of_end(at(9, 9, 4, idle=61.0)) is Cause.RANK_HUNG
        assert cause_of_end(at(9, 9, 4, idle=8.0)) is Cause.CRASHED
        alone = Place(host="h0", rank=9, sequence=3, what="alone", idle=61.0, own=90)
        assert cause_of_end([*at(9, 9, idle=61.0), alone]) is Cause.CRASHED

    def test_a_rank_that_just_entered_an_operation_is_moving(self) -> None:
        ranks = at(1, 1, 0)
        assert not moving(ranks)
        assert moving([*ranks, *at(1, idle=STILL_SECONDS - 1)])
        assert not moving([])

    def test_a_rank_that_works_alone_moves_for_the_time_it_reported(self) -> None:
        """Examples are a GPU that is measured alone and a rank that writes its checkpoint."""
        waiting = at(15, 15, idle=20.0)
        alone = Place(host="h0", rank=9, sequence=14, what="alone", idle=20.0, own=60)
        assert moving([*waiting, alone])
        assert not moving([*waiting, replace(alone, idle=61.0)])
