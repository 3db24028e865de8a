"""Runs of the product on this machine itself, with the back end `local`."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.runs import VENV, Check, Done, Started, Workstation, until
from tests.factories.command_line import SMALL

#: The name of the only host.
HOST = os.uname().nodename


class Here(Workstation):
    """A user on this machine who tests it."""

    def __init__(self, folder: Path) -> None:
        site = f"backend: local\ntools:\n  venv: {VENV}\n"
        super().__init__(folder, site=site, environment={})
        self.small = folder / "small.yaml"
        self.small.write_text(SMALL)

    def start(self, *options: str) -> Started:
        """Start `accept run`."""
        given = ("--machine=cpu", f"--suite={self.small}", f"--site={self.site}", "--json")
        return self.command("run", *given, *options)

    def run(self, *options: str) -> Done:
        """Call `accept run` and wait for its end."""
        return self.start(*options).wait()

    def processes(self) -> list[str]:
        """Return the processes of all runs of this user."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"ACCEPT_DIR={self.runs}/".encode() in path.read_bytes():
                    found.append(path.parent.name)
            except OSError:
                continue
        return found

    def nothing_is_left(self) -> None:
        """Wait until no process of a run is left. The files of runs are the user's."""
        until(lambda: not self.processes(), 60)
        self.checked.add(Check.NOTHING_LEFT)
