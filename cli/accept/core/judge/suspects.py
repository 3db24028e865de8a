"""Merge accusations into one list of suspects, each named once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from accept.core import causes
from accept.core.judge.pairs import Strength
from accept.core.judge.summary import state_of
from accept.core.model import Part, Problem, Record, State, Suspect, SuspectKind

_STRENGTHS: tuple[Strength, ...] = ("strong", "moderate", "weak")
_KINDS: tuple[SuspectKind, ...] = ("node", "gpu", "nic", "rail", "switch", "link")
#: The step that finds the hosts and checks which of them are still alive.
HOSTS_STEP = "00-hosts"

#: Highest number of logs of one suspect.
_MAX_LOGS = 8

#: Root causes. When a host dies, the ranks that wait for it hang, and the launcher ends the others.
#: So if an execution reports one of these, its other problems accuse nobody.
_ROOT_CAUSES = frozenset({"host-died", "disk-full", "unkillable"})


def root_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems of one execution that name a host and do not follow from others."""
    naming = [p for p in problems if p.host and state_of(p.cause) is State.FAIL]
    root = tuple(p for p in naming if p.cause in _ROOT_CAUSES)
    consequences = tuple(
        p for p in naming if p.cause in causes.CONSEQUENCES and p.cause not in _ROOT_CAUSES
    )
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
    hosts: dict[str, set[str]] = {}
    for problem in problems:
        if problem.host:
            hosts.setdefault(problem.cause, set()).add(problem.host)
    for problem in problems:
        shared = len(hosts.get(problem.cause, ()))
        if not problem.host or (shared > 1 and shared * 2 > host_count):
            continue
        yield Suspect(
            kind="gpu" if problem.gpu else "nic" if problem.nic else "node",
            hosts=(problem.host,),
            device=problem.gpu or problem.nic or None,
            cause=problem.cause,
            strength="moderate" if problem.cause in causes.CONSEQUENCES else "strong",
            why=problem.message or causes.meaning(problem.cause),
            evidence=(log,) if log else (),
        )


def merged(suspects: Iterable[Suspect], hosts: Sequence[str]) -> tuple[Suspect, ...]:
    """Return each suspect once, with its gravest cause and all evidence; strongest first.

    A missing GPU is graver than its consequences, such as a value below its bound. A link or switch
    that an accused node explains is left out.
    """
    gravest_first = list(causes.CAUSES)
    by_part: dict[Part, list[Suspect]] = {}
    for suspect in suspects:
        by_part.setdefault(suspect.part, []).append(suspect)
    result = []
    for same in by_part.values():
        no_gpu = any(suspect.cause in causes.NO_GPU for suspect in same)
        same.sort(
            key=lambda s: (
                no_gpu and s.cause in causes.FOLLOWS_NO_GPU,
                _STRENGTHS.index(s.strength),
                _index(gravest_first, s.cause),
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
    nodes = {h for s in result if s.kind == "node" and s.strength != "weak" for h in s.hosts}
    kept = [
        s for s in result if s.kind not in ("link", "switch") or not _explained(s, nodes, order)
    ]
    kept.sort(
        key=lambda s: (
            _STRENGTHS.index(s.strength),
            _KINDS.index(s.kind),
            [order.get(host, len(order)) for host in s.hosts],
            s.name,
        )
    )
    return tuple(kept)


def _index(values: Sequence[str], value: str) -> int:
    return values.index(value) if value in values else len(values)


def _explained(suspect: Suspect, nodes: set[str], order: dict[str, int]) -> bool:
    """Return True if an accused node explains a bad link, or a bad block of neighbours."""
    if suspect.kind == "link":
        return not nodes.isdisjoint(suspect.hosts)
    places = range(order.get(suspect.hosts[0], 0), order.get(suspect.hosts[-1], -1) + 1)
    return any(order.get(node) in places for node in nodes)
