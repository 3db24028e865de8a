"""Inject the faults of a drill that affect whole hosts.

The plan lists all faults in `injected`. Programs inject FAULT@HOST:LOCALRANK themselves
(`rank_io.Injected`), and FAULT@* is part of the rendered settings. Every injected fault is recorded
as a fact `injected`.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from accept.core.catalog.faults import ANSWER_INJECTED, ANSWER_UNDONE, FAULTS, Fault, Injector
from accept.core.facts import INJECTED, NOT_INJECTED, NOT_UNDONE, FactKind
from accept.core.plan import Injection
from accept.core.records import Fact
from accept.core.runner.clock import now
from accept.core.runner.discovery import Candidate
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run

#: Port of tcpmux, on which no sshd listens.
_CLOSED_PORT = 1
_SCRIPT_SECONDS = 20.0


def _targets(state: Run, faults: Iterable[Fault]) -> list[tuple[Fault, Host]]:
    """Return the faults of the plan that are among `faults`, each with its host."""
    return [
        (fault, host)
        for fault in faults
        for planned in state.plan.injected
        for host in state.hosts
        if (planned.fault, planned.host) == (fault.name, host.name)
    ]


def _fact(kind: FactKind[str], text: str, host: str | None = None) -> Fact:
    return Fact(name=kind.name, value=text, check="hosts", host=host)


def cut_off(
    injected: Sequence[Injection], candidates: Sequence[Candidate]
) -> tuple[tuple[Candidate, ...], tuple[Fact, ...]]:
    """Make candidates unreachable through a closed port; return all candidates, and facts.

    The plan gives a candidate by name, or by its index from 0 as `#N`. The coordinator's own host
    cannot be made unreachable.
    """
    changed, facts = [], []
    for number, candidate in enumerate(candidates):
        names = (candidate.name, f"#{number}")
        faults = [
            planned.text
            for planned in injected
            if FAULTS[planned.fault].injector is Injector.PORT and planned.host in names
        ]
        kind, reason = (
            (NOT_INJECTED, ": the coordinator runs on it") if candidate.local else (INJECTED, "")
        )
        facts += [_fact(kind, text + reason, candidate.name) for text in faults]
        is_cut_off = faults and not candidate.local
        changed.append(replace(candidate, port=_CLOSED_PORT) if is_cut_off else candidate)
    return tuple(changed), tuple(facts)


async def inject(state: Run) -> tuple[Fact, ...]:
    """Inject the faults of hosts that were found, and return a fact about each."""
    by_script = [fault for fault in FAULTS.values() if fault.injector is Injector.SCRIPT]
    injections = [_inject(state, fault, host) for fault, host in _targets(state, by_script)]
    in_settings = [
        _fact(INJECTED, planned.text)
        for planned in state.plan.injected
        if FAULTS[planned.fault].injector is Injector.SETTINGS
    ]
    return (*in_settings, *await asyncio.gather(*injections))


async def _inject(state: Run, fault: Fault, host: Host) -> Fact:
    ranks = sum(h.slots for h in state.hosts)
    seconds = int(state.plan.deadline_seconds)
    peer = next((h.address for h in state.hosts if h.name != host.name), "")
    answer = await _run_script(state, host, f"{fault.name} {ranks} {seconds} {peer}")
    text = Injection(fault=fault.name, host=host.name).text
    if answer == ANSWER_INJECTED:
        return _fact(INJECTED, text, host.name)
    return _fact(NOT_INJECTED, f"{text}: {answer}", host.name)


async def undo(state: Run) -> tuple[str, ...]:
    """Undo faults that would outlive the run's folder; record and return those that remain."""
    hosts = [host for _, host in _targets(state, [f for f in FAULTS.values() if f.undo])]
    answers = await asyncio.gather(*(_run_script(state, host, "undo") for host in hosts))
    not_undone = tuple(
        _fact(NOT_UNDONE, f"{host.name}: {answer}", host.name)
        for host, answer in zip(hosts, answers, strict=True)
        if answer != ANSWER_UNDONE
    )
    if not_undone:
        state.keep_asked(len(state.plan.steps) + 2, now(), facts=not_undone)
    return tuple(str(fact.value) for fact in not_undone)


async def _run_script(state: Run, host: Host, arguments: str) -> str:
    """Return the last line that `inject_fault.sh` prints."""
    command = f"cd {shlex.quote(str(state.folder))} && exec /bin/sh ./inject_fault.sh {arguments}"
    answer = await state.ask(host, command, _SCRIPT_SECONDS)
    lines = (answer.text.strip() or answer.errors.strip()).splitlines()
    return lines[-1][:300] if lines else "no answer"
