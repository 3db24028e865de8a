"""NCCL's RAS names the ranks of a hung execution that are dead or behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.paths import PROGRAMS, ROOT
from tests.factories.ras_server import server, status
from tests.factories.ras_text import Job, text

from accept.core.causes import Cause
from accept.core.runner.nccl import keep_ras, ras_problems
from accept.core.runner.ssh import Host

MARK = "a1/40-collectives/0-0"
HOSTS = [
    Host(name=name, mpi_name=name, address="127.0.0.1", port=0, slots=2, local=False)
    for name in ("h0", "h1", "h2", "h3")
]


def lines(*answers: object) -> dict[str, str]:
    return {"h0": "".join(f"{json.dumps(answer)}\n" for answer in answers)}


def named(answers: dict[str, str]) -> list[tuple[str | None, int | None, Cause]]:
    return [(p.host, p.rank, p.cause) for p in ras_problems(answers, HOSTS, 2)]


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


OLD, NEW = ("2.24.3", "2.25.1"), ("2.26.2", "2.27.7", "2.28.3")
KINDS = ("Broadcast", "AllReduce")


def printed(*texts: str, end: str = "# end of text\n") -> dict[str, str]:
    """Return what the program prints of these texts."""
    lines = ("".join(f"# {line}\n" for line in each.split("\n")) + end for each in texts)
    return {"h0": "".join(lines)}


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a job of 8 ranks. Some are dead, silent, gone or behind, and rank 0 answers."""
    roles = st.sampled_from(["", "", "", "", "dead", "silent", "left"])
    role = {rank: draw(roles) for rank in range(1, 8)}
    counts = st.lists(st.sampled_from([0, 39, 40, 40, 40, 40]), min_size=8, max_size=8)
    return Job(
        started={kind: dict(enumerate(draw(counts))) for kind in KINDS},
        dead=frozenset(rank for rank, each in role.items() if each == "dead"),
        silent=frozenset(rank for rank, each in role.items() if each == "silent"),
        left=frozenset(rank for rank, each in role.items() if each == "left"),
        others=draw(st.sampled_from([(), (), (), (4,), (4, 2), (16, 4)])),
    )


def has_two_groups_without_ranks(job: Job) -> bool:
    """Return True if the text gives two groups of ranks by their size alone."""
    states = [int(r in job.left) for r in (*job.ranks, *job.left)]
    values = [states, *([job.started[kind][r] for r in job.ranks] for kind in KINDS)]
    sizes = [Counter(each).values() for each in values]
    return any(sum(size > 1 and size >= job.size / 2 for size in each) > 1 for each in sizes)


@pytest.mark.parametrize("version", NEW)
@given(job=jobs())
def test_a_text_since_nccl_2_26_names_the_same_ranks_as_json(version: str, job: Job) -> None:
    """It names nobody if the text gives only numbers, or if NCCL misreads its communicators."""
    answer = text(job, version)
    is_misread = job.others and (job.dead or job.silent or job.left)
    same = named(lines(job.json(), job.json()))
    is_unclear = has_two_groups_without_ranks(job) or is_misread
    assert named(printed(answer, answer)) == ([] if is_unclear else same)


@pytest.mark.parametrize("version", OLD)
@given(job=jobs())
def test_a_text_before_nccl_2_26_names_dead_or_silent_ranks_as_json(version: str, job: Job) -> None:
    """It names nobody if the text does not show which of the missing ranks is which."""
    answer = text(job, version)
    is_unclear = (job.dead and job.silent) or ((job.dead or job.silent) and job.left)
    equal = Job(started={"AllReduce": EQUAL}, dead=job.dead, silent=job.silent, left=job.left)
    same = named(lines(equal.json(), equal.json()))
    assert named(printed(answer, answer)) == ([] if is_unclear else same)


BEHIND = Job(started={"Broadcast": EQUAL, "AllReduce": {**EQUAL, 5: 39}}, dead=frozenset({2}))


def test_the_states_of_these_tests_name_ranks() -> None:
    answers = {version: text(BEHIND, version) for version in (*OLD, *NEW)}
    old, new = [("h1", 2, Cause.CRASHED)], [("h1", 2, Cause.CRASHED), ("h2", 5, Cause.RANK_HUNG)]
    for version, answer in answers.items():
        assert named(printed(answer, answer)) == (new if version in NEW else old)


@pytest.mark.parametrize("version", [OLD[-1], NEW[-1]])
def test_a_text_that_was_cut_names_nobody(version: str) -> None:
    answer = text(BEHIND, version)
    for length in range(len(answer) - 1):
        cut = answer[:length]
        assert named(printed(cut, cut)) == []
    assert named(printed(answer, answer, end="")) == []


@pytest.mark.parametrize("version", [OLD[-1], NEW[-1]])
@given(data=st.data())
def test_a_text_with_another_line_names_nobody_else(version: str, data: st.DataObject) -> None:
    answer = text(BEHIND, version)
    all_lines = answer.split("\n")
    at = data.draw(st.integers(0, len(all_lines) - 1))
    all_lines[at] = data.draw(st.sampled_from(all_lines) | st.text(max_size=80) | st.just("9" * 30))
    changed = "\n".join(all_lines)
    assert {*named(printed(changed, changed))} <= {*named(printed(answer, answer))}


@pytest.mark.parametrize("version", ["2.23.4", "2.31.1", "3.0.1"])
def test_a_text_of_another_nccl_names_nobody(version: str) -> None:
    answer = text(BEHIND, version)
    assert named(printed(answer, answer)) == []


def test_a_text_with_two_communicators_of_all_ranks_names_nobody() -> None:
    answer = text(Job(started=BEHIND.started, others=(8,)), "2.27.7")
    assert named(printed(answer, answer)) == []


def test_a_rank_that_moves_between_two_texts_is_not_named() -> None:
    first, second = (
        text(Job(started={"AllReduce": {**dict.fromkeys(range(8), n), 5: n - 1}}), "2.27.7")
        for n in (40, 41)
    )
    assert named(printed(first, first)) == [("h2", 5, Cause.RANK_HUNG)]
    assert named(printed(first, second)) == []
    assert named(printed(first)) == []


@contextmanager
def serving(answer: str, mark: str) -> Iterator[str]:
    """Serve a text in a process with this mark; yield its address."""
    command = [sys.executable, "-m", "tests.factories.ras_server", "0", "text"]
    with subprocess.Popen(
        command,
        env={**os.environ, "ACCEPT_EXEC": mark},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(answer)
        process.stdin.close()
        try:
            yield f"localhost:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def test_the_program_prints_two_texts_of_the_execution(tmp_path: Path) -> None:
    with serving(text(BEHIND, "2.27.7"), MARK) as address:
        done = query(address)
    assert done.returncode == 0, done.stderr
    assert named({"h0": done.stdout}) == [("h1", 2, Cause.CRASHED), ("h2", 5, Cause.RANK_HUNG)]
    keep_ras({"h0": done.stdout}, tmp_path / "0.log")
    kept = (tmp_path / "0.ras.log").read_text()
    assert "# #0-0 (cf264af53edbe986) MISMATCH" in kept.splitlines()


def test_the_program_does_not_print_the_text_of_another_job() -> None:
    with serving(text(BEHIND, "2.27.7"), "another") as address:
        done = query(address)
    assert (done.returncode, done.stdout) == (1, "")


def test_no_text_is_taken_for_another_host_or_for_a_status() -> None:
    behind = json.dumps(status({**EQUAL, 5: 39}))
    answer = f"##### h9\n\x1b[2J\n{behind}\r{behind}\n" + "x" * (1 << 20)
    with serving(answer, MARK) as address:
        done = query(address)
    assert all(line.startswith("# ") and line.isprintable() for line in done.stdout.splitlines())
    assert "# end of text" not in done.stdout
    assert 0 < len(done.stdout) < (1 << 20)
    assert named({"h0": done.stdout}) == []


def test_an_nccl_without_json_that_sends_no_text_is_an_end_without_an_error() -> None:
    with serving("", MARK) as address:
        done = query(address)
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
