"""Evidence of older versions is judged as it was then: docs/compatibility.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.factories.command_line import accept

#: Evidence that older versions wrote, by version: `evidence-0.1`.
OLD = sorted((Path(__file__).parents[1] / "data").glob("evidence-*"))


@pytest.mark.parametrize("folder", OLD, ids=lambda folder: folder.name)
class TestOldEvidence:
    def test_has_the_same_state_and_exit_code(self, folder: Path) -> None:
        stored = json.loads((folder / "verdict.json").read_text())
        done = accept("judge", folder, "--json")
        verdict = json.loads(done.out)
        kept = ("state", "exit", "accepted", "attempt", "run", "hosts", "gpuTested")
        assert {key: verdict[key] for key in kept} == {key: stored[key] for key in kept}
        assert done.code == stored["exit"]
        states = {check["check"]: check["state"] for check in verdict["checks"]}
        assert states == {check["check"]: check["state"] for check in stored["checks"]}

    def test_has_reports_of_this_version(self, folder: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(folder, tmp_path / "evidence")
        assert accept("report", copy).code == 0
        assert accept("judge", copy).code == accept("judge", folder).code


def test_the_oldest_evidence_is_of_0_1() -> None:
    assert OLD[0].name == "evidence-0.1"
