"""A workstation for the test cluster: renders, installs with helm, follows the run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.cluster.kube.build import SHORT_LIVED, helm
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.image import BASE
from tests.cluster.runs import (
    CONNECT,
    PATIENCE,
    VENV,
    Check,
    Done,
    Place,
    Started,
    Workstation,
    until,
)

from accept.plan.chart import chart_folder

#: What a run may make, and where the API server has it; everything there is of it in a namespace.
MADE = {
    "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
    "jobs": "apis/batch/v1",
    "pods": "api/v1",
    "services": "api/v1",
    "configmaps": "api/v1",
    "secrets": "api/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
}
#: On one host, so that the pods stay until `Desk.let_go_on`.
WAITS = "check: script, script: own.sh, groups: all, timeout: 20m, params: {name: wait}"
_OWN = """\
#!/bin/sh
until [ -e /tmp/go-on ]; do sleep 0.2; done
echo 'ACCEPT {"metric":"x","value":1,"unit":"m"}'
"""


def site_of(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Return a site file for this cluster: its pods use the Python of this checkout."""
    volumes, mounts = cluster.checkout_volumes()
    return {
        "backend": "kubernetes",
        "startTimeout": "90s",
        "kubernetes": {
            "namespace": namespace,
            "image": BASE,
            "imagePullPolicy": "Never",
            "extraVolumes": volumes,
            "extraVolumeMounts": mounts,
        },
        "results": {"holdSeconds": 0},
        "tools": {"venv": str(VENV)},
    }


class Desk(Workstation):
    """The files and commands of a user who tests the nodes of a cluster, in one namespace."""

    #: The number of nodes of a run, if a test names none.
    nodes = 3

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        folder: Path,
        *,
        venv: bool = True,
        # No link of a pod is shaped, so its speed is that of cores that other tests use as well.
        noise: float = 0.2,
        **keys: Any,
    ) -> None:
        self._site = site_of(cluster, namespace)
        for part in ("kubernetes", "results"):
            self._site[part] |= keys.pop(part, {})
        self._site |= keys
        if not venv:
            del self._site["tools"]
        tools = folder / "bin"
        tools.mkdir()
        (tools / "helm").symlink_to(helm(4))
        environment = {
            "KUBECONFIG": str(cluster.kubeconfig),
            "PATH": f"{tools}:{os.environ['PATH']}",
            **SHORT_LIVED,
            # What helm keeps of its own.
            "HOME": str(folder),
        }
        # JSON is YAML.
        site = json.dumps(self._site)
        super().__init__(folder, site=site, environment=environment, noise=noise)
        (folder / "own.sh").write_text(_OWN)
        self.cluster = cluster
        self.namespace = namespace

    def configure(self, *, results: Mapping[str, Any] | None = None, **kubernetes: Any) -> None:
        """Write the site file again, with these keys changed."""
        self._site["kubernetes"] |= kubernetes
        self._site["results"] |= results or {}
        self.site.write_text(json.dumps(self._site))

    def options(self, nodes: int | str, checks: Iterable[str]) -> list[str]:
        """Return the options of every command that plans a run."""
        return [
            *(
                "--nodes",
                str(nodes or self.nodes),
                "--machine",
                str(self.machine),
                "--site",
                str(self.site),
            ),
            *("--suite", str(self.suite(checks or CONNECT))),
        ]

    def render(self, *options: str, nodes: int | str = 0, checks: Iterable[str] = ()) -> Path:
        """Call `accept render`; return the file of the values."""
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
        chart: str = "",
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Call `helm install` with the chart of `accept`, by default that of the checkout."""
        command = [str(helm(major)), verb, name, chart or str(chart_folder()), "-f", str(values)]
        done = subprocess.run(
            [*command, "--namespace", self.namespace, *options],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def run(self, *options: str, nodes: int | str = 0, checks: Iterable[str] = ()) -> Done:
        """Call `accept run` and wait for its end."""
        return self.start(*options, nodes=nodes, checks=checks).wait()

    def start(self, *options: str, nodes: int | str = 0, checks: Iterable[str] = ()) -> Started:
        """Start `accept run`."""
        return self.command("run", *self.options(nodes, checks), "--json", *options)

    def submit(self, *options: str, nodes: int | str = 0, checks: Iterable[str] = ()) -> Done:
        """`accept submit`."""
        return self.do("submit", *self.options(nodes, checks), *options)

    # The state of the cluster.

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects in the namespace whose kind is in `MADE`."""
        found: list[dict[str, Any]] = self._listed(kind)["items"]
        return found

    def _listed(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._read(MADE[kind], kind))
        return found

    def _read(self, group: str, rest: str) -> str:
        return self.cluster.read(f"/{group}/namespaces/{self.namespace}/{rest}")

    def made(self) -> set[str]:
        """Return kind and name of the remaining objects of runs in the namespace."""
        return {
            f"{listed['kind'].removesuffix('List')} {one['metadata']['name']}"
            for listed in map(self._listed, MADE)
            for one in listed["items"]
        }

    def complete(self) -> set[str]:
        """Return `made` after the controllers have created the parts of each JobSet."""

        def whole() -> bool:
            made = self.made()
            names = [one["metadata"]["name"] for one in self.objects("jobsets")]
            return all({f"Job {name}-w-0", f"Service {name}"} <= made for name in names)

        until(whole)
        return self.made()

    def everything(self) -> set[str]:
        """Return every object of the namespace, without events and the cluster's own objects."""
        kinds = self.cluster.kubectl(
            "api-resources", "--verbs=list", "--namespaced", "-o", "name"
        ).stdout.split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
        words = ("get", wanted, "-n", self.namespace, "-o", "name", "--ignore-not-found")
        return set(self.cluster.kubectl(*words).stdout.split())

    def leaves(self, before: set[str]) -> None:
        """Wait until `everything` is as before.

        What the cluster made beside an object goes some time after it.
        """
        until(lambda: self.everything() == before)
        self.checked.add(Check.NOTHING_LEFT)

    def jobset(self) -> dict[str, Any]:
        """Return the only JobSet."""
        (one,) = self.objects("jobsets")
        return one

    def state(self) -> str:
        """Return `Completed`, `Failed`, or "" if the JobSet has not ended."""
        return str(self.jobset().get("status", {}).get("terminalState", ""))

    def ended(self, patience: float = PATIENCE) -> str:
        """Wait until the JobSet has ended; return its state."""
        until(lambda: self.state() != "", patience)
        return self.state()

    def let_go_on(self) -> None:
        """Let the run that waits in `WAITS` continue."""
        for pod in self.objects("pods"):
            words = ("exec", pod["metadata"]["name"], "-c", "accept", "--", "touch", "/tmp/go-on")
            self.cluster.kubectl("-n", self.namespace, *words, check=False)

    def release(self) -> None:
        """Tell index 0, which holds the evidence, that it has been collected."""
        name = self.pods()[0]["metadata"]["name"]
        words = ("exec", name, "-c", "accept", "--", "touch", "/opt/accept/collected")
        self.cluster.kubectl("-n", self.namespace, *words)

    def pods(self) -> dict[int, dict[str, Any]]:
        """Return the pods by their index; a coordinator's own pod is 0, and the others follow."""
        key = "batch.kubernetes.io/job-completion-index"
        return {
            int(p["metadata"]["annotations"][key])
            + (p["metadata"]["labels"].get("accept-role") == "host"): p
            for p in self.objects("pods")
            # Not that of `helm test`.
            if "accept-run" in p["metadata"].get("labels", {})
        }

    def log(self, index: int = 0, *, stamped: bool = False) -> str:
        """Return the log of a pod, with times if `stamped`; empty before the pod has started."""
        name = self.pods().get(index, {}).get("metadata", {}).get("name")
        asked = f"pods/{name}/log?container=accept&timestamps={str(stamped).lower()}"
        try:
            return self._read("api/v1", asked) if name else ""
        except HTTPError:
            return ""

    def wait_for_log(self, words: str, index: int = 0) -> None:
        """Wait until the log of a pod contains a text."""
        until(lambda: words in self.log(index))


class Pods(Desk, Place):
    """The same for all nodes, as a place of runs that every back end can have."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(cluster, namespace, folder, results={"holdSeconds": 120})
        self.names = cluster.nodes
        self.nodes = len(self.names)
        self._before = self.everything()

    def plan(self, checks: Iterable[str] = ()) -> list[str]:
        """Return the options for a run on all nodes."""
        return self.options(len(self.names), checks)

    def measures(self, name: str) -> bool:
        """Return True if a rank of a collective runs on a node."""
        return bool(self.cluster.hosts.ranks(name))

    def nothing_runs(self) -> None:
        """Wait until nothing is left of a run that was ended, and remove nothing."""
        self.leaves(self._before)

    def nothing_is_left(self, *, patience: float = 60.0) -> None:
        """Remove the objects of all runs, and wait until nothing is left of them."""
        cleaned = self.do("clean", *(run.name for run in self.runs.iterdir() if run.is_dir()))
        assert cleaned.exit == 0, cleaned.err
        self.leaves(self._before)


def desk_with_folder(cluster: Cluster, namespace: str, folder: Path, shared: Path) -> Desk:
    """Return a desk whose runs write to a folder of this machine, like a mounted bucket."""
    volumes, mounts = cluster.checkout_volumes()
    volumes.append({"name": "shared", "hostPath": {"path": str(shared)}})
    mounts.append({"name": "shared", "mountPath": "/shared"})
    keys = {"extraVolumes": volumes, "extraVolumeMounts": mounts}
    results = {"location": "file:///shared", "holdSeconds": 600}
    return Desk(cluster, namespace, folder, kubernetes=keys, results=results)
