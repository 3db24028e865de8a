"""Name the parts that the effects model blames, and compare the groups of each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from accept.core import sentences
from accept.core.causes import Cause, Judgement
from accept.core.judge import bounds
from accept.core.judge.effects.distances import LIMIT
from accept.core.judge.effects.explanation import Effect, Fault, Normal, Part
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.evidence import Evidence
from accept.core.judge.explained import Effects, Explained
from accept.core.judge.findings import finding, first_logs
from accept.core.judge.rounds import slowdown_found
from accept.core.judge.values import SIGMAS, is_bad, limit_of
from accept.core.plan import Bound, BoundKind, GroupKind, Step
from accept.core.table import Measure, Row
from accept.core.text import shortened
from accept.core.verdict import OF_HOST, BadPair, Finding, State, Strength, Suspect, SuspectKind

#: Maximum number of bad pairs of one suspect.
_MAX_PAIRS = 1000
#: If more pairs than this are bad without a reason, an intermittent host is only a weak suspect.
_CALM = 0.01
#: Groups that are compared with each other, besides pairs.
_COMPARED = (GroupKind.EACH, GroupKind.RAILS, GroupKind.LADDER)


# Suspects


def suspects_of(effects: Effects, check: str, step: Step) -> list[Suspect]:
    """Return the suspects that a check accuses in a step, wrong data first."""
    found: dict[Suspect, None] = {}
    for own in effects.both:
        in_step = {*own.of(check, step)}
        for number, fault in enumerate(own.explanation.faults):
            if not in_step.isdisjoint(fault.hits) and not _is_distance(own, fault, in_step):
                key = (own is effects.wrong, number)
                if key not in effects.described:
                    effects.described[key] = _described(effects, own, fault)
                found[effects.described[key]] = None
    return [*found]


def _is_distance(found: Explained, fault: Fault, in_step: Collection[int]) -> bool:
    """Return True if distance explains what a network fault costs the executions of a step."""
    if fault.part.kind not in (SuspectKind.SWITCH, SuspectKind.BORDER, SuspectKind.LEAF):
        return False
    own = {found.executions[i].population for i in in_step}
    return all(
        effect.loss <= LIMIT and not effect.failures
        for effect in fault.effects
        if effect.population in own
    )


def _described(effects: Effects, found: Explained, fault: Fault) -> Suspect:
    part, wrong, sort = fault.part, found is effects.wrong, effects.in_order
    alone = all(len(found.executions[i].hosts) == 1 for i in fault.hits)
    cause = _cause(found, fault, wrong=wrong, alone=alone)
    partners = {h for i in fault.hits for h in found.executions[i].hosts}.difference(part.hosts)
    why = sentences.why_blamed(
        part.kind,
        cause,
        bad=len(fault.hits) if alone or part.kind is SuspectKind.LINK else fault.pairs_hit,
        pairs=sum(effect.executions for effect in fault.effects) if alone else fault.pairs,
        others=(fault.other_hit, fault.other_pairs),
        cleared=None if alone else (len(fault.cleared), len(partners)),
        gpus=part.gpus,
        nic=(part.nic or "") if effects.network.of_nics else "",
        effects=() if wrong else _effects(found, fault),
        alike=[name for one in fault.indistinguishable if (name := name_of(one)) != name_of(part)],
        noun="execution" if alone else "pair",
    )
    return Suspect(
        kind=part.kind,
        hosts=sort(part.hosts),
        others=sort(part.others),
        device=part.device,
        cause=cause,
        strength=_strength(found, fault, alone=alone),
        why=why + _of_device(effects, part),
        around=_around(effects, found, fault),
        innocent=_innocent(found, part),
        pairs=_bad_pairs(found, fault, sort, wrong=wrong)[:_MAX_PAIRS],
        evidence=first_logs(found.logs(fault.hits)),
    )


def name_of(part: Part) -> str:
    """Return the name of a part for people."""
    return sentences.part_name(part.kind, part.hosts, part.others, ", ".join(part.devices))


def _effects(found: Explained, fault: Fault) -> list[str]:
    """Return the values in each collective, of the step which measured it most often."""
    shown: dict[str, Effect] = {}
    for one in sorted(fault.effects, key=lambda effect: -effect.executions):
        if one.population in found.populations:
            shown.setdefault(found.populations[one.population].check, one)
    return [
        sentences.effect(
            check, found.compared(fault.hits, one.population), one.loss, one.low, one.high
        )
        for check, one in shown.items()
    ]


def _cause(found: Explained, fault: Fault, *, wrong: bool, alone: bool) -> Cause:
    """Return the reported cause: if no host explains the slowness, it is the network's."""
    if wrong:
        return Cause.WRONG_DATA
    causes = [found.causes[i] for i in fault.hits if i in found.causes]
    if causes and 2 * len(causes) >= len(fault.hits):
        return max(set(causes), key=lambda cause: (causes.count(cause), cause))
    if fault.part.kind not in OF_HOST:
        return Cause.SLOW_NETWORK
    at_times = alone and len(fault.hits) < sum(one.executions for one in fault.effects)
    return Cause.INTERMITTENT if fault.intermittent or at_times else Cause.SLOW_OUTLIER


def _strength(found: Explained, fault: Fault, *, alone: bool) -> Strength:
    """Return how strong the evidence is; weak if another host may as well be the reason."""
    part = fault.part
    if part.kind is SuspectKind.LINK:
        return Strength.MODERATE
    if part.kind not in OF_HOST:
        return Strength.STRONG
    others = (one for one in fault.indistinguishable if one.kind in OF_HOST)
    if any({*one.hosts} != {*part.hosts} for one in others):
        return Strength.WEAK
    if not alone and (len(fault.cleared) < 2 or fault.pairs_hit < 2):
        return Strength.WEAK
    if any(one.kind not in OF_HOST for one in fault.indistinguishable):
        # What it shares with another host may as well be the reason.
        return Strength.MODERATE
    if fault.intermittent:
        return Strength.WEAK if found.explanation.background > _CALM else Strength.MODERATE
    return Strength.STRONG


def _of_device(effects: Effects, part: Part) -> str:
    """Return a text about the device of a blamed host."""
    if part.kind is SuspectKind.NIC and part.nic and len(part.gpus) > 1:
        return sentences.only_user(part.nic)
    device = part.kind in (SuspectKind.GPU, SuspectKind.NIC) and len(part.gpus) == 1
    if not device or effects.network.of_nics:
        return ""
    nics = effects.nics.get(part.hosts[0], {}).get(part.gpus[0], frozenset())
    return sentences.gpu_or_nic(part.gpus[0], sorted(nics))


def _bad_pairs(
    found: Explained,
    fault: Fault,
    sort: Callable[[Iterable[str]], tuple[str, ...]],
    *,
    wrong: bool,
) -> tuple[BadPair, ...]:
    """Return the bad pairs with their worst results, worst first."""
    worst: dict[tuple[str, ...], BadPair] = {}
    shares = {i: found.share(i) for i in fault.hits if len(found.executions[i].hosts) == 2}
    for i in sorted(shares, key=lambda i: (shares[i] or 0.0, found.executions[i].hosts)):
        one = found.executions[i]
        hosts = sort(one.hosts)
        compared = "" if wrong else found.compared([i])
        worst.setdefault(
            hosts,
            BadPair(
                hosts=hosts, share=None if wrong else shares[i], compared=compared, log=one.log
            ),
        )
    return tuple(worst.values())


def _around(effects: Effects, found: Explained, fault: Fault) -> str:
    """Return what all bad pairs of a network fault share, and what is normal around it."""
    part = fault.part
    if part.kind in OF_HOST:
        return ""
    if part.kind is SuspectKind.FABRIC:
        times: dict[str, int] = {}
        for pair in {frozenset(found.executions[i].hosts) for i in fault.hits}:
            for host in pair:
                times[host] = times.get(host, 0) + 1
        most = max(times.values(), default=0)
        return sentences.around_fabric(len(times), len(effects.order), most)
    members, others, gpus = {*part.hosts}, {*part.others}, {*part.gpus}
    is_link = part.kind is SuspectKind.LINK
    return sentences.around(
        part.kind,
        effects.in_order(part.hosts),
        part.device or "",
        inside=_normal(
            found, lambda hosts, _: hosts <= members or (bool(others) and hosts <= others)
        ),
        elsewhere=_normal(
            found,
            lambda hosts, used: (
                len(hosts & members) == 1
                and (is_link or bool(gpus and used and gpus.isdisjoint(used)))
            ),
        ),
    )


def _normal(found: Explained, chosen: Callable[[set[str], set[int]], bool]) -> str:
    """Return how many of the chosen executions are normal."""
    own = [
        i
        for i, one in enumerate(found.executions)
        if len(one.hosts) > 1
        and chosen({*one.hosts}, {gpu for gpus in one.gpus for gpu in gpus or ()})
    ]
    return sentences.normal_of(sum(not found.is_affected(i) for i in own), len(own))


def _innocent(found: Explained, part: Part) -> str:
    """Return the hosts that are in bad pairs of a network fault without being the reason."""
    if part.kind in OF_HOST:
        return ""
    faults = (one.part for one in found.explanation.faults)
    named = dict.fromkeys(one.hosts[0] for one in faults if one.kind in OF_HOST)
    return sentences.innocent(part.kind, part.hosts, [*named])


# Comparison of the groups of each step


class Compared(NamedTuple):
    """The result of comparing the groups of each step of a check with each other."""

    findings: tuple[Finding, ...]
    suspects: tuple[Suspect, ...]
    #: What the groups were compared with, for people; empty: too few to compare.
    required: str


def compare_steps(evidence: Evidence, effects: Effects, measure: Measure) -> Compared:
    """Compare the groups of each step, and name the parts that make some of them bad."""
    check, promised = evidence.check, evidence.plan.machine.speed_promised
    findings: list[Finding] = []
    suspects: list[Suspect] = []
    required = ""
    for step in evidence.steps:
        accused = suspects_of(effects, check, step)
        if step.groups is GroupKind.EACH:
            below = list(_below_bound(evidence, step, measure))
            known = {suspect.part for suspect in below}
            accused = [*below, *(s for s in accused if s.part not in known)]
        compared = step.groups.of_pairs or step.groups in _COMPARED or accused
        if not (evidence.of_step(step) and compared):
            continue
        groups = len(effects.speed.of(check, step))
        peers = groups >= FEWEST or not evidence.plan.origin
        accused = [s for s in accused if _is_proven(s, promised=promised, peers=peers)]
        normal = effects.speed.normal(check, step)
        detectable = None
        if normal and step.groups.of_pairs:
            detectable = slowdown_found(normal.sigma, len(effects.order))
        if normal and not required:
            share = 1 - SIGMAS * normal.sigma
            required = sentences.peers_required(
                normal.values, share, detectable, inverse=measure.inverse
            )
        suspects += accused
        what = f"step {step.id}, {groups} groups ({step.groups})"
        reached = measure.text(normal.value) if normal else ""
        if accused:
            findings.append(_accusation(evidence, step, accused, what, normal, measure))
            continue
        unknown = effects.speed.explanation.unknown if step.groups.of_pairs else ()
        text = sentences.too_few(what, FEWEST)
        if normal:
            text = sentences.no_outlier(what, reached, detectable, shortened(unknown, 4))
        findings.append(finding(check, Judgement.POPULATION, State.PASS, text))
        if promised and not measure.inverse and effects.speed.is_uneven(check, step):
            text = sentences.uneven(step.id, groups, reached or "normal")
            findings.append(finding(check, Judgement.POPULATION, State.INCONCLUSIVE, text))
    return Compared(tuple(findings), tuple(suspects), required)


def _is_proven(suspect: Suspect, *, promised: bool, peers: bool) -> bool:
    """Return True if the groups of a step prove a suspect.

    Without a speed target, one slow run of a shared link proves nothing. Without `peers`, nothing
    but its log shows why a group failed.
    """
    row = suspect.cause.row
    weak = suspect.strength is Strength.WEAK and suspect.cause is Cause.SLOW_OUTLIER
    return (promised or not weak) and (peers or not (row.relative or row.consequence))


def _below_bound(evidence: Evidence, step: Step, measure: Measure) -> Iterator[Suspect]:
    """Yield the hosts that are always below their bound, unless most are."""
    bound = bounds.lowest(evidence, step, measure)
    best: dict[str, Row] = {}
    for row in evidence.results(measure, step):
        known = best.get(row.hosts[0]) if row.hosts else None
        if row.hosts and (known is None or (row.score or 0.0) > (known.score or 0.0)):
            best[row.hosts[0]] = row
    below = {
        host: row
        for host, row in best.items()
        if row.score is not None and is_bad(row.score, bound)
    }
    for host, row in below.items() if len(best) == 1 or 2 * len(below) <= len(best) else ():
        yield Suspect(
            kind=SuspectKind.NODE,
            hosts=(host,),
            cause=Cause.BELOW_REFERENCE,
            strength=Strength.STRONG,
            why=sentences.below_bound(
                evidence.check,
                measure.text(row.score or 0.0),
                measure.text(bound or 0.0),
                len(below) - 1,
                len(best) - 1,
            ),
            evidence=first_logs([row.log]),
        )


def _accusation(
    evidence: Evidence,
    step: Step,
    suspects: Sequence[Suspect],
    what: str,
    normal: Normal | None,
    measure: Measure,
) -> Finding:
    weak_nodes = all(s.strength is Strength.WEAK and s.kind in OF_HOST for s in suspects)
    bound = None
    if normal:
        limit, source = limit_of(normal), f"normal value of {normal.values} in this run"
        bound = Bound(lower=limit, kind=BoundKind.POPULATION, source=source)
        if measure.inverse:
            bound = Bound(upper=measure.shown(limit), kind=BoundKind.POPULATION, source=source)
    shown = measure.text(normal.value) if normal else ""
    return finding(
        evidence.check,
        Judgement.POPULATION,
        State.INCONCLUSIVE if step.groups.of_pairs and weak_nodes else State.FAIL,
        sentences.named(what, [(s.name, s.why) for s in suspects], shown),
        cause=suspects[0].cause,
        metric=measure.metric,
        unit=measure.unit,
        bound=bound,
        hosts=(host for s in suspects if s.kind is SuspectKind.NODE for host in s.hosts),
        logs=(log for s in suspects for log in s.evidence),
    )
