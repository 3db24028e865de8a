"""List what could explain losses: hosts, GPUs, NICs, rails, waves, and groups of hosts.

The price of a candidate is the log of the number of alternatives of its kind, of how rare it is,
and of the share of healthy clusters in which anything may be accused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import log

from accept.core.judge.effects.background import log_choose
from accept.core.judge.effects.distances import Blocks, joined
from accept.core.judge.effects.evidence import Candidate, Evidence, Weighed
from accept.core.judge.effects.executions import Network
from accept.core.judge.effects.explanation import Part
from accept.core.judge.effects.flows import CROSSES
from accept.core.judge.effects.units import Units
from accept.core.judge.suspects import nic_of
from accept.core.verdict import SuspectKind

#: Share of healthy clusters in which anything may be accused.
ALARMS = 1e-3
CAUTION = -log(ALARMS)
#: Prior probability that a node is bad, and that a part of several hosts is.
_BAD_NODE, _BAD_GROUP = 1e-2, 1e-3
#: Price of several bad hosts beyond that of each.
_COINCIDENCE = 1.5
#: Several hosts are bad one by one only if they are at most one in this many.
_MOST_BAD = 3
#: Known places are compared pairwise only if there are at most this many.
_MOST_PLACES = 32
#: Groups that good pairs join are candidates if there are at most this many of them; they are
#: looked for in the populations with the most bad executions.
_MOST_JOINED, _MOST_POPULATIONS = 8, 8
#: Maximum number of times that hosts move in or out of a group. Hosts move together if each gains
#: more than this share of the largest gain.
_MOST_MOVES, _LARGE = 30, 0.7
#: Steps of the power iteration that divides the hosts into two groups.
_ITERATIONS = 90
#: A wave is a candidate if it has at least this many executions.
_FEWEST_OF_WAVE = 4
#: A group is a switch if it is at most one in this many hosts, else one side of a border.
_SMALL = 4


class Candidates:
    """The candidates of a cluster, given what is explained already."""

    def __init__(self, evidence: Evidence, network: Network, blocks: Blocks) -> None:
        self._evidence, self._blocks = evidence, blocks
        self._units: Units = evidence.units
        self._covers = self._units.covers
        self._gpus = self._covers.gpus
        self._all = frozenset(range(len(self._units.names)))
        self._node_price = log(max(len(self._all), 1)) + CAUTION
        self._group_price = CAUTION - log(_BAD_GROUP)
        self._gpu_price = log(max(len(self._gpus), 1))
        numbers = {name: n for n, name in enumerate(self._units.names)}
        self._nics = {numbers[h]: own for h, own in network.nics.items() if h in numbers}
        self._of_nics = network.of_nics
        self._places = {numbers[h]: place for h, place in network.places.items() if h in numbers}
        self._levels = self._known_levels(network, numbers)
        self._known = dict.fromkeys(group for level in self._levels for group in level)
        waves: dict[tuple[str, int], list[int]] = {}
        for i, e in enumerate(self._units.executions):
            waves.setdefault(e.wave, []).append(i)
        self._waves = waves if len(waves) > 1 else {}

    def _known_levels(
        self, network: Network, numbers: Mapping[str, int]
    ) -> list[list[frozenset[int]]]:
        """Return the groups of hosts with a common place, for each level, and NVLink domains."""
        levels: dict[int, dict[str, set[int]]] = {}
        for h, place in self._places.items():
            parts = [part for part in place.split("/") if part]
            for depth in range(1, len(parts)):
                of_level = levels.setdefault(depth, {})
                of_level.setdefault("/".join(parts[:depth]), set()).add(h)
        groups = [[frozenset(own) for own in level.values()] for level in levels.values()]
        groups.append([frozenset(numbers[h] for h in d if h in numbers) for d in network.domains])
        known = [[g for g in level if 2 <= len(g) < len(self._all)] for level in groups]
        return [sorted(level, key=sorted) for level in known]

    def all(self, accused: Collection[int]) -> Iterator[Candidate]:
        """Yield all candidates; hosts in `accused` are bad already."""
        loud = self._evidence.loud
        accepted = (found.candidate for found in self._evidence.accepted)
        bad = {h for one in accepted if one.of_host for h in one.group}
        for h in sorted(self._all.difference(accused)):
            if any(loud[i] for i in self._units.by_host[h]):
                for one in self.of_host(h):
                    yield self._again(one) if h in bad else one
        yield from self._rails()
        slow = [
            wave
            for wave, own in self._waves.items()
            if len(own) >= _FEWEST_OF_WAVE and 2 * sum(loud[i] for i in own) > len(own)
        ]
        for waves in dict.fromkeys((wave,) for wave in slow) | {tuple(slow): None}:
            if waves:
                yield Candidate(
                    part=Part(kind=SuspectKind.FABRIC),
                    cover=frozenset(i for wave in waves for i in self._waves[wave]),
                    price=CAUTION + log_choose(len(self._waves), len(waves)),
                    caution=CAUTION,
                    waves=waves,
                )
        slow_units = {self._units.unit_of[i] for i, is_loud in enumerate(loud) if is_loud}
        if sum(not self._units.alone[u] for u in slow_units) > 2:
            yield from self._groups()

    def _again(self, candidate: Candidate) -> Candidate:
        """Return another part of a bad host: nothing chooses it among all hosts."""
        return replace(candidate, price=candidate.price - log(len(self._all)), caution=CAUTION)

    def devices(self, h: int) -> Iterator[list[Candidate]]:
        """Yield several GPUs of a host that may be bad instead of the host."""
        of_gpu = {one.part.gpus[0]: one for one in self._gpus_of(h) if len(one.part.gpus) == 1}
        for first, *others in self._slow_in_one_population(of_gpu):
            yield [of_gpu[first], *(self._again(of_gpu[g]) for g in others)]

    def _slow_in_one_population(self, of_gpu: Mapping[int, Candidate]) -> Iterable[tuple[int, ...]]:
        """Return sets of several GPUs with mostly slow executions, in one population each."""
        slow: dict[int, list[int]] = {}
        for g, candidate in of_gpu.items():
            more = Counter[int]()
            for i in candidate.cover:
                more[self._units.population[i]] += 1 if self._evidence.loud[i] else -1
            for k in (k for k, count in more.items() if count > 0):
                slow.setdefault(k, []).append(g)
        sets = dict.fromkeys(tuple(own) for own in slow.values())
        return [gpus for gpus in sets if 1 < len(gpus) < len(self._gpus)]

    def node(self, h: int) -> Candidate:
        """Return a host as a candidate."""
        return Candidate(
            part=Part(kind=SuspectKind.NODE, hosts=self._units.names_of([h])),
            cover=frozenset(self._units.by_host[h]),
            price=self._node_price,
            caution=self._node_price + log(_BAD_NODE),
            group=frozenset([h]),
            of_host=True,
        )

    def of_host(self, h: int) -> Iterator[Candidate]:
        """Yield a host, and its GPUs and NICs."""
        yield self.node(h)
        yield from self._gpus_of(h)

    def _gpus_of(self, h: int) -> Iterator[Candidate]:
        """Yield the GPUs and NICs of a host that took part in some of its executions only."""
        loud = self._evidence.loud
        every = frozenset(self._units.by_host[h])
        classes: dict[frozenset[int], tuple[SuspectKind, set[int]]] = {}
        for kind, index in (
            (SuspectKind.GPU, self._covers.by_gpu),
            (SuspectKind.NIC, self._covers.by_port),
        ):
            for g in self._gpus:
                cover = frozenset(index.get((h, g), ()))
                if cover and cover != every:
                    of_class = classes.setdefault(cover, (kind, set()))
                    of_class[1].add(g)
        # Two GPUs may share a NIC.
        likely = [
            (cover, gpus)
            for cover, (_, gpus) in classes.items()
            if len(gpus) == 1 and 3 * sum(loud[i] for i in cover) > len(cover)
        ]
        shared: dict[frozenset[int], set[int]] = {}
        for (one, first), (other, second) in combinations(likely, 2):
            both = one | other
            new = first != second and both != every and both not in classes
            if new and self._may_share_nic(h, first | second):
                shared.setdefault(both, first | second)
        for cover, (kind, gpus) in classes.items():
            if any(loud[i] for i in cover):
                yield self._device(h, kind, gpus, cover, self._gpu_price)
        for cover, gpus in shared.items():
            yield self._device(h, SuspectKind.NIC, gpus, cover, 2 * self._gpu_price)

    def _may_share_nic(self, h: int, gpus: Iterable[int]) -> bool:
        """Return whether some GPUs use one NIC, as far as this is known."""
        known = self._nics.get(h)
        used = [known.get(g, frozenset()) for g in gpus] if known else []
        return not known or bool(frozenset.intersection(*used))

    def _device(
        self, h: int, kind: SuspectKind, gpus: set[int], cover: frozenset[int], price: float
    ) -> Candidate:
        nic = nic_of(self._nics.get(h, {}), gpus)
        if nic and (kind is SuspectKind.NIC or len(gpus) > 1 or self._of_nics):
            kind = SuspectKind.NIC
        else:
            # One GPU, or its NIC; or GPUs that share a NIC or always took part together.
            kind = SuspectKind.GPU if len(gpus) == 1 else SuspectKind.NODE
        return Candidate(
            part=Part(
                kind=kind,
                hosts=self._units.names_of([h]),
                gpus=tuple(sorted(gpus)),
                nic=nic or None if kind is SuspectKind.NIC else None,
            ),
            cover=cover,
            price=self._node_price + price,
            caution=self._node_price + log(_BAD_NODE),
            group=frozenset([h]),
            of_host=True,
        )

    def _rails(self) -> Iterator[Candidate]:
        """Yield the rails, and several that are slow in one population."""
        units, loud = self._units, self._evidence.loud
        rails: dict[int, Candidate] = {}
        for g in self._gpus:
            cover = self._covers.touch(self._all, g)
            if len(cover) < len(loud) and any(loud[i] for i in cover):
                # A full rail measures the rail by itself.
                direct = any(units.direct[units.unit_of[i]] for i in cover)
                price = (CAUTION if direct else self._group_price) + self._gpu_price
                part = Part(kind=SuspectKind.RAIL, gpus=(g,))
                rails[g] = Candidate(part=part, cover=cover, price=price, caution=CAUTION)
        yield from rails.values()
        for gpus in self._slow_in_one_population(rails):
            yield Candidate(
                part=Part(kind=SuspectKind.RAIL, gpus=gpus),
                cover=frozenset().union(*(rails[g].cover for g in gpus)),
                price=self._group_price + log_choose(len(self._gpus), len(gpus)),
                caution=CAUTION,
                each=tuple(rails[g] for g in gpus),
            )

    # Groups of hosts

    def _groups(self) -> Iterator[Candidate]:
        """Yield groups of hosts: behind one switch or leaf, or bad one by one."""
        weigh = self._evidence.weigh
        shared = dict.fromkeys((*self._known, *self._blocks, *self._joined()))
        for gpu in (None, *(self._gpus if len(self._gpus) > 1 else ())):
            starts = {self._mostly_bad(gpu): None, **shared}
            if gpu is None:
                starts |= dict.fromkeys(self._halves())
            found = [c for start in starts for c in self._of_group(start, gpu)]
            yield from found
            tried = [w for c in found if not c.each and (w := weigh(c)) is not None]
            best = max(tried, key=lambda w: (w.gain, sorted(w.candidate.group)), default=None)
            for start in (best, self._worst(gpu)):
                if start is not None:
                    yield from self._of_group(self._refined(start, gpu), gpu)
        yield from self._borders()

    def behind_one(self, group: frozenset[int], gpus: Iterable[int]) -> list[Candidate]:
        """Return that hosts are behind one bad switch, or a leaf of one of the GPUs."""
        found = (one for gpu in (None, *sorted(gpus)) for one in self._of_group(group, gpu))
        return [candidate for candidate in found if not candidate.each]

    def with_other_sides(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yield a group with some hosts on the other side of its edge, if no pair shows the side.

        Pairs show the sides only of hosts that they join.
        """
        group, gpu = candidate.group, (*candidate.part.gpus, None)[0]
        if candidate.of_host or group in self._known:
            return
        members = self._units.members
        pairs = [own for i in self._covers.touch(self._all, gpu) if len(own := members[i]) == 2]
        crossed = {h for i in candidate.cover if len(members[i]) == 2 for h in members[i]}
        parts = [hosts for hosts in joined(self._all, pairs) if not crossed.isdisjoint(hosts)]
        for hosts in parts[1:]:
            yield from self._of_group(group ^ hosts, gpu)

    def with_other_edge(self, found: Weighed) -> Iterator[Candidate]:
        """Yield a group after moving hosts in or out as long as that fits the data better."""
        gpu = (*found.candidate.part.gpus, None)[0]
        yield from self._of_group(self._refined(found, gpu), gpu)

    def _of_group(self, group: frozenset[int], gpu: int | None) -> Iterator[Candidate]:
        """Yield the faults that a group of hosts may have."""
        count = len(self._all)
        if not 2 <= len(group) < count:
            return
        if gpu is None and _MOST_BAD * len(group) <= count:
            yield from self._each(group)
        cover, rest = self._covers.cut(group, gpu), self._all - group
        if not any(self._evidence.loud[i] for i in cover):
            return
        larger = (len(rest), sorted(rest)) < (len(group), sorted(group))
        if larger and (gpu is None or self._covers.cut(rest, gpu) == cover):
            group, rest = rest, group
        known = group in self._known
        chosen = log(len(self._known)) if known else log_choose(count, len(group))
        price, hosts = self._group_price + chosen, self._units.names_of(group)
        slow_inside = self._slow_inside(group, cover)
        # The same GPU of several hosts has one likely reason, even if one pair inside is slow.
        if 2 * sum(slow_inside) > len(slow_inside) and (gpu is None or sum(slow_inside) > 1):
            return
        if gpu is None:
            if not slow_inside:
                # Its hosts may as well be bad one by one.
                price = max(price, self._price_of_each(group) + 1)
            is_switch = known or _SMALL * len(group) < count
            part = (
                Part(kind=SuspectKind.SWITCH, hosts=hosts)
                if is_switch
                else self._border(group, rest)
            )
            yield Candidate(part=part, cover=cover, price=price, caution=CAUTION, group=group)
            return
        same = tuple(g for g in self._gpus if g == gpu or self._covers.cut(group, g) == cover)
        if gpu == same[0] and len(same) < len(self._gpus):
            part = Part(kind=SuspectKind.LEAF, hosts=hosts, gpus=same)
            # The hosts that are not behind a leaf share nothing.
            price += -log(_BAD_NODE) if 2 * len(group) > count else 0.0
            yield Candidate(
                part=part, cover=cover, price=price + self._gpu_price, caution=CAUTION, group=group
            )

    def _border(self, *sides: frozenset[int]) -> Part:
        """Return the border between two sides, the smaller one first."""
        hosts, others = sorted(
            map(self._units.names_of, sides), key=lambda names: (len(names), names)
        )
        return Part(kind=SuspectKind.BORDER, hosts=hosts, others=others)

    def _each(self, group: frozenset[int]) -> Iterator[Candidate]:
        """Yield that each of some hosts is bad, or that part of it which explains most."""
        members = []
        for h in sorted(group):
            own = (self._evidence.weigh(c) for c in self.of_host(h))
            best = max((w for w in own if w is not None), key=lambda w: w.score, default=None)
            if best is None:
                return
            members.append(best.candidate)
        devices = sum(member.price - self._node_price for member in members)
        yield Candidate(
            part=Part(kind=SuspectKind.NODE, hosts=self._units.names_of(group)),
            cover=frozenset().union(*(member.cover for member in members)),
            price=self._price_of_each(group) + devices,
            group=group,
            each=tuple(members),
        )

    def _price_of_each(self, group: Collection[int]) -> float:
        """Return the price of several bad hosts: a common reason is preferred to coincidence."""
        return CAUTION - len(group) * log(_BAD_NODE) + _COINCIDENCE

    def _slow_inside(self, group: frozenset[int], cover: frozenset[int]) -> list[bool]:
        """Return whether executions inside a group are as slow as those that leave it."""
        losses, _ = self._evidence.losses(cover, at_times=False)
        units, low = self._units, self._evidence.low
        return [
            (loss := units.loss[i]) is None or loss - low[i] > losses[k] / 2
            for i in self._covers.touch(group) - cover
            if (k := units.population[i]) in losses
            and len(units.members[i]) > 1
            and group.issuperset(units.members[i])
        ]

    def _borders(self) -> Iterator[Candidate]:
        """Yield the borders between two of several known places."""
        loud, members = self._evidence.loud, self._units.members
        for level in self._levels:
            if not 2 < len(level) <= _MOST_PLACES:
                continue
            for one, other in combinations(level, 2):
                ends = one | other
                cover = frozenset(i for i in self._covers.cut(one) if ends.issuperset(members[i]))
                if any(loud[i] for i in cover):
                    group = min(one, other, key=lambda side: (len(side), sorted(side)))
                    price = self._group_price + 2 * log(len(level))
                    yield Candidate(
                        part=self._border(one, other),
                        cover=cover,
                        price=price,
                        caution=CAUTION,
                        group=group,
                    )

    def _loud_populations(self) -> list[tuple[tuple[Sequence[int], bool], ...]]:
        """Return the pairs of the populations with the most bad ones, and whether each is bad."""
        loud, members = self._evidence.loud, self._units.members
        rows = []
        for own in self._units.of_population:
            pairs = tuple((members[i], loud[i]) for i in own if len(members[i]) == 2)
            if bad := sum(is_bad for _, is_bad in pairs):
                rows.append((bad, pairs))
        rows.sort(key=lambda row: -row[0])
        # Several collectives of the same pairs often show the same.
        return [*dict.fromkeys(pairs for _, pairs in rows[:_MOST_POPULATIONS])]

    def _joined(self) -> Iterator[frozenset[int]]:
        """Yield the groups of hosts that good pairs of a population join."""
        for pairs in self._loud_populations():
            groups = joined(self._all, (pair for pair, is_bad in pairs if not is_bad))
            several = [group for group in groups if len(group) > 1]
            if 1 < len(several) <= _MOST_JOINED:
                yield from several

    def _mostly_bad(self, gpu: int | None) -> frozenset[int]:
        """Return the hosts most of whose pairs are bad through a GPU, or any."""
        counts = {h: self._bad_pairs(h, gpu) for h in self._all}
        return frozenset(h for h, (bad, every) in counts.items() if every > 1 and 2 * bad > every)

    def _bad_pairs(self, h: int, gpu: int | None) -> tuple[int, int]:
        """Return the number of bad pairs of a host through a GPU, or any, and of all of them."""
        units, loud = self._units, self._evidence.loud
        own = units.by_host[h] if gpu is None else self._covers.by_port.get((h, gpu), ())
        every = {units.unit_of[i] for i in own if len(units.members[i]) > 1}
        return len({units.unit_of[i] for i in own if loud[i]} & every), len(every)

    def _worst(self, gpu: int | None) -> Weighed | None:
        """Return the host with the most bad pairs beyond half, from which a group may grow."""

        def excess(h: int) -> tuple[int, int]:
            bad, every = self._bad_pairs(h, gpu)
            return 2 * bad - every, -h

        group = frozenset([max(self._all, key=excess)])
        part = Part(kind=SuspectKind.SWITCH, hosts=self._units.names_of(group))
        cover = self._covers.cut(group, gpu)
        return self._evidence.weigh(Candidate(part=part, cover=cover, price=0.0, group=group))

    def _halves(self) -> Iterator[frozenset[int]]:
        """Yield groups whose pairs with others are bad.

        The signs of the leading eigenvector of the graph, with +1 for good pairs and -1 for bad
        ones, divide the hosts.
        """
        for pairs in self._loud_populations():
            edges = [(a, b, -1.0 if is_bad else 1.0) for (a, b), is_bad in pairs]
            degree, bad = [0.0] * len(self._all), [0.0] * len(self._all)
            for a, b, weight in edges:
                for h in (a, b):
                    degree[h] += 1
                    bad[h] += weight < 0
            if sum(bad) < 8:
                continue
            # A shift makes all eigenvalues positive.
            shift, most = max(degree), max(bad)
            values = [float(x == most) for x in bad]
            for _ in range(_ITERATIONS):
                new = [shift * value for value in values]
                for a, b, weight in edges:
                    new[a] += weight * values[b]
                    new[b] += weight * values[a]
                largest = max(map(abs, new)) or 1.0
                values = [value / largest for value in new]
            yield frozenset(h for h, value in enumerate(values) if value > 0)

    def _refined(self, start: Weighed, gpu: int | None) -> frozenset[int]:
        """Return the group after moving hosts in or out as long as that fits the data better."""
        units, covers, evidence = self._units, self._covers, self._evidence
        cover, count = start.candidate.cover, len(self._all)
        background = evidence.without(cover)
        fault = replace(start, spread=evidence.spread(cover, start.loss))
        members = set(start.candidate.group)
        known: dict[tuple[int, int], float] = {}

        def likelihood(unit: int, ends: int) -> float:
            """Return that of a pair if its first host (2), its second one (1) is in the group."""
            if (unit, ends) not in known:
                touched: dict[int, list[int]] = {}
                for number in units.logs_of[unit]:
                    for i in units.logs[number]:
                        a, b = units.hosts_of[unit]
                        inside = {a: ends >> 1, b: ends & 1}
                        one, other = units.members[i]
                        if CROSSES[covers.mask(i, gpu)][2 * inside[one] + inside[other]]:
                            touched.setdefault(number, []).append(i)
                known[unit, ends] = evidence.likelihood(unit, touched, fault, background)
            return known[unit, ends]

        pairs_of = [
            [u for u in sorted(own) if len(units.hosts_of[u]) == 2] for own in units.units_of
        ]

        def gain(h: int) -> float:
            """Return the gain of moving a host to the other side."""
            total = 0.0
            for unit in pairs_of[h]:
                a, b = units.hosts_of[unit]
                ends = 2 * (a in members) + (b in members)
                total += likelihood(unit, ends ^ (2 if a == h else 1)) - likelihood(unit, ends)
            return total

        gains: dict[int, float] = {}
        stale: Iterable[int] = self._all
        for _ in range(_MOST_MOVES):
            gains |= {h: gain(h) for h in stale}
            # Change of the log number of possible groups if the group grows by one host.
            size = log((count - len(members)) / len(members))
            priced = {h: x + (size if h in members else -size) for h, x in gains.items()}
            largest = max(priced.values())
            if largest <= 1e-9:
                break
            moved = {h for h, x in priced.items() if x > _LARGE * largest}
            members ^= moved
            if not 2 <= len(members) < count:
                return frozenset()
            stale = {x for h in moved for u in pairs_of[h] for x in units.hosts_of[u]} | moved
        return frozenset(members)
