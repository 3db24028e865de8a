"""Order and shards of the tests, the list of tests left out, and fixtures that several files use.

Fast tests go first, then those marked `real`, then those marked `cluster`; everything below
tests/cluster carries that mark. The promises come last, because they are about the runs that the
others leave behind; `make test` starts them in a second process (`--promises only`).
Tests that share a cluster are one group: with several processes (`-n 5 --dist loadgroup`) one
process runs the whole group, and `--shard 1/2` selects whole groups.
With `--sample N`, a test marked `sampled` runs on at most N of its cases; `.ci/run` does that.
The end of the output lists what was left out, with the reason. With CI=true, skipping a test that
is marked `real` or `cluster` is a failure.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

CLUSTER = Path(__file__).parent / "cluster"
PROMISES = Path(__file__).parent / "promises"
#: The fixtures `dist`, `wheel` and `installed`. A test of the tests copies this file alone.
pytest_plugins = ("tests.factories.release",) if PROMISES.is_dir() else ()
#: Groups of tests that share one Kubernetes cluster, the memory for many hosts, or a built wheel,
#: by the start of their names; the first match counts. Kubernetes and the hosts have several
#: groups, because a single one would take longer than everything else.
_GROUPS = {
    "tests/cluster/kube/test_drill.py": "pods-2",
    "tests/cluster/kube/test_broken_pods.py": "pods-2",
    "tests/cluster/kube/": "pods",
    "tests/cluster/slurm/": "slurm",
    "tests/cluster/test_bare.py": "bare",
    "tests/cluster/test_kube_leaves_nothing.py": "pods-3",
    "tests/cluster/test_drill.py": "hosts-2",
    "tests/cluster/test_paths.py": "hosts-2",
    "tests/cluster/test_suspects.py": "hosts-2",
    "tests/cluster/": "hosts",
    "tests/repository/test_wheel.py": "wheel",
    "tests/promises/test_docs.py": "wheel",
}
#: The groups that take minutes, the longest first.
_LONGEST = ("pods", "hosts", "pods-2", "hosts-2", "slurm")
#: Maximum number of names listed for one reason.
_NAMES_SHOWN = 5
#: Names of the tests that were collected and will not run, by reason.
_LEFT_OUT = pytest.StashKey[dict[str, list[str]]]()
#: If True, skipping a test that is marked `real` or `cluster` is a failure.
STRICT = os.environ.get("CI") == "true"

# If the caller ignores Ctrl-C (nohup, a job in the background), programs started here would inherit
# that, and some tests interrupt them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples share few cores with real programs, so their duration varies too much for a deadline.
settings.register_profile(
    "here", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=STRICT
)
# For other versions of Python (`--hypothesis-profile few`), because this one tests all examples.
settings.register_profile("few", settings.get_profile("here"), max_examples=4)
# For a full run of CI, whose other jobs and `make test` test all examples.
settings.register_profile("some", settings.get_profile("here"), max_examples=25)
settings.load_profile("here")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder of runs and of settings instead of the user's; return that of runs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, where commands write what is about evidence of others; return it."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return tests.factories.chart_runs.values with tmp_path as its folder."""
    from tests.factories.chart_runs import values

    return lambda *args, **options: values(tmp_path, *args, **options)


@pytest.fixture
def run_extra() -> None:
    """Skip the test if this Python environment lacks the extra `run`."""
    beside = Path(sys.executable).parent
    if not (shutil.which("mpirun", path=beside) and find_spec("torch") and find_spec("mpi4py")):
        pytest.skip("no Open MPI, mpi4py and torch beside this Python: the extra `run`")


@pytest.fixture(params=[3, 4], ids=["helm3", "helm4"])
def major(request: pytest.FixtureRequest) -> int:
    """Return the major version of a helm; the test runs once for each."""
    from tests.factories.helm import helm

    helm(request.param)
    return int(request.param)


@cache
def _is_below(folder: Path, path: Path) -> bool:
    return folder in path.parents


def _is_promise(item: pytest.Item) -> bool:
    """Return True for a test over the pool of runs."""
    return _is_below(PROMISES, item.path)


def _rank(item: pytest.Item) -> int:
    """Return 0 for a fast test, 1 for `real`, 2 for `cluster`."""
    if item.get_closest_marker("cluster"):
        return 2
    return 1 if item.get_closest_marker("real") else 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="run only part I of N of the cluster tests; tests that share a cluster stay together",
    )
    parser.addoption(
        "--reliability",
        action="store_true",
        help="run also the tests that are marked `reliability`, as `tests.reliability` does",
    )
    parser.addoption(
        "--sample",
        type=int,
        metavar="N",
        help="run at most N cases of each test that is marked `sampled`",
    )
    parser.addoption(
        "--promises",
        choices=("only", "no"),
        help="run only the tests of tests/promises, or all others, which fill their pool of runs",
    )


def _shard(text: str) -> tuple[int, int]:
    """Parse "I/N". Raises ValueError, which the option's parser reports."""
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(text)
    return number, count


def _group(nodeid: str) -> str:
    """Return the group of a test: of those that share a cluster, else of the cases of one test."""
    shared = (group for start, group in _GROUPS.items() if nodeid.startswith(start))
    return next(shared, nodeid.partition("[")[0])


def _outside_sample(items: list[pytest.Item], size: int) -> set[pytest.Item]:
    """Return the cases beyond `size` of each test that is marked `sampled`.

    If the mark names parameters, it is the cases beyond `size` of each value of the others.

    A hash of its name chooses a case, so the sample is the same everywhere, and a new case changes
    little of it.
    """
    cases: dict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            spec = getattr(item, "callspec", None)
            values = spec.params.items() if spec and mark.args else ()
            others = tuple(repr(value) for name, value in values if name not in mark.args)
            cases[item.nodeid.partition("[")[0], others].append(item)
    return {item for case in cases.values() for item in sorted(case, key=_hash)[size:]}


def _hash(item: pytest.Item) -> str:
    return hashlib.sha256(item.nodeid.encode()).hexdigest()


def _other_shards(items: list[pytest.Item], number: int, count: int) -> list[pytest.Item]:
    """Return the cluster tests that do not belong to shard `number`, which counts from 1.

    The promises belong to each shard, because its runs are others. The largest group goes first,
    always to the shard with the fewest tests so far.
    """
    items = [item for item in items if _rank(item) == 2 and not _is_promise(item)]
    sizes = Counter(_group(item.nodeid) for item in items)
    loads = [0] * count
    shard_of: dict[str, int] = {}
    for group, size in sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0])):
        shard_of[group] = loads.index(min(loads))
        loads[shard_of[group]] += size
    return [item for item in items if shard_of[_group(item.nodeid)] != number - 1]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even read what `--promises` excludes: reading all tests takes many seconds."""
    chosen = config.getoption("promises")
    if collection_path == PROMISES:
        return chosen == "no" or None
    return (
        chosen == "only"
        and PROMISES not in (collection_path, *collection_path.parents)
        and collection_path not in PROMISES.parents
    ) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _is_below(CLUSTER, item.path):
            item.add_marker("cluster")
        for mark in item.iter_markers("fault"):
            fault, back_end = mark.args
            item.user_properties.append(("cell", f"{fault.name} {back_end.name}"))
    if chosen := config.getoption("promises"):
        items[:] = [item for item in items if _is_promise(item) is (chosen == "only")]
    items.sort(key=lambda item: (_is_promise(item), _rank(item)))
    if not config.getoption("reliability"):
        rare = {item for item in items if item.get_closest_marker("reliability")}
        if rare:
            _note(config, "marked `reliability`: python -m tests.reliability", rare)
        items[:] = [item for item in items if item not in rare]
    if size := config.getoption("sample"):
        others = _outside_sample(items, size)
        if others:
            _note(config, "outside the sample: make test", others)
        items[:] = [item for item in items if item not in others]
    if shard := config.getoption("shard"):
        others = set(_other_shards(items, *shard))
        _note(config, "in another shard", others)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule each group as one piece of work, the longest first, and every other test alone.

    The groups of xdist do not work with pytest 9.2, which removed the attribute that they set.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class WholeGroups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            if group := next((one for one in _LONGEST if one in self.workqueue), None):
                self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

    return WholeGroups(config, log)


def _note(config: pytest.Config, reason: str, items: Iterable[pytest.Item]) -> None:
    """Record tests that were collected and will not run."""
    config.stash[_LEFT_OUT].setdefault(reason, []).extend(sorted(item.nodeid for item in items))


def pytest_deselected(items: list[pytest.Item]) -> None:
    for mark, rank in (("", 0), ("marked `real`, ", 1), ("marked `cluster`, ", 2)):
        if named := [item for item in items if _rank(item) == rank]:
            _note(named[0].config, f"{mark}not selected by the options given", named)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEFT_OUT] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the list of an xdist worker to the process that reports."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[_LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the list of one xdist worker; all have the same, as each collects all tests."""
    node.config.stash[_LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", {}))


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that keeps the reason."""
    report.outcome = "failed"
    report.longrepr = f"CI=true, and left out: {_reason(report)}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason that a test gave when it was skipped."""
    where = report.longrepr
    return where[2].removeprefix("Skipped: ") if isinstance(where, tuple) else str(where)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Leave the finished runs of a test in the pool, before its fixtures remove them."""
    place = getattr(item, "funcargs", {}).get("tmp_path")
    if place is not None and item.config.getoption("promises") == "no":
        from tests.promises.pool import leave_behind

        leave_behind(place, "cluster" if _rank(item) == 2 else "real")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A promise leaves out the runs of the pool that it does not apply to.
    may_not_skip = STRICT and _rank(item) and not _is_promise(item)
    if may_not_skip and report.skipped and not hasattr(report, "wasxfail"):
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
    """List what was left out, by reason, with the number of tests."""
    config = terminalreporter.config
    left_out = {reason: list(names) for reason, names in config.stash[_LEFT_OUT].items()}
    for report in terminalreporter.stats.get("skipped", []):
        left_out.setdefault(_reason(report), []).append(report.nodeid)
    if not left_out:
        terminalreporter.write_line("Nothing was left out.")
        return
    terminalreporter.section("left out")
    for reason, repeated in sorted(left_out.items()):
        # If a whole file is skipped, every xdist worker reports it.
        names = list(dict.fromkeys(repeated))
        terminalreporter.write_line(f"{len(names)} left out: {reason}")
        for name in names[:_NAMES_SHOWN]:
            terminalreporter.write_line(f"    {name}")
        if len(names) > _NAMES_SHOWN:
            terminalreporter.write_line(f"    and {len(names) - _NAMES_SHOWN} more")
