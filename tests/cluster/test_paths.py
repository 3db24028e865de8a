"""The path between two hosts is slow, and hosts pause: the path is named, and no host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.pauses import pauses
from tests.cluster.runs import CONNECT, PAIRS, Lab

Make = Callable[..., Lab]
#: Two hosts that meet in the first round, and the share of its speed that their path keeps.
PATH = ("h3", "h4")
SHARE = 0.6


@pytest.mark.parametrize("is_slow", [True, False], ids=["slow path", "good path"])
def test_hosts_that_pause_in_every_wave_are_not_named(make_lab: Make, *, is_slow: bool) -> None:
    lab = make_lab(4)
    if is_slow:
        lab.hosts.slow_path(*PATH, SHARE)
    with pauses(lab.hosts) as paused:
        done = lab.run(checks=[*CONNECT, *PAIRS])
    named = {(" - ".join(PATH), "slow-network")} if is_slow else set()
    assert done.suspects == named, done.err
    assert done.ending == (("degraded", 3) if is_slow else ("pass", 0))
    # The planned waves, and those that measure a slow path again.
    assert len(paused) >= 3 + is_slow
    lab.nothing_is_left()
    lab.evidence_holds(done)
