"""Starting the rank programs for real, with the launchers that lie beside this Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.factories.paths import PROGRAMS
from tests.factories.ports import free_port

BIN = Path(sys.executable).parent
#: Every rank is a host of its own, named by its number: h0, h1 ...
AS_HOSTS = (
    "ACCEPT_HOST=h$OMPI_COMM_WORLD_RANK ACCEPT_LOCAL_RANK=0; "
    'export ACCEPT_HOST ACCEPT_LOCAL_RANK; exec "$@"'
)
_FOREIGN = ("ACCEPT_", "OMPI_", "PMIX_", "PRTE_", "SLURM_", "GLOO_", "NCCL_", "MASTER_")

sys.path.insert(0, str(PROGRAMS))


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a launch left: its exit status, output, and each rank's progress file."""

    exit: int
    text: str
    progress: dict[int, list[str]]

    @property
    def records(self) -> list[dict[str, Any]]:
        lines = self.text.splitlines()
        return [json.loads(line[7:]) for line in lines if line.startswith("ACCEPT {")]

    @property
    def problems(self) -> list[dict[str, Any]]:
        return [record for record in self.records if "problem" in record]

    def fact(self, name: str) -> Any:
        return next(record["value"] for record in self.records if record.get("fact") == name)

    def metric(self, name: str) -> float:
        found = [record["value"] for record in self.records if record.get("metric") == name]
        assert len(found) == 1, f"{len(found)} metrics {name}"
        return float(found[0])

    def blamed(self, check: str) -> set[tuple[str, str | None, int | None]]:
        """Cause, host and rank of each problem of `check`."""
        return {
            (record["problem"], record.get("host"), record.get("rank"))
            for record in self.problems
            if record.get("check") == check
        }


Start = Callable[..., Ran]


def refusal(
    options_of: Callable[[list[str]], object],
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What a program says of a command line that it refuses."""
    with pytest.raises(SystemExit) as refused:
        options_of(arguments)
    assert refused.value.code == 2
    return capsys.readouterr().err


def _environment(progress: Path, plant: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    return kept | {
        "ACCEPT_MASTER_ADDR": "127.0.0.1",
        "ACCEPT_MASTER_PORT": str(free_port()),
        "ACCEPT_PROGRESS": str(progress),
        "ACCEPT_PLANT": plant,
        "OMP_NUM_THREADS": "1",
    }


def _mpirun(ranks: int) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # Ranks of this machine only: no ssh is looked for.
    options = [
        "--oversubscribe",
        "--bind-to",
        "none",
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "tcp,self",
    ]
    return [str(BIN / "mpirun"), *root, *options, "-n", str(ranks), "sh", "-c", AS_HOSTS, "sh"]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """start(PROGRAM, RANKS, *ARGS, plant="", launcher="mpirun"): launch, wait, and collect."""
    lacking = [name for name in ("torch", "mpi4py") if find_spec(name) is None]
    lacking += [name for name in ("mpirun", "torchrun") if not (BIN / name).exists()]
    if lacking:
        pytest.skip(f"the extra `run` is not installed: no {', '.join(lacking)}")

    def run(
        program: str | Path, ranks: int, *args: str, plant: str = "", launcher: str = "mpirun"
    ) -> Ran:
        progress = tmp_path_factory.mktemp("progress")
        environment = _environment(progress, plant)
        command = [sys.executable, str(PROGRAMS / program), *args]
        if launcher == "mpirun":
            command = _mpirun(ranks) + command
        elif launcher == "torchrun":
            port = environment["ACCEPT_MASTER_PORT"]
            static = ["--master-addr", "127.0.0.1", "--master-port", port]
            command = [str(BIN / "torchrun"), "--nproc-per-node", str(ranks), *static, *command[1:]]
        # Far above what any of them takes: only a launch that never ends gets there.
        ran = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=400,
            check=False,
        )
        files = {int(path.name): path.read_text().split() for path in progress.iterdir()}
        return Ran(exit=ran.returncode, text=ran.stdout, progress=files)

    return run
