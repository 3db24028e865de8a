"""ping.py: who every rank is, and the round trip between every two hosts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import nvml, smi
from tests.factories.programs import Start
from tests.factories.shell import write_program

import gpu_inventory
from ping import gpus_of_host, own_gpu, rounds

real = pytest.mark.real
UUIDS = ["GPU-a", "GPU-b", "GPU-c"]


@real
@pytest.mark.parametrize("ranks", [2, 5])
def test_every_rank_is_reported_once_and_every_pair_pinged(start: Start, ranks: int) -> None:
    ran = start("ping.py", ranks, "--pings", "5")
    hosts = [f"h{rank}" for rank in range(ranks)]
    assert (ran.exit, ran.problems) == (0, [])
    values = [record["value"] for record in ran.records if record.get("fact") == "mpi-rank"]
    assert [(value["rank"], value["host"], value["size"]) for value in values] == [
        (rank, f"h{rank}", ranks) for rank in range(ranks)
    ]
    for name in ("ping", "ping-worst"):
        found = [record for record in ran.records if record.get("metric") == name]
        assert [record["host"] for record in found] == hosts
        assert all(record["value"] > 0 and record["unit"] == "us" for record in found)
    pairs = ran.fact("ping-pairs")
    assert pairs["hosts"] == hosts
    assert [len(row) for row in pairs["us"]] == list(range(ranks))
    assert all(value > 0 for row in pairs["us"] for value in row)


@real
def test_a_single_host_has_no_peer_to_ping(start: Start) -> None:
    ran = start("ping.py", 1)
    assert (ran.exit, ran.problems) == (0, [])
    assert not any("metric" in record for record in ran.records)


@given(st.integers(1, 200))
def test_rounds_are_of_disjoint_pairs_and_contain_each_pair_exactly_once(count: int) -> None:
    found = rounds(count)
    for pairs in found:
        seats = [seat for pair in pairs for seat in pair]
        assert len(seats) == len(set(seats))
    assert sorted(pair for pairs in found for pair in pairs) == list(
        itertools.combinations(range(count), 2)
    )
    assert len(found) <= count


def test_an_nvidia_smi_that_this_user_may_not_run_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_of_host("h0") == []
    assert capsys.readouterr().out == ""


def test_without_nvidia_smi_nvml_identifies_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ping.DEV", tmp_path)
    listed = gpu_inventory.Found([{"uuid": "GPU-a"}, {"uuid": None}, {"uuid": "GPU-b"}])
    monkeypatch.setattr("gpu_inventory.gpus", lambda *, of_others: listed)
    assert gpus_of_host("h0") == []
    (tmp_path / "nvidia0").touch()
    assert gpus_of_host("h0") == ["GPU-a", "GPU-b"]


def test_an_nvidia_smi_that_fails_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_program(tmp_path / "nvidia-smi", "exit 9")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert gpus_of_host("h0") == []
    assert "gpu-unusable" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lost", "unknown"])
@pytest.mark.parametrize("form", ["index", "UUID"])
@pytest.mark.parametrize("own", range(8))
def test_only_a_lost_gpu_of_the_job_is_a_problem_with_the_words_of_nvidia_smi(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own: int,
    form: str,
    name: str,
) -> None:
    monkeypatch.setenv("PATH", smi.write(tmp_path, name)["PATH"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(own) if form == "index" else nvml.uuid(own))
    assert own_gpu(gpus_of_host("h0"), 0) == (None if own == 3 else nvml.uuid(own))
    printed = capsys.readouterr().out
    assert ("Unable to determine the device handle" in printed) is (own == 3)
    assert "CalledProcessError" not in printed


@pytest.mark.parametrize(
    ("visible", "own"),
    [
        *((None, "GPU-b"), ("2", "GPU-c"), ("2,0", "GPU-a"), ("GPU-b", "GPU-b")),
        *(("7", None), ("", None)),
    ],
)
def test_a_rank_uses_one_of_its_visible_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, own: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert own_gpu(UUIDS, 1) == own
