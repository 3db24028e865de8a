"""Kill `accept run` at many points of its life: `python -m tests.cluster.kills ssh --points 30`.

After each kill, other commands have to know the run, and `cancel` and `clean` have to remove it
from the back end. Prints what was left or answered wrongly, and ends with 1 if there was anything.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.faults import BackEnd
from tests.cluster.here import Here
from tests.cluster.hosts import Hosts
from tests.cluster.killer import AT, COUNT, WITH_CHILDREN
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import Desk
from tests.cluster.runs import ALL_REDUCE, CONNECT, VENV, Done, Lab, Place, Started, Workstation
from tests.cluster.slurm.cluster import SlurmCluster
from tests.cluster.slurm.login import Login

from accept.commands.collect import Cancellation
from accept.core.error_codes import Code
from accept.core.errors import Exit
from accept.evidence import rundir

CHECKS = [*CONNECT, *ALL_REDUCE]
#: What users can do about a run whose command was killed, "" stands for its name. The run has to
#: be removed from its back end after each of these rows, and every command has to answer.
ROWS = (
    ("judge", "collect", "cancel", "judge", "clean"),
    ("watch", "collect", "judge", "cancel", "clean"),
    ("clean --no-collect", "judge", "collect", "cancel"),
)
_DOCUMENTED = set(Exit) - {Exit.INTERNAL}


class Killable(ABC):
    """A workstation whose `accept run` can be killed, and what its runs leave on the back end."""

    def __init__(self, place: Workstation) -> None:
        self.place = place
        self._temporary = place.folder / "temporary"
        self._path = place.folder / "killer"
        self._path.mkdir()
        shutil.copy(Path(__file__).with_name("killer.py"), self._path / "sitecustomize.py")

    @abstractmethod
    def start(self) -> Started:
        """Start `accept run`."""

    @abstractmethod
    def nothing_is_left(self) -> None:
        """Wait until nothing of a run is left on the back end."""

    def actions(self) -> list[str]:
        """Return the actions of a run that is not killed."""
        count = self._path / "count"
        done = self._started({COUNT: str(count)}).wait()
        assert done.exit in _DOCUMENTED, done.err
        self.do("clean", self._name())
        self.nothing_is_left()
        return count.read_text().split()

    def kill(self, at: int, *, with_children: bool) -> str:
        """Start a run and kill its command at an action; return the run's name, "" if none."""
        values = {AT: str(at), WITH_CHILDREN: "1" if with_children else ""}
        self._started(values).wait()
        return self._name()

    def _started(self, values: dict[str, str]) -> Started:
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
            return self.start()
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

    def clear(self, name: str, row: Sequence[str]) -> list[str]:
        """Do what a user can do about a killed run; return commands and exit codes."""
        answers = []
        if name:
            listed = json.loads(self.do("list", "runs", "--json").out)["runs"]
            assert [run["name"] for run in listed] == [name]
            answers.append(f"list: {listed[0]['about']}")
            self.do("show", "run", name)
            folder = self.place.runs / name
            was_started = (folder / rundir.JOB).is_file()
            for command in row:
                done = self.do(*command.split(), name, "--json")
                answers.append(f"{command}: {done.exit}")
                if was_started and command.startswith(("cancel", "clean")):
                    is_gone = (
                        command == "cancel" and done.result["outcome"] == Cancellation.NOT_FOUND
                    )
                    assert is_gone or done.exit == Exit.PASS, f"{command}\n{done.out}{done.err}"
            assert not (folder / "node").exists(), sorted((folder / "node").iterdir())
        self.nothing_is_left()
        return answers


class KillablePlace(Killable):
    """Hosts, nodes of Slurm or this machine."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        # Quicker than all four.
        place.names = place.names[:2]
        self._place = place

    def start(self) -> Started:
        """Start `accept run` on all nodes."""
        return self._place.start(checks=CHECKS)

    def nothing_is_left(self) -> None:
        """Wait until nothing of a run is left on the nodes."""
        self._place.nothing_is_left()


class KillableDesk(Killable):
    """Nodes of Kubernetes."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._desk, self._before = desk, desk.everything()

    def start(self) -> Started:
        """Start `accept run` on two nodes."""
        return self._desk.start(nodes=2, checks=CONNECT)

    def nothing_is_left(self) -> None:
        """Wait until nothing of a run is left on the nodes."""
        self._desk.leaves(self._before)


@contextmanager
def killable(back_end: BackEnd, folder: Path) -> Iterator[Killable]:
    """Make nodes of a back end, and a workstation."""
    with ExitStack() as stack:
        if back_end is BackEnd.KUBERNETES:
            cluster = stack.enter_context(Cluster(2))
            namespace = stack.enter_context(cluster.namespace())
            desk = Desk(cluster, namespace, folder, results={"holdSeconds": 120})
            stack.callback(desk.close)
            yield KillableDesk(desk)
            return
        place: Place
        if back_end is BackEnd.SSH:
            place = Lab(stack.enter_context(Hosts(2)), folder)
        elif back_end is BackEnd.SLURM:
            slurm = stack.enter_context(SlurmCluster(4, venv=VENV))
            place = Login(slurm, folder)
        else:
            place = Here(folder)
        stack.callback(place.close)
        yield KillablePlace(place)


def points_of(actions: int, points: int) -> list[int]:
    """Return numbers of actions, evenly spread: the first and the last are among them."""
    points = min(points, actions)
    return [1 + round(i * (actions - 1) / max(1, points - 1)) for i in range(points)]


def check(place: Killable, points: Sequence[int]) -> None:
    """Kill a run at each of 30 points whose indexes are given, and clear what is left of it."""
    chosen = points_of(len(place.actions()), 30)
    for point in points:
        name = place.kill(chosen[point], with_children=bool(point % 2))
        place.clear(name, ROWS[point % len(ROWS)])


def main() -> int:
    """Kill runs of the named back ends, and print a line for each point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = {each.name.lower(): each for each in BackEnd}
    parser.add_argument("back_end", choices=names)
    parser.add_argument("--points", type=int, default=30, help="points of a run (default 30)")
    parser.add_argument("--at", type=int, action="append", help="this action alone")
    options = parser.parse_args()
    wrong = 0
    with (
        tempfile.TemporaryDirectory(prefix="accept-kills-") as folder,
        killable(names[options.back_end], Path(folder)) as place,
    ):
        actions = place.actions()
        print(f"{len(actions)} actions: {' '.join(actions)}", flush=True)
        for i, at in enumerate(options.at or points_of(len(actions), options.points)):
            began = time.monotonic()
            try:
                name = place.kill(at, with_children=bool(i % 2))
                result = ", ".join(place.clear(name, ROWS[i % len(ROWS)])) or "no run folder"
            except AssertionError as error:
                wrong += 1
                result = f"WRONG: {error}"
            kind = actions[min(at, len(actions)) - 1]
            print(f"{at} ({kind}), {time.monotonic() - began:.0f} s: {result}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
