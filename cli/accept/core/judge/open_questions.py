"""Report what the effects model leaves open, what is far, and what was slow at some time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from accept.core import sentences
from accept.core.causes import Cause, Judgement
from accept.core.judge.effects.explanation import Doubt, Part
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.evidence import Evidence
from accept.core.judge.explained import Effects, Explained
from accept.core.judge.findings import finding
from accept.core.judge.parts import name_of
from accept.core.plan import GroupKind, Step
from accept.core.table import Measure
from accept.core.text import count
from accept.core.verdict import OF_HOST, Executions, Finding, State, SuspectKind

#: If at least one host in this many has no near host, or on larger clusters, a few rounds of pairs
#: explain that, and no host is suspected of being slow.
_HOSTS_PER_LONER, _MAX_HOSTS_FOR_LONERS = 4, 64
#: A part that is neither accepted nor excluded is reported from this probability on.
_LIKELY = 0.5


def effect_findings(
    evidence: Evidence, effects: Effects, measure: Measure, accused: Collection[str]
) -> Iterator[Finding]:
    """Yield what is open; with a speed target also what is far, or slow at some time.

    `accused`: hosts that suspects name.
    """
    yield from _open(evidence, effects, measure)
    if evidence.plan.machine.speed_promised:
        yield from _distances(evidence, effects, accused, measure)
        yield from _slow_waves(evidence, effects)
        if not measure.inverse:
            yield from _rarely_slow(evidence, effects)


def _open(evidence: Evidence, effects: Effects, measure: Measure) -> Iterator[Finding]:
    """Yield what collapsed or looks bad without a known part: it is never a pass."""
    found, check = effects.speed, evidence.check
    if any(one.part.kind is SuspectKind.FABRIC for one in found.explanation.faults):
        return
    for step in evidence.steps:
        if step.groups is GroupKind.LADDER:
            yield from _block_finding(evidence, found, step)
            continue
        own = {*found.of(check, step)}
        opened: list[tuple[str, str]] = []
        logs: list[int] = []
        for one in found.explanation.open_pairs if step.groups.of_pairs else ():
            # A pair that was mostly good when it was measured again is not open.
            if (hits := own.intersection(one.hits)) and 2 * one.bad > one.logs:
                failed = any(found.share(i) is None for i in hits)
                name = " - ".join(effects.in_order(one.hosts))
                opened.append((name, "" if failed else found.compared(hits)))
                logs += sorted(hits)
        if opened:
            few = sorted(own) if len(effects.order) < FEWEST else []
            every = [
                (" - ".join(effects.in_order(one.hosts)), measure.text(one.value))
                for one in (found.executions[i] for i in few)
                if one.value is not None
            ]
            yield finding(
                check,
                Judgement.POPULATION,
                State.INCONCLUSIVE,
                sentences.open_pairs(step.id, opened, every),
                cause=Cause.UNPROVEN,
                logs=found.logs(logs),
            )
    yield from _likely(evidence, found)


def _likely(evidence: Evidence, found: Explained) -> Iterator[Finding]:
    """Yield a finding on the parts that are likely bad, but not proven to be."""
    indexes = (i for step in evidence.steps for i in found.of(evidence.check, step))
    # A larger group does not show which of its hosts is slow.
    slow = [i for i in indexes if found.is_slow(i) and len(found.executions[i].hosts) <= 2]
    accused = {
        host
        for fault in found.explanation.faults
        if fault.part.kind in OF_HOST
        for host in fault.part.hosts
    }
    # Each part with its probability and its slow executions. The most probable comes first: a node
    # may be in doubt with all of its GPUs and with some.
    parts: dict[str, tuple[Doubt, list[int]]] = {}
    for one in found.explanation.doubtful:
        own = [i for i in slow if _exercises(found, i, one.part)]
        blamed = one.part.kind in OF_HOST and accused.issuperset(one.part.hosts)
        if own and one.probability >= _LIKELY and not blamed:
            parts.setdefault(name_of(one.part), (one, own))
    if parts:
        shown = [i for _, own in parts.values() for i in own]
        alone = all(len(found.executions[i].hosts) == 1 for i in shown)
        yield finding(
            evidence.check,
            Judgement.POPULATION,
            State.INCONCLUSIVE,
            sentences.doubt(
                [(n, one.probability, found.compared(own)) for n, (one, own) in parts.items()],
                "execution" if alone else "pair",
            ),
            cause=Cause.UNPROVEN,
            hosts=(host for one, _ in parts.values() for host in one.part.hosts),
            logs=found.logs(shown),
        )


def _block_finding(evidence: Evidence, found: Explained, step: Step) -> Iterator[Finding]:
    """Yield a finding on the smallest bad blocks of a ladder; slow ones need a speed target.

    A block does not show which part of it is bad.
    """
    populations: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for i in found.of(evidence.check, step):
        one = found.executions[i]
        populations.setdefault(one.population, {}).setdefault(one.hosts, []).append(i)
    slow: list[int] = []
    normal = 0
    for blocks in populations.values():
        bad = [
            block
            for block in blocks.values()
            if all(found.is_slow(i) and i not in found.explained for i in block)
        ]
        if len(blocks) > 1 and 2 * len(bad) <= len(blocks):
            slow += [i for block in bad for i in block]
            normal = max(normal, len(blocks) - len(bad))
    slow.sort(key=lambda i: len(found.executions[i].hosts))
    smallest: dict[tuple[str, ...], list[int]] = {}
    for i in slow:
        hosts = found.executions[i].hosts
        if not any({*block} < {*hosts} for block in smallest):
            smallest.setdefault(hosts, []).append(i)
    failed = {hosts for hosts, own in smallest.items() if found.share(own[0]) is None}
    if smallest and (failed or evidence.plan.machine.speed_promised):
        shown = [
            (sentences.hosts_of(hosts), "" if hosts in failed else found.compared(own), len(own))
            for hosts, own in smallest.items()
        ]
        yield finding(
            evidence.check,
            Judgement.POPULATION,
            State.FAIL,
            sentences.bad_blocks(step.id, shown, normal),
            cause=next((found.causes[i] for i in slow if i in found.causes), Cause.SLOW_OUTLIER),
            hosts=(host for hosts in smallest for host in hosts),
            logs=found.logs(slow),
        )


def _exercises(found: Explained, index: int, part: Part) -> bool:
    """Return True if an execution may exercise a part."""
    return not part.hosts or not {*part.hosts}.isdisjoint(found.executions[index].hosts)


def _distances(
    evidence: Evidence, effects: Effects, accused: Collection[str], measure: Measure
) -> Iterator[Finding]:
    """Yield which hosts are slower with each other, with what the steps measured that show it.

    Distance is a note. Hosts that are alone under their switch, or slow, are open.
    """
    found, check = effects.speed, evidence.check
    steps = [{*found.of(check, step)} for step in evidence.steps]
    if found.explanation.distance is not None:
        distance = found.explanation.distance
        who = f"pairs across {count(len(distance.blocks), 'block')} of near hosts"
        losses = distance.losses.keys()
        far = [i for i in distance.far if found.executions[i].population in losses]
        lone = [host for block in distance.blocks if len(block) == 1 for host in block]
        lone = [host for host in lone if host not in effects.network.places]
        # Hosts that were set aside may be those that a lone host is near.
        alone, every = {*lone, *evidence.set_aside}, {*effects.order, *evidence.set_aside}
        few = _HOSTS_PER_LONER * len(alone) <= len(every) <= _MAX_HOSTS_FOR_LONERS
        for host in effects.in_order({*lone}.difference(accused)) if few else ():
            own = [i for i in far if host in found.executions[i].hosts]
            reason = sentences.SLOW_OR_FAR
            yield from _gap_finding(
                evidence, found, steps, own, f"pairs of {host}", reason, measure, (host,)
            )
        yield from _gap_finding(evidence, found, steps, far, who, sentences.DISTANCE, measure)
    for fault in found.explanation.apart:
        is_host = fault.part.kind in OF_HOST
        if is_host and not {*accused}.isdisjoint(fault.part.hosts):
            continue
        hosts = effects.in_order(fault.part.hosts)
        who = f"pairs of {sentences.hosts_of(hosts)}" + ("" if is_host else " with other hosts")
        reason = sentences.SLOW_OR_FAR if is_host else sentences.DISTANCE
        named = hosts if is_host else ()
        yield from _gap_finding(evidence, found, steps, fault.hits, who, reason, measure, named)


def _gap_finding(
    evidence: Evidence,
    found: Explained,
    steps: Sequence[Collection[int]],
    indexes: Sequence[int],
    who: str,
    reason: str,
    measure: Measure,
    hosts: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Yield the finding on executions that are slower than the others of their populations."""
    gaps, slow, total = [], [], 0
    for step, in_step in zip(evidence.steps, steps, strict=True):
        own = [i for i in indexes if i in in_step and found.executions[i].value is not None]
        normal = max(
            (found.explanation.normal[found.executions[i].population].value for i in own),
            default=0.0,
        )
        values = sorted(found.executions[i].value or 0.0 for i in own)
        if not (low := [i for i in own if found.is_lower(i)]):
            continue
        texts = (measure.text(values[0]), measure.text(values[-1]), measure.text(normal))
        gaps.append((step.id, *texts, len(low), len(own)))
        slow += low
        total += len(own)
    if gaps:
        yield finding(
            evidence.check,
            Judgement.POPULATION,
            State.INCONCLUSIVE if hosts else State.PASS,
            sentences.slower(who, gaps, reason),
            metric=measure.metric,
            unit=measure.unit,
            hosts=hosts,
            executions=Executions(bad=len(slow), total=total),
            logs=found.logs(slow),
        )


def _slow_waves(evidence: Evidence, effects: Effects) -> Iterator[Finding]:
    """Yield a note for each wave that was slow for everybody."""
    for wave in effects.speed.explanation.waves:
        populations = effects.speed.populations
        losses = [
            one.loss for one in wave.effects if populations[one.population].check == evidence.check
        ]
        if losses:
            yield finding(
                evidence.check,
                Judgement.POPULATION,
                State.PASS,
                sentences.slow_wave(wave.step, wave.wave, max(losses)),
                logs=effects.speed.logs(wave.hits),
            )


def _rarely_slow(evidence: Evidence, effects: Effects) -> Iterator[Finding]:
    """Yield findings on groups, other than pairs, that were slow in some executions only."""
    found = effects.speed
    for step in evidence.steps:
        groups: dict[tuple[object, ...], list[int]] = {}
        for i in () if step.groups.of_pairs else found.of(evidence.check, step):
            one = found.executions[i]
            groups.setdefault((one.population, one.hosts, one.gpus), []).append(i)
        for own in (own for own in groups.values() if len(own) >= FEWEST):
            values = {i: found.executions[i].value for i in own}
            slow = [i for i in found.slow_among(own) if i not in found.explained]
            if not 0 < len(slow) < len(own) or any(value is None for value in values.values()):
                continue
            hosts = found.executions[own[0]].hosts
            name = sentences.hosts_of(hosts)
            yield finding(
                evidence.check,
                Judgement.POPULATION,
                State.INCONCLUSIVE if _is_frequent(len(slow), len(own)) else State.PASS,
                sentences.rare(step.id, name, found.compared(slow), len(slow), len(own)),
                cause=Cause.INTERMITTENT,
                hosts=hosts,
                logs=found.logs(slow),
            )


def _is_frequent(slow: int, executions: int) -> bool:
    """Return True if a group is slow too often for chance: twice, and in more than a quarter.

    With heavy-tailed noise, some member of a large population is slow twice in many executions.
    """
    return slow > 1 and slow * 4 > executions
