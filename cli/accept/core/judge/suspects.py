"""Merge accusations into one list of suspects, each named once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from accept.core.causes import Cause
from accept.core.judge.summary import state_of
from accept.core.model import Part, Problem, Record, State, Strength, Suspect, SuspectKind

#: Worst first, or in the order of reports.
_CAUSES, _STRENGTHS, _KINDS = tuple(Cause), tuple(Strength), tuple(SuspectKind)
#: The step that finds the hosts and checks which of them are still alive.
HOSTS_STEP = "00-hosts"

#: Highest number of logs of one suspect.
_MAX_LOGS = 8


def root_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems of one execution that name a host and do not follow from others.

    If an execution reports a root cause, its other problems accuse nobody.
    """
    naming = [p for p in problems if p.host and state_of(p.cause) is State.FAIL]
    root = tuple(p for p in naming if p.cause.row.root_cause)
    consequences = tuple(p for p in naming if p.cause.row.consequence)
    others = tuple(p for p in naming if p not in root and p not in consequences)
    return root or others or consequences


def from_records(records: Iterable[Record], host_count: int) -> Iterator[Suspect]:
    """Yield the suspects that a program, the launcher or the coordinator named.

    If one cause names more than half of the `host_count` hosts in one execution, the fault is in
    something they share, and no host is accused. Hosts that never answered are always named.
    """
    for record in records:
        if record.problems:
            limit = host_count if record.step != HOSTS_STEP else len(record.problems) * 2
            yield from from_problems(root_problems(record.problems), record.log, limit)


def from_problems(problems: Sequence[Problem], log: str, host_count: int) -> Iterator[Suspect]:
    """Yield the suspects that problems name; `host_count` as for `from_records`."""
    hosts: dict[Cause, set[str]] = {}
    for problem in problems:
        if problem.host:
            hosts.setdefault(problem.cause, set()).add(problem.host)
    for problem in problems:
        shared = len(hosts.get(problem.cause, ()))
        if not problem.host or (shared > 1 and shared * 2 > host_count):
            continue
        host_or_nic = SuspectKind.NIC if problem.nic else SuspectKind.NODE
        yield Suspect(
            kind=SuspectKind.GPU if problem.gpu else host_or_nic,
            hosts=(problem.host,),
            device=problem.gpu or problem.nic or None,
            cause=problem.cause,
            strength=Strength.MODERATE if problem.cause.row.consequence else Strength.STRONG,
            why=problem.message or problem.cause.row.meaning,
            evidence=(log,) if log else (),
        )


def merged(suspects: Iterable[Suspect], hosts: Sequence[str]) -> tuple[Suspect, ...]:
    """Return each suspect once, with its gravest cause and all evidence.

    Wrong data comes first, then the strongest evidence. A missing GPU is graver than its
    consequences, such as a value below its bound. A link or switch that an accused node explains
    is left out, and a rail that a leaf explains.
    """
    by_part: dict[Part, list[Suspect]] = {}
    for suspect in suspects:
        by_part.setdefault(suspect.part, []).append(suspect)
    result = []
    for same in by_part.values():
        no_gpu = any(suspect.cause.row.no_gpu for suspect in same)
        same.sort(
            key=lambda s: (
                no_gpu and (s.cause.row.consequence or s.cause.row.follows_no_gpu),
                s.cause is not Cause.WRONG_DATA,
                _STRENGTHS.index(s.strength),
                _CAUSES.index(s.cause),
            )
        )
        first = same[0]
        evidence = dict.fromkeys(log for suspect in same for log in suspect.evidence)
        others = tuple(dict.fromkeys(s.cause for s in same if s.cause != first.cause))
        result.append(
            replace(
                first,
                why=first.why + (f" (also {', '.join(others[:4])})" if others else ""),
                evidence=tuple(evidence)[:_MAX_LOGS],
            )
        )
    order = {host: index for index, host in enumerate(hosts)}
    blamed = (s for s in result if s.kind is SuspectKind.NODE and s.strength is not Strength.WEAK)
    nodes = {host for suspect in blamed for host in suspect.hosts}
    leaves = {s.device for s in result if s.kind is SuspectKind.LEAF}
    kept = [
        s
        for s in result
        if not (s.kind in (SuspectKind.LINK, SuspectKind.SWITCH) and _explained(s, nodes, order))
        and not (s.kind is SuspectKind.RAIL and s.device in leaves)
    ]
    kept.sort(
        key=lambda s: (
            s.cause is not Cause.WRONG_DATA,
            _STRENGTHS.index(s.strength),
            s.of_network,
            _KINDS.index(s.kind),
            [order.get(host, len(order)) for host in s.hosts],
            s.name,
        )
    )
    return tuple(kept)


def _explained(suspect: Suspect, nodes: set[str], order: dict[str, int]) -> bool:
    """Return True if an accused node explains a bad link, or a bad block of neighbours."""
    if suspect.kind is SuspectKind.LINK:
        return not nodes.isdisjoint(suspect.hosts)
    places = range(order.get(suspect.hosts[0], 0), order.get(suspect.hosts[-1], -1) + 1)
    return any(order.get(node) in places for node in nodes)
