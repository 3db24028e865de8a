"""Start the rank programs for real, with the launchers of this Python environment.

Importing this module makes the programs importable.
"""

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
from tests.factories.clock import PATIENCE
from tests.factories.paths import PROGRAMS
from tests.factories.ports import free_port

sys.path.insert(0, str(PROGRAMS))

_BIN = Path(sys.executable).parent
#: Every rank is a host of its own, named by its number: h0, h1 …
_RANKS_AS_HOSTS = (
    "ACCEPT_HOST=h$OMPI_COMM_WORLD_RANK ACCEPT_LOCAL_RANK=0; "
    'export ACCEPT_HOST ACCEPT_LOCAL_RANK; exec "$@"'
)
#: Prefixes of variables that a run or a job around the tests may have set.
_FOREIGN_PREFIXES = ("ACCEPT_", "OMPI_", "PMIX_", "PRTE_", "SLURM_", "GLOO_", "NCCL_", "MASTER_")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The result of a launch: its exit status, output, and each rank's progress file."""

    exit: int
    text: str
    progress: dict[int, list[str]]

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return the record lines of the output, parsed."""
        return records_of(self.text)

    @property
    def problems(self) -> list[dict[str, Any]]:
        """Return the records of problems."""
        return [record for record in self.records if "problem" in record]

    def fact(self, name: str) -> Any:
        """Return the value of the first fact with this name."""
        return next(record["value"] for record in self.records if record.get("fact") == name)

    def metric(self, name: str) -> float:
        """Return the value of the only metric with this name."""
        values = [record["value"] for record in self.records if record.get("metric") == name]
        assert len(values) == 1, f"{len(values)} metrics {name}"
        return float(values[0])

    def blamed(self, check: str) -> set[tuple[str, str | None, int | None]]:
        """Return cause, host and rank of each problem of `check`."""
        return {
            (record["problem"], record.get("host"), record.get("rank"))
            for record in self.problems
            if record.get("check") == check
        }


#: The fixture `start`: the arguments are those of `launch` without the folder.
Start = Callable[..., Ran]


def missing_parts() -> list[str]:
    """Return the packages and launchers of the extra `run` that are not installed."""
    packages = [name for name in ("torch", "mpi4py") if find_spec(name) is None]
    return packages + [name for name in ("mpirun", "torchrun") if not (_BIN / name).exists()]


def launch(
    progress: Path,
    program: str | Path,
    ranks: int,
    *args: str,
    inject: str = "",
    launcher: str = "mpirun",
    python: str = sys.executable,
) -> Ran:
    """Start a program on `ranks` ranks, wait for it and return its result.

    The launcher is "mpirun", "torchrun" or "" for one plain process. `progress` is an empty folder.
    """
    environment = _environment(progress, inject)
    command = [python, str(PROGRAMS / program), *args]
    if launcher == "mpirun":
        command = _mpirun(ranks) + command
    elif launcher == "torchrun":
        port = environment["ACCEPT_MASTER_PORT"]
        static = ["--master-addr", "127.0.0.1", "--master-port", port]
        torchrun = str(Path(python).with_name("torchrun"))
        command = [torchrun, "--nproc-per-node", str(ranks), *static, *command[1:]]
    # Much longer than any launch takes, so only one that hangs reaches it.
    ran = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    files = {int(path.name): path.read_text().split() for path in progress.iterdir()}
    return Ran(exit=ran.returncode, text=ran.stdout, progress=files)


def records_of(text: str) -> list[dict[str, Any]]:
    """Return the records in the output of a program, parsed."""
    return [json.loads(line[7:]) for line in text.splitlines() if line.startswith("ACCEPT {")]


def printed(program: str, *args: object, **environment: str) -> str:
    """Return what a program prints that runs alone, with changes of this environment."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, args)]
    env = {**os.environ, **environment}
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    # Unmodified, because tools print carriage returns.
    return done.stdout.decode()


def refusal(
    options_of: Callable[[list[str]], object],
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Parse a command line that a program refuses; return its error message."""
    with pytest.raises(SystemExit) as refused:
        options_of(arguments)
    assert refused.value.code == 2
    return capsys.readouterr().err


def _environment(progress: Path, inject: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN_PREFIXES)}
    return kept | {
        "ACCEPT_MASTER_ADDR": "127.0.0.1",
        "ACCEPT_MASTER_PORT": str(free_port()),
        "ACCEPT_PROGRESS": str(progress),
        "ACCEPT_INJECT": inject,
        "OMP_NUM_THREADS": "1",
    }


def _mpirun(ranks: int) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # All ranks run on this machine, so mpirun needs no ssh.
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
        # Other tests create and remove interfaces of this machine.
        "--mca",
        "btl_tcp_if_include",
        "lo",
    ]
    return [
        str(_BIN / "mpirun"),
        *root,
        *options,
        "-n",
        str(ranks),
        "sh",
        "-c",
        _RANKS_AS_HOSTS,
        "sh",
    ]
