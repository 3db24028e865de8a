"""Choose the pairs to measure next: those that separate the leading explanations.

A pair is worth the information that its result is expected to give: by how much the explanations
differ in how likely they make it bad, weighed by their probabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log

from accept.core.judge.effects.executions import Execution
from accept.core.judge.effects.explanation import Doubt, Explanation, OpenPair, Part, hosts_in_doubt
from accept.core.verdict import OF_HOST, SuspectKind

#: Probability that a pair is bad if a steady or an intermittent fault covers it, and at least if
#: none does.
_BAD, _AT_TIMES, _GOOD = 0.95, 0.5, 0.02
#: A wave follows only if a pair is worth this much information in all.
_LEAST = 0.02
#: A pair that is worth less gives way to one of the planned rounds.
_IDLE = _LEAST / 10
#: Another execution of a pair is worth this share of the one before.
_REPEATED = 0.25
#: Number of the most probable explanations that a wave separates, and of the open pairs that are
#: measured again.
_MOST_DOUBTS, _MOST_OPEN = 64, 64
#: Maximum number of logs of a pair whose hosts may be bad at times.
_MOST_LOGS = 8
#: Two hosts that are near each other, and far from all others, meet this often.
_FEW_MEETINGS = 3
#: Number of partners that are tried for a host.
_PARTNERS = 24

Pair = tuple[str, str]


@dataclass(frozen=True)
class _Question:
    """Two explanations that exclude each other, and the probability of the second one."""

    parts: tuple[Part, ...]
    other: Doubt


def next_wave(
    explanation: Explanation,
    executions: Sequence[Execution],
    hosts: Sequence[str],
) -> tuple[Pair, ...]:
    """Return disjoint pairs of `hosts`, most informative first; empty if nothing is open.

    The other hosts are paired, too, so that the network carries the same load as before: as they
    were in planned rounds, because only chance would choose new pairs, and with them what is found.
    """
    met: dict[frozenset[str], set[tuple[str, int]]] = {}
    for e in executions:
        if len(e.hosts) == 2:
            met.setdefault(frozenset(e.hosts), set()).add(e.wave)
    questions = _questions(explanation)
    bad = [fault.part for fault in explanation.faults if fault.part.kind is not SuspectKind.FABRIC]
    noise = max(_GOOD, explanation.background)
    worth: dict[Pair, float] = {}
    for pair in _pairs(questions, explanation, hosts, met):
        value = sum(_information(question, pair, bad, noise) for question in questions)
        # Another execution of one pair shows little, because it shares the path.
        worth[pair] = value * _REPEATED ** len(met.get(frozenset(pair), ()))
    for pair in _again(explanation, hosts):
        worth[pair] = max(worth.get(pair, 0.0), log(2))
    for pair in (
        *_between_bad(explanation, executions, hosts),
        *_alone_near(explanation, hosts, met),
    ):
        worth[pair] = max(worth.get(pair, 0.0), log(2))
    if max(worth.values(), default=0.0) < _LEAST:
        return ()
    for pair in _of_accused(explanation, hosts, met):
        worth.setdefault(pair, _IDLE)
    order = {host: n for n, host in enumerate(hosts)}
    busy: set[str] = set()
    wave: list[Pair] = []
    ranked = sorted(
        worth.items(), key=lambda row: (-round(row[1], 9), order[row[0][0]], order[row[0][1]])
    )
    for pair, value in ranked:
        if value >= _IDLE and busy.isdisjoint(pair):
            wave.append(pair)
            busy.update(pair)
    for pair in _idle(executions, order, met):
        if busy.isdisjoint(pair):
            wave.append(pair)
            busy.update(pair)
    return tuple(wave)


def _idle(
    executions: Iterable[Execution],
    order: Mapping[str, int],
    met: Mapping[frozenset[str], Collection[object]],
) -> list[Pair]:
    """Return the pairs of planned rounds, those with the fewest measurements first."""
    planned = {
        _sorted((one.hosts[0], one.hosts[1]), order): None
        for one in executions
        if len(one.hosts) == 2 and not one.repeated and order.keys() >= {*one.hosts}
    }
    return sorted(planned, key=lambda pair: len(met[frozenset(pair)]))


def _questions(explanation: Explanation) -> list[_Question]:
    """Return what is open: each doubt by itself, and each alternative of faults."""
    alternatives: dict[Part, list[Doubt]] = {}
    questions = []
    for doubt in explanation.doubtful[:_MOST_DOUBTS]:
        if doubt.instead_of is None:
            questions.append(_Question((), doubt))
        else:
            alternatives.setdefault(doubt.part, []).append(doubt)
    for doubts in alternatives.values():
        parts = tuple(doubt.instead_of for doubt in doubts if doubt.instead_of is not None)
        questions.append(_Question(parts, max(doubts, key=lambda doubt: doubt.probability)))
    return questions


def _covers(part: Part, pair: Pair) -> bool:
    """Return True if a pair with all GPUs exercises a part."""
    inside = [host in part.hosts for host in pair]
    if part.kind is SuspectKind.RAIL:
        return True
    if part.kind is SuspectKind.LINK:
        return all(inside)
    if part.kind in OF_HOST:
        return any(inside)
    outside = [host in part.others if part.others else host not in part.hosts for host in pair]
    return any(inside) and any(outside)


def _information(question: _Question, pair: Pair, bad: Iterable[Part], noise: float) -> float:
    """Return the expected information of a pair about a question, in nats."""
    if any(part not in question.parts and _covers(part, pair) for part in bad):
        return 0.0  # it is bad anyway
    doubt = question.other
    # Certainty of one half proves nothing yet.
    share = min(doubt.probability, 0.5)
    of_doubt = _AT_TIMES if doubt.intermittent else _BAD
    first = _BAD if any(_covers(part, pair) for part in question.parts) else noise
    second = of_doubt if _covers(doubt.part, pair) else noise
    mean = share * second + (1 - share) * first
    return _entropy(mean) - share * _entropy(second) - (1 - share) * _entropy(first)


def _entropy(rate: float) -> float:
    return -sum(x * log(x) for x in (rate, 1 - rate) if x > 0)


def _pairs(
    questions: Iterable[_Question],
    explanation: Explanation,
    hosts: Sequence[str],
    met: Collection[frozenset[str]],
) -> list[Pair]:
    """Return pairs that may answer a question: hosts in doubt with each other and others."""
    order = {host: n for n, host in enumerate(hosts)}
    parts = {part for question in questions for part in (*question.parts, question.other.part)}
    single = {part.hosts[0] for part in parts if len(part.hosts) == 1}
    groups = [part for part in parts if len(part.hosts) > 1]
    doubted = [host for host in hosts if host in single.union(explanation.unknown)]
    result = dict.fromkeys(combinations(doubted[:_MOST_DOUBTS], 2))
    result |= dict.fromkeys(_with_good(doubted, single | _bad(explanation), hosts, met))
    for part in sorted(groups):
        own = [host for host in part.hosts if host in order][:_PARTNERS]
        others = part.others or [host for host in hosts if host not in part.hosts]
        for number, host in enumerate(own):
            for other in (*own[number + 1 :], *others[number : number + 4]):
                if other in order:
                    result[_sorted((host, other), order)] = None
    return list(result)


def _bad(explanation: Explanation) -> set[str]:
    """Return the hosts that are accused one by one."""
    return {fault.part.hosts[0] for fault in explanation.faults if len(fault.part.hosts) == 1}


def _with_good(
    chosen: Iterable[str],
    others: Collection[str],
    hosts: Sequence[str],
    met: Collection[frozenset[str]],
) -> Iterator[Pair]:
    """Yield pairs of each of some hosts with hosts that are none of `others`, new ones if any."""
    order = {host: n for n, host in enumerate(hosts)}
    good = [host for host in hosts if host not in others]
    for host in chosen:
        new = [h for h in good if frozenset((host, h)) not in met] or good
        start = len(new) * order[host] // max(len(hosts), 1)
        for other in (new[start:] + new[:start])[:_PARTNERS]:
            if other != host:
                yield _sorted((host, other), order)


def _of_accused(
    explanation: Explanation, hosts: Sequence[str], met: Collection[frozenset[str]]
) -> Iterator[Pair]:
    """Yield pairs of accused hosts with new ones: all pairs of a good host may be bad links."""
    bad = _bad(explanation)
    parts = [fault.part for fault in explanation.faults]
    parts += [doubt.part for doubt in explanation.doubtful]
    others = {host for part in parts for host in part.hosts}
    yield from _with_good([host for host in hosts if host in bad], others, hosts, met)


def _again(explanation: Explanation, hosts: Collection[str]) -> list[Pair]:
    """Return the collapsed pairs of the planned rounds that were measured too few times.

    One log shows no link. If a host may be bad at times, more logs of the pair show that it is not.
    """
    if any(fault.part.kind is SuspectKind.FABRIC for fault in explanation.faults):
        return []
    order = {host: n for n, host in enumerate(hosts)}
    doubted = hosts_in_doubt(explanation.doubtful)
    pairs = [
        _sorted((pair.hosts[0], pair.hosts[1]), order)
        for pair in explanation.open_pairs
        if len(pair.hosts) == 2
        and pair.bad == pair.logs
        and order.keys() >= set(pair.hosts)
        and _is_short(pair, doubted)
    ]
    return pairs[:_MOST_OPEN]


def _is_short(pair: OpenPair, doubted: Mapping[str, Doubt]) -> bool:
    """Return True if more logs of a pair may tell a link from its hosts."""
    ends = [doubted[host].intermittent for host in pair.hosts if host in doubted]
    if not ends:
        return pair.logs == 1
    return all(ends) and 1 < pair.logs < _MOST_LOGS


def _between_bad(
    explanation: Explanation, executions: Sequence[Execution], hosts: Collection[str]
) -> list[Pair]:
    """Return pairs of the hosts that are bad one by one, or together, if none of these met.

    Only hosts that are bad themselves are slow with each other; those behind a bad switch are not.
    Without such a pair, both explain the same.
    """
    order = {host: n for n, host in enumerate(hosts)}
    groups: dict[object, tuple[set[str], frozenset[int]]] = {}
    for part in (fault.part for fault in explanation.faults):
        gpus = frozenset(part.gpus)
        if part.kind in (SuspectKind.NODE, SuspectKind.GPU):
            # The same GPU of each may have one reason, also if others took part whenever it did.
            for one in [frozenset([gpu]) for gpu in part.gpus] or [gpus]:
                groups.setdefault(one, (set(), one))[0].update(part.hosts)
        elif part.kind in (SuspectKind.LEAF, SuspectKind.SWITCH, SuspectKind.BORDER):
            groups[part] = (set(part.hosts), gpus)
    pairs = list[Pair]()
    for group, gpus in groups.values():
        if not any(_exercises(e, group, gpus) for e in executions):
            own = sorted(group & order.keys(), key=order.__getitem__)
            pairs += zip(own[::2], own[1::2], strict=False)
    return pairs


def _alone_near(
    explanation: Explanation,
    hosts: Collection[str],
    met: Mapping[frozenset[str], Collection[object]],
) -> list[Pair]:
    """Return the blocks of two near hosts that met too few times.

    One fast execution makes such a block, and two slow hosts a matter of distance.
    """
    order = {host: n for n, host in enumerate(hosts)}
    blocks = explanation.distance.blocks if explanation.distance else ()
    return [
        _sorted((one, other), order)
        for one, other in (sorted(block) for block in blocks if len(block) == 2)
        if order.keys() >= {one, other}
        and len(met.get(frozenset((one, other)), ())) < _FEW_MEETINGS
    ]


def _exercises(e: Execution, group: set[str], gpus: frozenset[int]) -> bool:
    """Return True for a pair of the group with one of these GPUs on both sides."""
    sides = [own is None or not gpus or not gpus.isdisjoint(own) for own in e.gpus]
    return len(e.hosts) == 2 and group >= set(e.hosts) and all(sides)


def _sorted(pair: Pair, order: Mapping[str, int]) -> Pair:
    one, other = pair
    return (one, other) if order[one] < order[other] else (other, one)
