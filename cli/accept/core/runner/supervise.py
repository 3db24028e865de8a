"""One execution on its way: started, copied to its log, ended where it does not end by itself."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.core.catalog.faults import for_ranks
from accept.core.groups import Group
from accept.core.launcher_errors import is_over
from accept.core.model import Problem, Step
from accept.core.runner.ssh import Host, arguments, environment, has_connection, kill_session
from accept.core.runner.state import ASK_SECONDS, Run, lose_silent_hosts

#: A raw log is cut above this.
_LOG_LIMIT = 64 << 20
_LOOK = 5.0
#: How long mpirun may take to end once it has said that its launch failed.
_ENDING_SECONDS = 10.0
_KILL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an execution ended, and when; `exit` is None where it had to be ended.

    `late`: what ended it is the run's time, not its own.
    """

    exit: int | None
    end: float
    problems: tuple[Problem, ...] = ()
    late: bool = False


def _command(state: Run, step: Step, mark: str, group: Group) -> str:
    """The sh line that starts the step on the group's first host; the group comes on its stdin."""
    variables = {
        "ACCEPT_GROUP": "-",
        "ACCEPT_EXEC": mark,
        "ACCEPT_LOCAL_RANKS": ",".join(map(str, group.local_ranks)),
        "ACCEPT_PLANT": for_ranks(state.plan.planted),
    }
    assigned = " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items() if v)
    script = shlex.quote(str(state.folder / step.script))
    return f"export {assigned}; exec /bin/sh {script}"


async def supervise(state: Run, step: Step, mark: str, group: Group, path: Path) -> Outcome:
    """Start the step on its group, copy its output to the log `path`, and see it to its end.

    `mark` is what all its processes carry in their environment, as ACCEPT_EXEC.
    """
    hosts = [state.host(name) for name in group.hosts]
    command = _command(state, step, mark, group)
    process = None
    try:
        started, failed = asyncio.Event(), asyncio.Event()
        async with state.starts:
            process = await _start(state, hosts, command)
            copying = asyncio.create_task(_copy(process, path, started, failed))
            # A start counts until the step says something: launching is what loads the first host.
            saying = asyncio.create_task(started.wait())
            await asyncio.wait(
                {saying, copying}, timeout=ASK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            saying.cancel()
        why = await _wait(state, step, hosts, copying, failed)
        late = why is not None and why.cause == "timed-out" and state.is_over()
        status = await process.wait() if why is None else None
    except asyncio.CancelledError:
        if process is not None:
            await _kill(state, mark, hosts)
            kill_session(process)
        raise
    end = time.time()
    if status == 0:
        return Outcome(exit=0, end=end)
    left = await _kill(state, mark, hosts)
    kill_session(process)
    if why is None:
        return Outcome(exit=status, end=end, problems=left)
    # What cannot be killed may hold the pipe for ever.
    ending = asyncio.create_task(process.wait())
    await asyncio.wait({copying, ending}, timeout=_LOOK)
    copying.cancel()
    ending.cancel()
    return Outcome(exit=None, end=end, problems=left if late else (why, *left), late=late)


async def _start(state: Run, hosts: list[Host], command: str) -> asyncio.subprocess.Process:
    """Start `command` on the first host, with the group's description on its standard input."""
    process = await asyncio.create_subprocess_exec(
        *arguments(state.folder, hosts[0], command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(state.folder, state.attempt),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write("".join(h.group_line() for h in hosts).encode())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.drain()
    process.stdin.close()
    return process


async def _wait(
    state: Run,
    step: Step,
    hosts: list[Host],
    copying: asyncio.Task[None],
    failed: asyncio.Event,
) -> Problem | None:
    """Wait for the step's end; None where it ended by itself, else why it has to be ended."""
    until = min(time.monotonic() + step.timeout, state.until)
    ending = math.inf
    while True:
        now = time.monotonic()
        # A script of the user's own may try again.
        if failed.is_set() and "script" not in step.checks:
            ending = min(ending, now + _ENDING_SECONDS)
        if now >= ending:
            message = f"{step.id} was ended: its launch failed, and mpirun did not end"
            return Problem(cause="launch-failed", message=message)
        if now >= until:
            return Problem(
                cause="timed-out", message=f"{step.id} did not end within {step.timeout:.0f} s"
            )
        await asyncio.wait({copying}, timeout=min(_LOOK, max(0.01, until - now)))
        if copying.done():
            return None
        silent = [h for h in hosts if not has_connection(state.folder, h)]
        await lose_silent_hosts(state, silent)
        # Another group of the wave may have found it out: it is this one's end all the same.
        names = ", ".join(h.name for h in silent if h.name in state.lost)
        if names:
            return Problem(cause="crashed", message=f"{step.id} was ended: it lost {names}")


async def _copy(
    process: asyncio.subprocess.Process, path: Path, started: asyncio.Event, failed: asyncio.Event
) -> None:
    """Copy the output to the log, up to the limit; read on even where the disk is full."""
    assert process.stdout is not None
    size, rest = 0, b""
    with path.open("wb", buffering=0) as log:
        while block := await process.stdout.read(1 << 16):
            started.set()
            if is_over(said := rest + block):
                failed.set()
            # A line goes on in the next block where this one does not end it.
            rest = said[-80:]
            if size < _LOG_LIMIT:
                with contextlib.suppress(OSError):
                    log.write(block[: _LOG_LIMIT - size])
                size += len(block)
        if size >= _LOG_LIMIT:
            with contextlib.suppress(OSError):
                log.write(b"\n# the log was cut here\n")


async def _kill(state: Run, mark: str, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """End what the execution started, on every host that answers; what survives loses its host."""
    script = shlex.quote(str(state.folder / "kill.sh"))
    command = f"/bin/sh {script} {shlex.quote('ACCEPT_EXEC=' + mark)}"
    # Here somebody else may have a run of this name, in another folder.
    here = f"{command} {shlex.quote(f'ACCEPT_DIR={state.folder}')}"
    asked = [h for h in hosts if h.name not in state.lost]
    answers = await asyncio.gather(
        *(state.ask(h, here if h.local else command, _KILL_SECONDS) for h in asked)
    )
    doubtful = {h.name: a for h, a in zip(asked, answers, strict=True) if a.exit != 0}
    problems = list(await lose_silent_hosts(state, [h for h in asked if h.name in doubtful]))
    for name, answer in doubtful.items():
        if name not in state.lost:
            pids = " ".join(answer.out.split()[:20])
            said = f"processes {pids} survive KILL" if pids else "the kill was not confirmed"
            message = f"{name}: {said}; the host is left out now"
            state.lost[name] = Problem(cause="unkillable", message=message, host=name)
            problems.append(state.lost[name])
    return tuple(problems)
