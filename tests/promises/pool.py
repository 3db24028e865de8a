"""Collect the pool: finished runs of all kinds, over which the tests of this folder state promises.

Some are made offline: the demo, invented evidence, simulated clusters, public logs. The other tests
leave theirs behind: after each test, `leave_behind` copies the finished runs in its temporary
folder to `build/pool`. So a new back end or check is in the pool as soon as a test runs it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from pathlib import Path
from uuid import uuid4

from tests.factories.paths import ROOT, TESTS

from accept.config.resources import demo

_BUILD = ROOT / "build"
#: Runs that tests left behind, by the mark of these tests: `real` or `cluster`.
LEFT_BEHIND = _BUILD / "pool"
#: Runs made offline, by the hash of what they are made of.
_OFFLINE = _BUILD / "pool-offline"
#: More logs, if they are in a folder beside the checkout.
_SHARED = ROOT.parent / "shared" / "data"
#: Limits of what is kept of the runs that tests leave behind.
_MAX_RUNS, _MAX_BYTES, _MAX_FILES = 40, 4 << 20, 400
#: A temporary folder is searched for runs to this depth: FOLDER/runs/DRILL/ATTEMPT.
_MAX_DEPTH = 4


class Kind(Enum):
    """The contents of the folder of a run."""

    #: Evidence that `accept` wrote.
    EVIDENCE = "evidence"
    #: Logs of nccl-tests that it did not start.
    LOGS = "logs"


@dataclass(frozen=True, kw_only=True)
class PooledRun:
    """A finished run, or logs of one. Copy its folder before you change anything in it."""

    name: str
    kind: Kind
    #: Options that `accept judge` needs for it.
    options: tuple[str, ...] = ()
    #: `real` or `cluster` if a test with this mark left it behind; empty: it is made offline.
    mark: str = ""
    _make: Callable[[Path], object] | None = field(default=None, repr=False)
    _place: Path | None = None

    @property
    def folder(self) -> Path:
        """Return the folder with the evidence or the logs; it is made on first use."""
        if self._place is not None:
            return self._place
        assert self._make is not None
        return _made(self.name, self._make)

    @property
    def machine(self) -> str | None:
        """Return the machine that `accept judge` needs for it; None: that of its evidence."""
        return self.options[self.options.index("--machine") + 1] if self.options else None

    def __str__(self) -> str:
        """Return the name, which pytest shows for a parameter."""
        return self.name


def runs(*kinds: Kind) -> tuple[PooledRun, ...]:
    """Return the runs of these kinds, all by default, for `pytest.mark.parametrize`."""
    return tuple(run for run in _all() if not kinds or run.kind in kinds)


@cache
def _all() -> tuple[PooledRun, ...]:
    return (*_offline(), *_logs(), *_left_behind())


# Runs that are made offline.


def _offline() -> Iterator[PooledRun]:
    def run(name: str, make: Callable[[Path], object]) -> PooledRun:
        return PooledRun(name=name, kind=Kind.EVIDENCE, _make=make)

    yield run("demo", partial(_recorded, archive=demo()))
    yield run("script", _script)
    yield run("script-failed", partial(_script, status=3))
    yield run("interrupted", partial(_script, interruption="the user ended it"))
    for world in (
        "w0",
        "node-50",
        "leaf",
        "border-50",
        "rail",
        "node-dead",
        "apart-15",
        "two-nodes",
    ):
        yield run(f"simulated-{world}", partial(_simulated, world=world))
    for path in sorted((TESTS / "data" / "gpu").glob("*/run-*.tar.gz")):
        name = f"recorded-{path.parent.name}-{path.name.removesuffix('.tar.gz')}"
        yield run(name, partial(_recorded, archive=path))


def _recorded(folder: Path, *, archive: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder.parent, filter="data")


def _script(folder: Path, *, status: int = 0, interruption: str = "") -> None:
    from tests.factories import sample_evidence

    sample_evidence.write(
        folder, plan=sample_evidence.PLAN, status=status, interruption=interruption
    )


def _simulated(folder: Path, *, world: str) -> None:
    from tests.factories import simulated_evidence, simulated_worlds

    cluster = simulated_worlds.BY_NAME[world].cluster(24, 5, seed=1)
    simulated_evidence.write(folder, cluster, rounds=5, name=f"simulated-{world}")


def _logs() -> Iterator[PooledRun]:
    data = TESTS / "data"
    for place in (data, _SHARED):
        if (place / "nccl-logs").is_dir():
            name = "public-logs" if place == data else "more-public-logs"
            options = ("--machine", "h100-8")
            yield PooledRun(name=name, kind=Kind.LOGS, options=options, _place=place / "nccl-logs")
    for folder in (data / "published-logs", _SHARED / "wild-logs"):
        for path in sorted(folder.glob("*.log")):
            if path.name not in _UNREADABLE:
                name = f"{folder.name}-{path.stem}"
                yield PooledRun(name=name, kind=Kind.LOGS, _make=partial(_alone, log=path))


#: Files beside the logs that `accept judge` refuses: no nccl-tests, no result, or a benchmark
#: without a check.
_UNREADABLE = ("aws-nccom-slurm.log", "23.log", "29.log", "35.log", "43.log", "51.log")


def _alone(folder: Path, *, log: Path) -> None:
    folder.mkdir()
    shutil.copy(log, folder)


@cache
def _source_hash() -> str:
    """Return a hash of everything that the runs made offline depend on."""
    digest = hashlib.sha256()
    for folder in (ROOT / "cli" / "accept", ROOT / "values", TESTS / "factories"):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def _made(name: str, make: Callable[[Path], object]) -> Path:
    """Make a run, unless it was made from the same sources before; return its folder."""
    place = _OFFLINE / _source_hash() / name
    folder = place / "evidence"
    if place.is_dir():
        return folder
    with _locked():
        if not place.is_dir():
            _remove_others(place.parent)
            new = place.with_name(f".new-{name}")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            make(new / "evidence")
            new.rename(place)
    return folder


def _remove_others(current: Path) -> None:
    for path in _OFFLINE.iterdir():
        if path.is_dir() and path != current:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked() -> Iterator[None]:
    """Keep out other processes that make runs: the workers of xdist."""
    _OFFLINE.mkdir(parents=True, exist_ok=True)
    with (_OFFLINE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Runs that other tests leave behind.


def _left_behind() -> Iterator[PooledRun]:
    for mark in ("real", "cluster"):
        for path in sorted((LEFT_BEHIND / mark).glob("[!.]*")):
            yield PooledRun(name=path.name, kind=Kind.EVIDENCE, mark=mark, _place=path / "evidence")


def leave_behind(place: Path, mark: str) -> None:
    """Copy the finished runs below a temporary folder into the pool.

    One run is kept of those that differ in nothing but names and figures. Evidence that a test has
    changed is left out.
    """
    for run in _found(place):
        new = LEFT_BEHIND / mark / f".new-{uuid4().hex}"
        # A test may have damaged its run, or its processes still write to it.
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            target = new.with_name(_name(run))
            if target.exists() or _is_full() or not _is_small(run) or not _is_unmodified(run):
                continue
            shutil.copytree(run, new, symlinks=True)
            new.rename(target)
        shutil.rmtree(new, ignore_errors=True)


def _found(place: Path) -> Iterator[Path]:
    """Yield the folders of finished runs of a back end."""
    for top, folders, files in os.walk(place):
        here = Path(top)
        if "job.json" in files and (here / "evidence" / "SHA256SUMS").is_file():
            yield here
            folders.clear()
        if len(here.relative_to(place).parts) >= _MAX_DEPTH:
            folders.clear()


def _name(run: Path) -> str:
    """Return back end, state, nodes and causes of a run, and a hash of these and of its checks."""
    job = json.loads((run / "job.json").read_text())
    verdict = json.loads((run / "evidence" / "verdict.json").read_text())
    found = (finding for check in verdict["checks"] for finding in check["findings"])
    causes = sorted({finding.get("cause") or "" for finding in found} - {""})
    checks = [(check["check"], check["state"]) for check in verdict["checks"]]
    nodes = len(verdict["hosts"])
    words = [job["backend"], verdict["state"], str(nodes), *causes[:2]]
    key = json.dumps([*words, *causes, *checks, verdict.get("injected")])
    return f"{'-'.join(words)}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _is_full() -> bool:
    return sum(1 for _ in LEFT_BEHIND.glob("*/[!.]*")) >= _MAX_RUNS


def _is_small(run: Path) -> bool:
    sizes = [path.lstat().st_size for path in run.rglob("*") if path.is_file()]
    return sum(sizes) <= _MAX_BYTES and len(sizes) <= _MAX_FILES


def _is_unmodified(run: Path) -> bool:
    """Return True if the files are those of SHA256SUMS, compared without the product's code."""
    evidence = run / "evidence"
    sums = (evidence / "SHA256SUMS").read_bytes()
    # A test may have written new checksums; the run knows the hash of those that were fetched.
    fetched = json.loads((run / "job.json").read_text()).get("evidence")
    if fetched and hashlib.sha256(sums).hexdigest() != fetched:
        return False
    listed = set[str]()
    for line in sums.decode().splitlines():
        digest, _, name = line.partition("  ")
        path = evidence / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return False
        listed.add(name)
    folders = {name.partition("/")[0] for name in listed if "/" in name}
    added = (path for folder in folders for path in (evidence / folder).rglob("*"))
    return all(path.is_dir() or str(path.relative_to(evidence)) in listed for path in added)
