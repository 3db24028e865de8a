"""`accept drill` over real ssh: each fault is planted, caught, and blamed on its host."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.cluster.network import execute, inside
from tests.cluster.runs import CONNECT, Lab

Make = Callable[..., Lab]

#: All that needs neither GPUs nor a promised network.
ALL = "slow", "wrong", "nan", "flip", "hang", "die", "slow-link", "full-disk", "unreachable"


#: Sizes at which what a fault costs is many times what a busy machine does.
SIZES = "params: {min: 4K, max: 256K, factor: 8, iters: 8, warmup: 1}"
CHECKS = [
    *CONNECT,
    f"check: all-reduce, groups: all, timeout: 90s, {SIZES}",
    f"check: all-reduce, groups: pairs, rounds: 3, timeout: 90s, {SIZES}",
    "check: gemm, timeout: 90s, params: {seconds: 0.2, alone: 0}",
]


def drill(lab: Lab, *options: str, faults: tuple[str, ...] = ALL) -> list[str]:
    """The words of a drill with as few steps as can be."""
    return [
        *("drill", "--hosts", ",".join(lab.hosts.names), "--machine", str(lab.machine)),
        *("--site", str(lab.site), "--suite", str(lab.suite(CHECKS))),
        *("--only-needed", "--json", "--attempt", "d", "--faults", ",".join(faults), *options),
    ]


def queues(lab: Lab, host: str) -> str:
    """What shapes a host's link."""
    return execute([*inside(lab.hosts.init(host)), "tc", "qdisc", "show", "dev", "eth0"])


def test_every_fault_is_caught_and_blamed_on_its_host(make_lab: Make) -> None:
    lab = make_lab(8)
    for name in lab.hosts.names:
        # What they receive stays shaped by the switch, so that equal pairs are equally fast.
        lab.hosts.run(name, "tc qdisc del dev eth0 root")
    before = {name: queues(lab, name) for name in lab.hosts.names}
    done = lab.command(*drill(lab)).wait(900.0)
    assert done.result["clean"].startswith("pass"), done.err
    shown = {one["fault"]: (one["result"], one["why"]) for one in done.result["faults"]}
    assert {result for result, _ in shown.values()} == {"caught"}, shown
    assert done.exit == 0
    for one in done.result["faults"]:
        host = one["planted"].partition("@")[2].partition(":")[0]
        assert {name.partition(":")[0] for name in one["blamed"]} == {host}
        assert one["after"] is not None
        verdict = json.loads(
            (lab.runs / "d" / one["attempt"] / "evidence/verdict.json").read_text()
        )
        assert verdict["planted"] == [one["planted"]]
        assert verdict["accepted"] is False
    assert {name: queues(lab, name) for name in lab.hosts.names} == before
    lab.nothing_is_left()


def test_a_link_that_somebody_shapes_is_left_alone_and_a_sick_cluster_ends_the_drill(
    make_lab: Make,
) -> None:
    lab = make_lab(4)
    before = {name: queues(lab, name) for name in lab.hosts.names}
    done = lab.do(*drill(lab, faults=("slow-link",)))
    (one,) = done.result["faults"]
    assert (one["result"], done.exit) == ("left-out", 6), one
    assert "somebody shapes eth0 already: qdisc tbf" in one["why"]
    assert {name: queues(lab, name) for name in lab.hosts.names} == before
    lab.hosts.stop_sshd("h3")
    sick = lab.do(*drill(lab, "--start-timeout", "3s", "--attempt", "e", faults=("wrong",)))
    assert sick.exit == 3
    assert "the clean run did not pass" in sick.result["brokenOff"]
    assert sick.result["faults"] == []
