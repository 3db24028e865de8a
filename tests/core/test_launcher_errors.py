"""A failed launch is reported as such, and not as an unreadable log."""

from __future__ import annotations

import pytest

from accept.core.checks import parse_log
from accept.core.launcher_errors import watch
from accept.core.model import Problem

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
    assert list(watch(lines, [])) == lines


@pytest.mark.parametrize(
    ("line", "host"),
    [
        (b"ssh: connect to host h2 port 22: Connection refused\r\n", "h2"),
        (b"ssh: Could not resolve hostname h2.x: Name or service not known\n", "h2.x"),
        (b"srun: error: Task launch for StepId=5.0 failed on node h2: Timed out\n", "h2"),
        (b"srun: error: Node failure on h[2-4]\n", None),
        (b"slurmstepd: error: *** STEP 7.0 ON h2 CANCELLED AT 1 DUE TO TIME LIMIT ***\n", None),
    ],
)
@pytest.mark.parametrize("cut", [0, 8, 21, 30])
def test_the_host_in_a_message_of_the_launcher_is_found(
    line: bytes, host: str | None, cut: int
) -> None:
    found: list[Problem] = []
    before = b"x 1 2 3\n" * 40_000
    list(watch([before, line[:cut], line[cut:]], found))
    assert [problem.host for problem in found] == [host]


def test_output_of_a_program_is_not_a_message_of_the_launcher() -> None:
    found: list[object] = []
    list(watch([b'ACCEPT {"fact":"x","value":"No space left on device"}\n'], found))  # type: ignore[arg-type]
    assert found == []


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
