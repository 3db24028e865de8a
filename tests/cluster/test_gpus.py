"""Bad GPUs of hosts: a host with one is set aside, and those of other jobs do not count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster import gpus
from tests.cluster.hosts import Hosts
from tests.cluster.runs import ALL_REDUCE, CONNECT, VENV, Lab
from tests.cluster.slurm.cluster import SlurmCluster, why_not
from tests.cluster.slurm.login import Login
from tests.factories import nvml

from accept.core import evidence
from accept.core.facts import inventories_of

GPU_STEPS = ["check: inventory", "check: health", *CONNECT]


def with_gpus(hosts: Hosts, bad: str, number: int, faults: tuple[str, ...]) -> None:
    for name in hosts.names:
        is_bad = name == bad
        gpus.install(hosts, name, *faults * is_bad, gpus=number if is_bad else 8)


@pytest.mark.parametrize(
    ("bad", "number", "faults", "suspect"),
    [
        pytest.param("h5", 7, (), ("h5", "gpu-missing"), id="seven GPUs"),
        # The host of the coordinator.
        pytest.param(
            *("h1", 8, nvml.failed(3), ("h1:3", "gpu-lost")),
            id="lost GPU of the first host",
        ),
    ],
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
    done = lab.run(checks=[*GPU_STEPS, *ALL_REDUCE])
    assert done.ending == ("degraded", 3), done.err
    assert done.suspects == {suspect}
    good = [name for name in lab.names if name != bad]
    measured = {step["step"]: step["hosts"] for step in done.result["coverage"]["steps"]}
    assert measured == {"40-collectives": 7}
    assert done.result["gpus"] == 56 + number
    lists = lab.do("show", "nodes", "last", "--json").result
    assert lists == {"good": good, "bad": [bad], "untested": []}
    assert lab.do("judge", "last", "--max-bad", "1").exit == 0
    collected = lab.collected(bad)
    assert set(collected) == {"nvidia-bug-report", "nvidia-smi", "dmesg", "sel", "dmi"}
    assert collected["nvidia-smi"] == lab.hosts.run(bad, "nvidia-smi -q").stdout
    lab.nothing_is_left()
    lab.evidence_holds(done)


@pytest.mark.parametrize(
    ("gres", "options", "given"),
    # GPU 6 of each node is lost, and belongs to another job.
    [("gpu:4", ("--gpus-per-node", "4"), 4), ("none", (), None)],
)
def test_a_slurm_job_judges_the_gpus_of_its_list_or_all_if_it_requests_none(
    tmp_path: Path, gres: str, options: tuple[str, ...], given: int | None
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with SlurmCluster(4, venv=VENV) as cluster:
        for name in cluster.hosts.names:
            gpus.install(cluster.hosts, name, *nvml.failed(6) if given else ())
        login = Login(cluster, tmp_path)
        machine = login.machine.read_text().replace("count: 0", "count: 8")
        login.machine.write_text(machine.replace("ranksPerNode: 1", "ranksPerNode: gpus"))
        login.site.write_text(f"slurm: {{gres: '{gres}'}}\n{login.site.read_text()}")
        try:
            done = login.run(*options, checks=GPU_STEPS, nodes=2)
        finally:
            login.close()
    assert done.ending == ("pass", 0), done.err
    assert (done.result["gpus"], done.suspects) == (2 * (given or 8), set())
    read = evidence.read_records(login.evidence(done.result["attempt"]))
    inventories = inventories_of(read, done.result["hosts"]).values()
    counts = [inventory.given and inventory.given.count for inventory in inventories]
    assert counts == [given, given]
