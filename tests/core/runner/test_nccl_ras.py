"""NCCL's RAS names the ranks of a hung execution that are dead or behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.paths import PROGRAMS
from tests.factories.ras_server import server, status

from accept.core.causes import Cause
from accept.core.runner import nccl_ras
from accept.core.runner.ssh import Host

MARK = "a1/40-collectives/0-0"
HOSTS = [
    Host(name=name, mpi_name=name, address="127.0.0.1", port=0, slots=2, local=False)
    for name in ("h0", "h1", "h2", "h3")
]


def lines(*answers: object) -> dict[str, str]:
    return {"h0": "".join(f"{json.dumps(answer)}\n" for answer in answers)}


def named(answers: dict[str, str]) -> list[tuple[str | None, int | None, Cause]]:
    return [(p.host, p.rank, p.cause) for p in nccl_ras.problems(answers, HOSTS, 2)]


EQUAL = dict.fromkeys(range(8), 40)


def test_a_rank_that_started_fewer_collectives_is_named() -> None:
    behind = status({**EQUAL, 5: 39})
    assert named(lines(behind, behind)) == [("h2", 5, Cause.RANK_HUNG)]


def test_dead_and_silent_ranks_are_named() -> None:
    rest = {rank: 40 for rank in range(8) if rank not in (3, 7)}
    gone = status(rest, dead=(3,), silent=(7,))
    assert named(lines(gone, gone)) == [("h1", 3, Cause.CRASHED), ("h3", 7, Cause.RANK_HUNG)]


def test_a_slow_execution_whose_ranks_still_move_names_nobody() -> None:
    assert named(lines(status({**EQUAL, 5: 39}), status(dict.fromkeys(range(8), 41)))) == []


def test_one_answer_is_not_enough() -> None:
    assert named(lines(status({**EQUAL, 5: 39}))) == []


@given(st.lists(st.one_of(st.none(), st.integers(), st.text(), st.dictionaries(
    st.sampled_from(["communicators", "size", "ranks"]),
    st.recursive(st.integers() | st.text() | st.none(), lambda s: st.lists(s, max_size=3)),
)), max_size=4))  # fmt: skip
def test_no_answer_raises_or_names_a_rank_that_does_not_exist(answers: list[object]) -> None:
    assert named(lines(*answers)) == []


def query(address: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAMS / "nccl_ras.py"), MARK]
    env = {**os.environ, "NCCL_RAS_ADDR": address}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_program_prints_two_answers_of_the_execution_and_skips_other_jobs() -> None:
    env = {**os.environ, "ACCEPT_EXEC": MARK}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE) as own:
        jobs = [status(EQUAL, pid=os.getpid()), status({**EQUAL, 5: 39}, pid=own.pid)] * 2
        with server(lambda: json.dumps(jobs.pop(0), indent=2).encode()) as listening:
            done = query(f"localhost:{listening.server_address[1]}")
        own.communicate(b"\n")
    assert done.returncode == 0, done.stderr
    assert named({"h0": done.stdout}) == [("h2", 5, Cause.RANK_HUNG)]


#: In the form of src/ras/client_support.cc of NCCL 2.24.3.
TEXT = b"""NCCL version 2.24.3 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          2            1          8        8

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 1088 on node 192.0.2.2 managing GPU 0

"""


def test_the_text_of_an_nccl_without_json_is_kept_and_names_nobody(tmp_path: Path) -> None:
    with server(lambda: TEXT, json=False) as listening:
        done = query(f"localhost:{listening.server_address[1]}")
    assert done.returncode == 0, done.stderr
    nccl_ras.keep({"h0": done.stdout}, tmp_path / "0.log")
    kept = (tmp_path / "0.ras.log").read_text()
    assert [f"# {line}" for line in TEXT.decode().splitlines()] == kept.splitlines()[1:]
    assert named({"h0": done.stdout}) == []


def test_no_text_is_taken_for_another_host_or_for_a_status() -> None:
    behind = json.dumps(status({**EQUAL, 5: 39})).encode()
    text = b"##### h9\n\x1b[2J\n%s\n%s\n" % (behind, behind)
    with server(lambda: text + b"x" * (1 << 20), json=False) as listening:
        done = query(f"localhost:{listening.server_address[1]}")
    assert all(line.startswith("# ") and line.isprintable() for line in done.stdout.splitlines())
    assert len(done.stdout) < (1 << 20)
    assert named({"h0": done.stdout}) == []


def test_an_nccl_without_json_that_sends_no_text_is_an_end_without_an_error() -> None:
    with server(lambda: b"", json=False) as listening:
        done = query(f"localhost:{listening.server_address[1]}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("answer", [b"ERROR: Unknown command\n", b"", b"\xff" * 2000, b"[[]]"])
def test_an_older_nccl_or_another_server_ends_without_an_error(answer: bytes) -> None:
    with server(lambda: answer) as listening:
        done = query(f"localhost:{listening.server_address[1]}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr


def test_the_program_gives_the_address_if_nobody_listens() -> None:
    done = query("localhost:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "localhost:1" in done.stderr
