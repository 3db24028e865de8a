"""Compare groups of the same kind with each other, and each group with its own repetitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from accept.core import causes
from accept.core.groups import Group
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Checks, Evidence, Score
from accept.core.judge.outliers import Outlier, Outliers, is_frequent, outliers
from accept.core.judge.pairs import Accusation, Sample, decode
from accept.core.judge.robust_stats import Spread, detectable_deficit, spread
from accept.core.judge.summary import state_of
from accept.core.judge.suspects import LINK, SWITCH, Kind, root_problems
from accept.core.model import Finding, Record, State, Step, Suspect

#: Nodes of a group -> the least value that its score may have, or None.
Bound = Callable[[int], float | None]


class Comparison(NamedTuple):
    """What comparing the groups of one step says."""

    step: Step
    suspects: tuple[Suspect, ...]
    groups: int
    #: None: too few to compare.
    spread: Spread | None
    #: Hosts that met suspects only.
    unknown: tuple[str, ...] = ()
    #: Deficit of a host, as a share, that would have been found one time in two.
    least: float | None = None
    #: Equal nodes, each measured alone, differ so far that nobody can tell who is slow.
    uneven: bool = False


def to_sample(check: str, score: Score, record: Record, step: Step) -> Sample | None:
    """What one execution says of its group; None where it was not run for want of a tool."""
    mine = [p for p in record.problems if p.check in (None, check)]
    if any(state_of(problem.cause) is State.NOT_TESTED for problem in mine):
        return None
    value, cause = score(record, step)
    if any(problem.cause == "wrong-data" for problem in mine):
        cause = "wrong-data"
    if not cause and value is None:
        cause = next((p.cause for p in (*root_problems(mine), *mine)), "")
        cause = cause or ("no-measurement" if record.exit == 0 else "crashed")
    return Sample(record.hosts, value, cause, record.log, record.local_ranks)


def scored(evidences: Iterable[Evidence], checks: Checks) -> Iterator[tuple[Evidence, Score]]:
    """Yield the evidence of checks that compare groups, and the score they compare."""
    for evidence in evidences:
        rules = checks.get(evidence.check)
        if rules is not None and rules.score is not None:
            yield evidence, rules.score


def compare(evidence: Evidence, score: Score, bound: Bound) -> list[Comparison]:
    """Compare the groups of each step of a check, where its group kind has any to compare."""
    result = []
    for step in evidence.steps:
        records = evidence.of_step(step)
        if not records:
            continue
        if step.groups == "pairs":
            result.append(_pairs(evidence, score, step, records, bound(2)))
        elif step.groups == "each":
            result.append(_each(evidence, score, step, records, bound(1)))
        elif step.groups == "rails":
            result.append(_rails(evidence, score, step, records))
        elif step.groups == "ladder":
            result.append(_ladder(evidence, score, step, records))
    return result


def to_samples(
    evidence: Evidence, score: Score, step: Step, records: Iterable[Record]
) -> list[Sample]:
    """What each execution says of its group."""
    found = (to_sample(evidence.check, score, record, step) for record in records)
    return [one for one in found if one is not None]


def _pairs(
    evidence: Evidence, score: Score, step: Step, records: Sequence[Record], bound: float | None
) -> Comparison:
    samples = to_samples(evidence, score, step, records)
    decoded = decode(samples, evidence.plan.machine.noise, bound, places=evidence.places)
    suspects = [_suspect("node", node.hosts[0], evidence.check, node) for node in decoded.nodes]
    order = {host: place for place, host in enumerate(evidence.hosts)}
    for link in decoded.links:
        ends = sorted(link.hosts, key=lambda host: order.get(host, len(order)))
        suspects.append(_suspect("link", LINK.join(ends), evidence.check, link))
    for switch in decoded.switches:
        hosts = sorted(switch.hosts, key=lambda host: order.get(host, len(order)))
        name = f"{hosts[0]}{SWITCH}{hosts[-1]}"
        suspects.append(_suspect("switch", name, evidence.check, switch))
    among, least = decoded.spread, None
    if among is not None and among.median > 0:
        least = detectable_deficit(len(evidence.hosts), among.sigma / among.median, decoded.rounds)
    return Comparison(step, tuple(suspects), len(samples), among, decoded.unknown, least)


def _each(
    evidence: Evidence, score: Score, step: Step, records: Sequence[Record], bound: float | None
) -> Comparison:
    samples = to_samples(evidence, score, step, records)
    slow = outliers(samples, evidence.plan.machine.noise, bound)
    suspects = [
        _alone("node", one.sample.hosts[0], evidence.check, one)
        for one in slow.bad.values()
        if len(one.sample.hosts) == 1
    ]
    return Comparison(step, tuple(suspects), len(samples), slow.spread, uneven=slow.uneven)


def _rails(evidence: Evidence, score: Score, step: Step, records: Sequence[Record]) -> Comparison:
    whole = [r for r in records if _is_rail(r, evidence.hosts)]
    samples, slow = _slow(evidence, score, step, whole)
    suspects: list[Suspect] = []
    for index, one in slow.bad.items():
        rail = whole[index].local_ranks[0]
        pairs = [r for r in records if r.local_ranks == (rail,) and r not in whole]
        nodes = decode(to_samples(evidence, score, step, pairs), evidence.plan.machine.noise).nodes
        suspects += [
            _suspect("gpu", f"{node.hosts[0]}:{rail}", evidence.check, node) for node in nodes
        ]
        if not nodes:
            suspects.append(_alone("rail", f"rail {rail}", evidence.check, one))
    return Comparison(step, tuple(suspects), len(samples), slow.spread)


def _is_rail(record: Record, hosts: Sequence[str]) -> bool:
    """Whether a record spans a rail, and is not one of the pairs that follow a slow one."""
    return len(record.local_ranks) == 1 and (len(record.hosts) > 2 or len(hosts) <= 2)


def _slow(
    evidence: Evidence, score: Score, step: Step, whole: Sequence[Record]
) -> tuple[list[Sample], Outliers]:
    samples = to_samples(evidence, score, step, whole)
    slow = outliers(samples, evidence.plan.machine.noise)
    return samples, slow if len(samples) == len(whole) else slow._replace(bad={})


def slow_rails(evidence: Evidence, score: Score, step: Step) -> tuple[int, ...]:
    """Local ranks whose rail is slow or failed: those to be followed by pairs of that rank."""
    whole = [record for record in evidence.of_step(step) if _is_rail(record, evidence.hosts)]
    _, slow = _slow(evidence, score, step, whole)
    return tuple(sorted({whole[index].local_ranks[0] for index in slow.bad}))


def slow_groups(evidence: Evidence, score: Score, step: Step) -> list[Group]:
    """Single hosts, or blocks of a ladder, that stand out among their equals."""
    records = evidence.of_step(step)
    if step.groups == "ladder":
        return [Group(hosts=one.sample.hosts) for one in _blocks(evidence, score, step, records)[0]]
    if step.groups != "each":
        return []
    samples = to_samples(evidence, score, step, records)
    slow = outliers(samples, evidence.plan.machine.noise)
    return [Group(hosts=one.sample.hosts) for one in slow.bad.values()]


def group_by_kind(evidence: Evidence, records: Iterable[Record]) -> list[list[Record]]:
    """Records of groups of one size, in one NVLink domain or beyond; the smallest first."""
    kinds: dict[tuple[int, bool], list[Record]] = {}
    for record in records:
        kinds.setdefault((len(record.hosts), evidence.together(record.hosts)), []).append(record)
    return [alike for _, alike in sorted(kinds.items())]


def _blocks(
    evidence: Evidence, score: Score, step: Step, records: Sequence[Record]
) -> tuple[list[Outlier], Spread | None, int]:
    """The smallest blocks that are slow among those of their kind; the spread of the first kind
    that has one; the number of all."""
    found: list[Outlier] = []
    first, count = None, 0
    for alike in group_by_kind(evidence, records):
        samples = to_samples(evidence, score, step, alike)
        slow = outliers(samples, evidence.plan.machine.noise)
        count += len(samples)
        first = first or slow.spread
        for one in slow.bad.values() if len({one.hosts for one in samples}) > 1 else ():
            if not any(set(small.sample.hosts).issubset(one.sample.hosts) for small in found):
                found.append(one)
    return found, first, count


def _ladder(evidence: Evidence, score: Score, step: Step, records: Sequence[Record]) -> Comparison:
    """A slow block accuses a link, or a switch."""
    blocks, among, count = _blocks(evidence, score, step, records)
    suspects = []
    for found in blocks:
        hosts = found.sample.hosts
        kind: Kind = "link" if len(hosts) == 2 else "switch" if len(hosts) > 2 else "node"
        name = {2: LINK.join(hosts), 1: hosts[0]}.get(len(hosts), f"{hosts[0]}{SWITCH}{hosts[-1]}")
        suspects.append(_alone(kind, name, evidence.check, found))
    return Comparison(step, tuple(suspects), count, among)


def _alone(kind: Kind, name: str, check: str, found: Outlier) -> Suspect:
    """A suspect by executions of its own."""
    share = f": {found.share}" if found.share else ""
    log = found.sample.log
    return Suspect(
        kind=kind,
        name=name,
        cause=found.cause,
        strength={"node": "strong", "rail": "moderate"}.get(kind, "weak"),  # type: ignore[arg-type]
        why=f"{check}: {causes.meaning(found.cause)}{share}",
        evidence=(log,) if log else (),
    )


def _suspect(kind: Kind, name: str, check: str, accusation: Accusation) -> Suspect:
    return Suspect(
        kind=kind,
        name=name,
        cause=accusation.cause,
        strength=accusation.strength,
        why=f"{check}: {accusation.why}",
        evidence=accusation.logs[:8],
    )


def intermittent_findings(evidence: Evidence, score: Score) -> Iterator[Finding]:
    """Findings on groups that were slow in some of their executions, where nobody is to blame.

    Pairs are decoded together, whatever the number of their executions.
    """
    for step in evidence.steps if evidence.plan.machine.speed_promised else ():
        if step.groups == "pairs":
            continue
        # Of logs that do not say whom they are of nothing says that they are of the same.
        mine = [record for record in evidence.of_step(step) if record.hosts]
        for records in group_by_kind(evidence, mine):
            if len({(r.hosts, r.local_ranks) for r in records}) < len(records):
                samples = to_samples(evidence, score, step, records)
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
            state = State.INCONCLUSIVE if is_frequent(len(low), len(mine)) else State.PASS
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
        message=f"step {step.id}: {host_list(slow[0].hosts)} reached {said}",
        hosts=slow[0].hosts,
        evidence=tuple(dict.fromkeys(one.log for one in slow if one.log))[:8],
    )
