"""Which GPU of a bad node it is, where executions on some of its GPUs were bad, others fine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from accept.core.checks import Evidence, Score
from accept.core.judge.compare import sample
from accept.core.judge.nearness import apart
from accept.core.judge.population import spread
from accept.core.model import Record, Suspect

#: One execution in so many may speak against the GPU that is named.
_FEW = 10
#: The fact that says which GPUs of a host took part; without it, all of them did.
GPUS = "gpus"


class _Share(NamedTuple):
    """What an execution reached, as a share of the median of its equals, and their sigma."""

    record: Record
    share: float
    sigma: float


def shares(evidences: Iterable[tuple[Evidence, Score]]) -> list[_Share]:
    """Each execution of steps that compare any, against the median of its step."""
    result = []
    for evidence, score in evidences:
        for part in (one for step in evidence.steps for one in apart(evidence, step)):
            step = part.steps[0]
            found = [(r, sample(evidence.check, score, r, step)) for r in part.records]
            live = [s.value for _, s in found if s and s.value is not None and not s.cause]
            among = spread(live, evidence.plan.machine.noise)
            if among is None or among.median <= 0:
                continue
            sigma = among.sigma / among.median
            for record, one in found:
                if one is not None:
                    dead = bool(one.cause) or one.value is None
                    result.append(
                        _Share(record, 0.0 if dead else (one.value or 0.0) / among.median, sigma)
                    )
    return result


def located(suspects: Sequence[Suspect], found: Sequence[_Share]) -> tuple[Suspect, ...]:
    """Suspects, with a GPU in place of its node where the executions leave one alone."""
    partial = any(fact.name == GPUS for one in found for fact in one.record.facts)
    if not partial:
        return tuple(suspects)
    return tuple(_narrowed(one, found) if one.kind == "node" else one for one in suspects)


def _narrowed(suspect: Suspect, found: Sequence[_Share]) -> Suspect:
    """Take the GPUs that tell the slow executions from the fine ones, with few exceptions."""
    logs = set(suspect.evidence)
    mine = [one for one in found if suspect.name in one.record.hosts]
    against = [1 - one.share for one in mine if one.record.log in logs and one.share < 1]
    if not against:
        return suspect
    deficit = median(against)
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
