"""Describe what pairs of hosts show: suspects with their counts, and what remains open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.blame import Attribution, Blamed, Unit
from accept.core.judge.pairs import COLLAPSED, Event, Gpus, Population, healthy_spread
from accept.core.judge.robust_stats import (
    FOUND,
    MIN_SIGMAS,
    SIGMAS,
    Spread,
    median_of,
    rounds_for,
    slowdown_found,
)
from accept.core.judge.topology import Blocks, is_near, lone_hosts
from accept.core.model import BadPair, Detectable, Step, Strength, Suspect, SuspectKind
from accept.core.text import count, shortened

#: Collapsed pairs are a fault of the network from this number and this share of all pairs on.
_FEWEST_COLLAPSED, _LOWEST_COLLAPSED = 4, 0.01
#: Kinds of suspects that are a host or a part of one, and that are groups of hosts.
OF_HOST = (SuspectKind.NODE, SuspectKind.GPU, SuspectKind.NIC)
_OF_GROUP = (SuspectKind.BORDER, SuspectKind.LEAF, SuspectKind.SWITCH)
#: Maximum number of logs of one suspect.
_MAX_LOGS = 8
#: Maximum number of hosts in a sentence.
_MAX_HOSTS = 16
#: Maximum number of bad pairs of one suspect in the verdict.
_MAX_PAIRS = 1000


class Gap(NamedTuple):
    """Some pairs of a step that are slower than its other pairs."""

    step: str
    #: What they reached, slowest first; higher is better.
    values: tuple[float, ...]
    #: The number of them that are slower than noise explains.
    slow: int
    #: The median of the other pairs.
    normal: float
    #: The logs of the slow ones.
    logs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairResults:
    """The results of the pairs of all checks together."""

    slow: Attribution = field(default_factory=Attribution)
    wrong: Attribution = field(default_factory=Attribution)
    #: (check, step) -> what its pairs show by themselves, if some collapsed in it that nothing in
    #: `slow` explains: in all other collectives these pairs may be good.
    by_population: Mapping[tuple[str, str], Attribution] = field(default_factory=dict)
    blocks: Blocks = ()
    #: (check, step) -> the populations of the step: all pairs, or the near and the far ones.
    populations: Mapping[tuple[str, str], tuple[Population, ...]] = field(default_factory=dict)
    #: (check, step) -> local rank -> the value of its full rail, as a share of their median.
    rails: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)
    #: Host -> number of its GPU -> the NICs that NCCL used for it.
    nics: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)
    #: The hosts in the run's order.
    order: tuple[str, ...] = ()
    #: The suspects that were described already: each check and step asks for them again.
    _described: dict[tuple[object, ...], Suspect] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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

    def detectable(self) -> Detectable | None:
        """Return the smallest slowdown of a node that all checks of pairs would have shown.

        Return None if there were fewer rounds than a node needs, or too few hosts.
        """
        slowdowns = []
        hosts = len(self.order)
        for parts in self.populations.values():
            planned = sum(not m.repeated for part in parts for m in part.measurements)
            noise = max((part.noise for part in parts), default=0.0)
            spreads = [healthy_spread(p.measurements, p.noise, p.bound) for p in parts]
            shares = [s.sigma / s.median for s in spreads if s is not None and s.median > 0]
            enough = hosts > 1 and noise > 0 and 2 * planned >= hosts * rounds_for(hosts, noise)
            found = slowdown_found(max(shares), hosts) if shares and enough else None
            if found is None:
                return None
            slowdowns.append(found)
        return Detectable(slowdown=max(slowdowns), probability=FOUND) if slowdowns else None

    def suspects(self, check: str, step: Step) -> list[Suspect]:
        """Return the suspects that this check accuses in this step."""
        found = (
            self._suspect(self._narrowed(blamed))
            for blamed in self.blamed()
            if any(check in e.checks and e.step == step.id for e in blamed.events)
        )
        return list(dict.fromkeys(found))

    def suspects_of_rails(self, check: str, step: Step) -> dict[int, list[Suspect]]:
        """Return what explains slow rails of a step: local rank -> suspects by the rail's pairs."""
        found: dict[int, list[Suspect]] = {}
        for blamed in self.blamed():
            own = [e for e in blamed.events if check in e.checks and e.step == step.id]
            for rank in _numbers(own) if blamed.kind in (*OF_HOST, *_OF_GROUP) else ():
                found.setdefault(rank, []).append(self._suspect(self._narrowed(blamed)))
        return found

    def blamed(self) -> Iterator[Blamed]:
        """Yield everything that is blamed, wrong data first."""
        for found in (self.wrong, self.slow):
            yield from (one for one in found.blamed if not one.distance)
            yield from network_faults(found)
        for found in self.by_population.values():
            yield from (one for one in (*found.blamed, *network_faults(found)) if _collapsed(one))

    def across_blocks(self, check: str, step: Step) -> Gap | None:
        """Return how much slower pairs of two blocks are in a step; None if they are not."""
        return self._gap(check, step, lambda hosts: not is_near(hosts, self.blocks))

    def is_explained(self, check: str, step: Step) -> bool:
        """Return True if distance explains how much slower pairs of two blocks are in a step."""
        return len(self.populations.get((check, step.id), ())) > 1

    def far_groups(self, check: str, step: Step) -> list[tuple[Blamed, Gap]]:
        """Return the groups of hosts that are slower with the others because of the distance."""
        groups = (one for one in self.slow.blamed if one.distance)
        gaps = ((one, self._gap(check, step, partial(crosses, one))) for one in groups)
        return [(one, gap) for one, gap in gaps if gap is not None]

    def ambiguous(self, check: str, step: Step) -> list[tuple[str, Gap]]:
        """Return the hosts that are slow in a step, or alone under their switch."""
        parts = self.populations.get((check, step.id), ())
        hosts = dict.fromkeys(host for part in parts for m in part.measurements for host in m.hosts)
        lone = lone_hosts(hosts, self.blocks)
        gaps = ((host, self._gap(check, step, {host}.intersection)) for host in lone)
        return [(host, gap) for host, gap in gaps if gap is not None]

    def unequal(self, check: str, step: Step) -> list[tuple[str, float]]:
        """Return pairs with their best values if these differ, and nothing shows what is normal.

        That is the case if there are fewer than four hosts and no bound. The slowest pair is first.
        """
        parts = self.populations.get((check, step.id), ())
        if self.spread(check, step) is not None or any(part.bound is not None for part in parts):
            return []
        best: dict[str, float] = {}
        for m in (m for part in parts for m in part.measurements if m.value and not m.cause):
            name = " - ".join(self._sorted(m.hosts))
            best[name] = max(best.get(name, 0.0), m.value or 0.0)
        noise = max((part.noise for part in parts), default=0.0)
        limit = min(COLLAPSED, 1 - SIGMAS * noise) * max(best.values(), default=0.0)
        return (
            sorted(best.items(), key=itemgetter(1))
            if min(best.values(), default=0.0) < limit
            else []
        )

    def _gap(self, check: str, step: Step, chosen: Callable[[Sequence[str]], object]) -> Gap | None:
        """Compare some pairs of a step with the other ones, the near ones if these are known.

        Return None unless most of the chosen ones are slower than noise explains.
        """
        parts = self.populations.get((check, step.id), ())
        live = [[m for m in p.measurements if m.value and not m.cause] for p in parts]
        others = [m for m in live[0] if not chosen(m.hosts)] if live else []
        pairs = sorted((m.value or 0.0, m.log) for own in live for m in own if chosen(m.hosts))
        if not others or not pairs:
            return None
        healthy = healthy_spread(others, parts[0].noise, parts[0].bound)
        normal = healthy.median if healthy else median_of(m.value or 0.0 for m in others)
        sigma = healthy.sigma if healthy else parts[0].noise * normal
        slow = [log for value, log in pairs if value < normal - MIN_SIGMAS * sigma]
        if 2 * len(slow) <= len(pairs):
            return None
        values = tuple(value for value, _ in pairs)
        return Gap(step=step.id, values=values, slow=len(slow), normal=normal, logs=tuple(slow))

    def unproven(self, check: str, step: Step) -> list[Unit]:
        """Return the pairs that collapsed, were not measured often enough, and have no reason."""
        if any(b.kind is SuspectKind.FABRIC for b in self.blamed()):
            return []
        named = {b.hosts for b in self.blamed() if b.kind is SuspectKind.LINK}
        alone = self.by_population.get((check, step.id), Attribution()).open_pairs
        # Bounds and other findings report what most pairs have in common.
        pooled = self.slow.open_pairs if 2 * len(self.slow.open_pairs) <= self.slow.pairs else ()
        found: dict[tuple[str, ...], Unit] = {}
        for unit in (*pooled, *alone):
            shown = (e.collapsed and check in e.checks and e.step == step.id for e in unit.events)
            if unit.hosts not in named and any(shown):
                found.setdefault(unit.hosts, unit)
        return [*found.values()]

    def _suspect(self, blamed: Blamed) -> Suspect:
        key = (blamed.kind, blamed.hosts, blamed.others, blamed.device, blamed.cause)
        if key not in self._described:
            self._described[key] = self._describe(blamed)
        return self._described[key]

    def _narrowed(self, blamed: Blamed) -> Blamed:
        """Return a host or group with the GPUs that the rails show to be the reason.

        Pairs of a rail are measured if the rail is slow and most others are not, although these
        have the same hosts. So a host is bad by that GPU, and a group is bad by that GPU's leaf.
        """
        ranks = self._ranks(blamed)
        of_group = blamed.kind in (SuspectKind.BORDER, SuspectKind.SWITCH)
        if of_group and any(ranks & self._ranks(b) for b in self.blamed() if b.kind in OF_HOST):
            return blamed  # the host may be what made the rail slow
        if not ranks or not (of_group or blamed.kind is SuspectKind.NODE):
            return blamed
        by_gpu = self.nics.get(blamed.hosts[0], {}) if not of_group else {}
        if len(ranks) > 1 and (nic := nic_of(by_gpu, ranks)):
            return replace(blamed, kind=SuspectKind.NIC, device=nic, gpus=ranks)
        # A border between two of several groups is not a leaf.
        if len(ranks) > 1 or (blamed.others and len(self._hosts(blamed)) < len(self.slow.hosts)):
            return replace(blamed, gpus=ranks)
        kind = SuspectKind.LEAF if of_group else SuspectKind.GPU
        group = min((side for side in (blamed.hosts, blamed.others) if side), key=len)
        return replace(
            blamed, kind=kind, hosts=group, others=(), device=str(min(ranks)), gpus=ranks
        )

    def _ranks(self, blamed: Blamed) -> frozenset[int]:
        """Return the local ranks whose rails lost what the pairs of a host or group lost."""
        steps = {step for _, step in self.rails}
        own = [event for event in blamed.events if event.step in steps]
        if len(own) == len(blamed.events):
            return _numbers(own)
        lost = 1 - (blamed.share or 0.0)
        shares = [shares for (_, step), shares in self.rails.items() for e in own if e.step == step]
        return frozenset(
            rank
            for rank in _numbers(own)
            if any(2 * (1 - of_rank.get(rank, 1.0)) >= lost for of_rank in shares)
        )

    def _device(self, blamed: Blamed) -> str:
        """Return a text about the device of a blamed host."""
        text = self._other_rails(blamed)
        if blamed.kind is SuspectKind.NIC:
            return f"{text}; no other GPU uses {blamed.device}"
        if blamed.kind is not SuspectKind.GPU or blamed.device is None:
            return text
        # Pairs of hosts use both the GPU and its NIC.
        nics = self.nics.get(blamed.hosts[0], {}).get(int(blamed.device), frozenset())
        return f"{text}; GPU {blamed.device} or its NIC {', '.join(sorted(nics))}".rstrip()

    def _other_rails(self, blamed: Blamed) -> str:
        """Return how fast the rails of the other GPUs are; empty if unknown."""
        ranks = self._ranks(blamed)
        steps = {event.step for event in blamed.events}
        shares = [
            share
            for (_, step), of_rank in self.rails.items()
            for rank, share in of_rank.items()
            if step in steps and rank not in ranks
        ]
        if not ranks or not shares:
            return ""
        return f"; rails of other GPUs reach at least {min(shares):.0%} of normal"

    def _hosts(self, blamed: Blamed) -> set[str]:
        return {*blamed.hosts, *blamed.others}

    def _describe(self, blamed: Blamed) -> Suspect:
        sort = self._sorted
        return Suspect(
            kind=blamed.kind,
            hosts=sort(blamed.hosts),
            others=sort(blamed.others),
            device=blamed.device,
            cause=_cause(blamed),
            strength=blamed.strength,
            why=_why(blamed) + (self._device(blamed) if blamed.kind in OF_HOST else ""),
            around=self._around(blamed),
            innocent=self._innocent(blamed),
            pairs=tuple(
                replace(pair, hosts=sort(pair.hosts)) for pair in _bad_pairs(blamed)[:_MAX_PAIRS]
            ),
            evidence=tuple(dict.fromkeys(e.log for e in blamed.events if e.log))[:_MAX_LOGS],
        )

    def _sorted(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Return hosts in the run's order."""
        order = {host: index for index, host in enumerate(self.order)}
        return tuple(sorted(hosts, key=lambda host: (order.get(host, len(order)), host)))

    def _around(self, blamed: Blamed) -> str:
        """Return what all bad pairs of a network fault share, and what is normal around it."""
        if blamed.kind in OF_HOST:
            return ""
        members, others = set(blamed.hosts), set(blamed.others)
        times: dict[str, int] = {}
        for pair in _bad_pairs(blamed):
            for host in pair.hosts:
                times[host] = times.get(host, 0) + 1
        if blamed.kind is SuspectKind.FABRIC:
            spread = f"spread over {len(times)} of {count(len(self.order), 'host')}"
            return f"{spread}; no host is in more than {max(times.values(), default=0)} of them"
        if blamed.kind is SuspectKind.RAIL:
            hosts = count(len(times), "host")
            return f"all of them use GPU {blamed.device} of a host; spread over {hosts}"
        if blamed.kind is SuspectKind.LINK:
            thirds = self._normal(blamed, lambda hosts, _: len(members & hosts) == 1)
            return f"pairs of these two with third hosts: {thirds}"
        if blamed.kind is SuspectKind.BORDER:
            inside = self._normal(blamed, lambda hosts, _: hosts <= members or hosts <= others)
            return f"pairs inside the two groups: {inside}"
        text = f"all of them leave {shortened(self._sorted(blamed.hosts), _MAX_HOSTS)}"
        text += f"; pairs inside: {self._normal(blamed, lambda hosts, _: hosts <= members)}"
        if blamed.device is None:
            return text
        number = int(blamed.device)
        elsewhere = self._normal(
            blamed,
            lambda hosts, gpus: (
                len(hosts & members) == 1
                and all(known is not None and number not in known for known in gpus)
            ),
        )
        rails = self._other_rails(blamed)
        return f"{text}{rails or f'; pairs with other hosts through other GPUs: {elsewhere}'}"

    def _normal(self, blamed: Blamed, chosen: Callable[[set[str], Sequence[Gpus]], bool]) -> str:
        """Return how many of the chosen measurements are normal, such as "44 of 44 normal"."""
        found = self.wrong if blamed.cause is Cause.WRONG_DATA else self.slow
        events = [event for one in found.blamed for event in one.events]
        events += [event for unit in found.open_pairs for event in unit.events if event.bad]
        bad = {(frozenset(event.hosts), event.log) for event in events}
        measured = {
            (frozenset(m.hosts), m.log)
            for parts in self.populations.values()
            for part in parts
            for m in part.measurements
            if chosen(set(m.hosts), m.gpus)
        }
        return f"{len(measured - bad)} of {len(measured)} normal" if measured else "not measured"

    def _innocent(self, blamed: Blamed) -> str:
        """Return the hosts that are in bad pairs of a network fault without being the reason."""
        if blamed.kind in OF_HOST:
            return ""
        if blamed.kind is SuspectKind.LINK:
            return "these two hosts: draining one of them does not remove the fault"
        named = [b.hosts[0] for b in self.blamed() if b.kind in OF_HOST]
        hosts = "single hosts"
        if blamed.kind in (SuspectKind.LEAF, SuspectKind.SWITCH):
            hosts = f"the {count(len(blamed.hosts), 'host')} behind it"
        elif named:
            hosts += f" other than {shortened(list(dict.fromkeys(named)), 3)}"
        return f"{hosts}: draining them does not remove the fault"


def nic_of(by_gpu: Mapping[int, Collection[str]], gpus: Collection[int]) -> str:
    """Return the NIC that these GPUs of a host use, and no other GPU; empty: there is none.

    `by_gpu`: number of a GPU of the host -> the NICs that NCCL used for it.
    """
    used = {frozenset(by_gpu.get(gpu, ())) for gpu in gpus}
    shared = next(iter(used), frozenset())
    others = (names for gpu, names in by_gpu.items() if gpu not in gpus)
    is_one = len(used) == len(shared) == 1 and all(shared.isdisjoint(o) for o in others)
    return min(shared) if is_one else ""


def _numbers(events: Iterable[Event]) -> frozenset[int]:
    """Return the GPUs of events; none for events with all GPUs."""
    return frozenset(number for e in events for gpus in e.gpus for number in gpus or ())


def crosses(group: Blamed, hosts: Sequence[str]) -> bool:
    """Return True if a pair is between a group and its other side, or all other hosts."""
    inside = set(group.hosts).intersection(hosts)
    outside = set(hosts).difference(inside)
    return bool(inside and outside) and (not group.others or outside.issubset(group.others))


def _collapsed(blamed: Blamed) -> bool:
    """Return True if one population shows a fault by itself: distance and noise cost less."""
    return not blamed.distance and (blamed.share is None or blamed.share < COLLAPSED)


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
    """Return the reported cause: if no host explains the slowness, it is the network's."""
    of_host = blamed.kind in OF_HOST
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
    """Return the reason for blaming something, with counts."""
    lost = f" ({blamed.share:.0%} of normal)" if blamed.share is not None else ""
    others = f"other pairs: {blamed.other_bad} of {blamed.other_pairs}"
    counts = f"{fault_of(blamed.cause)} in {blamed.bad} of {count(blamed.pairs, 'pair')}"
    if blamed.kind is SuspectKind.FABRIC:
        share = blamed.bad / blamed.pairs
        return f"{counts}, {share:.0%} of all{lost}; no host explains it"
    if blamed.kind is SuspectKind.LINK:
        times = count(blamed.bad, "measurement")
        return f"{fault_of(blamed.cause)} in each of {times}{lost}, also with nothing else running"
    if blamed.kind is SuspectKind.BORDER:
        return f"{counts} between the two groups{lost}; {others}"
    if blamed.kind in (SuspectKind.SWITCH, SuspectKind.LEAF):
        numbers = blamed.gpus or ([] if blamed.device is None else [int(blamed.device)])
        through = f" through {_gpus(numbers)}" if numbers else ""
        return f"{counts} with other hosts{through}{lost}; {others}"
    if blamed.kind is SuspectKind.RAIL:
        return f"{counts} through local rank {blamed.device}{lost}; {others}"
    gpus = ""
    if blamed.gpus is not None:
        gpus = f" in which its {_gpus(blamed.gpus)} took part"
    partners = {host for event in blamed.events for host in event.hosts}.difference(blamed.hosts)
    if len(partners) > blamed.cleared:
        cleared = f"{blamed.cleared} of its {len(partners)} partners are"
    else:
        verb = "is" if blamed.cleared == 1 else "are"
        cleared = f"its {count(blamed.cleared, 'partner')} {verb}"
    return f"{counts}{gpus}{lost}; {others}; {cleared} good with third hosts"


def _gpus(numbers: Iterable[int]) -> str:
    names = [str(number) for number in sorted(numbers)]
    return f"{'GPU' if len(names) == 1 else 'GPUs'} {', '.join(names)}"


def fault_of(cause: Cause) -> str:
    """Return what is wrong with a measurement: "slow", "wrong data", or the cause."""
    if cause is Cause.WRONG_DATA:
        return "wrong data"
    return "slow" if cause.row.slow else str(cause)


def _bad_pairs(blamed: Blamed) -> tuple[BadPair, ...]:
    """Return the bad pairs with their worst results, worst first."""
    wrong = blamed.cause is Cause.WRONG_DATA
    worst: dict[tuple[str, ...], BadPair] = {}
    for event in sorted(blamed.events, key=lambda event: (event.share or 0.0, event.hosts)):
        hosts = tuple(sorted(event.hosts))
        share = None if wrong else event.share
        worst.setdefault(hosts, BadPair(hosts=hosts, share=share, log=event.log))
    return tuple(worst.values())
