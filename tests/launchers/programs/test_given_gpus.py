"""A job with a part of a host's GPUs: all programs speak about these, and NVML shows all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import nvml, smi
from tests.factories.paths import LAUNCHERS, TESTS
from tests.factories.programs import printed
from tests.factories.shell import run_program

import given_gpus
import gpu_inventory
import torch_io
from accept.core import record_protocol
from accept.core.health_readings import reading_of
from ping import gpus_of_host, own_gpu
from rank_io import Ended, Identity

UUIDS = [nvml.uuid(gpu) for gpu in range(8)]
#: The same GPUs 4 to 7, as Slurm and users list them.
LISTS = {
    "indexes": "4,5,6,7",
    "UUIDs": ",".join(UUIDS[4:]),
    "beginnings of UUIDs": "GPU-00000004,GPU-00000005,MIG-00000006,GPU-00000007",
}
SOURCES = {"NVML": (), "nvidia-smi": ("nvmlInit * : 18",)}


#: Values of the variable, and the number of GPUs of a real driver, on a host with one GPU.
RECORDED = [
    (json.loads(value), int(count))
    for value, _, count in (
        line.split("\t")
        for line in (TESTS / "data/gpu/cuda-visible-devices.tsv").read_text().splitlines()[1:]
    )
]
RECORDED_UUID = "GPU-abcd1234-5678-9abc-def0-123456789abc"
#: An entry of a list: one of a GPU, or one that ends the list or makes it fail.
ENTRIES = st.one_of(
    st.integers(-1, 9).map(str),
    st.integers(0, 9).map(nvml.uuid),
    st.integers(0, 9).map(lambda n: f"GPU-{n:08x}"),
    st.sampled_from(["", " 3", "+4", "0x7", "void", "GPU-", "MIG-7", "GPU-0"]),
)


def list_gpus(lines: Iterable[str], listed: str | None) -> list[str]:
    """Return what the shell lists of the lines of `nvidia-smi -L`."""
    command = '. ./gpus.sh; list_all_gpus() { printf "%s\\n" "$LINES"; }; list_gpus programs'
    env = {**os.environ, "LINES": "\n".join(lines), "ACCEPT_PYTHON": sys.executable}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    env |= {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    out = run_program(["sh", "-c", command], cwd=LAUNCHERS, env=env, check=True).stdout
    return out.splitlines()


def lines_of(uuids: Iterable[str | None]) -> list[str]:
    return [f"GPU {n}: H (UUID: {uuid})" for n, uuid in enumerate(uuids) if uuid]


def test_programs_and_shell_give_a_job_the_gpus_that_cuda_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    differences = []
    for value, count in RECORDED:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if value is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        gpus = given_gpus.read([RECORDED_UUID])
        # Values that a shell might split or change.
        special = value is None or not re.fullmatch(r"[\w,-]+", value, re.ASCII)
        shown = list_gpus(lines_of([RECORDED_UUID]), value) if special else [""] * count
        if gpus.places != [0] * count or len(shown) != count:
            differences.append((value, gpus, shown))
    assert len(RECORDED) > 80
    assert not differences


@given(entries=st.lists(ENTRIES, max_size=4), lost=st.sets(st.integers(0, 7), max_size=2))
def test_a_list_with_a_fault_gives_no_gpu_after_it(entries: list[str], lost: set[int]) -> None:
    uuids = [None if n in lost else uuid for n, uuid in enumerate(UUIDS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(entries))
        found = given_gpus.read(uuids)
        shares = given_gpus.read(uuids).shares(uuids)
        number = entries.index(found.entry) if found.entry in entries else len(entries)
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(entries[:number]))
        before = given_gpus.read(uuids)
    known = [place for place in found.places if place is not None]
    assert len(set(known)) == len(known)
    assert {n for n, is_own in enumerate(shares) if is_own} == set(known)
    if found.fault is given_gpus.Fault.TWICE:
        assert found.places == []
    elif found.fault is not None:
        assert found.places == before.places


@pytest.mark.parametrize(
    ("listed", "fault", "count"),
    [
        ("0,9,1", "missing", 1),
        ("9,0", "missing", 0),
        ("void", "missing", 0),
        (f"{UUIDS[0]},GPU-ffffffff", "missing", 1),
        ("", "none", 0),
        ("-1", "none", 0),
        ("NoDevFiles", "none", 0),
        ("0,0", "twice", 0),
        ("GPU-0", "ambiguous", 0),
        ("MIG-12345678-0000-0000-0000-000000000000", "mig", 0),
        (f"MIG-{UUIDS[3]}/1/0", "mig", 0),
        ("0,1,-1,5", None, 2),
        ("0,1,", None, 2),
        ("7,0", None, 2),
    ],
)
def test_the_fault_of_a_list_is_named_and_no_other_gpu_is_given(
    listed: str, fault: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    found = given_gpus.read(UUIDS)
    assert (found.fault and found.fault.value, len(found.places)) == (fault, count)
    assert given_gpus.read(UUIDS).shares(UUIDS).count(True) == count
    assert list_gpus(lines_of(UUIDS), listed) == [lines_of(UUIDS)[n or 0] for n in found.places]


@pytest.mark.parametrize("listed", ["0,1", UUIDS[0], "GPU-0"])
def test_without_any_gpu_the_driver_is_at_fault_and_not_the_list(
    listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert given_gpus.read([]).fault is None


@given(
    own=st.sets(st.integers(0, 7), min_size=1),
    lost=st.sets(st.integers(0, 7)),
    by_index=st.booleans(),
    data=st.data(),
)
def test_a_lost_gpu_is_never_that_of_another_job_if_it_may_be_the_own(
    *, own: set[int], lost: set[int], by_index: bool, data: Any
) -> None:
    listed = data.draw(st.permutations(sorted(own)))
    uuids = [None if n in lost else uuid for n, uuid in enumerate(UUIDS)]
    with pytest.MonkeyPatch.context() as patch:
        names = [str(n) if by_index else UUIDS[n] for n in listed]
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
        given = given_gpus.read(uuids).shares(uuids)
        places = given_gpus.read(uuids).places
    known = by_index or lost <= own or not lost & own
    for gpu, is_own in enumerate(given):
        is_certain = gpu not in lost or known
        assert is_own is ((gpu in own) if is_certain else None)
    assert len(places) == len(own)
    assert all(place == gpu for place, gpu in zip(places, listed, strict=True) if gpu not in lost)


@given(
    unnamed=st.sets(st.integers(0, 7)),
    own=st.sets(st.integers(0, 7), min_size=1),
    is_shown=st.booleans(),
)
def test_gpus_without_an_index_or_a_row_leave_the_others_their_numbers(
    *, unnamed: set[int], own: set[int], is_shown: bool
) -> None:
    rows = [{"index": n, "uuid": UUIDS[n]} for n in range(8) if n not in unnamed]
    rows += [{"uuid": None} for _ in unnamed if is_shown]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, sorted(own))))
        found = gpu_inventory.given(rows).gpus
    shown = {gpu["uuid"] for gpu, is_own in found if is_own}
    assert shown - {None} == {UUIDS[n] for n in own - unnamed}
    assert sum(is_own is True for _, is_own in found) == len(own - unnamed) + (
        len(own & unnamed) if is_shown else 0
    )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.Scenario:
    """Return a host of 8 GPUs, on which another job has a lost GPU."""
    scenario = nvml.Scenario(tmp_path / "scenario", "h100")
    scenario.change(*nvml.failed(2))
    nvml.host(tmp_path / "root", range(8))
    environment = {**scenario.env, **smi.write(tmp_path / "bin", "healthy")}
    for name, value in {**environment, "ACCEPT_HOST": "h0"}.items():
        monkeypatch.setenv(name, value)
    return scenario


def health(folder: Path) -> Any:
    out = printed("health.py", "--root", folder / "root", "--quiet")
    return reading_of(record_protocol.parse([out.encode()], "health").facts)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("form", LISTS)
def test_inventory_and_health_read_the_gpus_of_the_job_alone(
    host: nvml.Scenario,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    source: str,
) -> None:
    host.change(*SOURCES[source])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", LISTS[form])
    found = gpu_inventory.gpus().gpus or []
    assert [gpu["index"] for gpu in found] == [4, 5, 6, 7]
    assert [gpu["uuid"] for gpu in found] == UUIDS[4:]
    assert not [gpu for gpu in found if gpu.get("error")]
    reading = health(tmp_path)
    gpus = [device for device in reading.devices if device.kind == "gpu"]
    assert [gpu.name for gpu in gpus] == ["4", "5", "6", "7"]
    assert [gpu.pci for gpu in gpus] == [nvml.address(n) for n in range(4, 8)]
    assert not [gpu for gpu in gpus if gpu.errors]
    assert set(reading.others) == {nvml.address(n) for n in range(4)}


def test_a_lost_gpu_of_the_job_is_named(
    host: nvml.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.change(*nvml.failed(6, handle=False))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", LISTS["indexes"])
    bad = [gpu for gpu in gpu_inventory.gpus().gpus or [] if gpu.get("error")]
    assert [gpu["index"] for gpu in bad] == [6]
    assert [device.name for device in health(tmp_path).devices if device.errors] == ["6"]


def test_numbers_count_the_gpus_that_the_job_may_open(
    host: nvml.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ConstrainDevices, CUDA numbers them from 0."""
    host.change(*(f"nvmlDeviceGetHandleByIndex {gpu} : 4" for gpu in range(4)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert [gpu["uuid"] for gpu in gpu_inventory.gpus().gpus or []] == UUIDS[4:]
    reading = health(tmp_path)
    assert [d.pci for d in reading.devices if d.kind == "gpu"] == [*map(nvml.address, range(4, 8))]
    assert not [gap for gap in reading.unread if gap.devices == "gpus"]


@pytest.mark.sampled
@pytest.mark.parametrize("form", LISTS)
@pytest.mark.usefixtures("host")
def test_each_rank_has_the_same_gpu_everywhere(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", LISTS[form])
    for rank in range(4):
        command = ["sh", "programs/rank_identity.sh"]
        env = {**os.environ, "ACCEPT_LOCAL_RANK": str(rank)}
        out = run_program(command, cwd=LAUNCHERS, env=env, check=True).stdout
        identity = json.loads(out.splitlines()[0].removeprefix("ACCEPT "))["value"]
        assert identity["gpu"] == own_gpu(gpus_of_host("h0"), rank) == UUIDS[4 + rank]
        assert torch_io.gpu_number(rank, rank) == str(4 + rank)


@pytest.mark.parametrize("listed", ["0,1,2,3,4", ",".join(UUIDS[:5])])
@pytest.mark.parametrize("name", ["healthy", "lost", "unknown"])
def test_a_rank_has_no_gpu_in_place_of_a_missing_one(
    tmp_path: Path, name: str, listed: str
) -> None:
    environment = {**smi.write(tmp_path, name), "CUDA_VISIBLE_DEVICES": listed}
    command = ["sh", "-c", ". ./gpus.sh; list_gpus programs"]
    env = os.environ | environment
    out = run_program(command, cwd=LAUNCHERS, env=env, check=True)
    shown = [line.partition("UUID: ")[2].strip(")") for line in out.stdout.splitlines()]
    expected = ["" if n == 3 and name != "healthy" else UUIDS[n] for n in range(5)]
    assert shown == expected


@pytest.mark.usefixtures("host")
def test_a_rank_that_is_shown_its_own_gpu_alone_has_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[6])
    assert own_gpu(gpus_of_host("h0"), 3) == UUIDS[6]
    assert torch_io.gpu_number(0, 3) == "6"


@pytest.mark.parametrize(
    ("listed", "count", "by_list"),
    [("-1", 0, True), ("0,0", 0, True), ("0,9", 1, True), ("0,1", 2, True), ("0,1", 0, False)],
)
@pytest.mark.usefixtures("host")
def test_a_program_without_a_gpu_blames_the_list_only_if_that_gives_no_more(
    *,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    listed: str,
    count: int,
    by_list: bool,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    rank = Identity(rank=3, size=4, local_rank=3, local_size=4, host="h1", launcher="mpirun")
    with pytest.raises(Ended) if by_list else contextlib.nullcontext():
        torch_io._end_if_list_is_short(count, rank)
    problems = record_protocol.parse([capsys.readouterr().out.encode()], "gemm").problems
    assert [(one.cause, one.host) for one in problems] == [("gpu-list", None)] * by_list
