"""The test run itself: order, shards, and the list of tests that were left out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories.paths import ROOT

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


#: The options of CI, and those for one worker process.
PARALLEL = ("-n", "5", "--dist", "loadgroup")
APART = ("-n", "1", "--dist", "loadgroup")


def run_sample(
    folder: Path, *options: str, ci: str = "", more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the sample, and the tests in `more`, under the project's own conftest and settings."""
    tests = folder / "tests"
    tests.mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "conftest.py", tests)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (tests / "test_sample.py").write_text(SAMPLE)
    if more:
        (tests / "test_more.py").write_text(f"import pytest\n{more}")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options],
        check=False,
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


@pytest.mark.rare
@pytest.mark.parametrize("options", [(), APART])
def test_a_sample_is_the_same_cases_each_time(tmp_path: Path, options: tuple[str, ...]) -> None:
    more = (
        'every = pytest.mark.parametrize("n", range(20))\n'
        "@every\n@pytest.mark.sampled\ndef test_slow(n): pass\n@every\ndef test_fast(n): pass\n"
    )
    done = (run_sample(tmp_path, *options, "--sample", "3", more=more) for _ in range(2))
    outputs = [one.stdout for one in done]
    one, two = (
        {*re.findall(r"test_(\w+\[\d+\]) PASSED|PASSED \S+test_(\w+\[\d+\])", out)}
        for out in outputs
    )
    assert one == two
    names = ["".join(pair) for pair in one]
    assert sum(name.startswith("slow") for name in names) == 3
    assert sum(name.startswith("fast") for name in names) == 20
    assert "17 left out: outside the sample" in outputs[0]


@pytest.mark.rare
@pytest.mark.parametrize("options", [(), APART])
def test_a_test_that_did_not_run_is_listed_with_the_reason(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run_sample(tmp_path, *options)
    assert done.returncode == 0
    assert "1 left out: no such program here" in done.stdout
    assert "1 left out: no recorded logs here" in done.stdout
    done = run_sample(tmp_path, *options, "-m", "not real and not cluster", ci="true")
    assert done.returncode == 0
    assert "1 left out: marked `real`, not selected by the options given" in done.stdout
    assert "1 left out: marked `cluster`, not selected by the options given" in done.stdout
    assert "1 left out: no recorded logs here" in done.stdout
    # In CI, a skipped test that is marked `real` is a failure.
    done = run_sample(tmp_path, *options, ci="true")
    assert done.returncode == 1
    assert "CI=true, and left out: no such program here" in done.stdout
    assert "1 failed, 2 passed, 1 skipped" in done.stdout


def test_a_test_of_reliability_runs_only_with_its_option(tmp_path: Path) -> None:
    more = "@pytest.mark.reliability\ndef test_rare():\n    pass\n"
    done = run_sample(tmp_path, more=more)
    assert "1 left out: marked `reliability`: python -m tests.reliability" in done.stdout
    assert "2 passed, 2 skipped" in done.stdout
    assert "3 passed, 2 skipped" in run_sample(tmp_path, "--reliability", more=more).stdout


@pytest.mark.rare
@pytest.mark.parametrize("options", [(), PARALLEL])
def test_a_file_that_skips_itself_is_listed(tmp_path: Path, options: tuple[str, ...]) -> None:
    more = 'pytest.skip("no such package", allow_module_level=True)\n'
    done = run_sample(tmp_path, *options, more=more)
    assert "1 left out: no such package" in done.stdout


def test_nothing_is_listed_if_everything_ran(tmp_path: Path) -> None:
    done = run_sample(tmp_path, "--deselect", "tests/test_sample.py")
    assert done.returncode == 5  # no tests ran
    assert "Nothing was left out." not in done.stdout
    done = run_sample(tmp_path, "tests/test_sample.py::test_fast")
    assert "Nothing was left out." in done.stdout


def test_fast_tests_go_first_then_real_ones_then_the_cluster(tmp_path: Path) -> None:
    lines = run_sample(tmp_path, ci="true").stdout.splitlines()
    order = [line.split()[0].partition("::")[2] for line in lines if line.endswith("%]")]
    assert order == ["test_fast", "test_data", "test_program", "test_hosts"]


def test_groups_name_files_that_exist() -> None:
    source = (ROOT / "tests" / "conftest.py").read_text()
    starts = re.findall(r'^    "(tests/.*)": ', source, re.MULTILINE)
    assert starts
    assert [start for start in starts if not (ROOT / start).exists()] == []


def cluster_files(folder: Path) -> tuple[Path, Path]:
    """Write six tests on hosts and six on pods; each writes a file that names its process."""
    hosts = folder / "tests" / "cluster"
    pods = hosts / "kube"
    for place in (hosts, pods):
        place.mkdir(parents=True)
        (place / f"test_{place.name}.py").write_text(
            "from pathlib import Path\nimport pytest\n\n"
            '@pytest.mark.parametrize("n", range(6))\n'
            "def test_it(n, request):\n"
            '    process = getattr(request.config, "workerinput", {}).get("workerid", "gw0")\n'
            '    (Path(__file__).parent / process).write_text("was here")\n'
        )
    return hosts, pods


def test_tests_that_share_a_cluster_are_all_in_one_process(tmp_path: Path) -> None:
    hosts, pods = cluster_files(tmp_path)
    done = run_sample(tmp_path, *PARALLEL)
    assert done.returncode == 0, done.stdout
    assert "16 items" in done.stdout
    (one,), (other,) = hosts.glob("gw*"), pods.glob("gw*")
    assert one.name != other.name


def test_each_cluster_is_in_exactly_one_shard(tmp_path: Path) -> None:
    hosts, pods = cluster_files(tmp_path)
    ran: list[str] = []
    for number in (1, 2):
        shard = f"{number}/2"
        done = run_sample(tmp_path, *APART, "-m", "cluster", "--shard", shard)
        assert done.returncode == 0, done.stdout
        assert "left out: in another shard" in done.stdout
        for place in (hosts, pods):
            files = list(place.glob("gw*"))
            ran += [place.name] * len(files)
            for file in files:
                file.unlink()
    assert sorted(ran) == ["cluster", "kube"]


def test_a_shard_leaves_other_tests_as_they_are(tmp_path: Path) -> None:
    done = run_sample(tmp_path, "--shard", "2/2")
    assert done.returncode == 0
    assert "1 passed, 2 skipped" in done.stdout


@pytest.mark.parametrize("shard", ["0/2", "3/2", "one/two"])
def test_a_shard_that_does_not_exist_is_refused(tmp_path: Path, shard: str) -> None:
    assert run_sample(tmp_path, "--shard", shard).returncode == 4
