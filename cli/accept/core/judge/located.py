"""Which GPU of a bad node it is, where executions on some of its GPUs were bad, others fine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from accept.core.checks import Evidence, Score
from accept.core.judge.compare import sample
from accept.core.judge.population import spread
from accept.core.model import Record, Suspect

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
        for step in evidence.steps:
            mine = [r for r in evidence.records if r.step == step.id and r.hosts]
            found = [(r, sample(evidence.check, score, r, step)) for r in mine]
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
    """Intersect the GPUs of the slow executions; those of fine ones are cleared."""
    logs = set(suspect.evidence)
    mine = [one for one in found if suspect.name in one.record.hosts]
    against = [1 - one.share for one in mine if one.record.log in logs and one.share < 1]
    if not against:
        return suspect
    deficit = median(against)
    # Where noise hides a deficit, nothing is said about it.
    clear = [one for one in mine if one.sigma * 3 < deficit]
    every = {gpu for one in mine for gpu in _gpus(one.record, suspect.name) or ()}
    slow = [_gpus(o.record, suspect.name) or every for o in clear if 1 - o.share > deficit / 2]
    kinds = {len(o.record.hosts) for o in clear if 1 - o.share > deficit / 2}
    fine = [
        _gpus(o.record, suspect.name) or every
        for o in clear
        if 1 - o.share <= deficit / 2 and len(o.record.hosts) in kinds
    ]
    left = set.intersection(*slow).difference(*fine) if slow else set()
    if not left or left == every:
        return suspect
    named = ", ".join(map(str, sorted(left)))
    if len(left) > 1:
        return replace(suspect, why=f"{suspect.why}; only where its GPUs {named} took part")
    return replace(
        suspect,
        kind="gpu",
        name=f"{suspect.name}:{named}",
        why=f"{suspect.why}; only where its GPU {named} took part",
    )


def _gpus(record: Record, host: str) -> set[int] | None:
    """The GPUs of a host that took part; None: all."""
    for fact in record.facts:
        if fact.name == GPUS and fact.host == host and isinstance(fact.value, list):
            return {gpu for gpu in fact.value if isinstance(gpu, int)}
    return None
