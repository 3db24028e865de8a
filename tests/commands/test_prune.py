"""Removing the folders of old runs: only own, old ones whose evidence is here."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tests.factories import sample_evidence
from tests.factories.command_line import accept, refused
from tests.factories.jobs import over_ssh, submitted

DAY = 86400.0


def run_of(runs: Path, name: str, *, days: float, collected: bool = True) -> Path:
    """Make the folder of a run over ssh that started some days ago."""
    folder = runs / name
    if collected:
        sample_evidence.write(folder / "evidence")
    started = time.gmtime(time.time() - days * DAY)
    job = over_ssh(folder, submitted=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", started))
    return submitted(folder, job)


def test_old_runs_with_evidence_go_and_all_others_stay(runs: Path, tmp_path: Path) -> None:
    old, young = run_of(runs, "old", days=40), run_of(runs, "young", days=20)
    missing = run_of(runs, "missing", days=40, collected=False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (runs / "link").symlink_to(elsewhere)
    os.utime(elsewhere, (0, 0))
    shown = json.loads(
        accept("clean", "--folders", "--older-than", "30d", "--dry-run", "--json").out
    )
    assert [one["name"] for one in shown["removed"]] == ["old"]
    assert shown["removed"][0]["bytes"] > 0
    assert list(shown["kept"]) == ["missing"]
    assert old.is_dir()
    assert accept("clean", "--folders", "--older-than", "30d").code == 0
    assert (old.exists(), young.is_dir(), missing.is_dir(), elsewhere.is_dir()) == (
        *(False, True, True, True),
    )


def test_a_drill_stays_until_all_its_runs_are_collected(runs: Path) -> None:
    drill = run_of(runs, "drill", days=0).parent / "drill"
    (drill / "job.json").unlink()
    (drill / "drill.json").write_text("{}")
    inner = run_of(drill, "one", days=40, collected=False)
    os.utime(drill, (0, 0))
    accept("clean", "--folders", "--older-than", "30d")
    assert drill.is_dir()
    sample_evidence.write(inner / "evidence")
    os.utime(drill, (0, 0))
    accept("clean", "--folders", "--older-than", "30d")
    assert not drill.exists()


def test_an_age_is_needed_and_must_be_a_duration(runs: Path) -> None:
    refused("clean", "--folders", error="E-USAGE")
    refused("clean", "--folders", "last", "--older-than", "30d", error="E-USAGE")
    refused("clean", "--folders", "--older-than", "soon", error="E-OPTION-DURATION")
