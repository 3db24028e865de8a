"""Judge evidence of older versions as it was judged then: docs/compatibility.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.factories.command_line import accept

from accept.config import resources
from accept.core.judge import RULES

DATA = Path(__file__).parents[1] / "data"
#: Evidence that older versions wrote: `evidence-0.1/passed`.
OLD = sorted(path.parent for path in DATA.glob("evidence-*/*/verdict.json"))
#: Keys of a verdict whose values may not change. Texts for people may.
STABLE = ("state", "exit", "accepted", "attempt", "hosts", "missing", "gpuTested")


def test_there_is_evidence_of_each_version() -> None:
    assert {path.parent.name for path in OLD} == {"evidence-0.1"}


@pytest.mark.parametrize("folder", OLD, ids=lambda path: f"{path.parent.name}-{path.name}")
class TestOldEvidence:
    def test_has_its_original_verdict(self, folder: Path) -> None:
        stored = json.loads((folder / "verdict.json").read_text())
        done = accept("judge", folder, "--json")
        verdict = json.loads(done.out)
        assert done.code == stored["exit"]
        assert {key: verdict[key] for key in STABLE} == {key: stored[key] for key in STABLE}
        for key, names in (("checks", ("check", "state")), ("suspects", ("kind", "name", "cause"))):
            now, then = ([[one[n] for n in names] for one in v[key]] for v in (verdict, stored))
            assert now == then
        assert (verdict["rules"], "rules" in stored) == (RULES, False)

    @pytest.mark.usefixtures("working")
    def test_can_be_reported_and_judged_again(self, folder: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(folder, tmp_path / "evidence")
        before = accept("judge", copy, "--json")
        assert accept("report", copy).code == 0
        assert accept("judge", copy, "--json") == before


def test_evidence_that_other_rules_judged_is_judged_by_those_of_today(tmp_path: Path) -> None:
    copy = shutil.copytree(OLD[0], tmp_path / "evidence")
    stored = json.loads((copy / "verdict.json").read_text())
    (copy / "verdict.json").write_text(json.dumps({**stored, "rules": "others"}))
    for evidence in (copy, resources.demo()):
        assert json.loads(accept("judge", evidence, "--json").out)["rules"] == RULES


def test_a_saved_console_has_its_original_verdict(tmp_path: Path) -> None:
    for folder in OLD:
        if (folder / "console.log").is_file():
            stored = json.loads((folder / "verdict.json").read_text())
            log = shutil.copy(folder / "console.log", tmp_path / "pod.log")
            assert accept("judge", log).code == stored["exit"]
