"""Supervise one execution: start it, copy its output to its log, and end it if it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accept.core.catalog.faults import for_ranks
from accept.core.causes import Cause
from accept.core.checks import checks_of
from accept.core.failures import is_over
from accept.core.groups import Group
from accept.core.plan import Launcher, Step
from accept.core.records import Problem
from accept.core.runner import nccl
from accept.core.runner.clock import now
from accept.core.runner.residents import ResidentJob
from accept.core.runner.ssh import Host, Session, arguments, environment, has_connection
from accept.core.runner.state import ASK_SECONDS, Run, lose_silent_hosts
from accept.core.text import duration

#: Maximum size of a raw log, in bytes.
_LOG_LIMIT = 64 << 20
#: Interval of checks whether the hosts are alive, in seconds.
_LOOK = 5.0
#: Maximum time for mpirun to end after it has reported a failed launch.
_ENDING_SECONDS = 10.0
_KILL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of an execution."""

    #: Exit status; None if the coordinator ended it.
    exit: int | None
    end: float
    problems: tuple[Problem, ...] = ()
    #: True if the deadline of the run ended it, not its own timeout.
    late: bool = False
    #: What NCCL's RAS answered on each host before a hung execution was killed.
    ras: dict[str, str] = field(default_factory=dict)


def _command(state: Run, step: Step, mark: str, group: Group) -> str:
    """Return the sh line that starts the step on the group's first host.

    The command reads the group's hosts from its stdin.
    """
    variables = {
        "ACCEPT_GROUP": "-",
        "ACCEPT_EXEC": mark,
        "ACCEPT_LOCAL_RANKS": ",".join(map(str, group.local_ranks)),
        "ACCEPT_PROFILE": step.profile,
        "ACCEPT_INJECT": for_ranks(state.plan.injected),
        **{
            f"ACCEPT_{name.upper()}": str(step.params[name])
            for check in checks_of(step)[:1]
            for name in check.changeable
            if name in step.params
        },
    }
    assigned = " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items() if v)
    script = shlex.quote(str(state.folder / step.script))
    return f"export {assigned}; exec /bin/sh {script}"


def has_residents(state: Run, step: Step) -> bool:
    """Return True if the resident programs of the hosts measure a step, not its script."""
    return state.plan.launcher is Launcher.RESIDENT and state.residents.serves(step)


async def supervise(state: Run, step: Step, mark: str, group: Group, path: Path) -> Outcome:
    """Start the step on its group, copy its output to the log `path`, and wait for its end.

    All its processes have `mark` in their environment as ACCEPT_EXEC.
    """
    hosts = [state.host(name) for name in group.hosts]
    process: Session | ResidentJob | None = None
    copying = None
    try:
        started, failed = asyncio.Event(), asyncio.Event()
        if by_residents := has_residents(state, step):
            await state.residents.prepare(step.profile, hosts, state.until - time.monotonic())
        async with state.starts:
            if by_residents:
                inject = for_ranks(state.plan.injected)
                process = await state.residents.execute(step, mark, group, hosts, inject)
            else:
                process = await _start(state, hosts, _command(state, step, mark, group))
            copying = asyncio.create_task(_copy(process, path, started, failed))
            # A start lasts until the first output, because launching loads the first host.
            first_output = asyncio.create_task(started.wait())
            await asyncio.wait(
                {first_output, copying}, timeout=ASK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            first_output.cancel()
        reason = await _wait(state, step, hosts, copying, failed)
        late = reason is not None and reason.cause is Cause.TIMED_OUT and state.is_over()
        status = await process.wait() if reason is None else None
    except asyncio.CancelledError:
        if process is not None:
            await _end(state, process, mark, hosts)
            await process.close()
        if copying is not None:
            # The log must not change after the evidence was sealed.
            copying.cancel()
        raise
    end = now()
    if status == 0:
        await process.close()
        return Outcome(exit=0, end=end)
    hangs = reason is not None and reason.cause is Cause.TIMED_OUT
    ras = await nccl.ask_ras(state, mark, hosts) if hangs else {}
    survivors = await _end(state, process, mark, hosts)
    if reason is None:
        await process.close()
        return Outcome(exit=status, end=end, problems=survivors)
    # A process that cannot be killed may keep the pipe open forever.
    ending = asyncio.create_task(process.wait())
    await asyncio.wait({copying, ending}, timeout=_LOOK)
    copying.cancel()
    ending.cancel()
    await process.close()
    problems = survivors if late else (reason, *survivors)
    return Outcome(exit=None, end=end, problems=problems, late=late, ras=ras)


async def _start(state: Run, hosts: list[Host], command: str) -> Session:
    """Start `command` on the first host, with the group's description on its standard input."""
    process = await Session.start(
        arguments(state.folder, hosts[0], command),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(state.folder, state.attempt),
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
    """Wait until the step ends, and return None; or return the reason to end it."""
    until = min(time.monotonic() + step.timeout, state.until)
    launch_until = math.inf
    while True:
        now = time.monotonic()
        # A user's own script may start mpirun again.
        if failed.is_set() and not step.tool and not any(c.user_script for c in checks_of(step)):
            launch_until = min(launch_until, now + _ENDING_SECONDS)
        if now >= launch_until:
            message = f"{step.id} was ended: its launch failed, and mpirun did not end"
            return Problem(cause=Cause.LAUNCH_FAILED, message=message)
        if now >= until:
            return Problem(
                cause=Cause.TIMED_OUT,
                message=f"{step.id} did not end within {duration(step.timeout)}",
            )
        await asyncio.wait({copying}, timeout=min(_LOOK, max(0.01, until - now)))
        if copying.done():
            return None
        silent = [h for h in hosts if not has_connection(state.folder, h)]
        await lose_silent_hosts(state, silent)
        # This includes hosts whose loss another group of the wave has noticed first.
        names = ", ".join(h.name for h in silent if h.name in state.lost)
        if names:
            return Problem(cause=Cause.CRASHED, message=f"{step.id} was ended: it lost {names}")


async def _copy(
    process: Session | ResidentJob, path: Path, started: asyncio.Event, failed: asyncio.Event
) -> None:
    """Copy the output to the log, up to the limit; keep reading even if the disk is full.

    Set `started` at the first output, and `failed` when mpirun reports a failed launch.
    """
    assert process.stdout is not None
    size, rest = 0, b""
    with path.open("wb", buffering=0) as log:
        while block := await process.stdout.read(1 << 16):
            started.set()
            if is_over(text := rest + block):
                failed.set()
            # A line may continue in the next block.
            rest = text[-80:]
            if size < _LOG_LIMIT:
                with contextlib.suppress(OSError):
                    log.write(block[: _LOG_LIMIT - size])
                size += len(block)
        if size >= _LOG_LIMIT:
            with contextlib.suppress(OSError):
                log.write(b"\n# the log was cut here\n")


async def _end(
    state: Run, process: Session | ResidentJob, mark: str, hosts: Sequence[Host]
) -> tuple[Problem, ...]:
    """Kill the processes of the execution; return the problems of hosts on which some survive."""
    if isinstance(process, Session):
        survivors = await _kill(state, mark, hosts)
        process.kill_session()
        return survivors
    # A program that does not obey is ended itself, and started again for the next execution.
    stuck = await process.kill(state.lost, _KILL_SECONDS)
    ended = await asyncio.gather(*(_kill(state, mark, [host]) for host, mark in stuck.items()))
    return tuple(itertools.chain.from_iterable(ended))


async def _kill(state: Run, mark: str, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """Kill the processes of the execution on all its hosts.

    A host on which processes survive is lost; return the problems of such hosts.
    """
    script = shlex.quote(str(state.folder / "kill.sh"))
    command = f"/bin/sh {script} {shlex.quote('ACCEPT_EXEC=' + mark)}"
    # Another user may run an attempt of the same name on this host, in another folder.
    local_command = f"{command} {shlex.quote(f'ACCEPT_DIR={state.folder}')}"
    alive = [h for h in hosts if h.name not in state.lost]
    answers = await asyncio.gather(
        *(state.ask(h, local_command if h.local else command, _KILL_SECONDS) for h in alive)
    )
    unconfirmed = {h.name: a for h, a in zip(alive, answers, strict=True) if a.exit != 0}
    problems = list(await lose_silent_hosts(state, [h for h in alive if h.name in unconfirmed]))
    for name, answer in unconfirmed.items():
        if name not in state.lost:
            pids = " ".join(answer.text.split()[:20])
            reason = f"processes {pids} survive KILL" if pids else "the kill was not confirmed"
            message = f"{name}: {reason}; the host is left out now"
            state.lost[name] = Problem(cause=Cause.UNKILLABLE, message=message, host=name)
            problems.append(state.lost[name])
    return tuple(problems)
