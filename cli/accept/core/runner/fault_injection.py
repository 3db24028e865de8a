"""Inject the faults of a drill that affect whole hosts.

The plan lists all faults in `planted`. Programs inject FAULT@HOST:LOCALRANK themselves
(`rank_io.Plant`), and FAULT@* is part of the rendered settings. Every injected fault is recorded as
a fact `planted`.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

from accept.core.catalog.faults import EVERYWHERE, NOT_PLANTED, NOT_UNDONE, PLANTED
from accept.core.model import Fact
from accept.core.runner.discovery import Candidate
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run

#: Port of tcpmux, on which no sshd listens.
_CLOSED_PORT = 1
_SCRIPT_SECONDS = 20.0


def _hosts(state: Run, fault: str) -> list[str]:
    """Return the names of the hosts that get a fault."""
    return [text.partition("@")[2] for text in state.plan.planted if text.startswith(f"{fault}@")]


def cut_off(
    planted: Sequence[str], candidates: Sequence[Candidate]
) -> tuple[tuple[Candidate, ...], tuple[Fact, ...]]:
    """Make candidates unreachable through a closed port; return all candidates, and facts.

    The plan gives a candidate by name, or by its index from 0 as `#N`. The coordinator's own host
    cannot be made unreachable.
    """
    changed, facts = [], []
    for number, candidate in enumerate(candidates):
        names = (f"unreachable@{candidate.name}", f"unreachable@#{number}")
        faults = [text for text in planted if text in names]
        name, reason = (
            (NOT_PLANTED, ": the coordinator runs on it") if candidate.local else (PLANTED, "")
        )
        facts += [
            Fact(name=name, value=text + reason, check="hosts", host=candidate.name)
            for text in faults
        ]
        is_cut_off = faults and not candidate.local
        changed.append(replace(candidate, port=_CLOSED_PORT) if is_cut_off else candidate)
    return tuple(changed), tuple(facts)


async def inject(state: Run) -> tuple[Fact, ...]:
    """Inject the faults of hosts that were found, and return a fact about each."""
    injections = [
        _inject(state, fault, host)
        for fault in ("full-disk", "slow-link")
        for name in _hosts(state, fault)
        for host in state.hosts
        if host.name == name
    ]
    in_settings = [
        Fact(name=PLANTED, value=text, check="hosts")
        for text in state.plan.planted
        if text.partition("@")[0] in EVERYWHERE
    ]
    return (*in_settings, *await asyncio.gather(*injections))


async def _inject(state: Run, fault: str, host: Host) -> Fact:
    ranks = sum(h.slots for h in state.hosts)
    seconds = int(state.plan.deadline_seconds)
    peer = next((h.address for h in state.hosts if h.name != host.name), "")
    arguments = {"full-disk": f"full-disk {ranks}", "slow-link": f"slow-link {seconds} {peer}"}
    answer = await _run_script(state, host, arguments[fault])
    text = f"{fault}@{host.name}"
    if answer == PLANTED:
        return Fact(name=PLANTED, value=text, check="hosts", host=host.name)
    return Fact(name=NOT_PLANTED, value=f"{text}: {answer}", check="hosts", host=host.name)


async def undo(state: Run) -> tuple[str, ...]:
    """Undo faults that would outlive the run's folder; record and return those that remain."""
    slow = _hosts(state, "slow-link")
    hosts = [host for host in state.hosts if host.name in slow]
    answers = await asyncio.gather(*(_run_script(state, host, "undo") for host in hosts))
    not_undone = tuple(
        Fact(name=NOT_UNDONE, value=f"{host.name}: {answer}", check="hosts", host=host.name)
        for host, answer in zip(hosts, answers, strict=True)
        if answer != "undone"
    )
    if not_undone:
        state.keep_asked(len(state.plan.steps) + 2, time.time(), facts=not_undone)
    return tuple(str(fact.value) for fact in not_undone)


async def _run_script(state: Run, host: Host, arguments: str) -> str:
    """Return the last line that `inject_fault.sh` prints."""
    command = f"cd {shlex.quote(str(state.folder))} && exec /bin/sh ./inject_fault.sh {arguments}"
    answer = await state.ask(host, command, _SCRIPT_SECONDS)
    lines = (answer.out.strip() or answer.err.strip()).splitlines()
    return lines[-1][:300] if lines else "no answer"
