"""`accept drill` over pods: each fault is injected on a node, caught, and blamed on it."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import drilled

#: Those that pods can have in another way than hosts; tests/cluster/test_drill.py has others.
FAULTS = "slow-link", "unreachable"
#: Of three pairs two are slow, so it takes a bound to tell who is: 210 ms; a slow link takes 420,
#: and a busy machine that stops a rank for a moment takes far less.
BOUND = "all-reduce@1M>=0.005"


def test_every_fault_is_caught_and_blamed_on_its_node(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    keys = {"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}
    hold = {"holdSeconds": 120}
    # Only the bound has to tell who is slow.
    desk = Desk(cluster, namespace, tmp_path, noise=0.4, kubernetes=keys, results=hold)
    before = desk.everything()
    checks = drilled(rounds=3, sizes="min: 4K, max: 1M, factor: 16")
    options = [*desk.options(3, checks), "--expect", BOUND]
    words = ("--attempt", "d", "--json", "--only-needed", "--faults", ",".join(FAULTS))
    done = desk.command("drill", *options, *words).wait(3600.0)
    assert done.result["clean"].startswith("pass"), done.err
    shown = {one["fault"]: (one["result"], one["why"]) for one in done.result["faults"]}
    assert {fault: result for fault, (result, _) in shown.items()} == dict.fromkeys(
        FAULTS, "caught"
    ), shown
    assert done.exit == 0
    assert set(done.result["hosts"]) == set(cluster.nodes)
    # An unreachable pod is reported by its own name, because it cannot name its node.
    for one in done.result["faults"]:
        host = one["target"].partition(":")[0]
        (named,) = {host for suspect in one["blamed"] for host in suspect["hosts"]}
        assert named == host or (host.startswith("#") and named.endswith(f"-{host[1:]}"))
    desk.leaves(before)
