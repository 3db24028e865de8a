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
