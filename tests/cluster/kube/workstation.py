"""A workstation before a test cluster: `accept` with a kubeconfig, a helm, and files of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.kube.build import helm
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.image import BASE
from tests.cluster.runs import PATIENCE, REPOSITORY, Done, Started

VENV = Path(sys.prefix)
#: What a run may make; everything there is of it in a namespace.
KINDS = "jobsets,jobs,pods,services,configmaps,secrets,networkpolicies"
CONNECT = ["check: connectivity, params: {pings: 5}"]


class Workstation:
    """Runs the product in a namespace of the cluster."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, *, major: int = 4) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        self.kubeconfig = cluster.kubeconfig
        tools = folder / "tools"
        tools.mkdir()
        (tools / "helm").symlink_to(helm(major))
        self._path = f"{tools}:{os.environ['PATH']}"
        self._started = 0

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        return {
            **os.environ,
            "PATH": self._path,
            "KUBECONFIG": str(self.kubeconfig),
            "ACCEPT_RUNS": str(self.folder / "runs"),
            "PYTHONPATH": str(REPOSITORY / "cli"),
        }

    def site(self, results: Mapping[str, Any] | None = None, **kubernetes: Any) -> Path:
        """A site file; `kubernetes` on top of what makes pods of the tests' image run."""
        volumes, mounts = self.cluster.checkout_volumes()
        site = {
            "backend": "kubernetes",
            "kubernetes": {
                "namespace": self.namespace,
                "image": BASE,
                "imagePullPolicy": "Never",
                "extraVolumes": volumes,
                "extraVolumeMounts": mounts,
                **kubernetes,
            },
            "results": {"holdSeconds": 120, **(results or {})},
            "tools": {"venv": str(VENV)},
        }
        file = self.folder / "site.yaml"
        file.write_text(yaml.safe_dump(site), encoding="utf-8")
        return file

    def suite(self, *checks: str, script: str = "") -> Path:
        """A suite of these lines, and the script that a `script` check names."""
        file = self.folder / "suite.yaml"
        lines = "".join(f"  - {{{check}}}\n" for check in (*CONNECT, *checks))
        file.write_text(f"name: test\ndescription: For the tests.\nchecks:\n{lines}")
        (self.folder / "own.sh").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        return file

    def plan(self, *checks: str, nodes: int = 3, script: str = "", **site: Any) -> list[str]:
        """The options of a run with these checks."""
        suite, file = self.suite(*checks, script=script), self.site(**site)
        return [f"--suite={suite}", f"--site={file}", "--machine=cpu", f"--nodes={nodes}"]

    def accept(self, *words: str) -> Done:
        """Run a command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "accept", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Done(exit=done.returncode, out=done.stdout, err=done.stderr, seconds=0.0)

    def start(self, *words: str) -> Started:
        """Start a command."""
        self._started += 1
        place = self.folder / f"started-{self._started}"
        return Started([sys.executable, "-m", "accept", *words], self.environment, place)

    def objects(self) -> set[str]:
        """Everything that is in the namespace, by kind and name."""
        found = self.cluster.get(KINDS, "-n", self.namespace)["items"]
        return {f"{one['kind']} {one['metadata']['name']}" for one in found}

    def run_folder(self, attempt: str) -> Path:
        """What the workstation keeps of a run."""
        return self.folder / "runs" / attempt

    def job(self, attempt: str) -> Any:
        """A run's job.json."""
        return json.loads((self.run_folder(attempt) / "job.json").read_text(encoding="utf-8"))
