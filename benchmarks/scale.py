"""Simulate runs on up to 4,000 A4 hosts, and measure their evidence, their log and their time.

The coordinator is real: its waves, records, health sweeps, judgements, archives and log. Hosts and
executions are simulated: each log is one of a real run on this machine, with its lines about a rank
or a host repeated for all ranks and hosts. These logs have no GPUs, so each step reports problems.
The estimate of the plan is for a run without problems, which has a shorter log.

The time of a run is the estimate of the plan, and the CPU time of the coordinator on top. A real
coordinator does most of its work while hosts measure, so this is an upper bound.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from accept.core import evidence
from accept.core.checks import parse_log
from accept.core.errors import Exit
from accept.core.groups import Group, Wave
from accept.core.plan import Step
from accept.core.records import Record
from accept.core.runner import coordinator
from accept.core.runner.discovery import Candidate, Found
from accept.core.runner.launch import Launch
from accept.core.runner.ssh import Answer, Host
from accept.core.runner.state import Run
from accept.core.serde import dump
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve
from accept.plan.sizes import Sizes, sizes
from benchmarks import Row

GPUS = 8


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A simulated run, and the minutes that it may take."""

    suite: str
    nodes: int
    minutes: float | None = None


_CASES = (
    _Case(suite="standard", nodes=1000),
    _Case(suite="quick", nodes=1000, minutes=12),
    _Case(suite="quick", nodes=4000, minutes=20),
)
_RANK_LINE = re.compile(r'"rank":0\b|#  Rank  0 ')
_OTHER_RANK = re.compile(r'"rank":[1-9]|#  Rank  [1-9]')


class _Logs:
    """The logs of a real run, by the checks of their steps."""

    def __init__(self, run: Path) -> None:
        records = tuple(evidence.read_records(run))
        self._lines = {
            record.checks: (run / record.log).read_text(encoding="utf-8").splitlines(keepends=True)
            for record in records
            if record.log
        }
        (self._host,) = {host for record in records for host in record.hosts}

    def of(self, checks: Sequence[str], hosts: Sequence[str], ranks: int) -> Iterator[str]:
        """Yield the lines of an execution with `ranks` on each host."""
        found = (lines for known, lines in self._lines.items() if set(checks) <= set(known))
        for line in next(found):
            if _OTHER_RANK.search(line):
                continue
            if _RANK_LINE.search(line):
                for number, host in enumerate(hosts):
                    for rank in range(number * ranks, (number + 1) * ranks):
                        named = line.replace(f'"{self._host}"', f'"{host}"')
                        named = named.replace(f" {self._host} ", f" {host} ")
                        named = named.replace("Rank  0 ", f"Rank {rank:2d} ")
                        yield named.replace('"rank":0', f'"rank":{rank}')
            elif f'"{self._host}"' in line:
                for host in hosts:
                    yield line.replace(f'"{self._host}"', f'"{host}"')
            else:
                yield line


def _real_run(folder: Path) -> Path:
    """Return the evidence of `standard` on this machine."""
    command = [sys.executable, "-m", "accept", "run", "--suite", "standard"]
    subprocess.run(command, env={**os.environ, "ACCEPT_RUNS": str(folder)}, check=False)
    (found,) = folder.glob("*/evidence")
    return found


def _simulate(folder: Path, logs: _Logs, nodes: int) -> float:
    """Run the coordinator in `folder`; return the CPU time without that of the simulation."""
    names = [f"gke-a4-pool-{number // 16:03d}-{number:04d}" for number in range(nodes)]
    simulated = 0.0

    def text_of(checks: Sequence[str], hosts: Sequence[str], ranks: int) -> str:
        nonlocal simulated
        before = time.process_time()
        text = "".join(logs.of(checks, hosts, ranks))
        simulated += time.process_time() - before
        return text

    async def discover(*_: object, **__: object) -> Found:
        hosts = tuple(
            Host(name=name, mpi_name=name, address="::1", port=1, slots=GPUS, local=True)
            for name in names
        )
        return Found(hosts=hosts, problems=(), facts=(), metrics=())

    async def ask(_: Run, host: Host, *__: object, **___: object) -> Answer:
        text = text_of(("health",), (host.name,), GPUS)
        return Answer(exit=0, out=f"alive\n{text}".encode())

    async def execute_wave(
        state: Run, step: Step, number: int, wave: Wave, *_: object
    ) -> tuple[Record, ...]:
        return tuple(
            _execute(state, step, number, index, group) for index, group in enumerate(wave)
        )

    def _execute(state: Run, step: Step, wave: int, index: int, group: Group) -> Record:
        ranks = len(group.local_ranks) or GPUS
        log = evidence.log_path(step, wave, index)
        (state.evidence / log).parent.mkdir(parents=True, exist_ok=True)
        evidence.write(state.evidence / log, text_of(step.checks, group.hosts, ranks))
        parsed = parse_log(step.checks, evidence.open_log(state.evidence, log) or (), group.hosts)
        record = Record(
            step=step.id,
            checks=step.checks,
            wave=wave,
            group=index,
            hosts=group.hosts,
            local_ranks=group.local_ranks,
            ranks=len(group.hosts) * ranks,
            exit=0,
            start=time.time(),
            end=time.time(),
            log=log,
            metrics=parsed.metrics,
            facts=parsed.facts,
            problems=parsed.problems,
        )
        return state.keep(record)

    with (
        mock.patch.object(coordinator, "discover", discover),
        mock.patch.object(coordinator, "execute_wave", execute_wave),
        mock.patch.object(coordinator, "waves_again", return_value=()),
        mock.patch.object(coordinator, "_set_aside_faulty_hosts"),
        mock.patch.object(coordinator, "_stop_unless_all_ranks"),
        mock.patch.object(Run, "ask", ask),
    ):
        if asyncio.run(coordinator.coordinate(folder)) == Exit.INTERRUPTED:
            raise RuntimeError("the coordinator was interrupted: see its log")
    return time.process_time() - simulated


def _prepared(folder: Path, case: _Case) -> tuple[Sizes, float]:
    """Write the folder of the coordinator; return the plan's estimates: sizes, and seconds."""
    site = folder / "site.yaml"
    site.write_text("kubernetes:\n  image: registry.example/accept:1\n")
    run = resolve(
        Options(machine="a4-highgpu-8g", nodes=case.nodes, suite=case.suite, site=str(site))
    )
    node = folder / "node"
    node.mkdir()
    render(run).write(node)
    plan = replace(run.plan, deadline_seconds=1e6)
    evidence.write(node / evidence.PLAN, json.dumps(dump(plan)))
    launch = Launch(attempt="a1", hosts=(Candidate(name="h0", local=True),), start_seconds=1e6)
    evidence.write(node / evidence.HOSTS, json.dumps(dump(launch)))
    expected = sizes(run.plan)
    assert expected is not None
    return expected, sum(step.estimate for step in run.plan.steps)


def rows() -> list[Row]:
    """Measure each case in a separate process, which runs only the coordinator."""
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as scratch:
        real = os.environ.get("ACCEPT_BENCH_LOGS") or str(_real_run(Path(scratch)))
        return [row for case in _CASES for row in _rows(case, real)]


def _rows(case: _Case, real: str) -> list[Row]:
    """Measure one simulated run with the logs of the evidence `real`."""
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as scratch:
        folder = Path(scratch)
        expected, planned = _prepared(folder, case)
        command = [sys.executable, "-m", "benchmarks.scale", str(folder / "node"), real]
        with (folder / "log").open("wb") as log:
            done = subprocess.run(
                [*command, str(case.nodes)],
                check=False,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
            )
        if done.returncode:
            raise RuntimeError(done.stderr)
        used = json.loads(done.stderr.splitlines()[-1])
        files = [path for path in (folder / "node" / "evidence").rglob("*") if path.is_file()]
        sized = {path.name: path.stat().st_size for path in files}
        log_size = (folder / "log").stat().st_size
    total = sum(sized.values())
    minutes = (planned + used["seconds"]) / 60
    return [
        Row(
            what=f"`{case.suite}` on {case.nodes:,} simulated hosts: "
            f"evidence of {expected.executions:,} executions",
            measured=f"{total / 1e6:.0f} MB in {len(files)} files",
            yardstick=f"estimate {expected.evidence / 1e6:.0f} MB",
            ratio=total / expected.evidence,
        ),
        Row(what="… of it records", measured=f"{sized[evidence.RECORDS] / 1e6:.0f} MB"),
        Row(
            what="… log of the first host",
            measured=f"{log_size / 1e3:.0f} kB",
            yardstick=f"estimate {expected.log / 1e3:.0f} kB",
            ratio=log_size / expected.log,
        ),
        Row(what="… time of the coordinator", measured=f"{used['seconds']:.0f} s of CPU"),
        Row(what="… memory", measured=f"{used['megabytes']:.0f} MB"),
        Row(
            what="… time of the run",
            measured=f"{minutes:.1f} min",
            yardstick=f"plan {planned / 60:.1f} min",
            bar="" if case.minutes is None else f"{case.minutes:.0f} min",
            met=None if case.minutes is None else minutes <= case.minutes,
        ),
    ]


def main(folder: Path, real: Path, nodes: int) -> None:
    """Simulate a run, and print the CPU time and the peak memory to stderr."""
    seconds = _simulate(folder, _Logs(real), nodes)
    used = {
        "seconds": seconds,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    sys.stderr.write(json.dumps(used) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
