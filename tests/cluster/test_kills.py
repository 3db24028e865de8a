"""A killed `accept run` leaves nothing that no command can see; `kills.py` has more points."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.faults import BackEnd
from tests.cluster.kills import KillablePlace, check
from tests.cluster.runs import Place


@pytest.mark.parametrize("back_end", [BackEnd.LOCAL, BackEnd.SSH, BackEnd.SLURM])
def test_a_run_whose_command_was_killed_is_known_and_can_be_removed(
    make_place: Callable[..., Place],
) -> None:
    """Before the hosts know of the run, and in a step."""
    check(KillablePlace(make_place()), (6, 13))
