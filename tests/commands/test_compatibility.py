"""Judge evidence of older versions as it was judged then: docs/compatibility.md."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.factories.command_line import accept
from tests.factories.paths import TESTS

from accept.config import resources
from accept.core.judge import RULES

#: Evidence that 0.2 wrote on a machine with a GPU, before the rules `effects` (tests/data/gpu).
OLD = sorted((TESTS / "data" / "gpu").glob("*/run-*.tar.gz"))
#: Keys of a verdict whose values may not change. Texts for people may.
STABLE = ("state", "exit", "accepted", "attempt", "hosts", "missing", "gpuTested")


@pytest.fixture
def folder(archive: Path, tmp_path: Path) -> Path:
    # The tests run on Pythons whose `tarfile` has no filters, too.
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    return next(tmp_path.rglob("verdict.json")).parent


@pytest.mark.parametrize("archive", OLD, ids=lambda path: path.name)
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
    def test_can_be_reported_and_judged_again(self, folder: Path) -> None:
        before = accept("judge", folder, "--json")
        assert accept("report", folder).code == 0
        assert accept("judge", folder, "--json") == before


@pytest.mark.parametrize("archive", OLD[:1], ids=lambda path: path.name)
def test_evidence_that_other_rules_judged_is_judged_by_those_of_today(folder: Path) -> None:
    stored = json.loads((folder / "verdict.json").read_text())
    (folder / "verdict.json").write_text(json.dumps({**stored, "rules": "others"}))
    for evidence in (folder, resources.demo()):
        assert json.loads(accept("judge", evidence, "--json").out)["rules"] == RULES
