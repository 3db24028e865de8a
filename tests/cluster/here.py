"""Runs of the product on this machine itself, with the back end `local`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.runs import VENV, Check, Place, until

#: The name of the only host.
HOST = os.uname().nodename


class Here(Place):
    """A user on this machine who tests it."""

    names = (HOST,)
    last_rank = 1

    def __init__(self, folder: Path) -> None:
        site = f"backend: local\ntools:\n  venv: {VENV}\n"
        super().__init__(folder, site=site, environment={})
        self.machine.write_text(
            self.machine.read_text().replace("ranksPerNode: 1", "ranksPerNode: 2")
        )

    def plan(self, checks: Iterable[str] = ()) -> list[str]:
        """Return the options for a run on this machine."""
        suite = str(self.suite(checks))
        return ["--machine", str(self.machine), "--site", str(self.site), "--suite", suite]

    def measures(self, name: str) -> bool:
        """Return True if a rank of a collective runs here."""
        return any("collective.py" in command for command in self._processes())

    def _processes(self) -> list[str]:
        """Return the command lines of all processes of this user's runs."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"ACCEPT_DIR={self.runs}/".encode() in path.read_bytes():
                    found.append((path.parent / "cmdline").read_text())
            except OSError:
                continue
        return found

    def nothing_is_left(self, *, patience: float = 60.0) -> None:
        """Wait until no process of a run is left. The files of runs are the user's."""
        until(lambda: not self._processes(), patience)
        self.checked.add(Check.NOTHING_LEFT)
