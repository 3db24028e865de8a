"""Rank the hosts of a run by what the judge knows about each, for whoever needs fewer than all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from accept.core.judge import gathered
from accept.core.judge.effects.explanation import hosts_in_doubt
from accept.core.judge.evidence import Checks
from accept.core.judge.results import compare, scored
from accept.core.model import OF_HOST, Plan, Record, Suspect, SuspectKind, Verdict

#: Parts that are groups of hosts: leaving out the smaller side leaves out the fault.
_GROUPS = (SuspectKind.LEAF, SuspectKind.SWITCH, SuspectKind.BORDER)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A host that is not chosen, and why."""

    host: str
    reason: str
    #: True for a good host that is not needed.
    is_spare: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen hosts in their order, and the others, worst first."""

    chosen: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    #: Why no choice of hosts is good; empty: it is.
    refused: str = ""


def doubts(plan: Plan, records: Sequence[Record], *, checks: Checks) -> dict[str, float]:
    """Return the probability that a host is bad, for hosts that the judge does not accuse."""
    _, evidences = gathered(plan, records, checks=checks, interruption="")
    found = compare(scored(evidences.values(), checks)).speed.explanation
    likely = {host: one.probability for host, one in hosts_in_doubt(found.doubtful).items()}
    # Hosts that were measured only together with bad parts.
    return {**dict.fromkeys(found.unknown, 0.5), **likely}


def choose(
    verdict: Verdict, need: int, *, measured: Collection[str], in_doubt: dict[str, float]
) -> Choice:
    """Choose `need` hosts. Accused hosts and those without a measurement are never chosen.

    Of a bad link, one host is left out; of a bad group, its members. Hosts in doubt are the first
    spares, the most doubtful first, then the last hosts.
    """
    reasons: dict[str, str] = {}
    refused = ""
    for suspect in verdict.suspects:
        text = f"{suspect.cause} [{suspect.strength}]: {suspect.why}"
        hosts = [host for host in suspect.hosts if host not in reasons]
        if suspect.kind in OF_HOST:
            reasons.update(dict.fromkeys(hosts, text))
        elif suspect.kind is SuspectKind.LINK and len(hosts) == len(suspect.hosts):
            worse = max(hosts, key=lambda host: (in_doubt.get(host, 0.0), hosts.index(host)))
            reasons[worse] = f"link {suspect.name}: {text}"
        elif suspect.kind in _GROUPS:
            reasons.update(dict.fromkeys(_smaller_side(suspect), f"{suspect.name}: {text}"))
        elif suspect.of_network and suspect.kind is not SuspectKind.LINK:
            refused = refused or f"{suspect.name}: {text}"
    for host in verdict.missing:
        reasons.setdefault(host, "did not take part")
    for host in verdict.hosts:
        if host not in measured:
            reasons.setdefault(host, "was not measured")
    good = [host for host in verdict.hosts if host not in reasons]
    order = {host: index for index, host in enumerate(good)}
    good.sort(key=lambda host: (in_doubt.get(host, 0.0), order[host]))
    spares = [
        LeftOut(host=host, reason=_spare_reason(in_doubt.get(host, 0.0)), is_spare=True)
        for host in reversed(good[need:])
    ]
    bad = [LeftOut(host=host, reason=reason) for host, reason in reasons.items()]
    chosen = sorted(good[:need], key=order.__getitem__)
    return Choice(chosen=tuple(chosen), left_out=(*bad, *spares), refused=refused)


def _smaller_side(suspect: Suspect) -> tuple[str, ...]:
    others = suspect.others
    return suspect.hosts if not others or len(suspect.hosts) <= len(others) else others


def _spare_reason(doubt: float) -> str:
    return f"spare: bad with a probability of {doubt:.0%}" if doubt else "spare"
