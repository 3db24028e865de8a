"""A run on its way: what there is of it, and which of its hosts still answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accept.core import evidence
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.model import Fact, Metric, Plan, Problem, Record
from accept.core.runner.ssh import Answer, Host, environment, marked_arguments, run

#: Starts under way at once, over all groups; and questions to hosts, over all hosts.
_STARTS = 128
#: Longest that a host takes to answer, or a start to say something.
ASK_SECONDS = 10.0


@dataclass(kw_only=True)
class Run:
    """A run on its way: where it lives, who takes part, and who was lost."""

    folder: Path
    attempt: str
    plan: Plan
    #: How long it may take, from `began` on the monotonic clock.
    seconds: float = math.inf
    began: float = field(default_factory=time.monotonic)
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

    @property
    def until(self) -> float:
        """When its time is over, on the monotonic clock."""
        return self.began + self.seconds

    def is_over(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self.until

    def keep(self, record: Record) -> Record:
        """Add a record to those of the run, on disk too, at once."""
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
        """Keep what asking the hosts has brought: finding them is `wave` 0, sweeps count from 1."""
        record = Record(
            step=HOSTS_STEP,
            checks=("hosts",),
            wave=wave,
            group=0,
            hosts=tuple(host.name for host in self.alive()),
            exit=0,
            start=began,
            end=time.time(),
            facts=tuple(facts),
            metrics=tuple(metrics),
            problems=tuple(problems),
        )
        self.keep(record)

    def host(self, name: str) -> Host:
        """The host called `name`."""
        return next(h for h in self.hosts if h.name == name)

    def alive(self) -> tuple[Host, ...]:
        """The hosts that still take part, in rank order."""
        return tuple(h for h in self.hosts if h.name not in self.lost)

    async def ask(
        self, host: Host, command: str, timeout: float = ASK_SECONDS, more: float = 0.0
    ) -> Answer:
        """Run an sh command on a host; the times are those of `remote.run`."""
        argv = marked_arguments(self.folder, host, command)
        env = environment(self.folder, self.attempt)
        async with self.asks:
            return await run(argv, env=env, timeout=timeout, more=more)


#: Said by every host that is asked whether it is alive, before anything else.
ALIVE = "echo alive"


async def lose_silent_hosts(state: Run, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """Ask each host whether it is alive; those that do not answer are lost, and returned."""
    answers = await asyncio.gather(*(state.ask(h, ALIVE) for h in hosts))
    return await lose_silent(state, zip(hosts, answers, strict=True))


async def lose_silent(state: Run, answers: Iterable[tuple[Host, Answer]]) -> tuple[Problem, ...]:
    """Lose the hosts whose answer does not begin with their sign of life, and return them.

    Each is asked once more before: one that is busy, or asked by somebody who is, may be late once.
    """
    silent = [host for host, answer in answers if not _lives(answer)]
    again = await asyncio.gather(*(state.ask(host, ALIVE) for host in silent))
    gone = []
    for host, answer in zip(silent, again, strict=True):
        if not _lives(answer) and host.name not in state.lost:
            reason = answer.err.strip().splitlines()[-1:] or [f"ssh ended with {answer.exit}"]
            message = f"{host.name} answered before and does not any more: {reason[0][:200]}"
            problem = Problem(cause="host-died", message=message, check="hosts", host=host.name)
            state.lost[host.name] = problem
            gone.append(problem)
    return tuple(gone)


def _lives(answer: Answer) -> bool:
    return answer.out.startswith("alive\n")
