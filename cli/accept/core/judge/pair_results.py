"""Describe what pairs of hosts show: suspects with their counts, and what remains open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from accept.core.causes import Cause
from accept.core.judge.blame import Attribution, Blamed, Unit
from accept.core.judge.pairs import COLLAPSED, Event, Population, healthy_spread
from accept.core.judge.robust_stats import Spread
from accept.core.judge.topology import Blocks, distance, lone_hosts
from accept.core.model import GroupKind, Step, Strength, Suspect, SuspectKind
from accept.core.text import count

#: The smallest number of collapsed pairs, and their smallest share, that is a fault of the network.
_FEWEST_COLLAPSED, _LOWEST_COLLAPSED = 4, 0.01
#: Highest number of logs of one suspect.
_MAX_LOGS = 8


@dataclass(frozen=True, kw_only=True)
class PairResults:
    """What the pairs of all checks show together."""

    slow: Attribution = field(default_factory=Attribution)
    wrong: Attribution = field(default_factory=Attribution)
    blocks: Blocks = ()
    #: (check, step) -> the populations of the step: all pairs, or the near and the far ones.
    populations: Mapping[tuple[str, str], tuple[Population, ...]] = field(default_factory=dict)
    #: The hosts in the run's order.
    order: tuple[str, ...] = ()

    def spread(self, check: str, step: Step) -> Spread | None:
        """Return the spread of the healthy pairs of a step; None if there are too few."""
        found = (
            healthy_spread(p.measurements, p.noise, p.bound)
            for p in self.populations.get((check, step.id), ())
        )
        return next((spread for spread in found if spread is not None), None)

    def pairs(self, check: str, step: Step) -> int:
        """Return the number of measured pairs of a step."""
        parts = self.populations.get((check, step.id), ())
        return sum(len(part.measurements) for part in parts)

    def suspects(self, check: str, step: Step) -> list[Suspect]:
        """Return the suspects that this check accuses in this step."""
        found = []
        for blamed in self.blamed():
            events = [e for e in blamed.events if check in e.checks and e.step == step.id]
            of_rail = step.groups is GroupKind.RAILS and blamed.kind is SuspectKind.NODE
            if events and of_rail:
                found.append(self._suspect(_its_gpu(blamed, events)))
            elif events:
                found.append(self._suspect(blamed))
        return found

    def blamed(self) -> Iterator[Blamed]:
        """Yield what is blamed, wrong data first."""
        for found in (self.wrong, self.slow):
            yield from (one for one in found.blamed if not is_distance(one))
            yield from network_faults(found)

    def far_groups(self, check: str, step: Step) -> list[Blamed]:
        """Return the groups of hosts that are slower towards the others, by distance."""
        return [
            one
            for one in self.slow.blamed
            if is_distance(one) and any(check in e.checks and e.step == step.id for e in one.events)
        ]

    def distance(self, check: str, step: Step) -> float:
        """Return the share of the speed that pairs of two blocks lose; 0 without blocks."""
        return distance(self._joined(check, step), self.blocks)

    def ambiguous(self, check: str, step: Step, accused: Iterable[str]) -> list[str]:
        """Return hosts that are slow, or alone under their switch."""
        pairs = self._joined(check, step).measurements
        hosts = dict.fromkeys(host for pair in pairs for host in pair.hosts)
        return [host for host in lone_hosts(hosts, self.blocks) if host not in set(accused)]

    def unproven(self, check: str, step: Step) -> list[Unit]:
        """Return the pairs that collapsed, were not measured often enough, and have no reason."""
        if any(b.kind is SuspectKind.FABRIC for b in self.blamed()):
            return []
        if 2 * len(self.slow.open_pairs) > self.slow.pairs:
            return []  # a common cause: bounds and other findings tell it
        named = {b.hosts for b in self.blamed() if b.kind is SuspectKind.LINK}
        return [
            unit
            for unit in self.slow.open_pairs
            if unit.hosts not in named
            and any(e.collapsed and check in e.checks and e.step == step.id for e in unit.events)
        ]

    def _joined(self, check: str, step: Step) -> Population:
        parts = self.populations.get((check, step.id), ())
        return Population(measurements=tuple(m for p in parts for m in p.measurements), noise=0.0)

    def _suspect(self, blamed: Blamed) -> Suspect:
        order = {host: index for index, host in enumerate(self.order)}

        def sort(hosts: Sequence[str]) -> tuple[str, ...]:
            return tuple(sorted(hosts, key=lambda host: (order.get(host, len(order)), host)))

        return Suspect(
            kind=blamed.kind,
            hosts=sort(blamed.hosts),
            others=sort(blamed.others),
            device=blamed.device,
            cause=_cause(blamed),
            strength=blamed.strength,
            why=_why(blamed),
            evidence=tuple(dict.fromkeys(e.log for e in blamed.events if e.log))[:_MAX_LOGS],
        )


def _its_gpu(blamed: Blamed, events: Sequence[Event]) -> Blamed:
    """Return a host as a GPU: pairs of a rail use one, and show nothing about the others."""
    numbers = {number for event in events for gpus in event.gpus for number in gpus or ()}
    if len(numbers) != 1:
        return blamed
    return replace(blamed, kind=SuspectKind.GPU, device=str(min(numbers)))


def is_distance(blamed: Blamed) -> bool:
    """Return True if two groups of hosts are apart by no more than distance costs."""
    groups = (SuspectKind.BORDER, SuspectKind.LEAF, SuspectKind.SWITCH)
    share = blamed.share if blamed.cause.row.relative else None
    return blamed.kind in groups and share is not None and share >= COLLAPSED


# Faults of the network


def network_faults(found: Attribution) -> Iterator[Blamed]:
    """Yield what no host explains: single links, and pairs that collapse all over the fabric.

    A link is named only after repeated bad measurements, one of them with nothing else running. The
    fabric is named if pairs of several hosts collapse: those of one host may be the host's.
    """
    links = []
    for unit in found.open_pairs:
        bad = [event for event in unit.events if event.collapsed]
        if len(bad) > 1 and unit.share == 1 and any(event.alone for event in bad):
            links.append(_network(SuspectKind.LINK, unit.hosts, bad, found, len(bad), len(bad)))
    yield from links
    named = {link.hosts for link in links}
    rest = [event for event in found.collapsed if tuple(sorted(event.hosts)) not in named]
    of_host = Counter(host for event in rest for host in event.hosts)
    of_several = len(rest) - max(of_host.values(), default=0) >= _FEWEST_COLLAPSED
    if of_several and _LOWEST_COLLAPSED * found.pairs <= len(rest) < found.pairs:
        yield _network(SuspectKind.FABRIC, (), rest, found, len(rest), found.pairs)


def _cause(blamed: Blamed) -> Cause:
    """Return the cause for people: slowness that no host explains is the network's."""
    of_host = blamed.kind in (SuspectKind.NODE, SuspectKind.GPU)
    return blamed.cause if of_host or not blamed.cause.row.relative else Cause.SLOW_NETWORK


def _network(
    kind: SuspectKind,
    hosts: tuple[str, ...],
    bad: Sequence[Event],
    found: Attribution,
    bad_count: int,
    total: int,
) -> Blamed:
    causes = [event.cause for event in bad if event.cause]
    shares = sorted(event.share for event in bad if event.share is not None)
    most = max(set(causes), key=lambda cause: (causes.count(cause), cause)) if causes else None
    return Blamed(
        kind=kind,
        hosts=hosts,
        strength=Strength.STRONG if kind is SuspectKind.FABRIC else Strength.MODERATE,
        cause=most if most and 2 * len(causes) >= len(bad) else Cause.SLOW_OUTLIER,
        pairs=total,
        bad=bad_count,
        other_pairs=found.pairs,
        other_bad=len(found.collapsed),
        share=shares[len(shares) // 2] if shares else None,
        events=tuple(bad),
    )


# Sentences


def _why(blamed: Blamed) -> str:
    """Return the counts that show a fault, as one sentence."""
    what = _what(blamed)
    others = f"other pairs: {blamed.other_bad} of {blamed.other_pairs}"
    counts = f"{blamed.bad} of {count(blamed.pairs, 'pair')}"
    if blamed.kind is SuspectKind.FABRIC:
        share = blamed.bad / blamed.pairs
        return (
            f"{counts} ({share:.0%}) {_verb(blamed)}, and no host explains it: do not drain nodes"
        )
    if blamed.kind is SuspectKind.LINK:
        times = count(blamed.bad, "measurement")
        return (
            f"{what} in each of {times}, also with nothing else running; neither host explains it"
        )
    if blamed.kind is SuspectKind.BORDER:
        return f"{what} in {counts} between the two groups; {others}"
    if blamed.kind in (SuspectKind.SWITCH, SuspectKind.LEAF):
        through = f" through GPU {blamed.device}" if blamed.device is not None else ""
        return f"{what} in {counts} with other hosts{through}; {others}"
    if blamed.kind is SuspectKind.RAIL:
        return f"{what} in {counts} through local rank {blamed.device}; {others}"
    gpus = ""
    if blamed.gpus is not None:
        names = ", ".join(map(str, sorted(blamed.gpus)))
        gpus = (
            f" in which its GPU {names} took part"
            if len(blamed.gpus) == 1
            else (f" in which its GPUs {names} took part")
        )
    partners = "partner is" if blamed.cleared == 1 else "partners are"
    return f"{what} in {counts}{gpus}; {others}; {blamed.cleared} {partners} good with third hosts"


def _what(blamed: Blamed) -> str:
    if blamed.cause is Cause.WRONG_DATA:
        return "wrong data"
    if not blamed.cause.row.relative:
        return str(blamed.cause)
    return f"{blamed.share:.0%} of normal" if blamed.share is not None else "bad"


def _verb(blamed: Blamed) -> str:
    if blamed.cause is Cause.WRONG_DATA:
        return "have wrong data"
    if blamed.share is None:
        return "fail"
    return f"collapse to {blamed.share:.0%} of normal in the median"
