"""Commands of the coordinator on other hosts, over the run's own ssh."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories.clock import PATIENCE

from accept.core.runner.ssh import Answer, Host, marked_arguments, run

#: A stand-in for ssh: the login shell prints a greeting, then runs the command, the last argument.
SSH = """\
#!/bin/sh
for command; do :; done
cat "{greeting}"
exec sh -c "$command"
"""


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Return a function that runs a command on a host whose login shell prints `greeting`."""
    greeting, program = tmp_path / "greeting", tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(greeting=greeting))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    def ask(command: str, *, text: str, local: bool = False) -> Answer:
        greeting.write_text(text)
        host = Host(name="h1", mpi_name="h1", address="10.0.0.1", port=22, slots=1, local=local)
        return asyncio.run(run(marked_arguments(tmp_path, host, command), timeout=PATIENCE))

    return ask


@pytest.mark.parametrize("text", ["", "Welcome\n", "no newline", "x" * 200_000])
def test_output_of_the_login_shell_is_removed(ask: Callable[..., Answer], text: str) -> None:
    for command, status, out in (("echo one; echo two", 0, "one\ntwo\n"), ("exit 3", 3, "")):
        answer = ask(command, text=text)
        assert (answer.exit, answer.text) == (status, out)


def test_each_failure_has_a_reason() -> None:
    reasons: dict[tuple[int | None, str], str] = {
        (255, "banner\n lost \n\n"): "lost",
        (255, " \n"): "exit status 255",
    }
    reasons |= {(None, ""): "no answer in time"}
    assert {one: Answer(exit=one[0], err=one[1].encode()).reason for one in reasons} == reasons


def test_a_command_on_the_own_host_has_all_of_its_output(ask: Callable[..., Answer]) -> None:
    assert ask("echo one", text="", local=True).text == "one\n"


def test_a_command_that_outlives_its_timeout_leaves_no_error_on_the_console(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process in another session keeps the output open, as the master of a connection does."""
    descriptors = Path("/proc/self/fd")

    async def outlive() -> int | None:
        # A busy machine needs more than half a second until the command has begun.
        timeout, out = 0.5, ""
        while not out:
            before = len([*descriptors.iterdir()])
            command = "setsid sleep 600 & echo $!; exec sleep 600"
            answer = await run(["/bin/sh", "-c", command], timeout=timeout)
            timeout, out = timeout * 2, answer.text
        os.kill(int(out), signal.SIGKILL)
        # Its end closes the output, which asyncio notices a moment later.
        while len([*descriptors.iterdir()]) > before:
            await asyncio.sleep(0.01)
        return answer.exit

    assert asyncio.run(outlive()) is None
    gc.collect()
    assert caplog.records == []


#: Cancels a command whose output a process in another session keeps open, and kills that process.
CANCEL = """
import asyncio, os, pathlib, signal, sys
from accept.core.runner.ssh import run
pid = pathlib.Path(sys.argv[1])
async def cancel():
    keep = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"
    command = f"echo; setsid sh -c '{keep}' & exec sleep 60"
    heard, seconds = asyncio.Event(), float(sys.argv[2])
    # asyncio of Python 3.10 leaves pipes open if it is cancelled while it opens them.
    running = asyncio.create_task(
        run(["/bin/sh", "-c", command], timeout=seconds, heard=heard.set)
    )
    await heard.wait()
    while not pid.exists():
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
for _ in range(10):
    asyncio.run(cancel())
    os.kill(int(pid.read_text()), signal.SIGKILL)
    pid.unlink()
"""


def test_a_cancelled_command_leaves_nothing_open_after_the_event_loop(
    tmp_path: Path,
) -> None:
    """Python would print it. A process of its own has nothing that earlier tests left."""
    command = [sys.executable, "-W", "default", "-c", CANCEL, str(tmp_path / "pid"), str(PATIENCE)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
