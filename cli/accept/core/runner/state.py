"""The state of a run in progress, and which of its hosts still answer."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accept.core import evidence
from accept.core.causes import Cause
from accept.core.groups import MAX_CONCURRENT
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.plan import Plan
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.runner.clock import now
from accept.core.runner.residents import Residents
from accept.core.runner.ssh import (
    Answer,
    Host,
    command_elsewhere,
    environment,
    marked_arguments,
    run,
)

#: Maximum time for a host to answer, or for a start to print something.
ASK_SECONDS = 10.0


@dataclass(kw_only=True)
class Run:
    """A run in progress: its folder, the hosts that take part, the records so far, lost hosts."""

    folder: Path
    attempt: str
    plan: Plan
    #: Maximum duration, from `began` on the monotonic clock: first of the search for hosts and the
    #: steps together, then of the steps.
    seconds: float = math.inf
    began: float = field(default_factory=time.monotonic)
    hosts: tuple[Host, ...] = ()
    #: In the order they were written.
    records: list[Record] = field(default_factory=list)
    #: Host -> why it was lost; a lost host takes no further part.
    lost: dict[str, Problem] = field(default_factory=dict)
    starts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))
    asks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))
    #: The programs that start ranks.
    residents: Residents = field(init=False)

    def __post_init__(self) -> None:
        """Set what follows from other fields."""
        self.residents = Residents(self.folder, self.attempt)

    @property
    def evidence(self) -> Path:
        """Return the folder of the evidence."""
        return self.folder / "evidence"

    @property
    def until(self) -> float:
        """Return the deadline, on the monotonic clock."""
        return self.began + self.seconds

    def restart_clock(self, seconds: float) -> None:
        """Let the run take at most `seconds` from now on."""
        self.began, self.seconds = time.monotonic(), seconds

    def is_over(self) -> bool:
        """Return True if the deadline has passed."""
        return time.monotonic() >= self.until

    def keep(self, record: Record) -> Record:
        """Add a record to the run, and append it to the evidence at once."""
        self.records.append(record)
        evidence.append_record(self.evidence, record)
        return record

    def keep_asked(
        self,
        wave: int,
        began: float,
        *,
        facts: Sequence[Fact] = (),
        metrics: Sequence[Metric] = (),
        problems: Sequence[Problem] = (),
    ) -> None:
        """Keep what the hosts reported: discovery is `wave` 0, health sweeps count from 1."""
        record = Record(
            step=HOSTS_STEP,
            checks=("hosts",),
            wave=wave,
            group=0,
            hosts=tuple(host.name for host in self.alive()),
            exit=0,
            start=began,
            end=now(),
            facts=tuple(facts),
            metrics=tuple(metrics),
            problems=tuple(problems),
        )
        self.keep(record)

    def lose(self, host: str, cause: Cause, message: str) -> Problem:
        """Let a host take no further part; return the problem."""
        problem = Problem(cause=cause, message=message, check="hosts", host=host)
        self.lost[host] = problem
        return problem

    def host(self, name: str) -> Host:
        """Return the host called `name`."""
        return next(h for h in self.hosts if h.name == name)

    def alive(self) -> tuple[Host, ...]:
        """Return the hosts that still take part, in rank order."""
        return tuple(h for h in self.hosts if h.name not in self.lost)

    async def ask(
        self,
        host: Host,
        command: str,
        timeout: float = ASK_SECONDS,
        more: float = 0.0,
        stdin: Path | None = None,
    ) -> Answer:
        """Run an sh command on a host; `timeout`, `more` and `stdin` are those of `ssh.run`."""
        argv = marked_arguments(self.folder, host, command)
        env = environment(self.folder, self.attempt)
        async with self.asks:
            return await run(argv, env=env, timeout=timeout, more=more, stdin=stdin)

    async def put(self, host: Host, file: Path) -> Answer:
        """Copy a file of the run's folder to a host, where it replaces the old one at once."""
        name = file.name
        command = f"cat >{name}.new && mv {name}.new {name}"
        return await self.ask(host, f"cd {shlex.quote(str(self.folder))} && {command}", stdin=file)

    async def ask_living(
        self, hosts: Iterable[Host], command: str, more: float = 0.0
    ) -> list[tuple[Host, Answer]]:
        """Run an sh command on the hosts that are not lost; return them with their answers."""
        alive = [host for host in hosts if host.name not in self.lost]
        answers = await asyncio.gather(*(self.ask(host, command, more=more) for host in alive))
        return list(zip(alive, answers, strict=True))


#: Command that checks whether a host is alive. Other commands may follow it.
ALIVE = "echo alive"


async def lose_silent_hosts(state: Run, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """Check whether hosts are alive; mark the others as lost and return their problems."""
    answers = await asyncio.gather(*(state.ask(h, ALIVE) for h in hosts))
    return await lose_silent(state, zip(hosts, answers, strict=True))


async def lose_silent(state: Run, answers: Iterable[tuple[Host, Answer]]) -> tuple[Problem, ...]:
    """Mark hosts as lost if they do not answer as ALIVE requires; return their problems.

    Each host gets a second chance first, because a busy host or coordinator may be late once.
    Another host of the run shows whether the host is gone, or only the path from the coordinator to
    it.
    """
    silent = [host for host, answer in answers if not _is_alive(answer)]
    second_answers = await asyncio.gather(*(state.ask(host, ALIVE) for host in silent))
    gone = [
        (host, answer)
        for host, answer in zip(silent, second_answers, strict=True)
        if not _is_alive(answer)
    ]
    witnesses = await asyncio.gather(*(_witness(state, host, silent) for host, _ in gone))
    problems = []
    for (host, answer), witness in zip(gone, witnesses, strict=True):
        if host.name not in state.lost:
            message = f"{host.name} answered before, but no longer does: {answer.reason[:200]}"
            if witness:
                message += f"; it still answers {witness}"
            cause = Cause.CUT_OFF if witness else Cause.HOST_DIED
            problems.append(state.lose(host.name, cause, message))
    return tuple(problems)


async def _witness(state: Run, host: Host, silent: Sequence[Host]) -> str:
    """Return the name of another host that `host` answers; "" if there is none."""
    others = [h for h in state.alive() if not h.local and h not in silent]
    if not others:
        return ""
    answer = await state.ask(others[0], command_elsewhere(state.folder, host, ALIVE))
    return others[0].name if answer.exit == 0 and answer.out.endswith(b"alive\n") else ""


def _is_alive(answer: Answer) -> bool:
    return answer.out.startswith(b"alive\n")
