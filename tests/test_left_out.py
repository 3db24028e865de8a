"""The test run itself: its order, and what it says about tests that were left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.real
SAMPLE = """
import pytest

@pytest.mark.cluster
def test_hosts():
    pass

@pytest.mark.real
def test_program():
    pytest.skip("no such program here")

def test_fast():
    pass

def test_data():
    pytest.skip("no recorded logs here")
"""


#: As CI has them, and with one process for the tests, which is enough to be another one.
PARALLEL = ("-n", "3", "--dist", "loadscope")
APART = ("-n", "1", "--dist", "loadscope")


def run_sample(folder: Path, *options: str, ci: str) -> subprocess.CompletedProcess[str]:
    """Run the sample under the project's own conftest and settings."""
    tests = folder / "tests"
    tests.mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "conftest.py", tests)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (tests / "test_sample.py").write_text(SAMPLE)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options],
        check=False,
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("options", [(), APART])
def test_a_test_left_out_is_named_with_its_reason(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run_sample(tmp_path, *options, ci="")
    assert done.returncode == 0
    assert "1 left out: no such program here" in done.stdout
    assert "1 left out: no recorded logs here" in done.stdout


def test_a_test_not_selected_is_named_too(tmp_path: Path) -> None:
    done = run_sample(tmp_path, "-k", "fast", ci="true")
    assert done.returncode == 0
    assert "3 left out: not selected by the options given" in done.stdout


def test_several_processes_do_not_call_everything_run(tmp_path: Path) -> None:
    done = run_sample(tmp_path, *APART, "-k", "fast", ci="true")
    assert done.returncode == 0
    assert "What -k and -m do not select was left out." in done.stdout


@pytest.mark.parametrize("options", [(), APART])
def test_in_ci_leaving_out_a_real_test_is_a_failure(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run_sample(tmp_path, *options, ci="true")
    assert done.returncode == 1
    assert "CI=true, and left out: no such program here" in done.stdout
    assert "1 failed, 2 passed, 1 skipped" in done.stdout


@pytest.mark.parametrize("ci", ["", "true"])
def test_fast_tests_go_first_then_real_ones_then_the_cluster(tmp_path: Path, ci: str) -> None:
    lines = run_sample(tmp_path, ci=ci).stdout.splitlines()
    order = [line.split()[0].partition("::")[2] for line in lines if line.endswith("%]")]
    assert order == ["test_fast", "test_data", "test_program", "test_hosts"]


def test_tests_that_share_a_cluster_are_all_in_one_process(tmp_path: Path) -> None:
    hosts = tmp_path / "tests" / "cluster"
    pods = hosts / "kube"
    for folder in (hosts, pods):
        folder.mkdir(parents=True)
        (folder / f"test_{folder.name}.py").write_text(
            "from pathlib import Path\nimport pytest\n\n"
            '@pytest.mark.parametrize("n", range(6))\n'
            "def test_it(n, worker_id):\n"
            '    (Path(__file__).parent / worker_id).write_text("was here")\n'
        )
    done = run_sample(tmp_path, *PARALLEL, ci="")
    assert done.returncode == 0, done.stdout
    assert "16 items" in done.stdout
    (one,), (other,) = hosts.glob("gw*"), pods.glob("gw*")
    assert one.name != other.name
