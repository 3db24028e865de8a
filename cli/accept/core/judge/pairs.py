"""Who is to blame, as a pure function of what pairs of hosts reached.

Hosts are named one after the other, the likeliest first, and what one of them explains is not held
against its partners (forward selection under the model of `likelihood`). A bad pair alone accuses
two hosts; only a partner that did well elsewhere is cleared by that and leaves the other. A switch
is accused by the pairs that cross its border, as one cause where its hosts would be many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Literal, NamedTuple

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

Strength = Literal["strong", "moderate", "weak"]

#: A switch has at least so many hosts: of fewer, each is bad by itself as likely.
_SWITCH_HOSTS = 3


class Sample(NamedTuple):
    """One execution, as far as blame is concerned."""

    hosts: tuple[str, ...]
    #: What was measured, higher is better; None: nothing was.
    value: float | None
    #: Cause for which it is bad whatever was measured ("" if none): dead, wrong data.
    cause: str = ""
    #: Raw log.
    log: str = ""
    #: Local ranks of each host; empty: all.
    ranks: tuple[int, ...] = ()


class Accusation(NamedTuple):
    """A host, the two ends of a link, or those behind a switch, and what speaks against them."""

    hosts: tuple[str, ...]
    strength: Strength
    cause: str
    why: str
    logs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """What pairs say: hosts, links and switches to blame, and what they were held against."""

    nodes: tuple[Accusation, ...] = ()
    links: tuple[Accusation, ...] = ()
    switches: tuple[Accusation, ...] = ()
    #: Hosts of which nothing can be said: all their partners are bad, or may be.
    unknown: tuple[str, ...] = ()
    #: Of healthy pairs; None below four hosts.
    spread: Spread | None = None
    #: Fewest pairs that a host was in.
    rounds: int = 0


@dataclass(frozen=True)
class _Suspicion:
    """The best that can be said for a host, or the hosts of a switch, being bad."""

    hosts: tuple[str, ...]
    gain: float
    shift: float
    pairs: tuple[int, ...]
    #: Slow in some of its pairs only.
    at_times: bool = False


def decode(
    samples: Iterable[Sample],
    noise: float,
    bound: float | None = None,
    *,
    places: Mapping[str, str] | None = None,
    alarms: float = FALSE_ALARMS,
) -> Decoded:
    """Name hosts, links and switches from pairs; the order of hosts and samples does not matter.

    `noise`: least sigma of healthy pairs, as a share. `bound`: what a pair should reach; slower
    ones are not taken for healthy, and below four healthy hosts it stands for what those reach.
    `places`: where hosts are (`row/rack/host`), for switches. `alarms`: healthy clusters in which
    somebody may be accused, as a share.
    """
    pairs = [sample for sample in samples if len(set(sample.hosts)) == 2]
    among = _healthy(pairs, noise, bound)
    centre, sigma = (among.median, among.sigma) if among else (bound or 0.0, noise * (bound or 0.0))
    work = _Search(pairs, [_deviation(pair, centre, sigma) for pair in pairs], alarms)
    work.name(_behind(places or {}, work.met))
    nodes = tuple(work.accuse(found, among) for found in work.found if len(found.hosts) == 1)
    return Decoded(
        nodes=nodes,
        links=work.links(),
        switches=tuple(work.accuse(f, among) for f in work.found if len(f.hosts) > 1),
        unknown=work.unknown(),
        spread=among,
        rounds=min((len(mine) for mine in work.met.values()), default=0),
    )


def _healthy(pairs: Sequence[Sample], noise: float, bound: float | None) -> Spread | None:
    """Of pairs without a bad host. First each host is held to its best pair: with a quarter of the
    hosts bad nearly half of the pairs are slow, and their median would say nothing."""
    # Healthy ones vary: a bound in their midst must not leave the upper half of them alone.
    floor = 0.0 if bound is None else bound * (1 - SIGMAS * noise)
    # Loaded where it is used: those who only plan load this module too.
    from statistics import NormalDist

    live = [p for p in pairs if not p.cause and p.value is not None and p.value > floor]
    best: dict[str, float] = {}
    for pair in live:
        for host in pair.hosts:
            best[host] = max(best.get(host, 0.0), pair.value or 0.0)
    bests = spread(list(best.values()), 0.0)
    if bests is None:
        return None
    # Where the best of r normal values lies, and how much less it varies (within 4 % up to r = 10).
    rounds = len(live) * 2 / len(best)
    sigma = bests.sigma * rounds**0.24
    centre = bests.median - sigma * NormalDist().inv_cdf((rounds - 0.375) / (rounds + 0.25))
    limit = centre - SIGMAS * max(sigma, noise * centre)
    fine = [pair.value for pair in live if pair.value is not None and pair.value >= limit]
    return spread(fine, noise) or spread(list(best.values()), noise)


def _deviation(pair: Sample, centre: float, sigma: float) -> float:
    """In sigma, below zero where slower than healthy; 0 where there is nothing to compare with."""
    if pair.cause or pair.value is None or pair.value <= 0:
        return -DEAD_SIGMAS
    if sigma <= 0 or centre <= 0:
        return 0.0
    # Of what is next to nothing the share of the centre would be 0, which has no logarithm.
    return max((log(pair.value) - log(centre)) * centre / sigma, -DEAD_SIGMAS)


def _behind(places: Mapping[str, str], met: Mapping[str, object]) -> list[frozenset[str]]:
    """Hosts that share a place, for each place at each level: those behind one switch."""
    groups: dict[str, set[str]] = {}
    for host in met:
        parts = [part for part in places.get(host, "").split("/") if part]
        for depth in range(1, len(parts) + 1):
            groups.setdefault("/".join(parts[:depth]), set()).add(host)
    found = {frozenset(g) for g in groups.values() if _SWITCH_HOSTS <= len(g) < len(met)}
    return sorted(found, key=sorted)


@dataclass
class _Search:
    """Forward selection: the suspicion with the largest gain is believed, then the next."""

    pairs: Sequence[Sample]
    deviations: Sequence[float]
    alarms: float
    met: dict[str, list[int]] = field(default_factory=dict)
    #: What is known to slow a pair, in sigma (<= 0).
    explained: list[float] = field(default_factory=list)
    found: list[_Suspicion] = field(default_factory=list)
    accused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.explained = [0.0] * len(self.pairs)
        for index, pair in enumerate(self.pairs):
            for host in pair.hosts:
                self.met.setdefault(host, []).append(index)

    def name(self, switches: Sequence[frozenset[str]]) -> None:
        """Fill `found` with all that can be named."""
        least = threshold(len(self.met), self.alarms)
        open_: dict[tuple[str, ...], tuple[int, ...]] = {
            (host,): tuple(mine) for host, mine in self.met.items()
        }
        for group in switches:
            crossing = (
                i for i, p in enumerate(self.pairs) if len(group.intersection(p.hosts)) == 1
            )
            open_[tuple(h for h in self.met if h in group)] = tuple(crossing)
        suspicions = {who: self._suspicion(who, mine) for who, mine in open_.items()}
        while True:
            held = {who: s for who, s in suspicions.items() if s.gain >= least and self._clear(s)}
            most = max((s.gain for s in held.values()), default=0.0)
            # Equals are named together: which comes first in a list must not decide.
            now = [s for s in held.values() if s.gain > most - 1e-9]
            if not now:
                return
            if any(len(s.hosts) > 1 for s in now):
                now = [s for s in now if len(s.hosts) > 1]
            touched: set[int] = set()
            for one in now:
                self.found.append(one)
                self.accused.update(one.hosts)
                touched.update(i for i in one.pairs if self.deviations[i] < -MIN_SIGMAS)
                for index in one.pairs:
                    if not one.at_times or self.deviations[index] < -MIN_SIGMAS:
                        self.explained[index] = min(self.explained[index], -one.shift)
            for who in list(suspicions):
                if self.accused.issuperset(who):
                    del suspicions[who]
                elif not touched.isdisjoint(open_[who]):
                    suspicions[who] = self._suspicion(who, open_[who])

    def _suspicion(self, who: tuple[str, ...], mine: tuple[int, ...]) -> _Suspicion:
        """The best shift is near one of those seen."""
        z = [self.deviations[index] for index in mine]
        known = [self.explained[index] for index in mine]
        slow = sorted({-a for a, b in zip(z, known, strict=True) if a <= -MIN_SIGMAS and b > a})
        best = _Suspicion(who, 0.0, 0.0, mine)
        for shift in slow if len(slow) < 9 else slow[:: len(slow) // 8]:
            each = gains(z, known, shift)
            if (gain := sum(each)) > best.gain:
                best = _Suspicion(who, gain, shift, mine)
            gain = sum(map(intermittent_gain, each)) if len(who) == 1 else 0.0
            if gain > best.gain and self._several(mine, each):
                best = _Suspicion(who, gain, shift, mine, at_times=True)
        return best

    def _several(self, mine: Sequence[int], each: Sequence[float]) -> bool:
        """Whether it was bad with two partners: with one alone it is the link's."""
        bad = (self.pairs[index] for index, gain in zip(mine, each, strict=True) if gain > 0)
        return len({host for pair in bad for host in pair.hosts}) > 2

    def _bad(self, suspicion: _Suspicion) -> list[Sample]:
        return [self.pairs[i] for i in suspicion.pairs if self.deviations[i] <= -MIN_SIGMAS]

    def _clear(self, suspicion: _Suspicion) -> set[str]:
        """Partners in bad pairs that are not suspects and did well in another pair."""
        partners = {host for pair in self._bad(suspicion) for host in pair.hosts}
        return {
            host
            for host in partners.difference(suspicion.hosts, self.accused)
            if any(self.deviations[index] > -MIN_SIGMAS for index in self.met[host])
        }

    def accuse(self, suspicion: _Suspicion, among: Spread | None) -> Accusation:
        """Put a suspicion into words."""
        bad, cleared = self._bad(suspicion), len(self._clear(suspicion))
        against = [p for p in bad if len(self.accused.intersection(p.hosts)) == 1] or bad
        cause = _cause(against)
        if suspicion.at_times and cause == "slow-outlier":
            cause = "intermittent"
        count = len(suspicion.pairs)
        much = (
            f"each of its {count} pairs"
            if len(bad) == count
            else f"{len(bad)} of its {count} pairs"
        )
        if len(suspicion.hosts) > 1:
            much = f"{len(bad)} of the {count} pairs across its border"
        figures = f" ({cause})" if cause not in ("slow-outlier", "intermittent") else ""
        best = max((pair.value for pair in bad if pair.value is not None), default=None)
        if not figures and best is not None and among and among.median:
            figures = f"; the best of them is {best / among.median:.0%} of the median"
        partners = "partner was" if cleared == 1 else "partners were"
        return Accusation(
            hosts=suspicion.hosts,
            strength="strong" if cleared >= 2 else "moderate",
            cause=cause,
            why=f"bad in {much}, while {cleared} {partners} fine elsewhere{figures}",
            logs=tuple(dict.fromkeys(pair.log for pair in against if pair.log)),
        )

    def unknown(self) -> tuple[str, ...]:
        """Hosts whose pairs were all bad and who are not accused."""
        return tuple(
            host
            for host, mine in self.met.items()
            if host not in self.accused and all(self.deviations[i] <= -MIN_SIGMAS for i in mine)
        )

    def links(self) -> tuple[Accusation, ...]:
        """Bad pairs that nothing explains.

        Where half of what is left is bad, something common to all is, and no link is named; a
        single pair of two hosts is.
        """
        rest: dict[frozenset[str], list[int]] = {}
        for index, pair in enumerate(self.pairs):
            if not self.explained[index]:
                rest.setdefault(frozenset(pair.hosts), []).append(index)
        least = threshold(len(rest), self.alarms)
        bad = [mine for mine in rest.values() if self._link_is_bad(mine, least)]
        if len(rest) > 1 and len(bad) * 2 >= len(rest):
            return ()
        return tuple(self._link(mine) for mine in bad)

    def _link_is_bad(self, mine: Sequence[int], least: float) -> bool:
        best = max(self.deviations[index] for index in mine)
        if best > -MIN_SIGMAS:
            return False
        dead = any(self.pairs[i].cause or self.pairs[i].value is None for i in mine)
        # Held to its best: it is measured again because it stood out, by chance perhaps.
        return dead or len(mine) * surprise(best) >= least

    def _link(self, mine: Sequence[int]) -> Accusation:
        pairs = [self.pairs[index] for index in mine]
        cause = _cause(pairs)
        return Accusation(
            hosts=pairs[0].hosts,
            strength="moderate" if cause != "slow-outlier" or len(pairs) > 1 else "weak",
            cause=cause,
            why=f"the pair was bad ({cause}) and neither host is alone to blame",
            logs=tuple(pair.log for pair in pairs if pair.log),
        )


def _cause(pairs: Sequence[Sample]) -> str:
    """The gravest thing seen in bad pairs: wrong data, then death, then slowness."""
    causes = [pair.cause for pair in pairs if pair.cause]
    if "wrong-data" in causes:
        return "wrong-data"
    return max(set(causes), key=lambda cause: (causes.count(cause), cause), default="slow-outlier")
