"""Every program that uses torch works with the oldest and with the newest supported release."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.factories.paths import ROOT
from tests.factories.programs import Ran, Start
from tests.factories.torch_releases import OLDEST, need_torch

pytestmark = [pytest.mark.real, pytest.mark.oldest]

_DEVICES = ("--seconds", "0.05", "--alone", "0.02")
_TRAIN = ("--steps", "20")
_FSDP = ("train.py", *_TRAIN, "--model", "gpt-tiny", "--parallel", "fsdp")
#: Name -> a program and its options.
USES = {
    "gemm": ("gemm.py", *_DEVICES, "--size", "256"),
    "memory": ("memory.py", *_DEVICES, "--most", "4194304"),
    "burn": ("burn.py", "--seconds", "0.3", "--size", "256", "--room", "64K"),
    "collectives": ("collective.py", "--min", "1K", "--max", "8K", "--iters", "2", "--jitter"),
    "mlp": ("train.py", *_TRAIN, "--checkpoint", "FOLDER"),
    "gpt-tiny": ("train.py", *_TRAIN, "--model", "gpt-tiny", "--parallel", "ddp"),
    "gpt-fit": ("train.py", *_TRAIN, "--model", "gpt-fit", "--precision", "autocast"),
}


@pytest.fixture
def oldest(start: Start) -> Start:
    """Return a function that starts a program with the oldest torch."""
    need_torch(OLDEST)
    return lambda *args, **options: start(*args, **options, python=str(OLDEST))


def reported(ran: Ran) -> set[tuple[str, ...]]:
    """Return the kinds of the records of a launch without a problem."""
    assert (ran.exit, ran.problems) == (0, []), ran.text
    # The slowest rank is another one each time.
    return {
        (str(r.get("fact")), str(r.get("metric")), str(r.get("fact") or r.get("rank")))
        for r in ran.records
    }


def test_the_oldest_torch_is_that_of_the_project() -> None:
    need_torch(OLDEST)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (supported,) = re.findall(r"'torch>=([\d.]+)'", str(project))
    code = "from importlib.metadata import version; print(version('torch'))"
    done = subprocess.run([OLDEST, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{supported}.0"


@pytest.mark.parametrize("use", USES)
def test_a_program_reports_the_same_with_the_oldest_and_the_newest_torch(
    start: Start, oldest: Start, tmp_path: Path, use: str
) -> None:
    program, *options = (str(tmp_path / "new") if o == "FOLDER" else o for o in USES[use])
    launcher = "torchrun" if program == "train.py" else "mpirun"
    assert reported(oldest(program, 2, *options, launcher=launcher)) == reported(
        start(program, 2, *options, launcher=launcher)
    )


def test_fsdp_on_cpus_is_refused_by_the_oldest_torch(oldest: Start) -> None:
    program, *options = _FSDP
    ran = oldest(program, 2, *options, launcher="torchrun")
    assert ran.exit != 0
    assert "error: on CPUs fsdp needs a newer torch, this is 2.6.0" in ran.text
