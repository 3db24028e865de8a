"""A workstation before the test cluster: renders, installs with helm, sees what becomes of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cluster.kube.build import helm
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.image import BASE
from tests.cluster.runs import CONNECT, VENV, Done, Started, Workstation, until

from accept import assets


class Desk(Workstation):
    """The files and commands of a person who tests the nodes of a cluster, in one namespace."""

    def __init__(
        self, cluster: Cluster, namespace: str, folder: Path, *, venv: bool = True, **keys: Any
    ) -> None:
        volumes, mounts = cluster.checkout_volumes()
        site: dict[str, Any] = {
            "backend": "kubernetes",
            "startTimeout": "90s",
            "kubernetes": {
                "namespace": namespace,
                "image": BASE,
                "imagePullPolicy": "Never",
                "extraVolumes": volumes,
                "extraVolumeMounts": mounts,
                **keys.pop("kubernetes", {}),
            },
            "results": {"holdSeconds": 0, **keys.pop("results", {})},
            **keys,
        }
        if venv:
            site["tools"] = {"venv": str(VENV)}
        tools = folder / "bin"
        tools.mkdir()
        (tools / "helm").symlink_to(helm(4))
        environment = {
            "KUBECONFIG": str(cluster.kubeconfig),
            "PATH": f"{tools}:{os.environ['PATH']}",
            # What helm keeps of its own.
            "HOME": str(folder),
        }
        # JSON is YAML.
        super().__init__(folder, site=json.dumps(site), environment=environment)
        self.cluster = cluster
        self.namespace = namespace

    def options(self, nodes: int | str, checks: Iterable[str]) -> list[str]:
        """What every command that plans is given."""
        return [
            *("--nodes", str(nodes), "--machine", str(self.machine), "--site", str(self.site)),
            *("--suite", str(self.suite(checks or CONNECT))),
        ]

    def render(self, *options: str, nodes: int | str = 3, checks: Iterable[str] = ()) -> Path:
        """`accept render`; returns the file of the values."""
        done = self.do("render", *self.options(nodes, checks), *options)
        assert done.exit == 0, done.err
        values = self.folder / "values.yaml"
        values.write_text(done.out)
        return values

    def install(
        self,
        values: Path,
        *options: str,
        name: str = "mytest",
        major: int = 4,
        verb: str = "install",
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """`helm install`, with nothing of `accept` but its chart."""
        command = [str(helm(major)), verb, name, str(assets.chart()), "-f", str(values)]
        done = subprocess.run(
            [*command, "--namespace", self.namespace, *options],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def run(self, *options: str, nodes: int | str = 3, checks: Iterable[str] = ()) -> Done:
        """`accept run` to its end."""
        return self.start(*options, nodes=nodes, checks=checks).wait()

    def start(self, *options: str, nodes: int | str = 3, checks: Iterable[str] = ()) -> Started:
        """Start `accept run`."""
        return self.command("run", *self.options(nodes, checks), "--json", *options)

    # What the cluster says.

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind in the namespace."""
        found: list[dict[str, Any]] = self.cluster.get(kind, "-n", self.namespace)["items"]
        return found

    def everything(self) -> set[str]:
        """Every object of the namespace, but events and what the cluster itself keeps there."""
        kinds = self.cluster.kubectl(
            "api-resources", "--verbs=list", "--namespaced", "-o", "name"
        ).stdout.split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
        words = ("get", wanted, "-n", self.namespace, "-o", "name", "--ignore-not-found")
        return set(self.cluster.kubectl(*words).stdout.split())

    def jobset(self) -> dict[str, Any]:
        """The one JobSet there is."""
        (one,) = self.objects("jobsets")
        return one

    def state(self) -> str:
        """`Completed`, `Failed`, or nothing while the JobSet has not ended."""
        return str(self.jobset().get("status", {}).get("terminalState", ""))

    def ended(self, patience: float = 150.0) -> str:
        """Wait until the JobSet has ended; return how."""
        until(lambda: self.state() != "", patience)
        return self.state()

    def pods(self) -> dict[int, dict[str, Any]]:
        """The pods by their index."""
        key = "batch.kubernetes.io/job-completion-index"
        return {int(p["metadata"]["annotations"][key]): p for p in self.objects("pods")}

    def log(self, index: int = 0) -> str:
        """What a pod said."""
        name = self.pods()[index]["metadata"]["name"]
        words = ("logs", name, "-c", "accept", "--tail=-1")
        return self.cluster.kubectl("-n", self.namespace, *words).stdout

    def says(self, words: str, index: int = 0, patience: float = 120.0) -> None:
        """Wait until a pod has said something."""

        def said() -> bool:
            pods = self.pods()
            if index not in pods:
                return False
            name = pods[index]["metadata"]["name"]
            asked = ("logs", name, "-c", "accept", "--tail=-1")
            done = self.cluster.kubectl("-n", self.namespace, *asked, check=False)
            return words in done.stdout

        until(said, patience)
