"""Output of hosts and servers is bounded before it is kept."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from tests.factories.clock import PATIENCE
from tests.factories.paths import ROOT
from tests.factories.shell import run_program

from accept.backends import manage, remote
from accept.core import bounded
from accept.core.error_codes import Code

ENDLESS = "while printf '%65536s' x; do :; done"
REACH = remote.Reach(
    arguments=lambda host, command: ["sh", "-c", command], missing=Code.SSH_MISSING, hint=""
)


def test_output_errors_and_input_are_passed_on() -> None:
    done = bounded.run(["sh", "-c", "cat; echo e >&2; exit 3"], stdin=b"a" * 200_000, timeout=60)
    assert done == bounded.Output(exit=3, out=b"a" * 200_000, err=b"e\n")


def test_a_reply_without_end_is_refused_at_once() -> None:
    reply = remote.call(REACH, "h1", ENDLESS, timeout=PATIENCE)
    assert (reply.exit, reply.out) == (None, b"")
    assert "too long" in reply.errors


def test_errors_without_end_keep_their_last_lines() -> None:
    script = "import sys; sys.stderr.write('x' * 10_000_000 + 'end')"
    done = bounded.run([sys.executable, "-c", script], timeout=PATIENCE)
    assert (done.exit, len(done.err), done.errors[-4:]) == (0, 64 << 10, "xend")


def test_a_program_without_answer_ends_with_its_time() -> None:
    for script in ("sleep 1000", "exec >&- 2>&-; sleep 1000"):
        assert bounded.run(["sh", "-c", script], timeout=0.5).exit is None


def test_many_hosts_share_the_room_for_their_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_MOST_TOTAL", 1 << 20)
    for hosts, exit_status in ((4, 0), (64, None)):
        replies = bounded.on_all(
            map(str, range(hosts)),
            lambda host: remote.call(REACH, host, "printf '%131072s' x", timeout=PATIENCE),
        )
        assert {reply.exit for reply in replies.values()} == {exit_status}


def test_an_endless_line_of_the_console_is_printed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = manage._ENDED + b"0\n"
    stream = (b"x" * (1 << 16) for _ in range(64))

    def follow(*_: object) -> object:
        yield from stream
        yield b"\n" + ended

    monkeypatch.setattr(manage, "_follow", follow)
    lines: list[str] = []
    assert manage.Console(lines.append).follow(REACH, "h1", "folder") == "0"
    assert sum(map(len, lines)) == 64 << 16
    assert max(map(len, lines)) <= 2 << 16


#: Calls of clients whose program prints without end, and the error or outcome of each.
CLIENTS = {
    "sinfo": "from accept.backends.slurm.client import query; query('sinfo')",
    "sbatch": "from accept.backends.slurm.client import call; call('sbatch', stdin='x' * 100_000)",
    "helm": (
        "from accept.backends.job import Place\n"
        "from accept.backends.kubernetes.submit import release_values\n"
        "release_values(Place(namespace='lab'), 'train')"
    ),
    "ssh-keygen": "from accept.core.runner.keys import new_keys; new_keys('test')",
    "scontrol": (
        "import os; os.environ['SLURM_JOB_NODELIST'] = 'n[1-2]'\n"
        "from accept.core.runner.slurm import _nodes_of_job; _nodes_of_job()"
    ),
    "nvidia-smi": (
        "from accept.backends.requirements import tools_here; tools_here('nvidia-smi', 60)"
    ),
}
#: Calls that must go on without what a program prints.
OTHERS = {
    "ssh": """
from accept.backends import remote
reach = remote.Reach(arguments=lambda h, c: ["ssh"], missing=None, hint="")
print(remote.call(reach, "h1", "true", timeout=60).errors)
""",
    "squeue": "from accept.core.runner.slurm import _is_cancelled as f; print(f('1'))",
    "gcloud": """
import sys, time; sys.path.insert(0, "launchers/programs")
import object_store, upload
tool = upload.Tool("gs://bucket", time.monotonic() + 60)
try: tool.read("plan.json")
except OSError as error: print(error)
""",
    "tool": """
import sys; sys.path.insert(0, "launchers/programs")
import commands; print(commands.run(60, "tool").err)
""",
}
SHOWN = {
    "ssh": "the reply is too long",
    "squeue": "False",
    "gcloud": "gcloud: it printed more than 64 MiB",
    "tool": "it printed more than 16 MiB",
}
#: Its output has 600 MB and no line end.
_PRINTS = "#!/bin/sh\nexec head -c 600000000 /dev/zero\n"


def _called(tmp_path: Path, program: str, code: str) -> str:
    """Return what a call prints if the program prints without end; check time and memory."""
    stand_in = tmp_path / program
    stand_in.write_text(_PRINTS)
    stand_in.chmod(0o755)
    measured = (
        "from accept.core.errors import AcceptError\n"
        f"try:\n{textwrap.indent(code, '    ')}\n"
        "except AcceptError as error: print(error.code)\n"
        # Not ru_maxrss: a child that subprocess starts inherits the peak of its parent.
        "status = open('/proc/self/status').read()\n"
        "print(int(status.split('VmHWM:')[1].split()[0]) >> 10)"
    )
    done = run_program(
        [sys.executable, "-c", measured],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    *lines, peak = done.stdout.splitlines()
    assert int(peak) < 300
    return "\n".join(lines)


@pytest.mark.sampled
@pytest.mark.parametrize("program", CLIENTS)
def test_a_program_that_prints_without_end_is_one_clear_error(tmp_path: Path, program: str) -> None:
    assert _called(tmp_path, program, CLIENTS[program]) == Code.OUTPUT_TOO_LONG


@pytest.mark.parametrize("program", OTHERS)
def test_a_reply_without_end_counts_as_none(tmp_path: Path, program: str) -> None:
    assert _called(tmp_path, program, OTHERS[program]) == SHOWN[program]


def test_errors_that_a_child_keeps_open_delay_nobody() -> None:
    # As with a connection that ssh shares in the background.
    done = bounded.run(["sh", "-c", "sleep 1000 >/dev/null & echo $!; exit 3"], timeout=1000)
    os.kill(int(done.text), signal.SIGKILL)
    assert done.exit == 3
