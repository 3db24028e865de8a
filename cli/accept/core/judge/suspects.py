"""Collects accusations into one list of suspects, each named once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from accept.core import causes
from accept.core.judge.pairs import Strength
from accept.core.judge.summary import state_of
from accept.core.model import Problem, Record, State, Suspect

Kind = Literal["node", "gpu", "nic", "rail", "link", "switch"]

_STRENGTHS: tuple[Strength, ...] = ("strong", "moderate", "weak")
_KINDS: tuple[Kind, ...] = ("node", "gpu", "nic", "rail", "switch", "link")
#: The step that finds the hosts and asks who is still alive.
HOSTS_STEP = "00-hosts"

#: Most logs that one suspect names.
_EVIDENCE = 8
#: Between the two hosts of a link, and the first and last of those behind a switch.
LINK, SWITCH = " - ", " .. "

#: Of the problems one execution reports about hosts, only those of the first class found accuse:
#: when a host dies, the ranks that waited for it hang, and the launcher then ends the others.
_FIRST = frozenset({"host-died", "disk-full", "unkillable"})


def root_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems of one execution that name a host and are not mere consequences of others."""
    naming = [p for p in problems if p.host and state_of(p.cause) is State.FAIL]
    classes: list[list[Problem]] = [[], [], []]
    for problem in naming:
        first, last = problem.cause in _FIRST, problem.cause in causes.CONSEQUENCES
        classes[0 if first else 2 if last else 1].append(problem)
    return tuple(next((found for found in classes if found), ()))


def from_records(records: Iterable[Record], everybody: int) -> Iterator[Suspect]:
    """Suspects that a program, the launcher or the coordinator named.

    Where one cause names more than half of `everybody` in one execution, the fault is in what they
    share, and nobody is accused. Hosts that never answered are named however many they are.
    """
    for record in records:
        if record.problems:
            most = everybody if record.step != HOSTS_STEP else len(record.problems) * 2
            yield from from_problems(root_problems(record.problems), record.log, most)


def from_problems(problems: Sequence[Problem], log: str, everybody: int) -> Iterator[Suspect]:
    """Suspects that problems name; `everybody` as for `from_records`."""
    hosts: dict[str, set[str]] = {}
    for problem in problems:
        if problem.host:
            hosts.setdefault(problem.cause, set()).add(problem.host)
    for problem in problems:
        shared = len(hosts.get(problem.cause, ()))
        if not problem.host or (shared > 1 and shared * 2 > everybody):
            continue
        kind: Kind = "gpu" if problem.gpu else "nic" if problem.nic else "node"
        device = problem.gpu or problem.nic
        yield Suspect(
            kind=kind,
            name=f"{problem.host}:{device}" if device else problem.host,
            cause=problem.cause,
            strength="moderate" if problem.cause in causes.CONSEQUENCES else "strong",
            why=problem.message or causes.meaning(problem.cause),
            evidence=(log,) if log else (),
        )


def merged(found: Iterable[Suspect], hosts: Sequence[str]) -> tuple[Suspect, ...]:
    """Return each suspect once, with its gravest cause and all evidence; strongest first.

    A missing GPU is graver than what may follow from it, such as a figure below its bound. A link
    or switch that an accused node explains is left out.
    """
    grave = list(causes.CAUSES)
    groups: dict[tuple[Kind, str], list[Suspect]] = {}
    for suspect in found:
        groups.setdefault((suspect.kind, suspect.name), []).append(suspect)
    result = []
    for (kind, name), several in groups.items():
        no_gpu = any(suspect.cause in causes.NO_GPU for suspect in several)
        several.sort(
            key=lambda s: (
                no_gpu and s.cause in causes.FOLLOWS_NO_GPU,
                _STRENGTHS.index(s.strength),
                _rank(grave, s.cause),
            )
        )
        first = several[0]
        evidence = dict.fromkeys(log for suspect in several for log in suspect.evidence)
        others = tuple(dict.fromkeys(s.cause for s in several if s.cause != first.cause))
        result.append(
            Suspect(
                kind=kind,
                name=name,
                cause=first.cause,
                strength=first.strength,
                why=first.why + (f" (also {', '.join(others[:4])})" if others else ""),
                evidence=tuple(evidence)[:_EVIDENCE],
            )
        )
    order = {host: place for place, host in enumerate(hosts)}
    nodes = {s.name for s in result if s.kind == "node" and s.strength != "weak"}
    kept = [
        s for s in result if s.kind not in ("link", "switch") or not _explained(s, nodes, order)
    ]
    kept.sort(
        key=lambda s: (
            _STRENGTHS.index(s.strength),
            _KINDS.index(s.kind),
            order.get(host_of(s), len(order)),
            s.name,
        )
    )
    return tuple(kept)


def host_of(suspect: Suspect) -> str:
    """The host of a node, GPU or NIC; the first one of a link or switch; "" for a rail."""
    if suspect.kind == "rail":
        return ""
    return suspect.name.rpartition(":")[0] if suspect.kind in ("gpu", "nic") else ends(suspect)[0]


def ends(suspect: Suspect) -> tuple[str, ...]:
    """The two hosts in the name of a link, the first and last in that of a switch."""
    if suspect.kind in ("link", "switch"):
        return tuple(suspect.name.split(LINK if suspect.kind == "link" else SWITCH))
    return (suspect.name,)


def _rank(grave: Sequence[str], cause: str) -> int:
    return grave.index(cause) if cause in grave else len(grave)


def _explained(suspect: Suspect, nodes: set[str], order: dict[str, int]) -> bool:
    """Whether an accused node explains a bad link, or a bad block of neighbours."""
    first, last = ends(suspect)[0], ends(suspect)[-1]
    if suspect.kind == "link":
        return first in nodes or last in nodes
    places = range(order.get(first, 0), order.get(last, -1) + 1)
    return any(order.get(node) in places for node in nodes)
