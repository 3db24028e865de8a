"""Kill `accept run` at points of its life: other commands know the run, and remove it.

`KILL_POINTS=30` kills it at 30 points, on Kubernetes as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.cluster.faults import BackEnd
from tests.cluster.killer import AT, COUNT, WITH_CHILDREN
from tests.cluster.runs import ALL_REDUCE, CONNECT, Done, Place

from accept.commands.collect import Cancellation
from accept.core.error_codes import Code
from accept.core.errors import Exit
from accept.evidence import rundir

#: By default, before the hosts know of the run, and in a step.
POINTS = int(os.environ.get("KILL_POINTS", "0"))
#: What users can do about a run whose command was killed. The run has to be removed from its back
#: end after each of these rows, and every command has to answer.
ROWS = (
    ("judge", "collect", "cancel", "judge", "clean"),
    ("watch", "collect", "judge", "cancel", "clean"),
    ("clean --no-collect", "judge", "collect", "cancel"),
)
_DOCUMENTED = set(Exit) - {Exit.INTERNAL}


class Killable:
    """A place whose `accept run` can be killed."""

    def __init__(self, place: Place) -> None:
        # Quicker than all four.
        place.names = place.names[:2]
        self.place = place
        self._temporary = place.folder / "temporary"
        self._path = place.folder / "killer"
        self._path.mkdir()
        shutil.copy(Path(__file__).with_name("killer.py"), self._path / "sitecustomize.py")

    def actions(self) -> list[str]:
        """Return the actions of a run that is not killed."""
        count = self._path / "count"
        done = self._ran({COUNT: str(count)})
        assert done.exit in _DOCUMENTED, done.err
        self.do("clean", self._name())
        self.place.nothing_runs()
        return count.read_text().split()

    def kill(self, at: int, *, with_children: bool) -> str:
        """Start a run and kill its command at an action; return the run's name, "" if none."""
        self._ran({AT: str(at), WITH_CHILDREN: "1" if with_children else ""})
        return self._name()

    def _ran(self, values: dict[str, str]) -> Done:
        shutil.rmtree(self.place.runs, ignore_errors=True)
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        before = dict(self.place.environment)
        self.place.environment |= {
            **values,
            "PYTHONPATH": str(self._path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self._temporary),
        }
        try:
            return self.place.run(checks=[*CONNECT, *ALL_REDUCE])
        finally:
            self.place.environment = before

    def _name(self) -> str:
        folders = list(self.place.runs.iterdir()) if self.place.runs.is_dir() else []
        return folders[0].name if folders else ""

    def do(self, *words: str) -> Done:
        """Run a command, and check that it answers as documented."""
        done = self.place.do(*words)
        about = f"{' '.join(words)}: exit {done.exit}\n{done.out}{done.err}"
        assert done.exit in _DOCUMENTED, about
        assert "Traceback" not in done.err, about
        # A command that no longer exists would remove nothing, and nobody would notice.
        assert not {Code.SYSTEM, Code.USAGE} & set(re.findall(r"\[(E-[A-Z-]+)]", done.err)), about
        return done

    def clear(self, name: str, row: Sequence[str]) -> None:
        """Do what a user can do about a killed run."""
        if name:
            listed = json.loads(self.do("list", "runs", "--json").out)["runs"]
            assert [run["name"] for run in listed] == [name]
            self.do("show", "run", name)
            folder = self.place.runs / name
            was_started = (folder / rundir.JOB).is_file()
            for command in row:
                done = self.do(*command.split(), name, "--json")
                if was_started and command.startswith(("cancel", "clean")):
                    is_gone = (
                        command == "cancel" and done.result["outcome"] == Cancellation.NOT_FOUND
                    )
                    assert is_gone or done.exit == Exit.PASS, f"{command}\n{done.out}{done.err}"
            assert not (folder / "node").exists(), sorted((folder / "node").iterdir())
        self.place.nothing_runs()


@pytest.mark.parametrize(
    "back_end", [one for one in BackEnd if POINTS or one is not BackEnd.KUBERNETES]
)
def test_a_run_whose_command_was_killed_is_known_and_can_be_removed(
    make_place: Callable[..., Place],
) -> None:
    killable = Killable(make_place())
    kinds = killable.actions()
    # Evenly spread: the first and the last action are among them.
    count = POINTS or 30
    spread = [1 + round(i * (len(kinds) - 1) / (count - 1)) for i in range(count)]
    wrong = []
    for point in range(count) if POINTS else (6, 13):
        at = spread[point]
        try:
            name = killable.kill(at, with_children=bool(point % 2))
            killable.clear(name, ROWS[point % len(ROWS)])
        except AssertionError as error:
            wrong.append(f"{at} ({kinds[at - 1]}): {error}")
    assert wrong == []
