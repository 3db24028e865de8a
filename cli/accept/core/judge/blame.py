"""Find what makes pairs of hosts bad: one statistical model for all kinds of suspects.

Each pair of hosts is good or bad. On any network some pairs are bad without any host being the
reason, at a rate that is estimated from the data. A hypothesis names the pairs that a fault would
make bad: those across a border, those of one GPU, those of one host. It is accepted if the share
of bad pairs inside is so much larger than the share outside that chance explains it in less than
one of a thousand healthy clusters, after a penalty for the number of hypotheses. What it explains
is removed, and the search starts again. Common causes explain the pairs of many hosts at once, so
they are found before the hosts that they make look bad. `docs/blame.md` explains the method.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import exp, lgamma, log

from accept.core.causes import Cause
from accept.core.judge.pairs import COLLAPSED, Event, Gpus
from accept.core.judge.robust_stats import FALSE_ALARMS, FEWEST, SIGMAS, median_of
from accept.core.model import Strength, SuspectKind

#: Parameters of the Beta distribution of the share of bad pairs of a bad part: nearly all of its
#: pairs, or about half of them.
_STEADY, _INTERMITTENT = (9.0, 1.0), (2.0, 2.0)
#: The same for all other pairs: about 1 % are bad, but it may be far more or less.
_BACKGROUND = (0.5, 60.0)
#: Lower limit of the background rate of bad pairs. Without it, two bad pairs would be proof on a
#: large cluster.
_LOWEST_RATE = 1e-3
#: A part that is always bad has more than this share of bad pairs.
_MOSTLY = 0.6
#: Maximum number of times that hosts move in or out of a group while it is refined.
_MOST_MOVES = 30
#: Hosts move together if each gains more than this share of the largest gain.
_LARGE = 0.7
#: Noise of a measured distance.
_TOLERANCE = 0.01
#: Log odds from which a host certainly belongs to a group: 100 to 1.
_CERTAIN = log(100)
#: A host with one bad pair is cleared by this many good pairs with new partners.
_ENOUGH_GOOD = 3
#: If one host has all bad pairs, but also good ones, it is blamed only if chance would gather the
#: bad pairs like this in less than this share of clusters.
_RARE = 0.005
#: Several hosts are blamed in one hypothesis only if they are at most one in this many hosts.
_MOST_BAD = 3
#: A wave is bad as a whole if at least this share of its pairs, and at least this number, is bad.
#: The reason is then the time, not a host.
_COMMON, _FEWEST_COMMON = 0.9, 4
#: If the background rate is higher than this, an intermittent host is only a weak suspect.
_CALM = 0.01
#: Known places are compared pairwise only if there are at most this many of them.
_MOST_PLACES = 32
#: Steps of the power iteration that divides the hosts into two groups.
_ITERATIONS = 100

#: Two hosts, sorted.
Pair = tuple[str, ...]


@dataclass(frozen=True)
class Unit:
    """All events of two hosts with the same GPUs."""

    hosts: Pair
    gpus: tuple[Gpus, ...]
    events: tuple[Event, ...]
    #: Share of its events that are bad.
    share: float
    #: Weight of the unit. The units of one pair, with different GPUs, have a total weight of 1,
    #: because they share a path.
    weight: float

    @property
    def bad(self) -> bool:
        """Return True if more than half of its events are bad."""
        return self.share > 0.5

    @property
    def good(self) -> bool:
        """Return True if more than half of its events are good."""
        return self.share < 0.5


@dataclass(frozen=True, kw_only=True)
class Blamed:
    """Something that makes pairs bad, and the counts that show it."""

    kind: SuspectKind
    hosts: tuple[str, ...]
    #: For a border: the hosts on its other side.
    others: tuple[str, ...] = ()
    device: str | None = None
    strength: Strength
    cause: Cause
    #: Number of its pairs and of the bad ones among them, and the same for all other pairs.
    pairs: int
    bad: int
    other_pairs: int
    other_bad: int
    #: Partners in its bad pairs that were good with a third host.
    cleared: int = 0
    #: Median of its bad pairs as a share of normal; None: nothing was measured.
    share: float | None = None
    #: The GPUs that took part in all of its bad pairs, if that was not all of them.
    gpus: frozenset[int] | None = None
    #: True if distance explains the loss between two groups of hosts, so nothing is at fault.
    distance: bool = False
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The causes of bad pairs, and the hosts that are still open."""

    blamed: tuple[Blamed, ...] = ()
    #: Hosts that had only bad pairs, so it is unknown whether they are bad themselves.
    unknown: tuple[str, ...] = ()
    #: Hosts to measure again: they look bad, or like members of a bad group, without proof.
    doubtful: tuple[str, ...] = ()
    #: Bad pairs that no suspect explains, worst first.
    open_pairs: tuple[Unit, ...] = ()
    #: Rate of bad pairs that no suspect explains.
    background: float = 0.0
    #: Events of the planned rounds that collapsed and that no suspect explains.
    collapsed: tuple[Event, ...] = ()
    #: Number of all events of the planned rounds that no suspect explains.
    pairs: int = 0
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Hypothesis:
    """A possible fault, and the units that it would make bad."""

    #: None: all pairs of one wave, so the reason is the time.
    kind: SuspectKind | None
    hosts: tuple[str, ...]
    others: tuple[str, ...]
    device: str | None
    units: frozenset[int]
    #: Log of the number of alternatives of this kind.
    penalty: float
    #: True if each of the hosts is bad by itself.
    each: bool = False
    gpus: frozenset[int] | None = None
    #: Hosts that may belong to the group, without being in it.
    uncertain: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Accepted:
    hypothesis: _Hypothesis
    gain: float
    intermittent: bool
    rate: float
    #: Units that it explains.
    bad: frozenset[int]
    pairs: int
    other_pairs: int
    other_bad: int


def attribute(
    found: Iterable[Event],
    *,
    places: Mapping[str, str] | None = None,
    alarms: float = FALSE_ALARMS,
) -> Attribution:
    """Name what makes pairs bad, regardless of the order and the names of hosts.

    `places`: the places of hosts (`row/rack/host`). `alarms`: share of healthy clusters in which
    something may be accused.
    """
    search = _Search(units(found), places or {}, log(1 / alarms))
    search.run()
    return search.result()


def units(found: Iterable[Event]) -> tuple[Unit, ...]:
    """Return the units, each with all its events."""
    by_key: dict[tuple[Pair, tuple[Gpus, ...]], list[Event]] = {}
    for event in found:
        hosts = tuple(sorted(event.hosts))
        gpus = event.gpus if hosts == event.hosts else event.gpus[::-1]
        by_key.setdefault((hosts, gpus), []).append(event)
    sets: dict[Pair, int] = {}
    for hosts, _ in by_key:
        sets[hosts] = sets.get(hosts, 0) + 1
    return tuple(
        Unit(
            hosts,
            gpus,
            tuple(own),
            sum(event.bad for event in own) / len(own),
            1 / sets[hosts],
        )
        for (hosts, gpus), own in by_key.items()
    )


def _evidence(counts: tuple[float, float], law: tuple[float, float]) -> float:
    """Return the log probability of a number of bad pairs if their rate has a Beta distribution."""
    bad, good = max(counts[0], 0.0), max(counts[1] - counts[0], 0.0)
    return _log_beta(law[0] + bad, law[1] + good) - _log_beta(*law)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


@dataclass
class _Search:
    """Forward selection: accept the hypothesis with the largest gain, then the next."""

    units: tuple[Unit, ...]
    places: Mapping[str, str]
    caution: float
    units_of: dict[str, list[int]] = field(default_factory=dict)
    explained: set[int] = field(default_factory=set)
    accepted: list[_Accepted] = field(default_factory=list)
    accused: set[str] = field(default_factory=set)
    #: Accused host -> its bad GPUs, if only these are bad.
    accused_gpus: dict[str, set[int]] = field(default_factory=dict)
    #: Kind, device and host of what chance explains after all.
    retracted: set[tuple[SuspectKind | None, str | None, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for index, unit in enumerate(self.units):
            for host in unit.hosts:
                self.units_of.setdefault(host, []).append(index)

    @property
    def names(self) -> list[str]:
        return sorted(self.units_of)

    # Counts and gains

    def _counts(self, units: Iterable[int]) -> tuple[float, float]:
        """Return the number of bad and of all pairs among units that nothing explains yet."""
        bad = total = 0.0
        several: dict[Pair, list[float]] = {}
        for index in units:
            if index not in self.explained:
                unit = self.units[index]
                if unit.weight == 1:
                    total += 1
                    bad += unit.share
                else:
                    several.setdefault(unit.hosts, []).append(unit.share)
        bad += sum(sum(shares) / len(shares) for shares in several.values())
        return bad, total + len(several)

    def _outside(
        self, units: Iterable[int], everything: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the number of bad and of all pairs, without those of some units."""
        bad, total = everything
        for index in units:
            if index not in self.explained:
                unit = self.units[index]
                bad -= unit.weight * unit.share
                total -= unit.weight
        return bad, total

    def _gain(
        self, inside: tuple[float, float], outside: tuple[float, float], law: tuple[float, float]
    ) -> float:
        """Return the log Bayes factor of a fault: the rates inside and outside differ."""
        everything = (outside[0] + inside[0], outside[1] + inside[1])
        return (
            _evidence(inside, law)
            + _evidence(outside, _BACKGROUND)
            - _evidence(everything, _BACKGROUND)
        )

    def _rate(self, bad: float, total: float) -> float:
        prior_bad, prior_good = _BACKGROUND
        rate = (max(bad, 0.0) + prior_bad) / (max(total, 0.0) + prior_bad + prior_good)
        return max(rate, _LOWEST_RATE)

    # Hypotheses

    def run(self) -> None:
        """Accept hypotheses until no other is likely enough and all accepted ones hold."""
        while True:
            self._select()
            chance = [one.hypothesis for one in self.accepted if not self._holds(one)]
            if not chance:
                return
            self.retracted |= {(one.kind, one.device, h) for one in chance for h in one.hosts}
            self.explained, self.accepted, self.accused = set(), [], set()
            self.accused_gpus = {}

    def _select(self) -> None:
        """Accept hypotheses until none is likely enough."""
        while any(u.share for i, u in enumerate(self.units) if i not in self.explained):
            everything = self._counts(range(len(self.units)))
            likely = [
                one
                for hypothesis in self._hypotheses()
                if (one := self._likely(hypothesis, everything)) is not None
            ]
            best = max((one.gain for one in likely), default=0.0)
            if best <= 0:
                return
            # Ties are accepted together, because the order of a list must not decide. Hosts that
            # share no bad pair do not compete, so one pass accepts all of them.
            chosen = [one for one in likely if one.gain > best - 1e-9]
            kinds = {one.hypothesis.kind for one in chosen}
            general = min(kinds, key=_GENERAL_FIRST.index)
            chosen = [one for one in chosen if one.hypothesis.kind is general]
            if general is SuspectKind.NODE and not any(c.hypothesis.each for c in chosen):
                chosen += self._independent(likely, chosen)
            for one in chosen:
                self._accept(one)

    def _independent(
        self, likely: Sequence[_Accepted], chosen: Sequence[_Accepted]
    ) -> list[_Accepted]:
        taken = set().union(*(one.bad for one in chosen))
        result = []
        for one in sorted(likely, key=lambda one: (-one.gain, one.hypothesis.hosts)):
            hypothesis = one.hypothesis
            rivals = [o for o in likely if o.gain >= one.gain and o is not one]
            if (
                hypothesis.kind is SuspectKind.NODE
                and not hypothesis.each
                and one not in chosen
                and taken.isdisjoint(one.bad)
                and not any(not o.bad.isdisjoint(one.bad) for o in rivals)
            ):
                taken |= one.bad
                result.append(one)
        return result

    def _accept(self, one: _Accepted) -> None:
        hypothesis = one.hypothesis
        if hypothesis.each:
            # The penalty is that of all these hosts together.
            penalty = hypothesis.penalty / len(hypothesis.hosts)
            for host in hypothesis.hosts:
                own = frozenset(self.units_of[host]) & hypothesis.units
                node = _Hypothesis(SuspectKind.NODE, (host,), (), None, own, penalty)
                bad = frozenset(i for i in own if i in one.bad)
                if self._cleared(node, bad, among=set(hypothesis.hosts)):
                    counts = (len(self._pairs(own)), one.other_pairs, one.other_bad)
                    self.accepted.append(_Accepted(node, one.gain, False, one.rate, bad, *counts))
            self.accused.update(hypothesis.hosts)
        else:
            self.accepted.append(one)
            if hypothesis.kind in (SuspectKind.NODE, SuspectKind.GPU):
                self.accused.update(hypothesis.hosts)
            if hypothesis.gpus:
                self.accused_gpus.setdefault(hypothesis.hosts[0], set()).update(hypothesis.gpus)
        self.explained |= one.bad

    def _pairs(self, units: Iterable[int]) -> set[Pair]:
        return {self.units[index].hosts for index in units}

    def _likely(self, hypothesis: _Hypothesis, everything: tuple[float, float]) -> _Accepted | None:
        """Return the hypothesis with its gain if it can be accepted."""
        key = (hypothesis.kind, hypothesis.device)
        if any((*key, host) in self.retracted for host in hypothesis.hosts):
            return None
        inside = self._counts(hypothesis.units)
        if inside[0] <= 0:
            return None
        outside = self._outside(hypothesis.units, everything)
        rate = self._rate(*outside)
        gain = self._gain(inside, outside, _STEADY)
        gain -= hypothesis.penalty + self.caution
        if inside[0] <= _MOSTLY * inside[1]:
            gain = 0.0
        intermittent = False
        if hypothesis.kind is SuspectKind.NODE and not hypothesis.each:
            at_times = self._gain(inside, outside, _INTERMITTENT)
            at_times -= hypothesis.penalty + self.caution
            intermittent = at_times > gain
            gain = max(gain, at_times)
        if gain <= 0:
            return None
        bad = frozenset(
            i for i in hypothesis.units if self.units[i].share and i not in self.explained
        )
        is_distance = hypothesis.kind in _APART and self._is_distance(bad)
        if is_distance:
            bad = frozenset(i for i in bad if not any(e.collapsed for e in self.units[i].events))
        others = set(range(len(self.units))) - hypothesis.units - self.explained
        one = _Accepted(
            hypothesis,
            gain,
            intermittent,
            rate,
            bad,
            len(self._pairs(i for i in hypothesis.units if i not in self.explained)),
            len(self._pairs(others)),
            len(self._pairs(i for i in others if self.units[i].bad)),
        )
        # Distance and time accuse nobody, so chance does no harm there.
        accuses = not is_distance and hypothesis.kind is not None
        proven = self._agrees(one) and (not accuses or self._beats_chance(one))
        return one if proven else None

    def _beats_chance(self, one: _Accepted) -> bool:
        """Return True if bad pairs spread at random would rarely gather like this (Fisher's test).

        The test needs no estimate of the background rate. It does not apply to a host that is
        always bad if all other pairs are good, because there are then too few bad pairs for it.
        """
        hypothesis = one.hypothesis
        own = hypothesis.units - self.explained
        if hypothesis.kind is SuspectKind.RAIL:
            # The same pairs are measured on all rails, so each rail of a pair counts.
            every = {i for i, unit in enumerate(self.units) if None not in unit.gpus}
            every -= self.explained
            bad = sum(self.units[i].bad for i in every & own)
            all_bad = sum(self.units[i].bad for i in every)
            chance = _log_tail(bad, len(every & own), all_bad, len(every))
            return chance + hypothesis.penalty < -self.caution
        others = [i for i in range(len(self.units)) if i not in own and i not in self.explained]
        if hypothesis.kind in (SuspectKind.NODE, SuspectKind.GPU):
            # Bad pairs of other suspected hosts are not due to chance, so they do not count.
            suspected = set(self._mostly_bad(None))
            others = [i for i in others if suspected.isdisjoint(self.units[i].hosts)]
        return self._is_rare(one, own, others)

    def _holds(self, one: _Accepted) -> bool:
        """Return True if chance does not explain the bad pairs of a host, given what is left.

        `_beats_chance` leaves out the pairs of other suspected hosts. At the end, these pairs
        count, unless a hypothesis about those hosts was accepted.
        """
        hypothesis = one.hypothesis
        if hypothesis.kind not in (SuspectKind.NODE, SuspectKind.GPU):
            return True
        own = hypothesis.units - (self.explained - one.bad)
        others = set(range(len(self.units))) - hypothesis.units - self.explained
        return self._is_rare(one, own, others)

    def _is_rare(self, one: _Accepted, own: Collection[int], others: Collection[int]) -> bool:
        """Return True if chance rarely puts so many of the bad pairs into `own`, not into `others`.

        For hosts and GPUs, a pair counts only if it lost at least half of the median loss of the
        bad pairs in `own`, because slightly slow pairs have other reasons than collapsed ones.
        """
        hypothesis = one.hypothesis
        pairs, other_pairs = len(self._pairs(own)), len(self._pairs(others))
        lost = {i: self._lost(i) for i in (*own, *others) if self.units[i].bad}
        own_lost = [lost[i] for i in own if i in lost]
        least = 0.0
        if own_lost and hypothesis.kind in (SuspectKind.NODE, SuspectKind.GPU):
            least = median_of(own_lost) / 2
        bad = len(self._pairs(i for i in own if lost.get(i, -1.0) >= least))
        other_bad = len(self._pairs(i for i in others if lost.get(i, -1.0) >= least))
        lone = hypothesis.kind in (SuspectKind.NODE, SuspectKind.GPU) and not other_bad
        if lone and not one.intermittent:
            return True
        chance = _log_tail(bad, pairs, bad + other_bad, pairs + other_pairs)
        return chance + hypothesis.penalty < (log(_RARE) if lone else -self.caution)

    def _lost(self, index: int) -> float:
        """Return the median loss of a unit in its bad events, as a share of normal."""
        return median_of(e.lost for e in self.units[index].events if e.bad)

    def _is_distance(self, bad: Collection[int], limit: float = COLLAPSED) -> bool:
        """Return True if the median loss of bad units is no more than distance costs.

        This must hold in each step by itself: a collapse in one of several steps is a fault.
        """
        return self._lowest_share(bad) >= limit

    def _lowest_share(self, bad: Collection[int]) -> float:
        """Return the lowest median share of bad units, of all steps together and of each step."""
        shares: dict[tuple[str, frozenset[str]], list[float]] = {}
        for event in (e for i in bad for e in self.units[i].events if e.bad):
            shares.setdefault((event.step, event.checks), []).append(event.share or 0.0)
        together = [share for own in shares.values() for share in own]
        comparable = [own for own in shares.values() if len(own) >= FEWEST]
        return min(median_of(own) for own in (together, *comparable))

    def _agrees(self, one: _Accepted) -> bool:
        """Return True if the simple rule agrees: several bad pairs, with partners that are good."""
        hypothesis = one.hypothesis
        if hypothesis.kind in (SuspectKind.NODE, SuspectKind.GPU) and not hypothesis.each:
            return bool(self._cleared(hypothesis, one.bad))
        # A part that several hosts share must be bad for several of them, on both sides.
        bad_hosts = {host for i in one.bad for host in self.units[i].hosts}
        seen = bad_hosts.intersection(hypothesis.hosts)
        return len(seen) >= 2 or not hypothesis.hosts

    def _cleared(
        self, hypothesis: _Hypothesis, bad: Collection[int], among: Collection[str] = ()
    ) -> set[str]:
        """Return the partners in bad pairs that were good with a third host."""
        partners = {h for i in bad for h in self.units[i].hosts}.difference(hypothesis.hosts)
        return {
            partner
            for partner in partners
            if partner not in self.accused
            and partner not in among
            and any(
                self.units[i].good and not set(hypothesis.hosts) & set(self.units[i].hosts)
                for i in self.units_of[partner]
            )
        }

    def _hypotheses(self) -> Iterator[_Hypothesis]:
        """Yield all hypotheses about the units that nothing explains yet."""
        seen: set[frozenset[int]] = set()
        for hypothesis in (
            *self._groups(),
            *self._known_switches(),
            *self._rails(),
            *self._waves(),
            *self._nodes(),
            *self._single_gpus(),
        ):
            # If two faults make the same units bad, the first one is more general.
            if hypothesis.each:
                yield hypothesis
            elif hypothesis.units and hypothesis.units not in seen:
                seen.add(hypothesis.units)
                yield hypothesis

    def _nodes(self) -> Iterator[_Hypothesis]:
        penalty = log(len(self.units_of))
        for host, own in self.units_of.items():
            if host not in self.accused:
                yield _Hypothesis(SuspectKind.NODE, (host,), (), None, frozenset(own), penalty)

    def _single_gpus(self) -> Iterator[_Hypothesis]:
        by_gpu: dict[tuple[str, int], set[int]] = {}
        for index, unit in enumerate(self.units):
            for host, gpus in zip(unit.hosts, unit.gpus, strict=True):
                for gpu in gpus or ():
                    by_gpu.setdefault((host, gpu), set()).add(index)
        # GPUs that always took part together cannot be distinguished.
        together: dict[tuple[str, frozenset[int]], set[int]] = {}
        for (host, gpu), own in by_gpu.items():
            everywhere = {i for i in self.units_of[host] if self._gpus(i, host) is None}
            together.setdefault((host, frozenset(own | everywhere)), set()).add(gpu)
        penalty = log(max(len(together), 1))
        for (host, units), numbers in together.items():
            known = self.accused_gpus.get(host, set())
            bad_as_a_whole = host in self.accused and not known
            if bad_as_a_whole or not known.isdisjoint(numbers):
                continue
            if len(units) == len(self.units_of[host]):
                continue
            gpus = None if self._is_slow_elsewhere(host, units) else frozenset(numbers)
            one = gpus is not None and len(gpus) == 1
            yield _Hypothesis(
                SuspectKind.GPU if one else SuspectKind.NODE,
                (host,),
                (),
                str(min(numbers)) if one else None,
                units,
                penalty,
                gpus=gpus,
            )

    def _is_slow_elsewhere(self, host: str, units: Collection[int]) -> bool:
        """Return True if other pairs of a host lost at least half of what these lost."""

        def lost(own: Iterable[int]) -> float:
            return median_of(e.lost for i in own for e in self.units[i].events)

        return 2 * lost(set(self.units_of[host]).difference(units)) >= lost(units)

    def _gpus(self, index: int, host: str) -> Gpus:
        unit = self.units[index]
        return unit.gpus[unit.hosts.index(host)]

    def _rails(self) -> Iterator[_Hypothesis]:
        """Yield each rail: all units in which a GPU with this local rank took part.

        A slow rail may explain bad pairs of full hosts. Good ones are left out, because all of them
        look normal if all of them use the slow rail.
        """
        numbers = {gpu for unit in self.units for gpus in unit.gpus for gpu in gpus or ()}
        for number in sorted(numbers):
            of_rail = {i for i, u in enumerate(self.units) if _uses(u, number)}
            full = (i for i, u in enumerate(self.units) if u.bad and None in u.gpus)
            units = frozenset(of_rail.union(full))
            if of_rail and len(units) < len(self.units):
                penalty = log(len(numbers))
                yield _Hypothesis(SuspectKind.RAIL, (), (), str(number), units, penalty)

    def _waves(self) -> Iterator[_Hypothesis]:
        """Yield each wave in which nearly all pairs were bad."""
        waves: dict[tuple[str, int], set[int]] = {}
        for index, unit in enumerate(self.units):
            waves.setdefault((unit.events[0].step, unit.events[0].wave), set()).add(index)
        for own in waves.values():
            bad = sum(self.units[i].events[0].bad for i in own)
            if len(own) >= _FEWEST_COMMON and bad >= _COMMON * len(own):
                penalty = log(len(waves))
                yield _Hypothesis(None, (), (), None, frozenset(own), penalty)

    def _groups(self) -> Iterator[_Hypothesis]:
        """Yield groups of hosts that the data show: isolated, bad one by one, or two halves."""
        count = len(self.units_of)
        sets = [gpus for unit in self.units for gpus in unit.gpus]
        used = {number for gpus in sets for number in gpus or ()}
        # A GPU that took part everywhere shows no more than all GPUs together.
        numbers = [n for n in sorted(used) if any(gpus and n not in gpus for gpus in sets)]
        for number in (None, *numbers):
            mostly_bad = self._mostly_bad(number)
            if number is None:
                yield from self._bad_hosts(mostly_bad)
            candidates = [mostly_bad, *(self._halves() if number is None else ())]
            refined = dict.fromkeys(self._refined(group, number) for group in candidates)
            for group, uncertain in refined:
                if not 2 <= len(group) < count:
                    continue
                crossing, inside = self._crossing(group, number)
                # The same GPU of several hosts has one likely cause, even without pairs inside.
                doubt = 0.0 if number is None else self.caution
                if crossing and self._is_fast(inside, crossing, doubt) and (inside or doubt):
                    device = None if number is None else str(number)
                    # Penalty for choosing this group among all groups of its size, and the GPU.
                    chosen = _log_choose(count, len(group))
                    chosen += 0.0 if number is None else log(len(numbers))
                    for one in self._between(group, crossing, chosen, device):
                        yield replace(one, uncertain=uncertain)

    def _bad_hosts(self, group: tuple[str, ...]) -> Iterator[_Hypothesis]:
        """Yield the hypothesis that each host of a group is bad, so their common pairs are, too."""
        members = set(group)
        fast = {
            host
            for host in group
            for i in self.units_of[host]
            if self.units[i].good and members.issuperset(self.units[i].hosts)
        }
        # A host that is bad only with others of the group does not need to be bad itself.
        needed = {
            host
            for host in group
            for i in self.units_of[host]
            if self.units[i].bad and not members.issuperset(self.units[i].hosts)
        }
        group = tuple(host for host in group if host in needed - fast)
        if len(group) >= 2 and _MOST_BAD * len(group) <= len(self.units_of):
            touching = frozenset(i for host in group for i in self.units_of[host])
            each = log(len(self.units_of)) + self.caution
            penalty = len(group) * each - self.caution
            yield _Hypothesis(SuspectKind.NODE, group, (), None, touching, penalty, each=True)

    def _refined(
        self, group: tuple[str, ...], number: int | None
    ) -> tuple[tuple[str, ...], frozenset[str]]:
        """Return the group after moving hosts in or out as long as this fits the data better.

        Hosts that may also be on the other side are not in it; they are returned separately.
        """
        if len(group) < 2 or 2 * len(group) > len(self.units_of):
            return group, frozenset()
        members = set(group)
        crossing, _ = self._crossing(members, number)
        law = self._odds(self._counts(crossing), self._counts(self._apart_from(members)))
        changes: dict[str, float] = {}
        gains: dict[str, float] = {}
        stale: Iterable[str] = self.names
        for _ in range(_MOST_MOVES):
            changes |= {host: self._change(host, members, number, law) for host in stale}
            # Change of the log number of possible groups if the group grows by one host.
            size = log((len(self.units_of) - len(members)) / len(members))
            gains = {h: c + size if h in members else c - size for h, c in changes.items()}
            largest = max(gains.values())
            if largest <= 1e-9:
                break
            moved = {host for host, gain in gains.items() if gain > largest * _LARGE}
            members ^= moved
            if not 2 <= len(members) < len(self.units_of):
                return (), frozenset()
            units = (self.units[i] for host in moved for i in self.units_of[host])
            stale = moved.union(*(unit.hosts for unit in units))
        uncertain = frozenset(host for host, gain in gains.items() if gain > -_CERTAIN)
        return tuple(h for h in self.names if h in members - uncertain), uncertain

    def _apart_from(self, members: Collection[str]) -> list[int]:
        """Return the units without any of some hosts."""
        own = set(members)
        return [i for i, unit in enumerate(self.units) if own.isdisjoint(unit.hosts)]

    def _odds(
        self, crossing: tuple[float, float], outside: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the log likelihood ratios of a bad and a good pair: crossing the edge or not."""
        share = (_STEADY[0] + crossing[0]) / (sum(_STEADY) + crossing[1])
        rate = self._rate(*outside)
        return log(share / rate), log((1 - share) / (1 - rate))

    def _change(
        self, host: str, members: set[str], number: int | None, odds: tuple[float, float]
    ) -> float:
        """Return by how much the log likelihood grows if a host changes sides."""
        by_pair: dict[Pair, list[float]] = {}
        for index in self.units_of[host]:
            unit = self.units[index]
            if index in self.explained or not self._part(index, host, number):
                continue
            (other,) = (h for h in unit.hosts if h != host)
            crosses = (host in members) is not (
                other in members and self._part(index, other, number)
            )
            evidence = unit.share * odds[0] + (1 - unit.share) * odds[1]
            by_pair.setdefault(unit.hosts, []).append(-evidence if crosses else evidence)
        return sum(sum(own) / len(own) for own in by_pair.values())

    def _part(self, index: int, host: str, number: int | None) -> bool:
        gpus = self._gpus(index, host)
        return number is None or gpus is None or number in gpus

    def _is_fast(
        self, inside: Collection[int], crossing: Collection[int], doubt: float = 0.0
    ) -> bool:
        """Return True if the pairs inside a group did not lose what those across its edge lost.

        `doubt`: the log odds that all hosts are bad one by one must be below this.
        """
        lost = median_of(e.deviation for i in crossing for e in self.units[i].events)
        slow = [
            i for i in inside if median_of(e.deviation for e in self.units[i].events) <= lost / 2
        ]
        if 2 * len(slow) > len(inside):
            return False
        both = frozenset((*inside, *crossing))
        others = self._counts(i for i in range(len(self.units)) if i not in both)
        bad, good = self._odds(self._counts(crossing), others)
        return len(slow) * bad + (len(inside) - len(slow)) * good < doubt or not inside

    def _between(
        self, group: tuple[str, ...], crossing: frozenset[int], penalty: float, device: str | None
    ) -> Iterator[_Hypothesis]:
        rest = tuple(host for host in self.names if host not in group)
        if device is not None:
            yield _Hypothesis(SuspectKind.LEAF, group, (), device, crossing, penalty)
        elif 4 * len(group) < len(self.units_of):
            yield _Hypothesis(SuspectKind.SWITCH, group, (), None, crossing, penalty)
        else:
            # The search may have found either of the two halves.
            one, other = sorted((group, rest), key=lambda side: (len(side), side))
            yield _Hypothesis(SuspectKind.BORDER, one, other, None, crossing, penalty)

    def _known_switches(self) -> Iterator[_Hypothesis]:
        """Yield the switches, and the borders between two of them, that the places show."""
        levels: dict[int, dict[str, set[str]]] = {}
        for host in self.units_of:
            parts = [part for part in self.places.get(host, "").split("/") if part]
            for depth in range(1, len(parts)):
                name = "/".join(parts[:depth])
                levels.setdefault(depth, {}).setdefault(name, set()).add(host)
        for groups in levels.values():
            sets = sorted(tuple(sorted(group)) for group in groups.values())
            known = [group for group in sets if 2 <= len(group) < len(self.units_of)]
            for group in known:
                crossing, inside = self._crossing(group, None)
                if crossing and self._is_fast(inside, crossing):
                    penalty = log(len(known))
                    yield _Hypothesis(SuspectKind.SWITCH, group, (), None, crossing, penalty)
            if 2 < len(sets) <= _MOST_PLACES:
                for one, other in combinations(known, 2):
                    ends = frozenset((*one, *other))
                    crossing, _ = self._crossing(one, None)
                    between = frozenset(i for i in crossing if ends.issuperset(self.units[i].hosts))
                    penalty = 2 * log(len(known))
                    yield _Hypothesis(SuspectKind.BORDER, one, other, None, between, penalty)

    def _mostly_bad(self, number: int | None) -> tuple[str, ...]:
        """Return the hosts with more bad than good units, through one GPU or any."""
        group = []
        for host in self.names:
            own = [
                i
                for i in self.units_of[host]
                if number is None or number in (self._gpus(i, host) or (number,))
            ]
            bad, total = self._counts(own)
            if bad > 0 and bad > _MOSTLY * total and len(self._pairs(own)) > 1:
                group.append(host)
        return tuple(group)

    def _crossing(
        self, group: Collection[str], number: int | None
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Return the units across the edge of a group, through one GPU or any, and those inside.

        Traffic between two hosts of the group that both use the GPU stays inside: NCCL sends on the
        rail of the GPU that receives.
        """
        members = set(group)
        crossing, inside = [], []
        for index, unit in enumerate(self.units):
            uses = [
                host in members and (number is None or gpus is None or number in gpus)
                for host, gpus in zip(unit.hosts, unit.gpus, strict=True)
            ]
            if all(uses):
                inside.append(index)
            elif any(uses):
                crossing.append(index)
        return frozenset(crossing), frozenset(inside)

    def _halves(self) -> Iterator[tuple[str, ...]]:
        """Yield the smaller of two groups whose pairs with each other are bad.

        The signs of the leading eigenvector of the graph, with +1 for good pairs and -1 for bad
        ones, divide the hosts. A shift makes all eigenvalues positive for the power iteration.
        """
        names = self.names
        index_of = {host: index for index, host in enumerate(names)}
        edges = [
            (index_of[u.hosts[0]], index_of[u.hosts[1]], -u.weight if u.bad else u.weight)
            for i, u in enumerate(self.units)
            if i not in self.explained
        ]
        degree = [0.0] * len(names)
        for a, b, weight in edges:
            degree[a] += abs(weight)
            degree[b] += abs(weight)
        shift = max(degree, default=0.0)
        values = _start(len(names), edges)
        for _ in range(_ITERATIONS):
            new = [shift * value for value in values]
            for a, b, weight in edges:
                new[a] += weight * values[b]
                new[b] += weight * values[a]
            largest = max(map(abs, new), default=0.0) or 1.0
            values = [value / largest for value in new]
        positive = tuple(n for n, v in zip(names, values, strict=True) if v > 0)
        negative = tuple(n for n, v in zip(names, values, strict=True) if v <= 0)
        group = min((positive, negative), key=lambda side: (len(side), side))
        if len(group) >= 2:
            yield group

    # Result

    def result(self) -> Attribution:
        """Return the accepted hypotheses and the unexplained pairs."""
        left = [i for i in range(len(self.units)) if i not in self.explained]
        open_units = sorted(
            (self.units[i] for i in left if self.units[i].bad),
            key=lambda unit: (min(e.deviation for e in unit.events), unit.hosts),
        )
        planned = [e for i in left for e in self.units[i].events if not e.repeated]
        collapsed = [event for event in planned if event.collapsed]
        return Attribution(
            blamed=tuple(
                self._blamed(one, kind)
                for one in self.accepted
                if (kind := one.hypothesis.kind) is not None
            ),
            unknown=self._unknown(),
            doubtful=self._doubtful(),
            open_pairs=tuple(open_units),
            background=self._rate(*self._counts(left)),
            collapsed=tuple(collapsed),
            pairs=len(planned),
            hosts=tuple(self.names),
        )

    def _unknown(self) -> tuple[str, ...]:
        return tuple(
            host
            for host in self.names
            if host not in self.accused and all(self.units[i].bad for i in self.units_of[host])
        )

    def _doubtful(self) -> tuple[str, ...]:
        """Return the hosts that may be bad, have a bad GPU or belong to a group, without proof."""
        everything = self._counts(range(len(self.units)))
        maybe = set[str]().union(*(one.hypothesis.uncertain for one in self.accepted))
        for gpu in self._single_gpus():
            inside = self._counts(gpu.units)
            gain = self._gain(inside, self._outside(gpu.units, everything), _STEADY)
            if gain > gpu.penalty - log(len(self.units_of)) > 0:
                maybe.update(gpu.hosts)
        result = []
        for host in self.names:
            if host in maybe and host not in self.accused:
                result.append(host)
                continue
            own = [i for i in self.units_of[host] if i not in self.explained]
            inside = self._counts(own)
            if host in self.accused or inside[0] <= 0:
                continue
            bad = [e for i in own for e in self.units[i].events if e.bad]
            if len(bad) == 1 and bad[0].deviation > -SIGMAS:
                continue
            good_again = [i for i in own if self.units[i].good and self.units[i].events[0].repeated]
            if len(self._pairs(i for i in own if self.units[i].bad)) == 1 and (
                len(good_again) >= _ENOUGH_GOOD
            ):
                continue
            laws = (_STEADY, _INTERMITTENT)
            outside = self._outside(own, everything)
            if max(self._gain(inside, outside, law) for law in laws) > 0:
                result.append(host)
        return tuple(result)

    def _blamed(self, one: _Accepted, kind: SuspectKind) -> Blamed:
        hypothesis = one.hypothesis
        hosts, others = map(self._without_accused, (hypothesis.hosts, hypothesis.others))
        bad_events = [e for i in sorted(one.bad) for e in self.units[i].events if e.bad]
        cleared = self._cleared(hypothesis, one.bad)
        causes = [e.cause for e in bad_events if e.cause]
        cause = Cause.WRONG_DATA if Cause.WRONG_DATA in causes else None
        if cause is None and causes and 2 * len(causes) >= len(bad_events):
            cause = max(set(causes), key=lambda c: (causes.count(c), c))
        bad_pairs = len(self._pairs(one.bad))
        if cause is None:
            cause = Cause.INTERMITTENT if one.intermittent else Cause.SLOW_OUTLIER
        shares = [e.share for e in bad_events if e.share is not None]
        share = median_of(shares) if shares else None
        farthest = COLLAPSED - _TOLERANCE
        between = kind in _APART and cause.row.relative
        is_distance = between and self._is_distance(one.bad, farthest)
        if between and not is_distance and share is not None and share >= farthest:
            share = self._lowest_share(one.bad)  # that of the step which distance does not explain
        return Blamed(
            kind=kind,
            hosts=hosts,
            others=others,
            device=hypothesis.device,
            strength=self._strength(one, len(cleared), bad_pairs),
            cause=cause,
            pairs=one.pairs,
            bad=bad_pairs,
            other_pairs=one.other_pairs,
            other_bad=one.other_bad,
            cleared=len(cleared),
            share=share,
            gpus=hypothesis.gpus,
            distance=is_distance,
            events=tuple(bad_events),
        )

    def _without_accused(self, group: tuple[str, ...]) -> tuple[str, ...]:
        """Return a group without bad hosts: their pairs are bad on either side of its edge."""
        rest = tuple(host for host in group if host not in self.accused)
        return rest if len(rest) > 1 else group

    def _strength(self, one: _Accepted, cleared: int, bad_pairs: int) -> Strength:
        if one.hypothesis.kind not in (SuspectKind.NODE, SuspectKind.GPU):
            return Strength.STRONG
        if cleared < 2 or bad_pairs < 2:
            return Strength.WEAK
        if 2 * bad_pairs <= one.pairs:
            return Strength.WEAK if one.rate > _CALM else Strength.MODERATE
        return Strength.STRONG


def _start(count: int, edges: Sequence[tuple[int, int, float]]) -> list[float]:
    """Return 1 for the host with the most bad pairs, and 0 for all others."""
    bad_of = [0.0] * count
    for a, b, weight in edges:
        bad_of[a] -= min(weight, 0.0)
        bad_of[b] -= min(weight, 0.0)
    first = max(range(count), key=bad_of.__getitem__, default=0)
    return [1.0 if index == first else 0.0 for index in range(count)]


def _uses(unit: Unit, number: int) -> bool:
    return any(gpus is not None and number in gpus for gpus in unit.gpus)


def _log_tail(bad: int, own: int, all_bad: int, total: int) -> float:
    """Return the log probability that `own` of `total` pairs contain `bad` or more of `all_bad`."""
    most = min(own, all_bad)
    terms = [
        _log_choose(own, k) + _log_choose(total - own, all_bad - k) - _log_choose(total, all_bad)
        for k in range(bad, most + 1)
        if all_bad - k <= total - own
    ]
    largest = max(terms, default=0.0)
    return min(0.0, largest + log(sum(exp(term - largest) for term in terms) or 1.0))


def _log_choose(count: int, chosen: int) -> float:
    return lgamma(count + 1) - lgamma(chosen + 1) - lgamma(count - chosen + 1)


#: Kinds of groups that may be slow only because of distance.
_APART = (SuspectKind.BORDER, SuspectKind.LEAF, SuspectKind.SWITCH)
#: Order of hypotheses that explain equally much: the most general kind first.
_GENERAL_FIRST = (
    SuspectKind.BORDER,
    SuspectKind.LEAF,
    SuspectKind.SWITCH,
    SuspectKind.RAIL,
    None,
    SuspectKind.NODE,
    SuspectKind.GPU,
)
