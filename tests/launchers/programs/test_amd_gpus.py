"""AMD GPUs, listed and read by a stand-in for amd-smi; a run names the one that gets worse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories import amd_smi
from tests.factories.command_line import accept
from tests.factories.paths import PROGRAMS, ROOT
from tests.factories.shell import write_program

SUITE = """\
name: facts
description: The facts of nodes with AMD GPUs.
checks:
- check: inventory
- check: health
"""


def output(folder: Path, *command: str | Path) -> str:
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("rocm", [6, 7])
def test_the_gpus_have_the_same_uuids_for_the_inventory_and_the_ranks(
    rocm: int, tmp_path: Path
) -> None:
    folder = amd_smi.write(tmp_path, [amd_smi.metric(n) for n in range(8)], rocm=rocm)
    out = output(folder, sys.executable, PROGRAMS / "inventory.py")
    gpus = json.loads(out.partition("ACCEPT ")[2])["value"]["gpus"]
    assert [gpu["name"] for gpu in gpus] == ["AMD Instinct MI300X"] * 8
    assert [gpu["pci"] for gpu in gpus] == [*amd_smi.PLACES]
    rows = output(folder, "sh", "-c", '. "$1"; list_all_gpus', "sh", ROOT / "launchers/gpus.sh")
    assert [row.split("UUID: ")[1] for row in rows.splitlines()] == [f"{g['uuid']})" for g in gpus]


def test_the_words_of_a_driver_that_does_not_answer_are_shown(tmp_path: Path) -> None:
    write_program(tmp_path / "amd-smi", "echo 'ERROR:root:Unable to get devices' >&2; exit 255")
    out = output(tmp_path, sys.executable, PROGRAMS / "inventory.py")
    value = json.loads(out.partition("ACCEPT ")[2])["value"]
    assert (value["gpus"], "Unable to get devices" in value["driverWords"]) == (None, True)
    assert "AMD GPUs (amd-smi list: ERROR:root:Unable to get devices" in output(
        tmp_path, sys.executable, PROGRAMS / "health.py"
    )


@pytest.mark.rare
def test_a_run_names_the_gpus_that_get_errors_or_too_hot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [amd_smi.metric(n) for n in range(8)]
    later = [amd_smi.metric(n, uncorrected=int(n == 3), hot=n == 5) for n in range(8)]
    before, after = amd_smi.write(tmp_path / "a", first), amd_smi.write(tmp_path / "b", later)
    script = (
        f'[ -e {tmp_path}/was-read ] && exec {after}/amd-smi "$@"\n'
        f'[ "$1" = metric ] && touch {tmp_path}/was-read\nexec {before}/amd-smi "$@"'
    )
    program = write_program(tmp_path / "bin/amd-smi", script)
    (tmp_path / "facts.yaml").write_text(SUITE)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    done = accept("run", "--machine", "mi300x-8", "--suite", "./facts.yaml", "--json")
    assert done.code == 3, done.err
    suspects = {(one.get("device"), one["cause"]) for one in json.loads(done.out)["suspects"]}
    assert suspects >= {("3", "gpu-ecc"), ("5", "gpu-throttled")}, done.out
    words = "accept never ran on AMD GPUs"
    assert words in done.err
    assert words in accept("judge", "last").out
    report = next((tmp_path / "runs").glob("*/report.html"))
    assert words in report.read_text()
    assert words in (report.parent / "evidence/report.md").read_text()
