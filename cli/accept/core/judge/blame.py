"""Who is to blame, as a pure function of executions that were good or bad.

Pairs are decoded by AND: a host is a candidate when every pair it was in was bad. A bad pair alone
accuses two hosts; a partner that did well elsewhere is thereby cleared and leaves the other. With
disjoint random rounds in which no two hosts meet twice, one bad host among healthy ones is named
by the second round, and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from accept.core.judge.population import Spread, spread

Strength = Literal["strong", "moderate", "weak"]


class Sample(NamedTuple):
    """One execution, as far as blame is concerned."""

    hosts: tuple[str, ...]
    #: What was measured, higher is better; None: nothing was.
    value: float | None
    #: Cause for which it is bad whatever was measured ("" if none): dead, wrong data.
    cause: str = ""
    #: Raw log.
    log: str = ""


class Accusation(NamedTuple):
    """A host, or two of whom it cannot be told which, with the pairs that speak against them."""

    hosts: tuple[str, ...]
    strength: Strength
    cause: str
    why: str
    logs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """What pairs say: hosts to blame, links to blame, and the limit they were held against."""

    nodes: tuple[Accusation, ...] = ()
    links: tuple[Accusation, ...] = ()
    #: Hosts of which nothing can be said: all their partners are themselves suspects.
    unknown: tuple[str, ...] = ()
    #: Of each host's best pair; None below four hosts.
    spread: Spread | None = None


def decode(samples: Iterable[Sample], noise: float, bound: float | None = None) -> Decoded:
    """Name hosts and links from pairs.

    A host is held to its best pair, and the limit is that of the hosts' bests: with a quarter of
    the hosts bad nearly half of the pairs are slow, and their median would say nothing. `bound`: a
    value below which a pair is bad whatever the others did.
    """
    pairs = [sample for sample in samples if len(set(sample.hosts)) == 2]
    floor = float("-inf") if bound is None else bound
    dead = {id(pair) for pair in pairs if pair.cause or pair.value is None or pair.value < floor}
    best: dict[str, float] = {}
    for pair in pairs:
        if id(pair) not in dead and pair.value is not None:
            for host in pair.hosts:
                best[host] = max(best.get(host, pair.value), pair.value)
    among = spread(list(best.values()), noise)
    limit = among.limit if among else float("-inf")
    judged = [(pair, id(pair) in dead or (pair.value or 0.0) < limit) for pair in pairs]
    nodes, unknown = accuse(judged, among)
    return Decoded(
        nodes=nodes,
        links=_links(judged, {name for node in nodes for name in node.hosts}, noise),
        unknown=unknown,
        spread=among,
    )


def accuse(
    judged: Sequence[tuple[Sample, bool]], among: Spread | None = None
) -> tuple[tuple[Accusation, ...], tuple[str, ...]]:
    """Accuse hosts by AND-decoding of (pair, is bad): accusations, and hosts left unknown.

    Two cleared partners make a strong accusation, one a moderate one. Bad hosts that met do not
    clear each other and do not count against each other.
    """
    met: dict[str, list[tuple[Sample, bool]]] = {}
    for pair, bad in judged:
        for host in pair.hosts:
            met.setdefault(host, []).append((pair, bad))
    candidates = {host for host, pairs in met.items() if all(bad for _, bad in pairs)}
    named, unknown = [], []
    for host, pairs in met.items():
        if host not in candidates:
            continue
        partners = {other for pair, _ in pairs for other in pair.hosts} - {host}
        cleared = partners - candidates
        if not cleared:
            unknown.append(host)
            continue
        against = [pair for pair, _ in pairs if not candidates.issuperset(pair.hosts)]
        named.append(_against(host, pairs, against, len(cleared), among))
    return tuple(named), tuple(unknown)


def _against(
    host: str,
    pairs: Sequence[tuple[Sample, bool]],
    against: Sequence[Sample],
    cleared: int,
    among: Spread | None,
) -> Accusation:
    cause = _cause(against)
    best = max((pair.value for pair, _ in pairs if pair.value is not None), default=None)
    figures = ""
    if cause == "slow-outlier" and best is not None and among and among.median:
        figures = f"; its best is {best / among.median:.0%} of the hosts' median"
    elif cause != "slow-outlier":
        figures = f" ({cause})"
    partners = "partner was" if cleared == 1 else "partners were"
    return Accusation(
        hosts=(host,),
        strength="strong" if cleared >= 2 else "moderate",
        cause=cause,
        why=f"bad in each of its {len(pairs)} pairs, while {cleared} {partners} fine elsewhere"
        f"{figures}",
        logs=tuple(pair.log for pair in against if pair.log),
    )


def _cause(pairs: Sequence[Sample]) -> str:
    """The gravest thing seen in bad pairs: wrong data, then death, then slowness."""
    causes = [pair.cause for pair in pairs if pair.cause]
    if "wrong-data" in causes:
        return "wrong-data"
    return max(set(causes), key=lambda cause: (causes.count(cause), cause), default="slow-outlier")


def _links(
    judged: Sequence[tuple[Sample, bool]], named: set[str], noise: float
) -> tuple[Accusation, ...]:
    """Accuse links: bad pairs that no accused host explains.

    Where half of what is left is bad, something common to all is, and no link is named; a single
    pair of two hosts is.
    """
    rest = [(pair, bad) for pair, bad in judged if named.isdisjoint(pair.hosts)]
    among = spread([p.value for p, bad in rest if not bad and p.value is not None], noise)
    limit = among.limit if among else float("-inf")
    bad_pairs = [pair for pair, bad in rest if bad or (pair.value or 0.0) < limit]
    if len(rest) > 1 and len(bad_pairs) * 2 >= len(rest):
        return ()
    return tuple(
        Accusation(
            hosts=pair.hosts,
            strength="moderate" if pair.cause else "weak",
            cause=_cause([pair]),
            why=f"the pair was bad ({_cause([pair])}) and neither host is alone to blame",
            logs=(pair.log,) if pair.log else (),
        )
        for pair in bad_pairs
    )


class Slow(NamedTuple):
    """Members of a population that are bad, by index, and the limit they were held against."""

    bad: tuple[int, ...]
    spread: Spread | None


def outliers(samples: Sequence[Sample], noise: float, bound: float | None = None) -> Slow:
    """Bad ones among equal executions: dead, wrong, below `bound`, or clearly slower than the rest.

    Where more than half are bad nothing is wrong with one of them in particular: none is returned.
    """
    floor = float("-inf") if bound is None else bound
    live = [s.value for s in samples if s.value is not None and not s.cause]
    among = spread(live, noise)
    limit = max(floor, among.limit) if among else floor
    bad = tuple(
        index
        for index, sample in enumerate(samples)
        if sample.cause or sample.value is None or sample.value < limit
    )
    if len(samples) > 1 and len(bad) * 2 > len(samples):
        return Slow((), among)
    return Slow(bad, among)
