"""What was executed several times on the same group: who was slow at times, without being bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accept.core.judge.completeness import some
from accept.core.judge.evidence import Evidence, Score
from accept.core.judge.groups import of_a_kind, samples_of
from accept.core.judge.outliers import no_chance, outliers
from accept.core.judge.pairs import Sample
from accept.core.judge.population import Spread, spread
from accept.core.model import Finding, State, Step


def findings(evidence: Evidence, score: Score) -> Iterator[Finding]:
    """Findings on groups that were slow in some of their executions, where nobody is to blame.

    Pairs are decoded together, whatever the number of their executions.
    """
    for step in evidence.steps if evidence.plan.machine.speed_promised else ():
        if step.groups == "pairs":
            continue
        # Of logs that do not say whom they are of nothing says that they are of the same.
        mine = [record for record in evidence.of_step(step) if record.hosts]
        for records in of_a_kind(evidence, mine):
            if len({(r.hosts, r.local_ranks) for r in records}) < len(records):
                samples = samples_of(evidence, score, step, records)
                yield from _of_equals(evidence, step, samples)


def _of_equals(evidence: Evidence, step: Step, samples: Sequence[Sample]) -> Iterator[Finding]:
    noise = evidence.plan.machine.noise
    slow = outliers(samples, noise)
    if slow.spread is not None:
        for index, times in slow.rarely.items():
            said = f"{_share([samples[index]], slow.spread)} in {_of(*times)}"
            yield _finding(evidence, step, [samples[index]], said, State.PASS)
        return
    # Too few groups to be compared: each is with itself.
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for one in samples:
        if one.value is not None and not one.cause:
            groups.setdefault((*one.hosts, str(one.ranks)), []).append(one)
    for mine in groups.values():
        among = spread([one.value or 0.0 for one in mine], noise)
        low = [one for one in mine if among and (one.value or 0.0) < among.limit]
        if among and low:
            state = State.INCONCLUSIVE if no_chance(len(low), len(mine)) else State.PASS
            said = f"{_share(low, among)} in {_of(len(low), len(mine))}"
            yield _finding(evidence, step, low, said, state)


def _of(slow: int, executions: int) -> str:
    return f"{slow} of {executions} executions, and was fine in another"


def _share(slow: Sequence[Sample], among: Spread) -> str:
    least = min(one.value or 0.0 for one in slow)
    return f"{least / among.median:.0%} of the median" if among.median else "less"


def _finding(
    evidence: Evidence, step: Step, slow: Sequence[Sample], said: str, state: State
) -> Finding:
    return Finding(
        check=evidence.check,
        judgement="population",
        state=state,
        cause="intermittent",
        message=f"step {step.id}: {some(slow[0].hosts)} reached {said}",
        hosts=slow[0].hosts,
        evidence=tuple(dict.fromkeys(one.log for one in slow if one.log))[:8],
    )
