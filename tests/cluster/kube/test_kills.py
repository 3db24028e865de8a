"""A killed `accept run` leaves no object that no command can see."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.kills import KillableDesk, check
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk


def test_a_run_whose_command_was_killed_is_known_and_can_be_removed(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    check(KillableDesk(desk), (11, 20))
