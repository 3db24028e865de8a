"""Between the steps: every host says that it lives, and what its devices have counted.

Sweep 1 comes before the first step and sweep N + 1 after the last, so each step has one on either
side. Only what changed since the reading before is kept, and after the last step what grew over the
whole run of counters that are no fault by themselves.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from dataclasses import dataclass, field

from accept.core import record_protocol
from accept.core.health_readings import Change, Reading, change, reading_of
from accept.core.judge.health import WATCHED
from accept.core.model import Fact
from accept.core.runner.ssh import Answer, Host
from accept.core.runner.state import ALIVE, Run, lose_silent
from accept.core.serde import dump
from accept.core.text import plain

CHECK = "health"
#: A reading ends itself after 100 s (`health.SECONDS`); the rest is for the way to it.
READ_SECONDS = 105.0
#: It had to be killed, or its own alarm ended it.
_HUNG = (None, 128 + signal.SIGALRM)


@dataclass(kw_only=True)
class Watch:
    """What was read so far."""

    on: bool
    first: dict[str, Reading] = field(default_factory=dict)
    #: Host -> number of the sweep and what it brought.
    last: dict[str, tuple[int, Reading]] = field(default_factory=dict)
    #: Hosts on which reading did not end: what hangs in a driver would hang again.
    hung: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, state: Run) -> Watch:
        """A watch, on where the plan has the check `health`."""
        return cls(on=any(CHECK in step.checks for step in state.plan.steps))


async def sweep(state: Run, watch: Watch, number: int, *, final: bool) -> None:
    """Ask every host that takes part, and keep a record of what there is to tell."""
    began = time.time()
    hosts = state.alive()
    answers = await asyncio.gather(*(_ask(state, watch, host, hosts) for host in hosts))
    pairs = list(zip(hosts, answers, strict=True))
    gone = await lose_silent(state, pairs)
    facts: list[Fact] = []
    for host, answer in pairs if watch.on else ():
        if host.name not in state.lost:
            facts += _facts(watch, host.name, answer, number, final=final)
    if gone or watch.on:
        state.keep_asked(number, began, facts=facts, problems=gone)


async def _ask(state: Run, watch: Watch, host: Host, hosts: tuple[Host, ...]) -> Answer:
    """Its sign of life, and its reading after it."""
    if not watch.on or host.name in watch.hung:
        return await state.ask(host, ALIVE)
    program = shlex.quote(str(state.folder / "programs" / "health.sh"))
    # Two will do: the way to one that is not this host.
    peers = " ".join(h.address for h in hosts[:3] if h is not host)
    command = (
        f"{ALIVE}; export ACCEPT_PEERS={shlex.quote(peers)}; /bin/sh {program} --quiet; exit $?"
    )
    answer = await state.ask(host, command, more=READ_SECONDS)
    if answer.exit in _HUNG:
        watch.hung.add(host.name)
    return answer


def _facts(watch: Watch, host: str, answer: Answer, number: int, *, final: bool) -> list[Fact]:
    """What there is to tell of one host; nothing where all is as it was."""
    parsed = record_protocol.parse([answer.out.encode()], CHECK)
    now = reading_of(parsed.facts)
    if not now.uptime:
        why = plain(answer.err.strip().rpartition("\n")[2] or f"exit {answer.exit}", 100)
        if parsed.facts:
            why = now.unread[0]
        elif host in watch.hung:
            why = f"health.py hangs ({why})"
        lost = Change(since=watch.last.get(host, (0, now))[0], unread=(f"anything: {why}",))
        return [_fact("health-change", host, lost)]
    found = []
    if host in watch.last:
        since, before = watch.last[host]
        found.append(
            _fact("health-change", host, change(before, now, since=since, watched=WATCHED))
        )
    first = watch.first.setdefault(host, now)
    watch.last[host] = number, now
    if final and first is not now:
        total = change(first, now, since=1, watched=WATCHED, others=True)
        found.append(_fact("health-total", host, total))
    return [fact for fact in found if fact.value is not None]


def _fact(name: str, host: str, what: Change) -> Fact:
    kept = None
    if what:
        empty = dump(Change(since=0))
        kept = {k: v for k, v in dump(what).items() if k == "since" or v != empty[k]}
    return Fact(name=name, check=CHECK, host=host, value=kept)
