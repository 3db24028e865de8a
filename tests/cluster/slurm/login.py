"""A user on the login node of a test cluster of Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.cluster.runs import VENV, Check, Done, Racks, Started, until
from tests.cluster.slurm.cluster import SlurmCluster


class Login(Racks):
    """A user's site file and runs, with the commands of Slurm on PATH."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        site = f"backend: slurm\ntools:\n  venv: {VENV}\nresults:\n  holdSeconds: 60\n"
        super().__init__(folder, site=site, environment=cluster.environment)
        self.cluster = cluster
        self.hosts = cluster.hosts
        self.names = cluster.names

    def host(self, name: str) -> str:
        """Return the host that a node is."""
        return self.cluster.host(name)

    def boot(self, name: str) -> None:
        """Start a node again that has lost its power, and its slurmd."""
        self.cluster.boot(name)

    def plan(self, checks: Iterable[str] = (), nodes: int | str = "") -> list[str]:
        """Return the options for a run on all nodes, or on the given ones."""
        return [
            *("--nodes", str(nodes or len(self.names))),
            *("--machine", str(self.machine), "--site", str(self.site)),
            *("--suite", str(self.suite(checks))),
        ]

    def start(self, *options: str, checks: Iterable[str] = (), nodes: int | str = "") -> Started:
        """Start `accept run`."""
        return self.command("run", *self.plan(checks, nodes), "--json", *options)

    def run(self, *options: str, checks: Iterable[str] = (), nodes: int | str = "") -> Done:
        """Call `accept run` and wait for its end."""
        return self.start(*options, checks=checks, nodes=nodes).wait()

    def launch_by(self, launcher: str) -> None:
        """Let this user's runs start ranks with a launcher."""
        self.site.write_text(f"slurm: {{launcher: {launcher}}}\n{self.site.read_text()}")

    def nothing_is_left(self, *, patience: float = 60.0) -> None:
        """Wait until Slurm has no job, and the nodes have no process or file of a run."""
        until(lambda: not self.cluster.jobs(), patience + 30)
        until(lambda: not self.cluster.leftovers(), patience)
        self.checked.add(Check.NOTHING_LEFT)
