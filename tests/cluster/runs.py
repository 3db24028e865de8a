"""Runs of the product over test hosts, started and read like a user at the workstation does.

lab = Lab(hosts, folder)
done = lab.run("--inject", "hang@h3:0")
assert done.suspects == {("h3", "rank-hung")}
lab.nothing_is_left()
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Hosts
from tests.factories.command_line import accept
from tests.factories.paths import ROOT

REPOSITORY = ROOT
VENV = Path(sys.prefix)
#: With Open MPI 4.1; made by `make setup`.
VENV_MPI4 = REPOSITORY / ".venv-mpi4"
#: What one run may take at most before a test gives up on it: many times what it takes.
PATIENCE = 900.0

#: One rank a host, so that two cores carry eight hosts; sizes at which the link is what counts.
MACHINE = """\
name: test-cpu
description: One rank a host, for the tests.
gpus: {count: 0}
ranksPerNode: 1
speedPromised: false
parameters:
"""
#: `accept watch` collects the run at its end.
FOLLOW = """
import pathlib, sys
from accept import backends
folder = pathlib.Path(sys.argv[1])
job = backends.load_job(folder)
sys.exit(backends.load(job.backend).watch(job, folder=folder, say=print, log=print))
"""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")
SIZES = "{min: 4K, max: 1M, factor: 16}"

#: Fragments of suites.
CONNECT = ["check: connectivity, params: {pings: 5}"]
ALL_REDUCE = ["check: all-reduce, groups: all, timeout: 4m, params: {iters: 4, warmup: 1}"]
PAIRS = ["check: all-reduce, groups: pairs, rounds: 3, timeout: 4m, params: {iters: 8, warmup: 1}"]
#: Each round costs every host a start of torch; naming one takes several.
ONE_ROUND = [PAIRS[0].replace("rounds: 3", "rounds: 1")]
EVERYTHING = [
    "check: inventory",
    "check: health",
    *CONNECT,
    *(
        f"check: {name}, groups: all, timeout: 6m, params: {{iters: 4, warmup: 1}}"
        for name in COLLECTIVES
    ),
    *ONE_ROUND,
    "check: train, timeout: 6m, params: {steps: 40}",
]
#: Long enough for something to happen meanwhile, and with an end.
LONG = [*CONNECT, "check: all-reduce, groups: all, timeout: 6m, params: {iters: 400}"]
#: With the most repetitions that a plan may have: minutes, even on one rank alone.
ENDLESS = [*CONNECT, "check: all-reduce, groups: all, timeout: 20m, params: {iters: 10000000}"]


def drilled(rounds: int, sizes: str = "min: 4K, max: 256K, factor: 8") -> list[str]:
    """Return the checks of a drill, with this many rounds of pairs; they detect any fault.

    By default at sizes at which what a fault costs is many times what a busy machine does.
    """
    sizes = f"timeout: 4m, params: {{{sizes}, iters: 8, warmup: 1}}"
    return [
        *CONNECT,
        f"check: all-reduce, groups: all, {sizes}",
        f"check: all-reduce, groups: pairs, rounds: {rounds}, {sizes}",
        "check: gemm, timeout: 4m, params: {seconds: 0.2, alone: 0}",
    ]


class Check(Enum):
    """Something that a test has checked after a run."""

    EVIDENCE = auto()
    NOTHING_LEFT = auto()


@dataclass(frozen=True, kw_only=True)
class Done:
    """The exit code and the output of a command."""

    exit: int
    out: str
    err: str
    #: By the monotonic clock, in seconds.
    ended: float

    @property
    def result(self) -> Any:
        """Return the parsed output of `--json`, the only text on stdout."""
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"exit {self.exit}, no JSON: {self.out}\n{self.err}") from None

    @property
    def suspects(self) -> set[tuple[str, str]]:
        """Return name and cause of each suspect."""
        return {(each["name"], each["cause"]) for each in self.result["suspects"]}

    @property
    def suspected(self) -> list[set[str]]:
        """Return the nodes of each suspect: two for a link between them."""
        return [set(each["hosts"]) for each in self.result["suspects"]]

    @property
    def named(self) -> set[str]:
        """Return the nodes of all suspects."""
        return set().union(*self.suspected)

    @property
    def ending(self) -> tuple[str, int]:
        """Return the state of the verdict and the exit code."""
        assert self.result["exit"] == self.exit
        assert self.result["accepted"] == (self.exit == 0)
        return self.result["state"], self.exit

    def causes(self) -> set[str]:
        """Return the causes of all findings."""
        found = (f for check in self.result["checks"] for f in check["findings"])
        return {each["cause"] for each in found if each.get("cause")}


class Started:
    """A running command of the product, in its own session as on a terminal."""

    def __init__(self, words: list[str], environment: dict[str, str], place: Path) -> None:
        self._out, self._err = place.with_suffix(".out"), place.with_suffix(".err")
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def progress(self) -> str:
        """Return its progress so far."""
        return self._err.read_text()

    def wait_for(self, words: str, patience: float = PATIENCE) -> None:
        """Wait until its progress contains a text."""
        until(lambda: words in self.progress or self.process.poll() is not None, patience)
        assert words in self.progress, self.progress

    def interrupt(self) -> None:
        """Send Ctrl-C to all processes of its session, like a terminal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill it and all processes that it started here."""
        # After it is reaped, another process may have its number.
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait(self, patience: float = PATIENCE) -> Done:
        """Wait for its end; return its exit code and output."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {patience:.0f} s:\n{self.progress}") from None
        ended = time.monotonic()
        return Done(exit=code, out=self._out.read_text(), err=self.progress, ended=ended)


class Workstation:
    """A user's workstation: a site file, a machine file, the runs, and the commands started."""

    def __init__(
        self, folder: Path, *, site: str, environment: Mapping[str, str], noise: float = 0.08
    ) -> None:
        self.folder = folder
        self._started: list[Started] = []
        self.checked: set[Check] = set()
        self.runs = folder / "runs"
        self.machine = folder / "machine.yaml"
        sizes = "".join(f"  {name}: {SIZES}\n" for name in COLLECTIVES)
        self.machine.write_text(f"{MACHINE}{sizes}noise: {noise}\n")
        self.site = folder / "site.yaml"
        self.site.write_text(site)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("ACCEPT_")},
            "ACCEPT_RUNS": str(self.runs),
            "NO_COLOR": "1",
            **environment,
        }

    def suite(self, checks: Iterable[str]) -> Path:
        """Write a suite file; each check is the inside of a flow mapping."""
        path = self.folder / f"suite-{len(list(self.folder.glob('suite-*')))}.yaml"
        lines = "".join(f"  - {{{check}}}\n" for check in checks)
        path.write_text(f"name: test\ndescription: Of a test.\ndeadline: 30m\nchecks:\n{lines}")
        return path

    def command(self, *words: str) -> Started:
        """Start any command of the product."""
        place = self.folder / f"command-{len(self._started)}"
        started = Started([str(VENV / "bin" / "accept"), *words], self.environment, place)
        self._started.append(started)
        return started

    def close(self) -> None:
        """End all commands that still run."""
        for each in self._started:
            each.kill()

    def do(self, *words: str) -> Done:
        """Run a command of the product to its end."""
        return self.command(*words).wait()

    def wait_for_end(self) -> None:
        """Wait for the end of the only run, and collect nothing."""
        words = [str(VENV / "bin" / "python"), "-c", FOLLOW, str(self.runs / self.attempt())]
        subprocess.run(words, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def collected(self, node: str) -> dict[str, str]:
        """Return what the collectors print on a bad node of the last run now, by their names."""
        done = self.do("ticket", "last", node, "--collect", "--json")
        assert done.exit == 0, done.err
        with zipfile.ZipFile(done.result["archive"]) as archive:
            return {
                Path(name).stem: archive.read(name).decode()
                for name in archive.namelist()
                if f"/collectors/{node}/" in name
            }

    def evidence(self, attempt: str, drill: str = "") -> Path:
        """Return the collected evidence of a run, which can be part of a drill."""
        return self.runs / drill / attempt / "evidence"

    def attempt(self) -> str:
        """Return the name of the only attempt."""
        (folder,) = self.runs.iterdir()
        return folder.name

    def evidence_holds(self, done: Done, drill: str = "", *, bucket: bool = False) -> None:
        """Check that the evidence is complete and that judging it again gives the same verdict.

        So does the coordinator's saved console alone, unless the records went to a `bucket`.
        """
        folder = self.evidence(done.result["attempt"], drill)
        assert (folder / "SHA256SUMS").is_file()
        for place in (folder,) if bucket else (folder, folder / "console.log"):
            again = accept("judge", place, "--json")
            assert again.code == done.exit, again.err
            result = json.loads(again.out)
            # `judge` reports the figures too. Elsewhere nobody vouches for the evidence.
            assert {**result, **done.result, "verified": result["verified"]} == result
        self.checked.add(Check.EVIDENCE)


class Place(Workstation, ABC):
    """A workstation, and the nodes of a back end that its runs test."""

    #: Names of the nodes, as verdicts have them.
    names: tuple[str, ...]
    #: The last local rank of each node.
    last_rank = 0

    @abstractmethod
    def plan(self, checks: Iterable[str] = ()) -> list[str]:
        """Return the options for a run on all nodes."""

    @abstractmethod
    def measures(self, name: str) -> bool:
        """Return True if a rank of a collective runs on a node."""

    @abstractmethod
    def nothing_is_left(self, *, patience: float = 60.0) -> None:
        """Wait until nothing of a run is left on the nodes."""

    def nothing_runs(self) -> None:
        """Wait until nothing is left of a run that was ended, and remove nothing."""
        self.nothing_is_left()

    def start(self, *options: str, checks: Iterable[str] = ()) -> Started:
        """Start `accept run` on all nodes."""
        return self.command("run", *self.plan(checks), "--json", *options)

    def run(self, *options: str, checks: Iterable[str] = ()) -> Done:
        """Call `accept run` and wait for its end."""
        return self.start(*options, checks=checks).wait()

    def start_measuring(self, checks: Iterable[str]) -> Started:
        """Start `accept run`, and wait until a rank of a collective runs on the last node."""
        started = self.start(checks=checks)
        until(lambda: self.measures(self.names[-1]) or started.process.poll() is not None)
        return started


class Racks(Place):
    """Nodes that are hosts of this machine."""

    hosts: Hosts

    @abstractmethod
    def host(self, name: str) -> str:
        """Return the host that a node is."""

    @abstractmethod
    def boot(self, name: str) -> None:
        """Start a node again that has lost its power."""

    def measures(self, name: str) -> bool:
        """Return True if a rank of a collective runs on a node."""
        return bool(self.hosts.ranks(self.host(name)))


class Lab(Racks):
    """A workstation, its hosts, and the state of the hosts before the first run."""

    def __init__(self, hosts: Hosts, folder: Path, *, venv: Path = VENV) -> None:
        site = f"tools:\n  venv: {venv}\n"
        ssh = {"ACCEPT_SSH_CONFIG": str(hosts.ssh_config)}
        super().__init__(folder, site=site, environment=ssh)
        self.hosts = hosts
        self.names = hosts.names
        self.before = {name: self.look(name) for name in hosts.names if hosts.is_up(name)}

    def host(self, name: str) -> str:
        """Return the name unmodified."""
        return name

    def boot(self, name: str) -> None:
        """Start a host again that has lost its power."""
        self.hosts.start(name)

    def plan(self, checks: Iterable[str] = ()) -> list[str]:
        """Return the options for a run on the hosts in `names`: all of them by default."""
        return [
            *("--hosts", ",".join(self.names)),
            *("--machine", str(self.machine), "--site", str(self.site)),
            *("--suite", str(self.suite(checks or [*CONNECT, *PAIRS]))),
        ]

    # What is left behind.

    def look(self, name: str) -> tuple[list[str], tuple[str, ...], dict[str, str]]:
        """Return the state of a host: processes, listening ports, files."""
        commands = sorted(each.command for each in self.hosts.processes(name))
        return commands, self.hosts.listening(name), self.hosts.tree(name)

    def differs(self, names: Iterable[str] = ()) -> list[str]:
        """Return what differs from the state before, on the hosts that are up."""
        found = []
        for name in names or self.hosts.names:
            if not self.hosts.is_up(name):
                continue
            processes, ports, files = self.look(name)
            old_processes, old_ports, old_files = self.before[name]
            pairs = (
                ("process", set(processes), set(old_processes)),
                ("port", set(ports), set(old_ports)),
                ("file", set(files.items()), set(old_files.items())),
            )
            for kind, new, old in pairs:
                found += [f"{name}: {kind} more: {each}" for each in sorted(new - old)]
                found += [f"{name}: {kind} less: {each}" for each in sorted(old - new)]
        return found

    def nothing_is_left(self, names: Iterable[str] = (), *, patience: float = 60.0) -> None:
        """Wait until every host is in its state from before the first run."""
        names = tuple(names)
        deadline = time.monotonic() + patience
        while left := self.differs(names):
            assert time.monotonic() < deadline, "\n".join(left[:20])
            time.sleep(0.1)
        self.checked.add(Check.NOTHING_LEFT)


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until a condition holds; fail after the time limit."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.1)
