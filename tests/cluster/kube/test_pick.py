"""`accept pick` on pods: the command gets the good nodes, and starts when the pods are gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.kube.cluster import Cluster, why_not
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import CONNECT, PAIRS, Started

NODES = 4
#: Low enough that the link is what counts, however busy the machine is.
RATE, SLOW = "40mbit", "12mbit"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a cluster that is large enough to find a slow node, with equal links."""
    if reason := why_not():
        pytest.skip(reason)
    with Cluster(NODES) as made:
        for node in made.nodes:
            made.hosts.shape(node, RATE)
        yield made


def pick(desk: Desk, need: int, *words: str) -> Started:
    """Start `accept pick` on all nodes; words after -- are the command."""
    options = desk.options(NODES, [*CONNECT, *PAIRS])
    return desk.command("pick", "--need", str(need), "--time", "20m", *options, *words)


def test_the_command_gets_the_good_nodes_after_the_pods_are_gone(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    desk = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    before = desk.everything()
    slow = cluster.nodes[2]
    hostfile = tmp_path / "good.txt"
    words = ("--hostfile", str(hostfile), "--")
    with ExitStack() as undo:
        undo.callback(cluster.hosts.shape, slow, RATE)
        cluster.hosts.shape(slow, SLOW)
        script = (
            'cat "$ACCEPT_HOSTFILE"; env | grep -E "^(PET_|MASTER_|OMPI_)"; '
            'echo "$ACCEPT_NODELIST"; exit 9'
        )
        done = pick(desk, NODES - 2, *words, "sh", "-c", script).wait()
        desk.leaves(before)
        assert done.exit == 9, done.err
        # The order is that of the pods.
        chosen = done.out.splitlines()[-1].split(",")
        (spare,) = {*cluster.nodes} - {slow, *chosen}
        assert len(chosen) == NODES - 2, done.out
        assert hostfile.read_text() == "".join(f"{node} slots=1\n" for node in chosen)
        assert done.out == f"{hostfile.read_text()}{','.join(chosen)}\n"
        assert f"left out {slow}: slow-outlier" in done.err
        assert f"left out {spare}: spare" in done.err
        assert desk.do("ticket", "last", slow).exit == 0
        # Too few are good: no command, and no hostfile of an earlier choice.
        none = pick(desk, NODES, *words, "touch", str(tmp_path / "started")).wait()
    assert none.exit == 3, none.err
    assert f"only {NODES - 1} of the {NODES} nodes needed are good" in none.err
    assert not hostfile.exists()
    assert not (tmp_path / "started").exists()
    desk.leaves(before)


@pytest.mark.parametrize(("start_timeout", "code"), [("10s", 4), ("90s", 3)])
def test_pods_that_do_not_start_leave_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path, start_timeout: str, code: int
) -> None:
    image = {"image": "lab/missing"}
    desk = Desk(cluster, namespace, tmp_path, kubernetes=image, startTimeout=start_timeout)
    before = desk.everything()
    done = pick(desk, 2, "--time", "30s").wait()
    assert (done.exit, done.out) == (code, ""), done.err
    desk.leaves(before)
