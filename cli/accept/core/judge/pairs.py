"""Find slow or failed hosts, links and switches from pairs of hosts, as a pure function.

Suspects are named one after the other, the most likely first. A deficit that one suspect explains
no longer counts against its partners (forward selection with the likelihoods of `robust_stats`).
A bad pair alone accuses both hosts. A partner that did well in another pair is cleared, which
leaves the other host. A switch is accused by the pairs across its border, as one cause instead of
many hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import NormalDist
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.robust_stats import (
    DEAD_SIGMAS,
    FALSE_ALARMS,
    MIN_SIGMAS,
    SIGMAS,
    Spread,
    gains,
    intermittent_gain,
    spread,
    surprise,
    threshold,
)
from accept.core.model import Strength

#: Smallest switch that is accused: with fewer hosts, each host being bad is as likely.
_MIN_SWITCH_HOSTS = 3
#: The number of shifts that are tried for one suspicion is limited to about this.
_MAX_SHIFTS = 8


class Sample(NamedTuple):
    """The result of one execution."""

    hosts: tuple[str, ...]
    #: The measured value, higher is better; None: nothing was measured.
    value: float | None
    #: Cause that makes it bad whatever its value: failed, wrong data.
    cause: Cause | None = None
    #: Path of the raw log.
    log: str = ""
    #: Local ranks of each host that took part; empty: all.
    ranks: tuple[int, ...] = ()


class Accusation(NamedTuple):
    """A host, the two hosts of a link, or the hosts of a switch, and the reason to accuse them."""

    hosts: tuple[str, ...]
    strength: Strength
    cause: Cause
    why: str
    logs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """The hosts, links and switches that pairs accuse."""

    nodes: tuple[Accusation, ...] = ()
    links: tuple[Accusation, ...] = ()
    switches: tuple[Accusation, ...] = ()
    #: Hosts that cannot be judged, because all their partners are bad or may be.
    unknown: tuple[str, ...] = ()
    #: Spread of healthy pairs; None below four hosts.
    spread: Spread | None = None
    #: Lowest number of pairs of a host.
    rounds: int = 0


@dataclass(frozen=True)
class _Suspicion:
    """The most likely way in which a host, or the hosts of a switch, are bad."""

    hosts: tuple[str, ...]
    #: Log-likelihood ratio to a healthy host.
    gain: float
    #: How slow the host is, in sigma.
    shift: float
    #: Indices of the pairs of the host, or across the border of the switch.
    pairs: tuple[int, ...]
    #: Slow only in some of its pairs.
    intermittent: bool = False


def decode(
    samples: Iterable[Sample],
    noise: float,
    bound: float | None = None,
    *,
    places: Mapping[str, str] | None = None,
    alarms: float = FALSE_ALARMS,
) -> Decoded:
    """Name hosts, links and switches from pairs; the order of hosts and samples does not matter.

    `noise`: lowest sigma of healthy pairs, as a share. `bound`: the value that a pair should reach;
    slower pairs do not count as healthy, and with fewer than four healthy hosts it replaces their
    median. `places`: the places of hosts (`row/rack/host`), to find switches. `alarms`: share of
    healthy clusters in which a host may be accused.
    """
    pairs = [sample for sample in samples if len(set(sample.hosts)) == 2]
    healthy = _healthy_spread(pairs, noise, bound)
    if healthy:
        centre, sigma = healthy.median, healthy.sigma
    else:
        centre, sigma = bound or 0.0, noise * (bound or 0.0)
    search = _Search(pairs, [_deviation(pair, centre, sigma) for pair in pairs], alarms)
    search.run(_switches(places or {}, search.pairs_of))
    nodes = [s for s in search.suspicions if len(s.hosts) == 1]
    switches = [s for s in search.suspicions if len(s.hosts) > 1]
    return Decoded(
        nodes=tuple(search.accusation(node, healthy) for node in nodes),
        links=search.links(),
        switches=tuple(search.accusation(switch, healthy) for switch in switches),
        unknown=search.unknown(),
        spread=healthy,
        rounds=min((len(indices) for indices in search.pairs_of.values()), default=0),
    )


def _healthy_spread(pairs: Sequence[Sample], noise: float, bound: float | None) -> Spread | None:
    """Return the spread of the pairs without a bad host; None below four hosts.

    First each host is judged by its best pair. If a quarter of the hosts is bad, nearly half of the
    pairs are slow, and the median of all pairs would be meaningless.
    """
    # Healthy values vary, so a bound at their median must not remove their lower half.
    floor = 0.0 if bound is None else bound * (1 - SIGMAS * noise)
    live = [p for p in pairs if not p.cause and p.value is not None and p.value > floor]
    best: dict[str, float] = {}
    for pair in live:
        for host in pair.hosts:
            best[host] = max(best.get(host, 0.0), pair.value or 0.0)
    best_spread = spread(list(best.values()), 0.0)
    if best_spread is None:
        return None
    # The best of r normal values has a higher median and a smaller sigma than a single value. The
    # correction is accurate within 4 % up to r = 10.
    rounds = len(live) * 2 / len(best)
    sigma = best_spread.sigma * rounds**0.24
    centre = best_spread.median - sigma * NormalDist().inv_cdf((rounds - 0.375) / (rounds + 0.25))
    limit = centre - SIGMAS * max(sigma, noise * centre)
    normal = [pair.value for pair in live if pair.value is not None and pair.value >= limit]
    return spread(normal, noise) or spread(list(best.values()), noise)


def _deviation(pair: Sample, centre: float, sigma: float) -> float:
    """Return the deviation of a pair in sigma, negative if it is slower than healthy pairs.

    Return 0 if there is nothing to compare it with.
    """
    if pair.cause or pair.value is None or pair.value <= 0:
        return -DEAD_SIGMAS
    if sigma <= 0 or centre <= 0:
        return 0.0
    # The difference of logarithms cannot underflow to 0, unlike the quotient of tiny values.
    return max((log(pair.value) - log(centre)) * centre / sigma, -DEAD_SIGMAS)


def _switches(places: Mapping[str, str], hosts: Iterable[str]) -> list[frozenset[str]]:
    """Return the hosts of each switch: those that share a place, at each level of places."""
    groups: dict[str, set[str]] = {}
    count = 0
    for host in hosts:
        count += 1
        parts = [part for part in places.get(host, "").split("/") if part]
        for depth in range(1, len(parts) + 1):
            groups.setdefault("/".join(parts[:depth]), set()).add(host)
    switches = {frozenset(g) for g in groups.values() if _MIN_SWITCH_HOSTS <= len(g) < count}
    return sorted(switches, key=sorted)


@dataclass
class _Search:
    """Forward selection: accept the suspicion with the largest gain, then the next."""

    pairs: Sequence[Sample]
    #: Of each pair, in sigma.
    deviations: Sequence[float]
    alarms: float
    #: Indices of the pairs of each host.
    pairs_of: dict[str, list[int]] = field(default_factory=dict)
    #: The shift that accepted suspicions explain, for each pair, in sigma (<= 0).
    explained: list[float] = field(default_factory=list)
    #: The accepted suspicions.
    suspicions: list[_Suspicion] = field(default_factory=list)
    accused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.explained = [0.0] * len(self.pairs)
        for index, pair in enumerate(self.pairs):
            for host in pair.hosts:
                self.pairs_of.setdefault(host, []).append(index)

    def run(self, switches: Sequence[frozenset[str]]) -> None:
        """Fill `suspicions` with all hosts and switches that can be accused."""
        required = threshold(len(self.pairs_of), self.alarms)
        candidates: dict[tuple[str, ...], tuple[int, ...]] = {
            (host,): tuple(indices) for host, indices in self.pairs_of.items()
        }
        for switch in switches:
            crossing = (
                i for i, p in enumerate(self.pairs) if len(switch.intersection(p.hosts)) == 1
            )
            candidates[tuple(h for h in self.pairs_of if h in switch)] = tuple(crossing)
        open_ = {hosts: self._suspicion(hosts, indices) for hosts, indices in candidates.items()}
        while True:
            likely = [s for s in open_.values() if s.gain >= required and self._cleared(s)]
            largest = max((s.gain for s in likely), default=0.0)
            # Ties are accepted together, because the order of a list must not decide.
            accepted = [s for s in likely if s.gain > largest - 1e-9]
            if not accepted:
                return
            if any(len(s.hosts) > 1 for s in accepted):
                accepted = [s for s in accepted if len(s.hosts) > 1]
            changed: set[int] = set()
            for suspicion in accepted:
                changed |= self._accept(suspicion)
            for hosts in list(open_):
                if self.accused.issuperset(hosts):
                    del open_[hosts]
                elif not changed.isdisjoint(candidates[hosts]):
                    open_[hosts] = self._suspicion(hosts, candidates[hosts])

    def _accept(self, suspicion: _Suspicion) -> set[int]:
        """Accept a suspicion. Return the indices of the bad pairs that it explains."""
        self.suspicions.append(suspicion)
        self.accused.update(suspicion.hosts)
        bad = {i for i in suspicion.pairs if self.deviations[i] < -MIN_SIGMAS}
        for index in bad if suspicion.intermittent else suspicion.pairs:
            self.explained[index] = min(self.explained[index], -suspicion.shift)
        return bad

    def _suspicion(self, hosts: tuple[str, ...], indices: tuple[int, ...]) -> _Suspicion:
        """Return the suspicion with the largest gain. The best shift is near an observed one."""
        deviations = [self.deviations[index] for index in indices]
        explained = [self.explained[index] for index in indices]
        shifts = sorted(
            {
                -deviation
                for deviation, known in zip(deviations, explained, strict=True)
                if deviation <= -MIN_SIGMAS and known > deviation
            }
        )
        best = _Suspicion(hosts, 0.0, 0.0, indices)
        stride = len(shifts) // _MAX_SHIFTS if len(shifts) > _MAX_SHIFTS else 1
        for shift in shifts[::stride]:
            pair_gains = gains(deviations, explained, shift)
            if (gain := sum(pair_gains)) > best.gain:
                best = _Suspicion(hosts, gain, shift, indices)
            gain = sum(map(intermittent_gain, pair_gains)) if len(hosts) == 1 else 0.0
            if gain > best.gain and self._bad_with_two_partners(indices, pair_gains):
                best = _Suspicion(hosts, gain, shift, indices, intermittent=True)
        return best

    def _bad_with_two_partners(self, indices: Sequence[int], pair_gains: Sequence[float]) -> bool:
        """Return True if at least two partners saw the host slow.

        One partner is not enough: the link between the two would explain it as well.
        """
        slow = (self.pairs[i] for i, gain in zip(indices, pair_gains, strict=True) if gain > 0)
        hosts = {host for pair in slow for host in pair.hosts}
        return len(hosts) >= 3  # the host itself and two partners

    def _bad_pairs(self, suspicion: _Suspicion) -> list[Sample]:
        return [self.pairs[i] for i in suspicion.pairs if self.deviations[i] <= -MIN_SIGMAS]

    def _cleared(self, suspicion: _Suspicion) -> set[str]:
        """Return the partners in bad pairs that are not accused and did well in another pair."""
        partners = {host for pair in self._bad_pairs(suspicion) for host in pair.hosts}
        return {
            host
            for host in partners.difference(suspicion.hosts, self.accused)
            if any(self.deviations[index] > -MIN_SIGMAS for index in self.pairs_of[host])
        }

    def accusation(self, suspicion: _Suspicion, healthy: Spread | None) -> Accusation:
        """Return the accusation for an accepted suspicion."""
        bad, cleared = self._bad_pairs(suspicion), len(self._cleared(suspicion))
        unshared = [p for p in bad if len(self.accused.intersection(p.hosts)) == 1] or bad
        cause = _gravest_cause(unshared)
        if suspicion.intermittent and cause is Cause.SLOW_OUTLIER:
            cause = Cause.INTERMITTENT
        count = len(suspicion.pairs)
        if len(suspicion.hosts) > 1:
            where = f"{len(bad)} of the {count} pairs across its border"
        elif len(bad) == count:
            where = "its only pair" if count == 1 else f"each of its {count} pairs"
        else:
            where = f"{len(bad)} of its {count} pairs"
        detail = f" ({cause})" if not cause.row.relative else ""
        best = max((pair.value for pair in bad if pair.value is not None), default=None)
        if not detail and best is not None and healthy and healthy.median:
            detail = f"; the best of them is {best / healthy.median:.0%} of the median"
        partners = "partner was" if cleared == 1 else "partners were"
        return Accusation(
            hosts=suspicion.hosts,
            strength=Strength.STRONG if cleared >= 2 else Strength.MODERATE,
            cause=cause,
            why=f"bad in {where}, while {cleared} {partners} fine elsewhere{detail}",
            logs=tuple(dict.fromkeys(pair.log for pair in unshared if pair.log)),
        )

    def unknown(self) -> tuple[str, ...]:
        """Return the hosts that are not accused and had only bad pairs."""
        return tuple(
            host
            for host, indices in self.pairs_of.items()
            if host not in self.accused and all(self.deviations[i] <= -MIN_SIGMAS for i in indices)
        )

    def links(self) -> tuple[Accusation, ...]:
        """Return the bad pairs that no accepted suspicion explains.

        If half of the remaining pairs are bad, they have a common cause, and no link is named. A
        single pair of two hosts is named.
        """
        remaining: dict[frozenset[str], list[int]] = {}
        for index, pair in enumerate(self.pairs):
            if not self.explained[index]:
                remaining.setdefault(frozenset(pair.hosts), []).append(index)
        required = threshold(len(remaining), self.alarms)
        bad = [indices for indices in remaining.values() if self._is_bad_link(indices, required)]
        if len(remaining) > 1 and len(bad) * 2 >= len(remaining):
            return ()
        return tuple(self._link(indices) for indices in bad)

    def _is_bad_link(self, indices: Sequence[int], required: float) -> bool:
        best = max(self.deviations[index] for index in indices)
        if best > -MIN_SIGMAS:
            return False
        failed = any(self.pairs[i].cause or self.pairs[i].value is None for i in indices)
        # Judged by its best value: it was measured again because it was slow, perhaps by chance.
        return failed or len(indices) * surprise(best) >= required

    def _link(self, indices: Sequence[int]) -> Accusation:
        pairs = [self.pairs[index] for index in indices]
        cause = _gravest_cause(pairs)
        is_proven = cause is not Cause.SLOW_OUTLIER or len(pairs) > 1
        return Accusation(
            hosts=pairs[0].hosts,
            strength=Strength.MODERATE if is_proven else Strength.WEAK,
            cause=cause,
            why=f"the pair was bad ({cause}), and neither host alone explains it",
            logs=tuple(pair.log for pair in pairs if pair.log),
        )


def _gravest_cause(pairs: Sequence[Sample]) -> Cause:
    """Return the gravest cause of bad pairs: wrong data, then failures, then slowness."""
    causes = [pair.cause for pair in pairs if pair.cause]
    if Cause.WRONG_DATA in causes:
        return Cause.WRONG_DATA
    return max(
        set(causes), key=lambda cause: (causes.count(cause), cause), default=Cause.SLOW_OUTLIER
    )
