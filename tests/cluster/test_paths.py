"""The path between two hosts is slow, and hosts pause: the path is named, and no host.

`python -m tests.cluster.repeat` does the same with eight hosts, again and again, and pauses alone.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.pauses import pauses
from tests.cluster.repeat import PATH, SHARE
from tests.cluster.runs import CONNECT, PAIRS, Lab

Make = Callable[..., Lab]


def test_a_slow_path_is_named_while_another_host_pauses_in_every_wave(make_lab: Make) -> None:
    lab = make_lab(4)
    lab.hosts.slow_path(*PATH, SHARE)
    with pauses(lab.hosts) as paused:
        done = lab.run(checks=[*CONNECT, *PAIRS])
    assert done.suspects == {(" - ".join(PATH), "slow-network")}, done.err
    assert done.ending == ("degraded", 3)
    assert len(paused) > 3  # the planned waves, and those that measure again
    lab.nothing_is_left()
    lab.evidence_holds(done)
