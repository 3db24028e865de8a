"""Find the parts that explain losses: accept the best candidate, then the next.

Accepted parts that others make superfluous are removed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from math import inf, log
from statistics import median

from accept.core.judge.effects import distances, populations
from accept.core.judge.effects.background import log_choose
from accept.core.judge.effects.candidates import CAUTION, Candidates
from accept.core.judge.effects.evidence import STEADY, Candidate, Evidence, Weighed
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.explanation import Explanation
from accept.core.judge.effects.results import Results
from accept.core.judge.effects.units import Units
from accept.core.verdict import SuspectKind

#: Order of candidates that explain equally much: the most general first.
_GENERAL_FIRST = (
    SuspectKind.SWITCH,
    SuspectKind.BORDER,
    SuspectKind.LEAF,
    SuspectKind.RAIL,
    SuspectKind.FABRIC,
    SuspectKind.NODE,
    SuspectKind.GPU,
    SuspectKind.NIC,
)
#: Log of the factor of the likelihood within which alternatives cannot be distinguished.
_ALIKE = log(100)
#: If there are more executions, only some of each group of hosts and population are judged, but at
#: least this many: they are one witness at most.
_MOST_EXECUTIONS, _FEWEST_KEPT = 40_000, 4
#: A host is accused if chance would gather the bad pairs like this in fewer clusters than this.
_RARE = 0.005
#: Number of candidates that may hide another one.
_MOST_HIDDEN = 3
#: Number of hosts that are compared pairwise with a common reason.
_MOST_PAIRED = 8
#: Log of the factor of the likelihood by which an edge that is drawn again must be better.
_BETTER = 0.5
#: Maximum number of times that a part is accepted or removed.
_MOST_STEPS = 200


def explain(executions: Sequence[Execution], network: Network) -> Explanation:
    """Return what explains the losses, regardless of the order and the names of hosts."""
    kept = _kept(executions)
    if not kept:
        return Explanation()
    units = Units([executions[i] for i in kept], network)
    numbers = {name: n for n, name in enumerate(units.names)}
    places = {numbers[h]: place for h, place in network.places.items() if h in numbers}
    ends = []
    for blocked in distances.likely(units, places):
        evidence = Evidence(units)
        evidence.set_distance(blocked.losses, blocked.far, blocked.common)
        search = _Search(evidence, Candidates(evidence, network, blocked.blocks))
        search.run()
        ends.append((evidence.total() - blocked.price, search, blocked))
    _, search, blocked = max(ends, key=lambda end: end[0])
    results = Results(
        evidence=search.evidence,
        blocked=blocked,
        open=search.open,
        rivals=search.rivals,
        inputs=kept,
    )
    return results.explanation()


def _kept(executions: Sequence[Execution]) -> list[int]:
    """Return the executions to judge: of very many, some of each group of hosts and population."""
    groups: dict[object, list[int]] = {}
    for i, e in enumerate(executions):
        if e.hosts:
            groups.setdefault((e.hosts, e.population), []).append(i)
    most = max(_FEWEST_KEPT, _MOST_EXECUTIONS // max(len(groups), 1))
    strides = ((own, -(-len(own) // most)) for own in groups.values())
    return sorted(i for own, stride in strides for i in own[::stride])


@dataclass
class _Search:
    """Forward selection, then backward elimination."""

    evidence: Evidence
    candidates: Candidates
    #: What was accepted once and is superfluous.
    banned: set[tuple[object, ...]] = field(default_factory=set)
    #: The candidates that were weighed last: neither accepted nor excluded.
    open: list[Weighed] = field(default_factory=list)
    #: Accepted candidate -> those that explained the same executions about as well, each with the
    #: difference of the scores.
    rivals: dict[tuple[object, ...], list[tuple[Weighed, float]]] = field(default_factory=dict)
    #: Accepted candidate -> the hosts of parts of the network that explained as much as it then.
    common: dict[tuple[object, ...], list[frozenset[int]]] = field(default_factory=dict)

    def run(self) -> None:
        """Accept candidates until no other is likely enough and all accepted ones hold."""
        for _ in range(_MOST_STEPS):
            if not (
                self._forward()
                or self._backward()
                or self._jointly()
                or self._with_other_edge()
                or self._together()
            ):
                break
        if self.banned:
            # A part that was not certain enough, given the others, may still be bad.
            self.banned.clear()
            self._weigh()
        self._leave_open()
        self._leave_chance()

    def _leave_chance(self) -> None:
        """Accuse no host whose bad pairs may have met in it by chance."""
        while True:
            accepted = self.evidence.accepted
            rare = log(_RARE)
            chances = [(self._chance(found), _order(found), found) for found in accepted]
            left = max((one for one in chances if one[0] > rare), default=None, key=lambda c: c[:2])
            if left is None:
                return
            self.open = sorted([replace(left[2], score=-CAUTION), *self.open], key=_order)
            self.evidence.explain([found for found in accepted if found is not left[2]])

    def _chance(self, found: Weighed) -> float:
        """Return the log probability that chance puts so many of the bad pairs into one host.

        A pair counts if it lost at least half of what those of the host did, where the host lost
        anything. If no other pair is bad, a host that always is cannot be chance.
        """
        units, evidence, cover = self.evidence.units, self.evidence, found.candidate.cover
        hit = {units.unit_of[i] for i in found.hits}
        if not found.candidate.of_host or any(units.alone[u] for u in hit):
            return -inf
        least = median(self._rest(i, 0.0) for i in found.hits) / 2
        explained = evidence.explained
        exercising = {units.unit_of[i] for i in cover}
        bad = others = 0
        for unit in units.shared:
            own = units.of_unit(unit)
            if unit not in exercising and not explained.issuperset(own):
                others += 1
                bad += any(
                    evidence.loud[i] and self._rest(i, evidence.high[i]) >= least
                    for i in own
                    if units.population[i] in found.loss
                )
        if not bad and found.rate >= STEADY:
            return -inf
        own_units = {units.unit_of[i] for i in cover if units.population[i] in found.loss}
        pairs = len(own_units | hit)
        ways = [
            log_choose(pairs, k) + log_choose(others, len(hit) + bad - k)
            for k in range(len(hit), min(pairs, len(hit) + bad) + 1)
        ]
        total = log_choose(pairs + others, len(hit) + bad)
        return log(len(units.names)) + populations.log_sum(ways) - total

    def _rest(self, i: int, explained: float) -> float:
        """Return the log loss that is left; infinite: it failed."""
        loss = self.evidence.units.loss[i]
        return inf if loss is None else loss - explained

    def _leave_open(self) -> None:
        """Accuse no group of hosts if others have the same edge: the fabric is bad somewhere."""
        accepted, opened = self.evidence.accepted, list[Weighed]()
        for found in accepted:
            cover = found.candidate.cover
            same = [
                other
                for other, _ in self.rivals.get(found.candidate.key, ())
                if not found.candidate.of_host and other.candidate.cover == cover
            ]
            # They are about equally likely, and one of them is right.
            odds = -log(len(same)) if same else 0.0
            opened += [replace(one, score=odds - CAUTION) for one in (found, *same) if same]
        if opened:
            self.open = sorted([*opened, *self.open], key=_order)
            left = {one.candidate.key for one in opened}
            self.evidence.explain([one for one in accepted if one.candidate.key not in left])

    def _together(self) -> bool:
        """Accept two candidates that hide each other.

        Without the other one, its losses are part of the background.
        """
        before, opened = self.evidence.accepted, self.open
        likely = [f for f in opened if f.score > -CAUTION and not self._is_ambiguous(f)]
        for found in likely[:_MOST_HIDDEN]:
            first = self.evidence.with_hits(found)
            self.evidence.explain([*before, first])
            self._weigh()
            second = next((f for f in self.open if not self._is_ambiguous(f)), None)
            if (
                second is not None
                and not found.candidate.each
                and not second.candidate.each
                and second.score + found.score > 0
                and second.score > 0
            ):
                for one in (found, second):
                    self.rivals[one.candidate.key] = self._rivals(one, self.open)
                self.evidence.explain([*before, first, self.evidence.with_hits(second)])
                return True
        if likely:
            self.evidence.explain(before)
            self.open = opened
        return False

    def _forward(self) -> bool:
        """Accept the best candidate, and those that do not compete with it."""
        units = self.evidence.units
        self._weigh()
        likely = [f for f in self.open if f.score > 0 and not self._is_ambiguous(f)]
        if not likely:
            return False
        best = likely[0]
        chosen, busy = [best], {units.unit_of[i] for i in best.candidate.cover}
        for found in likely[1:] if best.candidate.of_host else ():
            own = {units.unit_of[i] for i in found.candidate.cover}
            if found.candidate.of_host and busy.isdisjoint(own):
                chosen.append(found)
            busy |= own
        new = []
        for found in chosen:
            rivals = self._rivals(found, self.open)
            common = [
                other.candidate.group
                for other, _ in rivals
                if other.candidate.group and not (other.candidate.of_host or other.candidate.each)
            ]
            # Several hosts that are bad one by one are accepted one by one.
            for member in self._weighed(found.candidate.each) if found.candidate.each else [found]:
                self.rivals[member.candidate.key] = [*rivals]
                self.common[member.candidate.key] = common
                new.append(self.evidence.with_hits(member))
        if not new:
            self.banned.add(best.candidate.key)
            return True
        self.evidence.explain([*self.evidence.accepted, *new])
        return True

    def _weigh(self) -> None:
        """Weigh all candidates."""
        nodes = (f.candidate for f in self.evidence.accepted if _is_node(f.candidate))
        accused = frozenset(h for node in nodes for h in node.group)
        new = (
            one
            for one in self.candidates.all(accused)
            if one.key not in self.banned
            and not ((one.each or one.of_host) and accused & one.group)
        )
        weighed = {found.candidate.key: found for found in self._weighed(new)}
        self.open = sorted((f for f in weighed.values() if not self._is_hidden(f)), key=_order)

    def _is_hidden(self, found: Weighed) -> bool:
        """Return True if a bad part of its host took part in all that it would explain.

        Then nothing shows that it is bad, too: what the other one costs varies.
        """
        own, population = found.candidate, self.evidence.units.population
        beside = [
            part.hits
            for part in self.evidence.accepted
            if own.of_host and part.candidate.of_host and part.candidate.group == own.group
        ]
        if not beside:
            return False
        slow = {i for i in own.cover if population[i] in found.loss}
        return any(slow <= hits for hits in beside)

    def _rivals(self, found: Weighed, others: Iterable[Weighed]) -> list[tuple[Weighed, float]]:
        """Return the candidates that explain the same executions about as well."""
        cover = found.candidate.cover
        return [
            (other, other.score - found.score)
            for other in others
            if other.candidate.key != found.candidate.key
            and other.score > found.score - _ALIKE
            and 2 * len(other.candidate.cover & cover) > len(cover)
        ]

    def _is_ambiguous(self, found: Weighed) -> bool:
        """Return True if another host explains the same executions about as well."""
        return found.candidate.of_host and any(
            other.candidate.of_host and other.candidate.group != found.candidate.group
            for other, _ in self._rivals(found, self.open)
        )

    def _alternatives(self, found: Weighed) -> list[Candidate]:
        """Return the parts of the same host, and hosts that explained as much as it.

        Of a group: those that may be on the other side of its edge.
        """
        own = found.candidate
        rivals = [other.candidate for other, _ in self.rivals.get(own.key, ())]
        if not own.of_host:
            return [*self.candidates.with_other_sides(own)]
        of_host = self.candidates.of_host(min(own.group))
        return [*of_host, *(one for one in rivals if one.of_host and one.group != own.group)]

    def _with_common_reason(self) -> Iterator[frozenset[int]]:
        """Yield groups of accepted hosts that may have one reason.

        Two hosts that lose no more than distance costs may be far from all others.
        """
        accepted = self.evidence.accepted
        for one in accepted:
            yield from self.common.get(one.candidate.key, ())
        near = [
            min(one.candidate.group)
            for one in accepted
            if _is_node(one.candidate) and max(one.loss.values()) <= distances.LOG_LIMIT
        ]
        yield from map(frozenset, combinations(sorted(near)[:_MOST_PAIRED], 2))

    def _jointly(self) -> bool:
        """Compare several bad hosts with one reason for all, and a node with several of its GPUs.

        Return True if that is clearly better.
        """
        accepted, total = self.evidence.accepted, self.evidence.total()
        for members, group in self._with_other_reasons():
            others = [found for found in accepted if found not in members]
            self.evidence.explain(others)
            for new in self._reasons(group, members):
                self.evidence.explain([*others, *new])
                better = self.evidence.total() - total
                if better > _ALIKE:
                    return True
                if better > -_ALIKE:
                    for found in members:
                        rivals = self.rivals.setdefault(found.candidate.key, [])
                        rivals += [(one, better) for one in new]
        self.evidence.explain(accepted)
        return False

    def _with_other_edge(self) -> bool:
        """Draw the edge of a group again, given bad hosts that may be on the wrong side of it.

        These count as bad hosts in all their executions. Return True if that is better.
        """
        accepted, total = self.evidence.accepted, self.evidence.total()
        of_hosts = [f for f in accepted if f.candidate.of_host]
        for found in (f for f in accepted if f.candidate.group and not f.candidate.of_host):
            bad = {h for f in of_hosts if _hides(f, found) for h in f.candidate.group}
            if not bad:
                continue
            beside = [f for f in of_hosts if f.candidate.group <= bad]
            others = [f for f in accepted if f is not found and f not in beside]
            # The group explains too much if it contains these hosts, and too little if it does not.
            for known in (others, [*others, found]):
                self.evidence.explain([*others, *self._nodes(bad, known)])
                again = self.evidence.weigh(found.candidate)
                drawn = self._weighed(self.candidates.with_other_edge(again)) if again else ()
                best = min(drawn, key=_order, default=None)
                if best is None or best.candidate.each:
                    continue
                group = self.evidence.with_hits(best)
                self.evidence.explain([*others, group, *self._nodes(bad, [*others, group])])
                if self.evidence.total() > total + _BETTER:
                    self.rivals[group.candidate.key] = []
                    return True
        self.evidence.explain(accepted)
        return False

    def _nodes(self, hosts: Iterable[int], others: Sequence[Weighed]) -> list[Weighed]:
        """Return these hosts as bad ones, given other parts."""
        self.evidence.explain(others)
        nodes = self._weighed(map(self.candidates.node, sorted(hosts)))
        return [*map(self.evidence.with_hits, nodes)]

    def _with_other_reasons(self) -> Iterator[tuple[list[Weighed], frozenset[int]]]:
        """Yield accepted parts of hosts, and these hosts, for which there may be another reason."""
        accepted = self.evidence.accepted
        for group in dict.fromkeys(self._with_common_reason()):
            members = [f for f in accepted if f.candidate.of_host and f.candidate.group <= group]
            if len(members) > 1:
                yield members, group
        yield from (([f], f.candidate.group) for f in accepted if _is_node(f.candidate))

    def _reasons(self, group: frozenset[int], members: Sequence[Weighed]) -> list[list[Weighed]]:
        """Return what some hosts may have in common, or several GPUs of one host."""
        sets = [*self.candidates.devices(min(group))]
        if len(group) > 1:
            first, *more = ({*one.candidate.part.gpus} for one in members)
            shared = self.candidates.behind_one(group, first.intersection(*more))
            sets = [[one] for one in shared if one.key not in self.banned]
        found = [[*map(self.evidence.with_hits, self._weighed(own))] for own in sets]
        return [own for own in found if own]

    def _weighed(self, candidates: Iterable[Candidate]) -> Iterator[Weighed]:
        """Yield the candidates that explain anything."""
        return (found for one in candidates if (found := self.evidence.weigh(one)) is not None)

    def _backward(self) -> bool:
        """Replace an accepted part, or remove one that the others make superfluous.

        Return False if all of them hold.
        """
        accepted, given = self.evidence.accepted, []
        for found in accepted:
            alternatives = partial(self._alternatives, found)
            again, better, weighed = self.evidence.given_others(found, alternatives)
            if better is not None:
                others = [other for other in accepted if other is not found]
                self.rivals[better.candidate.key] = []
                self.evidence.explain([*others, better])
                return True
            given.append(again)
            self.rivals[found.candidate.key] = self._rivals(again or found, weighed)
        scores = [again.score if again else -inf for again in given]
        if accepted and min(scores) <= 0:
            worst = min(
                zip(scores, accepted, strict=True), key=lambda row: (row[0], _order(row[1]))
            )
            self.banned.add(worst[1].candidate.key)
            self.evidence.explain([found for found in accepted if found is not worst[1]])
            return True
        self.evidence.accepted = [
            replace(found, gain=again.gain, score=again.score) if again else found
            for found, again in zip(accepted, given, strict=True)
        ]
        return False


def _is_node(candidate: Candidate) -> bool:
    part = candidate.part
    return part.kind is SuspectKind.NODE and not part.gpus and not candidate.waves


def _hides(part: Weighed, group: Weighed) -> bool:
    """Return True if a part of a host may hide on which side of a group's edge the host is.

    Which side of a border is the group follows from sizes and names, so either side counts.
    """
    gpus, own = group.candidate.part.gpus, part.candidate
    return not gpus or not set(gpus).isdisjoint(own.part.gpus) or own.group < group.candidate.group


def _order(found: Weighed) -> tuple[object, ...]:
    candidate = found.candidate
    kind = len(_GENERAL_FIRST) if candidate.each else _GENERAL_FIRST.index(candidate.part.kind)
    return -round(found.score, 6), kind, sorted(candidate.group), candidate.part.gpus
