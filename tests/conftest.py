"""Order of the tests, honesty about those left out, and fixtures that several files use.

Fast tests go first, then those marked `real`, then those marked `cluster`; everything below
tests/cluster carries that mark. With several processes (`-n 3 --dist loadscope`, as CI has them)
two have the tests on a Kubernetes, each its own, one those on hosts, and whoever is free the rest,
one by one: the first three wait much, so this helps on two cores as well. What was left out is
listed at the end with its reason. Where CI=true, leaving out a test that carries either mark is a
failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

CLUSTER = Path(__file__).parent / "cluster"
#: How the names of tests begin that share one Kubernetes, or the room for many hosts. There are
#: two of the first, as one would take longer than all the rest; two files share nothing.
_SHARED = (
    ("tests/cluster/kube/test_drill.py", "tests/cluster/kube/test_broken_pods.py"),
    ("tests/cluster/kube/",),
    ("tests/cluster/test_bare.py",),
    ("tests/cluster/test_kube_leaves_nothing.py",),
    ("tests/cluster/",),
)
#: Whether leaving out a real test is a failure.
STRICT = os.environ.get("CI") == "true"

# Where whoever started the tests ignores Ctrl-C (nohup, a job in the background), what is started
# here would ignore it too, and some of it is there to be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two cores shared with real programs: how long one example takes says nothing.
settings.register_profile(
    "here", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=STRICT
)
settings.load_profile("here")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the values of a run to a file, as tests.chartcases.values does."""
    from tests.chartcases import values

    return lambda *args, **options: values(tmp_path, *args, **options)


@pytest.fixture
def run_extra() -> None:
    """Skips where this machine cannot measure itself."""
    beside = Path(sys.executable).parent
    if not (shutil.which("mpirun", path=beside) and find_spec("torch") and find_spec("mpi4py")):
        pytest.skip("no Open MPI, mpi4py and torch beside this Python: the extra `run`")


@pytest.fixture(params=[3, 4], ids=["helm3", "helm4"])
def major(request: pytest.FixtureRequest) -> int:
    """Each helm there is, by the first number of its version."""
    from tests.helm import helm

    helm(request.param)
    return int(request.param)


def _rank(item: pytest.Item) -> int:
    """Return 0 for a fast test, 1 for `real`, 2 for `cluster`."""
    if item.get_closest_marker("cluster"):
        return 2
    return 1 if item.get_closest_marker("real") else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CLUSTER in item.path.parents:
            item.add_marker("cluster")
    items.sort(key=_rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share a cluster are one piece of work, begun first; each other is one itself."""
    from xdist.scheduler import LoadScopeScheduling

    class ClustersWhole(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((names[0] for names in _SHARED if nodeid.startswith(names)), nodeid)

    return ClustersWhole(config, log)


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that keeps the reason."""
    report.outcome = "failed"
    report.longrepr = f"CI=true, and left out: {_reason(report)}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test was skipped, as it said."""
    where = report.longrepr
    return where[2].removeprefix("Skipped: ") if isinstance(where, tuple) else str(where)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if STRICT and report.skipped and not hasattr(report, "wasxfail") and _rank(item):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if STRICT and report.skipped and CLUSTER in collector.path.parents:
        _refuse(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out and why, grouped by reason."""
    left_out: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        left_out[_reason(report)].append(report.nodeid)
    for item in terminalreporter.stats.get("deselected", []):
        left_out["not selected by the options given"].append(item.nodeid)
    # Of several processes none tells what it did not select.
    options = terminalreporter.config.option
    if getattr(options, "dist", "no") != "no" and (options.keyword or options.markexpr):
        terminalreporter.write_line("What -k and -m do not select was left out.")
    elif not left_out:
        terminalreporter.write_line("Nothing was left out.")
    if not left_out:
        return
    terminalreporter.section("left out")
    for reason, tests in sorted(left_out.items()):
        terminalreporter.write_line(f"{len(tests)} left out: {reason}")
        for test in tests[:5]:
            terminalreporter.write_line(f"    {test}")
        if len(tests) > 5:
            terminalreporter.write_line(f"    and {len(tests) - 5} more")
