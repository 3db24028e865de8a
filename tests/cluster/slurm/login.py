"""A user on the login node of a test cluster of Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.cluster.runs import VENV, Check, Done, Started, Workstation, until
from tests.cluster.slurm.cluster import SlurmCluster


class Login(Workstation):
    """A user's site file and runs, with the commands of Slurm on PATH."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        site = f"backend: slurm\ntools:\n  venv: {VENV}\nresults:\n  holdSeconds: 60\n"
        super().__init__(folder, site=site, environment=cluster.environment)
        self.cluster = cluster

    def start(self, *options: str, nodes: int | str = 4, checks: Iterable[str] = ()) -> Started:
        """Start `accept run`."""
        given = [
            *("--nodes", str(nodes)),
            *("--machine", str(self.machine), "--site", str(self.site)),
            *("--suite", str(self.suite(checks))),
        ]
        return self.command("run", *given, "--json", *options)

    def start_measuring(self, checks: Iterable[str]) -> Started:
        """Start `accept run` on four nodes, and wait until a rank of a collective runs on n3."""
        started = self.start(checks=checks)
        until(lambda: self.cluster.measures("n3") or started.process.poll() is not None)
        return started

    def run(self, *options: str, nodes: int | str = 4, checks: Iterable[str] = ()) -> Done:
        """Call `accept run` and wait for its end."""
        return self.start(*options, nodes=nodes, checks=checks).wait()

    def launch_by(self, launcher: str) -> None:
        """Let this user's runs start ranks with a launcher."""
        self.site.write_text(f"slurm: {{launcher: {launcher}}}\n{self.site.read_text()}")

    def nothing_is_left(self) -> None:
        """Wait until Slurm has no job, and the nodes have no process or file of a run."""
        until(lambda: not self.cluster.jobs(), 90)
        until(lambda: not self.cluster.leftovers(), 60)
        self.checked.add(Check.NOTHING_LEFT)
