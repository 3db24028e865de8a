"""Between steps, check that every host is alive, and read the error counters of its devices.

Sweep 1 is before the first step and sweep N + 1 after the last, so each step is between two sweeps.
Only changes since the previous reading are recorded. The final sweep also records the growth of
counters over the run that are not errors by themselves.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
from dataclasses import dataclass, field

from accept.core import record_protocol
from accept.core.checks.health import HEALTH
from accept.core.facts import FactKind
from accept.core.health_readings import (
    HEALTH_CHANGE,
    HEALTH_TOTAL,
    Change,
    Gap,
    Reading,
    change,
    reading_of,
)
from accept.core.judge.health_rules import WATCHED
from accept.core.records import Fact
from accept.core.runner.clock import now
from accept.core.runner.ssh import Answer, Host
from accept.core.runner.state import ALIVE, Run, lose_silent
from accept.core.serde import dump
from accept.core.text import plain

#: Maximum time of a reading: `health.SECONDS` (100 s), and 5 s for the connection.
READ_SECONDS = 105.0
#: Exit statuses of a reading that hung: it was killed, or its own alarm ended it.
_HUNG_STATUSES = (None, 128 + signal.SIGALRM)


@dataclass(kw_only=True)
class Watch:
    """The health readings so far."""

    #: True if readings are taken.
    on: bool
    first: dict[str, Reading] = field(default_factory=dict)
    #: Host -> number of its last sweep with a reading, and that reading.
    last: dict[str, tuple[int, Reading]] = field(default_factory=dict)
    #: Hosts on which a reading hung. They are not read again, because the driver would hang again.
    hung: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, state: Run) -> Watch:
        """Return a watch that is on if the plan contains the check of health."""
        return cls(on=any(HEALTH.name in step.checks for step in state.plan.steps))


async def sweep(state: Run, watch: Watch, number: int, *, final: bool) -> None:
    """Check all hosts that take part, and record lost hosts and changed health readings."""
    began = now()
    hosts = state.alive()
    answers = await asyncio.gather(*(_read(state, watch, host, hosts) for host in hosts))
    host_answers = list(zip(hosts, answers, strict=True))
    problems = await lose_silent(state, host_answers)
    facts: list[Fact] = []
    for host, answer in host_answers if watch.on else ():
        if host.name not in state.lost:
            facts += _facts(watch, host.name, answer, number, final=final)
    if problems or watch.on:
        state.keep_asked(number, began, facts=facts, problems=problems)


async def _read(state: Run, watch: Watch, host: Host, hosts: tuple[Host, ...]) -> Answer:
    """Check that a host is alive, then read its health, unless an earlier reading hung."""
    if not watch.on or host.name in watch.hung:
        return await state.ask(host, ALIVE)
    program = shlex.quote(str(state.folder / "programs" / "health.sh"))
    # health.sh finds the run's network interface by the routes to these peers; two are enough.
    peers = " ".join(h.address for h in hosts[:3] if h is not host)
    command = (
        f"{ALIVE}; export ACCEPT_PEERS={shlex.quote(peers)}; /bin/sh {program} --quiet; exit $?"
    )
    answer = await state.ask(host, command, more=READ_SECONDS)
    if answer.exit in _HUNG_STATUSES:
        watch.hung.add(host.name)
    return answer


def _facts(watch: Watch, host: str, answer: Answer, number: int, *, final: bool) -> list[Fact]:
    """Return the changes on a host since its last reading; none if nothing changed."""
    parsed = record_protocol.parse([answer.out], HEALTH.name)
    now = reading_of(parsed.facts)
    if not now.uptime:
        reason = plain(answer.reason, 100)
        if parsed.facts:
            reason = now.unread[0].reason if now.unread else "its first record is missing"
        elif host in watch.hung:
            reason = f"health.py hangs ({reason})"
        since = watch.last.get(host, (0, now))[0]
        return [_fact(HEALTH_CHANGE, host, Change(since=since, unread=(Gap(reason=reason),)))]
    facts = []
    if host in watch.last:
        since, before = watch.last[host]
        changed = change(before, now, since=since, watched=WATCHED)
        facts.append(_fact(HEALTH_CHANGE, host, changed))
    first = watch.first.setdefault(host, now)
    watch.last[host] = number, now
    if final and first is not now:
        total = change(first, now, since=1, watched=WATCHED, others=True)
        facts.append(_fact(HEALTH_TOTAL, host, total))
    return [fact for fact in facts if fact.value is not None]


def _fact(kind: FactKind[Change], host: str, difference: Change) -> Fact:
    """Return the fact for a change, without empty fields; its value is None if nothing changed."""
    value = None
    if difference:
        empty = dump(Change(since=0))
        value = {k: v for k, v in dump(difference).items() if k == "since" or v != empty[k]}
    return Fact(name=kind.name, check=HEALTH.name, host=host, value=value)
