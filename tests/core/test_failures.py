"""A failed launch is reported as such, and not as an unreadable log."""

from __future__ import annotations

import pytest
from tests.factories.known_lines import EXAMPLES
from tests.factories.nccl_logs import table

from accept.core.causes import Cause
from accept.core.checks import parse_log
from accept.core.failures import OF_TABLES, launch_problems, without_innocent
from accept.core.records import Problem
from accept.core.signs import Finder, catalog, decisive
from accept.foreign_logs import tables

#: As Open MPI 5.0.11 printed it when a host refused the key of the host that started the group.
DAEMON = b"""\
# Open MPI 5: 'mpirun' '-np' '2'
------------------------------------------------------------
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries.

  Local host:    h4
  Remote host:   h2
  Daemon exit status: 255
------------------------------------------------------------
Host key verification failed.
"""


@pytest.mark.parametrize("check", ["connectivity", "all-reduce", "train"])
def test_a_daemon_that_never_reported_is_a_failed_launch(check: str) -> None:
    problems = parse_log((check,), DAEMON.splitlines(keepends=True)).problems
    assert {problem.cause for problem in problems} == {"launch-failed"}


def test_all_lines_pass_through() -> None:
    lines = [b"line %d\n" % n for n in range(2000)]
    assert list(Finder(catalog()).watch(lines)) == lines


def test_the_host_in_a_message_of_a_launcher_is_read() -> None:
    before = b"x 1 2 3\n" * 40_000
    for line, host in (
        (b"ssh: connect to host h2 port 22: Connection refused\r\n", "h2"),
        (b"ssh: Could not resolve hostname h2.x: Name or service not known\n", "h2.x"),
        (b"srun: error: Task launch for StepId=5.0 failed on node h2: Timed out\n", "h2"),
        (b"srun: error: Node failure on h[2-4]\n", None),
        (b"slurmstepd: error: *** STEP 7.0 ON h2 CANCELLED AT 1 DUE TO TIME LIMIT ***\n", None),
    ):
        for cut in (0, 8, 21, 30):
            found = launch_problems(decisive([before, line[:cut], line[cut:]]))
            assert [problem.host for problem in found] == [host], (line, cut)


def test_output_of_a_program_is_not_a_message_of_the_launcher() -> None:
    record = b'ACCEPT {"fact":"x","value":"No space left on device"}\n'
    assert list(decisive(record)) == []


#: As Open MPI 4.1.4 printed it when its daemon on another host was paused; the exit status is 250.
NO_PATH = b"""\
# Open MPI 4: 'mpirun' '-np' '2'
[h2:03102] UNSUPPORTED DAEMON ERROR STATE: NO PATH TO TARGET
--------------------------------------------------------------------------
"""
CHECKS = ["connectivity", "all-reduce", "train", "gemm", "inventory"]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("log", "line"), [(NO_PATH, "NO PATH TO TARGET"), (b"", "")])
def test_a_launch_that_ended_before_its_program_began_has_its_status_and_line(
    check: str, log: bytes, line: str
) -> None:
    (problem,) = parse_log((check,), log.splitlines(keepends=True), status=250).problems
    assert (problem.cause, problem.host) == ("launch-failed", None)
    assert "250" in problem.message
    assert line in problem.message


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "line",
    [
        b'ACCEPT {"fact":"began","value":1.0}\n',
        b"Traceback (most recent call last):\n",
        b"mpirun noticed that process rank 1 with PID 0 on node h2 exited on signal 9\n",
        b"prterun detected that one or more processes exited with non-zero status\n",
        b"srun: error: h2: task 1: Exited with exit code 1\n",
        b"h2:3102:3102 [0] NCCL INFO Bootstrap : Using eth0\n",
    ],
)
def test_a_program_that_began_and_failed_was_launched(check: str, line: bytes) -> None:
    problems = parse_log((check,), [b"# Open MPI 4: 'mpirun'\n", line], status=1).problems
    assert "launch-failed" not in {problem.cause for problem in problems}


def test_a_log_that_never_began_is_not_unparsable_if_it_was_killed() -> None:
    assert parse_log(("all-reduce",), NO_PATH.splitlines(keepends=True), status=None).problems == ()


def test_the_status_of_a_script_of_the_user_is_its_own() -> None:
    assert parse_log(("script",), [b"no\n"], status=3).problems == ()


HOSTS = ("node1", "node2")
HEAD = table("all_reduce", HOSTS, range(8), 95.0).partition("#       size")[0]


def shown(problems: tuple[Problem, ...]) -> set[tuple[Cause, str | None, str | None]]:
    return {(p.cause, p.sign, p.host) for p in problems if p.cause not in OF_TABLES}


def test_a_known_line_explains_a_run_as_it_explains_any_other_log() -> None:
    """The run has the same cause, of the same line, and it accuses the same host."""
    for name, example in EXAMPLES:
        (match,) = decisive(example.encode())
        host = match.host or "node1"
        text = f"{HEAD}{example}\n{host}: Test NCCL failure common.cu:958 'x / '\n".encode()
        own = parse_log(("all-reduce",), [text], (host, "node2"), status=1).problems
        read = tables.read("a.log", [text])
        other = (*read.problems, *(p for measured in read.tables for p in measured.problems))
        assert {one[:2] for one in shown(own)} == {one[:2] for one in shown(other)}, name
        hosts = {host for *_, host in shown(own)}
        assert hosts <= {None, *(host for *_, host in shown(other))}, name
        if match.sign.shows_cause and match.sign.cause is not Cause.CRASHED:
            assert (match.sign.cause, name) in {one[:2] for one in shown(own)}
        if match.sign.is_mistake and match.sign.shows_cause:
            assert hosts == {None}, name


@pytest.mark.parametrize("check", ["train", "gemm", "connectivity", "script"])
def test_a_known_line_explains_a_program_that_ended_without_a_word(check: str) -> None:
    began = b'ACCEPT {"fact":"began","value":1.0}\n'
    assert parse_log((check,), [began], HOSTS, status=1).problems == ()
    for name, example in EXAMPLES:
        problems = parse_log((check,), [began, f"{example}\n".encode()], HOSTS, status=1).problems
        assert name in {problem.sign for problem in problems}


def test_a_mistake_of_the_user_in_the_log_accuses_no_host_whose_ranks_stopped() -> None:
    stopped = Problem(cause=Cause.CRASHED, message="rank 3 is dead", host="node1")
    for name, example in EXAMPLES:
        (match,) = decisive(example.encode())
        (found,) = without_innocent([stopped], [match.problem()])
        is_mistake = match.sign.is_mistake and match.sign.shows_cause
        assert (found.host is None) is is_mistake, name
