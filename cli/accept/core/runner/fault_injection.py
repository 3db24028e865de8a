"""Faults planted on purpose: what of a drill is the coordinator's to do.

A plan names them in `planted`. FAULT@HOST:LOCALRANK is the programs' own affair (`rank_io.Plant`),
and FAULT@* is in the settings that were rendered; the faults here strike a host as a whole. Nothing
happens where the plan names none, and each that strikes leaves the fact `planted`.
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

#: tcpmux, which no sshd listens on.
_CLOSED = 1
_UNDO_SECONDS = 20.0


def _hosts(state: Run, fault: str) -> list[str]:
    return [t.partition("@")[2] for t in state.plan.planted if t.startswith(f"{fault}@")]


def cut_off(
    planted: Sequence[str], candidates: Sequence[Candidate]
) -> tuple[tuple[Candidate, ...], tuple[Fact, ...]]:
    """The candidates, those that are to be unreachable at a closed port, and the facts of that.

    A candidate is named, or counted from 0 as `#N`. The coordinator's own host cannot be cut off.
    """
    kept, facts = [], []
    for number, one in enumerate(candidates):
        names = (f"unreachable@{one.name}", f"unreachable@#{number}")
        mine = [text for text in planted if text in names]
        name, said = (NOT_PLANTED, ": it leads the run") if one.local else (PLANTED, "")
        facts += [Fact(name=name, value=t + said, check="hosts", host=one.name) for t in mine]
        kept.append(replace(one, port=_CLOSED) if mine and not one.local else one)
    return tuple(kept), tuple(facts)


async def plant(state: Run) -> tuple[Fact, ...]:
    """Plant what strikes hosts that were found; the facts of what came of it."""
    work = [
        _plant(state, fault, host)
        for fault in ("full-disk", "slow-link")
        for name in _hosts(state, fault)
        for host in state.hosts
        if host.name == name
    ]
    everywhere = (t for t in state.plan.planted if t.partition("@")[0] in EVERYWHERE)
    given = [Fact(name=PLANTED, value=text, check="hosts") for text in everywhere]
    return (*given, *await asyncio.gather(*work))


async def _plant(state: Run, fault: str, host: Host) -> Fact:
    ranks = sum(one.slots for one in state.hosts)
    seconds = int(state.plan.deadline_seconds)
    peer = next((one.address for one in state.hosts if one.name != host.name), "")
    what = {"full-disk": f"full-disk {ranks}", "slow-link": f"slow-link {seconds} {peer}"}[fault]
    answer = await _script(state, host, what)
    text = f"{fault}@{host.name}"
    if answer == PLANTED:
        return Fact(name=PLANTED, value=text, check="hosts", host=host.name)
    return Fact(name=NOT_PLANTED, value=f"{text}: {answer}", check="hosts", host=host.name)


async def undo(state: Run) -> tuple[str, ...]:
    """Take back what would outlive the run's folder; what is left, which is recorded too."""
    slow = _hosts(state, "slow-link")
    hosts = [host for host in state.hosts if host.name in slow]
    answers = await asyncio.gather(*(_script(state, host, "undo") for host in hosts))
    left = tuple(
        Fact(name=NOT_UNDONE, value=f"{host.name}: {said}", check="hosts", host=host.name)
        for host, said in zip(hosts, answers, strict=True)
        if said != "undone"
    )
    if left:
        state.keep_asked(len(state.plan.steps) + 2, time.time(), facts=left)
    return tuple(str(fact.value) for fact in left)


async def _script(state: Run, host: Host, what: str) -> str:
    """What `inject_fault.sh` says in the end."""
    command = f"cd {shlex.quote(str(state.folder))} && exec /bin/sh ./inject_fault.sh {what}"
    answer = await state.ask(host, command, _UNDO_SECONDS)
    lines = (answer.out.strip() or answer.err.strip()).splitlines()
    return lines[-1][:300] if lines else "no answer"
