"""`accept drill` over real ssh: each fault is injected, caught, and blamed on its host."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.network import execute, inside
from tests.cluster.runs import ALL_REDUCE, CONNECT, ONE_ROUND, Lab, drilled

from accept.commands.drill_faults import DrillReason

Make = Callable[..., Lab]

#: Full disks and unreachable hosts have tests of their own (test_suspects.py, test_absent.py).
FAULTS = "slow", "wrong", "nan", "flip", "hang", "die", "slow-link"
#: What each is named for, of several causes that `accept drill` lets pass.
CAUSES = {
    "wrong": "wrong-data",
    "nan": "wrong-data",
    "flip": "wrong-result",
    "hang": "rank-hung",
    "die": "crashed",
}
#: Those with which all the others were measured, and are good.
ALONE = "slow", "slow-link", "flip"
#: A step that sees wrong data, and one that sees who is slow.
FEW = [*CONNECT, *ALL_REDUCE, *ONE_ROUND]


def drill(lab: Lab, *options: str, faults: tuple[str, ...], checks: list[str]) -> list[str]:
    """Return the words of a drill with as few steps as possible."""
    return [
        *("drill", "--hosts", ",".join(lab.hosts.names), "--machine", str(lab.machine)),
        *("--site", str(lab.site), "--suite", str(lab.suite(checks))),
        *("--only-needed", "--json", "--attempt", "d", "--faults", ",".join(faults), *options),
    ]


def queues(lab: Lab, host: str) -> str:
    """Return the queueing disciplines of a host's link."""
    return execute([*inside(lab.hosts.init(host)), "tc", "qdisc", "show", "dev", "eth0"])


def test_every_fault_is_caught_and_blamed_on_its_host(make_lab: Make) -> None:
    # Among four hosts, a slow one would not be an outlier after one round.
    lab = make_lab(6)
    for name in lab.hosts.names:
        # What they receive stays shaped by the switch, so that equal pairs are equally fast.
        lab.hosts.run(name, "tc qdisc del dev eth0 root")
    before = {name: queues(lab, name) for name in lab.hosts.names}
    done = lab.command(*drill(lab, faults=FAULTS, checks=drilled(rounds=1))).wait(3600.0)
    assert done.result["clean"].startswith("pass"), done.err
    shown = {one["fault"]: (one["result"], one["why"]) for one in done.result["faults"]}
    assert {result for result, _ in shown.values()} == {"caught"}, shown
    assert done.exit == 0
    for one in done.result["faults"]:
        host = one["target"].partition(":")[0]
        assert {host for suspect in one["blamed"] for host in suspect["hosts"]} == {host}
        assert one["after"] is not None
        again = lab.do("judge", one["attempt"], "--json")
        assert again.ending == ("degraded" if one["fault"] in ALONE else "fail", 3), again.err
        assert again.result["injected"] == [one["injected"]]
        ((named, cause),) = again.suspects
        assert named.partition(":")[0] == host
        assert cause == CAUSES.get(one["fault"], cause)
        lab.evidence_holds(again, drill="d")
    assert {name: queues(lab, name) for name in lab.hosts.names} == before
    lab.nothing_is_left()


def test_a_link_that_somebody_shapes_is_left_alone_and_a_sick_cluster_ends_the_drill(
    make_lab: Make,
) -> None:
    lab = make_lab(4)
    before = {name: queues(lab, name) for name in lab.hosts.names}
    done = lab.do(*drill(lab, faults=("slow-link",), checks=FEW))
    (one,) = done.result["faults"]
    assert (one["result"], done.exit) == ("left-out", 6), one
    assert one["code"] == DrillReason.NOT_INJECTED
    assert "qdisc tbf" in one["why"]
    assert {name: queues(lab, name) for name in lab.hosts.names} == before
    lab.hosts.stop_sshd("h3")
    sick = lab.do(
        *drill(lab, "--start-timeout", "3s", "--attempt", "e", faults=("wrong",), checks=FEW)
    )
    assert sick.exit == 3
    assert "the clean run did not pass" in sick.result["interruption"]
    assert sick.result["faults"] == []
