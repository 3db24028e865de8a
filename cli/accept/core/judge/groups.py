"""Compare groups of the same kind with each other, and each group with its own repetitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from accept.core.causes import Cause, Judgement
from accept.core.groups import Group
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Checks, Evidence
from accept.core.judge.outliers import Outlier, Outliers, Sample, is_frequent, outliers
from accept.core.judge.pair_results import fault_of
from accept.core.judge.robust_stats import Spread, spread
from accept.core.model import (
    Finding,
    GroupKind,
    Record,
    State,
    Step,
    Strength,
    Suspect,
    SuspectKind,
)
from accept.core.table import Measure, Outcome, Row
from accept.core.text import count

#: Strength of the evidence if only the comparison of groups shows the suspect.
_STRENGTHS = {SuspectKind.NODE: Strength.STRONG, SuspectKind.RAIL: Strength.MODERATE}
#: Number of nodes in a group -> the lowest score that the group may have, or None.
LowestScore = Callable[[int], float | None]


class Comparison(NamedTuple):
    """The result of comparing the groups of one step."""

    step: Step
    suspects: tuple[Suspect, ...]
    #: Number of executions that were compared.
    groups: int
    #: None: too few to compare.
    spread: Spread | None
    #: Hosts that were paired only with suspects.
    unknown: tuple[str, ...] = ()
    #: Deficit, as a share, at which a slow host is nearly always detected.
    detectable: float | None = None
    #: Blocks of a ladder that are slow or failed; they accuse nobody.
    blocks: tuple[Outlier, ...] = ()
    #: Peers differ by so much that slow and normal ones cannot be distinguished.
    uneven: bool = False


# Samples


def scored(evidences: Iterable[Evidence], checks: Checks) -> Iterator[Evidence]:
    """Yield the evidence of each check that compares groups."""
    for evidence in evidences:
        rules = checks.get(evidence.check)
        if rules is not None and rules.measure is not None:
            yield evidence


def to_samples(rows: Iterable[Row]) -> list[Sample]:
    """Return the results of executions; those that show nothing about their hosts are left out.

    That is the case if a tool was missing or if the log just ends; `completeness` reports these.
    """
    return [
        Sample(
            row.hosts,
            None if row.outcome is Outcome.FAILED else row.score,
            row.cause,
            row.log,
            row.ranks,
        )
        for row in rows
        if row.outcome is not Outcome.MISSING
    ]


def group_by_kind(evidence: Evidence, rows: Iterable[Row]) -> list[list[Row]]:
    """Group results by the size of their group and by whether it is in one NVLink domain.

    The smallest groups come first.
    """
    kinds: dict[tuple[int, bool], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.nodes, evidence.together(row.hosts)), []).append(row)
    return [rows_of_kind for _, rows_of_kind in sorted(kinds.items())]


# Comparison by group kind


def compare(
    evidence: Evidence,
    measure: Measure,
    lowest: LowestScore,
    of_rails: Mapping[int, Sequence[Suspect]],
) -> list[Comparison]:
    """Compare the groups of each step of a check whose group kind allows it, besides pairs.

    `of_rails`: local rank -> the suspects that explain its slow rail.
    """
    comparisons = []
    for step in evidence.steps:
        rows = evidence.results(measure, step).rows
        if not rows:
            continue
        if step.groups is GroupKind.EACH:
            comparisons.append(_compare_hosts(evidence, step, rows, lowest(1)))
        elif step.groups is GroupKind.RAILS:
            bound = lowest(max(row.nodes for row in rows))
            comparisons.append(_compare_rails(evidence, step, rows, of_rails, bound))
        elif step.groups is GroupKind.LADDER:
            comparisons.append(_compare_blocks(evidence, step, rows))
    return comparisons


def slow_rails(evidence: Evidence, step: Step, bound: float | None) -> tuple[int, ...]:
    """Return the local ranks whose rail failed or is slow, also if most of them are below `bound`.

    If rails differ by so much that nothing shows which of them are normal, all are returned.
    """
    samples, found = _rail_outliers(evidence, evidence.results(step=step), bound)
    slow = {outlier.sample.ranks[0] for outlier in found.bad.values()}
    for sample in samples:
        low = bound is not None and sample.value is not None and sample.value < bound
        if low or (found.uneven and not found.bad):
            slow.add(sample.ranks[0])
    return tuple(sorted(slow))


def slow_groups(evidence: Evidence, step: Step) -> list[Group]:
    """Return the single hosts, or blocks of a ladder, that are outliers among their peers."""
    rows = evidence.results(step=step).rows
    if step.groups is GroupKind.LADDER:
        blocks, _, _ = _slow_blocks(evidence, rows)
        return [Group(hosts=block.sample.hosts) for block in blocks]
    if step.groups is not GroupKind.EACH:
        return []
    found = outliers(to_samples(rows), evidence.plan.machine.noise)
    return [Group(hosts=outlier.sample.hosts) for outlier in found.bad.values()]


def _compare_hosts(
    evidence: Evidence, step: Step, rows: Sequence[Row], bound: float | None
) -> Comparison:
    samples = to_samples(rows)
    found = outliers(samples, evidence.plan.machine.noise, bound)
    suspects = [
        _outlying(SuspectKind.NODE, outlier.sample.hosts, evidence.check, outlier)
        for outlier in found.bad.values()
        if len(outlier.sample.hosts) == 1
    ]
    return Comparison(step, tuple(suspects), len(samples), found.spread, uneven=found.uneven)


def _compare_rails(
    evidence: Evidence,
    step: Step,
    rows: Sequence[Row],
    of_rails: Mapping[int, Sequence[Suspect]],
    bound: float | None,
) -> Comparison:
    """Compare the rails; a slow one is a suspect unless its pairs show the reason."""
    samples, found = _rail_outliers(evidence, rows, bound)
    suspects: list[Suspect] = []
    for outlier in found.bad.values():
        (rank,) = outlier.sample.ranks
        rail = _outlying(SuspectKind.RAIL, (), evidence.check, outlier, device=str(rank))
        suspects += of_rails.get(rank) or [rail]
    if not found.bad:
        # Most rails are slow, so none of them is an outlier; their pairs may show the reason.
        suspects = list(dict.fromkeys(s for own in of_rails.values() for s in own))
    return Comparison(step, tuple(suspects), len(samples), found.spread, uneven=found.uneven)


def is_full_rail(record: Record, hosts: Sequence[str]) -> bool:
    """Return True if a record covers a full rail, not one of the pairs that follow a slow rail."""
    return len(record.local_ranks) == 1 and (len(record.hosts) > 2 or len(hosts) <= 2)


def _rail_outliers(
    evidence: Evidence, rows: Iterable[Row], bound: float | None
) -> tuple[list[Sample], Outliers]:
    """Return the samples of the full rails, and the outliers among them."""
    rails = (row for row in rows if is_full_rail(row.execution.record, evidence.hosts))
    samples = to_samples(rails)
    return samples, outliers(samples, evidence.plan.machine.noise, bound)


def _compare_blocks(evidence: Evidence, step: Step, rows: Sequence[Row]) -> Comparison:
    """Compare the blocks of a ladder. A slow block does not show which part of it is bad."""
    blocks, first_spread, total = _slow_blocks(evidence, rows)
    return Comparison(step, (), total, first_spread, blocks=tuple(blocks))


def _slow_blocks(
    evidence: Evidence, rows: Sequence[Row]
) -> tuple[list[Outlier], Spread | None, int]:
    """Return the smallest slow blocks, the spread of their first kind, and the number of blocks."""
    slow: list[Outlier] = []
    first_spread, total = None, 0
    for rows_of_kind in group_by_kind(evidence, rows):
        samples = to_samples(rows_of_kind)
        found = outliers(samples, evidence.plan.machine.noise)
        total += len(samples)
        first_spread = first_spread or found.spread
        if len({sample.hosts for sample in samples}) < 2:
            continue
        for block in found.bad.values():
            if not any(set(part.sample.hosts).issubset(block.sample.hosts) for part in slow):
                slow.append(block)
    return slow, first_spread, total


def _outlying(
    kind: SuspectKind,
    hosts: Sequence[str],
    check: str,
    outlier: Outlier,
    *,
    device: str | None = None,
) -> Suspect:
    """Return a suspect that an outlier among its peers accuses."""
    log = outlier.sample.log
    return Suspect(
        kind=kind,
        hosts=tuple(hosts),
        device=device,
        cause=outlier.cause,
        strength=_STRENGTHS[kind],
        why=f"{check}: {counts(outlier, 'rails' if kind is SuspectKind.RAIL else 'hosts')}",
        evidence=(log,) if log else (),
    )


def counts(outlier: Outlier, others: str) -> str:
    """Return how often a group and the `others` of its kind were bad."""
    bad, total = outlier.executions
    value, peers = outlier.sample.value, outlier.peers
    lost = ""
    if value is not None and peers and peers.median and not outlier.sample.cause:
        lost = f" ({value / peers.median:.0%} of normal)"
    other_bad, other_total = outlier.others
    text = f"{fault_of(outlier.cause)} in {bad} of {count(total, 'execution')}{lost}"
    return f"{text}; other {others}: {other_bad} of {other_total}"


# Intermittently slow groups


def intermittent_findings(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on groups that were slow in some executions only and are not suspects.

    Pairs are left out, because `blame` judges all their executions together.
    """
    for step in evidence.steps if evidence.plan.machine.speed_promised else ():
        if step.groups.of_pairs:
            continue
        # Logs without host names may be of different hosts.
        named = [row for row in evidence.results(step=step) if row.hosts]
        for rows in group_by_kind(evidence, named):
            if len({(row.hosts, row.ranks) for row in rows}) < len(rows):
                yield from _intermittent(evidence, step, to_samples(rows))


def _intermittent(evidence: Evidence, step: Step, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Yield findings on intermittently slow groups of one kind."""
    noise = evidence.plan.machine.noise
    found = outliers(samples, noise)
    if found.spread is not None:
        for index, (slow_count, total) in found.rare.items():
            slow = [samples[index]]
            text = _slow_text(slow, found.spread, slow_count, total)
            yield _finding(evidence, step, slow, text, State.PASS)
        return
    # Too few groups to compare with each other: compare each group with its own repetitions.
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for sample in samples:
        if sample.value is not None and not sample.cause:
            groups.setdefault((*sample.hosts, str(sample.ranks)), []).append(sample)
    for repetitions in groups.values():
        own = spread([sample.value or 0.0 for sample in repetitions], noise)
        slow = [sample for sample in repetitions if own and (sample.value or 0.0) < own.limit]
        if own and slow:
            frequent = is_frequent(len(slow), len(repetitions))
            text = _slow_text(slow, own, len(slow), len(repetitions))
            state = State.INCONCLUSIVE if frequent else State.PASS
            yield _finding(evidence, step, slow, text, state)


def _slow_text(slow: Sequence[Sample], peers: Spread, slow_count: int, total: int) -> str:
    lowest = min(sample.value or 0.0 for sample in slow)
    share = f"{lowest / peers.median:.0%} of the median" if peers.median else "less"
    return f"{share} in {slow_count} of {total} executions; the others were normal"


def _finding(
    evidence: Evidence, step: Step, slow: Sequence[Sample], text: str, state: State
) -> Finding:
    return Finding(
        check=evidence.check,
        judgement=Judgement.POPULATION,
        state=state,
        cause=Cause.INTERMITTENT,
        message=f"step {step.id}: {host_list(slow[0].hosts)} reached {text}",
        hosts=slow[0].hosts,
        evidence=tuple(dict.fromkeys(sample.log for sample in slow if sample.log))[:8],
    )
