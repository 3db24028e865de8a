"""Executes one step on its groups, a wave at a time, and leaves a record of each execution.

A group runs under its own timeout. One that hangs, crashes or loses a host is ended on every one of
its hosts and harms no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from accept.core import evidence
from accept.core.checks import parse_log
from accept.core.model import Parsed, Plan, Problem, Record, Step
from accept.core.remote import (
    Answer,
    Host,
    arguments,
    environment,
    has_connection,
    kill_session,
    run,
)
from accept.core.schedule import Group, Wave

#: Starts under way at once, over all groups; and questions to hosts, over all hosts.
_STARTS = 128
#: A raw log is cut above this.
_LOG_LIMIT = 64 << 20
_LOOK = 5.0
_KILL_SECONDS = 20.0
_ASK_SECONDS = 10.0


@dataclass(kw_only=True)
class Run:
    """A run on its way: where it lives, who takes part, and who was lost."""

    folder: Path
    attempt: str
    plan: Plan
    hosts: tuple[Host, ...] = ()
    #: In the order they were written.
    records: list[Record] = field(default_factory=list)
    #: Host -> what became of it; such a host takes no further part.
    lost: dict[str, Problem] = field(default_factory=dict)
    starts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STARTS))
    asks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STARTS))

    @property
    def evidence(self) -> Path:
        """The folder of what is kept."""
        return self.folder / "evidence"

    def keep(self, record: Record) -> Record:
        """Add a record to those of the run, on disk too, at once."""
        self.records.append(record)
        evidence.append_record(self.evidence, record)
        return record

    def host(self, name: str) -> Host:
        """The host called `name`."""
        return next(h for h in self.hosts if h.name == name)

    def alive(self) -> tuple[Host, ...]:
        """The hosts that still take part, in rank order."""
        return tuple(h for h in self.hosts if h.name not in self.lost)

    async def ask(self, host: Host, command: str, timeout: float = _ASK_SECONDS) -> Answer:
        """Run an sh command on a host."""
        argv = arguments(self.folder, host, command)
        env = environment(self.folder, self.attempt)
        async with self.asks:
            return await run(argv, env=env, timeout=timeout)


async def lose_silent_hosts(state: Run, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """Ask each host whether it is alive; those that do not answer are lost, and returned."""
    answers = await asyncio.gather(*(state.ask(h, "echo alive") for h in hosts))
    gone = []
    for host, answer in zip(hosts, answers, strict=True):
        if answer.out.strip() != "alive" and host.name not in state.lost:
            reason = answer.err.strip().splitlines()[-1:] or [f"ssh ended with {answer.exit}"]
            message = f"{host.name} answered before and does not any more: {reason[0][:200]}"
            problem = Problem(cause="host-died", message=message, check="hosts", host=host.name)
            state.lost[host.name] = problem
            gone.append(problem)
    return tuple(gone)


async def execute_wave(state: Run, step: Step, number: int, wave: Wave) -> tuple[Record, ...]:
    """Run the groups of a wave at the same time; records and logs are written as each one ends."""
    return tuple(
        await asyncio.gather(
            *(_execute(state, step, number, index, group) for index, group in enumerate(wave))
        )
    )


async def _execute(state: Run, step: Step, wave: int, index: int, group: Group) -> Record:
    hosts = [state.host(name) for name in group.hosts]
    mark = f"{state.attempt}/{step.id}/{wave}-{index}"
    log = evidence.log_path(step.id, wave, index)
    path = state.evidence / log
    path.parent.mkdir(parents=True, exist_ok=True)
    command = _command(state, step, mark, group)
    start = time.time()
    outcome = await _supervise(state, step, mark, hosts, command, path)
    parsed = parse_log(step.checks, evidence.open_log(state.evidence, log) or (), group.hosts)
    problems = outcome.problems
    if outcome.exit != 0:
        await lose_silent_hosts(state, hosts)
        # Also those that were lost while it ran, which is why it was ended.
        problems += tuple(state.lost[h.name] for h in hosts if h.name in state.lost)
        problems += await _full_disks(state, hosts)
        cause = "rank-hung" if outcome.exit is None else "crashed"
        problems += await _who_is_behind(state, mark, hosts, cause)
    per_host = len(group.local_ranks) or hosts[0].slots
    record = Record(
        step=step.id,
        checks=step.checks,
        wave=wave,
        group=index,
        hosts=group.hosts,
        local_ranks=group.local_ranks,
        ranks=len(hosts) * per_host,
        command=_mpirun_line(path),
        exit=outcome.exit,
        start=start,
        began=_began(parsed),
        end=outcome.end,
        log=log,
        metrics=parsed.metrics,
        facts=parsed.facts,
        problems=_without_repeats((*problems, *parsed.problems)),
    )
    return state.keep(record)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    exit: int | None
    end: float
    problems: tuple[Problem, ...] = ()


def _command(state: Run, step: Step, mark: str, group: Group) -> str:
    """The sh line that starts the step on the group's first host; the group comes on its stdin."""
    variables = {
        "ACCEPT_GROUP": "-",
        "ACCEPT_EXEC": mark,
        "ACCEPT_LOCAL_RANKS": ",".join(map(str, group.local_ranks)),
        "ACCEPT_PLANT": ",".join(state.plan.planted),
    }
    assigned = " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items() if v)
    script = shlex.quote(str(state.folder / step.script))
    return f"export {assigned}; exec /bin/sh {script}"


async def _supervise(
    state: Run, step: Step, mark: str, hosts: list[Host], command: str, path: Path
) -> _Outcome:
    """Start the step, copy its output to the log, and end it where it does not end by itself."""
    process = None
    try:
        started = asyncio.Event()
        async with state.starts:
            process = await _start(state, hosts, command)
            copying = asyncio.create_task(_copy(process, path, started))
            # A start counts until the step says something: launching is what loads the first host.
            saying = asyncio.create_task(started.wait())
            await asyncio.wait(
                {saying, copying}, timeout=_ASK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            saying.cancel()
        why = await _wait(state, step, hosts, copying)
        status = await process.wait() if why is None else None
    except asyncio.CancelledError:
        if process is not None:
            await _kill(state, mark, hosts)
            kill_session(process)
        raise
    end = time.time()
    if status == 0:
        return _Outcome(exit=0, end=end)
    left = await _kill(state, mark, hosts)
    kill_session(process)
    if why is None:
        return _Outcome(exit=status, end=end, problems=left)
    # What cannot be killed may hold the pipe for ever.
    await asyncio.wait({copying}, timeout=_LOOK)
    copying.cancel()
    return _Outcome(exit=None, end=end, problems=(why, *left))


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
    state: Run, step: Step, hosts: list[Host], copying: asyncio.Task[None]
) -> Problem | None:
    """Wait for the step's end; None where it ended by itself, else why it has to be ended."""
    until = time.monotonic() + step.timeout
    while True:
        now = time.monotonic()
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


async def _copy(process: asyncio.subprocess.Process, path: Path, started: asyncio.Event) -> None:
    """Copy the output to the log, up to the limit; read on even where the disk is full."""
    assert process.stdout is not None
    size = 0
    with path.open("wb", buffering=0) as log:
        while block := await process.stdout.read(1 << 16):
            started.set()
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
    asked = [h for h in hosts if h.name not in state.lost]
    answers = await asyncio.gather(*(state.ask(h, command, _KILL_SECONDS) for h in asked))
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


async def _who_is_behind(
    state: Run, mark: str, hosts: Sequence[Host], cause: str
) -> tuple[Problem, ...]:
    """Name the ranks that never entered the operation the others wait in.

    Each rank keeps a file named by its number, in which it writes `SEQUENCE OPERATION ...` when it
    enters one. Only ranks behind the furthest are named, and only where they are the minority.
    """
    folder = shlex.quote(str(state.folder / "progress" / mark))
    command = f"cd {folder} 2>/dev/null && head -n 1 [0-9]* /dev/null 2>/dev/null"
    asked = [h for h in hosts if h.name not in state.lost]
    answers = await asyncio.gather(*(state.ask(h, command) for h in asked))
    seen: dict[tuple[str, int], tuple[int, str]] = {}
    for host, answer in zip(asked, answers, strict=True):
        rank = -1
        for line in answer.out.splitlines():
            words = line.split()
            if line.startswith("==>") and len(words) == 3 and words[1].isdigit():
                rank = int(words[1])
            elif rank >= 0 and words and words[0].lstrip("-").isdigit():
                seen[host.name, rank] = int(words[0]), " ".join(words[1:4])[:80]
    if len({sequence for sequence, _ in seen.values()}) < 2:
        return ()
    furthest = max(sequence for sequence, _ in seen.values())
    behind = {key: at for key, at in seen.items() if at[0] < furthest}
    if 2 * len(behind) > len(seen):
        counts = Counter(sequence for sequence, _ in seen.values())
        lowest = min(counts)
        behind = {key: at for key, at in behind.items() if at[0] == lowest}
        if 2 * len(behind) > len(seen):
            return ()
    return tuple(
        Problem(
            cause=cause,
            message=f"rank {rank} on {host} stopped at operation {sequence} ({what}); "
            f"others wait in {furthest}",
            host=host,
            rank=rank,
        )
        for (host, rank), (sequence, what) in sorted(behind.items())[:16]
    )


async def _full_disks(state: Run, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """The hosts on which nothing can be written to the run's folder any more."""
    folder = shlex.quote(str(state.folder))
    command = (
        f"cd {folder} && head -c 65536 /dev/zero > full-disk-probe; "
        "s=$?; rm -f full-disk-probe; exit $s"
    )
    asked = [h for h in hosts if h.name not in state.lost]
    answers = await asyncio.gather(*(state.ask(h, command) for h in asked))
    return tuple(
        Problem(
            cause="disk-full",
            message=f"{host.name}: nothing can be written to {state.folder}: "
            f"{answer.err.strip()[-200:]}",
            host=host.name,
        )
        for host, answer in zip(asked, answers, strict=True)
        if answer.exit not in (0, None) and "No space left" in answer.err
    )


def _mpirun_line(path: Path) -> str:
    """The launcher's command line, which the step prints before it uses it."""
    with path.open("rb") as file:
        for _ in range(50):
            line = file.readline(1 << 14)
            if line.startswith(b"# Open MPI "):
                return line.decode(errors="replace").partition(": ")[2].strip()[:8000]
    return ""


def _began(parsed: Parsed) -> float | None:
    values = [f.value for f in parsed.facts if f.name == "began"]
    return float(values[0]) if values and isinstance(values[0], int | float) else None


def _without_repeats(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Problems once each: several ranks may see the same thing."""
    kept: Mapping[tuple[object, ...], Problem] = {
        (p.cause, p.check, p.host, p.rank, p.gpu): p for p in reversed(problems)
    }
    return tuple(reversed(tuple(replace(p, message=p.message[:500]) for p in kept.values())))
