"""Hosts with a hard fault of a GPU are set aside, and the others are measured without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster import gpus
from tests.cluster.hosts import Hosts
from tests.cluster.runs import ALL_REDUCE, CONNECT, Lab
from tests.factories import nvml


def with_gpus(hosts: Hosts, bad: str, number: int, faults: tuple[str, ...]) -> None:
    for name in hosts.names:
        is_bad = name == bad
        gpus.install(hosts, name, *faults * is_bad, gpus=number if is_bad else 8)


@pytest.mark.parametrize(
    ("bad", "number", "faults", "suspect"),
    [
        ("h5", 7, (), ("h5", "gpu-missing")),
        # The host of the coordinator.
        ("h1", 8, nvml.failed(3), ("h1:3", "gpu-lost")),
    ],
    ids=["seven GPUs", "lost GPU of the first host"],
)
def test_a_host_with_a_bad_gpu_is_set_aside_and_the_other_seven_are_measured(
    make_lab: Callable[..., Lab],
    bad: str,
    number: int,
    faults: tuple[str, ...],
    suspect: tuple[str, str],
) -> None:
    lab = make_lab(8, before=lambda hosts: with_gpus(hosts, bad, number, faults))
    lab.machine.write_text(lab.machine.read_text().replace("count: 0", "count: 8"))
    done = lab.run(checks=["check: inventory", "check: health", *CONNECT, *ALL_REDUCE])
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {suspect}
    good = [name for name in lab.names if name != bad]
    measured = {step["step"]: step["hosts"] for step in done.result["coverage"]["steps"]}
    assert measured == {"40-collectives": 7}
    assert done.result["gpus"] == 56 + number
    lists = lab.do("show", "nodes", "last", "--json").result
    assert lists == {"good": good, "bad": [bad], "untested": []}
    assert lab.do("judge", "last", "--max-bad", "1").exit == 0
    lab.nothing_is_left()
    lab.evidence_holds(done)
