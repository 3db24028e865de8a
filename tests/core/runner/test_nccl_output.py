"""NCCL's own logs: each rank prints its warnings, and a failed execution keeps all of its logs."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.factories import verdicts
from tests.factories.hosts import here

from accept.config import resources
from accept.core.causes import Cause
from accept.core.checks import parse_log
from accept.core.evidence import open_log
from accept.core.facts import NCCL_WARNINGS
from accept.core.records import Problem
from accept.core.runner.nccl import collect_command, keep_logs
from accept.core.runner.state import Run

MARK = "a1/20-all/0-0"
LOG = "logs/20-all/0-0.log"


def line(text: str, *, level: str = "WARN", host: str = "h0") -> str:
    return f"{host}:11:12 [0] transport/net_ib.cc:812 NCCL {level} {text}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create the folder of a run with the function of the launchers and a raw log."""
    script = resources.launchers() / "nccl_log.sh"
    (tmp_path / script.name).write_text(script.read_text())
    (tmp_path / "progress" / MARK).mkdir(parents=True)
    log = tmp_path / "evidence" / LOG
    log.parent.mkdir(parents=True)
    log.write_text("# Open MPI 5: mpirun\nmpirun was killed")
    return tmp_path


def write(folder: Path, text: str, *, rank: int = 0, printed: bool = False) -> None:
    log = folder / "progress" / MARK / f"nccl.{rank}.h0.11.log"
    log.write_text(text)
    if printed:
        log.with_name(f"{log.name}.printed").touch()


def keep(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Keep the logs of the two hosts, which both are this machine; return the raw log.

    The warnings of the record come with it.
    """
    hosts = here("h0", "h1")
    state = Run(folder=folder, attempt="a1", plan=verdicts.plan(), hosts=hosts)
    state.lost["h1"] = Problem(cause=Cause.HOST_DIED, message="", host="h1")
    evidence = folder / "evidence"
    asyncio.run(keep_logs(state, MARK, hosts, evidence / LOG))
    parsed = parse_log(("train",), open_log(evidence, LOG) or ())
    warnings = [text for _, texts in NCCL_WARNINGS.among(parsed.facts) for text in texts]
    return (evidence / LOG).read_text(), tuple(warnings)


class TestAfterAKill:
    def test_warnings_are_in_log_and_record_and_all_logs_are_kept(self, folder: Path) -> None:
        write(folder, line("Init", level="INFO") + line("NET/IB : Got completion, error 12"))
        write(folder, line("Cuda failure 700"), rank=1)
        text, warnings = keep(folder)
        assert text.startswith("# Open MPI 5: mpirun\nmpirun was killed\n")
        assert warnings == ("h0: NET/IB : Got completion, error 12", "h0: Cuda failure 700")
        kept = (folder / "evidence" / LOG).with_suffix(".nccl.log").read_text()
        assert line("Init", level="INFO") in kept
        assert line("Cuda failure 700") in kept

    def test_a_rank_that_printed_its_warnings_does_not_repeat_them(self, folder: Path) -> None:
        write(folder, line("once"), printed=True)
        _, warnings = keep(folder)
        assert warnings == ()
        kept = (folder / "evidence" / LOG).with_suffix(".nccl.log").read_text()
        assert line("once") in kept

    def test_without_a_log_of_nccl_nothing_is_added(self, folder: Path) -> None:
        text, _ = keep(folder)
        assert text == "# Open MPI 5: mpirun\nmpirun was killed"
        assert not list(folder.rglob("*.nccl.log"))

    def test_only_warnings_reach_the_raw_log(self, folder: Path) -> None:
        """A host cannot add records of its own in this way."""
        write(folder, 'ACCEPT {"fact":"x","value":1} NCCL WARN\n' + line("true"))
        text, warnings = keep(folder)
        assert "ACCEPT" not in text
        assert warnings == ("h0: true",)

    def test_long_logs_keep_their_beginning_and_end(self, folder: Path) -> None:
        for rank in range(2):
            write(folder, "first\n" + "x" * 5000 + "\nlast\n", rank=rank)
        command = collect_command(folder, MARK, 400)
        argv = ["/bin/sh", "-c", command]
        text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        assert (text.count("first\n"), text.count("last\n")) == (2, 2)
        assert "(4812 bytes left out)" in text
        assert len(text) < 1000


class TestRanks:
    def rank(self, folder: Path, rank: str, *command: str) -> str:
        """Return what a rank prints that rank.sh starts."""
        for name in ("rank.sh", "interface.sh"):
            (folder / name).write_text((resources.launchers() / name).read_text())
        (folder / "env.sh").touch()
        env = {
            "PATH": os.environ["PATH"],
            "NCCL_DEBUG": "INFO",
            "ACCEPT_PROGRESS": str(folder / "progress" / MARK),
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        }
        argv = ["sh", str(folder / "rank.sh"), *command]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout

    def test_every_rank_prints_its_warnings_once(self, folder: Path) -> None:
        """Several collectives run after each other, with the same folder for their logs."""
        warnings = "".join(line(text) for text in "aabcdefg")
        program = (
            f"f=$(echo \"$NCCL_DEBUG_FILE\" | sed s/%p/$$/); printf '%s' '{warnings}' > \"$f\""
        )
        printed = [self.rank(folder, rank, "sh", "-c", program) for rank in ("0", "1", "1")]
        bounded = "".join(line(text) for text in "abcefg")
        assert printed == [bounded] * 3

    def test_the_first_rank_of_a_host_prints_once_its_versions_and_whether_nvlink_spans_hosts(
        self, folder: Path
    ) -> None:
        progress = folder / "progress" / MARK
        for gpu in range(2):
            start = f"h1:{gpu}:9 [{gpu}] NCCL INFO"
            (progress / f"nccl.{gpu}.h1.{gpu}.log").write_text(
                f"{start} NCCL version 2.28.9+cuda13.0\n"
                f"{start} NET/gIB : Initializing gIB v1.1.2\n"
                f"{start} MNNVL diag entry cuMemEnable 1\n"
                f"{start} MNNVL 1 cliqueId 7f{'ab'[gpu]} cliqueSize 4 cliqueRank {gpu}\n"
                f"{start} comm 0x5{'ef'[gpu]} rank {gpu} nRanks 8 nNodes 2 localRanks 4 "
                f"localRank {gpu} MNNVL 1\n"
            )
        printed = self.rank(folder, "0", "true").splitlines()
        assert [line.partition(" INFO ")[2] for line in printed] == [
            "NCCL version 2.28.9+cuda13.0",
            "NET/gIB : Initializing gIB v1.1.2",
            "MNNVL 1 cliqueId 7fa cliqueSize 4 cliqueRank 0",
            "comm 0x5e rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 1",
        ]
