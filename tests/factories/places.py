"""Runs of every back end on this machine: they have one node, and real coordinators and evidence.

Stand-ins are the programs of the folder `standins` on PATH, and the API of a cluster. `mpirun` can
hold the last step of a run, and `sshd` gets no connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.api_server import OUT, STATUS, ApiServer, Frames, api_server
from tests.factories.clock import PATIENCE
from tests.factories.command_line import SOURCE, Done, accept
from tests.factories.kubernetes import container, job, listed, node, running, unscheduled
from tests.factories.shell import write_program

from accept.backends.kubernetes.watch import FOLDER
from accept.backends.slurm.submit import SHARED
from accept.commands.order import read_run
from accept.config import resources
from accept.core import evidence
from accept.core.runner.slurm import ARCHIVE
from accept.core.verdict import Verification
from accept.evidence import rundir
from accept.plan.bundle import load_bundle

_SUITE = "name: small\ndescription: Ours.\ndeadline: 5m\nchecks: [{check: inventory}]\n"


class Place:
    """A back end on this machine, and the folders of its nodes."""

    #: Its name, and the options of a run on it.
    backend: str
    #: How often a start writes job.json.
    records = 2
    options: tuple[str, ...] = ()
    #: More lines of its site file.
    site = ""
    #: What is known about fetched evidence.
    verified = Verification.SIGNED

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        # Other tests may run at the same time, and a pod ends all processes of its run's name.
        self.number = secrets.randbelow(1 << 30)
        self.attempt = self.run = f"r{self.number}"
        #: Marks and files for the stand-ins, and from them.
        self.control = folder / "control"
        self.scratch = folder / "scratch"
        for made in (self.control, self.scratch):
            made.mkdir()
        (self.control / "number").write_text(f"{self.number}\n")
        shutil.copy(resources.launchers() / "kill.sh", self.control)
        shutil.copytree(Path(__file__).with_name("standins"), folder / "bin")
        patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        patch.delenv("SLURM_JOB_ID", raising=False)
        patch.setenv("PYTHONPATH", str(SOURCE))
        (folder / "suite.yaml").write_text(_SUITE)
        tools = f"tools: {{scratch: {self.scratch}, python: {sys.executable}}}\n"
        (folder / "site.yaml").write_text(tools + self.site)

    def words(self, *command: str) -> tuple[str, ...]:
        """Return the words of a command that plans the run."""
        suite, site = (f"{self.folder}/{name}.yaml" for name in ("suite", "site"))
        return (*command, "-m", "cpu", "-s", suite, "--site", site, *self.options)

    def start(self, command: str = "run", *more: str) -> Done:
        """Start the run."""
        return accept(*self.words(command, "--attempt", self.attempt, *more))

    def mark(self, name: str, *, is_set: bool = True) -> None:
        """Set or remove a mark for the stand-in programs."""
        if is_set:
            (self.control / name).touch()
        else:
            (self.control / name).unlink(missing_ok=True)

    def hold(self) -> None:
        """Let the run stay in its last step until `release`."""
        self.mark("hold")

    def release(self) -> None:
        """Let the run go on to its end."""
        self.mark("hold", is_set=False)

    def begun(self) -> None:
        """Wait until the last step of the run has begun."""
        self.wait_for(self.control / "begun")

    def held(self) -> None:
        """Start a run that stays in its last step."""
        self.hold()
        done = self.start("submit", "--quiet")
        assert done.code == 0, done.err
        self.begun()

    def wait_for(self, path: Path) -> Path:
        """Wait until a file exists; return it."""
        for _ in range(20 * PATIENCE):
            if path.exists():
                return path
            time.sleep(0.05)
        raise TimeoutError(path)

    @property
    def evidence(self) -> Path:
        """Return the folder of the evidence of the run on the workstation."""
        return rundir.runs() / self.run / rundir.EVIDENCE

    @property
    def node(self) -> Path:
        """Return the folder of the run on its node."""
        return self.scratch / f"accept-{self.run}"

    def stored(self) -> Path:
        """Wait for the end of the run; return the file with its records on the node."""
        return self.wait_for(self.node / "evidence.tar")

    def is_starting(self) -> bool:
        """Return True if a blocked start has come to what its back end does."""
        return (self.control / "blocked").exists()

    def refuse(self) -> None:
        """Let no run start: its GPUs are in use."""
        self.program("nvidia-smi", "[ $# != 2 ] || echo 'GPU-1, 7, train'")

    def program(self, name: str, script: str) -> None:
        """Replace a program on PATH."""
        write_program(self.folder / "bin" / name, script)

    def starve(self) -> None:
        """Let no run get its node."""

    def processes(self) -> list[int]:
        """Return the processes of runs."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                names = path.read_bytes().split(b"\0")
            except OSError:
                continue
            marks = (f"ACCEPT_{name}={self.folder}".encode() for name in ("DIR", "GUARD"))
            if any(name.startswith(mark) for mark in marks for name in names):
                found.append(int(path.parent.name))
        return found

    def left(self) -> list[str]:
        """Return what is left of runs: processes, folders and objects."""
        for _ in range(10 * PATIENCE):
            if not (found := [*map(str, self.processes()), *self.kept()]):
                break
            time.sleep(0.1)
        return found

    def kept(self) -> list[str]:
        """Return the folders and objects of runs on the back end."""
        return [*map(str, self.scratch.iterdir())]

    def crash(self) -> None:
        """End all processes of the run on its node at once, as a reset does."""
        # They may have started others meanwhile.
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def silence(self, *, ends: bool = False) -> None:
        """Let what knows the run not answer, or answer again."""
        self.mark("down", is_set=not ends)

    def close(self) -> None:
        """End all processes of the run."""
        self.release()
        self.crash()


class Local(Place):
    """Runs on this machine itself."""

    backend = "local"
    records = 3

    def stored(self) -> Path:
        self.wait_for(self.node / "status")
        return self.node / "evidence" / evidence.RECORDS

    def is_starting(self) -> bool:
        return self.node.exists()

    @property
    def node(self) -> Path:
        return rundir.runs() / self.run / "node"

    def kept(self) -> list[str]:
        return [*map(str, rundir.runs().glob("*/node"))]


class Ssh(Place):
    """A host behind a stand-in ssh."""

    backend = "ssh"
    options = ("--hosts", "h1")


class Slurm(Place):
    """A cluster of one node, and one job."""

    backend = "slurm"
    options = ("--backend", "slurm", "--nodes", "1")
    # The key is made in the job.
    verified = Verification.UNMODIFIED

    def kept(self) -> list[str]:
        is_job = (self.control / "job").exists() and not (self.control / "exit").exists()
        return [*super().kept(), *["a job"] * is_job]

    def stored(self) -> Path:
        return self.wait_for(rundir.runs() / self.run / SHARED / ARCHIVE)

    def is_starting(self) -> bool:
        return super().is_starting() and (self.control / "begun").exists()

    def refuse(self) -> None:
        self.program("sinfo", "echo 'sinfo: error: no configuration' >&2; exit 1")

    def starve(self) -> None:
        (self.control / "state").write_text("PENDING Reason=JobHeldAdmin")


class Kubernetes(Place):
    """A cluster with one pod, behind a stand-in API and a stand-in helm."""

    backend = "kubernetes"
    options = ("--backend", "kubernetes", "--nodes", "1")
    site = "kubernetes: {image: 'img:1', positionLabels: [kubernetes.io/hostname]}\n"

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, server: ApiServer) -> None:
        super().__init__(folder, patch)
        self.run = f"{self.attempt}-1"
        self.server, self._lock = server, threading.Lock()
        self._pod: subprocess.Popen[bytes] | None = None
        #: Secrets and ConfigMaps by path.
        self.stored_objects: dict[str, Any] = {}
        self._is_silent = self._is_full = False
        prefix = {"name": "ACCEPT_HOST_PREFIX", "value": f"{self.run}-w-0-"}
        made = {"kind": "Job", **job(1)}
        made["spec"]["template"] = {"spec": {"containers": [{"name": "accept", "env": [prefix]}]}}
        record = json.dumps({"manifest": f"---\n{yaml.safe_dump(made)}"})
        (self.control / "record").write_text(record)
        patch.setenv("KUBECONFIG", str(server.kubeconfig(folder)))
        free = {**node("n1", gpus=0), "spec": {}}
        for path, answer in {
            "/version": {"gitVersion": "v1.34.0"},
            "/api/v1/nodes": listed(free),
            "/api/v1/nodes/n1": free,
            "/api/v1/pods": listed(),
            f"{_LAB}/events": listed(),
        }.items():
            server.answer_with(path, answer)
        server.answers |= {
            SECRETS: lambda *_: self._make_or_list(SECRETS),
            CONFIG_MAPS: lambda *_: self._make_or_list(CONFIG_MAPS),
            _JOBS: lambda *_: (503 if self._is_silent else 200, listed(*self._jobs())),
            f"{_JOBS}/run-w-0": lambda *_: self._remove_job(),
            _PODS: lambda *_: (200, listed(*self._pods())),
            f"{_POD}/log": lambda *_: (200, (self.control / "pod.log").read_text()),
        }
        server.commands[f"{_POD}/exec"] = lambda words, _: self._execute(words)

    @property
    def node(self) -> Path:
        return self.scratch / "pod"

    def close(self) -> None:
        super().close()
        if self._pod is not None:
            self._pod.wait()

    def is_starting(self) -> bool:
        self._pod_process()
        return super().is_starting() and (self.control / "begun").exists()

    def wait_for(self, path: Path) -> Path:
        # The pod starts by itself on a cluster.
        self._pod_process()
        return super().wait_for(path)

    def silence(self, *, ends: bool = False) -> None:
        self._is_silent = not ends

    def refuse(self) -> None:
        (self.control / "helm-install").write_text("Error: values are refused")

    def starve(self) -> None:
        self._is_full = True

    def kept(self) -> list[str]:
        objects = (*self._jobs(), *self._pods(), *self.stored_objects)
        return [*super().kept(), *map(str, objects)]

    def _make_or_list(self, kind: str) -> tuple[int, Any]:
        if self.server.seen[-1][0] == "POST":
            made = self.server.bodies[-1]
            path = f"{kind}/{made['metadata']['name']}"
            self.stored_objects[path] = made
            removed = lambda *_: (200, self.stored_objects.pop(path, {}))  # noqa: E731
            self.server.answers.setdefault(path, removed)
        return 200, listed(*(o for path, o in self.stored_objects.items() if path.startswith(kind)))

    def _remove_job(self) -> tuple[int, Any]:
        if self.server.seen[-1][0] == "DELETE":
            (self.control / "installed").unlink(missing_ok=True)
        return 200, {}

    def _pod_process(self) -> subprocess.Popen[bytes] | None:
        """Return the pod of the run, which begins and ends with its Job."""
        with self._lock:
            is_installed = (self.control / "installed").exists()
            if is_installed and self._pod is None and not self._is_full:
                self._pod = self._start_pod()
            if not is_installed and self._pod is not None:
                self._pod.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._pod.wait(_GRACE)
                self.crash()
                self._pod.wait()
                shutil.rmtree(self.node)
                self._pod = None
            return self._pod

    def _start_pod(self) -> subprocess.Popen[bytes]:
        folder = rundir.runs() / self.run
        bundle = load_bundle(folder / rundir.RENDERED, read_run(folder).plan)
        self.node.mkdir()
        subprocess.run(["tar", "-xf", "-", "-C", self.node], input=bundle.archive(), check=True)
        secret = self.stored_objects[f"{SECRETS}/{self.run}-ssh"]
        (self.control / "key").write_text(secret["stringData"]["ssh-privatekey"])
        variables = {
            "ATTEMPT": self.run,
            "NODES": "1",
            "HOST_PREFIX": f"{self.run}-w-0-",
            "NODE": "n1",
            "ADDRESSES": "127.0.0.1",
            "SSH_PORT": "2222",
            "START_SECONDS": "60",
            "LIFE_SECONDS": "600",
            "HOLD_SECONDS": "600",
            "RESULTS": "",
            "LOG_EVENTS": "true",
            "KEY": str(self.control / "key"),
            # By this, the processes of the pod are found.
            "DIR": str(self.node),
        }
        environment = {f"ACCEPT_{key}": value for key, value in variables.items()}
        # A runtime of containers sets HOME, without which Open MPI does not start.
        environment |= {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        environment |= {"JOB_COMPLETION_INDEX": "0"}
        with (self.control / "pod.log").open("wb") as log:
            return subprocess.Popen(
                ["/bin/sh", self.node / "pod_entrypoint.sh"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _jobs(self) -> list[dict[str, Any]]:
        pod = self._pod_process()
        if not (self.control / "installed").exists():
            return []
        code = pod.poll() if pod else None
        return [job(1) if code is None else job(1, ("Failed" if code else "Complete", "", ""))]

    def _pods(self) -> list[dict[str, Any]]:
        pod = self._pod_process()
        if pod is None:
            return [unscheduled()] * bool(self._jobs())
        found = running(0)
        if (code := pod.poll()) is not None:
            ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
            found["status"] |= container(terminated=ended)
        return [found]

    def _execute(self, words: list[str]) -> Frames:
        """Run a command in the folder of the pod."""
        own = [word.replace(FOLDER, str(self.node)) for word in words]
        done = subprocess.run(own, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        for start in range(0, len(done.stdout), 1 << 15):
            yield OUT, done.stdout[start : start + (1 << 15)]
        causes = {"details": {"causes": [{"message": str(done.returncode)}]}}
        end = {"status": "Failure", **causes} if done.returncode else {"status": "Success"}
        yield STATUS, json.dumps(end).encode()


#: Seconds that a pod may take to end.
_GRACE = 1.0
_LAB, _JOBS = "/api/v1/namespaces/lab", "/apis/batch/v1/namespaces/lab/jobs"
SECRETS, CONFIG_MAPS = f"{_LAB}/secrets", f"{_LAB}/configmaps"
_PODS, _POD = f"{_LAB}/pods", f"{_LAB}/pods/run-w-0-0-abcde"


@contextlib.contextmanager
def place(backend: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Make a back end, and end all its processes."""
    patch.setenv("ACCEPT_RUNS", str(folder / "runs"))
    with contextlib.ExitStack() as stack:
        made: Place
        if backend == "kubernetes":
            made = Kubernetes(folder, patch, stack.enter_context(api_server()))
        else:
            made = {"local": Local, "ssh": Ssh, "slurm": Slurm}[backend](folder, patch)
        stack.callback(made.close)
        yield made
