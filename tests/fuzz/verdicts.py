"""Judge intact and damaged inputs, and compare: damage accuses nobody, and makes nothing pass."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests.factories import nccl_logs, sample_evidence, simulated_evidence
from tests.factories.simulated_worlds import BY_NAME
from tests.fuzz import Broken

from accept import config
from accept.commands.judged import Judged, judge_paths
from accept.core import evidence
from accept.core.plan import Reference
from accept.core.verdict import State
from accept.foreign_logs import to_run


class Input(NamedTuple):
    """An input, and the intact inputs that may explain its verdict; if none, it may have none."""

    raw: bytes
    intact: tuple[bytes, ...] = ()


class Judgement(NamedTuple):
    """The parts of the verdicts on an input that damage must not change for the worse."""

    states: tuple[str, ...] = ()
    #: The hosts that a suspect names.
    accused: frozenset[str] = frozenset()
    #: The hosts that a failure names, whether they are accused or something exonerates them.
    failed: frozenset[str] = frozenset()
    #: The hosts of logs that are not those of a run.
    of_logs: frozenset[str] = frozenset()

    @property
    def passes(self) -> bool:
        """Return True if a run is accepted."""
        return State.PASS in self.states

    @property
    def outcome(self) -> str:
        """Return a few words for the table of outcomes."""
        return ", ".join(sorted({*self.states})) + " with suspects" * bool(self.accused)


def judgement_of(judged: Iterable[Judged]) -> Judgement:
    """Return what must not change of these verdicts."""
    all_of = [*judged]
    problems = (p for one in all_of for record in one.records for p in record.problems)
    suspects = (suspect for one in all_of for suspect in one.verdict.suspects)
    return Judgement(
        states=tuple(one.verdict.state for one in all_of),
        accused=frozenset(host for suspect in suspects for host in suspect.hosts),
        failed=frozenset(problem.host for problem in problems if problem.host),
        of_logs=frozenset(h for one in all_of if one.plan.origin for h in one.verdict.hosts),
    )


def compare(found: Judgement, intact: Iterable[Judgement]) -> None:
    """Raise Broken if it accuses a host that no intact input accuses, or passes and none does.

    The damage may have been sealed again: then whoever controls the files made it, and figures that
    fit each other can be false. But random damage changes a log or its record, and not both alike,
    so each new accusation comes from damage that a reader did not recognize. Logs alone have no
    list of hosts, so a damaged name in the line of a failure looks like one, but is nobody's.
    """
    known = [*intact]
    new = found.accused.difference(*(one.accused | one.failed for one in known))
    if found.of_logs:
        new &= frozenset().union(*(one.of_logs for one in known))
    if new:
        raise Broken(f"accused of damage: {', '.join(sorted(new))}")
    if found.passes and not any(one.passes for one in known):
        raise Broken("a pass that no intact input has")


#: The machines that we ship do not change.
_NAMES = functools.cache(config.names)


_expected = to_run._expected


@functools.cache
def _expected_of(*names: str) -> tuple[Reference, ...]:
    return _expected([config.load_machine(name).value for name in names])


def judge(path: Path) -> list[Judged]:
    """Judge what is at a path, as `accept judge` does. Raises AcceptError."""
    with (
        mock.patch.object(config, "names", _NAMES),
        mock.patch.object(to_run, "_expected", lambda of: _expected_of(*(m.name for m in of))),
    ):
        return judge_paths((str(path),))


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Work in an empty folder: no run, no home, no cluster, and no program can be started."""
    names = {"HOME": "home", "ACCEPT_RUNS": "runs", "KUBECONFIG": "none", "XDG_STATE_HOME": "s"}
    missing = FileNotFoundError(2, "No such file or directory", "program")
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {k: str(folder / v) for k, v in names.items()}),
        mock.patch.object(subprocess.Popen, "__init__", side_effect=missing),
        mock.patch.object(subprocess.Popen, "__del__", return_value=None),
    ):
        yield


#: Logs of one node that passes, and of two; the first of these has a GPU that failed.
PASSED_LOG = nccl_logs.table("all_reduce", ("good1",), range(8), 480.0).encode()
FAILED_LOG = (
    nccl_logs.table("all_reduce", ("bad1", "bad2"), range(8), 320.0)[:2500]
    + "\nbad1: Test NCCL failure all_reduce.cu:95 'unhandled cuda error'\n"
    + "bad1:12:34 [3] NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n"
).encode()


@functools.cache
def runs() -> tuple[dict[str, bytes], ...]:
    """Return the files of small runs: one that passes, one with a bad node, one of a script.

    The first has some logs in an archive. The last has a version that did not verify the hash of
    the plan, so that damaged plans are judged, too.
    """
    with tempfile.TemporaryDirectory() as scratch:
        passes, bad_node, script = (
            Path(scratch, name) for name in ("passes", "bad-node", "script")
        )
        for folder, world, count in ((passes, "w0", 2), (bad_node, "node-50", 3)):
            cluster = BY_NAME[world].cluster(count, count, seed=1)
            simulated_evidence.write(folder, cluster, rounds=count, name=folder.name)
        evidence.archive_logs(passes, "20-all-reduce")
        sample_evidence.write(script)
        shutil.rmtree(script / evidence.COLLECTORS)
        for folder in (passes, script):
            evidence.write_checksums(folder)
        return tuple(map(_files_of, (passes, bad_node, script)))


def _files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write(files: dict[str, bytes], folder: Path) -> None:
    """Write files with these names."""
    for name, raw in files.items():
        target = folder / name
        # One of the names may be a folder of another.
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)
