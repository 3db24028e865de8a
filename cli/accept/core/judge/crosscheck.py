"""What other collectives, and executions on other GPUs, say of a suspect.

Logs of many kinds see one host in many ways: which of its GPUs is bad, whether it is bad in one
collective alone, and whether another suspect explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Evidence, Score, Share
from accept.core.judge.groups import Comparison, to_sample
from accept.core.judge.robust_stats import median_of, spread
from accept.core.judge.suspects import host_of
from accept.core.judge.topology import DISTANCE, split_by_distance
from accept.core.model import Finding, Record, State, Suspect

#: One execution in so many may speak against the GPU that is named.
_FEW = 10
#: The fact that says which GPUs of a host took part; without it, all of them did.
GPUS = "gpus"
SLOW = ("slow-outlier", "intermittent")


def shares_by_log(evidences: Iterable[tuple[Evidence, Score]]) -> dict[str, list[Share]]:
    """What each execution reached against its equals, by its log."""
    result: dict[str, list[Share]] = {}
    for evidence, score in evidences:
        for part in (one for step in evidence.steps for one in split_by_distance(evidence, step)):
            found = [(r, to_sample(evidence.check, score, r, part.steps[0])) for r in part.records]
            live = [s.value for _, s in found if s and s.value is not None and not s.cause]
            among = spread(live, evidence.plan.machine.noise)
            if among is None or among.median <= 0:
                continue
            for record, one in found:
                if one is not None:
                    value = 0.0 if one.cause else one.value or 0.0
                    usual, sigma = among.median, among.sigma / among.median
                    share = Share(evidence.check, record, value, value / usual, sigma)
                    result.setdefault(record.log, []).append(share)
    return result


def explained_by_place(
    check: str, compared: Comparison, found: Mapping[str, Sequence[Share]]
) -> tuple[Suspect, ...]:
    """Suspects that are slow in this collective alone: their place in the network may explain it.

    What slows a host slows all that it does. One host alone that is slower by more than distance
    explains remains a suspect.
    """
    if compared.step.groups != "pairs" or compared.spread is None:
        return ()
    usual = compared.spread.median
    deficits = [_alone(one, check, usual, found) for one in compared.suspects]
    result = tuple(s for s, much in zip(compared.suspects, deficits, strict=True) if much)
    solid = len(result) == 1 and result[0].strength == "strong" and max(deficits) > DISTANCE
    return () if solid else result


def place_finding(check: str, compared: Comparison, suspects: Sequence[Suspect]) -> Finding:
    """The finding that takes the place of suspects that `explained_by_place` excuses."""
    names = host_list([suspect.name for suspect in suspects])
    return Finding(
        check=check,
        judgement="population",
        state=State.INCONCLUSIVE,
        message=f"step {compared.step.id}: {names} reached less in {check} alone; the other "
        "collectives in the same logs are as fast as anywhere. Their place in the network may "
        "explain it",
        hosts=tuple(suspect.name for suspect in suspects if suspect.kind == "node"),
        evidence=tuple(dict.fromkeys(log for s in suspects for log in s.evidence))[:8],
    )


def _alone(
    suspect: Suspect, check: str, usual: float, found: Mapping[str, Sequence[Share]]
) -> float:
    """By how much a host is slow in logs in which another collective is not; 0: it is in all."""
    host = host_of(suspect)
    mine: dict[str, list[Share]] = {}
    for log in suspect.evidence if suspect.cause in SLOW else ():
        for share in found.get(log, ()):
            if host in share.record.hosts:
                mine.setdefault(share.check, []).append(share)
    own = mine.pop(check, None)
    if not own:
        return 0.0
    deficit = 1 - median_of(share.measured for share in own) / usual
    # A witness must see at least as sharply.
    sharp = min(deficit / 3, *(share.sigma for share in own))
    fine = any(
        max(share.sigma for share in others) <= sharp
        and 1 - median_of(share.share for share in others) <= deficit / 2
        for others in mine.values()
    )
    return deficit if fine else 0.0


def without_explained(
    suspects: Sequence[Suspect], found: Mapping[str, Sequence[Share]]
) -> tuple[Suspect, ...]:
    """Suspects without those that stronger ones explain, a GPU in place of its node."""
    strong = {host_of(one) for one in suspects if one.strength == "strong"}
    left = [one for one in suspects if not _explained(one, strong, found)]
    everything = [share for several in found.values() for share in several]
    return tuple(_narrowed(one, everything) if one.kind == "node" else one for one in left)


def _explained(suspect: Suspect, strong: set[str], found: Mapping[str, Sequence[Share]]) -> bool:
    """Whether a strong suspect took part in all that accuses a weaker one."""
    if suspect.strength == "strong" or suspect.kind not in ("node", "link"):
        return False
    others = strong - {host_of(suspect)}
    logs = [found.get(log, ()) for log in suspect.evidence]
    return bool(logs) and all(
        bool(several) and any(not others.isdisjoint(share.record.hosts) for share in several)
        for several in logs
    )


def _narrowed(suspect: Suspect, found: Sequence[Share]) -> Suspect:
    """Take the GPUs that tell the slow executions from the fine ones, with few exceptions."""
    logs = set(suspect.evidence)
    mine = [one for one in found if suspect.name in one.record.hosts]
    against = [1 - one.share for one in mine if one.record.log in logs and one.share < 1]
    if not against:
        return suspect
    deficit = median_of(against)
    # Where noise hides a deficit, nothing is said about it. What one host does alone may be fine
    # where its network is not.
    slow = [one for one in mine if one.sigma * 3 < deficit and 1 - one.share > deficit / 2]
    fine = [one for one in mine if one.sigma * 3 < deficit and 1 - one.share <= deficit / 2]
    kinds = {len(one.record.hosts) > 1 for one in slow}
    fine = [one for one in fine if (len(one.record.hosts) > 1) in kinds]
    used = [(_gpus(one.record, suspect.name), one in slow) for one in (*slow, *fine)]
    every = {gpu for gpus, _ in used for gpu in gpus or ()}
    wrong = {
        gpu: sum((gpus is None or gpu in gpus) is not bad for gpus, bad in used) for gpu in every
    }
    least = min(wrong.values(), default=0)
    left = sorted(gpu for gpu in every if wrong[gpu] == least)
    if not fine or len(left) == len(every) or least * _FEW > len(used):
        return suspect
    if len(left) > 1:
        named = ", ".join(map(str, left))
        return replace(suspect, why=f"{suspect.why}; only where its GPUs {named} took part")
    return replace(
        suspect,
        kind="gpu",
        name=f"{suspect.name}:{left[0]}",
        why=f"{suspect.why}; only where its GPU {left[0]} took part",
    )


def _gpus(record: Record, host: str) -> set[int] | None:
    """The GPUs of a host that took part; None: all."""
    for fact in record.facts:
        if fact.name == GPUS and fact.host == host and isinstance(fact.value, list):
            return {gpu for gpu in fact.value if isinstance(gpu, int)}
    return None
