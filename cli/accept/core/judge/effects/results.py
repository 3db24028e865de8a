"""Describe what was found: effects with intervals, counts, alternatives, and what remains open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, inf, sqrt
from statistics import median

from accept.core.judge.effects.candidates import CAUTION
from accept.core.judge.effects.distances import LOG_LIMIT, Blocked
from accept.core.judge.effects.evidence import STEADY, Evidence, Weighed
from accept.core.judge.effects.explanation import (
    Distance,
    Doubt,
    Effect,
    Explanation,
    Fault,
    Normal,
    OpenPair,
    Part,
    SlowWave,
    hosts_in_doubt,
)
from accept.core.judge.effects.populations import MAD
from accept.core.verdict import OF_HOST, SuspectKind

#: The fabric is bad from this number and this share of collapsed pairs without a reason on.
_FEWEST_OPEN, _LOWEST_OPEN = 4, 0.01
#: If there are more links than this, none is named.
_MOST_LINKS = 16
#: A pair is a link if it collapsed in all of at least this many logs.
_LOGS_OF_LINK = 2
#: Candidates whose log odds are lower are excluded.
_EXCLUDED = -3.0
#: A host that loses at most this many times what distance costs may be farther away.
_AS_DISTANCE = 1.5
#: A GPU is named if other ones of its host are at most this many times as likely.
_OTHER_GPUS = 0.5
#: Largest share of failures that distance explains.
_FAILURES = 0.05
#: The standard error of a median is this many times that of a mean; bounds of 95 %.
_MEDIAN, _BOUNDS = 1.25, 1.96


@dataclass(frozen=True, kw_only=True)
class Results:
    """The end of a search: the evidence, and what to say about it."""

    evidence: Evidence
    blocked: Blocked
    #: Candidates that were weighed last.
    open: Sequence[Weighed]
    #: Accepted candidate -> those that explained the same executions about as well, each with the
    #: difference of the scores.
    rivals: Mapping[tuple[object, ...], Sequence[tuple[Weighed, float]]]
    #: Number of each execution in the input.
    inputs: Sequence[int]

    def explanation(self) -> Explanation:
        """Return what explains the losses."""
        evidence, units = self.evidence, self.evidence.units
        accepted = [found for found in evidence.accepted if not found.candidate.waves]
        faults = [self._fault(found) for found in accepted]
        faults.sort(key=lambda fault: (-round(fault.odds, 6), fault.part.kind, fault.part.hosts))
        opened, doubts = self._open_pairs(), [*self._doubtful()]
        # The pairs of a host in doubt show no link.
        doubted = hosts_in_doubt(doubts).keys()
        links = [pair for pair in opened if self._is_link(pair) and doubted.isdisjoint(pair.hosts)]
        network = [*self._network_faults(opened, links)]
        named = {fault.part.hosts for fault in network}
        far = self.blocked.losses
        return Explanation(
            faults=(*(fault for fault in faults if not fault.only_distance), *network),
            apart=tuple(fault for fault in faults if fault.only_distance),
            waves=tuple(self._waves()),
            distance=Distance(
                blocks=tuple(frozenset(units.names_of(own)) for own in self.blocked.blocks),
                losses={units.keys[k]: 1 - exp(-loss) for k, loss in far.items()},
                far=self._inputs(i for i in self.blocked.far if units.population[i] in far),
            )
            if far
            else None,
            open_pairs=tuple(pair for pair in opened if pair.hosts not in named),
            doubtful=tuple(doubts),
            unknown=self._unknown(accepted),
            normal=self._normal(),
            background=evidence.background.pair_rate,
        )

    def _inputs(self, executions: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self.inputs[i] for i in executions))

    @cached_property
    def _number_of(self) -> dict[int, int]:
        """Return the number of each execution of the input."""
        return {number: i for i, number in enumerate(self.inputs)}

    def _numbers(self, pair: OpenPair) -> list[int]:
        return [self._number_of[number] for number in pair.hits]

    # Parts

    def _fault(self, found: Weighed) -> Fault:
        units, candidate = self.evidence.units, found.candidate
        covered = {i for i in candidate.cover if units.population[i] in found.loss}
        others = [u for u in units.shared if u not in {units.unit_of[i] for i in candidate.cover}]
        explained = self.evidence.explained
        left = [u for u in others if not explained.issuperset(units.of_unit(u))]
        rivals = (other.candidate.part for other, _ in self.rivals.get(candidate.key, ()))
        part = self._without_accused(self._measured(found))
        return Fault(
            part=part,
            effects=self._effects(found),
            odds=found.score + CAUTION,
            intermittent=found.rate < STEADY,
            hits=self._inputs(found.hits),
            covered=self._inputs(covered),
            pairs_hit=len({units.unit_of[i] for i in found.hits}),
            pairs=len({units.unit_of[i] for i in covered}),
            other_hit=sum(any(self.evidence.loud[i] for i in units.of_unit(u)) for u in left),
            other_pairs=len(left),
            cleared=self._cleared(found) if part.kind in OF_HOST else (),
            indistinguishable=tuple(dict.fromkeys(other for other in rivals if other != part)),
            only_distance=self._is_distance(found),
        )

    def _measured(self, found: Weighed) -> Part:
        """Return a part, or the node of a GPU if another one explains about as much.

        Of a node: its GPU, if no other one was measured where it loses.
        """
        part, units = found.candidate.part, self.evidence.units
        rivals = self.rivals.get(found.candidate.key, ())
        own = set(part.gpus) if part.kind in OF_HOST else set()
        of_host = ((o.candidate.part, more) for o, more in rivals if o.candidate.part.gpus)
        others = [m for o, m in of_host if o.hosts == part.hosts and own.isdisjoint(o.gpus)]
        if own and sum(map(exp, others)) > _OTHER_GPUS:
            return Part(kind=SuspectKind.NODE, hosts=part.hosts)
        if part.kind is not SuspectKind.NODE or part.gpus or len(units.covers.gpus) < 2:
            return part
        host = part.hosts[0]
        used = set[int]()
        for i in found.candidate.cover:
            if units.population[i] in found.loss:
                e = units.executions[i]
                gpus = dict(zip(e.hosts, e.gpus, strict=False)).get(host)
                used.update(gpus or units.covers.gpus)
        if len(used) > 1:
            return part
        return replace(part, kind=SuspectKind.GPU, gpus=tuple(used))

    def _without_accused(self, part: Part) -> Part:
        """Return a group without bad hosts: their pairs are bad on either side of its edge."""
        if part.kind in OF_HOST:
            return part
        accepted = (found.candidate.part for found in self.evidence.accepted)
        nodes = {own.hosts[0] for own in accepted if own.kind is SuspectKind.NODE and not own.gpus}

        def rest(group: tuple[str, ...]) -> tuple[str, ...]:
            own = tuple(host for host in group if host not in nodes)
            return own if len(own) > 1 else group

        return replace(part, hosts=rest(part.hosts), others=rest(part.others))

    def _effects(self, found: Weighed) -> tuple[Effect, ...]:
        units = self.evidence.units
        by_population: dict[int, list[int]] = {k: [] for k in found.loss}
        for i in found.candidate.cover:
            if units.population[i] in by_population:
                by_population[units.population[i]].append(i)
        effects = (self._effect(k, own, found.hits) for k, own in by_population.items())
        return tuple(sorted(effects, key=lambda effect: (-effect.loss, effect.population)))

    def _effect(self, k: int, cover: Sequence[int], hits: Collection[int]) -> Effect:
        units = self.evidence.units
        hit = [i for i in cover if i in hits]
        losses = [loss for i in hit if (loss := units.loss[i]) is not None]
        middle = low = high = inf
        if losses:
            middle = median(losses)
            wide = max(MAD * median(abs(loss - middle) for loss in losses), units.sigma[k])
            half = _BOUNDS * _MEDIAN * wide / sqrt(len(losses))
            low, high = middle - half, middle + half
        return Effect(
            population=units.keys[k],
            loss=1 - exp(-max(middle, 0.0)),
            low=1 - exp(-max(low, 0.0)),
            high=1 - exp(-max(high, 0.0)),
            executions=len(cover),
            pairs_hit=len({units.unit_of[i] for i in hit}),
            pairs=len({units.unit_of[i] for i in cover}),
            failures=len(hit) - len(losses),
        )

    def _cleared(self, found: Weighed) -> tuple[str, ...]:
        """Return the partners in bad pairs that were good with a third host."""
        units, loud, group = self.evidence.units, self.evidence.loud, found.candidate.group
        partners = {h for i in found.hits for h in units.members[i]} - group
        explained = self.evidence.explained
        good = {
            h
            for h in partners
            for u in units.units_of[h]
            if not units.alone[u]
            and group.isdisjoint(units.hosts_of[u])
            and not any(loud[i] or i in explained for i in units.of_unit(u))
        }
        return units.names_of(good)

    def _is_distance(self, found: Weighed) -> bool:
        """Return True if distance explains a part: a group, or a host in some populations only."""
        units, candidate = self.evidence.units, found.candidate
        if max(found.loss.values()) > LOG_LIMIT or found.dead > _FAILURES or not units.shared:
            return False
        kind = candidate.part.kind
        if kind is SuspectKind.RAIL and any(
            units.direct[units.unit_of[i]] for i in candidate.cover
        ):
            return False
        if kind not in OF_HOST:
            return True
        far = self.blocked.losses
        near = [i for i in found.hits if i not in self.blocked.far]
        if 2 * len(near) > len(found.hits) and all(
            loss <= _AS_DISTANCE * far.get(k, 0.0) for k, loss in found.loss.items()
        ):
            return True  # it may be in another block than its pairs show
        # Only executions with a network that can be compared with others show a distance.
        others = {
            k
            for k, own in enumerate(units.of_population)
            if any(i not in candidate.cover and not units.alone[units.unit_of[i]] for i in own)
        }
        shared = [i for i in candidate.cover if units.population[i] in others]
        if not found.loss.keys() <= {units.population[i] for i in shared}:
            return False  # it is slow alone, too
        by_population: dict[int, list[float]] = {}
        for i in shared:
            loss = units.loss[i]
            by_population.setdefault(units.population[i], []).append(inf if loss is None else loss)
        least = min(loss for k, loss in found.loss.items() if k in by_population)
        return any(
            median(own) < min(least / 2, least - 2 * units.sigma[k])
            for k, own in by_population.items()
        )

    def _waves(self) -> Iterator[SlowWave]:
        units = self.evidence.units
        for found in self.evidence.accepted:
            for step, number in found.candidate.waves:
                own = (i for i in found.hits if units.executions[i].wave == (step, number))
                effects = self._effects(found)
                yield SlowWave(step=step, wave=number, effects=effects, hits=self._inputs(own))

    # What remains open

    def _open_pairs(self) -> list[OpenPair]:
        """Return the pairs, and larger groups, that collapsed without a reason."""
        evidence, units = self.evidence, self.evidence.units
        explained = evidence.explained
        result = []
        for unit in units.shared:
            logs = [units.logs[number] for number in units.logs_of[unit]]
            logs = [own for own in logs if not explained.issuperset(own)]
            bad = [[i for i in own if evidence.collapsed(i, LOG_LIMIT)] for own in logs]
            if any(bad):
                pair = OpenPair(
                    hosts=units.names_of(units.hosts_of[unit]),
                    bad=sum(map(bool, bad)),
                    logs=len(logs),
                    hits=self._inputs(i for own in bad for i in own),
                )
                result.append(pair)
        return sorted(result, key=lambda pair: (-pair.bad, pair.hosts))

    def _is_link(self, pair: OpenPair) -> bool:
        """Return whether a pair collapsed in several logs: in most of each, or in the same part."""
        if len(pair.hosts) != 2 or not pair.bad == pair.logs >= _LOGS_OF_LINK:
            return False
        units, logs = self.evidence.units, dict[int, set[int]]()
        for i in self._numbers(pair):
            logs.setdefault(units.log_of[i], set()).add(units.population[i])
        same = frozenset.intersection(*map(frozenset, logs.values()))
        return bool(same) or all(2 * len(own) > len(units.kinds[n]) for n, own in logs.items())

    def _network_faults(
        self, opened: Sequence[OpenPair], links: Sequence[OpenPair]
    ) -> Iterator[Fault]:
        """Yield single links, and the fabric if pairs of several hosts collapse.

        Only the planned rounds count for the fabric, because chance decides which pairs follow.
        """
        units, evidence = self.evidence.units, self.evidence
        few = links if len(links) <= _MOST_LINKS else ()
        executions = units.executions
        planned = [
            pair
            for pair in opened
            if len(pair.hosts) == 2 and not all(executions[i].repeated for i in self._numbers(pair))
        ]
        of_host = Counter(host for pair in planned for host in pair.hosts)
        pairs = sum(
            len(units.hosts_of[u]) == 2
            and not all(executions[i].repeated for i in units.of_unit(u))
            for u in units.shared
        )
        rest = len(planned) - max(of_host.values(), default=0)
        others = len(planned) - sum(pair in planned for pair in few)
        # If nothing is good, nothing shows that the network is the reason.
        good = any(
            units.loss[i] is not None and not evidence.loud[i]
            for u in units.shared
            for i in units.of_unit(u)
        )
        if (
            good
            and rest >= _FEWEST_OPEN
            and len(planned) >= _LOWEST_OPEN * pairs
            and (others >= _FEWEST_OPEN or not few)
        ):
            part = Part(kind=SuspectKind.FABRIC)
            yield self._of_pairs(part, planned, pairs)
            return  # its links are some of many bad pairs
        for pair in few:
            part = Part(kind=SuspectKind.LINK, hosts=pair.hosts)
            yield self._of_pairs(part, [pair], 1)

    def _of_pairs(self, part: Part, pairs: Sequence[OpenPair], count: int) -> Fault:
        units = self.evidence.units
        hits = {i for pair in pairs for i in self._numbers(pair)}
        own = {units.unit_of[i] for i in hits}
        bad = {units.population[i] for i in hits}
        cover = [i for u in own for i in units.of_unit(u)]
        effects = (
            self._effect(k, [i for i in cover if units.population[i] == k], hits) for k in bad
        )
        return Fault(
            part=part,
            effects=tuple(sorted(effects, key=lambda effect: (-effect.loss, effect.population))),
            odds=CAUTION,
            hits=self._inputs(hits),
            covered=self._inputs(cover),
            pairs_hit=len(pairs),
            pairs=count,
        )

    def _doubtful(self) -> Iterator[Doubt]:
        """Yield candidates that are neither accepted nor excluded, most probable first."""
        doubts = []
        for found in self.open:
            odds = found.score + CAUTION
            if not found.candidate.waves and odds > _EXCLUDED:
                probability = 1 / (1 + exp(-min(odds, 700.0)))
                parts = [one.part for one in found.candidate.each or (found.candidate,)]
                doubts += [
                    Doubt(
                        part=part,
                        probability=probability,
                        intermittent=found.rate < STEADY,
                    )
                    for part in parts
                ]
        for accepted in self.evidence.accepted:
            rivals = self.rivals.get(accepted.candidate.key, ())
            total = 1 + sum(exp(difference) for _, difference in rivals)
            for rival, difference in rivals:
                share = exp(difference) / total
                doubts.append(
                    Doubt(
                        part=rival.candidate.part,
                        probability=share,
                        intermittent=rival.rate < STEADY,
                        instead_of=accepted.candidate.part,
                    )
                )
        yield from sorted(doubts, key=lambda doubt: (-doubt.probability, doubt.part))

    def _unknown(self, accepted: Sequence[Weighed]) -> tuple[str, ...]:
        """Return the hosts that were measured only together with bad hosts."""
        units = self.evidence.units
        of_hosts = [found for found in accepted if found.candidate.of_host]
        bad = {h for found in of_hosts for h in found.candidate.group}
        hit = {i for found in of_hosts for i in found.hits}
        result = []
        for h in set(range(len(units.names))) - bad:
            own = [i for i in units.by_host[h] if len(units.members[i]) > 1]
            if own and hit.issuperset(own):
                result.append(h)
        return units.names_of(result)

    def _normal(self) -> dict[str, Normal]:
        units = self.evidence.units
        result = {}
        for k, key in enumerate(units.keys):
            value = units.normal_value(k)
            own = [i for i in units.of_population[k] if units.loss[i] is not None]
            if value is not None:
                result[key] = Normal(
                    value=value,
                    sigma=units.sigma[k],
                    values=len(own),
                    hosts=len({h for i in own for h in units.members[i]}),
                )
        return result
