"""The CPUs near a GPU, and threads that run on them while they allocate memory."""

from __future__ import annotations

import os
from pathlib import Path

import pci


def test_the_cpus_of_a_device_are_listed_under_its_place_on_the_bus(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0001:ab:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text("0-2,8\n")
    assert pci.near("00000001:AB:00.0", tmp_path) == {0, 1, 2, 8}
    assert pci.near("00000001:AC:00.0", tmp_path) == set()
    assert pci.near("", tmp_path) == set()


def test_a_thread_runs_near_the_device_and_comes_back() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with pci.on(one) as is_near:
        assert (is_near, os.sched_getaffinity(0)) == (True, one)
    assert os.sched_getaffinity(0) == before


def test_a_thread_that_may_not_run_there_stays_where_it_is() -> None:
    before = os.sched_getaffinity(0)
    with pci.on({max(before) + 1000}) as is_near:
        assert (is_near, os.sched_getaffinity(0)) == (False, before)
