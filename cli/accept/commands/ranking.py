"""Rank the hosts of a run by what the judge knows about each, for whoever needs fewer than all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from accept.core.judge import gathered
from accept.core.judge.effects.explanation import hosts_in_doubt
from accept.core.judge.evidence import Checks
from accept.core.judge.results import compare, scored
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.verdict import OF_HOST, Suspect, SuspectKind, Verdict

#: Parts that are groups of hosts: without the smaller side, no pair of hosts uses the bad part.
_GROUPS = (SuspectKind.LEAF, SuspectKind.SWITCH, SuspectKind.BORDER)
#: The probability that a host is bad which was measured only together with bad parts.
_UNKNOWN = 0.5


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A host that is not chosen, and why."""

    host: str
    reason: str
    #: True for a host that could be used, but is not needed.
    is_spare: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen hosts in the run's order, and the others, worst first."""

    chosen: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    #: Bad parts of the network that the chosen hosts still share, one text each.
    shared: tuple[str, ...] = ()


def doubts(plan: Plan, records: Sequence[Record], *, checks: Checks) -> dict[str, float]:
    """Return the probability that a host is bad, for hosts that the judge does not accuse."""
    _, evidences = gathered(plan, records, checks=checks, interruption="")
    found = compare(scored(evidences.values(), checks)).speed.explanation
    likely = {host: one.probability for host, one in hosts_in_doubt(found.doubtful).items()}
    return {**dict.fromkeys(found.unknown, _UNKNOWN), **likely}


def choose(
    verdict: Verdict, need: int, *, measured: Collection[str], in_doubt: Mapping[str, float]
) -> Choice:
    """Choose at most `need` hosts: fewer if the others are accused or were not measured.

    A bad part of the network, which hosts share, excludes no host, unless a link has failed. What
    is behind it is left out first, then hosts in doubt, the most doubtful first, then the last.
    """
    reasons: dict[str, str] = {}
    behind: dict[str, str] = {}
    slow: list[Suspect] = []
    for suspect in verdict.suspects:
        if suspect.kind in OF_HOST:
            reasons.update({h: _reason(suspect) for h in suspect.hosts if h not in reasons})
    for host in verdict.missing:
        reasons.setdefault(host, "did not take part")
    for host in verdict.hosts:
        if host not in measured:
            reasons.setdefault(host, "was not measured")
    for suspect in verdict.suspects:
        if suspect.kind in OF_HOST or (
            suspect.kind is SuspectKind.LINK and not reasons.keys().isdisjoint(suspect.hosts)
        ):
            continue
        hosts = _avoidable(suspect, in_doubt)
        if suspect.kind is SuspectKind.LINK and any(pair.share is None for pair in suspect.pairs):
            reasons.update(dict.fromkeys(hosts, _reason(suspect)))
        else:
            slow.append(suspect)
            behind.update({h: _reason(suspect) for h in hosts if h not in behind})
    good = [host for host in verdict.hosts if host not in reasons]
    ranked = sorted(good, key=lambda host: (host in behind, in_doubt.get(host, 0.0)))
    chosen = {*ranked[:need]}
    spares = [
        LeftOut(host=host, reason=_spare(behind.get(host), in_doubt.get(host)), is_spare=True)
        for host in reversed(ranked[need:])
    ]
    return Choice(
        chosen=tuple(host for host in good if host in chosen),
        left_out=(*(LeftOut(host=host, reason=why) for host, why in reasons.items()), *spares),
        shared=tuple(_reason(suspect) for suspect in slow if _connects(suspect, chosen)),
    )


def _reason(suspect: Suspect) -> str:
    name = f"{suspect.name}: " if suspect.of_network else ""
    return f"{name}{suspect.cause} [{suspect.strength}]: {suspect.why}"


def _connects(suspect: Suspect, chosen: AbstractSet[str]) -> bool:
    """Return True if some of the chosen hosts use a part of the network."""
    inside = chosen & {*suspect.hosts}
    if suspect.kind is SuspectKind.LINK:
        return len(inside) == len(suspect.hosts)
    return not suspect.hosts or bool(inside and inside != chosen)


def _avoidable(suspect: Suspect, in_doubt: Mapping[str, float]) -> tuple[str, ...]:
    """Return the hosts without which the others do not use a part of the network; none: all do."""
    if suspect.kind is SuspectKind.LINK:
        return (max(suspect.hosts[::-1], key=lambda host: in_doubt.get(host, 0.0)),)
    if suspect.kind not in _GROUPS:
        return ()
    others = suspect.others
    return others if others and len(others) < len(suspect.hosts) else suspect.hosts


def _spare(behind: str | None, doubt: float | None) -> str:
    return behind or (f"spare: bad with a probability of {doubt:.0%}" if doubt else "spare")
