"""The workflow files: what they run exists, what they use is pinned, and actionlint takes them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SHELLCHECK = ROOT / ".venv" / "bin" / "shellcheck"


def document(path: Path) -> dict[Any, Any]:
    """A workflow; YAML 1.1 reads its key `on` as true."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.fixture
def actionlint() -> Path:
    """Return it as `make test` built it; without it the test is left out."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = sorted((base / "accept-tests" / "bin").glob("actionlint-*"))
    if not built:
        pytest.skip("no actionlint here: `make test` builds it")
    return built[-1]


def test_there_is_one_for_every_push_and_one_for_tags() -> None:
    assert {path.stem: set(document(path)[True]) for path in FILES} == {
        "ci": {"push", "pull_request"},
        "release": {"push"},
    }
    (release,) = (path for path in FILES if path.stem == "release")
    assert document(release)[True]["push"] == {"tags": ["v*"]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actionlint_finds_nothing(path: Path, actionlint: Path) -> None:
    command = [str(actionlint), "-no-color", "-shellcheck", str(SHELLCHECK), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_jobs_are_bounded_and_may_only_what_they_need(path: Path) -> None:
    found = document(path)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert job["timeout-minutes"] <= 180
        assert job["steps"]
        assert "latest" not in str(job["runs-on"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_others_wrote_is_pinned_by_commit_or_digest(path: Path) -> None:
    used = re.findall(r"^ *(?:- )?uses: (.*)$", path.read_text(), re.MULTILINE)
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one)] == []
    images = re.findall(r"^ *image: (\S+)$", path.read_text(), re.MULTILINE)
    assert [one for one in images if "@sha256:" not in one] == []


def test_every_push_runs_what_ci_runs_anywhere() -> None:
    (job,) = document(ROOT / ".github" / "workflows" / "ci.yml")["jobs"].values()
    assert job["steps"][-1] == {"run": "bash .ci/run"}
    assert (ROOT / ".ci" / "run").is_file()


def test_a_release_waits_until_the_tag_is_the_version() -> None:
    jobs = document(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert set(jobs) == {"wheel", "chart", "image", "manifest"}
    assert [name for name, job in jobs.items() if "wheel" not in job.get("needs", [])] == ["wheel"]
