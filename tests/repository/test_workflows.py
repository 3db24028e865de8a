"""The workflow files: their commands exist, their actions are pinned, and they pass actionlint."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.paths import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYPROJECT = (ROOT / "pyproject.toml").read_text()
SHELLCHECK = ROOT / ".venv" / "bin" / "shellcheck"


def document(path: Path) -> dict[Any, Any]:
    """Return a workflow; YAML 1.1 reads its key `on` as true."""
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text())
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    """Return the steps of all jobs."""
    return [step for job in document(path)["jobs"].values() for step in job["steps"]]


def ci_jobs() -> dict[str, Any]:
    jobs: dict[str, Any] = document(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    return jobs


def docs_jobs() -> dict[str, Any]:
    jobs: dict[str, Any] = document(ROOT / ".github" / "workflows" / "docs.yml")["jobs"]
    return jobs


def parts_of(job: dict[str, Any]) -> list[str]:
    """Return the parts of `.ci/run` that a job runs."""
    commands = [step["run"] for step in job["steps"] if ".ci/run" in step.get("run", "")]
    return [command.removeprefix("bash .ci/run ") for command in commands]


@pytest.fixture
def actionlint() -> Path:
    """Return actionlint as `make test` built it; skip the test without it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = sorted((base / "accept-tests" / "bin").glob("actionlint-*"))
    if not built:
        pytest.skip("no actionlint here: `make test` builds it")
    return built[-1]


def test_each_starts_on_its_events() -> None:
    assert {path.stem: set(document(path)[True]) for path in FILES} == {
        "audit": {"schedule", "push", "pull_request"},
        "ci": {"push", "pull_request"},
        "docs": {"push", "pull_request"},
        "release": {"push"},
    }
    (release,) = (path for path in FILES if path.stem == "release")
    assert document(release)[True]["push"] == {"tags": ["v*"]}


@pytest.mark.real
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
def test_actions_and_images_are_pinned_by_commit_or_digest(path: Path) -> None:
    used = re.findall(r"^ *(?:- )?uses: (.*)$", path.read_text(), re.MULTILINE)
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one)] == []
    images = re.findall(r"^ *image: (\S+)$", path.read_text(), re.MULTILINE)
    assert [one for one in images if "@sha256:" not in one] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_checkout_leaves_the_token_in_the_git_configuration(path: Path) -> None:
    checkouts = [s for s in steps(path) if s.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_script_contains_text_from_a_pull_request(path: Path) -> None:
    scripts = [step["run"] for step in steps(path) if "run" in step]
    inserted = {found for script in scripts for found in re.findall(r"\$\{\{ *(.*?) *\}\}", script)}
    assert {name.partition(".")[0] for name in inserted} <= {"matrix"}


def test_only_the_test_cluster_runs_privileged() -> None:
    options = {name: job.get("container", {}).get("options") for name, job in ci_jobs().items()}
    assert {name: given for name, given in options.items() if given} == {"cluster": "--privileged"}


def test_all_containers_of_ci_are_the_same_image() -> None:
    images = {job["container"]["image"] for job in ci_jobs().values() if "container" in job}
    assert len(images) == 1


def test_the_jobs_of_ci_run_every_part_of_its_script_and_nothing_else() -> None:
    jobs = {**ci_jobs(), "docs": docs_jobs()["build"]}
    assert {name: parts_of(job) for name, job in jobs.items()} == {
        "docs": ["docs"],
        "fast": ["fast", "lint", "python310"],
        "python311": ["python311"],
        "real": ["real"],
        "cluster": ["cluster ${{ matrix.shard }}"],
    }
    script = (ROOT / ".ci" / "run").read_text()
    offered = set(re.findall(r"^([a-z0-9]+)\)", script, re.MULTILINE)) - {"all"}
    assert offered == {part.split()[0] for job in jobs.values() for part in parts_of(job)}


def test_the_shards_of_the_clusters_are_complete() -> None:
    shards = ci_jobs()["cluster"]["strategy"]["matrix"]["shard"]
    assert shards == [f"{number}/{len(shards)}" for number in range(1, len(shards) + 1)]


def test_fast_tests_run_on_every_python_from_the_oldest_on() -> None:
    pythons = ci_jobs()["fast"]["strategy"]["matrix"]["python"]
    oldest = int(re.findall(r'requires-python = ">=3\.(\d+)"', PYPROJECT)[0])
    assert pythons == [f"3.{minor}" for minor in range(oldest, oldest + len(pythons))]
    assert len(pythons) >= 4


def test_the_script_refuses_a_part_that_does_not_exist() -> None:
    command = ["bash", str(ROOT / ".ci" / "run"), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""


def test_only_the_main_branch_publishes_the_site_without_running_code_of_the_project() -> None:
    build, publish = docs_jobs()["build"], docs_jobs()["publish"]
    assert "permissions" not in build
    assert publish["permissions"] == {"id-token": "write", "pages": "write"}
    assert publish["if"] == "github.ref == 'refs/heads/main'"
    assert ["uses" in step for step in publish["steps"]] == [True]


def release_jobs() -> dict[str, Any]:
    jobs: dict[str, Any] = document(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    return jobs


def test_a_release_waits_until_the_tag_is_the_version() -> None:
    jobs = release_jobs()
    assert set(jobs) == {"build", "image", "manifest", "release"}
    assert [name for name, job in jobs.items() if "build" not in job.get("needs", [])] == ["build"]


def test_jobs_that_can_publish_wait_for_approval_and_run_no_code_of_build_back_ends() -> None:
    publishing = {name: job for name, job in release_jobs().items() if "permissions" in job}
    assert set(publishing) == {"image", "manifest", "release"}
    assert {job["environment"] for job in publishing.values()} == {"release"}
    scripts = [step.get("run", "") for job in publishing.values() for step in job["steps"]]
    assert [script for script in scripts if "make" in script or "uv " in script] == []


def test_wheel_chart_and_images_are_signed_and_have_provenance() -> None:
    signed = {
        name: (
            any("cosign sign" in step.get("run", "") for step in job["steps"]),
            any("attest-build-provenance" in step.get("uses", "") for step in job["steps"]),
        )
        for name, job in release_jobs().items()
        if "id-token" in job.get("permissions", {})
    }
    assert signed == {"manifest": (True, True), "release": (True, True)}
